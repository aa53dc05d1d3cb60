"""Exports traces of finished trials by OTLP/HTTP, if configured. No trial waits for the export.

A trace is delivered at least once. A failed export is retried, and after a restart the operator exports recently finished trials
again. The spans' ids are derived from the trial's UID, so a receiver can drop duplicates. A trace that the receiver rejects (a 4xx
status other than 408 and 429) is dropped, logged and counted, because a retry cannot succeed and later traces must not wait.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

from multistep.api.trial.trial import MultiStepTrial
from multistep.backoff import Backoff
from multistep.engine.status.trace_spans import ModelRequest, Span, spans, trace_id
from multistep.errors import GatewayError, UsageError
from multistep.logs import about
from multistep.telemetry.metrics import Metrics

if TYPE_CHECKING:
    import requests
    from opentelemetry.sdk.trace import ReadableSpan

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 1000
BACKOFF: Final = Backoff(first=1.0, last=60.0)
_GATEWAY_TRIES: Final = 6
_RETRYABLE = frozenset({408, 429})
_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class Traces:
    """Sends the traces of queued trials to the receiver."""

    def __init__(
        self,
        receiver: Receiver,
        metrics: Metrics,
        *,
        requests: Callable[[MultiStepTrial], Awaitable[Sequence[ModelRequest]]] | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Create the queue. ``requests`` returns a trial's model requests, or raises GatewayError."""
        self._receiver = receiver
        self._metrics = metrics
        self._requests = requests
        self._sleep = sleep
        self._waiting: asyncio.Queue[MultiStepTrial] = asyncio.Queue(MAX_WAITING)

    def ended(self, trial: MultiStepTrial) -> None:
        """Queue a finished trial's trace. If the queue is full, the trace is dropped and counted."""
        try:
            self._waiting.put_nowait(trial)
        except asyncio.QueueFull:
            self._metrics.traces.labels("dropped").inc()

    async def run(self) -> None:
        """Send queued traces until cancelled."""
        while True:
            trial = await self._waiting.get()
            with about(namespace=trial.metadata.namespace, trial=trial.metadata.name, uid=trial.metadata.uid):
                found = spans(trial, await self._model_requests(trial))
                outcome = await self._send([_readable(trial, span) for span in found])
            self._metrics.traces.labels(outcome).inc()

    async def _model_requests(self, trial: MultiStepTrial) -> Sequence[ModelRequest]:
        """Return the trial's model requests, or none if the gateway does not answer for a minute."""
        if self._requests is None:
            return ()
        for failures in range(1, _GATEWAY_TRIES + 1):
            try:
                return await self._requests(trial)
            except GatewayError as error:
                logger.warning("the trace of this trial lacks its model requests: %s", error)
                await self._sleep(BACKOFF.seconds(failures))
        return ()

    async def _send(self, batch: Sequence[ReadableSpan]) -> Literal["sent", "rejected"]:
        """Send a trace. Retry with back-off until the receiver accepts or rejects it."""
        failures = 0
        while not await asyncio.to_thread(self._receiver.export, batch):
            if (status := self._receiver.status) is not None and 400 <= status < 500 and status not in _RETRYABLE:
                logger.error("the OTLP receiver rejected this trial's trace with HTTP status %d; the trace is dropped", status)
                return "rejected"
            self._metrics.traces.labels("failed").inc()
            await self._sleep(BACKOFF.seconds(failures := failures + 1))
        return "sent"


class Receiver:
    """An OTLP/HTTP receiver. If ``endpoint`` is "", OpenTelemetry's variables name it. ``status`` is the HTTP status of the last
    response.

    The constructor raises ImportError if the extra `otel` is not installed.
    """

    def __init__(self, endpoint: str) -> None:
        import requests
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        self.status: int | None = None
        session = requests.Session()
        session.hooks["response"].append(self._note)
        self._exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces" if endpoint else None, session=session)

    def export(self, batch: Sequence[ReadableSpan]) -> bool:
        """Send the spans, with a few quick retries. Return whether the receiver accepted them."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        self.status = None
        try:
            return self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:
            logger.exception("sending a trace")
            return False

    def _note(self, response: requests.Response, *_: object, **__: object) -> None:
        self.status = response.status_code


def connect_receiver(endpoint: str, environment: Mapping[str, str] = os.environ) -> Receiver | None:
    """Return the receiver that ``endpoint`` or OpenTelemetry's variables name, or None. Raises UsageError without the extra
    otel."""
    if not endpoint and not any(environment.get(variable) for variable in _VARIABLES):
        return None
    try:
        return Receiver(endpoint)
    except ImportError:
        raise UsageError("otlpEndpoint is set, but traces need an extra: pip install 'multistep[otel]'") from None


def _readable(trial: MultiStepTrial, span: Span) -> ReadableSpan:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

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
        kind=SpanKind.CLIENT if span.client else SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
        start_time=round(span.start * 1e9),
        end_time=round(span.end * 1e9),
    )
