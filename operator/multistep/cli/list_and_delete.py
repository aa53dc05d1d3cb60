"""`list` and `delete` of trials and sweeps: options, tables as `kubectl get` prints them, confirmation, deletion."""

from __future__ import annotations

import functools
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from multistep.api.trial.values import agent_label
from multistep.cli.options import target_options
from multistep.errors import UsageError

if TYPE_CHECKING:
    from multistep.client.connection import Cluster
    from multistep.kube.resources import Resource

_CELL_CHARACTERS: Final = 253  # the length of the longest name of an object
F = TypeVar("F", bound=Callable[..., Any])
Object = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of the table. path: what is shown, as in ``field_of``; wide: whether only ``-o wide`` shows it."""

    head: str
    path: str
    wide: bool = False


@dataclass(frozen=True)
class ListOptions:
    """The options that list_options adds, apart from those of the target."""

    all_namespaces: bool = False
    selector: str = ""
    watch: bool = False
    output: str = "table"


def list_options(function: F) -> F:
    """Add the options of a list command. The function receives them as one ListOptions, and ``target``."""

    @functools.wraps(function)
    def with_options(*args: Any, all_namespaces: bool, selector: str, watch: bool, output: str, **given: Any) -> object:
        return function(*args, options=ListOptions(all_namespaces, selector, watch, output), **given)

    wrapped: Any = with_options
    for option in (
        click.option(
            "-o",
            "--output",
            type=click.Choice(["table", "wide", "json", "name"]),
            default="table",
            help="json: one document, with --watch one a line; name: names only.",
        ),
        target_options,
        click.option("-w", "--watch", is_flag=True, help="After the list, print each change until Ctrl-C."),
        click.option("-l", "--selector", default="", metavar="LABELS", help="Only objects with these labels, as for kubectl."),
        click.option("-A", "--all-namespaces", is_flag=True, help="Objects of all namespaces."),
    ):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


def phase_option(phases: Sequence[str], summary: str) -> Callable[[F], F]:
    """Return a decorator that adds --phase, which may be repeated."""
    choice = click.Choice(phases, case_sensitive=False)
    return click.option("--phase", "phases", multiple=True, metavar="PHASE", type=choice, help=summary)


@dataclass(frozen=True)
class Listing:
    """A list of objects of one kind. keep: reports whether to show an object; what: plural of the kind, for messages."""

    resource: Resource
    what: str
    columns: Sequence[Column]
    options: ListOptions
    keep: Callable[[Object], bool] = lambda _: True

    async def print_all(self, cluster: Cluster) -> None:
        """Print the list, and with --watch each later change. Raises ClusterError if the API server rejects a request."""
        from multistep.cli.terminal import print_err

        namespace = None if self.options.all_namespaces else cluster.namespace
        listed = [each async for each in _selected(cluster, self.resource, namespace, self.options.selector)]
        found = sorted(
            filter(self.keep, listed),
            key=lambda each: (each["metadata"]["namespace"], each["metadata"]["creationTimestamp"], each["metadata"]["name"]),
        )
        printer = _Printer(self.options, self._shown_columns())
        if not found and self.options.output in ("table", "wide"):
            matching = "matching " if listed or self.options.selector else ""
            print_err(f"no {matching}{self.what} {f'in namespace {namespace}' if namespace else 'in the cluster'}")
        if found or self.options.output == "json":
            printer.first(found)
        if self.options.watch:
            await self._follow(cluster, namespace, printer)

    async def _follow(self, cluster: Cluster, namespace: str | None, printer: _Printer) -> None:
        async with aclosing(cluster.watch(self.resource, namespace, label_selector=self.options.selector)) as events:
            async for event in events:
                if event.type != "DELETED" and self.keep(event.object):
                    printer.changed(event.object)

    def _shown_columns(self) -> list[Column]:
        namespaces = [Column("NAMESPACE", "metadata.namespace")] if self.options.all_namespaces else []
        wide = self.options.output == "wide"
        return [*namespaces, Column("NAME", "metadata.name"), *(each for each in self.columns if wide or not each.wide)]


class _Printer:
    """Prints objects in the chosen format. Prints a changed object only if its text changed."""

    def __init__(self, options: ListOptions, columns: Sequence[Column]) -> None:
        self._options, self._columns = options, columns
        self._printed: dict[str, object] = {}
        self._widths = [len(each.head) for each in columns]

    def first(self, found: Sequence[Object]) -> None:
        from multistep.cli.terminal import print_json, print_out, table

        for each in found:
            self._printed[each["metadata"]["uid"]] = self._content(each)
        if self._options.output == "json" and not self._options.watch:
            print_json({"apiVersion": "v1", "kind": "List", "items": list(found)})
        elif self._options.output in ("json", "name"):
            for each in found:
                self._print_object(each)
        else:
            rows = [self._cells(each, datetime.now(UTC)) for each in found]
            self._widths = [max(map(len, column)) for column in zip([each.head for each in self._columns], *rows, strict=True)]
            shown = table(*(each.head for each in self._columns))
            for row in rows:
                shown.add_row(*row)
            print_out(shown)

    def changed(self, found: Object) -> None:
        from multistep.cli.terminal import print_line

        content = self._content(found)
        if self._printed.get(found["metadata"]["uid"]) == content:
            return
        self._printed[found["metadata"]["uid"]] = content
        if self._options.output in ("json", "name"):
            self._print_object(found)
        else:
            row = self._cells(found, datetime.now(UTC))
            print_line("  ".join(cell.ljust(width) for cell, width in zip(row, self._widths, strict=True)).rstrip())

    def _print_object(self, found: Object) -> None:
        from multistep.cli.terminal import print_json, print_line

        if self._options.output == "json":
            print_json(found, indent=None)
        else:
            print_line(found["metadata"]["name"])

    def _content(self, found: Object) -> object:
        """Return the value that determines whether a changed object is printed again: with -o json its resourceVersion, with -o
        name its name, else its row without the age."""
        if self._options.output == "json":
            return found["metadata"].get("resourceVersion")
        return self._cells(found, None) if self._options.output != "name" else found["metadata"]["name"]

    def _cells(self, found: Object, now: datetime | None) -> list[str]:
        from multistep.cli.terminal import clean

        return [_age(found, now) if each.path == AGE else clean(_short(field_of(found, each.path))) for each in self._columns]


AGE = "age"
AGENT = "agent"  # spec.agent.name, or the class's name in spec.agent.importPath
REASON = "reason"  # the reason of the condition Ready
STEP = "step"  # numbers of finished steps and of the task's steps, and the current step, as ``1/3 build``
REWARD = "reward"  # the reward "reward", else all rewards with their names
FAILURE = "failure"  # class and reason of the failure


def field_of(found: Object, path: str) -> Any:
    """Return a value of an object; None or "" if it is unset. path: the field's names separated by dots, or a name above."""
    if path in _COMPUTED:
        return _COMPUTED[path](found)
    value: Any = found
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _agent(found: Object) -> str:
    return agent_label(field_of(found, "spec.agent.name"), field_of(found, "spec.agent.importPath"))


