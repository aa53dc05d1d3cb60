"""Reads the current cluster from the kubeconfig, without a Kubernetes client, to find out how images are loaded into it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_LOCALKUBE = re.compile(r"//10\.243\.(\d+)\.2:")
_KIND_PREFIX = "kind-"
_K3S_SERVER = "https://127.0.0.1:6443"


@dataclass(frozen=True)
class CurrentCluster:
    """A context and its API server."""

    context: str
    server: str

    @property
    def kind(self) -> str | None:
        """Return the name of the cluster, if `kind` created it, else None."""
        return self.context.removeprefix(_KIND_PREFIX) if self.context.startswith(_KIND_PREFIX) else None

    @property
    def localkube(self) -> str | None:
        """Return the number of the cluster, if localkube created it, else None."""
        found = _LOCALKUBE.search(self.server)
        return found.group(1) if found else None

    @property
    def k3s(self) -> bool:
        """Return whether this machine's k3s runs the cluster."""
        return self.server == _K3S_SERVER and shutil.which("k3s") is not None

    @property
    def local(self) -> bool:
        """Return whether images of this machine can be loaded into the cluster, so that its nodes need no registry."""
        return bool(self.localkube or self.kind or self.k3s)


def current_cluster(kubeconfig: str | None = None, context: str | None = None) -> CurrentCluster | None:
    """Return the cluster that commands use; None if no kubeconfig names one."""
    documents = list(_documents(kubeconfig or os.environ.get("KUBECONFIG") or _default()))
    wanted = context or next((str(each["current-context"]) for each in documents if each.get("current-context")), None)
    if wanted is None:
        return None
    cluster = _named(documents, "contexts", wanted, "context").get("cluster")
    return CurrentCluster(wanted, str(_named(documents, "clusters", cluster, "cluster").get("server", "")))


def fault(kubeconfig: str | None = None, context: str | None = None) -> str:
    """Return what is wrong with the kubeconfig: it or the context does not exist, or a file cannot be read; "" if it has none of
    these faults."""
    given = kubeconfig or os.environ.get("KUBECONFIG")
    found = []
    for path in filter(None, (given or _default()).split(os.pathsep)):
        try:
            found.append(yaml.safe_load(Path(path).read_text()))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, yaml.YAMLError) as error:
            return f"kubeconfig {path} cannot be read: {error.strerror if isinstance(error, OSError) else _one_line(error)}"
    if not found:
        return f"kubeconfig {given} does not exist" if given else "no kubeconfig names a cluster"
    documents = [each for each in found if isinstance(each, Mapping)]
    if context and not _named(documents, "contexts", context, "context"):
        known = [str(entry.get("name")) for each in documents for entry in _entries(each, "contexts")]
        return f"the kubeconfig has no context {context!r}, only {', '.join(map(repr, known)) or 'none'}"
    return ""


def _default() -> str:
    return str(Path.home() / ".kube" / "config")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _documents(paths: str) -> Iterator[Mapping[str, Any]]:
    for path in paths.split(os.pathsep):
        try:
            document = yaml.safe_load(Path(path).read_text())
        except (OSError, ValueError, yaml.YAMLError):
            continue  # an unreadable kubeconfig is reported later, by the connection to the cluster
        if isinstance(document, Mapping):
            yield document


def _named(documents: list[Mapping[str, Any]], section: str, name: object, key: str) -> Mapping[str, Any]:
    for document in documents:
        for entry in _entries(document, section):
            if entry.get("name") == name and isinstance(entry.get(key), Mapping):
                found: Mapping[str, Any] = entry[key]
                return found
    return {}


def _entries(document: Mapping[str, Any], section: str) -> list[Mapping[str, Any]]:
    entries = document.get(section)
    return [each for each in entries if isinstance(each, Mapping)] if isinstance(entries, list) else []
