"""The types of metrics, such as metrics with a limited number of label sets and gauges of objects by phase."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

OTHER = "other"
"""Label value of the series for all combinations of label values beyond the limit."""
MAX_VALUE_CHARACTERS = 128
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Content-Type of the text that Prometheus scrapes."""

C = TypeVar("C", Counter, Histogram)
M = TypeVar("M")
Key = tuple[str, str]


@dataclass(frozen=True)
class Description:
    """Describes one metric."""

    name: str
    """The metric's name in Prometheus."""
    type: str
    text: str
    labels: Sequence[str] = ()
    choices: Sequence[str] = ()
    """Names of labels that the settings may add."""
    buckets: Sequence[float] = ()
    """Buckets of a histogram."""
    known: Sequence[str] = ()
    """Label values whose series exist from the start, because PromQL's increase() misses the first event of a new series."""


@dataclass(frozen=True)
class OptionalLabels:
    """The labels that the settings add."""

    labels: Sequence[str]
    most: int
    """Maximum number of different combinations of their values per metric."""

    def of(self, described: Description) -> list[str]:
        """Return the added labels that this metric supports."""
        return [label for label in described.choices if label in self.labels]


class Registered(Protocol):
    """The part of the class Metrics that MetricRow needs."""

    @property
    def instruments(self) -> dict[str, Any]: ...


class MetricRow(Generic[M]):
    """One metric as an attribute of the class Metrics. It is a Python descriptor, so that the attribute of an instance is the
    instance's metric."""

    def __init__(self, described: Description, create: Callable[[Description, OptionalLabels, CollectorRegistry], M]) -> None:
        self.described = described
        self.create = create

    def __get__(self, owner: Registered, _: type[Registered]) -> M:
        return cast(M, owner.instruments[self.described.name])


class BoundedMetric(Generic[C]):
    """A metric with optional labels. After ``most`` combinations of their values, all others share the series "other"."""

    def __init__(self, metric: C, chosen: Sequence[str], most: int) -> None:
        self._metric: C = metric
        self._chosen = chosen
        self._most = most
        self._sets: set[tuple[str, ...]] = set()

    def of(self, *labels: str, **names: str) -> C:
        """Return the series with these values of the fixed labels (``labels``) and of all optional labels (``names``)."""
        values: tuple[str, ...] = tuple(label_value(names[label]) for label in self._chosen)
        if values not in self._sets:
            if len(self._sets) >= self._most:
                values = (OTHER,) * len(values)
            else:
                self._sets.add(values)
        label_values = (*values, *labels)
        series: C = self._metric.labels(*label_values) if label_values else self._metric
        return series


class PhaseGauge(Collector):
    """Counts trials (or sweeps) in each phase according to the latest watch events. Only the leader reports the numbers."""

    def __init__(self, described: Description) -> None:
        self._described = described
        self.shown: Callable[[], bool] = lambda: True
        self._phases: dict[Key, str] = {}

    def observe(self, key: Key, phase: str | None) -> None:
        """Record an object's phase. An object without a phase counts as Pending."""
        self._phases[key] = phase or "Pending"

    def forget(self, key: Key) -> None:
        """Stop counting a deleted object."""
        self._phases.pop(key, None)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield one sample per phase."""
        known = self._described.known
        family = GaugeMetricFamily(self._described.name, self._described.text, labels=self._described.labels)
        counts = Counts(phase if phase in known else OTHER for phase in self._phases.values())
        for phase in (*known, *([OTHER] if counts[OTHER] else [])):
            if self.shown():
                family.add_metric([phase], counts[phase])
        yield family


def counter(name: str, text: str, *labels: str, known: Sequence[str] = ()) -> MetricRow[Counter]:
    """Return the row of a counter in the table of metrics. The counter's name gets the suffix ``_total``."""
    return MetricRow(Description(f"multistep_{name}_total", "counter", text, labels, known=known), _counter)


def gauge(name: str, text: str, *labels: str, known: Sequence[str] = ()) -> MetricRow[Gauge]:
    """Return the row of a gauge in the table of metrics."""
    return MetricRow(Description(f"multistep_{name}", "gauge", text, labels, known=known), _gauge)


def histogram(name: str, text: str, buckets: Sequence[float], *labels: str) -> MetricRow[Histogram]:
    """Return the row of a histogram in the table of metrics."""
    return MetricRow(Description(f"multistep_{name}", "histogram", text, labels, buckets=buckets), _histogram)


def by_phase(name: str, text: str, known: Sequence[str]) -> MetricRow[PhaseGauge]:
    """Return the row of a gauge that counts objects by phase."""
    return MetricRow(Description(f"multistep_{name}", "gauge", text, ("phase",), known=known), _phases)


def bounded_counter(name: str, text: str, *labels: str, choices: Sequence[str]) -> MetricRow[BoundedMetric[Counter]]:
    """Describe a counter with fixed ``labels``, to which a setting can add ``choices``."""
    return MetricRow(Description(f"multistep_{name}_total", "counter", text, labels, choices), _bounded_counter)


def bounded_histogram(
    name: str, text: str, buckets: Sequence[float], *labels: str, choices: Sequence[str]
) -> MetricRow[BoundedMetric[Histogram]]:
    """Describe a histogram with fixed ``labels``, to which a setting can add ``choices``."""
    return MetricRow(Description(f"multistep_{name}", "histogram", text, labels, choices, buckets), _bounded_histogram)


def _counter(row: Description, choice: OptionalLabels, registry: CollectorRegistry) -> Counter:
    metric = Counter(row.name, row.text, (*choice.of(row), *row.labels), registry=registry)
    for value in row.known:
        metric.labels(value)
    return metric


def _gauge(row: Description, _: OptionalLabels, registry: CollectorRegistry) -> Gauge:
    metric = Gauge(row.name, row.text, row.labels, registry=registry)
    for value in row.known:
        metric.labels(value)
    return metric


def _histogram(row: Description, choice: OptionalLabels, registry: CollectorRegistry) -> Histogram:
    return Histogram(row.name, row.text, (*choice.of(row), *row.labels), buckets=row.buckets, registry=registry)


def _phases(row: Description, _: OptionalLabels, registry: CollectorRegistry) -> PhaseGauge:
    metric = PhaseGauge(row)
    registry.register(metric)
    return metric


def _bounded_counter(row: Description, choice: OptionalLabels, registry: CollectorRegistry) -> BoundedMetric[Counter]:
    return BoundedMetric(_counter(row, choice, registry), choice.of(row), choice.most)


def _bounded_histogram(row: Description, choice: OptionalLabels, registry: CollectorRegistry) -> BoundedMetric[Histogram]:
    return BoundedMetric(_histogram(row, choice, registry), choice.of(row), choice.most)


def label_value(text: str) -> str:
    """Return a name that users choose as a label value, which is printable UTF-8 of limited length."""
    shown = "".join(character if character.isprintable() else "?" for character in text[:MAX_VALUE_CHARACTERS])
    return shown.encode(errors="replace").decode()