def _reason(found: Object) -> str | None:
    conditions = field_of(found, "status.conditions") or ()
    return next((each.get("reason") for each in conditions if each.get("type") == "Ready"), None)


def _step(found: Object) -> str:
    steps, names = field_of(found, "status.steps") or (), field_of(found, "status.taskSteps") or ()
    finished = sum(each.get("completionTime") is not None for each in steps)
    return " ".join(filter(None, (f"{finished}/{len(names)}" if names else "", field_of(found, "status.currentStep"))))


def _reward(found: Object) -> Any:
    rewards = field_of(found, "status.rewards") or {}
    return rewards.get("reward", ", ".join(f"{key}={value:.4g}" for key, value in sorted(rewards.items())))


def _failure(found: Object) -> str:
    return ": ".join(filter(None, (field_of(found, "status.failure.class"), field_of(found, "status.failure.reason"))))


_COMPUTED: Final[Mapping[str, Callable[[Object], Any]]] = {
    AGENT: _agent,
    REASON: _reason,
    STEP: _step,
    REWARD: _reward,
    FAILURE: _failure,
}


def _short(value: Any) -> str:
    text = "-" if value is None or value == "" else f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _CELL_CHARACTERS else f"{text[: _CELL_CHARACTERS - 3]}..."


def _age(found: Object, now: datetime | None) -> str:
    """Return an object's age, e.g. 119s, 2m, 47h or 2d; "" if ``now`` or the time of creation is None."""
    created = found["metadata"].get("creationTimestamp")
    if now is None or created is None:
        return ""
    seconds = max(0, int((now - datetime.fromisoformat(created)).total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


async def _selected(cluster: Cluster, resource: Resource, namespace: str | None, selector: str) -> AsyncIterator[Object]:
    from multistep.client.objects import crd_required

    with crd_required(resource):
        async with aclosing(cluster.iterate(resource, namespace, label_selector=selector)) as found:
            async for each in found:
                yield each


def any_of(values: Iterable[str]) -> Callable[[object], bool]:
    """Return a function that reports whether a value is one of ``values``, ignoring case; without ``values`` it accepts all."""
    known = {each.lower() for each in values}
    return lambda value: not known or str(value or "").lower() in known


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
