"""What the operator measures, for Prometheus; docs/metrics.md shows all of it.

No label holds a name that a user invents, unless it was chosen by the setting metrics_labels; and then the number of
different values is bounded.
"""

from __future__ import annotations

import math
import platform
import resource
import threading
from collections import Counter as Counts
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from . import __version__
from .api.failures import LOST
from .errors import MultistepError
from .settings import Settings

PHASES = ("Pending", "Running", "Suspended", "Complete", "Failed")
SWEEP_PHASES = ("Pending", "Running", "Suspended", "Halting", "Complete", "Failed")
OTHER = "other"
"""A label's value that stands for all those that have no series of their own."""
UNFORESEEN = "Unforeseen"
MAX_VALUE_CHARACTERS = 128

_TRIAL = ("namespace", "task", "agent")
_STEP = ("namespace", "task", "step", "agent")
_KEY = ("key",)

_REWARDS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_MILLISECONDS = (0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1200, 3600, 7200, 14400)
_HOURS = (1, 3, 10, 30, 60, 120, 300, 600, 1200, 3600, 7200, 14400, 28800, 86400)

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter, that nobody asks for

T = TypeVar("T", Counter, Histogram)
Key = tuple[str, str]
Buckets = tuple[float, ...]


@dataclass(frozen=True)
class Description:
    """A metric, as docs/metrics.md tells of it. choices: labels that it has if they are chosen."""

    name: str
    type: str
    labels: Sequence[str]
    choices: Sequence[str]
    text: str


class Chosen(Generic[T]):
    """A metric some of whose labels are there only if they were chosen, in no more than ``most`` different sets of values."""

    def __init__(self, metric: T, chosen: Sequence[str], most: int) -> None:
        self._metric: T = metric
        self._chosen = chosen
        self._most = most
        self._sets: set[tuple[str, ...]] = set()

    def of(self, *labels: str, **names: str) -> T:
        """The series to count in. labels: of those that are always there; names: of all that can be chosen."""
        values: tuple[str, ...] = tuple(label_value(names[each]) for each in self._chosen)
        if values not in self._sets:
            if len(self._sets) >= self._most:
                values = (OTHER,) * len(values)
            else:
                self._sets.add(values)
        found = (*values, *labels)
        series: T = self._metric.labels(*found) if found else self._metric
        return series


