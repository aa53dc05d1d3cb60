"""What the operator measures, for Prometheus. Labels are bounded: no label holds a name that a user can invent freely."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

PHASES = ("Pending", "Running", "Suspended", "Complete", "Failed")
_REWARDS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_FAST = (0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1200, 3600, 7200)


class TrialPhases(Collector):
    """How many trials there are in each phase, as last heard."""

    def __init__(self) -> None:
        self._phases: dict[tuple[str, str], str] = {}

    def saw(self, key: tuple[str, str], phase: str | None) -> None:
        """A trial was seen in a phase; None: it is gone."""
        if phase is None:
            self._phases.pop(key, None)
        else:
            self._phases[key] = phase

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One sample per phase."""
        family = GaugeMetricFamily("multistep_trials", "Trials by phase.", labels=["phase"])
        counts = dict.fromkeys(PHASES, 0)
        for phase in self._phases.values():
            counts[phase] = counts.get(phase, 0) + 1
        for phase, count in counts.items():
            family.add_metric([phase], count)
        yield family


class Metrics:
    """All metrics, in a registry of their own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.phases = TrialPhases()
        registry.register(self.phases)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"multistep_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"multistep_{name}", text, labels, buckets=buckets, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"multistep_{name}", text, labels, registry=registry)

        self.trials_finished = counter("trials_finished", "Trials that ended.", "agent", "outcome", "reason", "class")
        self.trial_reward = histogram("trial_reward", 'Rewards (key "reward") of finished trials.', _REWARDS, "agent")
        self.trial_seconds = histogram("trial_duration_seconds", "From a trial's start to its end.", _SECONDS, "agent")
        self.steps_finished = counter("steps_finished", "Steps that ended.", "agent", "outcome")
        self.step_reward = histogram("step_reward", 'Rewards (key "reward") of steps.', _REWARDS, "agent")
        self.phase_seconds = histogram("step_phase_duration_seconds", "Phases of steps.", _SECONDS, "agent", "phase")
        self.attempts_lost = counter("attempts_lost", "Pods that an outside cause took.", "reason")
        self.throttled_seconds = counter("api_throttled_seconds", "What requests waited for others to be answered, or as asked to.")
        self.requests_allowed = gauge("api_requests_allowed", "Requests that may be in flight now.")
        self.execs = counter("execs", "Exec sessions opened.")
        self.exec_failures = counter("exec_failures", "Exec sessions that broke.")
        self.execs_open = gauge("execs_open", "Exec sessions open now.")
        self.requests = counter("api_requests", "Requests to the API server.", "verb", "resource", "code")
        self.request_seconds = histogram("api_request_duration_seconds", "Requests to the API server.", _FAST, "verb")
        self.status_writes = counter("status_writes", "Writes of trial status.")
        self.reconcile_seconds = histogram("reconcile_duration_seconds", "One look at one trial.", _FAST)
        self.collected_bytes = counter("collected_bytes", "Bytes of logs and artifacts collected.")
        self.store_failures = counter("store_failures", "Looks that ended because results could not be written or read.")
        self.results_free = gauge("results_free_bytes", "Bytes left on the results volume.")
        self.orphans_removed = counter("orphans_removed", "What was found to belong to no trial, and removed.", "kind")
        peak = gauge("peak_memory_bytes", "The most resident memory the operator ever had.")
        peak.set_function(lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        threads = gauge("threads", "Threads of the operator.")
        threads.set_function(threading.active_count)
        self.missed_changes = counter("missed_changes", "Changes that no watch told of, found by a list.", "kind")
        self.queue_depth = gauge("queue_depth", "Trials that wait for a worker.")
        self.pods_starting = gauge("pods_starting", "Pods that are starting, as far as they count.")
        self.waiting = gauge("trials_waiting_for_turn", "Trials that wait until fewer pods start, or fewer execs are open.", "what")
        self.leading = gauge("leading", "Whether this replica is the one that works.")

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)
