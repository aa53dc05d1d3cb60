"""Finds out whether the programs that a shell's command runs first exist, before the agent runs.

Afterwards nobody could know: an agent can end with a shell's status for a missing program itself, to have its trial excluded.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final

NO_PROGRAM: Final = 127
"""Exit status of the lookup if a program does not exist."""
_SHELLS: Final = frozenset(("sh", "bash", "dash", "ash", "zsh", "ksh"))
_NO_INSTALLER: Final = r"(?:cd|set|cat|echo|printf|mkdir|sleep|test|ulimit|umask)"
_FIRST: Final = re.compile(
    rf"""(?:\s+|\#[^\n]*\n|{_NO_INSTALLER}[ \t](?:[^;&|<>\n`$()]|\$\w+|\$\{{\w+\}})*(?:&&|[;\n]|\|(?!\|))"""
    r"""|(?!PATH=)[A-Za-z_]\w*=[^\s;&|`$()'"]*\s)*(?:exec\s+)?"""
    r"(/[\w./+-]+|\w[\w.+-]*)(?=[\s;&|]|$)(?!\s*\()",
    re.ASCII,
)
"""The first program of a script, after comments, assignments and commands that create no program. What comes later may exist only
then."""
_INTERPRETER: Final = re.compile(r"#![ \t]*(?:/usr/bin/env[ \t]+(?:-S[ \t]+)?)?([\w./+-]+)", re.ASCII)
_LOOKUP: Final = 'for each do case $each in */*) [ -x "$each" ];; *) command -v "$each" >/dev/null;; esac || exit 127; done'


def lookup(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command, for the same user and variables, that exits with 127 if a program does not exist that spec.agent.command
    runs first; () if the command is no shell's, or its first program is not certain.

    An argument of the shell that starts with "#!" is a script that it runs (cli.trial.run.agent_script).
    """
    if len(command) < 3 or PurePosixPath(command[0]).name not in _SHELLS or not re.fullmatch(r"-[a-z]*c", command[1]):
        return ()
    script = next((each for each in command[3:] if each.startswith("#!")), command[2])
    interpreter = _INTERPRETER.match(script)
    programs = [interpreter[1]] if interpreter else []
    if interpreter is None or PurePosixPath(interpreter[1]).name in _SHELLS:
        programs += [found[1]] if (found := _FIRST.match(script)) else []
    return (*command[:2], _LOOKUP, "lookup", *programs) if programs else ()
