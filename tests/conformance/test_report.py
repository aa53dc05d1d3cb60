"""Test the printed reports, the images of a run, and the program's own errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import __main__ as program
from .case import CaseError, read_case
from .images import Images, environment_digest
from .judging import Report, Verdict
from .report import brief, summary
from .test_mapping import make

DOCKERFILE = "environment/Dockerfile"


def test_a_case_is_a_line_and_each_difference_one_more() -> None:
    report = Report("a", Verdict.DIFFER, 1.25, ["first", "second"], remark="seen")

    assert list(brief(report)) == ["differ  a  1.2 s  seen", "        first", "        second"]


def test_names_and_messages_cannot_play_tricks_on_a_terminal() -> None:
    report = Report("\x1b[2Jx\ny", Verdict.ERROR, lines=["a\rb\x07"], remark="ü\x1b")

    assert list(brief(report)) == ["error   \\x1b[2Jx\\ny  0.0 s  ü\\x1b", "        a\\rb\\x07"]


def test_the_summary_counts_those_that_agree_and_names_the_others() -> None:
    reports = [
        Report("a", Verdict.AGREE),
        Report("b", Verdict.AGREE, is_refusal=True),
        Report("c", Verdict.DIFFER, is_refusal=True),
        Report("d", Verdict.ERROR),
    ]

    assert list(summary(reports)) == ["differ: c", "error: d", "2 of 4 agree (1 of them refusals)"]


def test_cases_with_the_same_environment_share_an_image(tmp_path: Path) -> None:
    cases = [
        read_case(make(tmp_path / name, **files))
        for name, files in {
            "a": {DOCKERFILE: "FROM x\n"},
            "b": {DOCKERFILE: "FROM x\n"},
            "c": {DOCKERFILE: "FROM x\nRUN y\n"},
            "named": {"task.toml": '[environment]\ndocker_image = "elsewhere/image"'},
            "none": {"task.toml": ""},
        }.items()
    ]

    images = Images(cases)
    a, b, c, named, none = map(images.of, cases)

    assert a == b != c
    assert named == a  # the cluster may lack the image that the task names: use the image that most cases share
    assert none is None
    assert len(images.names) == 2


def test_an_image_that_cannot_be_built_is_an_error_of_its_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = read_case(make(tmp_path / "a", **{DOCKERFILE: "FROM x\n"}))
    images = Images([case])
    monkeypatch.setattr("sys.executable", "/bin/false")

    assert images.build(images.names[0]) is False
    with pytest.raises(CaseError, match="could not be built"):
        images.of(case)


def test_an_environment_is_known_by_names_contents_and_what_is_executable(tmp_path: Path) -> None:
    def digest(mode: int = 0o644, **files: str) -> str:
        directory = make(tmp_path / str(len(list(tmp_path.iterdir()))), **files)
        (directory / "trial.json").chmod(mode)
        return environment_digest(directory)

    same = digest(Dockerfile="x")
    assert digest(Dockerfile="x") == same == digest(0o444, Dockerfile="x")
    assert (
        len({same, digest(Dockerfile="y"), digest(dockerfile="x"), digest(0o755, Dockerfile="x"), digest(Dockerfile="x", more="")})
        == 5
    )


@pytest.mark.parametrize("arguments", [[], ["/no/such/directory"], ["--jobs", "0", "."], ["--jobs", "x", "."]])
def test_wrong_arguments_are_usage_errors(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        program.main(arguments)

    assert exit_.value.code == program.USAGE


def test_a_directory_without_cases_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "a")

    assert program.main([str(tmp_path / "a")]) == program.USAGE
    assert program.main([str(tmp_path), "--only", "b*"]) == program.USAGE
    assert "has no cases of that name" in capsys.readouterr().err
