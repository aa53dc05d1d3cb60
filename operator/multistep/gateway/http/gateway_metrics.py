"""The gateway's metrics for Prometheus, by agent and model."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

from multistep.gateway.accounting.ledger_rows import RequestRow
from multistep.gateway.pace import Lanes
from multistep.telemetry.metric_types import OTHER, label_value

_BY = ("agent", "model")
_VERSIONS = (0, 0.5, 1, 2, 3, 5, 10, 20)


class GatewayMetrics:
    """The gateway's metrics, in a registry of their own."""

    def __init__(self, lanes: Lanes, label_sets: int, free_bytes: Callable[[], int]) -> None:
        """Create the metrics, for at most ``label_sets`` pairs of agent and model. ``free_bytes`` returns the free bytes of the
        ledger's volume."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._label_sets = label_sets
        self._pairs: set[tuple[str, str]] = set()
        self._requests = self._counter("requests", "Finished requests, by state in the ledger.", "state")
        self._tokens = self._counter("tokens", "Tokens; input includes cached.", "kind")
        self._cost = self._counter("cost_usd", "US dollars, of models whose price is known.")
        self._held = self._counter("held_seconds", "Time that requests were queued.")
        self._refusals = self._counter("refusals", "Answers of the provider after which a request was queued again.", "status")
        self._sampled = self._counter("sampled_tokens", "Sampled tokens of the requests whose tokens are recorded.")
        self._staleness = Histogram(
            "multistep_gateway_staleness_versions",
            "Mean number of versions by which the recorded tokens of an ended step are behind the current weights.",
            buckets=_VERSIONS,
            registry=self.registry,
        )
        self._gauge("requests_in_flight", "Requests in flight.").set_function(lambda: sum(lane.in_flight for lane in lanes))
        self._gauge("requests_waiting", "Queued requests.").set_function(lambda: sum(lane.waiting for lane in lanes))
        self._gauge("ledger_free_bytes", "Free bytes of the ledger's volume.").set_function(free_bytes)

    def count(self, row: RequestRow, sampled: int) -> None:
        """Count a finished request. ``sampled``: number of its tokens that were recorded."""
        labels = self._labels(row.agent, row.model)
        self._requests.labels(*labels, row.state).inc()
        for kind, tokens in (("input", row.input_tokens), ("cached", row.cached_tokens), ("output", row.output_tokens)):
            self._tokens.labels(*labels, kind).inc(tokens or 0)
        self._sampled.labels(*labels).inc(sampled)
        self._cost.labels(*labels).inc(row.cost_usd or 0)
        self._held.labels(*labels).inc(row.held_seconds)
        for status, count in row.refusals.items():
            if count:
                self._refusals.labels(*labels, str(status)).inc(count)

    def count_step(self, staleness: float | None) -> None:
        """Count the end of a step whose tokens are recorded. None: the versions of its weights are unknown."""
        if staleness is not None:
            self._staleness.observe(staleness)

    def render(self) -> bytes:
        """Return the text that Prometheus scrapes."""
        return generate_latest(self.registry)

    def _labels(self, agent: str, model: str) -> tuple[str, str]:
        pair = (label_value(agent), label_value(model))
        if pair not in self._pairs:
            if len(self._pairs) >= self._label_sets:
                return OTHER, OTHER
            self._pairs.add(pair)
        return pair

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"multistep_gateway_{name}", text, (*_BY, *labels), registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"multistep_gateway_{name}", text, registry=self.registry)
