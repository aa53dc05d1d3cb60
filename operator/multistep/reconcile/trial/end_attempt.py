"""Ends attempts and trials: results, final status, cleanup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from multistep.api.trial.failure_table import AGENT_SETUP_FAILED, SOURCE_UNUSABLE
from multistep.api.trial.status import TrialStatus
from multistep.api.trial.trial import MultiStepTrial
from multistep.api.trial.values import AGENT, AGENT_SETUP
from multistep.engine.journal.journal import Journal, StepException
from multistep.engine.lifecycle import decisions, next_decision
from multistep.engine.plan.plan_services import PodServices
from multistep.engine.score.usage_totals import SETUP_ACCESS, ModelReport, report
from multistep.engine.script.compare_verdicts import interrupted
from multistep.engine.script.trial_script import aggregate, goes_on, lift
from multistep.engine.status import trial_status
from multistep.errors import ClusterError, NotFound
from multistep.kube.cluster_protocols import Cluster
from multistep.kube.resources import TRIALS
from multistep.pods import pod_identity
from multistep.reconcile.queue.work_queue import AT_NEXT_EVENT, CONTINUE, Requeue, Result
from multistep.reconcile.trial.owned_pods import named_verifiers
from multistep.reconcile.trial.trial_run import TrialContext
from multistep.store.harbor.trial_files import service_log

_LINES: Final = 20_000
_BYTES: Final = 2 << 20  # maximum per service, so that the results of many trials stay small


async def service_logs(cluster: Cluster, trial: MultiStepTrial, services: PodServices | None) -> dict[str, bytes]:
    """Return the last lines of each service's output, by path in the results. They explain a failure but decide nothing, so an
    output that cannot be read is replaced by the reason."""
    found: dict[str, bytes] = {}
    pod = trial.status.pod_name
    for each in services.order if services and pod and trial.status.pod_uid else ():
        try:
            read = cluster.logs(trial.metadata.namespace, pod or "", each.container, tail_lines=_LINES, limit_bytes=_BYTES)
            found[service_log(each.name)] = b"".join([chunk async for chunk in read])
        except NotFound:
            break  # the pod was deleted
        except ClusterError as error:
            found[service_log(each.name)] = f"the output cannot be read: {error}\n".encode(errors="replace")
    return found


class TrialEnding(TrialContext):
    """The part of a trial's reconcile that finishes, fails and cleans up the trial."""

    async def _end_model_access(self, *, died: bool = False) -> ModelReport | None:
        """Block the token of the step, or of the agent's setup, that the end of the attempt interrupts. Return the gateway's report
        on the step, and add its model usage to the status. died: whether also to note the usage of a setup before the step."""
        found = await self._count_interrupted_usage()
        if died or not self._trial.status.has_own_step:
            await self._count_setup_usage()
        return found

    async def _count_setup_usage(self) -> None:
        """Block the token of the agent's setup, and note the setup's model usage, as the script usually does. Raises
        GatewayUnavailable."""
        began = self._trial.status.node_name is not None  # written with the first progress of the attempt
        if self._t.models is not None and self._trial.spec.agent.uses_gateway and began:
            self._setup_usage = report(await self._t.models.close(self._trial, SETUP_ACCESS)).usage

    async def _count_interrupted_usage(self) -> ModelReport | None:
        """Block the token of the step that the end of the attempt interrupts, and add the step's model usage to the status. Return
        the gateway's report on it; None if the step has no model access, or its script has read the report.

        Usually the script does both, but it cannot continue without the attempt's pod. Raises GatewayUnavailable.
        """
        steps = self._trial.status.steps
        if self._t.models is None or not self._trial.spec.agent.uses_gateway or not self._trial.status.has_own_step:
            return None
        if steps[-1].usage is not None:
            return None
        found = report(await self._t.models.close(self._trial, steps[-1].name))
        counted = [*steps[:-1], steps[-1].model_copy(update={"usage": found.usage})]
        known = self._trial.status.model_copy(update={"steps": counted})
        self._writer.trial = self._trial.model_copy(update={"status": known})
        return found

    async def _end_failed_attempt(self, failure: decisions.FailAttempt) -> Result:
        """Record an attempt that an infrastructure failure ended; start the next one, or fail the trial without a reward."""
        trial, now = self._trial, self._t.clock()
        self._forget_pod()
        failed = trial_status.attempt_failed(trial, failure.reason, failure.message, now)
        number = (trial.status.attempt or 1) + 1
        retries, counted = trial.spec.infrastructure_retries, next_decision.faults(failed.attempts)
        if counted <= retries:
            resumed, refused = await self._t.checkpointing.last(trial, failed, self._plan)
            if resumed is None and self._plan.branch.kept:
                return await self._fail_unusable(failed, [failure.message, *refused])
            if refused:
                failed = trial_status.attempt_failed(trial, failure.reason, "; ".join([failure.message, *refused]), now)
            again = trial.model_copy(update={"status": failed})
            name = pod_identity.pod_name(trial.metadata.name, number, as_root=failed.image_user is not None)
            started = trial_status.attempt_started(
                again, number, name, self._plan.task_name, failed.image_user, now, resumed=resumed
            )
            await self._write(started)
            return CONTINUE
        self._writer.trial = trial.model_copy(update={"status": failed})
        return await self._fail(
            failure.reason, f"{failure.message}; this was attempt {counted} of {retries + 1}", before=trial.status
        )

    async def _fail_unusable(self, failed: TrialStatus, why: Sequence[str]) -> Result:
        """Fail a trial whose copy of another trial's checkpoint cannot be used.

        The trial cannot restart without the copy, because the other trial ran the first steps. This is not an agent failure: the
        trial's own agent has not changed the copy.
        """
        before = self._trial.status
        self._writer.trial = self._trial.model_copy(update={"status": failed})
        return await self._fail(SOURCE_UNUSABLE, "; ".join(why), before=before)

    async def _finish_killed_phase(self, death: decisions.PhaseDied) -> Result:
        """Finish a trial in which a phase ended its own container. The runner's records are lost with the container, so read the
        steps from the status."""
        known = self._trial.status
        journal = Journal(steps=[trial_status.step_run(step) for step in known.steps], finished=True)
        journal.class_ran_at = known.agent_setup_time.timestamp() if known.agent_setup_time else None
        journal.setup_usage = self._setup_usage
        if death.phase == AGENT_SETUP:
            journal.exception, journal.broken = StepException(death.type, death.message, AGENT_SETUP), True
        elif (last := journal.steps[-1]).completed_at is not None:  # between steps, only leftover processes of the agent run
            journal.exception = StepException(death.type, death.message, AGENT)
        else:
            last.untouched = death.untouched
            last.fail(StepException(death.type, death.message, death.phase or last.phase))
            last.completed_at = self._t.clock()
            goes_on(self._plan, self._plan.steps[len(journal.steps) - 1], last)  # sets gate_passed and gate_failure of ``last``
        aggregate(self._plan, journal)
        if self._plan.single:
            lift(journal)
        known = known.model_copy(update={"tampering": interrupted(known, self._plan)})
        self._writer.trial = self._trial.model_copy(update={"status": known})
        return await self._finish(journal)

    async def _finish(self, journal: Journal) -> Result:
        """Write the results, then the status, so that the results of a Complete trial always exist."""
        await self._writer.require_current()
        known = self._trial.status.model_copy(update=self._container_fields())
        self._writer.trial = self._trial.model_copy(update={"status": known})
        logs = await service_logs(self._t.cluster, self._trial, self._plan.services)
        now = self._t.clock()
        new = self._final_status(journal, now)
        location = await self._t.finisher.finish(self._trial, self._loaded_now, journal, new, now, logs=logs)
        await self._end(new.model_copy(update={"results": location.uri, "results_store": location.store}))
        self._pods_known = True  # the clean-up lists the pods that it deletes
        return CONTINUE

    def _final_status(self, journal: Journal, now: float) -> TrialStatus:
        """Return the status of a trial whose script has finished, without the location of the results."""
        if not journal.broken or journal.exception is None:
            return trial_status.complete(self._trial, journal, None, now)
        error = journal.exception
        reason = AGENT_SETUP_FAILED if error.phase == AGENT_SETUP else "EnvironmentFailed"
        return trial_status.failed(self._trial, reason, error.message, now, exception=error.type, journal=journal)

    async def _fail(self, reason: str, message: str, *, exception: str = "", before: TrialStatus | None = None) -> Result:
        new = trial_status.failed(self._trial, reason, message, self._t.clock(), exception=exception)
        if self._loaded is not None and new.attempt is not None:
            await self._writer.require_current()
            logs = await service_logs(self._t.cluster, self._trial, self._plan.services)
            location = await self._t.finisher.finish_failed(self._trial, self._loaded, new, self._t.clock(), logs=logs)
            new = new.model_copy(update={"results": location.uri, "results_store": location.store})
        await self._end(new, before=before)
        return CONTINUE

    async def _end(self, new: TrialStatus, *, before: TrialStatus | None = None) -> None:
        """Delete the pods' disruption budgets, so that a retained pod does not block a drain; then write the final status."""
        names = [self._trial.status.pod_name] if self._trial.status.pod_name else []
        await self._t.pods.unguard(self._trial, [*names, *named_verifiers(self._trial)])
        await self._write(new, before=before)

    async def _clean_up(self, due: decisions.CleanUp) -> Result:
        trial = self._trial
        self._t.loader.forget(trial.metadata.uid)
        self._forget_pod()
        if due.pod_in == 0:
            await self._t.pods.remove_all(trial)
        await self._t.finisher.clear(trial)
        if due.trial_in == 0:
            await self._t.cluster.delete(TRIALS, trial.metadata.namespace, trial.metadata.name, uid=trial.metadata.uid)
            return AT_NEXT_EVENT
        if self._fully_parsed and trial.status.observed_generation != trial.metadata.generation:
            await self._write(trial_status.observed(trial))  # kstatus waits until observedGeneration is current
        return Requeue(due.next)
