"""Fetches a packed task from an http, https, s3 or gs URL. The trial's spec has the file's digest."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit

from multistep.api.trial.values import DENIED, DIGEST
from multistep.errors import SourceError
from multistep.sources.fetch.fetch_messages import FetchOrder, FetchRequest, FetchResult, FetchRules
from multistep.sources.fetch.http_client import (
    HttpClient,
    Response,
    basic_authorization,
    body_chunks,
    check_allowed_host,
    check_status,
    host_of,
    make_pool,
    matches_host,
)
from multistep.sources.fetch.output_file import OutputFile, entries_below, write_tar

_SIGNED_FOR = datetime.timedelta(minutes=10)
_S3 = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL")
_GS_KEY = "GOOGLE_SERVICE_ACCOUNT_KEY"


def fetch(order: FetchOrder, incoming: Path) -> FetchResult:
    """Fetch the file and check its digest. Raises SourceError."""
    request, rules = order.request, order.rules
    kept = order.cached(request.digest)
    if kept is not None:
        return kept
    what = request.location.partition("?")[0]
    response = response_to(request, rules)
    with OutputFile(incoming) as output:
        for data in body_chunks(response, what, rules.compressed_bytes):
            output.write(data)
        if output.digest != request.digest:
            raise SourceError(f"{what} has digest {output.digest}, not spec.task.url.digest = {request.digest}", reason=DIGEST)
    if request.path.strip("/") and not request.many:
        return _task_in(incoming / output.path.name, order, incoming)
    return FetchResult(request.digest, output.digest, output.path.name)


def response_to(request: FetchRequest, rules: FetchRules) -> Response:
    """Request the file, and return the response. The caller reads the body. Raises SourceError."""
    url, authorization = _request_to(request.location, request.credentials)
    what = request.location.partition("?")[0]
    check_allowed_host(host_of(url), rules.allowed_hosts)
    if url.startswith("http://") and request.credentials and not matches_host(host_of(url), rules.insecure_hosts):
        text = f"{what}: credentials are not sent without TLS, unless the operator's setting taskInsecureHosts has the host"
        raise SourceError(text, reason=DENIED)
    http = HttpClient(make_pool(request.credentials.get("ca.crt", "")))
    return check_status(http.send("GET", url, authorization=authorization), what)


def _task_in(whole: Path, order: FetchOrder, incoming: Path) -> FetchResult:
    """Write the task at the requested path in a downloaded archive to a new bundle, and delete the archive."""
    try:
        entries = entries_below(whole, order.request.path.strip("/"), order)
    finally:
        whole.unlink()
    with OutputFile(incoming) as output:
        write_tar(output, sorted(entries.items()))
    return FetchResult(order.request.digest, output.digest, output.path.name)


def _request_to(location: str, credentials: Mapping[str, str]) -> tuple[str, str]:
    """Return the HTTP URL to request, and the value of its Authorization header."""
    parts = urlsplit(location)
    if parts.scheme == "s3":
        return _s3(parts.netloc, parts.path.lstrip("/"), credentials), ""
    if parts.scheme == "gs":
        return _gs(parts.netloc, parts.path.lstrip("/"), credentials), ""
    if "token" in credentials:
        return location, f"Bearer {credentials['token'].strip()}"
    return location, basic_authorization(
        credentials["username"], credentials.get("password", "")
    ) if "username" in credentials else ""


def _s3(bucket: str, key: str, credentials: Mapping[str, str]) -> str:
    endpoint = credentials.get("AWS_ENDPOINT_URL", "").rstrip("/")
    if "AWS_ACCESS_KEY_ID" not in credentials:
        return f"{endpoint}/{bucket}/{quote(key)}" if endpoint else f"https://{bucket}.s3.amazonaws.com/{quote(key)}"
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    config = {name.lower(): credentials[name].strip() for name in _S3 if name in credentials}
    config.setdefault("aws_region", "us-east-1")
    try:
        store = S3Store(bucket, config=config, client_options={"allow_http": True})  # type: ignore[arg-type]
        return str(obstore.sign(store, "GET", key, _SIGNED_FOR))
    except (BaseError, ValueError) as error:
        raise SourceError(f"s3://{bucket}: the Secret's keys cannot be used: {type(error).__name__}", reason=DENIED) from None


def _gs(bucket: str, key: str, credentials: Mapping[str, str]) -> str:
    if _GS_KEY not in credentials:
        return f"https://storage.googleapis.com/{bucket}/{quote(key)}"
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import GCSStore

    try:
        store = GCSStore(bucket, config={"service_account_key": credentials[_GS_KEY]})
        return str(obstore.sign(store, "GET", key, _SIGNED_FOR))
    except (BaseError, ValueError) as error:
        raise SourceError(f"gs://{bucket}: the Secret's key cannot be used: {type(error).__name__}", reason=DENIED) from None
