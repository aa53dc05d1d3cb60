"""Rules for a pod from its creation until its container runs. Pure: the clock and the observed state are arguments."""

from __future__ import annotations

from multistep.engine.lifecycle.decisions import Decision, Fail, PodFacts, Rule, Situation, Wait
from multistep.engine.lifecycle.stop_and_suspend import QUEUED_BY_KUEUE, SCHEDULING_GATED

# Maps each waiting reason with which a pod never starts to a hint that the kubelet's message lacks. CreateContainerConfigError and
# RunContainerError are not such reasons, because restarts of the API server or of containerd cause them too.
_NEVER_STARTS = {
    "InvalidImageName": "",
    "ErrImageNeverPull": "; load the image into the cluster's nodes, or set spec.environment.imagePullPolicy to IfNotPresent",
}
# Parts of the kubelet's messages about failed pulls. If an image does not exist in a private registry, the message may have parts
# of both tuples, so _NO_ACCESS is checked first.
_NO_SUCH_IMAGE = ("not found", "manifest unknown", "does not exist", "name unknown", "repository name not known")
_NO_ACCESS = (
    "insufficient_scope",
    "pull access denied",
    "no basic auth credentials",
    "authentication required",
    "401 unauthorized",
    "403 forbidden",
)
POD_STARTING = "PodStarting"
UNSCHEDULABLE = "Unschedulable"
_STARTING_REASONS = frozenset({"", "ContainerCreating", "PodInitializing"})
_PULLING = frozenset({"ErrImagePull", "ImagePullBackOff"})


def _gated(s: Situation) -> Decision | None:
    """Wait until the pod's scheduling gates are removed.

    A watch event of the pod ends the wait. The trial is not requeued by time, because many pods may be gated for hours and polling
    would be costly.
    """
    if s.pod is None or not s.pod.gates:
        return None
    if s.pod.queue is None:
        message = f"pod {s.pod.name} waits for the removal of its scheduling gates: {', '.join(s.pod.gates)}"
        return Wait(SCHEDULING_GATED, message, gated=True)
    if not s.pod.queue:
        message = f"pod {s.pod.name} is gated by Kueue but names no queue; give the trial the label kueue.x-k8s.io/queue-name"
        return Wait(QUEUED_BY_KUEUE, message, gated=True)
    return Wait(QUEUED_BY_KUEUE, f"pod {s.pod.name} waits in the queue {s.pod.queue} until Kueue admits it", gated=True)


def _cannot_start(s: Situation) -> Decision | None:
    if s.pod is None:
        return None
    message = s.pod.waiting_message
    if s.pod.waiting_reason in _NEVER_STARTS:
        text = f"{message or f'pod {s.pod.name}: {s.pod.waiting_reason}'}{_NEVER_STARTS[s.pod.waiting_reason]}"
        return Fail(s.pod.waiting_reason, text, "EnvironmentStartError")
    if s.pod.waiting_reason in _PULLING and any(text in message.lower() for text in _NO_ACCESS):
        return Fail("ImageAccessDenied", f"{message}; check the image's name and its credentials", "EnvironmentStartError")
    if s.pod.waiting_reason in _PULLING and any(text in message.lower() for text in _NO_SUCH_IMAGE):
        return Fail("ImageNotFound", f"{message}; check the image's name", "EnvironmentStartError")
    return None


def _start_too_slow(s: Situation) -> Decision | None:
    if s.pod is None or s.pod.running or s.pod.scheduled_at is None or s.now < s.pod.scheduled_at + s.start_timeout:
        return None
    why = f"; last: {s.pod.waiting_reason} {s.pod.waiting_message}".rstrip() if s.pod.waiting_reason else ""
    limit = f"environment.build_timeout_sec = {s.start_timeout:g}"
    return Fail("EnvironmentStartTimeout", f"pod {s.pod.name} did not start within {limit}{why}", "EnvironmentStartTimeoutError")


def _starting(s: Situation) -> Decision | None:
    if s.pod is None or s.pod.running:
        return None
    if s.pod.unschedulable:
        return Wait(UNSCHEDULABLE, s.pod.unschedulable, seconds=30)
    limit = s.start_timeout - (s.now - (s.pod.scheduled_at or s.now))
    seconds = max(1.0, min(limit, 30.0))
    if s.pod.waiting_reason in _STARTING_REASONS:
        return Wait(POD_STARTING, starting_message(s.trial.status.attempt, s.pod.name), seconds=seconds)
    return Wait(s.pod.waiting_reason, s.pod.waiting_message, seconds=seconds)


START_RULES: tuple[Rule, ...] = (_gated, _cannot_start, _start_too_slow, _starting)


def starting_message(attempt: int | None, pod_name: str | None) -> str:
    """Return the status message for the time from a pod's creation until the pod runs or fails.

    The message does not depend on the pod's progress, which saves status writes.
    """
    return f"attempt {attempt}: waiting for pod {pod_name}"


def is_stuck(pod: PodFacts) -> bool:
    """Return whether a pod cannot start: no node has capacity, or its container waits with an error (e.g. a missing image)."""
    return bool(pod.unschedulable) or pod.waiting_reason not in _STARTING_REASONS


def is_starting(pod: PodFacts) -> bool:
    """Return whether a pod is starting without a known error. It then needs no reconcile until it runs."""
    under_way = pod.running or pod.terminated or pod.deleting or pod.phase != "Pending"
    return not (under_way or pod.gates or is_stuck(pod))
