"""The connection to the API server, with address, TLS and credentials. kubernetes.aio reads and renews them.

Requests and exec sessions share one ``Connection``, but use separate connection pools, so that thousands of open sessions do not
delay a GET.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from multistep.errors import Unavailable

if TYPE_CHECKING:  # the import takes a second and 24 MB, so commands that need no cluster do without it
    from kubernetes.aio.client import Configuration
    from kubernetes.aio.config.kube_config import KubeConfigLoader

REFRESH_SECONDS = 60.0
TLS_SHUTDOWN_SECONDS = 0.25
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Connection:
    """A connection to an API server. Create it with ``load``, and call ``close`` at the end."""

    def __init__(self, configuration: Configuration, *, loader: KubeConfigLoader | None, namespace: str) -> None:
        self._configuration = configuration
        self._loader = loader
        self.namespace = namespace
        """The namespace of the kubeconfig's context or of this process's pod, or "default"."""
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._refreshed_at = time.monotonic()
        self._refreshing = asyncio.Lock()
        self._read_configuration()

    @classmethod
    async def load(cls, *, kubeconfig: str | None = None, context: str | None = None) -> Self:
        """Create a connection from the first that exists of ``kubeconfig``, $KUBECONFIG, the pod's service account and
        ~/.kube/config. Raises Unavailable if it cannot be used."""
        from kubernetes.aio.client import Configuration
        from kubernetes.aio.config import load_incluster_config, load_kube_config

        configuration = Configuration()
        kubeconfig = kubeconfig or os.environ.get("KUBECONFIG", "")
        options = {"client_configuration": configuration, "persist_config": False}
        try:
            if not kubeconfig and context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
                load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
                return cls(configuration, loader=None, namespace=_mounted_namespace())
            file = kubeconfig or "~/.kube/config"
            with _plugin_errors() as errors:
                loader = await load_kube_config(config_file=file, context=context, **options)  # type: ignore[no-untyped-call]
            _check_credentials(loader, errors)
            namespace = loader.current_context["context"].get("namespace") or "default"
            return cls(configuration, loader=loader, namespace=namespace)
        except Exception as error:  # kubernetes.aio raises KeyError, TypeError, YAMLError, OSError and its own errors
            raise Unavailable(f"no usable cluster configuration: {error or type(error).__name__}") from error

    def _read_configuration(self) -> None:
        from kubernetes.aio.client.rest import RESTClientObject

        self.base_url: str = self._configuration.host.rstrip("/")
        self._proxy: str | None = self._configuration.proxy or _proxy_of_environment(self.base_url)
        # Strict mode is off, because cluster CAs created before 2024 often lack extensions that Python 3.13 then requires.
        self._configuration.disable_strict_ssl_verification = True
        self._ssl = RESTClientObject(self._configuration).ssl_context
        self._certificates = self._files()

    def _files(self) -> tuple[str | None, str | None, str | None]:
        return self._configuration.ssl_ca_cert, self._configuration.cert_file, self._configuration.key_file

    def session(self, purpose: str, *, trace: aiohttp.TraceConfig | None = None) -> aiohttp.ClientSession:
        """Return the connection pool for a purpose ("api" or "exec"). The number of its connections is not limited."""
        if purpose not in self._sessions:
            self._sessions[purpose] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                trace_configs=[trace] if trace else None,
            )
        return self._sessions[purpose]

    async def request_options(self) -> dict[str, Any]:
        """Return aiohttp's keyword arguments for a request, with current credentials, TLS and proxy."""
        await self.refresh()
        # In a pod, kubernetes.aio rereads the mounted token every minute.
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        headers = {"Authorization": token} if token else {}
        name = self._configuration.tls_server_name or None
        return {"headers": headers, "proxy": self._proxy, "ssl": self._ssl, "server_hostname": name}

    async def refresh(self, *, rejected: bool = False) -> None:
        """Renew credentials that expire (exec plugins, OIDC, token files). ``rejected`` tells that the server answered 401."""
        seen = self._refreshed_at
        loader = self._loader
        if loader is None or not (rejected or time.monotonic() - seen > REFRESH_SECONDS):
            return
        async with self._refreshing:
            if self._refreshed_at != seen:  # a concurrent call has renewed the credentials
                return
            if rejected:
                vars(loader).pop("exec_plugin_expiry", None)  # makes the loader run the plugin again
            vars(loader).pop("token", None)  # the configuration keeps the old token until the loader has a new one
            try:
                with _plugin_errors() as errors:
                    await loader.load_and_set(self._configuration)  # type: ignore[no-untyped-call]
                _check_credentials(loader, errors)
            except Exception as error:
                raise Unavailable(f"cannot renew the credentials for the API server: {error}") from error
            self._refreshed_at = time.monotonic()
            if self._certificates != self._files():
                self._read_configuration()

    async def close(self) -> None:
        """Close all connections, then wait until TLS has shut down in the background, as aiohttp's documentation recommends."""
        for session in self._sessions.values():
            await session.close()
        if self._sessions:
            await asyncio.sleep(TLS_SHUTDOWN_SECONDS)
        self._sessions.clear()


@contextmanager
def _plugin_errors() -> Iterator[list[str]]:
    """Collect the errors of a kubeconfig's exec plugins, which kubernetes.aio only logs."""
    errors: list[str] = []
    handler = logging.Handler()
    logger = logging.getLogger("kubernetes.aio.config.kube_config")
    handler.emit = lambda record: errors.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        yield errors
    finally:
        logger.removeHandler(handler)


def _check_credentials(loader: KubeConfigLoader, plugin_errors: list[str]) -> None:
    """Raise RuntimeError if an exec plugin failed and there are no other credentials, because requests would be anonymous."""
    known = vars(loader)
    if plugin_errors and not (known.get("token") or known.get("cert_file")):
        raise RuntimeError(f"the exec plugin {known['_user']['exec']['command']!r} failed: {plugin_errors[-1]}")


def _proxy_of_environment(url: str) -> str | None:
    """Return the proxy that HTTPS_PROXY and NO_PROXY set. This replaces aiohttp's trust_env, which reads ~/.netrc at every
    request."""
    parts = urlsplit(url)
    proxies = getproxies()
    if proxy_bypass(parts.netloc) or _in_networks(parts.hostname or "", proxies.get("no", "")):
        return None
    return proxies.get(parts.scheme)


def _in_networks(host: str, no_proxy: str) -> bool:
    """Return whether NO_PROXY has a network (CIDR) that contains the host. urllib does not check networks."""
    for entry in no_proxy.split(","):
        with suppress(ValueError):
            if ip_address(host) in ip_network(entry.strip(), strict=False):
                return True
    return False


def _mounted_namespace() -> str:
    try:
        return NAMESPACE_FILE.read_text().strip() or "default"
    except OSError:
        return "default"
