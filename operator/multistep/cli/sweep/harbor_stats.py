"""`multistep sweep report --as harbor`: the numbers that Harbor 0.26 shows for the sweep's jobs, from the trials' statuses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from multistep.api.common.plural import plural
from multistep.api.sweep.sweep import parse_sweep
from multistep.api.trial.trial import parse_status
from multistep.cli.terminal import clean, counts_text, print_json, print_out, print_warning, table
from multistep.client.connection import Cluster
from multistep.client.objects import existing_sweep
from multistep.client.results.job_directory import Entry, entry_of, job_name, job_stats
from multistep.client.sweep_trials import own_trials
from multistep.errors import UsageError
from multistep.store.harbor.job_files import result_facts

_SCORE: Final = "score"
_Counted = tuple[Entry, Mapping[str, Any]]  # a trial, and what JobStats reads of it


async def write_harbor_stats(cluster: Cluster, name: str, outputs: Sequence[str]) -> None:
    """Print Harbor's JobStats of each job of the sweep. outputs: the values of --output. Raises UsageError if the sweep does not
    exist or if an output is neither table nor json, and ClusterError."""
    if wrong := [each for each in outputs if each not in ("table", "json")]:
        raise UsageError(f"-o {wrong[0]}: with --as harbor it must be table or json")
    stats = await harbor_stats(cluster, name)
    for each in outputs:
        if each == "json":
            print_json(stats)
        else:
            print_out(*(line for job, numbers in stats.items() for line in _job(job, numbers)))


async def harbor_stats(cluster: Cluster, name: str) -> dict[str, Any]:
    """Return the JobStats that `multistep sweep results` would write, by the name of the job. Trials without results do not count
    as completed."""
    found = await existing_sweep(cluster, cluster.namespace, name)
    sweep = parse_sweep(found)
    scoring = sweep.spec.scoring
    trials = await own_trials(
        cluster, found, lambda trial: (entry_of(trial, scoring), result_facts(trial, parse_status(trial))), print_warning
    )
    by_kind: dict[str, list[_Counted]] = defaultdict(list, {"": []})
    for each in sorted(trials, key=lambda each: each[0].row.trial):
        by_kind[each[0].kind].append(each)
    return {
        job_name(sweep, kind): job_stats(
            sweep,
            kind,
            [entry for entry, _ in those],
            [each for each in those if each[0].row.state != "Active" and each[0].results is not None],
        )
        for kind, those in by_kind.items()
    }


def _job(name: str, stats: Mapping[str, Any]) -> list[Text | Table]:
    """Return the lines and the table of a job."""
    states = {state: stats[f"n_{state}_trials"] for state in ("errored", "running", "pending")}
    counts = ", ".join(
        [plural(stats["n_completed_trials"], "completed trial"), *(f"{n} {state}" for state, n in states.items() if n)]
    )
    ks = sorted({int(k) for each in stats["evals"].values() for k in each["pass_at_k"]})
    passes = [f"PASS@{k}" for k in ks]
    rows = table("EVAL", "TRIALS", "ERRORS", "MEAN", "SCORE", *passes, "EXCEPTIONS", numbers=("TRIALS", "ERRORS", *passes))
    for key, each in stats["evals"].items():
        own, means = _metrics(each["metrics"])
        chances = [_number(each["pass_at_k"].get(str(k))) for k in ks]
        raised = counts_text({clean(type_): len(names) for type_, names in each["exception_stats"].items()})
        rows.add_row(
            Text(clean(key)), str(each["n_trials"]), str(each["n_errors"]), means, _number(own), *chances, Text(raised or "-")
        )
    return [Text(clean(f"job {name}: {counts}")), rows]


def _metrics(metrics: Sequence[Mapping[str, float]]) -> tuple[float | None, str]:
    """Return Multistep's metric, the score, and Harbor's means of the rewards as text."""
    own = metrics[0].get(_SCORE) if metrics and metrics[0].keys() == {_SCORE} else None
    means = metrics[0 if own is None else 1 :]
    if not means:
        return own, "-"
    (only,) = means
    return own, ", ".join(_number(value) if len(only) == 1 else f"{clean(key)} {_number(value)}" for key, value in only.items())


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
