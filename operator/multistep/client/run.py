"""A sweep in the cluster, and its trials as they finish. The client creates the sweep, or finds it by its name."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from multistep.api.common.labels import SWEEP
from multistep.api.sweep.sweep import Scoring, SweepStatus, TrialSweep, parse_sweep_status
from multistep.api.trial.score import ScoreRule
from multistep.api.trial.status import is_finished
from multistep.api.trial.trial import parse_status
from multistep.api.trial.values import Outcome
from multistep.client import objects
from multistep.client.reconnecting_watch import WatchingClient
from multistep.client.watch import until_finished
from multistep.engine.sweep.own_trials import SweepMembers
from multistep.engine.sweep.trial_manifests import owner_of
from multistep.errors import NotFound
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import SWEEPS, TRIALS
from multistep.reconcile.sweep.decision_records import members
from multistep.report.rows import TrialRow, row_of


@dataclass(frozen=True)
class Step:
    """A step that the trial itself ran."""

    name: str
    rewards: Mapping[str, float] | None
    """The verifier's rewards by key; None without a verdict."""
    score: float
    """The step's score: its reward, or the mean of its rewards, but at least 0."""
    part: float | None
    """What the step adds to the trial's reward: the parts of all steps sum up to it. None if the trial is not valid."""
    passed: bool
    """Whether the step met its gate or, without a gate, has a reward >= 1."""
    exception: str
    """Type of the step's exception, or ""."""


@dataclass(frozen=True)
class Rollout:
    """A finished trial.

    A failure that no agent can have caused (infrastructure, provider, a defective task, a stop) makes the rollout invalid: its
    ``reward`` is None, never 0, and training must mask it. With a failure that the agent may have caused, the rollout is valid, and
    each step without a verdict counts 0.
    """

    name: str
    """Name of the trial: `multistep show NAME`."""
    namespace: str
    task: str
    """Name of the task in the sweep."""
    agent: str
    """Name of the agent in the sweep."""
    attempt: int
    """Number of the trial among the trials of the same task and agent, from 1."""
    valid: bool
    """Whether the trial counts, so that ``reward`` is a number. False for example after an infrastructure failure."""
    reward: float | None
    """The trial's score, as `multistep sweep report` counts it: over all declared steps, so that quitting early never pays. None if
    not valid."""
    passed: bool | None
    """Whether every declared step ran and passed; None if not valid."""
    outcome: Outcome
    """How the trial ended, for example Passed, NotPassed, GateNotMet, AgentError or Excluded."""
    rewards: Mapping[str, float] | None
    """The task's own rewards by key; None if the trial has none."""
    steps: tuple[Step, ...]
    """The steps that ran, in order."""
    failure_class: str
    """Who caused the trial's failure, for example Agent or Infrastructure; "" without a failure."""
    reason: str
    """Reason of the trial's failure, for example PodDeleted; "" without a failure."""
    message: str
    """Message of the trial's condition Failed or Complete."""
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    """Cost of the model requests of all attempts, in US dollars; None if unknown."""
    results: str | None
    """URI of the trial's result files, which ``file`` and ``fetch`` of the client read. It contains an access token: keep it
    private."""
    captured: bool
    """Whether the model gateway recorded the tokens of its model requests (spec.agent.capture). If not, a file of token records
    among its results is the agent's own."""


def rollout(trial: Mapping[str, Any], scoring: Scoring) -> Rollout:
    """Return the rollout of a finished MultiStepTrial. scoring: the sweep's spec.scoring."""
    status = parse_status(trial)
    found = row_of(trial, status, scoring)
    return Rollout(
        name=found.trial,
        namespace=found.namespace,
        task=found.task,
        agent=found.agent,
        attempt=found.attempt,
        valid=found.counts is not None,
        reward=found.counts,
        passed=found.passed,
        outcome=found.outcome or "Excluded",
        rewards=found.rewards,
        steps=_steps(found, status.score_rule),
        failure_class=found.failure_class,
        reason=found.reason,
        message=found.message,
        input_tokens=found.input_tokens,
        output_tokens=found.output_tokens,
        cost_usd=found.cost_usd,
        results=status.results,
        captured=((trial.get("spec") or {}).get("agent") or {}).get("capture") == "Tokens",
    )


def _steps(found: TrialRow, rule: ScoreRule | None) -> tuple[Step, ...]:
    return tuple(
        Step(each.name, each.rewards, each.score, part, each.passed, each.exception)
        for each, part in zip(found.steps, _parts(found, rule), strict=True)
    )


