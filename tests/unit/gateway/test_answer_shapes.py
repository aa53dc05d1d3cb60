"""Each recorded shape of an answer has its verdict, through the real gateway."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from multistep.gateway.accounting.step_usage import StepUsage
from tests.support.model_answers import Api
from tests.unit.gateway.answer_shapes import ANSWERS, REQUESTS, SHAPES, Shape, Verdict
from tests.unit.gateway.test_usage import APIS
from tests.unit.gateway.world import PROVIDERS, UPSTREAM_PATHS, World, step_of, token_for, world


async def answer_by_number(request: web.Request) -> web.Response:
    """Return the shape whose number is the requested model's."""
    asked = request.path + (await request.read()).decode()
    found = re.search(r"m-(\d+)", asked)
    assert found is not None
    shape = SHAPES[int(found[1])]
    body = shape.body.replace(b"NAME", found[0].encode())
    return web.Response(status=shape.status, body=body, headers={"Content-Type": "application/json", **shape.headers})


def verdict(usage: StepUsage) -> Verdict:
    if usage.last_failure is not None:
        return "configuration" if usage.last_failure.kind == "Configuration" else "provider"
    if usage.fault is not None:
        return "provider, if the agent fails"
    return "answered"


async def judged(it: World, number: int, shape: Shape) -> Verdict:
    """Send a request that gets this answer, and return the step's verdict."""
    token = token_for(shape.api, uid=f"uid-{number}")
    await it.send(shape.api, f"m-{number}", stream="Content-Type" in shape.headers, token=token)
    usage = await it.admin.close(step_of(f"uid-{number}"))
    if shape.usage is not None:
        counted = (usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.incomplete)
        assert counted == (shape.usage.input, shape.usage.cached, shape.usage.output, 0), shape
    return verdict(usage)


@pytest.mark.parametrize("api", APIS)
async def test_each_shape_of_an_answer_has_its_verdict(tmp_path: Path, api: Api) -> None:
    app, provider = web.Application(), PROVIDERS[api]
    app.router.add_post("/{path:.*}", answer_by_number)
    shapes = {number: shape for number, shape in enumerate(SHAPES) if shape.api == api}
    async with TestServer(app) as server, world(tmp_path, register=False, hold_seconds=5.0) as it:
        url = str(server.make_url(UPSTREAM_PATHS[provider])).rstrip("/")
        await it.admin.register(provider, it.credential(provider, base_url=url))
        found = await asyncio.gather(*(judged(it, number, shape) for number, shape in shapes.items()))
    expected = {number: "answered" if shape.verdict == "request" else shape.verdict for number, shape in shapes.items()}
    wrong = {f"{shapes[n].source}: {shapes[n].body[:120]!r}": (each, expected[n]) for n, each in zip(shapes, found, strict=True)}
    assert {shape: each for shape, each in wrong.items() if each[0] != each[1]} == {}
    assert {shape.verdict for shape in (*REQUESTS, *ANSWERS)} == {"request", "answered"}