class Phases(Collector):
    """How many trials (or sweeps) there are in each phase, as last heard: nothing while this replica does not lead, as another
    tells."""

    def __init__(self, described: Description, phases: Sequence[str]) -> None:
        self._described = described
        self._known = phases
        self.shown: Callable[[], bool] = lambda: True
        self._phases: dict[Key, str] = {}

    def saw(self, key: Key, phase: str | None) -> None:
        """One was seen; without a phase it is pending."""
        self._phases[key] = phase or "Pending"

    def gone(self, key: Key) -> None:
        """One is there no more."""
        self._phases.pop(key, None)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One sample per phase."""
        family = GaugeMetricFamily(self._described.name, self._described.text, labels=self._described.labels)
        counts = Counts(phase if phase in self._known else OTHER for phase in self._phases.values())
        for phase in (*self._known, *([OTHER] if counts[OTHER] else [])):
            if self.shown():
                family.add_metric([phase], counts[phase])
        yield family


_TRIALS = Description("multistep_trials", "gauge", ("phase",), (), "Trials that there are, by phase.")
_SWEEPS = Description("multistep_sweeps", "gauge", ("phase",), (), "Sweeps that there are, by phase.")


class Metrics:
    """All metrics, in a registry of their own. described: what there is, in the order of the code."""

    def __init__(self, settings: Settings | None = None) -> None:
        settings = settings or Settings()
        chosen, most = settings.metrics_labels, settings.metrics_label_sets
        self.by_key = "key" in chosen
        self.registry = CollectorRegistry()
        self.described = [_TRIALS, _SWEEPS]
        ProcessCollector(registry=self.registry)
        self.phases, self.sweeps = Phases(_TRIALS, PHASES), Phases(_SWEEPS, SWEEP_PHASES)
        self.registry.register(self.phases)
        self.registry.register(self.sweeps)

        def counter(name: str, text: str, *labels: str, choices: Sequence[str] = ()) -> Counter:
            self.described.append(Description(f"multistep_{name}_total", "counter", labels, choices, text))
            return Counter(f"multistep_{name}", text, (*taken(choices), *labels), registry=self.registry)

        def histogram(name: str, text: str, buckets: Buckets, *labels: str, choices: Sequence[str] = ()) -> Histogram:
            self.described.append(Description(f"multistep_{name}", "histogram", labels, choices, text))
            return Histogram(f"multistep_{name}", text, (*taken(choices), *labels), buckets=buckets, registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            self.described.append(Description(f"multistep_{name}", "gauge", labels, (), text))
            return Gauge(f"multistep_{name}", text, labels, registry=self.registry)

        def taken(choices: Sequence[str]) -> list[str]:
            return [each for each in choices if each in chosen]

        def counters(choices: Sequence[str], name: str, text: str, *labels: str) -> Chosen[Counter]:
            return Chosen(counter(name, text, *labels, choices=choices), taken(choices), most)

        def histograms(choices: Sequence[str], name: str, text: str, buckets: Buckets, *labels: str) -> Chosen[Histogram]:
            return Chosen(histogram(name, text, buckets, *labels, choices=choices), taken(choices), most)

        # trials
        self.trials_finished = counters(
            _TRIAL, "trials_finished", "Trials that ended, by what ended them.", "outcome", "reason", "class"
        )
        self.trial_reward = histograms((*_TRIAL, *_KEY), "trial_reward", "Rewards of trials that are Complete.", _REWARDS)
        self.trial_seconds = histograms(_TRIAL, "trial_duration_seconds", "From a trial's start to its end.", _HOURS)
        self.queue_seconds = histograms(
            _TRIAL, "trial_queue_duration_seconds", "From a trial's creation until its first pod ran.", _HOURS
        )
        self.startup_seconds = histograms(
            _TRIAL, "pod_startup_duration_seconds", "From when an attempt's pod got its node until it ran.", _SECONDS
        )
        self.attempts_lost = counter("attempts_lost", "Attempts that an outside cause ended, or a suspension.", "reason")

        self.sweep_trials = counter("sweep_trials_made", "Trials that sweeps made.")

        # steps
        self.steps_finished = counters(_STEP, "steps_finished", "Steps that ended, also of attempts that were lost.", "outcome")
        self.step_reward = histograms((*_STEP, *_KEY), "step_reward", "Rewards of the steps of trials that are Complete.", _REWARDS)
        self.phase_seconds = histograms(
            _STEP, "step_phase_duration_seconds", "Phases of steps, also of attempts that were lost.", _SECONDS, "phase"
        )

        # exec sessions
        self.execs = counter("execs", "Exec sessions opened.")
        self.execs_open = gauge("execs_open", "Exec sessions open now.")
        self.exec_failures = counter("exec_failures", "Visits to a pod that broke off.", "cause")
        self.exec_seconds = histogram("exec_handshake_duration_seconds", "Until a runner had answered.", _MILLISECONDS)
        self.transferred_bytes = counter("transferred_bytes", "Bytes to and from pods, files and all else.", "direction")

        # the API server
        self.requests = counter("api_requests", "Requests to the API server; code 0: no answer.", "verb", "resource", "code")
        self.request_seconds = histogram("api_request_duration_seconds", "Requests to the API server.", _MILLISECONDS, "verb")
        self.throttled_seconds = counter("api_throttled_seconds", "What requests waited for others to be answered, or as asked to.")
        self.requests_allowed = gauge("api_requests_allowed", "Requests that may be in flight now.")
        self.status_writes = counter("status_writes", "Writes of trial status.")
        self.missed_changes = counter("missed_changes", "Changes that no watch told of, found by a list.", "kind")

        # looks at trials
        self.reconcile_seconds = histogram("reconcile_duration_seconds", "One look at one trial.", _MILLISECONDS)
        self.reconcile_failures = counter("reconcile_failures", "Looks that are repeated because of an error.", "error")
        self.queue_depth = gauge("queue_depth", "Trials that wait for a worker.")
        self.queue_wait_seconds = histogram("queue_wait_duration_seconds", "What a trial waited for a worker.", _MILLISECONDS)
        self.pods_starting = gauge("pods_starting", "Pods that are starting, as far as they count.")
        self.waiting = gauge(
            "trials_waiting_for_turn", "Trials that wait until fewer pods start, fewer execs are open, or a quota has room.", "what"
        )

        # traces
        self.traces = counter(
            "traces",
            "Traces of trials: sent, failed (retried later), rejected by the receiver, or dropped because too many wait.",
            "outcome",
        )

        # results
        self.collected_bytes = counter("collected_bytes", "Bytes of logs and artifacts that went to the results store.")
        self.store_failures = counter("store_failures", "Looks that ended because results could not be written or read.")
        self.results_free = gauge("results_free_bytes", "Bytes left on the results volume.")
        self.orphans_removed = counter("orphans_removed", "What was found to belong to no trial, and removed.", "kind")

        # the operator
        self.leading = gauge("leading", "Whether this replica is the one that works.")
        gauge("build_info", "Always 1; which operator it is.", "version", "python").labels(
            __version__, platform.python_version()
        ).set(1)
        gauge("shard_info", "Always 1; which trials it runs; empty: of no shard, of all namespaces.", "shard", "namespaces").labels(
            settings.shard, ",".join(settings.namespaces)
        ).set(1)
        gauge("peak_memory_bytes", "The most resident memory the operator ever had.").set_function(
            lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        )
        gauge("threads", "Threads of the operator.").set_function(threading.active_count)
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """Series that are there from the start: PromQL's increase() sees no first event of one that is not."""
        for row in LOST:
            self.attempts_lost.labels(row.reason)
        for metric, values in (
            (self.attempts_lost, ["Other"]),
            (self.exec_failures, ["stream", "runner", "pod"]),
            (self.transferred_bytes, ["up", "down"]),
            (self.missed_changes, ["trial", "pod", "sweep"]),
            (self.reconcile_failures, [UNFORESEEN]),
        ):
            for value in values:
                metric.labels(value)
        self.results_free.set(math.nan)  # until it is known; a replica that stands by never does

    def moved(self, direction: str, size: int) -> None:
        """Bytes went up to a pod, or came down."""
        self.transferred_bytes.labels(direction).inc(size)

    def failed(self, error: Exception) -> None:
        """A look ended with an error; one that nobody foresaw has no name of its own."""
        self.reconcile_failures.labels(type(error).__name__ if isinstance(error, MultistepError) else UNFORESEEN).inc()

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)


def label_value(text: str) -> str:
    """A name that somebody invented, as a label can hold it: Prometheus takes nothing but UTF-8, and stores it for long."""
    shown = "".join(each if each.isprintable() else "?" for each in text[:MAX_VALUE_CHARACTERS])
    return shown.encode(errors="replace").decode()
