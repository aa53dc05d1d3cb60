"""Traces reach a real OTLP receiver, and no trial waits for a receiver that does not answer."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from multistep.api.trial.trial import MultiStepTrial, parse_trial
from multistep.engine.status.trace_spans import ModelRequest, spans, trace_id
from multistep.errors import GatewayUnavailable, UsageError
from multistep.gateway.keys.tokens import Keyring
from multistep.reconcile.models.model_gateway import ModelGateway
from multistep.telemetry.export_traces import MAX_WAITING, Traces, connect_receiver
from multistep.telemetry.metrics import Metrics
from tests.support.world import REWARDS, World
from tests.unit.gateway.world import MODELS, token_for
from tests.unit.gateway.world import world as gateway_world


@dataclass
class Receiver:
    """An OTLP receiver. refuse: number of requests that it rejects first; how: HTTP status of these rejections."""

    url: str = ""
    refuse: int = 0
    how: int = 400
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        if self.refuse:
            self.refuse -= 1
            return web.Response(status=self.how)
        self.requests.append(ExportTraceServiceRequest.FromString(await request.read()))
        return web.Response()

    @property
    def spans(self) -> list[Any]:
        return [span for each in self.requests for of in each.resource_spans for scope in of.scope_spans for span in scope.spans]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    found, app = Receiver(), web.Application()
    app.router.add_post("/v1/traces", found.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield found
    await runner.cleanup()


async def ended(**options: Any) -> World:
    """Run a trial in an in-memory cluster until the trial is finished."""
    world = World(results={f"{step}/verifier": result for step, result in REWARDS.items()}, **options)
    await world.run()
    return world


async def until(done: Any) -> None:
    async with asyncio.timeout(60):
        while not done():
            await asyncio.sleep(0.01)


def counted(metrics: Metrics, outcome: str) -> float:
    return metrics.registry.get_sample_value("multistep_traces_total", {"outcome": outcome}) or 0.0


async def no_pause(_: float) -> None:
    """Return at once; replaces the pause between retries."""


async def test_a_trials_spans_arrive_as_its_status_has_them(receiver: Receiver) -> None:
    world, metrics = await ended(), Metrics()
    to = connect_receiver(receiver.url)
    assert to is not None
    traces = Traces(to, metrics)
    traces.ended(parse_trial(world.object))
    task = asyncio.create_task(traces.run())
    await until(lambda: receiver.spans)
    task.cancel()
    wanted = spans(parse_trial(world.object))
    assert len(wanted) > 10
    assert {each.trace_id.hex() for each in receiver.spans} == {trace_id(parse_trial(world.object).metadata.uid)}
    assert [(each.span_id.hex(), each.parent_span_id.hex(), each.name) for each in receiver.spans] == [
        (each.id, each.parent, each.name) for each in wanted
    ]
    assert [(each.start_time_unix_nano, each.end_time_unix_nano) for each in receiver.spans] == [
        (round(each.start * 1e9), round(each.end * 1e9)) for each in wanted
    ]
    attributes = {each.key: each.value for each in receiver.spans[0].attributes}
    assert attributes["multistep.reward.reward"].double_value == 0.5
    resource = {each.key: each.value.string_value for each in receiver.requests[0].resource_spans[0].resource.attributes}
    assert resource["service.name"] == "multistep"


async def test_model_requests_are_client_spans_below_their_step_with_the_names_of_the_conventions(
    receiver: Receiver, tmp_path: Path
) -> None:
    world, metrics = await ended(), Metrics()
    trial = parse_trial(world.object)
    uid = trial.metadata.uid
    to = connect_receiver(receiver.url)
    assert to is not None
    async with gateway_world(tmp_path) as here:
        ours = ModelGateway(here.admin, "", Keyring(here.settings.signing_keys_dir), get_sweep=None)  # type: ignore[arg-type]  # not used
        await here.call("chat", token=token_for("chat", uid=uid, step="a"))
        await here.call("messages", "-fail-400", token=token_for("messages", uid=uid, step="a"))
        await here.call("chat", token=token_for("chat", uid=uid, step="elsewhere"))
        await here.call("chat", token=token_for("chat", uid="of-another-trial"))
        traces = Traces(to, metrics, requests=ours.requests_of)
        traces.ended(trial)
        task = asyncio.create_task(traces.run())
        await until(lambda: receiver.spans)
        task.cancel()
        charged = here.model.entries[0]
    by_id = {each.span_id: each for each in receiver.spans}
    requests = [each for each in receiver.spans if each.kind == each.SPAN_KIND_CLIENT]
    assert [by_id[each.parent_span_id].name for each in requests] == ["step a", "step a", "attempt 1"]
    answered, refused, _ = ({each.key: each.value for each in span.attributes} for span in requests)
    assert requests[0].name == f"chat {MODELS['chat']}"
    assert {name: answered[name].string_value for name in answered if name.startswith("gen_ai") and "usage" not in name} == {
        gen_ai_attributes.GEN_AI_OPERATION_NAME: "chat",
        gen_ai_attributes.GEN_AI_PROVIDER_NAME: "openai",
        gen_ai_attributes.GEN_AI_REQUEST_MODEL: MODELS["chat"],
    }
    assert answered[gen_ai_attributes.GEN_AI_USAGE_INPUT_TOKENS].int_value == charged.input
    assert answered[gen_ai_attributes.GEN_AI_USAGE_OUTPUT_TOKENS].int_value == charged.output
    assert (refused["error.type"].string_value, requests[1].status.message) == ("400", "400")
    assert requests[0].end_time_unix_nano >= requests[0].start_time_unix_nano > 0


async def test_a_trace_is_sent_without_model_requests_if_the_gateway_stays_away(receiver: Receiver) -> None:
    asked = []

    async def away(trial: MultiStepTrial) -> list[ModelRequest]:
        asked.append(trial)
        raise GatewayUnavailable("it does not answer")

    world, metrics, to = await ended(), Metrics(), connect_receiver(receiver.url)
    assert to is not None
    traces = Traces(to, metrics, requests=away, sleep=no_pause)
    traces.ended(parse_trial(world.object))
    task = asyncio.create_task(traces.run())
    await until(lambda: receiver.spans)
    task.cancel()
    assert len(asked) == 6 and len(receiver.spans) == len(spans(parse_trial(world.object)))


@pytest.mark.parametrize("status", [408, 500])
async def test_a_trace_that_the_receiver_cannot_take_now_is_retried(receiver: Receiver, status: int) -> None:
    receiver.refuse, receiver.how, metrics, world = 2, status, Metrics(), await ended()
    to = connect_receiver(receiver.url)
    assert to is not None
    traces = Traces(to, metrics, sleep=no_pause)
    traces.ended(parse_trial(world.object))
    task = asyncio.create_task(traces.run())
    await until(lambda: counted(metrics, "sent"))
    task.cancel()
    assert (counted(metrics, "failed"), counted(metrics, "rejected"), len(receiver.requests)) == (2, 0, 1)


@pytest.mark.parametrize("status", [400, 401, 413])
async def test_a_trace_that_the_receiver_rejects_is_dropped_and_later_ones_are_sent(
    receiver: Receiver, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.refuse, receiver.how, metrics, world = 1, status, Metrics(), await ended()
    to = connect_receiver(receiver.url)
    assert to is not None
    traces = Traces(to, metrics, sleep=no_pause)
    for _ in range(2):
        traces.ended(parse_trial(world.object))
    task = asyncio.create_task(traces.run())
    await until(lambda: counted(metrics, "sent"))
    task.cancel()
    assert (counted(metrics, "failed"), counted(metrics, "rejected"), len(receiver.requests)) == (0, 1, 1)
    assert f"the OTLP receiver rejected this trial's trace with HTTP status {status}; the trace is dropped" in caplog.text


async def test_a_receiver_that_is_away_holds_nothing_up_and_too_many_are_left_out_and_counted() -> None:
    to, metrics, world = connect_receiver("http://127.0.0.1:1"), Metrics(), await ended()
    assert to is not None
    traces = Traces(to, metrics)
    for _ in range(MAX_WAITING + 3):
        traces.ended(parse_trial(world.object))
    assert metrics.registry.get_sample_value("multistep_traces_total", {"outcome": "dropped"}) == 3


def test_nothing_is_sent_without_the_setting_or_opentelemetrys_variables() -> None:
    assert connect_receiver("", {}) is None
    assert connect_receiver("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}) is not None


def test_without_the_extra_the_error_shows_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"multistep\[otel\]"):
        connect_receiver("http://collector:4318")
