"""`multistep logs`: prints the output of a trial's phases, of a service, or of the builds of images."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from multistep.api.trial.values import PRINTING
from multistep.cli.completion import complete_steps
from multistep.cli.options import connected, trial_argument

if TYPE_CHECKING:
    from multistep.api.trial.status import TrialStatus
    from multistep.cli.trial.output_formats import Form, Wanted
    from multistep.cli.trial.read_output import Reader
    from multistep.client.connection import Cluster

_EPILOG = """\b
Examples:
  multistep logs my-task-oracle-x7k2p
  multistep logs -f my-task-oracle-x7k2p
  multistep logs my-task-oracle-x7k2p --step 2 --phase agent --tail 20
  multistep logs -f my-task-oracle-x7k2p --service db
  multistep logs my-task-oracle-x7k2p --step implement --phase verifier > test.log
  multistep logs -f --build my-task-oracle-x7k2p

While the pod exists, the output is read from its runner, which needs the right to exec into it (get and create on pods/exec);
afterwards it is read from the results. Control characters are escaped, so that no output can control a terminal, also not at
the end of a pipe; on a terminal, lines are cut at 16384 characters. The JSON in which Claude Code reports what it does becomes
text. --raw prints the original bytes. -o json prints one JSON object per line.

\b
Exit codes:
  0  the output was shown; with -f, the trial completed without an exception or a failed gate
  1  with -f: the trial completed, but a step raised an exception or a gate failed
  2  the trial, step or attempt does not exist; no right to read the logs; or bad usage
  3  with -f: the trial failed or was deleted
  4  the cluster could not be reached
"""


@click.command(epilog=_EPILOG)
@trial_argument
@click.option("--step", metavar="N|NAME", shell_complete=complete_steps, help="Only this step: its number, from 1, or its name.")
@click.option("--phase", type=click.Choice(PRINTING), help="Only this phase.")
@click.option("--service", metavar="NAME", help="Output of this service of the task's compose file, instead of the phases' output.")
@click.option(
    "--attempt",
    type=click.IntRange(min=1),
    metavar="N",
    help="An earlier attempt; default: the latest, with -f also all later ones.",
)
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the trial finishes, across steps and attempts.")
@click.option(
    "--tail", type=click.IntRange(min=0), metavar="N", help="Start with the last N lines of each phase (of its last MiB)."
)
@click.option("--build", is_flag=True, help="The logs of the builds of the trial's images; with -f until the images exist.")
@click.option("--raw", is_flag=True, help="Write the original bytes, with control characters.")
@connected
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="json: one object per line.")
async def logs(
    cluster: Cluster,
    trial: str,
    step: str | None,
    phase: str | None,
    service: str | None,
    attempt: int | None,
    follow: bool,
    tail: int | None,
    build: bool,
    raw: bool,
    output: str,
) -> int:
    """Show the output of the phases of TRIAL, while it runs and afterwards."""
    from multistep.cli.exit_codes import exit_of_outcome
    from multistep.cli.terminal import print_bytes, print_err
    from multistep.cli.trial.follow_output import show_build_logs
    from multistep.cli.trial.output_formats import Json, Wanted
    from multistep.cli.trial.read_output import Reader, show_service
    from multistep.client.outcome import outcome

    namespace = cluster.namespace
    if service is not None:
        if step or phase or attempt or output == "json":
            raise click.UsageError("--service cannot be combined with --step, --phase, --attempt and -o json")
        await show_service(cluster, namespace, trial, service, _text_form(titles=False, raw=raw), follow=follow, tail=tail)
        return 0
    wanted = Wanted(attempt, step, phase, follow)
    form = Json(print_bytes) if output == "json" else _text_form(titles=not wanted.one, raw=raw)
    if build:
        await show_build_logs(cluster, namespace, trial, form, follow=follow)
        return 0
    reader = Reader(cluster, namespace, wanted, form, tail)
    status = await (_follow if follow else _once)(cluster, namespace, trial, reader, wanted)
    form.close()
    if not reader.shown:
        print_err(_nothing(trial, status))
    return exit_of_outcome(outcome(status)) if follow else 0


def _text_form(*, titles: bool, raw: bool) -> Form:
    """Return the format that writes text. Lines are cut only on a terminal."""
    from multistep.cli.terminal import print_bytes
    from multistep.cli.trial.output_formats import MAX_LINE_CHARACTERS, Escaped, Raw, Readable

    if raw:
        return Raw(print_bytes, titles=titles)
    return Readable(Escaped(print_bytes, titles=titles, most=MAX_LINE_CHARACTERS if sys.stdout.isatty() else None))


def _nothing(trial: str, status: TrialStatus) -> str:
    """Return why no output was shown."""
    from multistep.api.trial.status import is_finished
    from multistep.client.outcome import outcome

    found = outcome(status)
    if not is_finished(status):
        return f"nothing was printed yet: trial {trial} is {found.phase}: {found.why}"
    what = "nothing was printed" if status.results else "no output is stored"
    return f"{what}: {found.why}"


async def _once(cluster: Cluster, namespace: str, name: str, reader: Reader, wanted: Wanted) -> TrialStatus:
    from multistep.api.trial.trial import parse_status
    from multistep.cli.trial.follow_output import is_hosted
    from multistep.client.objects import existing_trial

    found = await existing_trial(cluster, namespace, name)
    status = parse_status(found)
    _check_step(status, wanted, name)
    await reader.show_new(status, hosted=is_hosted(found))
    return status


def _check_step(status: TrialStatus, wanted: Wanted, name: str) -> None:
    from multistep.cli.trial.output_formats import pieces
    from multistep.errors import UsageError

    if wanted.step is not None and not pieces(status, wanted):
        there = ", ".join(f"{number} {each.name}" for number, each in enumerate(status.steps, 1)) or "none"
        raise UsageError(f"trial {name} has not started step {wanted.step!r}; started steps: {there}")


async def _follow(cluster: Cluster, namespace: str, name: str, reader: Reader, wanted: Wanted) -> TrialStatus:
    from multistep.cli.terminal import print_err
    from multistep.cli.trial.follow_output import following

    async for status in following(
        cluster, namespace, name, reader, lambda why: print_err(f"{why}; waiting until the trial finishes")
    ):
        last = status
    _check_step(last, wanted, name)
    return last
