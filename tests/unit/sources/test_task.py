"""The operator loads the same tasks as Harbor 0.26, and returns the files to upload."""

from __future__ import annotations

from pathlib import Path

import pytest

from multistep.api.trial.content_references import Content
from multistep.errors import InvalidTask, SourceError
from multistep.sources.task.bundle import Bundle
from multistep.sources.task.task import load_task, strip_canary

from .trees import TOML, members, task, tree

SINGLE = {"task.toml": "", "instruction.md": "do", "tests/test.sh": "x"}
SEPARATE = TOML + '[steps.verifier]\nenvironment_mode = "separate"\n'
EXAMPLE = Path(__file__).parents[3] / "examples/hello-multi-step-advanced"


def test_the_layout_shows_what_is_there() -> None:
    files = {"steps/a/workdir/setup.sh": "x", "tests/lib.sh": "x", "solution/solve.sh": "x", "environment/Dockerfile": "x"}
    layout = load_task(task(files)).layout
    step = layout.steps["a"]
    assert (step.instruction, step.workdir, step.setup) == ("do", True, True)
    assert (step.tests, step.test_script, step.solution, step.solve_script) == (True, True, False, False)
    assert (layout.root.tests, layout.root.test_script, layout.root.solve_script) == (True, False, True)
    assert (layout.dockerfile, layout.environment_files, layout.compose) == (True, True, None)
    assert (step.trajectory, load_task(task({"steps/a/trajectory.json": "{}"})).layout.steps["a"].trajectory) == (False, True)


def test_a_single_step_task_lies_at_the_root() -> None:
    layout = load_task(tree(SINGLE)).layout
    assert (layout.steps, layout.root.instruction, layout.root.test_script) == ({}, "do", True)


@pytest.mark.parametrize(
    ("files", "kind", "message"),
    [
        ({"task.toml": "(absent)"}, "FileNotFoundError", "task.toml: is missing"),
        ({"task.toml": "x ="}, "TOMLDecodeError", "task.toml: is not TOML"),
        ({"steps/a/instruction.md": "(absent)"}, "FileNotFoundError", "steps/a/instruction.md: is missing"),
        ({"task.toml": TOML + '[[steps]]\nname = "b"'}, "FileNotFoundError", "steps/b/: is missing"),
        ({"steps/a/tests/test.sh": "(absent)"}, "FileNotFoundError", "and so is the shared tests/test.sh"),
        ({"steps/a/tests/.harborignore": "test.sh"}, "ValueError", "steps/a/tests/test.sh: is excluded by .harborignore"),
        ({"tests/.harborignore/x": "x"}, "ValueError", "tests/.harborignore: is no regular file"),
        ({"tests/x": "x", "tests/.harborignore": "-> none"}, "ValueError", "tests/.harborignore: is no regular file"),
        ({"steps/a/workdir/x": "-> /etc/passwd"}, "ValueError", "steps/a/workdir/x: leads out of the task"),
        ({"steps/a": "-> ../../x"}, "ValueError", "leads out of the task"),
        ({"tests/x": "-> ../../x"}, "ValueError", "tests/x: leads out of the task"),
        ({"solution/x": "-> ."}, "ValueError", "solution/x: links of directories form a circle"),
        (
            {"task.toml": 'artifacts = [{ source = "/a", service = "db" }]\n' + TOML},
            "ValueError",
            "artifacts[0].service: 'db' needs environment/docker-compose.yaml; must be one of 'main'",
        ),
    ],
)
def test_what_is_refused(files: dict[str, str], kind: str, message: str) -> None:
    if files.get("steps/a"):
        files = {**files, "steps/a/instruction.md": "(absent)", "steps/a/tests/test.sh": "(absent)"}
    with pytest.raises(InvalidTask) as caught:
        load_task(task(files))
    assert caught.value.kind == kind
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "files",
    [
        {"steps/a/tests/test.sh": "(absent)", "tests/test.sh": "x"},
        {"steps/undeclared/x": "-> /etc/passwd"},
        {"instruction.md": "not read"},
        {"steps/a/instruction.md": "-> ../../shared.md", "shared.md": "x"},
        {"steps/a/tests/.harborignore": "x", "steps/a/tests/x": "-> /etc/passwd"},
        {"task.toml": SEPARATE, "steps/a/tests/test.sh": "(absent)", "steps/a/tests/Dockerfile": "FROM x"},
        {
            "task.toml": TOML + '[verifier.environment]\ndocker_image = "x"',
            "steps/a/tests/test.sh": "(absent)",
        },
    ],
)
def test_what_is_fine(files: dict[str, str]) -> None:
    assert load_task(task(files)).config.steps


