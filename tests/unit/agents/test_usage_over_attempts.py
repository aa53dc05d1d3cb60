"""The usage of each step of an agent that resumes its trajectory, in trials whose later attempts keep steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from multistep.api.records import Record
from multistep.api.trial_status import CheckpointStatus, Usage
from multistep.engine.scope import KeptStep
from tests.support.played import Played, outcome, plan, play

STEPS = "abc"
PLAN = plan(spec={"agent": {"name": "claude-code"}, "resumeTrajectory": True, "checkpoints": {"policy": "AfterStep"}})
Tokens = tuple[int, int, int]
COST = 0.5  # of each report of an agent, as tests.support.played.outcome sets it


@dataclass
class Trial:
    """A trial of an agent that counts what its session's files say. A checkpoint has these files, so a restored session counts on.

    sessions: the session's total after each step of the current chain of steps; ran_by: the attempts that ran these steps;
    records: those of all attempts.
    """

    sessions: list[Tokens] = field(default_factory=list)
    ran_by: list[int] = field(default_factory=list)
    records: dict[str, Record] = field(default_factory=dict)

    def attempt(self, number: int, kept: int, used: Sequence[Tokens | None]) -> Played:
        """Run an attempt that keeps the first steps. used: tokens of each other step; None: the agent reports nothing."""
        del self.sessions[kept:], self.ran_by[kept:]
        results: dict[str, Mapping[str, Any]] = {}
        for name, tokens in zip(STEPS[kept:], used, strict=True):
            before = self.sessions[-1] if self.sessions else (0, 0, 0)
            self.sessions.append(before if tokens is None else tuple(map(sum, zip(before, tokens, strict=True))))  # type: ignore[arg-type]
            results[f"{name}/host/agent"] = outcome(tokens=None if tokens is None else self.sessions[-1])
        chain = tuple(KeptStep(each, CheckpointStatus(digest="d")) for each in self.ran_by)
        prefixes = tuple(f"{each}/{name}/" for each, name in zip(self.ran_by, STEPS, strict=False))
        records = {id: each for id, each in self.records.items() if id.startswith(prefixes)}
        played = play(PLAN, results, attempt=number, kept=chain, records=records)
        self.records |= played.records
        self.ran_by += [number] * (len(STEPS) - kept)
        return played


tokens = st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))


@given(st.data())
def test_the_usage_of_each_step_is_its_own_whichever_attempt_ran_it(data: st.DataObject) -> None:
    trial, used = Trial(), list[Tokens]()
    for number in range(1, data.draw(st.integers(1, 4)) + 1):
        kept = data.draw(st.integers(0, len(STEPS) - 1)) if number > 1 else 0
        own = data.draw(st.lists(tokens, min_size=len(STEPS) - kept, max_size=len(STEPS) - kept))
        used = [*used[:kept], *own]
        played = trial.attempt(number, kept, own)
        usages = [run.usage or Usage() for run in played.journal.steps]
        assert [(each.input_tokens, each.cached_tokens, each.output_tokens) for each in usages] == used


@given(st.data())
def test_the_usage_of_a_step_without_a_report_is_in_the_next_report(data: st.DataObject) -> None:
    trial, spent = Trial(), list[Tokens | None]()
    for number in range(1, data.draw(st.integers(1, 4)) + 1):
        kept = data.draw(st.integers(0, len(STEPS) - 1)) if number > 1 else 0
        own = data.draw(st.lists(st.none() | tokens, min_size=len(STEPS) - kept, max_size=len(STEPS) - kept))
        spent = [*spent[:kept], *own]
        played = trial.attempt(number, kept, own)
        usages = [run.usage for run in played.journal.steps]
        reported = sum(each.input_tokens or 0 for each in usages if each is not None)
        assert reported == sum(each[0] for each in spent if each is not None)
