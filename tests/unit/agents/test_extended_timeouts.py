"""Test the agent's timeout while the provider refuses model requests: it is extended by the time that the gateway measured, up to a
maximum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.agents.harbor import _CLOCK_SECONDS, _GRACE_SECONDS, _overran
from tests.support.played import THREE, Played, outcome, play
from tests.unit.agents.test_harbor_agents import CREDENTIALS, closed, hosted

TIMED_OUT = outcome(error=("AgentTimeoutError", "timed out"))


def played(timeout: float, results: dict[str, Any] | None = None, **agent: Any) -> Played:
    toml = THREE + f"[agent]\ntimeout_sec = {timeout}\n"
    return play(hosted({**CREDENTIALS, **agent}, toml=toml), results)


def stalled(seconds: float) -> dict[str, Any]:
    """Return the gateway's report on a step whose requests waited for this time, because the provider refused them."""
    report = closed()
    return {**report, "usage": {**report["usage"], "stalledSeconds": seconds}}


@pytest.mark.parametrize(("timeout", "most"), [(5.0, 5.0), (1800.0, 1800.0), (7200.0, 3600.0)])
def test_a_timeout_is_extended_by_at_most_itself_and_an_hour(timeout: float, most: float) -> None:
    call = played(timeout).operation("a/host/agent")
    assert (call.request["timeoutSeconds"], call.max_stalled, call.timeout) == (timeout, most, timeout + most + _GRACE_SECONDS)


def test_neither_the_setup_nor_an_agent_without_the_gateway_gets_more_time() -> None:
    assert played(5).operation("/host/agent-setup").max_stalled == 0
    assert played(5, access="Direct").operation("a/host/agent").max_stalled == 0


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        (0.0, "the agent was stopped after its timeout of 100 s"),
        (40.4, "the agent was stopped after its timeout of 100 s, extended by 40 s in which the provider refused requests"),
        (900.0, "the agent was stopped after its timeout of 100 s, extended by 100 s in which the provider refused requests"),
    ],
)
def test_a_timeouts_message_says_by_how_much_it_was_extended(seconds: float, message: str) -> None:
    run = played(100, {"a/host/agent": TIMED_OUT, "a/host/model-usage": stalled(seconds)}).journal.steps[0]
    assert run.exception is not None and (run.exception.type, run.exception.message) == ("AgentTimeoutError", message)


def test_a_stalled_agent_that_ended_in_its_extended_time_has_no_exception() -> None:
    run = played(100, {"a/host/model-usage": stalled(40)}).journal.steps[0]
    assert run.exception is None


@given(st.floats(1, 1e5), st.floats(0, 3600), st.floats(0, 1e6))
def test_only_an_agent_that_ran_longer_than_the_gateway_confirms_overran(timeout: float, extended: float, ran: float) -> None:
    assert not _overran(ran, None, extended)
    assert _overran(ran, timeout, extended) == (ran > timeout + extended + _GRACE_SECONDS + _CLOCK_SECONDS)


@pytest.mark.parametrize(("shown", "ran", "exception"), [(3600.0, 99.0, None), (1.0, 3600.0, "AgentTimeoutError")])
def test_a_correction_of_the_nodes_clock_is_no_timeout(shown: float, ran: float, exception: str | None) -> None:
    toml = THREE + "[agent]\ntimeout_sec = 100\n"
    made, results = hosted(CREDENTIALS, toml=toml), {"a/host/agent": {"durationSeconds": ran}}
    record = play(made, results).records["1/a/host/agent"]
    corrected = replace(record, ended_at=record.started_at + shown)
    run = play(made, results, records={record.id: corrected}).journal.steps[0]
    assert (run.exception and run.exception.type) == exception
