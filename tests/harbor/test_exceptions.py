"""Compare what follows an agent's exception with Harbor: the table of error policies, and trials of Harbor's own classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from multistep.api.trial.error_policy import POLICIES, UNKNOWN
from multistep.api.trial.trial import parse_trial
from multistep.store.harbor.trial_files import result_json
from tests.harbor.environment import harbor_python
from tests.support.played import IMAGE, outcome, plan, play

HERE = Path(__file__).parent
TOML = {"single": IMAGE, "multi": IMAGE + '[[steps]]\nname = "a"\n[[steps]]\nname = "b"\n'}
AGENT = {"name": "claude-code", "model": "anthropic/m", "access": "Direct"}
FIELDS = {"should_retry": "retry", "should_grade": "grade", "has_valid_reward": "valid"}


@pytest.fixture(scope="module")
def harbors() -> Any:
    done = harbor_python().run(HERE / "harbors_trials.py", HERE)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def ours(kind: str, raised: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """Return how a trial ends whose agent raises this exception in its first step, "" for none, as harbors_trials.ended does."""
    spec = {"agent": AGENT, "onAgentError": "Continue", "scoring": {"overrideErrorPolicy": overrides}}
    made, first = plan(TOML[kind], spec), "a" if kind == "multi" else "task"
    played = play(made, {f"{first}/host/agent": outcome(error=(raised, "it failed"))} if raised else {})
    whole = {"metadata": {"name": "t", "uid": "u"}, "spec": {"task": {"inline": {"config": {}}}, **spec}}
    result = result_json(made, parse_trial(whole), played.journal, 1_800_000_000.0)
    steps = result["step_results"] or [result]
    return {
        "steps": [
            {
                "verified": step["verifier"] is not None,
                "rewards": step["verifier_result"] and step["verifier_result"]["rewards"],
                "exception": step["exception_info"] and step["exception_info"]["exception_type"],
                "policy": step["exception_info"] and step["exception_info"]["policy"],
            }
            for step in steps
        ],
        "rewards": result["verifier_result"] and result["verifier_result"]["rewards"],
        "reward_valid": result["reward_valid"],
    }


def test_the_table_is_harbors(harbors: Any) -> None:
    assert {name: [each.retry, each.grade, each.valid] for name, each in POLICIES.items()} == harbors["policies"]
    assert [UNKNOWN.retry, UNKNOWN.grade, UNKNOWN.valid] == harbors["unknown"]


def test_a_trial_ends_as_harbors_after_each_exception_of_its_agent(harbors: Any) -> None:
    """The rows of the table, unknown types and trials without an exception, each for a single-step and a multi-step task."""
    probes = {name: found for name, found in harbors["trials"].items() if not name.endswith("-overridden")}
    assert len(probes) == 2 * (len(POLICIES) + 7)
    different = {}
    for name, theirs in probes.items():
        kind, _, raised = name.partition("-")
        if (mine := ours(kind, raised, {})) != theirs:
            different[name] = {"harbor": theirs, "here": mine}
    assert different == {}


def test_a_trial_ends_as_harbors_if_its_spec_changes_what_follows(harbors: Any) -> None:
    different = {}
    for raised, flags in harbors["overridden"].items():
        overrides = {raised: {FIELDS[name]: flag for name, flag in flags.items()}}
        for kind in TOML:
            mine, theirs = ours(kind, raised, overrides), harbors["trials"][f"{kind}-{raised}-overridden"]
            if mine != theirs:
                different[kind, raised] = {"harbor": theirs, "here": mine}
    assert different == {}
