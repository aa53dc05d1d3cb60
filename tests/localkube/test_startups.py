"""The record of when components started and when they were ready."""

from pathlib import Path

import pytest

from localkube.startups import read, recorded


def test_a_startup_lasts_until_the_component_is_ready(tmp_path: Path) -> None:
    assert read(tmp_path) == []
    for component in ("etcd", "apiserver"):
        with recorded(tmp_path, component):
            pass
    [first, second] = read(tmp_path)
    assert (first.component, second.component) == ("etcd", "apiserver")
    assert first.started <= first.ready <= second.started <= second.ready
    assert first.contains(first.started) and first.contains(first.ready) and not first.contains(second.ready + "x")


def test_a_startup_that_fails_is_not_recorded(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="broken"), recorded(tmp_path, "etcd"):
        raise OSError("broken")
    assert read(tmp_path) == []
