"""One reconcile of one trial: observe, decide, act, until the trial has to wait."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ..agents import AGENTS
from ..api.conditions import is_finished
from ..api.trial import MultiStepTrial, parse_trial
from ..api.trial_status import TrialStatus
from ..cluster import pods
from ..cluster.edge import Cluster, Object
from ..cluster.shard import LABEL_SHARD
from ..engine import decisions, lifecycle, status
from ..engine.decisions import PodFacts, ProtocolViolation, Situation, ViolationReason
from ..engine.journal import Journal
from ..engine.plan import StepPlan, TrialPlan
from ..engine.redaction import redacted
from ..engine.rewards import StepException
from ..engine.script import aggregate, lift
from ..engine.status_conditions import Phase
from ..engine.verifier_environment import VerifierEnvironment
from ..errors import (
    ContradictoryRecords,
    ExecKilled,
    InvalidSpec,
    InvalidTask,
    NoCommonProtocol,
    PodError,
    SourceError,
    StoreError,
    StreamLost,
)
from ..loglines import also_about
from ..metrics import Metrics
from ..settings import Settings
from ..sources.trial import Loaded, TrialLoader
from ..store import harbor
from ..store.volume import TrialKey, Volume
from .bounds import Bound, PodStarts
from .driver import Driver, DriveResult, Hooks, Pods
from .events import task_warnings
from .finisher import Finisher
from .pod_hints import PodHint, PodHints
from .quotas import Quotas
from .salvage import salvaged
from .tally import Tally
from .trial_pods import QUOTA_EXCEEDED, TrialPods, former, named_verifiers
from .turns import Key
from .writer import TrialWriter

SOON_SECONDS = 0.5
TASK_GRACE_SECONDS = 5.0  # `multistep run` creates the ConfigMap and Secret after the trial, which owns them
MAX_POLL_SECONDS = 3600.0
POLL_JITTER = 0.1  # spreads the polls of trials that started together
REPORT_WAIT_SECONDS = 30.0  # shorter waits are not reported in the status


@dataclass(frozen=True)
class Tools:
    """What a reconcile needs. hints: of pods, by trial; clock: seconds since the epoch."""

    cluster: Cluster
    pods: TrialPods
    loader: TrialLoader
    driver: Driver
    finisher: Finisher
    volume: Volume
    settings: Settings
    metrics: Metrics
    tally: Tally
    clock: Callable[[], float]
    hints: PodHints
    starts: PodStarts
    quotas: Quotas
    execs: Bound


class TrialReconcile:
    """One reconcile of one trial; it writes the status after each change."""

    def __init__(self, tools: Tools, found: Object) -> None:
        self._t = tools
        self._object = found
        self._writer: TrialWriter
        self._pod: PodFacts | None = None
        self._verifier: PodFacts | None = None
        self._loaded: Loaded | None = None
        self._just_named = False  # the status named the pod just now: skip the read; creating a pod that exists is a Conflict
        self._fully_parsed = True  # whether the whole trial could be parsed

    async def run(self) -> float | None:
        """Decide and act until the trial has to wait. Return the seconds until the next reconcile; None: at the next event."""
        if self._object["metadata"].get("deletionTimestamp"):
            return None  # garbage collection deletes the objects that it owns
        try:
            self._writer = self._new_writer(parse_trial(self._object))
        except InvalidSpec as error:
            return await self._fail_unreadable(error)
        try:
            return await self._run_until_wait()
        except StoreError as error:
            await self._report_store_failure(error)
            raise

    async def _run_until_wait(self) -> float | None:
        while True:
            seconds = await self._step()
            if seconds != 0:
                return seconds

    async def _step(self) -> float | None:
        """Take one decision. Return 0 to continue at once, else as ``run`` does."""
        try:
            situation = await self._observe()
            if situation.pod is not None and situation.pod.shard != self._t.settings.shard and not is_finished(self._trial.status):
                return await self._wait_for_shard(situation.pod)
            return await self._act(lifecycle.decide(situation))
        except (InvalidSpec, InvalidTask) as error:
            return await self._fail("InvalidSpec", str(error), exception=getattr(error, "kind", "ValidationError"))
        except SourceError as error:
            if error.transient:
                return await self._wait_for_task(error)
            return await self._fail(error.reason, f"spec.task: {error}")

    async def _wait_for_shard(self, pod: PodFacts) -> float | None:
        """Wait: another operator started the trial, and has the results collected so far; then its shard label was changed."""
        if (end := lifecycle.cut_short(self._trial, self._t.clock())) is not None:
            return await self._act(end)
        former = f"to {pod.shard}" if pod.shard else "away"
        message = f"the trial's shard was changed: another operator created pod {pod.name}. Set it back ({LABEL_SHARD}: {former})"
        return await self._wait("ShardChanged", f"{message}, or delete the pod to start a new attempt here", seconds=None)

    async def _report_store_failure(self, error: StoreError) -> None:
        """Report that the results cannot be written, for example as the volume is full. The queue retries the reconcile, which is
        idempotent: the pod keeps its files and records."""
        self._t.metrics.store_failures.inc()
        if is_finished(self._trial.status):
            return  # only the cleanup of the volume failed; the result stands
        await self._wait("ResultsNotWritable", str(error), seconds=None)

    async def _wait_for_task(self, error: SourceError) -> float | None:
        """Wait for an object that the trial refers to; report that it is missing after TASK_GRACE_SECONDS."""
        now, created = self._t.clock(), self._trial.metadata.creation_timestamp
        if (end := lifecycle.cut_short(self._trial, now)) is not None:
            return await self._act(end)
        if created is not None and abs(age := now - created.timestamp()) < TASK_GRACE_SECONDS:
            return SOON_SECONDS if error.retry_seconds is not None else max(SOON_SECONDS, TASK_GRACE_SECONDS - age)
        return await self._wait(error.reason, str(error), seconds=error.retry_seconds)

    async def _fail_unreadable(self, error: InvalidSpec) -> float | None:
        """Fail a trial that cannot be parsed. A finished one is cleaned up by those fields that can be parsed."""
        self._writer, self._fully_parsed = self._new_writer(salvaged(self._object)), False
        if not is_finished(self._trial.status):
            await self._fail("InvalidSpec", str(error), exception="ValidationError")
        return await self._run_until_wait()

    async def _observe(self) -> Situation:
        trial = self._trial
        if not is_finished(trial.status) and not lifecycle.is_held(trial):
            self._loaded = await self._t.loader.load(trial)
        self._pod = None if self._just_named else await self._t.pods.get(trial, trial.status.pod_name)
        self._just_named = False
        named = trial.status.verifier
        self._verifier = await self._t.pods.get(trial, named.pod_name if named else None)
        attempt = trial.status.attempt or 1
        return Situation(
            trial=trial,
            pod=self._pod,
            pod_name=pods.pod_name(trial.metadata.name, attempt, as_root=False),
            now=self._t.clock(),
            start_timeout=self._loaded.plan.start_timeout if self._loaded else 0.0,
            verifier=self._verifier,
            violation=self._t.hints.of(self._key, trial.status.pod_uid).violation,
        )

    # -- acting

    async def _act(self, decision: decisions.Decision) -> float | None:
        match decision:
            case decisions.Begin():
                seconds = await self._start_attempt(decision.attempt, decision.pod_name, image_user=None)
                await self._writer.emit(task_warnings(self._loaded_now.task, self._trial.spec))
                return seconds
            case decisions.CreatePod():
                return await self._create_pod()
            case decisions.Adopt():
                return await self._adopt()
            case decisions.CreateVerifierPod():
                return await self._create_verifier_pod()
            case decisions.AdoptVerifierPod():
                return await self._adopt_verifier()
            case decisions.Wait():
                return await self._wait(decision.reason, decision.message, seconds=decision.seconds, held=decision.held)
            case decisions.Hold():
                await self._suspend()
                return None
            case decisions.Resume():
                return await self._resume()
            case decisions.LoseAttempt():
                return await self._end_failed_attempt(decision)
            case decisions.PhaseDied():
                return await self._finish_killed_phase(decision)
            case decisions.Fail():
                return await self._fail(decision.reason, decision.message, exception=decision.exception)
            case decisions.CleanUp():
                return await self._clean_up(decision)
            case decisions.Drive():
                return await self._drive()

    async def _start_attempt(self, attempt: int, pod_name: str, *, image_user: str | None) -> float:
        loaded, now = self._loaded_now, self._t.clock()
        new = status.begun(self._trial, attempt, pod_name, loaded.plan.task_name, image_user, now, source=loaded.source)
        await self._write(new)
        self._just_named = attempt == 1 and image_user is None
        return 0

    async def _may_create_pod(self, manifest: Object, *, first: bool) -> bool:
        """Return whether the trial may create a pod now; if not, it is queued. first: queue before trials that had no pod yet."""
        starts, quotas = self._t.starts, self._t.quotas
        if not quotas.may_try(self._key, manifest, first=first):
            if not any(each.reason == QUOTA_EXCEEDED for each in self._trial.status.conditions):  # reported once, not at each retry
                message = f"{manifest['metadata']['name']} is queued behind an equal pod; {quotas.refusal(self._key)}"
                await self._wait(QUOTA_EXCEEDED, message, seconds=None)
            return False
        if not starts.ask(self._key, first=first) and starts.waited(self._key) >= REPORT_WAIT_SECONDS:
            await self._wait("Queued", f"the limit of starting pods is reached ({starts.limit})", seconds=None)
        return starts.ask(self._key, first=first)

    def _queued_seconds(self) -> float | None:
        """Return the seconds until a queued trial retries, or reports that it is queued. None: it is requeued at its turn."""
        if self._key in self._t.quotas:
            return self._until_deadline(self._t.quotas.pause(self._key))
        left = REPORT_WAIT_SECONDS - self._t.starts.waited(self._key)
        return self._until_deadline(left if left > 0 else None)

    async def _create(self, request: pods.PodRequest, manifest: Object, *, first: bool) -> PodFacts | decisions.Wait | None:
        """Create a pod as TrialPods.create does, and pass the result to the quota's queue."""
        refusal, quotas = "", self._t.quotas
        try:
            made = await self._t.pods.create(request, manifest)
            if isinstance(made, decisions.Wait) and made.reason == QUOTA_EXCEEDED:
                refusal = made.message
        finally:
            quotas.tried(self._key, manifest, refusal, first=first)
        if isinstance(made, PodFacts):
            self._t.starts.saw(self._key, made)
        return replace(made, seconds=quotas.pause(self._key)) if refusal and isinstance(made, decisions.Wait) else made

    async def _create_pod(self) -> float | None:
        earlier = former(self._trial)
        await self._t.pods.remove(self._trial, earlier)
        loaded, trial, first = self._loaded_now, self._trial, bool(earlier)
        plan, environment = loaded.plan, loaded.task.config.environment
        request = pods.PodRequest(trial, environment, plan.image, plan.task_name, self._t.settings, network=plan.network)
        manifest = pods.manifest(request)
        if not await self._may_create_pod(manifest, first=first):
            return self._queued_seconds()
        await self._t.volume.begin_attempt(TrialKey.of(trial), trial.status.attempt or 1)
        match await self._create(request, manifest, first=first):
            case None:
                return 0  # the pod exists: the next decision checks its owner
            case decisions.Wait() as refused:
                return await self._wait_after_rejection(refused, lifecycle.attempt_start(trial))
            case made:
                self._pod = made
                return await self._adopt()

    async def _adopt(self) -> float:
        """Write the pod's UID to the status before the first exec session. Verifier pods of earlier attempts are deleted by now."""
        assert self._pod is not None
        message = lifecycle.starting_message(self._trial.status.attempt, self._pod.name)
        waiting = status.waiting(self._trial, "Pending", lifecycle.POD_STARTING, message, self._t.clock())
        await self._write(waiting.model_copy(update={"pod_uid": self._pod.uid, "verifier": None}))
        return 0

    # -- the pod of a step's separate verifier

    async def _request_verifier(self, step: StepPlan, left: DriveResult) -> float:
        """Write the verifier pod's name and the progress to the status, before the pod is created. No session stays open."""
        assert left.journal is not None
        environment = step.verifier.environment if step.verifier else None
        same_image = environment is not None and not environment.own_image
        user = left.image_user or (self._trial.status.image_user if same_image else None)
        name = pods.verifier_pod_names(self._trial, step.index)[user is not None]
        await self._write_running(left.journal, verifier=status.verifier_wanted(self._trial, name, user, self._t.clock()))
        return 0

    async def _create_verifier_pod(self) -> float | None:
        named, plan = self._trial.status.verifier, self._plan
        assert named is not None
        environment = _verifier_environment(plan, self._trial.status.current_step)
        if named.image_user is not None:  # delete the pod created before the image's user was known
            await self._t.pods.remove(self._trial, [named.pod_name.removesuffix("-root")])
        request = pods.PodRequest(
            self._trial, environment.config, environment.image, plan.task_name, self._t.settings,
            verifier=named, own_image=environment.own_image, network=environment.network,
        )  # fmt: skip
        manifest = pods.manifest(request)
        if not await self._may_create_pod(manifest, first=True):
            return self._queued_seconds()
        match await self._create(request, manifest, first=True):
            case None:
                return 0
            case decisions.Wait() as refused:
                return await self._wait_after_rejection(refused, named.start_time)
            case made:
                self._verifier = made
                return await self._adopt_verifier()

    async def _adopt_verifier(self) -> float:
        named = self._trial.status.verifier
        assert self._verifier is not None and named is not None
        adopted = named.model_copy(update={"pod_uid": self._verifier.uid})
        await self._write(self._trial.status.model_copy(update={"verifier": adopted}))
        return 0

    async def _release_verifier(self, step: StepPlan) -> None:
        """Remove the verifier's pod from the status, then delete it. Idempotent: a retry finds the pod by its name."""
        if self._trial.status.verifier is not None:
            await self._write(self._trial.status.model_copy(update={"verifier": None}))
        else:  # a stale read may lack a verifier that the current status names, and the release happens only once
            await self._writer.require_current()
        await self._t.pods.remove(self._trial, pods.verifier_pod_names(self._trial, step.index))

    # -- waiting, failed attempts, the end

    async def _wait_after_rejection(self, refused: decisions.Wait, since: datetime | None) -> float | None:
        return await self._act(lifecycle.not_allowed(self._trial, refused, since, self._t.clock()))

    async def _wait(self, reason: str, message: str, *, seconds: float | None, held: bool = False) -> float | None:
        phase = self._trial.status.phase
        shown: Phase = "Running" if phase == "Running" else "Pending"
        await self._write(status.waiting(self._trial, shown, reason, message, self._t.clock(), held=held))
        return self._until_deadline(seconds)

    async def _suspend(self) -> None:
        """Suspend the trial until an event. A released pod still exists if an operator died before it deleted the pod."""
        await self._write(status.suspended(self._trial, self._t.clock()))
        if self._trial.status.pod_uid is None:
            await self._t.pods.remove(self._trial, former(self._trial))

    async def _resume(self) -> float:
        now = self._trial.status
        assert now.attempt is not None and now.pod_name is not None
        return await self._start_attempt(now.attempt, now.pod_name, image_user=now.image_user)

    def _until_deadline(self, seconds: float | None) -> float | None:
        """Return the seconds, capped by the trial's next deadline."""
        deadline = lifecycle.next_deadline(self._trial, self._t.clock())
        times = [each for each in (seconds, deadline) if each is not None]
        return max(SOON_SECONDS, min(times)) if times else None

    async def _end_failed_attempt(self, loss: decisions.LoseAttempt) -> float | None:
        """Record an attempt that an infrastructure failure ended; start the next one, or fail the trial without a reward."""
        trial, now = self._trial, self._t.clock()
        self._forget_pod()
        lost = status.lost(trial, loss.reason, loss.message, now)
        number = (trial.status.attempt or 1) + 1
        retries, counted = trial.spec.infrastructure_retries, lifecycle.faults(lost.attempts)
        if counted <= retries:
            again = trial.model_copy(update={"status": lost})
            name = pods.pod_name(trial.metadata.name, number, as_root=lost.image_user is not None)
            await self._write(status.begun(again, number, name, self._plan.task_name, lost.image_user, now))
            return 0
        self._writer.trial = trial.model_copy(update={"status": lost})
        return await self._fail(loss.reason, f"{loss.message}; this was attempt {counted} of {retries + 1}", before=trial.status)

    async def _finish_killed_phase(self, death: decisions.PhaseDied) -> float | None:
        """Finish a trial whose container a phase ended. The runner's records are lost, so the status is the source."""
        journal = Journal(steps=[status.step_run(step) for step in self._trial.status.steps], finished=True)
        if journal.steps and journal.steps[-1].completed_at is not None:  # the trial is paused between steps
            journal.exception = StepException(death.type, death.message)
        elif journal.steps:
            last = journal.steps[-1]
            last.fail(StepException(death.type, death.message, death.phase or last.phase))
            last.completed_at = self._t.clock()
        aggregate(self._plan, journal)
        if self._plan.single:
            lift(journal)
        return await self._finish(journal)

    async def _drive(self) -> float | None:
        """Continue in exec sessions with the pods; open none while a phase runs and no result waits (both pods are ready)."""
        assert self._pod is not None
        hint = self._t.hints.of(self._key, self._pod.uid)
        quiet = hint.quiet_until - self._t.clock()
        ready = self._pod.ready and (self._verifier is None or self._verifier.ready)
        paused = quiet if ready else min(quiet, hint.unready_until - self._t.clock())
        if paused > 0:
            await self._write(status.retold(self._trial, self._t.clock()))
            return self._until_deadline(paused)
        agent, both_pods = AGENTS[self._trial.spec.agent.name], Pods(self._pod, self._verifier)
        hooks = Hooks(self._write_progress, self._release_verifier)
        if not self._t.execs.ask(self._key, 2 if self._plan.separate else 1):
            return self._until_deadline(None)
        before = self._trial.status.steps
        hint.quiet_until = 0.0  # if this session fails, the retry must not wait for the poll
        try:
            left = await self._run_session(self._t.driver.drive(self._trial, self._loaded_now, agent, both_pods, hooks), hint)
        except NoCommonProtocol as error:
            return await self._wait("RunnerProtocol", str(error), seconds=self._t.settings.poll_seconds)
        finally:
            self._t.execs.free(self._key)
        if left.verifier is not None:
            return await self._request_verifier(left.verifier, left)
        if left.image_user is not None:
            name = pods.pod_name(self._trial.metadata.name, self._trial.status.attempt or 1, as_root=True)
            return await self._start_attempt(self._trial.status.attempt or 1, name, image_user=left.image_user)
        if left.journal is not None and left.between_steps:
            await self._write(status.paused(self._trial, left.journal, self._t.clock()))
            return 0
        if left.journal is not None and left.journal.finished:
            return await self._finish(left.journal)
        found_nothing = not ready and quiet > 0 and self._trial.status.steps == before
        return self._until_deadline(hint.phase_runs(self._t.clock(), self._until_poll(), ready=ready, found_nothing=found_nothing))

    def _until_poll(self) -> float:
        """Return the seconds until the next poll: as long as the step has run so far, so that long phases cost few sessions."""
        steps = self._trial.status.steps
        started = steps[-1].start_time if steps else None
        taken = self._t.clock() - started.timestamp() if started else 0.0
        least = self._t.settings.poll_seconds
        return max(least, min(taken, MAX_POLL_SECONDS)) * random.uniform(1.0, 1.0 + POLL_JITTER)

    async def _run_session(self, session: Awaitable[DriveResult], hint: PodHint) -> DriveResult:
        """Await exec sessions, and record in the hint a failure that the container caused. A broken stream does not prove one, nor
        does a runner of another release."""
        try:
            left = await session
        except PodError as error:
            if (reason := _violation_reason(error)) is not None:
                hint.violation = ProtocolViolation.after(hint.violation, str(error), self._t.clock(), reason)
            raise
        hint.violation = None
        return left

    async def _write_progress(self, journal: Journal, isolation: str) -> None:
        await self._write_running(journal, isolation=isolation)

    async def _write_running(self, journal: Journal, **changes: Any) -> None:
        first, pod = self._trial.status.node_name is None, self._pod
        where = {"node_name": pod.node if pod else None, **self._container_fields()}
        await self._write(status.running(self._trial, journal, self._t.clock(), **where, **changes))
        if first and pod is not None:
            self._t.tally.pod_ran(self._trial, pod)

    def _container_fields(self) -> dict[str, str]:
        """Return the status fields imageID and containerID of the agent's pod, if the kubelet reported them. The first container's
        ID stays: another ID is a restart."""
        pod = self._pod
        image = {"image_id": pod.image_id} if pod is not None and pod.image_id else {}
        first = pod is not None and pod.container_id and self._trial.status.container_id is None
        return {**image, "container_id": pod.container_id} if pod is not None and first else image

    async def _finish(self, journal: Journal) -> float | None:
        """Write the results, then the status: the results of a Complete trial exist."""
        await self._writer.require_current()
        known = self._trial.status.model_copy(update=self._container_fields())
        self._writer.trial = self._trial.model_copy(update={"status": known})
        kept = await self._t.finisher.finish(self._trial, self._loaded_now, journal, self._t.clock())
        if journal.broken and journal.exception is not None:
            reason = "EnvironmentFailed"
            new = status.failed(
                self._trial, reason, journal.exception.message, self._t.clock(),
                exception=journal.exception.type, journal=journal, results=kept.uri,
            )  # fmt: skip
        else:
            new = status.complete(self._trial, journal, kept.uri, self._t.clock())
        await self._end(new.model_copy(update={"results_store": kept.store}))
        return 0

    async def _fail(self, reason: str, message: str, *, exception: str = "", before: TrialStatus | None = None) -> float:
        new = status.failed(self._trial, reason, message, self._t.clock(), exception=exception)
        if self._loaded is not None and new.attempt is not None:
            await self._writer.require_current()
            kept = await self._t.finisher.finish_failed(self._trial, self._loaded, new, self._t.clock())
            new = new.model_copy(update={"results": kept.uri, "results_store": kept.store})
        await self._end(new, before=before)
        return 0

    async def _end(self, new: TrialStatus, *, before: TrialStatus | None = None) -> None:
        """Write the final status; first delete the pods' disruption budgets, as a retained pod must not block a drain."""
        names = [self._trial.status.pod_name] if self._trial.status.pod_name else []
        await self._t.pods.unguard(self._trial, [*names, *named_verifiers(self._trial)])
        await self._write(new, before=before)

    async def _clean_up(self, due: decisions.CleanUp) -> float | None:
        trial = self._trial
        self._t.loader.forget(trial.metadata.uid)
        self._forget_pod()
        if due.pod_in == 0:
            await self._t.pods.remove_all(trial)
        await self._t.finisher.clear(trial)
        if due.trial_in == 0:
            await self._t.cluster.delete_trial(trial.metadata.namespace, trial.metadata.name, uid=trial.metadata.uid)
            return None
        if self._fully_parsed and trial.status.observed_generation != trial.metadata.generation:
            await self._write(status.noted(trial))  # kstatus waits for this generation
        return due.next

    def _forget_pod(self) -> None:
        """Drop the hints: the trial needs its pod no longer."""
        self._t.hints.forget(self._key)

    async def _write(self, new: TrialStatus, *, before: TrialStatus | None = None) -> None:
        if self._loaded is not None:
            new = redacted(new, harbor.secrets(self._loaded.env, self._loaded.task.config))
        await self._writer.write(new, before=before)

    def _new_writer(self, trial: MultiStepTrial) -> TrialWriter:
        self._t.tally.saw(trial)
        also_about(uid=trial.metadata.uid, attempt=trial.status.attempt, step=trial.status.current_step)
        return TrialWriter(self._t.cluster, self._t.metrics, self._t.tally, self._object, trial)

    @property
    def _trial(self) -> MultiStepTrial:
        return self._writer.trial

    @property
    def _key(self) -> Key:
        return self._trial.metadata.namespace, self._trial.metadata.name

    @property
    def _loaded_now(self) -> Loaded:
        assert self._loaded is not None  # loaded before each decision about an unfinished trial
        return self._loaded

    @property
    def _plan(self) -> TrialPlan:
        return self._loaded_now.plan


def _violation_reason(error: PodError) -> ViolationReason | None:
    """Return the reason with which the trial fails if this error repeats. None: the infrastructure may have caused it."""
    match error:
        case ExecKilled():
            return "ExecSessionsKilled"
        case ContradictoryRecords():
            return "Tampered"
        case StreamLost() | NoCommonProtocol():
            return None
    return "RunnerBroken"


def _verifier_environment(plan: TrialPlan, step: str | None) -> VerifierEnvironment:
    """Return the environment of a step's separate verifier. Raises InvalidSpec if the step has none: the status was edited."""
    verifiers = [each.verifier for each in plan.steps if each.name == step]
    if not verifiers or verifiers[0] is None or verifiers[0].environment is None:
        raise InvalidSpec(f"status.verifier names a pod, but the step status.currentStep = {step!r} has no separate verifier")
    return verifiers[0].environment
