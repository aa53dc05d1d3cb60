"""Which part of the import path of an agent's class does not exist, found without running code of the class."""

from __future__ import annotations

from pathlib import Path

import pytest

from multistep_host.import_path import missing_part

SOURCE = "raise RuntimeError('no code of the class may run')\nclass Mine: ...\nfrom json import JSONDecoder as Other\n"


@pytest.mark.parametrize(
    ("path", "missing"),
    [
        ("own.agents:Mine", ""),
        ("own.agents:Other", ""),
        ("own.agents:Yours", "class 'Yours' in module 'own.agents'"),
        ("own.dynamic:Any", ""),
        ("own.missing:Mine", "module 'own.missing'"),
        ("own.agents.more:Mine", "module 'own.agents.more'"),
        ("nothing.at.all:Mine", "module 'nothing'"),
        ("json:JSONDecoder", ""),
    ],
)
def test_the_missing_part_of_an_import_path_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, missing: str
) -> None:
    package = tmp_path / "own"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('no code of the package may run')\n")
    (package / "agents.py").write_text(SOURCE)
    (package / "dynamic.py").write_text("from somewhere import *\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert missing_part(path) == missing