def test_without_verification_files_may_be_missing_but_not_for_the_oracle() -> None:
    bundle = task({"steps/a/instruction.md": "(absent)", "steps/a/tests/test.sh": "(absent)"})
    assert load_task(bundle, verification=False).layout.steps["a"].instruction is None
    with pytest.raises(InvalidTask, match="is missing"):
        load_task(bundle, verification=False, oracle=True)


def test_links_are_checked_even_without_verification() -> None:
    with pytest.raises(InvalidTask, match="leads out"):
        load_task(task({"steps/a/x": "-> /etc"}), verification=False)


@pytest.mark.parametrize(
    ("text", "instruction"),
    [
        ("a\n", "a\n"),
        ("\n \nb", "b"),
        ("<!-- CANARY 1 -->\n# canary 2\n\nb\n# canary 3\n", "b\n# canary 3\n"),
        ("# no such bird\nb", "# no such bird\nb"),
        ("\n# canary\nb", "# canary\nb"),
        ("# canary", ""),
        ("a\r\nb\rc", "a\nb\nc"),
    ],
)
def test_instructions_lose_their_canaries(text: str, instruction: str) -> None:
    assert load_task(task({"steps/a/instruction.md": text})).layout.steps["a"].instruction == instruction


def test_an_instruction_is_text() -> None:
    assert strip_canary("") == ""
    entries = {**task().entries}
    entries["steps/a/instruction.md"] = type(entries["steps/a/instruction.md"])("file", data=b"\xff")
    with pytest.raises(InvalidTask, match="is not UTF-8 text"):
        load_task(Bundle.from_entries(entries))


FILES = {
    "tests/lib.sh": "x",
    "tests/drop.log": "x",
    "tests/.harborignore": "*.log",
    "steps/a/workdir/.harborignore": "*",
    "steps/a/workdir/.dot": "x",
    "steps/a/workdir/sub/": "",
    "steps/a/workdir/link": "-> .dot",
    "steps/a/solution/solve.sh": "x",
    "environment/data/x": "x",
}


@pytest.mark.parametrize(
    ("ref", "names"),
    [
        (Content("tests"), ["lib.sh"]),
        (Content("tests", "a"), ["test.sh"]),
        (Content("workdir", "a"), [".dot", ".harborignore", "link", "sub"]),
        (Content("solution", "a"), ["solve.sh"]),
        (Content("environment"), ["data", "data/x"]),
        (Content("file", name="instruction.txt", text="é"), ["instruction.txt"]),
    ],
)
def test_content_is_a_tar_stream(ref: Content, names: list[str]) -> None:
    found = members(load_task(task(FILES)).content(ref))
    assert list(found) == names
    assert {member.uid for member in found.values()} == {0}


def test_links_stay_links_in_what_is_uploaded() -> None:
    found = members(load_task(task(FILES)).content(Content("workdir", "a")))
    assert (found["link"].issym(), found["link"].linkname) == (True, ".dot")
    assert found["sub"].isdir()


def test_a_directory_that_is_a_link_is_uploaded_as_what_it_leads_to() -> None:
    files = {"steps/a/tests/test.sh": "(absent)", "steps/a/tests": "-> ../../shared", "shared/test.sh": "x"}
    assert list(members(load_task(task(files)).content(Content("tests", "a")))) == ["test.sh"]


def test_content_that_is_not_there_is_an_error() -> None:
    with pytest.raises(SourceError, match="no directory steps/a/solution/"):
        load_task(task()).content(Content("solution", "a"))


def test_the_example_loads() -> None:
    found = load_task(Bundle.from_directory(EXAMPLE), oracle=True)
    assert list(found.layout.steps) == ["scaffold", "implement", "document"]
    assert all(step.test_script and step.solve_script for step in found.layout.steps.values())
