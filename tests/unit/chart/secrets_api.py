"""A minimal API server that answers Helm's `lookup` of a Secret."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

_MISSING = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}


@contextmanager
def serving(secrets: Mapping[str, Mapping[str, str]], objects: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Serve Secrets and yield the server's URL.

    secrets: for each NAMESPACE/NAME, the base64 values of the Secret by key; objects: the chart's, whose kinds Helm 4 looks up.
    """
    known = _discovery({(each["apiVersion"], each["kind"]) for each in objects})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            code, found = (200, known[path]) if path in known else _answer(path, secrets)
            body = json.dumps(found).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing, so that the test's output stays short."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _discovery(kinds: set[tuple[str, str]]) -> dict[str, Mapping[str, Any]]:
    """Return the answers by path with which an API server lists these kinds, each an API version and a name."""
    versions = {version for version, _ in kinds} | {"v1"}
    named = [(*version.split("/"), version) for version in sorted(versions - {"v1"})]
    groups = [{"name": group, "versions": [{"groupVersion": both, "version": version}]} for group, version, both in named]
    found: dict[str, Mapping[str, Any]] = {
        "/version": {"major": "1", "minor": "35", "gitVersion": "v1.35.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups},
    }
    for version in versions:
        names = sorted(kind for of, kind in kinds if of == version)
        resources = [{"name": f"{kind.lower()}s", "namespaced": True, "kind": kind, "verbs": ["get"]} for kind in names]
        listed = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}
        found[f"/apis/{version}" if "/" in version else f"/api/{version}"] = listed
    return found


def _answer(path: str, secrets: Mapping[str, Mapping[str, str]]) -> tuple[int, Mapping[str, Any]]:
    match path.split("/")[3:]:
        case ["namespaces", namespace, "secrets", name] if (data := secrets.get(f"{namespace}/{name}")) is not None:
            owner = {"meta.helm.sh/release-name": "multistep", "meta.helm.sh/release-namespace": namespace}
            labels = {"app.kubernetes.io/managed-by": "Helm"}
            metadata = {"name": name, "namespace": namespace, "labels": labels, "annotations": owner}
            return 200, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
    return 404, _MISSING
