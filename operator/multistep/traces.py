"""Traces of trials, sent by OTLP over HTTP where that was asked for: a trial is sent once it is over, and no trial waits for it.

At least once: what could not be sent is tried again, and an operator that begins sends anew what ended shortly before. The
spans' ids are made of the trial's uid, so a receiver sees them once.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from .api.trial import MultiStepTrial
from .engine.spans import Span, spans, trace_id
from .errors import UsageError
from .metrics import Metrics

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

logger = logging.getLogger(__name__)

MOST_WAITING: Final = 1000
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 1.0, 60.0
_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class Traces:
    """Trials that are to be sent. exporter: where to."""

    def __init__(
        self, exporter: SpanExporter, metrics: Metrics, *, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        self._exporter = exporter
        self._metrics = metrics
        self._sleep = sleep
        self._waiting: asyncio.Queue[MultiStepTrial] = asyncio.Queue(MOST_WAITING)

    def ended(self, trial: MultiStepTrial) -> None:
        """Send a trial when there is time for it; if too many wait, it is left out and counted."""
        try:
            self._waiting.put_nowait(trial)
        except asyncio.QueueFull:
            self._metrics.traces.labels("dropped").inc()

    async def run(self) -> None:
        """Send for ever."""
        while True:
            trial = await self._waiting.get()
            await self._send([_readable(trial, each) for each in spans(trial)])

    async def _send(self, batch: Sequence[ReadableSpan]) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not await asyncio.to_thread(self._export, batch):
            self._metrics.traces.labels("failed").inc()
            await self._sleep(pause)
            pause = min(LAST_PAUSE_SECONDS, 2 * pause)
        self._metrics.traces.labels("sent").inc()

    def _export(self, batch: Sequence[ReadableSpan]) -> bool:
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            return self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:
            logger.exception("sending a trace")
            return False


def exporter(endpoint: str, environment: Mapping[str, str] = os.environ) -> SpanExporter | None:
    """Where traces go: by the setting, else by OpenTelemetry's variables; None: nowhere. UsageError if the extra is missing."""
    if not endpoint and not any(environment.get(each) for each in _VARIABLES):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise UsageError("traces were asked for (otlpEndpoint), but they need the extra: pip install 'multistep[otel]'") from None
    return OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces") if endpoint else OTLPSpanExporter()


def _readable(trial: MultiStepTrial, span: Span) -> ReadableSpan:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

    def context(id: str) -> SpanContext:
        return SpanContext(
            int(trace_id(trial.metadata.uid), 16), int(id, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)
        )

    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "multistep"}
    return ReadableSpan(
        name=span.name,
        context=context(span.id),
        parent=context(span.parent) if span.parent else None,
        resource=Resource.create(named),
        attributes=dict(span.attributes),
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
        start_time=round(span.start * 1e9),
        end_time=round(span.end * 1e9),
    )