def _parts(found: TrialRow, rule: ScoreRule | None) -> Sequence[float | None]:
    """Return what each step adds to the reward. If the reward is not the mean of the steps' scores, it is the last step's."""
    if found.counts is None:
        return [None] * len(found.steps)
    if rule is not None and rule.strategy == "Mean" and rule.steps:
        parts = [each.score / rule.steps for each in found.steps]
        if math.isclose(math.fsum(parts), found.counts, abs_tol=1e-9):
            return parts
    return [0.0] * (len(found.steps) - 1) + [found.counts] * bool(found.steps)


class AsyncRun:
    """A sweep. ``async for rollout in run`` yields each trial once, when it finishes. The loop ends when the sweep has finished."""

    def __init__(self, cluster: WatchingClient, sweep: TrialSweep) -> None:
        self._cluster = cluster
        self._sweep = sweep
        self.name = sweep.metadata.name
        self.namespace = sweep.metadata.namespace
        self._members = SweepMembers(sweep.metadata.uid, ())

    def __repr__(self) -> str:
        return f"AsyncRun(name={self.name!r}, namespace={self.namespace!r})"

    @property
    def uid(self) -> str:
        """Return the UID of the sweep: another sweep of the same name has another UID."""
        return self._sweep.metadata.uid

    async def status(self) -> SweepStatus:
        """Return the sweep's current status. Raises NotFound if the sweep was deleted, Unavailable if the API server does not
        answer."""
        return parse_sweep_status(await self._current())

    async def _current(self) -> Object:
        found = await self._cluster.get(SWEEPS, self.namespace, self.name)
        if found["metadata"]["uid"] != self.uid:
            raise NotFound(f"sweep {self.name} was deleted, and another one has its name now", status=404)
        return found

    async def __aiter__(self) -> AsyncGenerator[Rollout, None]:
        """Yield the trials as they finish. A broken watch is resumed; no trial is yielded twice. Raises NotFound if the sweep is
        deleted, and ClusterError if a request fails."""
        seen: set[str] = set()
        finished: asyncio.Queue[Object | Exception | None] = asyncio.Queue()
        watchers = [asyncio.create_task(each) for each in (self._watch_trials(finished), self._watch_sweep(finished))]
        try:
            while (trial := await finished.get()) is not None:
                if isinstance(trial, Exception):
                    raise trial
                if (uid := trial["metadata"]["uid"]) not in seen:
                    seen.add(uid)
                    yield rollout(trial, self._sweep.spec.scoring)
        finally:
            for each in watchers:
                each.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)

    async def results(self) -> list[Rollout]:
        """Wait until the sweep has finished, and return all of its trials."""
        return [each async for each in self]

    async def stop(self) -> None:
        """Stop the sweep: active trials are stopped, and their pods are deleted. The sweep and its results remain.

        Raises NotFound or Conflict if the sweep was deleted, and ClusterError.
        """
        await objects.stop(self._cluster, SWEEPS, self.namespace, self.name, uid=self.uid)

    async def delete(self) -> None:
        """Delete the sweep with its trials and their pods, if it exists. The results remain for the operator's retention time.

        Raises ClusterError.
        """
        await self._cluster.delete(SWEEPS, self.namespace, self.name, uid=self.uid)

    async def _watch_trials(self, finished: asyncio.Queue[Object | Exception | None]) -> None:
        try:
            async with aclosing(self._cluster.watch(TRIALS, self.namespace, label_selector=f"{SWEEP}={self.name}")) as events:
                async for event in events:
                    if event.type != "DELETED" and await self._has_finished(event.object):
                        finished.put_nowait(event.object)
        except Exception as error:
            finished.put_nowait(error)

    async def _watch_sweep(self, finished: asyncio.Queue[Object | Exception | None]) -> None:
        """When the sweep has finished, put its finished trials into the queue, then None, which ends the queue."""
        try:
            await until_finished(self._cluster, SWEEPS, self.namespace, self.name, uid=self.uid)
            for each in await self._cluster.list_all(TRIALS, self.namespace, label_selector=f"{SWEEP}={self.name}"):
                if await self._has_finished(each):
                    finished.put_nowait(each)
            finished.put_nowait(None)
        except Exception as error:  # an unexpected error, too: otherwise the loop over the trials would wait for ever
            finished.put_nowait(error)

    async def _has_finished(self, trial: Object) -> bool:
        owner = owner_of(trial)
        if owner is None or owner[1] != self.uid or not is_finished(parse_status(trial)):
            return False
        if not self._members.has(trial):  # branches and retries are added to the plan while the sweep runs
            self._members = await members(self._cluster, await self._current())
        return self._members.has(trial)
