"""The hierarchy of Multistep's errors whose messages are shown to users.

MultistepError
├── InvalidTask        the task directory is not a valid task; names the field or file, the value, and what is expected
├── InvalidSpec        the resource's spec cannot be run as written
│   └── InvalidRequest the runner would refuse an operation, because of a value of the task or the spec
├── SourceError        a task's files could not be read or fetched (missing, wrong digest, no access)
├── PodError           the pod cannot be used
│   ├── StreamLost     the connection broke: the outcome is unknown; retry
│   │   ├── ExecKilled the kubelet reports that something in the container ended the exec session
│   │   └── HostUnreachable  the environment's runner cannot pass a request to the agent host's runner
│   ├── ContradictoryRecords  the runner's records lack or contradict records in the trial's status
│   ├── RunnerError    the runner answered with an error
│   ├── NoCommonProtocol  operator and runner share no protocol version
│   └── EgressError    the egress sidecar restarted
│       └── EgressRefused  the egress sidecar refused to switch the network
├── StoreError         results could not be written or read
├── CheckpointLost     the checkpoint from which an attempt continues is missing or was changed
├── ResultsLost        the results volume lacks what the status says was stored
├── CollectionCut      a download exceeds its size limit or timeout; the received part is kept, the rest is reported
├── ClusterError       the API server rejected the request or could not be reached
│   ├── NotFound       the object does not exist
│   ├── Conflict       the object changed since it was read: reconcile again
│   │   └── AlreadyExists  another object has the name
│   └── Unavailable    no answer, 429 or 5xx: retry with back-off
├── GatewayError       the model gateway rejected a request of the operator
│   ├── StepUnknownToGateway  the gateway has no request of the step: its usage is unknown
│   └── GatewayUnavailable    no answer or 5xx: retry with back-off
├── NotLeading         this replica does not hold the lease: nothing was sent
└── UsageError         the command line, or an argument of the Python client, is invalid
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class MultistepError(Exception):
    """Base class of Multistep's errors. The message is shown to users."""


class InvalidTask(MultistepError):
    """The task is invalid, or needs a feature that Multistep does not support.

    kind: Harbor's class of the error (ValidationError, FileNotFoundError, ValueError, TOMLDecodeError).
    field: the field or path at fault, e.g. ``steps[1].healthcheck.command``; "" for the whole file.
    """

    def __init__(self, message: str, *, kind: str = "ValidationError", field: str = "") -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.kind = kind
        self.field = field
        self.parts: tuple[InvalidTask, ...] = (self,)

    @classmethod
    def joined(cls, parts: Sequence[InvalidTask]) -> InvalidTask:
        """Return one error with a line for each part. Its kind and field are the first part's."""
        first = parts[0]
        text = "\n".join([str(first).removeprefix(f"{first.field}: "), *map(str, parts[1:])])
        whole = cls(text, kind=first.kind, field=first.field)
        whole.parts = tuple(parts)
        return whole


@contextmanager
def collected(faults: list[InvalidTask]) -> Iterator[None]:
    """Add the parts of an InvalidTask that the block raises to ``faults``, so that later checks find more."""
    try:
        yield
    except InvalidTask as error:
        faults.extend(error.parts)


class InvalidSpec(MultistepError):
    """A trial's spec cannot be run as written. The text names the field, the value and what is expected."""


class InvalidRequest(InvalidSpec):
    """The runner would refuse an operation, because of a value of the task or the spec. Nothing was sent."""


class SourceError(MultistepError):
    """A task's files could not be read or fetched. transient: whether a retry may succeed.

    reason: condition reason (docs/reference/failures.md); retry_seconds: pause before the retry, None if an event requeues the
    trial.
    """

    def __init__(self, message: str, *, transient: bool = False, reason: str = "", retry_seconds: float | None = 10.0) -> None:
        super().__init__(message)
        self.transient = transient
        self.reason = reason or ("TaskUnavailable" if transient else "InvalidSpec")
        self.retry_seconds = retry_seconds


class PodError(MultistepError):
    """The trial's pod cannot be used."""


class StreamLost(PodError):
    """An exec stream ended without a status: it is unknown whether the request was executed."""


class ExecKilled(StreamLost):
    """The kubelet reports that the exec session's process was killed or could not start, because of something in the container.

    Such a report shows that API server, kubelet and container runtime work."""


class HostUnreachable(StreamLost):
    """The environment's runner cannot pass a request to the agent host's runner."""


class ContradictoryRecords(PodError):
    """The runner's records lack or contradict records that the trial's status already has."""


class RunnerError(PodError):
    """The runner answered with an error. code: error code (docs/internals/runner-protocol.md)."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class NoCommonProtocol(PodError):
    """Operator and runner share no protocol version, because their releases differ too much; the pod itself works."""


class EgressError(PodError):
    """A pod's egress sidecar restarted."""


class EgressRefused(EgressError):
    """A pod's egress sidecar refused to switch the network, or gave an invalid answer.

    invalid_hosts: whether the sidecar rejected the list of hosts; a retry would be rejected, too.
    """

    def __init__(self, message: str, *, invalid_hosts: bool = False) -> None:
        super().__init__(message)
        self.invalid_hosts = invalid_hosts


class StoreError(MultistepError):
    """Results could not be written or read."""


class CheckpointLost(MultistepError):
    """The checkpoint from which an attempt continues is missing or was changed: the attempt cannot continue."""


class ResultsLost(MultistepError):
    """The results volume lacks what the status says was stored, because an older copy of the volume was put back: the attempt
    cannot continue."""


class CollectionCut(MultistepError):
    """A download exceeds its size limit or timeout. The text names the limit."""


class ClusterError(MultistepError):
    """The API server rejected a request. status: HTTP status, 0 without an answer; reason: Kubernetes' reason, e.g. NotFound."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class NotFound(ClusterError):
    """The object does not exist."""


class Conflict(ClusterError):
    """The object changed since it was read (resourceVersion, uid), or a quota that others use changed: reconcile again."""


class AlreadyExists(Conflict):
    """An object to create exists already."""


class Unavailable(ClusterError):
    """The API server did not answer, or answered with 429 or 5xx. retry_after: seconds from the Retry-After header, if any."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "", retry_after: float | None = None) -> None:
        super().__init__(message, status=status, reason=reason)
        self.retry_after = retry_after


class GatewayError(MultistepError):
    """The model gateway rejected a request of the operator."""


class StepUnknownToGateway(GatewayError):
    """The model gateway has no request of the step: none was sent, or the ledger was lost. The step's usage is unknown, not 0."""


class GatewayUnavailable(GatewayError):
    """The model gateway did not answer, or answered with 5xx. Retry with back-off."""


class NotLeading(MultistepError):
    """This replica does not hold the lease, or lost it: the request was not sent."""


class UsageError(MultistepError):
    """The command line, or an argument of the Python client, is invalid."""
