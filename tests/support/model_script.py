"""Parse the fake model's script, which the instruction contains: one line per turn.

    FAKE-MODEL
    run: echo hello > hello.txt
    say: done
    END

The last user message with a script counts. Without FAKE-MODEL and END, its ``run:``, ``say:`` and ``write:`` lines are the script.
The number of tool results since that message selects the next line; if the agent has no tools, the number of the model's messages
selects it. The server therefore needs no state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

ItemRole = Literal["user", "assistant", "tool", "call"]
_BLOCK = re.compile(r"FAKE-MODEL\s*\n(.*?)\n\s*END", re.DOTALL)
_LINE = re.compile(r"^\s*((?:run|say|write): ?.*?)\s*$", re.MULTILINE)
_SHELLS = (
    "bash shell exec_command run_shell_command execute_bash terminal shell_command local_shell run_command command "
    "developer__shell execute_command run_terminal_cmd"
)
_LIKE_A_SHELL = ("bash", "shell", "exec", "terminal", "command")


@dataclass(frozen=True)
class Item:
    """One message, tool call or tool result of the conversation."""

    role: ItemRole
    text: str = ""


@dataclass(frozen=True)
class Turn:
    """The model's next action: run a command, say a text, or write a file (``PATH=TEXT``)."""

    kind: str
    value: str


def next_turn(items: Sequence[Item]) -> Turn:
    """Return the turn that follows this conversation; after the script's last line the model says that it is done."""
    script, start = _script(items)
    if not script:
        return Turn("say", "ok")
    since = items[start + 1 :]
    number = sum(item.role == "tool" for item in since) or sum(item.role == "assistant" for item in since)
    kind, _, value = (script[number] if number < len(script) else "say: done").partition(":")
    return Turn(kind.strip(), value.strip())


def _script(items: Sequence[Item]) -> tuple[list[str], int]:
    for index in range(len(items) - 1, -1, -1):
        if items[index].role != "user":
            continue
        if blocks := _BLOCK.findall(items[index].text):
            return [line.strip() for line in blocks[-1].splitlines() if line.strip()], index
        if lines := _LINE.findall(items[index].text):
            return lines, index
    return [], 0


def text_of(content: Any) -> str:
    """Return the text of a message's content in any of the APIs."""
    if isinstance(content, Mapping):
        return text_of(content.get("text") or content.get("content") or content.get("parts"))
    if isinstance(content, Sequence) and not isinstance(content, str):
        return "\n".join(text_of(part) for part in content)
    return content if isinstance(content, str) else ""


def shell_tool(names: Sequence[str]) -> str | None:
    """Return the name of the tool that runs shell commands, or None."""
    by_lower = {name.lower(): name for name in names}
    known = next((by_lower[each] for each in _SHELLS.split() if each in by_lower), None)
    return known or next((name for name in names if any(each in name.lower() for each in _LIKE_A_SHELL)), None)


def shell_arguments(schema: Mapping[str, Any] | None, command: str) -> dict[str, Any]:
    """Return the shell tool's arguments that run the command, with a value for each other argument that the schema requires."""
    properties = (schema or {}).get("properties", {})
    name = next((each for each in ("command", "cmd", "script", "code") if each in properties), "command")
    wants_list = properties.get(name, {}).get("type") == "array"
    found: dict[str, Any] = {name: ["bash", "-lc", command] if wants_list else command}
    for required in (schema or {}).get("required", []):
        about = properties.get(required, {})
        default = {"boolean": False, "number": 10, "integer": 10, "array": []}.get(about.get("type"), "run a command")
        found.setdefault(required, about["enum"][0] if about.get("enum") else default)
    return found


def plain_text(turn: Turn, request: str) -> str:
    """Return the turn for an agent without tools, in the form that its prompt demands. request: the whole request as text."""
    if "task_complete" in request and "keystrokes" in request:  # the prompt of terminus-2
        commands = [{"keystrokes": turn.value + "\n", "duration": 0.5}] if turn.kind == "run" else []
        return json.dumps({"analysis": "scripted", "plan": "scripted", "commands": commands, "task_complete": not commands})
    if "SEARCH/REPLACE" in request and turn.kind == "write":  # the prompt of aider
        path, _, body = turn.value.partition("=")
        return f"Here it is.\n\n{path}\n```\n<<<<<<< SEARCH\n=======\n{body}\n>>>>>>> REPLACE\n```\n"
    if "mswea_bash_command" in request and turn.kind == "run":  # the prompt of mini-swe-agent
        return f"THOUGHT: scripted\n\n```mswea_bash_command\n{turn.value}\n```"
    return turn.value
