"""Generate docs/reference/cli.md from the commands: ``python -m hack.generate.cli_page``. A test checks that it is current."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from multistep.cli.main import COMMANDS, cli

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "cli.md"
_WIDTH = 110
_HEAD = """# Command line

`multistep COMMAND`, or as a plugin of kubectl `kubectl multistep COMMAND`. This page is generated from the
commands' own `--help` by `make generate`.

`pipx install .` in a checkout installs `multistep`, the plugin and its completion; nothing else of the checkout is needed then.

```sh not-run: pipx is a program of the reader's; the tests install the same wheel by uv
pipx install .
```

```sh
multistep --help
kubectl multistep --help
kubectl multistep version
source <(multistep completion bash)       # zsh and fish, too; trials, namespaces and steps are completed from the cluster
kubectl __complete multistep lo           # what kubectl's own completion asks of kubectl_complete-multistep
```
"""


def page() -> str:
    """Return docs/reference/cli.md."""
    return "\n".join([_HEAD, *_sections()])


def _sections() -> Iterator[str]:
    yield f"## multistep\n\n{_help(cli, 'multistep')}"
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        yield from _sections_of(command, f"multistep {name}", "##")


def _sections_of(command: click.Command, name: str, heading: str) -> Iterator[str]:
    yield f"{heading} {name}\n\n{_help(command, name)}"
    for each, its in getattr(command, "commands", {}).items():
        yield from _sections_of(its, f"{name} {each}", "###")


def _help(command: click.Command, name: str) -> str:
    settings: dict[str, Any] = {**cli.context_settings, "terminal_width": _WIDTH}
    text = click.Context(command, info_name=name, **settings).get_help()
    return f"```text\n{text.rstrip()}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page())
