"""Command groups that suggest the command that a user most likely meant, and commands whose COMMAND follows `--`."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

import click

ELSEWHERE: Final = {
    "get": "list",
    "describe": "show",
    "status": "show",
    "exec": "shell",
    "job": "sweep",
    "trial": "run",
    "start": "run",
    "lint": "check",
    "resume": "retry",
}
"""Commands of kubectl, argo and harbor, and the command of Multistep that does the same."""


class SuggestingGroup(click.Group):
    """A group that suggests similar names for an unknown command, and lists its commands with their whole summaries."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.help.strip()) for name, each in found.items() if each and each.help])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            names = self.list_commands(ctx)
            known = [each for each in names if each == ELSEWHERE.get(args[0])]
            if similar := known or get_close_matches(args[0], names):
                raise click.UsageError(f"{error.message} Did you mean {' or '.join(similar[:2])}?", ctx) from None
            raise


class TrialCommand(click.Command):
    """A command with the arguments TASK and COMMAND. COMMAND must follow `--`; otherwise the second directory of `run tasks/*`
    would be taken for an agent's program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        after = args[args.index("--") + 1 :] if "--" in args else []
        rest = super().parse_args(ctx, args)
        command: tuple[str, ...] = ctx.params.get("command") or ()
        if len(after) < len(command) and not ctx.resilient_parsing:
            text = f"Got unexpected extra argument ({command[0]}). COMMAND follows --; for several tasks: sweep run"
            raise click.UsageError(text, ctx)
        return rest
