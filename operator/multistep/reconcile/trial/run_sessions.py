"""Runs a trial's script, which is the sequence of its operations, in exec sessions. No session is open while a long phase runs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from multistep.api.trial.runner_records import Hello, Record
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.journal.journal import Journal
from multistep.engine.journal.operations import (
    AwaitVerifierPod,
    Checkpoint,
    CloseModelAccess,
    Collect,
    HostCall,
    Note,
    Operation,
    Place,
    Release,
    Restore,
    ServiceHook,
    Start,
    SwitchNetwork,
    Transfer,
    place_of,
)
from multistep.engine.journal.results_limits import Headroom
from multistep.engine.lifecycle.decisions import PodFacts
from multistep.engine.lifecycle.stop_and_suspend import prestarts
from multistep.engine.plan.plan import TrialPlan, isolation, users_of
from multistep.engine.script.compare_verdicts import lost_pod
from multistep.engine.script.replay import Replay, ScriptProgress, changed_rewards, lost_verdict, missing_records
from multistep.engine.script.trial_script import AgentScript
from multistep.errors import (
    CheckpointLost,
    ContradictoryRecords,
    GatewayUnavailable,
    HostUnreachable,
    InvalidRequest,
    PodError,
    ResultsLost,
    StreamLost,
)
from multistep.kube.cluster_protocols import Cluster
from multistep.pods import agent_host, pod_identity
from multistep.pods import pod_manifest as pods
from multistep.reconcile.admission.concurrency_limit import ConcurrencyLimit
from multistep.reconcile.models.model_gateway import ModelAccess, model_users, with_model_access, with_user_access
from multistep.reconcile.queue.event_filter import Changed
from multistep.reconcile.trial import checkpoint_transfers as checkpoints
from multistep.reconcile.trial.checkpoint_transfers import Checkpointing
from multistep.reconcile.trial.presigned_uploads import Direct, FreeSpace, Gathering, marked_as_sent
from multistep.reconcile.trial.session_state import (
    AgentStillRuns,
    DriveResult,
    DriveState,
    Hooks,
    PausedBetweenSteps,
    Pods,
    Postponed,
    Progressed,
    RootRequired,
    TransferQueued,
    VerifierRequired,
    agent_works,
    milestones,
    needs_root,
    scope_of,
    started_part,
    user_of,
)
from multistep.reconcile.trial.sidecar_sessions import Joined, NetworkSwitch, ServiceSessions, of_main
from multistep.runner_client.exchange import HOST_PROTOCOL
from multistep.runner_client.perform_operations import call_host, perform, upload
from multistep.runner_client.session import Session
from multistep.settings import Settings
from multistep.sources.load.load_trial import LoadedTrial
from multistep.store.bucket.upload_results import ResultsUploader
from multistep.store.files.thread_pool import Spool
from multistep.store.harbor import secret_variables
from multistep.store.results_volume import ResultsVolume
from multistep.store.trial.unpack_download import DownloadFacts, UploadedObject
from multistep.telemetry.metrics import Metrics
from multistep.token_records.record import PATH as TOKEN_RECORDS

MAX_LINES, MAX_LINE_CHARACTERS = 50, 500  # limits of a record's list of sources that were not collected completely
MAX_LINES_BYTES = 12 << 10  # limit of this list as JSON, because the runner's record has at most 64 KiB
BUSY_WAIT_SECONDS = 0.3  # how long a session waits for a phase if other trials are queued for a session
FIRST_WAIT_SECONDS = 3.0  # if a phase takes longer, the status shows it, and its session ends if other trials are queued


class Driver:
    """Runs the scripts of trials in exec sessions."""

    def __init__(
        self,
        cluster: Cluster,
        volume: ResultsVolume,
        settings: Settings,
        metrics: Metrics,
        shipping: ResultsUploader | None = None,
        *,
        sessions_queued: Callable[[], bool] = lambda: False,
        models: ModelAccess | None = None,
        transfers: ConcurrencyLimit,
        changed: Changed = lambda _: False,
        clock: Callable[[], float],
    ) -> None:
        """Create the driver.

        ``sessions_queued`` returns whether other trials are queued for a session. ``transfers`` limits how many checkpoints are
        stored or restored at once. ``changed`` returns whether an event showed a newer spec of a trial, or a request to delete it.
        ``clock`` returns the seconds since the epoch.
        """
        self._changed = changed
        self._clock = clock
        self._models = models
        self._networks = NetworkSwitch(cluster, settings.answer_timeout_seconds)
        self._transfers = transfers
        self._cluster = cluster
        self._services = ServiceSessions(cluster, settings, metrics)
        self._sessions_queued = sessions_queued
        self._direct = None
        if shipping is not None and shipping.uploads.supported and settings.results_direct_bytes is not None:
            self._direct = Direct(shipping.uploads, volume, settings.results_direct_bytes, settings.linger_seconds)
        self._collections = volume.collections
        self._checkpointing = Checkpointing(volume)
        self._settings = settings
        self._metrics = metrics

    def remember_keys(self, trial: MultiStepTrial, plan: TrialPlan) -> None:
        """Keep the keys of all roles in memory, to register them again if the model gateway restarts."""
        if self._models is None:
            return
        for user in model_users(plan):
            self._models.remember(user, trial.metadata.namespace)

    async def drive(self, trial: MultiStepTrial, loaded: LoadedTrial, agent: AgentScript, pods: Pods, hooks: Hooks) -> DriveResult:
        """Continue the script until it has finished or a phase takes long. Raises PodError when a session breaks.

        A session ends with an error at its timeout. Otherwise a pod that sends a byte now and then could hold an exec slot forever.
        Checkpoints, restores, collections and hooks of services have timeouts of their own.
        """
        limit = self._settings.exec_session_seconds
        try:
            async with asyncio.timeout(limit) as deadline:
                return await self._drive(trial, loaded, agent, pods, hooks, deadline)
        except TimeoutError:
            raise StreamLost(f"exec session in pod {pods.agent.name} ended at its timeout of {limit:g} s") from None

    async def _drive(
        self, trial: MultiStepTrial, loaded: LoadedTrial, agent: AgentScript, pods: Pods, hooks: Hooks, deadline: asyncio.Timeout
    ) -> DriveResult:
        async with AsyncExitStack() as stack:
            host = None
            session, hello = await stack.enter_async_context(self._session(trial, pods.agent, users=users_of(loaded.plan)))
            hooks.answered()
            if agent_works(trial, loaded):
                host = await self._host_session(stack, trial, pods.agent, session)
                if any(not each.done and place_of(each.id) == "host" for each in host[1].records):
                    for each in hello.records:
                        session.seen(each)  # acknowledge old results, so that the pod stays ready until the agent ends
                    return AgentStillRuns()
            if needs_root(trial, hello, trial.status.image_user):
                return RootRequired(user_of(hello))
            chain = await self._checkpointing.chain(trial)
            if missing := missing_records(trial.status, (each.id for each in hello.records)):
                raise ContradictoryRecords(f"pod {pods.agent.name}: {missing}")
            kept = checkpoints.kept_steps(chain)
            user, may_become_root = trial.status.image_user or str(hello.user.uid), bool(hello.root_programs)
            # Programs such as sudo are ignored, because they may deny the user.
            protects = isolation(loaded.plan, user, hello.users) == "User"
            shown = isolation(loaded.plan, user, hello.users, may_become_root=may_become_root)
            scope = scope_of(trial, loaded, hello, isolated=protects, kept=kept)
            drive = DriveState(
                trial, loaded, agent, pods, hooks, scope, shown, stack, deadline, {"agent": session},
                chain=chain, protocol=hello.protocol,
            )  # fmt: skip
            drive.add_records("agent", hello)
            drive.records |= checkpoints.kept_records(chain)
            if host is not None:
                drive.add_host(*host)
            elif loaded.plan.hosted is not None and any(each.op == "admit" for each in drive.records.values()):
                drive.add_host(*await self._host_session(stack, trial, pods.agent, session))  # replay needs the host's records
            if loaded.plan.separate:
                stored = await self._collections.stored(drive.key, scope.attempt)
                if lost := lost_verdict(trial.status, loaded.plan, stored.records):
                    raise ResultsLost(lost)
                drive.add_stored(stored)
            return await self._run_script(drive)

    @asynccontextmanager
    async def _session(
        self, trial: MultiStepTrial, pod: PodFacts, *, host: bool = False, users: Iterable[str] = ()
    ) -> AsyncIterator[tuple[Session, Hello]]:
        self._metrics.exec_sessions.inc()
        started = time.monotonic()
        container, command = (agent_host.CONTAINER, agent_host.CALL) if host else (pod_identity.CONTAINER, pods.RUNNER_CALL)
        stream = await self._cluster.open_exec(trial.metadata.namespace, pod.name, container, command)
        with self._metrics.exec_sessions_open.track_inprogress():
            limit = self._settings.answer_timeout_seconds
            async with Session(stream, pod_uid=pod.uid, answer_timeout_seconds=limit, moved=self._metrics.moved) as session:
                hello = await session.hello(users=users)
                self._metrics.exec_seconds.observe(time.monotonic() - started)
                yield session, hello

    async def _host_session(
        self, stack: AsyncExitStack, trial: MultiStepTrial, pod: PodFacts, environment: Session
    ) -> tuple[Session, Hello]:
        """Start a session with the agent host.

        It uses the session with the environment if possible, and an exec session of its own if not.
        """
        if environment.protocol >= HOST_PROTOCOL and pod.host_key:
            session = environment.with_host(pod.host_key)
            with suppress(HostUnreachable):
                return session, await session.hello()
        return await stack.enter_async_context(self._session(trial, pod, host=True))

    async def _run_script(self, drive: DriveState) -> DriveResult:
        # Write the status only at milestones, because a write costs the API server more than the rest of a short session.
        now, script = drive.trial.status, Replay(drive.scope, drive.agent)
        steps = -1 if now.phase == "Suspended" or drive.trial.spec.suspend else len(now.steps)
        reported = (steps, now.agent_setup_time is not None, False)
        drive.journal = script.advance(drive.records).journal
        if changed := changed_rewards(now, drive.journal.steps):
            raise ContradictoryRecords(f"pod {drive.pods.agent.name}: {changed}")
        while (progress := script.advance(drive.records)).next is not None:
            if not progress.next.id.startswith(drive.prefix):
                raise CheckpointLost(f"the checkpoint lacks the record {progress.next.id!r} of a kept step")
            prestarting = prestarts(drive.trial) and not progress.journal.steps
            if progress.between_steps and drive.trial.spec.suspend and not prestarting:
                return PausedBetweenSteps(progress.journal)
            if progress.between_steps and drive.hooks.expired():
                await drive.hooks.report(started := started_part(progress.journal), drive.isolation)
                return Progressed(started)
            if (found := milestones(now, progress.journal)) != reported:
                await drive.hooks.report(progress.journal, drive.isolation)
                reported = found
            if progress.next.where == "host" and "host" not in drive.sessions:
                drive.add_host(*await self._host_session(drive.stack, drive.trial, drive.pods.agent, drive.sessions["agent"]))
                continue
            if progress.next.where == "verifier" and drive.pods.lost:
                await self._give_up(drive, progress)
                continue
            if progress.next.where not in drive.sessions:
                if (left := await self._open_verifier_session(drive, progress.journal)) is not None:
                    return left
                continue
            if (waits := self._must_wait(drive, progress)) is not None:
                return waits
            record = await self._advance_or_report(drive, progress)
            drive.records[record.id] = record
            if not record.done:
                progress = script.advance(drive.records)
                await drive.hooks.report(progress.journal, drive.isolation)
                if not await self._linger(drive, progress):
                    break
        return Progressed(progress.journal)

    def _must_wait(self, drive: DriveState, progress: ScriptProgress) -> DriveResult | None:
        """Return why the next operation cannot be performed now, None if it can."""
        match progress.next:
            case Note(not_before=due) if due > (now := self._clock()):
                return Postponed(progress.journal, due - now, progress.next.why)
            case Checkpoint() | Restore() if not self._transfers.acquire(drive.name):
                return TransferQueued(progress.journal)
        return None

    async def _linger(self, drive: DriveState, progress: ScriptProgress) -> bool:
        """Wait longer for a phase that may finish soon. Return whether it has finished.

        Stop waiting if other trials are queued for a session, or if this trial needs a new reconcile.
        """
        if progress.running is None or progress.next is None or progress.running.id in drive.under_way:
            return False
        session, time_of = drive.sessions[progress.next.where], asyncio.get_running_loop().time
        near_timeout = (drive.deadline.when() or time_of()) - self._settings.linger_seconds  # the session breaks at the deadline
        end = min(time_of() + self._settings.linger_seconds - FIRST_WAIT_SECONDS, near_timeout)
        while (
            not (self._sessions_queued() or drive.hooks.expired() or self._changed(drive.trial.metadata))
            and (left := end - time_of()) > 0
        ):
            record = await session.wait(progress.running.id, min(left, FIRST_WAIT_SECONDS))
            if record.done:
                drive.records[record.id] = session.seen(record)
                return True
        return False

    async def _open_verifier_session(self, drive: DriveState, journal: Journal) -> VerifierRequired | None:
        """Open a session in the pod of the current step's verifier.

        Return VerifierRequired if that pod must be created or recreated, else None.
        """
        step, pod = drive.step(len(journal.steps) - 1), drive.pods.verifier
        if pod is None or pod.name not in pod_identity.verifier_pod_names(drive.trial, step.index):
            return VerifierRequired(journal, step)
        session, hello = await drive.stack.enter_async_context(self._session(drive.trial, pod))
        named = drive.trial.status.verifier
        if needs_root(drive.trial, hello, named.image_user if named else None):
            return VerifierRequired(journal, step, user_of(hello))
        drive.sessions["verifier"], drive.workdir = session, hello.workdir
        drive.add_records("verifier", hello)
        return None

    async def _give_up(self, drive: DriveState, progress: ScriptProgress) -> None:
        """Store a record that the next operation is not possible, because the pod of a second verification was lost."""
        assert progress.next is not None
        step, now = drive.step(len(progress.journal.steps) - 1), self._clock()
        lost = Record(progress.next.id, "note", "done", now, now, acknowledged=True, result=lost_pod(drive.pods.lost))
        drive.records[lost.id] = lost
        records = drive.verifiers_records(step)
        await self._collections.store_records(drive.key, attempt=drive.scope.attempt, step=step, records=records)

    async def _advance_or_report(self, drive: DriveState, progress: ScriptProgress) -> Record:
        """Perform the next operation, and return its record.

        If the session breaks or the operation is invalid, write the progress to the status, because records may be lost. If the
        gateway does not answer after the agent's phase, write the end of that phase, because the agent's time must not include the
        wait.
        """
        try:
            return await self._advance(drive, progress)
        except (PodError, GatewayUnavailable, InvalidRequest) as error:
            if not isinstance(error, GatewayUnavailable) or drive.hides_end_of_agent(progress.next):
                await drive.hooks.report(progress.journal, drive.isolation)
            raise

    async def _advance(self, drive: DriveState, progress: ScriptProgress) -> Record:
        """Perform the next operation, or wait briefly for the running one."""
        assert progress.next is not None
        session = drive.sessions[progress.next.where]
        if progress.running is None:
            record = await self._perform(drive, session, progress.next)
        else:
            record = await session.wait(progress.running.id, self._wait_seconds(drive, progress.running.id))
        return session.seen(record)

    def _wait_seconds(self, drive: DriveState, id: str) -> float:
        """Return the seconds to wait for a running phase, 0 if it started before the session opened, because it may take hours."""
        if id in drive.under_way:
            return 0.0
        return min(self._settings.linger_seconds, BUSY_WAIT_SECONDS if self._sessions_queued() else FIRST_WAIT_SECONDS)

    async def _perform(self, drive: DriveState, session: Session, operation: Operation) -> Record:
        match operation:
            case Collect():
                services = len({each.container for each in operation.sources if each.container})
                more = services * self._settings.results_collect_seconds
                with drive.limited(self._settings.exec_session_seconds + more):
                    return await self._collect(drive, session, operation)
            case AwaitVerifierPod():
                image_id = drive.pods.verifier.image_id if drive.pods.verifier else ""
                return await session.note(operation.id, {"workdir": drive.workdir, **({"imageID": image_id} if image_id else {})})
            case Transfer():
                step = drive.step(operation.step)
                chunks = self._collections.collected(drive.key, attempt=drive.scope.attempt, step=step, entry=operation.entry)
                return await upload(session, operation.id, operation.target, chunks)
            case Release():
                return await self._release(drive, session, operation)
            case ServiceHook():
                with drive.limited(operation.timeout + self._settings.exec_session_seconds):
                    return await self._services.hook(drive.trial.metadata.namespace, drive.pods.agent, operation, session)
            case Checkpoint() | Restore():
                return await self._transfer(drive, operation)
            case HostCall():
                return await self._call_host(drive, session, operation)
            case CloseModelAccess():
                return await session.note(operation.id, await self._close_access(drive, operation))
            case Start():
                operation = await self._with_judge(drive, operation)
            case SwitchNetwork():
                return await self._networks.perform(drive, session, operation)
        return await perform(session, operation, drive.loaded.task.content, self._wait_seconds(drive, operation.id))

    async def _close_access(self, drive: DriveState, closing: CloseModelAccess) -> Mapping[str, Any]:
        assert self._models is not None  # the manifests of pods reject such a trial if no gateway is configured
        if closing.role == "judge":
            return await self._models.close_judge(drive.trial, closing.step, drive.loaded.plan.judge, closing.lost)
        return await self._models.close(drive.trial, closing.step, closing.role)

    async def _with_judge(self, drive: DriveState, start: Start) -> Start:
        """Return the phase with access to the trial's judge, if it has one."""
        judge = drive.loaded.plan.judge
        if judge is None or not start.model_access:
            return start
        assert self._models is not None  # pods.pod_manifest rejects such a trial if no gateway is configured
        access = await self._models.judge_variables(drive.trial, judge, start)
        return replace(start, env={**start.env, **{name: access[source] for name, source in start.judge_variables.items()}})

    async def _call_host(self, drive: DriveState, session: Session, call: HostCall) -> Record:
        hosted = drive.loaded.plan.hosted
        if hosted is not None and call.model_access:
            assert self._models is not None  # pods.agent_host rejects such a trial if no gateway is configured
            variables = await self._models.variables(drive.trial, hosted, call)
            call = with_model_access(call, hosted, variables, self._models.stalls_url)
            if (user := drive.loaded.plan.user) is not None:
                access = await self._models.user_variables(drive.trial, user, call)
                call = with_user_access(call, user, access, self._models.stalls_url)
        admission = drive.records[call.admission]
        return await call_host(session, call, admission, self._wait_seconds(drive, call.id))

    async def _collect(self, drive: DriveState, session: Session, operation: Collect) -> Record:
        """Download and store a step's files, then add a record of it. Idempotent, because a retry replaces stored files.

        Return the record, which is still running if the pod is still sending a large file to the object store.
        """
        step, attempt = drive.step(operation.step), drive.scope.attempt
        start = time.monotonic()
        sources, sent = operation.sources, dict[str, UploadedObject]()
        of_services = any(each.container for each in sources)
        if self._direct is not None and drive.may_send(operation) and not of_services:
            has_secrets = bool(secret_variables.secret_values(drive.loaded.env, drive.loaded.task.config, drive.loaded.task.layout))
            gathering = Gathering(drive.key, attempt, operation, has_secrets)
            reached = await self._direct.run(session, gathering, drive.records)
            if reached.running is not None:
                return reached.running
            sent = await self._direct.pointers(gathering, reached)
            sources = marked_as_sent(sources, sent)
        space = await FreeSpace.of(self._collections, drive, operation)
        headroom, left_out = space.now, await space.left_out(drive, session, of_main(sources))
        asked = marked_as_sent(sources, {**sent, **left_out})
        async with AsyncExitStack() as stack:
            spool = await stack.enter_async_context(self._collections.spool(drive.key, headroom=headroom))
            tokens, why = await self._tokens(drive, operation, stack, headroom)
            joined = Joined(spool.write)
            found = await session.download(of_main(asked), joined.write, timeout_seconds=self._settings.results_collect_seconds)
            found = await self._services.collect(drive.trial.metadata.namespace, drive.pods.agent, asked, found, joined)
            received = DownloadFacts(found.changed, found.unreadable, left_out, found.cut, headroom, space.alone)
            collected = await self._collections.store_step(
                drive.key, spool, attempt=attempt, step=step, types=found.types, part=operation.part, sent=sent, received=received,
                tokens=tokens,
            )  # fmt: skip
        if found.cut:
            session = await self._reopen(drive, operation.where)
        self._metrics.collected_bytes.inc(found.size)
        seconds = round(time.monotonic() - start, 3)  # duration of the collection, as the record's own times are those of the note
        data = {"types": list(found.types), "count": collected.count, "bytes": collected.bytes, "seconds": seconds}
        incomplete = [*([f"{TOKEN_RECORDS}: {why}"] if why else []), *collected.incomplete]
        if incomplete:
            data["incomplete"] = shortened(incomplete)
        record = await session.note(operation.id, data)
        if tokens is not None and self._models is not None:  # not before the record, because a repetition needs them
            await self._models.delete_tokens(drive.trial, step.name)
        return record

    async def _tokens(
        self, drive: DriveState, operation: Collect, stack: AsyncExitStack, headroom: Headroom
    ) -> tuple[Spool | None, str]:
        """Return a file with the token records of the step, None if the gateway does not record the step's tokens, and why records
        are missing."""
        if not drive.trial.spec.agent.captures or operation.part == "verifier" or drive.loaded.plan.regrade:
            return None, ""
        assert self._models is not None  # the manifests of pods reject such a trial if no gateway is configured
        spool = await stack.enter_async_context(self._collections.spool(drive.key))
        why = await self._models.save_tokens(drive.trial, drive.step(operation.step).name, headroom, spool.write)
        return spool, why

    async def _transfer(self, drive: DriveState, operation: Checkpoint | Restore) -> Record:
        """Store or restore a checkpoint, and release its slot."""
        with self._transfers.using(drive.name), drive.limited(checkpoints.limit_seconds(operation)):
            return await self._checkpointing.perform(operation, self._environment(drive, operation.where))

    def _environment(self, drive: DriveState, where: Place) -> checkpoints.Environment:
        return checkpoints.Environment(
            drive.trial, drive.scope, drive.pod(where).image_id, drive.protocol, drive.records, drive.chain, drive.shown,
            session=lambda: drive.sessions[where], reopen=partial(self._reopen, drive, where),
        )  # fmt: skip

    async def _reopen(self, drive: DriveState, where: Place) -> Session:
        """Replace a session whose download was cut off by a new one."""
        pod = drive.pod(where)
        await drive.sessions[where].close()
        if where == "agent":
            drive.sessions.pop("host", None)  # the session with the agent host may use the closed session
        session, _ = await drive.stack.enter_async_context(self._session(drive.trial, pod))
        drive.sessions[where] = session
        return session

    async def _release(self, drive: DriveState, session: Session, operation: Release) -> Record:
        """Store the verifier's records, which contain its result, and then delete the verifier's pod."""
        step = drive.step(operation.step)
        records = drive.verifiers_records(step)
        await self._collections.store_records(drive.key, attempt=drive.scope.attempt, step=step, records=records)
        if step.verified_restored and drive.loaded.plan.checkpoints is None and not (drive.scope.kept or drive.loaded.plan.regrade):
            await self._checkpointing.forget(drive.key)  # otherwise the trial could later wait for space that it occupies itself
        elif step.compares_verdicts:
            await self._checkpointing.discard_temporary(drive.key, (drive.scope.attempt, step.index))
        if (verifier := drive.sessions.pop("verifier", None)) is not None:
            await verifier.close()
        await drive.hooks.dismiss(step)
        drive.pods = Pods(drive.pods.agent)
        return await session.note(operation.id, {})


def shortened(lines: Sequence[str]) -> list[str]:
    """Return the first lines, shortened, for which a record has room. The agent controls the text of the lines."""
    found: list[str] = []
    left = MAX_LINES_BYTES
    for line in (each[:MAX_LINE_CHARACTERS] for each in lines[:MAX_LINES]):
        left -= len(json.dumps(line)) + 1
        if left < 0:
            break
        found.append(line)
    return found
