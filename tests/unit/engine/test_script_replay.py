"""A trial's script is replayed from the runner's records, to find the operation that comes next."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from multistep.agents import BUILT_IN
from multistep.api.trial.runner_records import Record
from multistep.engine.journal.journal import Journal
from multistep.engine.score.rewards import REWARD_JSON
from multistep.engine.script.replay import Replay, replay
from tests.support.played import COMPLETE, FAULT, THREE, captured, plan, play, rewarded, scope
from tests.unit.engine.script_cases import EVERYTHING, FULL, GATED, SHARED, SINGLE


def test_replay_waits_for_what_runs_and_reports_since_when() -> None:
    made, played = plan(), play(plan())
    cut = played.ids.index("a/verifier")
    records = {each.id: played.records[each.id] for each in played.operations[: cut + 1]}
    id = played.operations[cut].id
    records[id] = Record(id, "start", "running", 33.0)
    progress = replay(scope(made), BUILT_IN["oracle"], records)
    assert (progress.next, progress.running) == (played.operations[cut], records[id])
    assert progress.journal.steps[0].timings["verifier"] == (60.0, None)
    assert not progress.journal.finished


def test_a_running_collect_hook_does_not_make_the_agent_run_again() -> None:
    made = plan(EVERYTHING, steps={"a": FULL}, root=SHARED)
    played = play(made)
    cut = played.ids.index("a/collect-hook-0")
    records = {each.id: played.records[each.id] for each in played.operations[:cut]}
    id = played.operations[cut].id
    progress = replay(scope(made), BUILT_IN["oracle"], {**records, id: Record(id, "start", "running", 99.0)})
    assert "agent" in progress.journal.steps[0].durations


def test_a_running_healthcheck_of_the_environment_belongs_to_no_step() -> None:
    made = plan(EVERYTHING)
    played = play(made)
    records = {each.id: played.records[each.id] for each in played.operations[:1]}
    running = Record("1//healthcheck", "healthcheck", "running", 11.0)
    progress = replay(scope(made), BUILT_IN["oracle"], {**records, running.id: running})
    assert (progress.running, progress.journal.steps) == (running, [])


def test_a_trial_can_be_suspended_before_it_is_prepared_and_before_each_step_and_nowhere_else() -> None:
    made = plan(EVERYTHING)
    played = play(made)
    between = []
    for cut, operation in enumerate(played.operations):
        records = {each.id: played.records[each.id] for each in played.operations[:cut]}
        if replay(scope(made), BUILT_IN["oracle"], records).between_steps:
            between.append(played.ids[cut])
        running = Record(operation.id, "start", "running", 11.0)
        assert not replay(scope(made), BUILT_IN["oracle"], {**records, running.id: running}).between_steps
    assert between == [each for each in played.ids if each.endswith(("/begin", "prepare"))]
    assert not replay(scope(made), BUILT_IN["oracle"], played.records).between_steps


TOMLS = st.sampled_from([EVERYTHING, THREE, SINGLE, GATED])
SPECS = st.fixed_dictionaries(
    {
        "agent": st.sampled_from([{"name": "oracle"}, {"name": "nop"}, {"name": "command", "command": ["x"]}]),
        "onAgentError": st.sampled_from(["Abort", "Continue"]),
        "verifier": st.fixed_dictionaries({"disable": st.booleans()}),
    }
)
OUTCOMES = st.dictionaries(
    st.sampled_from(
        [
            *(
                f"{step}/{op}"
                for step in ("a", "b", "c", "task")
                for op in ("agent", "verifier", "setup", "solution", "begin", "tests")
            ),
            "a/healthcheck",
            "/healthcheck",
            "/prepare",
        ]
    ),
    st.sampled_from(
        [
            FAULT,
            {"exitCode": 1},
            {"timedOut": True},
            {"healthy": False},
            rewarded(),
            rewarded(txt="0.1"),
            rewarded(json="{}"),
            rewarded(json="{"),
            {"captures": {REWARD_JSON: captured('{"a": 1}')}},
        ]
    ),
    max_size=4,
)


@given(TOMLS, SPECS, OUTCOMES)
def test_replay_is_deterministic_and_stable_for_every_prefix(
    toml: str, spec: Mapping[str, Any], outcomes: Mapping[str, Mapping[str, Any]]
) -> None:
    made = plan(toml, spec, steps={"a": FULL} if "[[steps]]" in toml else None, root=COMPLETE)
    played = play(made, outcomes)
    here, agent = scope(made), BUILT_IN[made.agent_name]
    for done, operation in enumerate(played.operations):
        records = {each.id: played.records[each.id] for each in played.operations[:done]}
        first, second = replay(here, agent, records), replay(here, agent, records)
        assert first == second
        assert (first.next, first.running) == (operation, None)
        names = [step.name for step in first.journal.steps]
        assert names == [step.name for step in played.journal.steps][: len(names)]
        assert not first.journal.finished
    assert replay(here, agent, played.records).journal == played.journal


@given(TOMLS, SPECS, OUTCOMES)
def test_a_replay_that_continues_reports_what_a_new_one_would(
    toml: str, spec: Mapping[str, Any], outcomes: Mapping[str, Mapping[str, Any]]
) -> None:
    made = plan(toml, spec, steps={"a": FULL} if "[[steps]]" in toml else None, root=COMPLETE)
    played = play(made, outcomes)
    here, agent = scope(made), BUILT_IN[made.agent_name]
    going, records = Replay(here, agent), dict[str, Record]()
    for operation in played.operations:
        assert going.advance(records) == replay(here, agent, records)
        done = played.records[operation.id]
        running = {**records, operation.id: dataclasses.replace(done, state="running", ended_at=None)}
        for _ in range(2):
            assert going.advance(running) == replay(here, agent, running)
        records[operation.id] = done
    assert going.advance(records) == replay(here, agent, records) == going.advance(records)


@given(TOMLS, SPECS, OUTCOMES)
def test_every_id_is_asked_for_once_and_every_trial_ends(
    toml: str, spec: Mapping[str, Any], outcomes: Mapping[str, Mapping[str, Any]]
) -> None:
    played = play(plan(toml, spec, root=COMPLETE), outcomes)
    assert len(set(played.ids)) == len(played.ids)
    assert played.journal.finished
    if played.journal.broken:
        assert played.journal.rewards is None and played.journal.exception is not None
    else:
        assert all(step.completed_at is not None for step in played.journal.steps)


def test_records_of_another_attempt_count_for_nothing() -> None:
    made, played = plan(), play(plan())
    progress = replay(scope(made, attempt=2), BUILT_IN["oracle"], played.records)
    assert progress.next and progress.next.id == "2//prepare"
    assert progress.journal == Journal()
