"""All errors of Multistep whose messages users see, as one tree.

MultistepError
├── InvalidTask        the task is invalid
├── InvalidSpec        the resource's spec is invalid
│   ├── UncountedModel a service of the task would call a model without the model gateway
│   └── InvalidRequest the runner would refuse an operation, because of a value of the task or the spec
├── SourceError        a task's files could not be read or fetched (missing, wrong digest, no access)
├── PodError           the pod cannot be used
│   ├── StreamLost     the connection broke, so the outcome of the request is unknown
│   │   ├── ExecKilled the kubelet reports that something in the container ended the exec session
│   │   └── HostUnreachable  the environment's runner cannot pass a request to the agent host's runner
│   ├── ContradictoryRecords  the runner's records lack or contradict records in the trial's status
│   ├── RunnerError    the runner answered with an error
│   ├── NoCommonProtocol  operator and runner share no protocol version
│   └── EgressError    the egress sidecar restarted
│       └── EgressRefused  the egress sidecar refused to switch the network
├── StoreError         results could not be written or read
├── CheckpointLost     the checkpoint from which an attempt continues is missing or was changed
├── ResultsLost        the results volume lacks results that are stored according to the status
├── CollectionCut      a download exceeds its size limit or timeout
├── ClusterError       the API server rejected the request or could not be reached
│   ├── NotFound       the object does not exist
│   ├── Conflict       the object changed since it was read
│   │   └── AlreadyExists  another object has the name
│   └── Unavailable    the API server did not answer, or answered with 429 or 5xx
├── GatewayError       the model gateway rejected a request of the operator
│   ├── StepUnknownToGateway  the gateway received no request of the step
│   └── GatewayUnavailable    the gateway did not answer, or answered with 5xx
├── NotLeading         this replica does not hold the leader lease
└── UsageError         the command line, or an argument of the Python client, is invalid
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class MultistepError(Exception):
    """Base class of Multistep's errors. The message is shown to users."""


class InvalidTask(MultistepError):
    """The task is invalid, or needs a feature that Multistep does not support. The message has the value and what is expected."""

    def __init__(self, message: str, *, kind: str = "ValidationError", field: str = "") -> None:
        """Create the error.

        ``kind`` is Harbor's class of the error (ValidationError, FileNotFoundError, ValueError, TOMLDecodeError). ``field`` is the
        path of the invalid field or file, e.g. ``steps[1].healthcheck.command``, "" for the whole file.
        """
        super().__init__(f"{field}: {message}" if field else message)
        self.kind = kind
        self.field = field
        self.parts: tuple[InvalidTask, ...] = (self,)

    @classmethod
    def joined(cls, parts: Sequence[InvalidTask]) -> InvalidTask:
        """Return one error with a line for each part. It has the kind and field of the first part."""
        first = parts[0]
        text = "\n".join([str(first).removeprefix(f"{first.field}: "), *map(str, parts[1:])])
        whole = cls(text, kind=first.kind, field=first.field)
        whole.parts = tuple(parts)
        return whole


@contextmanager
def collected(faults: list[InvalidTask]) -> Iterator[None]:
    """Return a context manager that adds an InvalidTask of its block to ``faults``, so that later checks can find more."""
    try:
        yield
    except InvalidTask as error:
        faults.extend(error.parts)


class InvalidSpec(MultistepError):
    """A resource's spec is invalid. The message has the field, the value and what is expected."""


class UncountedModel(InvalidSpec):
    """A service of the task would call a model's provider without the model gateway, which counts requests by role."""


class InvalidRequest(InvalidSpec):
    """The runner would refuse an operation, because of a value of the task or the spec. Nothing was sent."""


class SourceError(MultistepError):
    """A task's files could not be read or fetched."""

    def __init__(self, message: str, *, transient: bool = False, reason: str = "", retry_seconds: float | None = 10.0) -> None:
        """Create the error.

        ``transient`` means that a retry may succeed. ``reason`` is the condition reason (docs/reference/failures.md).
        ``retry_seconds`` is the pause before the retry, None if an event requeues the trial.
        """
        super().__init__(message)
        self.transient = transient
        self.reason = reason or ("TaskUnavailable" if transient else "InvalidSpec")
        self.retry_seconds = retry_seconds


class PodError(MultistepError):
    """The trial's pod cannot be used."""


class StreamLost(PodError):
    """An exec stream ended without a status, so it is unknown whether the request was executed."""


class ExecKilled(StreamLost):
    """The kubelet reports that the exec session's process was killed or could not start, because of something in the container.

    Such a report shows that API server, kubelet and container runtime work.
    """


class HostUnreachable(StreamLost):
    """The environment's runner cannot pass a request to the agent host's runner."""


class ContradictoryRecords(PodError):
    """The runner's records lack or contradict records that the trial's status already has."""


class RunnerError(PodError):
    """The runner answered with an error."""

    def __init__(self, message: str, *, code: str) -> None:
        """Create the error. ``code`` is the error code (docs/internals/runner-protocol.md)."""
        super().__init__(message)
        self.code = code


class NoCommonProtocol(PodError):
    """Operator and runner share no protocol version, because their releases differ too much. The pod itself works."""


class EgressError(PodError):
    """A pod's egress sidecar restarted."""


class EgressRefused(EgressError):
    """A pod's egress sidecar refused to switch the network, or gave an invalid answer."""

    def __init__(self, message: str, *, invalid_hosts: bool = False) -> None:
        """Create the error. ``invalid_hosts`` means that the sidecar rejected the list of hosts, so a retry would fail too."""
        super().__init__(message)
        self.invalid_hosts = invalid_hosts


class StoreError(MultistepError):
    """Results could not be written or read."""


class CheckpointLost(MultistepError):
    """The checkpoint from which an attempt continues is missing or was changed, so the attempt cannot continue."""


class ResultsLost(MultistepError):
    """The results volume lacks results that are stored according to the status, because an older copy of the volume was restored.

    The attempt cannot continue.
    """


class CollectionCut(MultistepError):
    """A download exceeds its size limit or timeout, which the message names. The received part is kept, and the rest is
    reported."""


class ClusterError(MultistepError):
    """The API server rejected a request."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        """Create the error. ``status`` is the HTTP status, 0 without an answer. ``reason`` is Kubernetes' reason, e.g. NotFound."""
        super().__init__(message)
        self.status = status
        self.reason = reason


class NotFound(ClusterError):
    """The object does not exist."""


class Conflict(ClusterError):
    """The object changed since it was read, or a quota that others use changed. The object is reconciled again."""


class AlreadyExists(Conflict):
    """An object to create already exists."""


class Unavailable(ClusterError):
    """The API server did not answer, or answered with 429 or 5xx. The request is retried with back-off."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "", retry_after: float | None = None) -> None:
        """Create the error. ``retry_after`` is the number of seconds in the header Retry-After, if any."""
        super().__init__(message, status=status, reason=reason)
        self.retry_after = retry_after


class GatewayError(MultistepError):
    """The model gateway rejected a request of the operator."""


class StepUnknownToGateway(GatewayError):
    """The model gateway knows no request of the step, because none was sent or its ledger was lost. The usage is unknown, not 0."""


class GatewayUnavailable(GatewayError):
    """The model gateway did not answer, or answered with 5xx. The request is retried with back-off."""


class NotLeading(MultistepError):
    """This replica does not hold the leader lease, or lost it. The request was not sent."""


class UsageError(MultistepError):
    """The command line, or an argument of the Python client, is invalid."""
