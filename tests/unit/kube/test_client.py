"""The API client against a small HTTP server: its requests, and its results for each response."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl

import aiohttp
import pytest
from aiohttp import web
from aiohttp.client_reqrep import ConnectionKey

from multistep.errors import AlreadyExists, ClusterError, Conflict, NotFound, Unavailable
from multistep.kube.cluster_protocols import Cluster
from multistep.kube.request_limit import RequestLimit
from multistep.kube.requests import no_answer_error, pause_seconds
from multistep.kube.resources import CRDS, PODS, TRIALS
from multistep.reconcile.trial.emit_events import MAX_NOTE_BYTES, cut_bytes, event_manifest
from tests.unit.kube.api_answers import POD, client_of, page, status

pytestmark = pytest.mark.usefixtures("no_pauses")


async def test_the_client_is_a_cluster() -> None:
    async with client_of({}) as (client, _):
        cluster: Cluster = client
        assert cluster is client


async def test_a_status_is_applied_with_uid_and_resource_version() -> None:
    async with client_of({"metadata": {"resourceVersion": "8"}}) as (client, server):
        answer = await client.apply_status(TRIALS, "ns", "t", uid="u", resource_version="7", status={"phase": "Running"})
    assert answer == {"metadata": {"resourceVersion": "8"}}
    method, path, _, body = server.seen[0]
    trials = "/apis/multistep.dev/v1alpha1/namespaces/ns/multisteptrials"
    assert (method, path) == ("PATCH", f"{trials}/t/status?fieldManager=multistep&force=true")
    assert json.loads(body) == {
        "apiVersion": "multistep.dev/v1alpha1",
        "kind": "MultiStepTrial",
        "metadata": {"name": "t", "namespace": "ns", "uid": "u", "resourceVersion": "7"},
        "status": {"phase": "Running"},
    }


REFUSALS: list[tuple[int, str, type[ClusterError]]] = [
    (400, "BadRequest", ClusterError),
    (403, "Forbidden", ClusterError),
    (404, "NotFound", NotFound),
    (409, "AlreadyExists", AlreadyExists),
    (409, "Conflict", Conflict),
    (422, "Invalid", ClusterError),
    (429, "TooManyRequests", Unavailable),
    (500, "InternalError", Unavailable),
    (503, "ServiceUnavailable", Unavailable),
]


@pytest.mark.parametrize(("code", "reason", "kind"), REFUSALS)
async def test_a_refusal_becomes_an_error_with_the_servers_words(code: int, reason: str, kind: type[ClusterError]) -> None:
    async with client_of(status(code, reason)) as (client, server):
        with pytest.raises(ClusterError, match="because") as caught:
            await client.create(POD)
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.reason) == (code, reason)
    assert len(server.seen) == (4 if code == 429 else 1)  # only 429 is retried: after a 5xx, the server may have created the pod


async def test_a_refusal_without_a_status_object_is_reported_as_it_came() -> None:
    async def page(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=403, text="<html>proxy says no</html>")

    async with client_of(page) as (client, _):
        with pytest.raises(ClusterError, match="proxy says no"):
            await client.get(PODS, "ns", "p")


async def test_retry_after_is_kept() -> None:
    async with client_of(status(429, Retry_After="7")) as (client, _):
        with pytest.raises(Unavailable) as caught:
            await client.create(POD)
    assert caught.value.retry_after == 7


async def test_a_write_that_was_refused_as_too_many_is_sent_again() -> None:
    async with client_of(status(429), status(429), POD) as (client, server):
        assert await client.create(POD) == POD
    assert [method for method, *_ in server.seen] == ["POST"] * 3


async def test_a_request_that_shall_come_much_later_is_given_up_for_now() -> None:
    async with client_of(status(429, Retry_After="3600")) as (client, server):
        with pytest.raises(Unavailable) as caught:
            await client.get(PODS, "ns", "p")
    assert caught.value.retry_after == 3600
    assert len(server.seen) == 1


async def test_an_event_is_sent_once_whatever_the_server_answers() -> None:
    async with client_of(status(429)) as (client, server):
        with pytest.raises(Unavailable):
            await client.create(event_manifest(POD, reason="R", message="m"))
    assert len(server.seen) == 1


async def test_requests_wait_at_the_gate_but_leases_do_not() -> None:
    gate = RequestLimit(1)
    gate._closed_until = asyncio.get_running_loop().time() + 60
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l", "namespace": "ns"}}
    async with client_of(lease, limit=gate) as (client, _):
        assert await client.create(lease) == lease
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.get(PODS, "ns", "p")


async def test_a_refused_exec_holds_all_requests_up_and_one_that_its_node_does_not_answer_does_not() -> None:
    for code, allowed in ((429, 8), (502, 64)):
        gate = RequestLimit()
        async with client_of(status(code), limit=gate) as (client, _):
            with pytest.raises(Unavailable):
                await client.open_exec("ns", "p", "main", ["true"])
        assert gate.allowed == allowed


async def test_a_read_is_tried_again_while_the_server_is_unavailable() -> None:
    async with client_of(status(503), status(429), POD) as (client, server):
        assert await client.get(PODS, "ns", "p") == POD
    assert len(server.seen) == 3


async def test_a_read_is_given_up_after_a_while() -> None:
    async with client_of(status(503)) as (client, server):
        with pytest.raises(Unavailable):
            await client.get(PODS, "ns", "p")
    assert len(server.seen) == 4


async def test_a_server_that_hangs_is_unavailable() -> None:
    async def hang(_request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(5)
        return web.Response()

    async with client_of(hang, timeout_seconds=0.05) as (client, _):
        with pytest.raises(Unavailable, match="no answer"):
            await client.create(POD)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OSError(111, "Connect call failed ('127.0.0.1', 9)"), "Connection refused"),
        (OSError("Multiple exceptions: [Errno 111], [Errno 113]"), "Multiple exceptions: [Errno 111], [Errno 113]"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), "[SSL: WRONG_VERSION_NUMBER] wrong version number"),
    ],
)
def test_a_failed_connection_names_server_and_cause(error: OSError, cause: str) -> None:
    key = ConnectionKey("api.example", 6443, True, True, None, None, None)
    text = str(no_answer_error("get /x", aiohttp.ClientConnectorError(key, error)))
    assert text.startswith("get /x: no answer from the API server at api.example:6443: ") and text.endswith(cause)
    assert "0x" not in text


def test_a_failed_connection_without_a_server_names_the_error() -> None:
    key = ConnectionKey("api.example", 6443, True, True, None, None, None)
    certificate = aiohttp.ClientConnectorCertificateError(key, ssl.SSLCertVerificationError("self-signed certificate"))
    assert "api.example:6443: " in str(no_answer_error("get /x", certificate)) and "self-signed" in str(
        no_answer_error("get /x", certificate)
    )
    assert str(no_answer_error("get /x", TimeoutError())) == "get /x: no answer from the API server: TimeoutError"
    assert str(no_answer_error("get /x", OSError("broken"))) == "get /x: no answer from the API server: OSError: broken"


async def test_an_answer_that_is_no_json_is_no_answer() -> None:
    async def page(_request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>")

    async with client_of(page) as (client, _):
        with pytest.raises(Unavailable):
            await client.create(POD)


async def test_requests_are_counted() -> None:
    seen: list[tuple[str, str, int]] = []
    observe = lambda verb, plural, code, seconds: seen.append((verb, plural, code))  # noqa: E731
    async with client_of(POD, status(404), POD, observe=observe) as (client, _):
        await client.get(PODS, "ns", "p")
        assert not await client.delete(PODS, "ns", "p")
        await client.create(POD)
    assert seen == [("get", "pods", 200), ("delete", "pods", 404), ("create", "pods", 200)]


async def test_a_delete_names_the_uid_it_means() -> None:
    async with client_of({}) as (client, server):
        assert await client.delete(PODS, "ns", "p", uid="u", grace_period_seconds=0)
    assert json.loads(server.seen[0][3]) == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Background",
        "preconditions": {"uid": "u"},
        "gracePeriodSeconds": 0,
    }


async def test_a_list_is_read_page_by_page() -> None:
    async with client_of(page(["a"], "next"), page(["b"])) as (client, server):
        trials = await client.list_all(TRIALS, label_selector="x=y")
    assert [each["metadata"]["name"] for each in trials] == ["a", "b"]
    assert trials[0]["kind"] == "MultiStepTrial"
    assert server.seen[0][1] == "/apis/multistep.dev/v1alpha1/multisteptrials?labelSelector=x%3Dy&limit=500"
    assert server.seen[1][1].endswith("&continue=next")


async def test_a_list_whose_next_page_expired_restarts() -> None:
    async with client_of(page(["a"], "next"), status(410, "Expired"), page(["a"], "new"), page(["b"])) as (client, _):
        assert len(await client.list_all(PODS, "ns")) == 2


async def test_an_event_is_bounded_and_refers_to_its_object() -> None:
    trial = {"apiVersion": TRIALS.api_version, "kind": TRIALS.kind}
    async with client_of({}) as (client, server):
        whole = {**trial, "metadata": {"name": "t", "namespace": "ns", "uid": "u", "resourceVersion": "5"}}
        await client.create(event_manifest(whole, reason="StepFinished", message="é" * 2000))
        reference = {**trial, "name": "t", "namespace": "ns", "uid": "u"}
        await client.create(event_manifest(reference, reason="R", message="m", type="Warning"))
    first, second = (json.loads(body) for *_, body in server.seen)
    assert server.seen[0][:2] == ("POST", "/apis/events.k8s.io/v1/namespaces/ns/events?fieldManager=multistep")
    assert first["regarding"] == second["regarding"] == {**trial, "name": "t", "namespace": "ns", "uid": "u"}
    assert len(first["note"].encode()) <= MAX_NOTE_BYTES
    assert first["metadata"]["name"].startswith("t.")
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert (second["type"], second["note"]) == ("Warning", "m")


@pytest.mark.parametrize(("text", "limit", "cut"), [("abc", 3, "abc"), ("abcd", 3, "…"), ("ééé", 5, "é…")])
def test_texts_are_cut_by_bytes(text: str, limit: int, cut: str) -> None:
    assert cut_bytes(text, limit) == cut


async def test_any_kind_is_applied_once_its_plural_is_known() -> None:
    kinds = {
        "resources": [
            {"name": "widgets", "kind": "Widget", "namespaced": False},
            {"name": "widgets/status", "kind": "Widget", "namespaced": False},
        ]
    }
    widget = {"apiVersion": "x.io/v1", "kind": "Widget", "metadata": {"name": "w"}}
    async with client_of(kinds, widget, field_manager="multistep-cli") as (client, server):
        await client.apply(widget)
        await client.apply(widget, dry_run=True)
    assert [path for _, path, *_ in server.seen] == [
        "/apis/x.io/v1",
        "/apis/x.io/v1/widgets/w?fieldManager=multistep-cli&force=true",
        "/apis/x.io/v1/widgets/w?fieldManager=multistep-cli&dryRun=All&force=true",
    ]


async def test_a_kind_the_cluster_does_not_serve_is_named() -> None:
    async with client_of(status(404)) as (client, _):
        with pytest.raises(NotFound, match=r"no Widget of x.io/v1: check that its CRD is installed"):
            await client.apply({"apiVersion": "x.io/v1", "kind": "Widget", "metadata": {"name": "w"}})


async def test_an_object_without_a_namespace_goes_to_the_clients() -> None:
    async with client_of(POD) as (client, server):
        await client.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}})
        await client.apply({"apiVersion": CRDS.api_version, "kind": CRDS.kind, "metadata": {"name": "c"}})
    assert server.seen[0][1].startswith("/api/v1/namespaces/default/pods")
    assert server.seen[1][1].startswith("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/c")


async def test_a_body_is_streamed_and_a_cut_one_is_no_whole_one() -> None:
    async def body(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "300000"})
        await response.prepare(request)
        whole = len(server.seen) == 1
        await response.write(b"x" * (300_000 if whole else 200_000))
        if not whole and request.transport is not None:
            request.transport.close()
        return response

    async with client_of(body) as (client, server):
        assert sum([len(chunk) async for chunk in client.raw_stream("/api/v1/x:80/proxy/f?a=b+c")]) == 300_000
        assert server.seen[0][1] == "/api/v1/x:80/proxy/f?a=b+c"
        with pytest.raises(Unavailable):
            async for _ in client.raw_stream("/api/v1/x:80/proxy/f"):
                pass


def test_pauses_grow_and_stay_bounded() -> None:
    assert 0.1 < pause_seconds(1) < 1
    assert pause_seconds(1, 3.0) == 3.0
    assert pause_seconds(50) == pause_seconds(1, 3600.0) == 10.0


async def test_an_empty_list_of_metadata_is_empty_though_it_has_no_items() -> None:
    async with client_of({"metadata": {"resourceVersion": "9"}, "items": None}) as (client, _):
        assert await client.list_metadata(TRIALS) == []


async def test_metadata_is_asked_for_alone_and_returned_without_managed_fields() -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.headers["Accept"])
        items = [{"metadata": {"name": "p", "managedFields": [{}]}}]
        return web.json_response({"metadata": {"resourceVersion": "9"}, "items": items})

    async with client_of(answer) as (client, _):
        assert await client.list_metadata(PODS, "ns", label_selector="a") == [{"name": "p"}]
    assert asked == ["application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"]


async def test_an_object_is_replaced_as_a_whole_over_its_version() -> None:
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "l", "namespace": "ns", "resourceVersion": "7"},
    }
    async with client_of(lease) as (client, server):
        await client.replace(lease)
    method, path, _, body = server.seen[0]
    assert (method, path) == ("PUT", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l")
    assert json.loads(body) == lease
