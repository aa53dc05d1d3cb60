"""`multistep list` and `multistep sweep list`: tables as `kubectl get` prints them, names or JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from multistep.api.trial.values import OUTCOMES, SWEEP_PHASES, TRIAL_PHASES, agent_label
from multistep.cli.completion import complete_sweeps
from multistep.cli.options import as_one_argument, connected

if TYPE_CHECKING:
    from multistep.client.connection import Cluster
    from multistep.kube.resources import Resource

_TRIALS_EPILOG = """\b
Examples:
  multistep list
  multistep list --sweep nightly --outcome Excluded
  multistep list -A --phase Running --watch
  multistep list -l team=evals -o name | xargs multistep stop
  multistep list -o json | jq '.items[].status.rewards'

The columns are those of `kubectl get mst`. PHASE is Pending, Running, Suspended, Complete or Failed; OUTCOME is Passed, NotPassed,
GateNotMet, AgentError, VerifierError, TaskError, Unverified or Excluded (docs/reference/trial-reference.md). Case is ignored.
"""

_SWEEPS_EPILOG = """\b
Examples:
  multistep sweep list
  multistep sweep list -A --phase Running --watch
  multistep sweep list -o name | xargs -n 1 multistep sweep status

The columns are those of `kubectl get tsw`. PHASE is Pending, Running, Suspended, Halting, Complete or Failed; case is ignored.
"""

_CELL_CHARACTERS: Final = 253  # maximum length of an object's name
AGE = "age"
AGENT = "agent"  # spec.agent.name, or the class's name in spec.agent.importPath
REASON = "reason"  # the reason of the condition Ready
STEP = "step"  # numbers of finished steps and of the task's steps, and the current step, as ``1/3 build``
REWARD = "reward"  # the reward "reward", else all rewards with their names
FAILURE = "failure"  # class and reason of the failure
Object = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of the table."""

    head: str
    path: str
    """The value to show, as in ``field_of``."""
    wide: bool = False
    """Whether only ``-o wide`` shows it."""


TRIAL_COLUMNS: Final = (
    Column("TASK", "status.task"),
    Column("AGENT", AGENT),
    Column("PHASE", "status.phase"),
    Column("STEP", STEP),
    Column("OUTCOME", "status.outcome"),
    Column("SCORE", "status.score"),
    Column("REWARD", REWARD),
    Column("FAILURE", FAILURE),
    Column("AGE", AGE),
    Column("POD", "status.podName", wide=True),
    Column("NODE", "status.nodeName", wide=True),
    Column("REASON", REASON, wide=True),
)
SWEEP_COLUMNS: Final = (
    Column("PHASE", "status.phase"),
    Column("TOTAL", "status.trials.total"),
    Column("FINISHED", "status.trials.finished"),
    Column("ACTIVE", "status.trials.active"),
    Column("FAILED", "status.trials.failed"),
    Column("SCORE", "status.score"),
    Column("AGE", AGE),
    Column("CREATED", "status.trials.created", wide=True),
    Column("COUNTED", "status.trials.counted", wide=True),
    Column("RETRIED", "status.trials.retried", wide=True),
    Column("POD-HOURS", "status.podHours", wide=True),
    Column("REASON", REASON, wide=True),
)


@dataclass(frozen=True)
class ListOptions:
    """The options of a list command, apart from those of the cluster and those that select objects by their status."""

    all_namespaces: bool = False
    selector: str = ""
    watch: bool = False
    output: str = "table"


list_options = as_one_argument(
    "options",
    ListOptions,
    ("all_namespaces", "selector", "watch", "output"),
    click.option("-A", "--all-namespaces", is_flag=True, help="Objects of all namespaces."),
    click.option("-l", "--selector", default="", metavar="LABELS", help="Only objects with these labels, as for kubectl."),
    click.option("-w", "--watch", is_flag=True, help="After the list, print each change until Ctrl-C."),
    connected,
    click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "wide", "json", "name"]),
        default="table",
        help="json: one document, with --watch one a line; name: names only.",
    ),
)


