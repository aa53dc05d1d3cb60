"""Serve Git repositories over HTTP with git's own http-backend: ``git_server.py ADDRESS:PORT DIRECTORY``.

Paths below /git/ need no password, those below /private/ need a user and password; /files/ and /private-files/ serve plain files.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

USER, PASSWORD = "somebody", "git-password"


class Handler(BaseHTTPRequestHandler):
    """Handle one request. The environment variable SERVED names the directory to serve."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: object) -> None:
        print(format % args, "| authorization:", "Authorization" in self.headers, flush=True)

    def _serve(self) -> None:
        area, _, path = urlsplit(self.path).path.lstrip("/").partition("/")
        given = self.headers.get("Authorization", "")
        if area.startswith("private") and given != f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}":
            self._answer(401, {"WWW-Authenticate": 'Basic realm="git"'}, b"")
        elif area.endswith("files"):
            self._file(path)
        else:
            self._git(f"/{path}")

    def _file(self, path: str) -> None:
        file = self.root / path
        if file.is_file():
            self._answer(200, {}, file.read_bytes())
        else:
            self._answer(404, {}, b"")

    def _git(self, path: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        environment = os.environ | {
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "PATH_INFO": path,
            "QUERY_STRING": urlsplit(self.path).query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
        }
        done = subprocess.run(["git", "http-backend"], input=body, env=environment, capture_output=True, check=False)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines() if ": " in line)
        self._answer(int(headers.pop("Status", "200").split()[0]), headers, content)

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    @property
    def root(self) -> Path:
        return Path(os.environ["SERVED"])


def main() -> None:
    """Serve until terminated."""
    address, _, port = sys.argv[1].rpartition(":")
    os.environ["SERVED"] = sys.argv[2]
    ThreadingHTTPServer((address, int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
