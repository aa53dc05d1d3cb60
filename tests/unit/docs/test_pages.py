"""Test that tests.docs.pages extracts a document's commands, and compares their output with the output in the document."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import BadPage, Command, anchor_of, output_problem, parse

PAGE = Path("page.md")


def page(*blocks: str) -> str:
    return "\n\n".join(blocks)


def test_commands_of_a_block_are_taken_apart_as_bash_reads_them() -> None:
    text = "```sh\n# first\nls \\\n  -l\nfor i in 1 2; do\n  echo $i\ndone\ncat <<EOF\nx\nEOF\nfalse  # fails: exit code 1\n```\n"
    found = parse(PAGE, text).commands
    assert [(each.line, each.text) for each in found] == [
        (3, "ls \\\n  -l"),
        (5, "for i in 1 2; do\n  echo $i\ndone"),
        (8, "cat <<EOF\nx\nEOF"),
        (11, "false  # fails: exit code 1"),
    ]
    assert [each.exit_code for each in found] == [0, 0, 0, 1]


def test_a_console_block_shows_what_commands_print() -> None:
    text = "```console\n$ echo a\na\n$ true\n$ printf 'b\\nc\\n' |\n> cat\nb\nc\n```\n"
    assert parse(PAGE, text).commands == (
        Command(2, "echo a", 0, "a"),
        Command(4, "true"),
        Command(5, "printf 'b\\nc\\n' |\ncat", 0, "b\nc"),
    )


def test_a_file_that_is_shown_with_its_name_is_there_for_the_commands() -> None:
    (file,) = parse(PAGE, "```yaml a/b.yaml\nkind: $X\n```\n").commands
    assert file.text == "mkdir -p $(dirname a/b.yaml) && cat > a/b.yaml <<'END OF THE FILE'\nkind: $X\nEND OF THE FILE"


def test_what_is_not_run_has_a_reason() -> None:
    found = parse(PAGE, "```sh not-run: needs a registry of yours\ndocker push x\n```\n")
    assert not found.commands and [each.reason for each in found.not_run] == ["needs a registry of yours"]


@pytest.mark.parametrize(
    ("block", "printed"),
    [
        ("```\nls\n```", "must say what it is"),
        ("text:\n\n    ls\n", "must say what it is"),
        ("```bash\nls\n```", "none of"),
        ("```sh norun\nls\n```", "none of"),
        ("```sh not-run:\nls\n```", "needs the reason"),
        ("```sh\necho 'a\n```", "does not end"),
        ("```yaml ../x\na: 1\n```", "no relative path"),
        ("```console\nls\n```", "begins with"),
    ],
)
def test_a_block_that_breaks_the_convention_is_an_error_with_its_line(block: str, printed: str) -> None:
    with pytest.raises(BadPage, match=rf"page.md:\d+: .*{printed}"):
        parse(PAGE, block)


@pytest.mark.parametrize(
    ("expected", "got", "same"),
    [
        ("a b\nc", "a   b\nc\n", True),
        ("a\n...\nz", "a\nb\nc\nz", True),
        ("a-...-b", "a-123-b", True),
        ("a", "b", False),
        ("a\nb", "a\nx\nb", False),
        ("a.c", "abc", False),
    ],
)
def test_output_is_compared_but_for_spaces_and_what_dots_stand_for(expected: str, got: str, same: bool) -> None:
    assert (output_problem(expected, got) is None) is same


def test_anchors_are_those_of_github() -> None:
    found = parse(PAGE, page("# A: `b` & c", "## Twice", "## Twice"))
    assert found.anchors == {"a-b--c", "twice", "twice-1"}
    assert anchor_of("When the volume is full") == "when-the-volume-is-full"


def test_links_outside_are_left_alone() -> None:
    found = parse(PAGE, "[a](b.md#c) [d](https://example.com) ![e](f.svg)\n")
    assert [link for _, link in found.links] == ["b.md#c", "f.svg"]
