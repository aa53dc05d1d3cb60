"""Rules for names and paths that a task's author chooses: steps, packages, artifacts, hosts."""

from __future__ import annotations

import re
import unicodedata
from ipaddress import ip_address, ip_network
from pathlib import PurePosixPath

from multistep.api.common.safe_paths import goes_up, leads_out

_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
_WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[1-9¹²³])", re.IGNORECASE)
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_SERVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOSTNAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_TOPOLOGY = re.compile(r"[1-9]\d*(?:x[1-9]\d*)+")
_NAME_BYTES = 255
_PORTS = {"http": ":80", "https": ":443"}


def step_name(name: str) -> str:
    """Return the name of a step if it is a portable directory name, as in Harbor 0.26, else raise ValueError."""
    if not name.strip() or name in (".", ".."):
        raise ValueError("must be a directory name, neither blank nor '.' nor '..'")
    if found := _FORBIDDEN.search(name):
        raise ValueError(f"must be one portable directory name, without {found.group()!r}")
    if name[-1] in ". ":
        raise ValueError("must not end in a dot or a space")
    if _WINDOWS_DEVICE.fullmatch(name.split(".")[0].rstrip(" ")):
        raise ValueError("must not be the name of a Windows device")
    if len(name.encode()) > _NAME_BYTES:
        raise ValueError(f"must have at most {_NAME_BYTES} bytes of UTF-8")
    return name


def folded(name: str) -> str:
    """Return the name in NFC and case-folded. The results are equal for names that some filesystems treat as equal."""
    return unicodedata.normalize("NFC", name).casefold()


def package_name(name: str) -> str:
    """Return the name if it has the form ``org/name``, else raise ValueError."""
    if not _PACKAGE.fullmatch(name) or ".." in name:
        raise ValueError("must be 'org/name' of letters, digits, '.', '_', '-', both starting with a letter or digit")
    return name


def service_name(name: str) -> str:
    """Return the name, stripped, if it is valid for a compose service, else raise ValueError."""
    if not _SERVICE.fullmatch(name.strip()):
        raise ValueError("must be a service name of letters, digits, '.', '_' and '-'")
    return name.strip()


def path_in_source(path: str) -> str:
    """Return the path if it has no '..', '//' or NUL, else raise ValueError."""
    if leads_out(path.lstrip("/")) or "//" in path:
        raise ValueError("must be a path without '..' and '//' in it")
    return path


def has_credentials(url: str) -> bool:
    """Return whether a URL contains a user name or password."""
    return "@" in re.sub(r"^[a-z0-9]+://", "", url).split("/", 1)[0]


def same_server(url: str, other: str) -> bool:
    """Return whether two URLs have the same scheme, host and port."""
    return _server(url) == _server(other)


def _server(url: str) -> tuple[str, str]:
    scheme, _, rest = url.partition("://")
    host, default = rest.split("/", 1)[0].lower(), _PORTS.get(scheme, "")
    return scheme, host.removesuffix(default) if default else host


def artifact_source(path: str) -> str:
    """Return the path of an artifact if it has no '..', as in Harbor 0.26, and no NUL, else raise ValueError."""
    if goes_up(path):
        raise ValueError("must not have a '..' in it")
    if "\0" in path:
        raise ValueError("must not have a NUL character in it")
    return path


def absolute_path(path: str) -> str:
    """Return the path if it is absolute and has no '..', else raise ValueError."""
    if not path.startswith("/"):
        raise ValueError("must start with /")
    return artifact_source(path)


def artifact_destination(path: str | None) -> str | None:
    """Return the path, or None for "". Raises ValueError unless the path is valid below artifacts/, as in Harbor 0.26."""
    if not path:
        return None
    if leads_out(path) or "\\" in path or not PurePosixPath(path).parts:
        raise ValueError("must be a relative path with '/' only, neither '.' nor with a '..' in it")
    if path.rstrip("/") == "manifest.json":
        raise ValueError("must not be manifest.json: this name is reserved for the list of artifacts")
    return path


def allowed_host(text: str) -> str:
    """Return the text in normal form if it is a host name (also after ``*.``), an IP address or a CIDR, else raise ValueError."""
    host = text.strip().lower().rstrip(".")
    try:
        if "/" in host or ":" in host:
            return _address(host)
    except ValueError:
        inside = re.sub(r"^[a-z][a-z0-9+.-]*://", "", host).partition("/")[0].rpartition("@")[2].partition(":")[0]
        hint = f": write the host only, {inside!r}" if _HOSTNAME.fullmatch(inside) and not _is_address(inside) else ""
        raise ValueError(f"{text!r} must be a CIDR or IP address; URLs, ports and paths cannot be allowed{hint}") from None
    name = host.removeprefix("*.")
    if not _HOSTNAME.fullmatch(name) or (name != host and _is_address(name)):
        raise ValueError(f"{text!r} must be a host name, '*.' and a host name, an IP address or a CIDR")
    return host


def tpu_topology(text: str) -> str:
    """Return the text if it has the form ``NxM`` or ``NxMxK``, else raise ValueError."""
    if not _TOPOLOGY.fullmatch(text.strip()):
        raise ValueError("must be like 2x4 or 2x2x1")
    return text.strip()


def _address(host: str) -> str:
    if "%" in host:
        raise ValueError
    return ip_network(host).compressed if "/" in host else ip_address(host).compressed


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
