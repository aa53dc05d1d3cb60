"""The table of the operator's metrics for Prometheus, from which docs/reference/metrics.md is generated.

No label has the name of a task, step or trial, so a pod that reads the metrics learns nothing about a single trial. The setting
metrics_labels adds namespaces, agents and models as labels. The number of combinations of their values is limited. Further
combinations share the value "other".
"""

from __future__ import annotations

import math
import platform
import resource
import threading
from typing import Any, Final

from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest
from prometheus_client.process_collector import ProcessCollector

from multistep import errors
from multistep.api.trial.failure_table import ATTEMPTS
from multistep.api.trial.values import SWEEP_PHASES, TRIAL_PHASES
from multistep.errors import MultistepError
from multistep.settings import Settings
from multistep.telemetry.metric_types import (
    MetricRow,
    OptionalLabels,
    bounded_counter,
    bounded_histogram,
    by_phase,
    counter,
    gauge,
    histogram,
)
from multistep.version import __version__

UNFORESEEN: Final = "Unforeseen"
ERRORS: Final = sorted(
    error.__name__ for error in vars(errors).values() if isinstance(error, type) and issubclass(error, MultistepError)
)

_BY_AGENT: Final = ("namespace", "agent")
_BY_MODEL: Final = ("namespace", "agent", "model")
_REWARDS: Final = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_MILLISECONDS: Final = (0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
_SECONDS: Final = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1200, 3600, 7200, 14400)
_HOURS: Final = (1, 3, 10, 30, 60, 120, 300, 600, 1200, 3600, 7200, 14400, 28800, 86400)

disable_created_metrics()  # type: ignore[no-untyped-call]  # removes the unused series *_created


