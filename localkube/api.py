"""Send the API requests that starting a cluster needs, with the administrator's certificate."""

import http.client
import json
import ssl
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from localkube.config import Network
from localkube.errors import ApiError, Unreachable
from localkube.pki import Pki

_FIELD_MANAGER = "localkube"


@dataclass(frozen=True)
class Api:
    """A minimal API client. It opens a connection for each request, because it sends only a few requests."""

    network: Network
    pki: Pki
    timeout_seconds: float = 5.0

    def get(self, path: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.request("GET", path))
        return answer

    def apply(self, path: str, manifest: dict[str, Any]) -> None:
        """Create the object, or update it to match the manifest, by server-side apply."""
        query = f"?fieldManager={_FIELD_MANAGER}&force=true"
        self.request("PATCH", path + query, json.dumps(manifest), "application/apply-patch+yaml")

    def merge(self, path: str, changes: dict[str, Any]) -> None:
        """Update only the fields in ``changes`` by JSON merge patch. The value None deletes a field."""
        self.request("PATCH", path, json.dumps(changes), "application/merge-patch+json")

    def delete(self, path: str) -> None:
        """Delete the object if it exists."""
        try:
            self.request("DELETE", path)
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    def answers_ok(self, path: str) -> bool:
        """Return whether a health endpoint reports success."""
        try:
            self.request("GET", path)
        except (ApiError, Unreachable):
            return False
        return True

    def request(self, method: str, path: str, body: str | None = None, content_type: str = "application/json") -> str:
        try:
            return self._send(method, path, body, content_type)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"no answer from {self.network.api_url}: {error}") from error

    def _send(self, method: str, path: str, body: str | None, content_type: str) -> str:
        connection = http.client.HTTPSConnection(
            self.network.api_address,
            self.network.api_port,
            timeout=self.timeout_seconds,
            context=self._tls(),
        )
        try:
            connection.request(method, path, body, {"Content-Type": content_type, "Accept": "application/json"})
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        finally:
            connection.close()
        if response.status >= 400:
            raise ApiError(method, path, response.status, text)
        return text

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.pki.certificate(self.pki.ca)))
        context.load_cert_chain(self.pki.certificate("admin"), self.pki.key("admin"))
        return context
