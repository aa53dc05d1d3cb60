"""Run an honest agent and two that sabotage their verifiers in one sweep."""

from __future__ import annotations

import json

import pytest

from multistep.kube.resources import SWEEPS
from tests.e2e.given import IMAGE, Object, Step, reward, trial
from tests.support.process_world import Trials as Given

NAME = "games"
IF_SOLVED = "#!/bin/sh\n[ -e /tmp/solved ] && reward=1 || reward=0\n/usr/bin/printf $reward > /logs/verifier/reward.txt\n"
# Scripts of the agents. An instruction consists of the task's name (easy or hard) and the step's name (a or b).
HONEST = 'cat "$MULTISTEP_INSTRUCTION_FILE" | grep -q easy && touch /tmp/solved; exit 0'
DROPPER = f'grep -q "hard b" "$MULTISTEP_INSTRUCTION_FILE" && printf "#!/bin/sh\\nexit 1\\n" > /usr/bin/printf; {HONEST}'
SABOTEUR = f'grep -q "hard a" "$MULTISTEP_INSTRUCTION_FILE" && rm -f /bin/bash /usr/bin/bash; {HONEST}'


def task(name: str) -> Object:
    """Return a task of two steps: `a` always passes, and `b` can be solved only in the task named easy."""
    steps = (Step("a", test=reward(1)), Step("b", test=IF_SOLVED, setup="#!/bin/bash\ntrue\n"))
    inline = trial(*steps)["spec"]["task"]["inline"]
    inline["files"] |= {f"steps/{step}/instruction.md": f"{name} {step}\n" for step in "ab"}
    return {"name": name, "inline": inline}


def sweep() -> Object:
    agents = {"honest": HONEST, "dropper": DROPPER, "saboteur": SABOTEUR}
    return {
        "apiVersion": SWEEPS.api_version,
        "kind": SWEEPS.kind,
        "metadata": {"name": NAME},
        "spec": {
            "tasks": [task("easy"), task("hard")],
            "agents": [
                {"name": name, "agent": {"name": "command", "command": ["sh", "-c", text]}} for name, text in agents.items()
            ],
            "template": {"spec": {"environment": {"image": IMAGE}}},
        },
    }


async def test_an_agent_that_breaks_its_verifier_or_a_later_setup_does_not_beat_an_honest_one(given: Given) -> None:
    await given.applied(sweep())
    foreign = trial(Step("a"), name="foreign")
    foreign["metadata"] |= {
        "labels": {"multistep.dev/sweep": NAME},
        "annotations": {"multistep.dev/task": "hard", "multistep.dev/agent": "honest"},
    }
    await given.ended(foreign)
    status = (await given.sweep_ended(NAME))["status"]
    wanted = {
        name: {"name": name, "counted": 2, "passed": 1, "finished": 2, "mean": 0.75} for name in ("honest", "dropper", "saboteur")
    }
    assert {each["name"]: each for each in status["agents"]} == wanted
    assert (status["scoredFailures"], status.get("excluded", {})) == ({"Task": 1, "Verifier": 1}, {})
    code, out, err = await given.command("sweep", "report", NAME, "-n", given.namespace, "-o", "json")
    assert code == 0, err
    report = json.loads(out)
    assert {each["agent"]: (each["trials"], each["mean"]["value"]) for each in report["agents"]} == dict.fromkeys(
        wanted, (2, pytest.approx(0.75))
    )
    assert {each["agent"]: each["scored_failures"] for each in report["agents"] if each["scored_failures"]} == {
        "dropper": {"Verifier": 1},
        "saboteur": {"Task": 1},
    }
