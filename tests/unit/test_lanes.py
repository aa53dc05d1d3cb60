"""What `make test` prints about parallel runs of pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack.history import History
from hack.lanes import Ended, Run, execute
from hack.report import report
from hack.stages import Failure
from tests.support.nested import BARE

GOOD = "def test_good():\n    print('never shown')\n"
BAD = "def test_bad():\n    assert 'this' == 'that'\n"
SKIPPED = "import pytest\n\n@pytest.mark.skip\ndef test_skipped(): ...\n"


def ended(directory: Path, name: str, text: str, *options: str) -> Ended:
    """Write a test file with this text, and run pytest on it."""
    file = directory / f"test_{name}.py"
    file.write_text(text)
    return execute(
        Run(
            name,
            [str(file), "-p", "no:cacheprovider", *options],
            BARE,
        )
    )


def test_failures_are_shown_whole_after_all_progress_and_totals_last(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    runs = [ended(tmp_path, "good", GOOD), ended(tmp_path, "bad", BAD)]
    with pytest.raises(Failure, match=r"^failed: bad \(exit code 1\)$"):
        report(runs, past=History(tmp_path / "history.json"))
    progress, _, end = capfd.readouterr().out.partition("\n-- bad: pytest ")
    assert "good          | " in progress and "bad           | " in progress and "'that'" not in progress
    assert "assert 'this' == 'that'" in end
    assert end.endswith("==== 1 failed, 1 passed ====\n")


def test_quiet_runs_count_in_the_totals(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    report([ended(tmp_path, "quiet", GOOD, "-q"), ended(tmp_path, "good", GOOD)], past=History(tmp_path / "history.json"))
    assert capfd.readouterr().out.endswith("==== 2 passed ====\n")


@pytest.mark.parametrize(("text", "code"), [(SKIPPED, 1), ("", 5), ("syntax error", 2)], ids=["skipped", "no tests", "broken"])
def test_a_run_that_proves_nothing_has_failed(tmp_path: Path, text: str, code: int) -> None:
    with pytest.raises(Failure, match=rf"none \(exit code {code}\)"):
        report([ended(tmp_path, "none", text)], past=History(tmp_path / "history.json"))
