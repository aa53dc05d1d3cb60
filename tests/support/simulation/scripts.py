"""Play the scripts of simulated trials. They are not shell scripts: each line is a word and its arguments.

====================  ==========================================================================
print TEXT            print a line
write PATH TEXT       write a file of this one line
append PATH TEXT      append this line to a file
reward JSON           write a number as the reward, or an object as the rewards
reward-lines PATH     write the number of a file's lines as the reward
reward-if PATH TEXT   write 1 as the reward if the file has exactly this line, and else 0
hold                  wait until the test calls ``Scripts.release``
exit CODE             end with this exit code
if PATTERN LINE       do what the line says if the pod's name matches the pattern
when PATH N LINE      do what the line says if the file has N lines
====================  ==========================================================================

``$NAME`` is the value of the phase's variable NAME, and ``$POD_NAME`` the pod's name. Empty lines and comments (#) do nothing.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from multistep.engine.score.rewards import REWARD_JSON, REWARD_TXT
from tests.support.simulation.runners import SimulatedRunner

Json = dict[str, Any]
_TAIL_BYTES = 2048


@dataclass(eq=False)
class Phase:
    """A phase that runs. lines: what it still has to do."""

    runner: SimulatedRunner
    request: Json
    lines: deque[str]
    output: str = ""
    code: int = 0
    is_over: bool = False

    def print(self, line: str) -> None:
        self.output += f"{line}\n"
        self.runner.printed[self.request["id"]] = self.output.encode()

    @property
    def variables(self) -> Mapping[str, str]:
        return {**self.request.get("env", {}), "POD_NAME": self.runner.name}


@dataclass
class Scripts:
    """Plays the scripts of all phases of a node's pods."""

    _held: dict[str, Phase] = field(default_factory=dict)  # by name of the pod

    @property
    def held(self) -> list[str]:
        """Return the names of the pods in which a phase waits to be released."""
        return list(self._held)

    def play(self, runner: SimulatedRunner, request: Json) -> None:
        """Play a phase of which the request has just arrived, until it ends or holds."""
        for path in request.get("remove", ()):
            runner.files.delete(path)
        phase = Phase(runner, request, deque(_script(runner, request["argv"]).splitlines()))
        self._go_on(phase)
        if not phase.is_over and request.get("timeoutSeconds") is not None:
            asyncio.get_running_loop().call_later(request["timeoutSeconds"], self._end, phase, True)

    def release(self, pod: str) -> None:
        """Let the phase that waits in the pod go on. Raises KeyError if none does."""
        self._go_on(self._held.pop(pod))

    def forget(self, pod: str) -> None:
        """Forget the phase that waits in a pod that is gone."""
        self._held.pop(pod, None)

    def _go_on(self, phase: Phase) -> None:
        while phase.lines:
            line = re.sub(r"\$(\w+)", lambda found: phase.variables.get(found[1], ""), phase.lines.popleft())
            if _act(phase, line):
                self._held[phase.runner.name] = phase
                return
        self._end(phase)

    def _end(self, phase: Phase, timed_out: bool = False) -> None:
        if phase.is_over or phase.request["id"] not in phase.runner.records:
            return
        phase.is_over = True
        if self._held.get(phase.runner.name) is phase:
            del self._held[phase.runner.name]
        runner, request, output = phase.runner, phase.request, phase.output.encode()
        if "output" in request:
            runner.files[request["output"]["path"]] = output
        if "exitCodeFile" in request:
            runner.files[request["exitCodeFile"]] = str(phase.code).encode()
        captures = {each["path"]: _captured(runner.files.get(each["path"])) for each in request.get("captures", ())}
        result: Json = {
            "exitCode": None if timed_out else phase.code,
            "timedOut": timed_out,
            "tail": output.decode()[-_TAIL_BYTES:],
        }
        if request["op"] == "healthcheck":
            result |= {"healthy": phase.code == 0, "attempts": request["retries"] if phase.code else 1}
        else:
            result |= {"outputBytes": len(output), "captures": captures}
        runner.end(request["id"], **result)


def _script(runner: SimulatedRunner, argv: list[str]) -> str:
    """Return the text of the command's script: of a file that was uploaded, or else the last argument."""
    found = [runner.files[word] for word in argv if word in runner.files]
    return found[0].decode() if found and isinstance(found[0], bytes) else argv[-1]


def _act(phase: Phase, line: str) -> bool:
    """Do what a line says. Return whether the phase holds."""
    files, (word, _, rest) = phase.runner.files, line.strip().partition(" ")
    path, _, text = rest.partition(" ")
    match word:
        case "print":
            phase.print(rest)
        case "write":
            phase.runner.write(path, f"{text}\n".encode())
        case "append":
            phase.runner.write(path, _bytes(files.get(path)) + f"{text}\n".encode())
        case "reward":
            files[REWARD_JSON if rest.startswith("{") else REWARD_TXT] = rest.encode()
        case "reward-lines":
            files[REWARD_TXT] = str(_bytes(files.get(path)).count(b"\n")).encode()
        case "reward-if":
            files[REWARD_TXT] = b"1" if _bytes(files.get(path)) == f"{text}\n".encode() else b"0"
        case "if":
            return fnmatchcase(phase.runner.name, path) and _act(phase, text)
        case "when":
            number, _, then = text.partition(" ")
            return _bytes(files.get(path)).count(b"\n") == int(number) and _act(phase, then)
        case "hold":
            return True
        case "exit":
            phase.code = int(rest)
            phase.lines.clear()
        case _ if line.strip() and not word.startswith("#"):
            phase.print(f"no such word: {line}")
            phase.code = 127
            phase.lines.clear()
    return False


def _bytes(tree: object) -> bytes:
    return tree if isinstance(tree, bytes) else b""


def _captured(tree: object) -> Json | None:
    if not isinstance(tree, bytes):
        return None
    return {"base64": base64.b64encode(tree).decode(), "size": len(tree), "truncated": False}
