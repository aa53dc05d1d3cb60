"""Code shared by `multistep delete` and `multistep sweep delete`: the confirmation, and the deletion of objects."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from multistep.errors import UsageError

if TYPE_CHECKING:
    from multistep.cli.cluster import Cluster
    from multistep.kube.resources import Resource


def yes_option(function: Any) -> Any:
    """Add --yes."""
    return click.option("-y", "--yes", is_flag=True, help="Do not ask; required without a terminal.")(function)


def confirm(question: str, *, yes: bool) -> None:
    """Ask on the terminal, unless --yes is given. Raises UsageError if the user declines or no terminal exists."""
    if yes:
        return
    if not _is_terminal():
        raise UsageError("stdin is not a terminal, so the deletion cannot be confirmed: give --yes")
    if not click.confirm(question, err=True):
        raise UsageError("nothing was deleted")


def _is_terminal() -> bool:
    return sys.stdin.isatty()


async def delete_all(cluster: Cluster, resource: Resource, namespace: str, found: Sequence[Mapping[str, Any]]) -> None:
    """Delete the objects in ``found``, each only if its UID is unchanged."""
    from multistep.cli.terminal import print_err

    for each in found:
        name = each["metadata"]["name"]
        gone = not await cluster.delete(resource, namespace, name, uid=each["metadata"]["uid"])
        print_err(f"{name}: was deleted already" if gone else f"{name}: deleted")
