"""Test that docs/reference/cli.md matches the commands' help."""

from __future__ import annotations

from hack.generate.cli_page import PAGE, page
from multistep.cli.main import COMMANDS, program_name


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run: make generate"
    assert all(f"## multistep {name}\n" in page() for name in COMMANDS)


def test_the_usage_names_what_was_called() -> None:
    assert program_name("/usr/bin/kubectl-multistep") == "kubectl multistep"
    assert program_name("/usr/bin/multistep") == program_name("/x/multistep/cli/__main__.py") == "multistep"
