"""Decides the next action of a trial: the engine's decision, unless hints of earlier reconciles change it. No IO."""

from __future__ import annotations

from dataclasses import replace

from multistep.api.trial.failure_table import MADE_ROOM, POD_UNRESPONSIVE, RESULT_UNKNOWN, SESSIONS_BROKEN
from multistep.api.trial.status import is_finished
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.lifecycle import decisions, next_decision
from multistep.engine.lifecycle import stop_and_suspend as deadlines
from multistep.engine.lifecycle.decisions import PodFacts, Situation
from multistep.engine.lifecycle.pod_start import UNSCHEDULABLE
from multistep.kube.shard import LABEL_SHARD
from multistep.reconcile.admission.unschedulable_verifiers import UnschedulableVerifiers
from multistep.reconcile.trial.pod_hints import PodHint
from multistep.reconcile.trial.trial_run import Observed, TrialRun


def decide(run: TrialRun, observed: Observed, verifiers: UnschedulableVerifiers) -> decisions.Decision:
    """Return the next action of the trial. ``verifiers`` has the trials whose verifiers' pods fit no node."""
    trial, pod, step = run.trial, observed.pods.agent, observed.step(run.trial)
    if pod is not None and pod.shard != run.settings.shard and not is_finished(trial.status):
        return _of_another_shard(run, pod)
    situation = Situation(
        trial=trial,
        pod=pod,
        pod_name=run.first_pod_name,
        now=run.clock(),
        start_timeout=observed.loaded.plan.start_timeout if observed.loaded else 0.0,
        verifier=observed.pods.verifier,
        violation=run.hint.violation,
        compares_verdicts=step is not None and step.compares_verdicts,
        verified_apart=step is not None and step.verified_apart,
    )
    return _unless_it_releases_pods(_unless_unread_at_deadline(run, situation), situation, verifiers)


def _of_another_shard(run: TrialRun, pod: PodFacts) -> decisions.Decision:
    """Return the decision about a trial whose shard label was changed while it ran.

    This operator cannot continue the trial, because the operator of the former shard has its results so far.
    """
    former = f"to {pod.shard}" if pod.shard else "away"
    message = f"the trial's shard was changed: another operator created pod {pod.name}. Set it back ({LABEL_SHARD}: {former})"
    if (end := deadlines.stop_or_deadline(run.trial, run.clock())) is not None:
        return unless_unread(run.trial, end, run.hint, message)
    return decisions.Wait("ShardChanged", f"{message}, or delete the pod to start a new attempt here")


def _unless_unread_at_deadline(run: TrialRun, situation: Situation) -> decisions.Decision:
    """Return the engine's decision. If the trial missed its deadline in a step, first read the pod once more.

    Agent and verifier may have finished while the operator, the API server or the results volume was down, and are not to blame for
    that time. If no exec session with the running pod works then, there are three cases:

    - The agent is to blame if sessions with another pod of the node work, unless a verifier's pod is in use, because then its
      sessions may be the broken ones.
    - The result is unknown if sessions with other pods break too, or if a verifier's pod has no files of the agent yet.
    - In all other cases nothing shows the cause, so the trial fails because of its deadline.
    """
    decision, trial, hint = next_decision.decide(situation), situation.trial, run.hint
    hints, drives = run.memory.hints, isinstance(decision, decisions.Drive | decisions.DriveWithoutVerifier)
    if drives and hints.is_unresponsive(hint):
        return _of_unresponsive_pod(trial, hint, hints.node_works(hint))
    if not (isinstance(decision, decisions.Fail) and is_unread(trial, decision, hint)):
        return decision
    unlimited = {"active_deadline_seconds": None, "suspend": False}  # a trial that is to be suspended has missed its deadline too
    endless = trial.model_copy(update={"spec": trial.spec.model_copy(update=unlimited)})
    match next_decision.decide(replace(situation, trial=endless)):
        case decisions.FailAttempt(message=why):
            return unless_unread(trial, decision, hint, why)
        case decisions.Drive() if hints.breaks_sessions(hint):
            return _of_broken_sessions(trial, decision, hint, hints.node_works(hint))
        case decisions.Drive() if hint.cannot_be_read:
            return unless_unread(trial, decision, hint, hint.error)
        case decisions.Drive() as drive:
            hint.read_at_deadline = True
            return drive
    return decision


def _of_broken_sessions(trial: MultiStepTrial, end: decisions.Fail, hint: PodHint, node_works: bool | None) -> decisions.Fail:
    """Return the failure of a trial with whose pod all exec sessions broke after its deadline."""
    verifier = trial.status.verifier
    if node_works is False or (verifier is not None and verifier.untouched):
        return unless_unread(trial, end, hint, hint.error)
    text = f"{end.message}; all exec sessions with its pod broke: {hint.error}"
    return decisions.Fail(POD_UNRESPONSIVE if node_works and verifier is None else end.reason, text)


def _of_unresponsive_pod(trial: MultiStepTrial, hint: PodHint, node_works: bool | None) -> decisions.Fail | decisions.FailAttempt:
    """Return the end of an attempt with whose running pod no exec session works.

    The agent is to blame if sessions with other pods of the node work. If nothing is known about other pods of the node, the agent
    is to blame if sessions with pods elsewhere work and the same already happened on another node. In all other cases the node is
    to blame, so the attempt fails.
    """
    text = f"for {(hint.lost.last - hint.lost.first) / 60:.0f} minutes, all exec sessions with its running pod broke: {hint.error}"
    lost = [each.node_name for each in trial.status.attempts if each.reason == SESSIONS_BROKEN and each.node_name]
    elsewhere = any(node != hint.node for node in lost)
    if node_works or (node_works is None and elsewhere and hint.breaks_alone):
        return decisions.Fail(POD_UNRESPONSIVE, text)
    return decisions.FailAttempt(SESSIONS_BROKEN, text)


def is_unread(trial: MultiStepTrial, end: decisions.Fail, hint: PodHint) -> bool:
    """Return whether a trial missed its deadline in a step, and its pod was not read after the deadline."""
    return end.reason == deadlines.DEADLINE_EXCEEDED and trial.status.has_own_step and not hint.read_at_deadline


def unless_unread(trial: MultiStepTrial, end: decisions.Fail, hint: PodHint, why: str) -> decisions.Fail:
    """Return the failure of a trial whose pod cannot be read any more, for the reason ``why``.

    If the pod was not read after the deadline, the agent may have finished in time, so the result is unknown.
    """
    if not is_unread(trial, end, hint):
        return end
    return decisions.Fail(RESULT_UNKNOWN, f"{end.message}; what its agent had finished is unknown, as its pod was not read: {why}")


def _unless_it_releases_pods(
    decision: decisions.Decision, situation: Situation, verifiers: UnschedulableVerifiers
) -> decisions.Decision:
    """Return the decision, or the end of the attempt if the trial releases its pods so that other trials can be verified."""
    trial = situation.trial
    uid, made = trial.metadata.uid, sum(each.reason == MADE_ROOM for each in trial.status.attempts)
    if not isinstance(decision, decisions.Wait) or decision.reason != UNSCHEDULABLE or situation.verifier is None:
        verifiers.end(uid)
        return decision
    if not verifiers.wait(uid, trial.metadata.namespace, situation.now, made):
        return decision
    why = f"the verifiers of several trials wait for room: {decision.message}"
    if situation.compares_verdicts:  # the step already has its reward, which a new attempt could change
        return decisions.DriveWithoutVerifier(why)
    return decisions.FailAttempt(MADE_ROOM, why)
