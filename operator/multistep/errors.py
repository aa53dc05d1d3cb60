"""Every error that Multistep raises on purpose, as one tree.

MultistepError
├── InvalidTask        the task directory cannot be a task: what, where, what would be right
├── InvalidSpec        the resource asks for something impossible
├── SourceError        a bundle could not be had (missing, wrong digest, no access)
├── PodError           the pod cannot be used
│   ├── StreamLost     the connection broke: the outcome is unknown, ask again
│   │   └── ExecKilled the kubelet reports that something in the container ended the exec session
│   ├── ContradictoryRecords  the runner's records lack or contradict what the trial's status has
│   └── RunnerError    the runner answered that it will not or could not
├── StoreError         results could not be written or read
├── CollectionCut      a download exceeds its room or its time: what came is kept, the rest is reported
├── ClusterError       the API server refused or could not be reached
│   ├── NotFound
│   ├── Conflict       somebody else wrote first: look again
│   └── Unavailable    no answer, 429 or 5xx: try again later
├── NotLeading         another replica may be at work: nothing was sent
└── UsageError         the command line asks for something impossible
"""

from __future__ import annotations


class MultistepError(Exception):
    """Base of all errors raised on purpose; its text is written for a person."""


class InvalidTask(MultistepError):
    """A task that Harbor, too, would refuse to load.

    kind: Harbor's class of the error (ValidationError, FileNotFoundError, ValueError, TOMLDecodeError).
    field: the field or path at fault, e.g. ``steps[1].healthcheck.command``; "" when it is the whole file.
    """

    def __init__(self, message: str, *, kind: str = "ValidationError", field: str = "") -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.kind = kind
        self.field = field


class InvalidSpec(MultistepError):
    """A trial's spec that cannot be run as written; the text names the field, the value and what would be right."""


class SourceError(MultistepError):
    """A task's bundle could not be read. transient: trying again may help. reason: as in docs/failures.md.

    retry_seconds: when to try again; None: the trial is woken when there is news.
    """

    def __init__(self, message: str, *, transient: bool = False, reason: str = "", retry_seconds: float | None = 10.0) -> None:
        super().__init__(message)
        self.transient = transient
        self.reason = reason or ("TaskUnavailable" if transient else "InvalidSpec")
        self.retry_seconds = retry_seconds


class PodError(MultistepError):
    """The trial's pod cannot be used."""


class StreamLost(PodError):
    """An exec stream ended without its status: what was asked may or may not have happened."""


class ExecKilled(StreamLost):
    """The kubelet reports that something in the container ended the exec session's process, or keeps it from starting.

    The report proves that API server, kubelet and container runtime work."""


class ContradictoryRecords(PodError):
    """The runner's records lack or contradict what the trial's status has of them."""


class RunnerError(PodError):
    """The runner answered with an error. code: as in docs/runner-protocol.md."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class NoCommonProtocol(PodError):
    """Operator and runner are of releases too far apart: nothing can be asked, and nothing is wrong with the pod."""


class StoreError(MultistepError):
    """Results could not be written or read."""


class CollectionCut(MultistepError):
    """A download exceeds its room or its time; the text says which limit."""


class ClusterError(MultistepError):
    """The API server refused. status: HTTP status, 0 when there was no answer; reason: Kubernetes' reason."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class NotFound(ClusterError):
    """The object is not there."""


class Conflict(ClusterError):
    """The object is not as it was when read (resourceVersion, uid) or exists already: look again."""


class Unavailable(ClusterError):
    """No answer, 429 or 5xx. retry_after: seconds the server asked to wait, if it did."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "", retry_after: float | None = None) -> None:
        super().__init__(message, status=status, reason=reason)
        self.retry_after = retry_after


class NotLeading(MultistepError):
    """This replica does not hold the lease, or not any more: what was to be done was not even begun."""


class UsageError(MultistepError):
    """The command line asks for something impossible."""