class Metrics:
    """The operator's metrics, in a registry of their own."""

    # Metrics of trials and sweeps
    phases = by_phase("trials", "Trials by phase.", TRIAL_PHASES)
    sweeps = by_phase("sweeps", "Sweeps by phase.", SWEEP_PHASES)
    sweep_trials = counter("sweep_trials_created", "Trials that sweeps created.")
    trials_finished = bounded_counter(
        "trials_finished", "Finished trials, by how they ended.", "outcome", "reason", "class", choices=_BY_AGENT
    )
    rollouts = bounded_counter(
        "rollouts_finished",
        "Finished trials whose tokens are recorded; masked: whether training must leave them out, because they have no score.",
        "masked",
        choices=_BY_MODEL,
    )
    tampering = bounded_counter(
        "trials_tampering",
        "Finished trials by kind of status.tampering, evidence and hints; a trial counts once for each of its kinds.",
        "kind",
        choices=_BY_AGENT,
    )
    trial_score = bounded_histogram("trial_score", "Scores of trials that have one.", _REWARDS, choices=_BY_AGENT)
    trial_seconds = bounded_histogram("trial_duration_seconds", "Time from a trial's start to its end.", _HOURS, choices=_BY_AGENT)
    queue_seconds = bounded_histogram(
        "trial_queue_duration_seconds", "Time from a trial's creation until its first pod runs.", _HOURS, choices=_BY_AGENT
    )
    startup_seconds = bounded_histogram(
        "pod_startup_duration_seconds", "Time from a pod's scheduling until it runs.", _SECONDS, choices=_BY_AGENT
    )
    attempts_failed = counter(
        "attempts_failed",
        "Attempts ended by an infrastructure failure or a suspension.",
        "reason",
        known=[*(row.reason for row in ATTEMPTS), "Other"],
    )
    steps_finished = bounded_counter(
        "steps_finished", "Finished steps, including those of failed attempts.", "outcome", choices=_BY_AGENT
    )
    phase_seconds = bounded_histogram(
        "step_phase_duration_seconds",
        "Duration of a step's phase, including those of failed attempts.",
        _SECONDS,
        "phase",
        choices=_BY_AGENT,
    )

    # Metrics of agents' model requests
    model_tokens = bounded_counter(
        "model_tokens", "Tokens by kind, and by who counted them; input includes cached.", "kind", "source", choices=_BY_MODEL
    )
    model_cost = bounded_counter(
        "model_cost_usd", "US dollars by who counted the tokens, of steps whose cost is known.", "source", choices=_BY_MODEL
    )
    model_requests = bounded_counter("model_requests", "Model requests that the gateway counted.", choices=_BY_MODEL)
    model_held_seconds = bounded_counter("model_held_seconds", "Time that model requests waited at the gateway.", choices=_BY_MODEL)
    judge_tokens = bounded_counter("judge_tokens", "Tokens of judges by kind; input includes cached.", "kind", choices=_BY_AGENT)
    judge_cost = bounded_counter("judge_cost_usd", "US dollars of judges, of steps whose cost is known.", choices=_BY_AGENT)
    judge_requests = bounded_counter("judge_requests", "Model requests of judges.", choices=_BY_AGENT)
    user_tokens = bounded_counter(
        "user_tokens", "Tokens of simulated users by kind; input includes cached.", "kind", choices=_BY_AGENT
    )
    user_cost = bounded_counter("user_cost_usd", "US dollars of simulated users, of steps whose cost is known.", choices=_BY_AGENT)
    user_requests = bounded_counter("user_requests", "Model requests of simulated users.", choices=_BY_AGENT)
    gateway_up = gauge("gateway_up", "1 if the model gateway answered the operator's last request (one every 5 s), else 0.")
    provider_failures = bounded_counter("provider_failures", "Attempts ended by a failure of the provider.", choices=_BY_MODEL)

    # Metrics of exec sessions
    exec_sessions = counter("exec_sessions", "Exec sessions opened.")
    exec_sessions_open = gauge("exec_sessions_open", "Exec sessions that are open.")
    exec_session_failures = counter(
        "exec_session_failures", "Exec sessions that ended with an error.", "cause", known=("stream", "runner", "pod")
    )
    exec_seconds = histogram(
        "exec_session_handshake_duration_seconds", "Time from opening an exec session to the runner's first answer.", _MILLISECONDS
    )
    transferred_bytes = counter(
        "transferred_bytes", "Bytes sent to and received from pods by exec sessions.", "direction", known=("up", "down")
    )

    # Metrics of requests to the API server, and of watches
    requests = counter("api_requests", "Requests to the API server; code 0: no response.", "verb", "resource", "code")
    request_seconds = histogram("api_request_duration_seconds", "Duration of requests to the API server.", _MILLISECONDS, "verb")
    throttled_seconds = counter("api_throttled_seconds", "Time that requests waited for the concurrency limit or a Retry-After.")
    requests_allowed = gauge("api_requests_allowed", "Concurrency limit of requests to the API server (adaptive).")
    status_writes = counter("status_writes", "Writes of trial status.")
    missed_watch_events = counter(
        "missed_watch_events", "Watch events that were missed, found by a resync.", "kind", known=("trial", "pod", "sweep")
    )

    # Metrics of reconciles and queues
    reconcile_seconds = histogram("reconcile_duration_seconds", "Duration of one reconcile of a trial.", _MILLISECONDS)
    reconcile_failures = counter(
        "reconcile_failures", "Reconciles that failed and were requeued.", "error", known=(*ERRORS, UNFORESEEN)
    )
    queue_depth = gauge("queue_depth", "Trials in the work queue.")
    queue_wait_seconds = histogram("queue_wait_duration_seconds", "Time that a trial waits in the work queue.", _MILLISECONDS)
    pods_starting = gauge("pods_starting", "Pods that are starting; the limit is startingPods.")
    waiting = gauge(
        "trials_waiting",
        "Trials that are queued for a slot: starting pods, exec sessions, checkpoints, quota, active trials of a model.",
        "limit",
        known=("pod", "quota", "exec", "model", "checkpoint"),
    )
    model_trials_active = gauge("model_trials_active", "Active trials of a model that the setting models limits.", "model")
    model_trials_allowed = gauge("model_trials_allowed", "Limit of active trials of a model (adaptive).", "model")

    # Metrics of traces
    traces = counter(
        "traces",
        "Traces of trials: sent, failed (retried later), rejected by the receiver, or dropped because the queue is full.",
        "outcome",
        known=("sent", "failed", "rejected", "dropped"),
    )

    # Metrics of results and orphans
    collected_bytes = counter("collected_bytes", "Bytes of logs and artifacts stored on the results volume.")
    store_failures = counter("store_failures", "Reconciles that failed because results could not be read or written.")
    results_free = gauge("results_free_bytes", "Free bytes of the results volume.")
    orphans_deleted = counter(
        "orphans_deleted", "Orphans deleted: pods, results and files without a trial.", "kind", known=("pod", "results", "file")
    )

    # Metrics of the operator process
    leading = gauge("leading", "1 if this replica holds the leader lease, else 0.")
    build_info = gauge("build_info", "Always 1; the labels show the operator's version.", "version", "python")
    shard_info = gauge(
        "shard_info",
        "Always 1; the labels show which trials the operator runs (empty: no shard; all namespaces).",
        "shard",
        "namespaces",
    )
    peak_memory = gauge("peak_memory_bytes", "Peak resident memory of the operator.")
    threads = gauge("threads", "Threads of the operator.")

    def __init__(self, settings: Settings | None = None) -> None:
        settings = settings or Settings()
        choice = OptionalLabels(settings.metrics_labels, settings.metrics_label_sets)
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.instruments: dict[str, Any] = {row.described.name: row.create(row.described, choice, self.registry) for row in TABLE}
        self.build_info.labels(__version__, platform.python_version()).set(1)
        self.shard_info.labels(settings.shard, ",".join(settings.namespaces)).set(1)
        self.peak_memory.set_function(lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        self.threads.set_function(threading.active_count)
        self.results_free.set(math.nan)  # unknown until it is measured, which never happens on a standby
        self.gateway_up.set(math.nan)  # unknown until the first request to the gateway, and always unknown without a gateway

        # Series that are counted often are cached, because finding a series by its labels takes longer than counting.
        self._bytes = {direction: self.transferred_bytes.labels(direction) for direction in ("up", "down")}
        self._requests: dict[tuple[str, str, int], Any] = {}
        self._request_seconds: dict[str, Any] = {}

    def moved(self, direction: str, size: int) -> None:
        """Count bytes sent to a pod (up) or received from it (down)."""
        self._bytes[direction].inc(size)

    def failed(self, error: BaseException) -> None:
        """Count a failed reconcile. All unexpected exceptions share one label value."""
        name = type(error).__name__
        self.reconcile_failures.labels(name if isinstance(error, MultistepError) else UNFORESEEN).inc()

    def requested(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """Count a request to the API server."""
        key = verb, resource, code
        if (counted := self._requests.get(key)) is None:
            counted = self._requests[key] = self.requests.labels(verb, resource, str(code))
            self._request_seconds[verb] = self.request_seconds.labels(verb)
        counted.inc()
        self._request_seconds[verb].observe(seconds)

    def render(self) -> bytes:
        """Return the text that Prometheus scrapes."""
        return generate_latest(self.registry)


TABLE: Final[list[MetricRow[Any]]] = [row for row in vars(Metrics).values() if isinstance(row, MetricRow)]
