"""Test where the commands search for the runner binary."""

from pathlib import Path

import pytest

from multistep.cli.image import images as runner_binary
from multistep.errors import UsageError

ROOT = Path(__file__).parents[3]


def test_the_source_checkout_is_the_directory_above_operator() -> None:
    assert runner_binary.source_checkout() == ROOT


def test_a_named_runner_that_does_not_exist_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MULTISTEP_RUNNER", str(tmp_path / "runner"))
    with pytest.raises(UsageError, match=r"\$MULTISTEP_RUNNER is .*runner, which does not exist"):
        runner_binary.find_runner()


def test_an_installed_package_has_no_source_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runner_binary, "_PACKAGE", tmp_path / "lib" / "site-packages" / "multistep")
    assert runner_binary.source_checkout() is None