def _status_option(name: str, values: str, choices: Sequence[str], summary: str) -> Callable[[Any], Any]:
    """Return a decorator that adds an option to select objects by their status, which may be repeated."""
    choice = click.Choice(choices, case_sensitive=False)
    return click.option(f"--{name}", values, multiple=True, metavar=name.upper(), type=choice, help=summary)


@click.command("list", epilog=_TRIALS_EPILOG)
@click.option("--sweep", metavar="SWEEP", shell_complete=complete_sweeps, help="Only trials of this sweep.")
@_status_option("phase", "phases", TRIAL_PHASES, "Only trials in this phase; repeatable.")
@_status_option("outcome", "outcomes", OUTCOMES, "Only trials with this outcome; repeatable.")
@list_options
async def list_(cluster: Cluster, sweep: str | None, phases: Sequence[str], outcomes: Sequence[str], options: ListOptions) -> None:
    """List trials."""
    from multistep.api.common.labels import SWEEP
    from multistep.kube.resources import TRIALS

    if sweep is not None:
        options = replace(options, selector=",".join(filter(None, (f"{SWEEP}={sweep}", options.selector))))
    await Listing(TRIALS, "trials", TRIAL_COLUMNS, options, phases, outcomes).print_all(cluster)


@click.command("list", epilog=_SWEEPS_EPILOG)
@_status_option("phase", "phases", SWEEP_PHASES, "Only sweeps in this phase; repeatable.")
@list_options
async def list_sweeps(cluster: Cluster, phases: Sequence[str], options: ListOptions) -> None:
    """List sweeps."""
    from multistep.kube.resources import SWEEPS

    await Listing(SWEEPS, "sweeps", SWEEP_COLUMNS, options, phases).print_all(cluster)


@dataclass(frozen=True)
class Listing:
    """A list of objects of one kind."""

    resource: Resource
    plural: str
    """Plural of the kind, for messages."""
    columns: Sequence[Column]
    options: ListOptions
    phases: Sequence[str] = ()
    """The phases of the objects to show, in upper or lower case. (): all phases."""
    outcomes: Sequence[str] = ()
    """The outcomes of the objects to show. (): all outcomes."""

    def shows(self, found: Object) -> bool:
        """Return whether the object has one of the phases and one of the outcomes."""
        phase, outcome = field_of(found, "status.phase") or "Pending", field_of(found, "status.outcome")
        return _is_one_of(phase, self.phases) and _is_one_of(outcome, self.outcomes)

    async def print_all(self, cluster: Cluster) -> None:
        """Print the list, and with --watch each later change. Raises ClusterError if the API server rejects a request."""
        from multistep.cli.terminal import print_err

        namespace = None if self.options.all_namespaces else cluster.namespace
        listed = [each async for each in _selected(cluster, self.resource, namespace, self.options.selector)]
        found = sorted(
            filter(self.shows, listed),
            key=lambda each: (each["metadata"]["namespace"], each["metadata"]["creationTimestamp"], each["metadata"]["name"]),
        )
        printer = _Printer(self.options, self._shown_columns())
        if not found and self.options.output in ("table", "wide"):
            matching = "matching " if listed or self.options.selector else ""
            print_err(f"no {matching}{self.plural} {f'in namespace {namespace}' if namespace else 'in the cluster'}")
        if found or self.options.output == "json":
            printer.first(found)
        if self.options.watch:
            await self._follow(cluster, namespace, printer)

    async def _follow(self, cluster: Cluster, namespace: str | None, printer: _Printer) -> None:
        async with aclosing(cluster.watch(self.resource, namespace, label_selector=self.options.selector)) as events:
            async for event in events:
                if event.type != "DELETED" and self.shows(event.object):
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


def field_of(found: Object, path: str) -> Any:
    """Return a value of an object; None or "" if it is unset. path: the field's names separated by dots, or a name such as AGE."""
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


def _is_one_of(value: object, wanted: Sequence[str]) -> bool:
    return not wanted or str(value or "").lower() in (each.lower() for each in wanted)
