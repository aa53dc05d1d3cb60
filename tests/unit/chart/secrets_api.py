"""A minimal API server that answers Helm's `lookup` of a Secret."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

_KIND = {"name": "secrets", "singularName": "secret", "namespaced": True, "kind": "Secret", "verbs": ["get"]}
_RESOURCES = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": [_KIND]}
_VERSION = {"major": "1", "minor": "35", "gitVersion": "v1.35.0"}
_MISSING = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}


@contextmanager
def serving(secrets: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Serve Secrets and yield the server's URL. secrets: for each NAMESPACE/NAME, the base64 values of the Secret by key."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, found = _answer(self.path.partition("?")[0], secrets)
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


def _answer(path: str, secrets: Mapping[str, Mapping[str, str]]) -> tuple[int, Mapping[str, Any]]:
    if path == "/version":
        return 200, _VERSION
    if path == "/api/v1":
        return 200, _RESOURCES
    match path.split("/")[3:]:
        case ["namespaces", namespace, "secrets", name] if (data := secrets.get(f"{namespace}/{name}")) is not None:
            metadata = {"name": name, "namespace": namespace}
            return 200, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
    return 404, _MISSING
