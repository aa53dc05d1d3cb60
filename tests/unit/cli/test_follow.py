"""Test the output of commands that follow a trial: progress lines, the table of steps and the outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from multistep.api.trial.status import TrialStatus, Usage, is_finished
from multistep.api.trial.trial import parse_status
from multistep.cli.costs import usage_text
from multistep.cli.exit_codes import exit_of_outcome
from multistep.cli.terminal import bytes_text, clean, seconds_text
from multistep.cli.trial import follow_trial as follow
from multistep.cli.trial.follow_trial import describe
from multistep.cli.trial.trial_view import Progress, trial_view
from multistep.client.outcome import outcome
from multistep.client.reconnecting_watch import WatchEvent
from multistep.client.watch import Gone
from multistep.errors import Unavailable

from .conftest import Invoke
from .fakes import FAILED, GATE, GOOD, RAISED, CliCluster, status, step


def _status(document: Mapping[str, Any]) -> TrialStatus:
    return parse_status({"status": dict(document)})


PENDING = status("Pending", reason="ErrImagePull", message="no such image")
SETUP = status("Running", step("a", "Setup"))
AGENT = status("Running", step("a", "Agent"))
ONE_DONE = status(
    "Running", step("a", rewards={"x": 1, "y": 0.5}, seconds={"agent": 0.3, "verifier": 150}, gate=True), step("b", "Setup")
)
RETRIED = status(
    "Pending", attempts=[{"number": 1, "reason": "NodeLost", "message": "n1 is gone"}], reason="PodStarting", message="attempt 2"
)


def test_a_phase_that_continues_is_a_line_with_its_duration_until_it_ends() -> None:
    begun = {"startTime": "2026-01-01T00:00:00Z", "phaseStartTime": "2026-01-01T00:00:30Z"}
    now = datetime(2026, 1, 1, 0, 3, 30, tzinfo=UTC)
    assert follow.still(_status(status("Running", step("a"), step("b", "Agent", **begun))), now) == "step 2 b: Agent for 3 min"
    assert follow.still(_status(status("Running", step("a"))), now) == ""
    assert follow.still(_status(status("Suspended", step("a"), step("b", "Agent", **begun))), now) == ""
    assert follow.still(_status(PENDING), now) == ""


async def test_a_long_phase_is_repeated_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(follow, "STILL_SECONDS", 0.01)
    lines: list[str] = []

    class Slow(CliCluster):
        async def watch(self, *given: Any, **options: Any) -> AsyncGenerator[WatchEvent, None]:
            for each in (AGENT, GOOD):
                yield WatchEvent("MODIFIED", {"kind": "MultiStepTrial", "metadata": {"name": "t"}, "status": each})
                while each is AGENT and len(lines) < 2:
                    lines.extend(line for line in capsys.readouterr().err.splitlines() if line.startswith("step 1 a: Agent for "))
                    await asyncio.sleep(0.01)

    with Progress("t") as progress:
        async with asyncio.timeout(10):
            await follow.follow(Slow(), "default", "t", progress)


KEPT = status(
    "Running",
    *ONE_DONE["steps"],
    attempts=[{"number": 1, "reason": "NodeLost", "steps": ONE_DONE["steps"]}],
    attempt=2,
    resumed={"after": "a", "attempts": [1], "digest": "d"},
)


BRANCHED = status(
    "Complete",
    step("a", "Failed", rewards={"reward": 1}, trial="base", exception={"type": "AgentTimeoutError", "message": "slow"}),
    step("b", rewards={"reward": 1}),
    attempt=1,
    reason="TrialComplete",
    message="ran 1 step",
    resumed={"after": "a", "attempts": [0], "digest": "d"},
    startedFrom={"trial": "base", "uid": "u", "step": "a", "digest": "d"},
)


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        (
            None,
            BRANCHED,
            [
                "step 1 a: Failed, reward 1, run by trial base, AgentTimeoutError",
                "step 2 b: Complete, reward 1",
                "Complete: ran 1 step",
            ],
        ),
        (None, {}, ["Submitted"]),
        (None, PENDING, ["Pending: ErrImagePull: no such image"]),
        (PENDING, PENDING, []),
        (PENDING, SETUP, ["step 1 a: Setup"]),
        (SETUP, AGENT, ["step 1 a: Agent"]),
        (AGENT, AGENT, []),
        (AGENT, ONE_DONE, ["step 1 a: Complete, reward x=1, y=0.5, agent 0.3 s, verifier 2 min 30 s", "step 2 b: Setup"]),
        (ONE_DONE, RETRIED, ["attempt 1 failed: NodeLost", "Pending: PodStarting: attempt 2"]),
        (RETRIED, KEPT, ["step 2 b: Setup"]),
        (
            None,
            KEPT,
            [
                "attempt 1 failed: NodeLost",
                "step 1 a: Complete, reward x=1, y=0.5, agent 0.3 s, verifier 2 min 30 s",
                "step 2 b: Setup",
            ],
        ),
        (AGENT, GOOD, ["step 1 a: Complete, reward 1", "Complete: passed: ran 1 step"]),
        (AGENT, GATE, ["step 1 a: Complete, reward 0, gate not met", "Complete: gate not met: stopped"]),
        (
            AGENT,
            RAISED,
            ["step 1 a: Failed, reward -, AgentTimeoutError", "Complete: agent error: ended after 1 step with AgentTimeoutError"],
        ),
        (PENDING, FAILED, ["Failed: excluded: task: InvalidSpec"]),
        (GOOD, GOOD, []),
    ],
)
def test_new_facts_are_reported_once(old: Mapping[str, Any] | None, new: Mapping[str, Any], lines: list[str]) -> None:
    before = _status(old) if old is not None else None
    reported = describe(before, _status(new))
    assert reported == ([] if new == {} else lines)


@pytest.mark.parametrize(
    ("document", "code", "over"),
    [(GOOD, 0, True), (GATE, 1, True), (RAISED, 1, True), (FAILED, 3, True), (AGENT, 0, False), ({}, 0, False)],
)
def test_exit_codes_of_trials(document: Mapping[str, Any], code: int, over: bool) -> None:
    assert exit_of_outcome(outcome(_status(document))) == code
    assert is_finished(_status(document)) == over


def test_an_exception_of_the_trial_is_a_fault() -> None:
    document = {**GOOD, "exception": {"type": "HealthcheckError", "message": "sick"}}
    assert outcome(_status(document)).faults == ("trial: HealthcheckError: sick",)


def test_a_wait_that_alternates_between_two_reasons_is_printed_once_each(invoke: Invoke, cluster: CliCluster) -> None:
    back_off = status("Pending", reason="ImagePullBackOff", message="Back-off pulling image")
    cluster.put("MultiStepTrial", "t", spec={}, status=dict(PENDING))
    cluster.story = [PENDING, back_off, PENDING, back_off, PENDING, AGENT, GOOD]
    lines = invoke("show", "--follow", "t").stderr.splitlines()
    assert [line for line in lines if line.startswith("Pending")] == [
        "Pending: ErrImagePull: no such image",
        "Pending: ImagePullBackOff: Back-off pulling image",
    ]


@pytest.mark.parametrize(
    ("rewards", "strategy", "shown"),
    [
        ({"correctness": 1, "style": 0.5}, "Mean", ["score 0.75: a 0.75 (correctness 1, style 0.5)"]),
        ({"reward": 0.75, "style": 0}, "Mean", ["score 0.75: a 0.75 (reward 0.75, style 0)"]),
        ({"reward": 0.75}, "Mean", []),
    ],
)
def test_a_score_that_is_not_simply_the_reward_is_explained(rewards: dict[str, float], strategy: str, shown: list[str]) -> None:
    of: dict[str, Any] = {"scoreRule": {"steps": 1, "strategy": strategy}, "score": 0.75, "completionTime": "2026-01-01T00:01:00Z"}
    document = status("Complete", step("a", rewards=rewards), rewards=rewards, outcome="NotPassed", message="ran", **of)
    assert [line for line in _shown(document) if line.startswith("score")] == shown


def _shown(document: Mapping[str, Any], now: datetime | None = None) -> list[str]:
    console = Console(width=120, color_system=None)
    with console.capture() as captured:
        console.print(trial_view("t", _status(document), now=now))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_traces_of_tampering_are_shown() -> None:
    tampering = [{"attempt": 1, "step": "a", "kind": "StartupHook", "detail": "/etc/ld.so.preload"}]
    assert "tampering: step a: StartupHook: /etc/ld.so.preload" in _shown({**GOOD, "tampering": tampering})


def test_the_table_of_a_trial() -> None:
    document = status(
        "Complete",
        step(
            "scaffold",
            rewards={"reward": 1},
            gate=True,
            seconds={"agent": 12.345, "verifier": 0.5},
            artifacts={"count": 3, "bytes": 1234567},
        ),
        step("implement", rewards={"correctness": 0.8, "style": 0.25}, gate=False),
        step("document", "Failed", exception={"type": "AgentTimeoutError", "message": "stopped after 60 s"}),
        message="ended after 3 steps",
        rewards={"reward": 0.333333},
        score=1 / 3,
        outcome="AgentError",
        attempts=[{"number": 1, "reason": "NodeLost", "message": "n1 is gone"}],
    )
    assert _shown(document) == [
        "STEP       PHASE     REWARD                        AGENT  VERIFIER  GATE     EXCEPTION          ARTIFACTS",
        "scaffold   Complete  1                            12.3 s     0.5 s  met      -                  3 (1.23 MB)",
        "implement  Complete  correctness=0.8, style=0.25       -         -  not met  -                  -",
        "document   Failed    -                                 -         -  -        AgentTimeoutError  -",
        "fault: implement: gate not met",
        "fault: document: AgentTimeoutError: stopped after 60 s",
        "attempt: 1 failed: NodeLost: n1 is gone",
        "t Complete: agent error, score 0.3333, reward 0.3333: ended after 3 steps",
    ]


@pytest.mark.parametrize(
    ("document", "style", "text"),
    [
        (GOOD, "bold green", "t Complete: passed, score 1, reward 1: ran 1 step"),
        (GATE, "bold red", "t Complete: gate not met, score 0, reward 0: stopped"),
        (RAISED, "bold red", "t Complete: agent error, score 0, reward -: ended after 1 step with AgentTimeoutError"),
        (FAILED, "bold yellow", "t Failed: excluded: task: InvalidSpec: no image"),
    ],
)
def test_only_a_pass_is_green(document: Mapping[str, Any], style: str, text: str) -> None:
    lines = [each for each in trial_view("t", _status(document)).renderables if isinstance(each, Text)]
    (found,) = [each for each in lines if each.plain.startswith("t ")]
    assert (found.plain, str(found.style)) == (text, style)


def test_an_error_of_a_single_step_is_shown_once() -> None:
    exception = {"type": "AgentTimeoutError", "message": "too slow"}
    shown = _shown({**RAISED, "exception": exception})
    assert sum("too slow" in line for line in shown) == 1


def test_the_table_while_it_runs() -> None:
    shown = _shown(AGENT, now=datetime(2026, 1, 1, 0, 2, 5, tzinfo=UTC))
    assert shown[1].startswith("a     Agent 2 min 5 s  -")
    assert shown[-1] == "t Running: Because: so it is"


def test_a_trials_text_cannot_command_the_terminal() -> None:
    hostile = status("Complete", step("a\x1b[2J", rewards={"\x07": 1}), message="\x1b]0;x")
    assert not {"\x1b", "\x07"} & set("".join(_shown(hostile)))
    assert clean("a\tb\nc\x1b") == "a b c�"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (0.25, "0.25 s"), (59.96, "60 s"), (120, "2 min"), (125.4, "2 min 5 s"), (3600, "60 min"), (9000, "2.5 h")],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2 * 10**12, "2e+03 GB")])
def test_sizes_read_well(size: int, text: str) -> None:
    assert bytes_text(size) == text


async def test_following_ends_with_the_trial(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = CliCluster(story=[PENDING, AGENT, GOOD, FAILED])
    with Progress("t") as progress:
        assert await follow.follow(cluster, "default", "t", progress) == _status(GOOD)
    assert capsys.readouterr().err.splitlines() == [
        "Pending: ErrImagePull: no such image",
        "step 1 a: Agent",
        "step 1 a: Complete, reward 1",
        "Complete: passed: ran 1 step",
    ]


@pytest.mark.parametrize(("story", "error"), [([AGENT, {"phase": "Deleted"}], Gone), ([AGENT], Unavailable)])
async def test_following_ends_without_the_trial(story: list[dict[str, Any]], error: type[Exception]) -> None:
    with pytest.raises(error):
        await follow.follow(CliCluster(story=story), "default", "t", Progress("t"))


async def test_an_absent_operator_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import asyncio

    monkeypatch.setattr("multistep.client.watch.UNHEARD_SECONDS", 0.0)

    class Slow(CliCluster):
        async def watch(self, *arguments: Any, **options: Any) -> Any:
            await asyncio.sleep(0.05)
            async for event in super().watch(*arguments, **options):
                yield event

    await follow.follow(Slow(story=[GOOD]), "default", "t", Progress("t"))
    assert "no operator has reconciled it yet" in capsys.readouterr().err


def test_what_an_agent_used_is_one_line() -> None:
    known = Usage(input_tokens=12345, cached_tokens=45, output_tokens=6, cost_usd=0.25, source="Gateway")
    assert usage_text(known) == "used 12,345 input tokens (45 cached), 6 output tokens, $0.2500, counted by the gateway"
    waited = known.model_copy(update={"requests": 1, "held_seconds": 75.4})
    assert usage_text(waited).endswith("$0.2500, 1 request, held 75 s, counted by the gateway")
    text = usage_text(Usage(input_tokens=1, incomplete=2))
    assert text == (
        "used 1 input tokens (unknown cached), unknown output tokens, unknown cost, without 2 requests of unknown usage, "
        "counted by the agent"
    )


def test_a_trial_that_started_from_another_one_shows_which_and_is_not_blamed_for_its_steps() -> None:
    shown = "\n".join(_shown(BRANCHED))
    assert "by base" in shown and "started: after step a of trial base" in shown
    assert "fault" not in shown and outcome(_status(BRANCHED)).faults == ()
