"""Compare the operator's tables of agents' options and of agents that need a model with Harbor's own classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hack.generate import agent_options
from multistep.api.trial import harbor_agents
from multistep.api.trial.agent_spec import TABLE, option_problems
from tests.harbor.environment import harbor_python

HERE = Path(__file__).parent
# Harbor checks the values of these options beyond their types (for example, that a file exists); the operator does not.
STRICTER_IN_HARBOR = {
    ("cline-cli", "local-plugin-tarball-path"),
    ("cline-cli", "plugin-tarball-path"),
    ("cline-cli", "plugin_tarball_path"),
    ("muse-code", "version"),
    ("opencode-v2", "version"),
    ("openhands", "trajectory_config"),
    ("openhands-sdk", "config"),
    ("strands", "factory_kwargs"),
    ("strands", "model_kwargs"),
    ("strands", "version"),
    ("swe-agent", "completion_kwargs"),
    ("terminus-2", "trajectory_config"),
}


pytestmark = pytest.mark.long  # the tables change only with Harbor's version


@pytest.fixture(scope="module")
def harbors() -> Any:
    done = harbor_python().run(HERE / "harbors_verdicts.py", HERE)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def test_the_table_is_what_harbors_classes_say() -> None:
    assert TABLE.read_text() == agent_options.table(harbor_python()), "run: python -m hack.generate.agent_options"


def test_a_value_is_accepted_where_harbor_accepts_it(harbors: Any) -> None:
    """The operator must reject nothing that Harbor accepts. It accepts more only where Harbor checks more than a type."""
    rejected: set[tuple[str, str]] = set()
    accepted: set[tuple[str, str]] = set()
    for agent in harbor_agents.NAMES:
        for option, verdicts in harbors["agents"][agent]["options"].items():
            for value, verdict in zip(harbors["values"], verdicts or [], strict=bool(verdicts)):
                if (ours := not option_problems(agent, {option: value})) != verdict:
                    (accepted if ours else rejected).add((agent, option))
    assert rejected == set()
    assert accepted == STRICTER_IN_HARBOR


def test_an_option_that_harbor_rejects_is_unknown_to_the_operator(harbors: Any) -> None:
    for agent in harbor_agents.NAMES:
        found = harbors["agents"][agent]
        unknown = {name for name, verdicts in found["options"].items() if verdicts is None}
        unknown |= {"no_such_option"} if found["rejectsUnknown"] else set()
        assert [name for name in unknown if not option_problems(agent, {name: "x"})] == [], agent


def test_an_agent_needs_a_model_where_harbors_class_fails_without_one(harbors: Any) -> None:
    needing = {name for name, found in harbors["agents"].items() if found["needsModel"]}
    assert needing == harbor_agents.NEED_MODEL
