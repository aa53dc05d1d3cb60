"""`multistep gate`: the verdict about a candidate as an exit code, for CI."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from multistep.cli.completion import complete_sweeps
from multistep.cli.options import FiniteRange, output_option, require_report, target_options
from multistep.client.options import Target

_EPILOG = """\b
Examples:
  multistep gate candidate --against main
  multistep gate candidate/mine --against main/mine --max-drop 0.05
  multistep gate candidate --against main.json --markdown "$GITHUB_STEP_SUMMARY"

Each side is SWEEP, SWEEP/AGENT, or a file that `multistep sweep report -o FILE.json` wrote (FILE.json/AGENT), with one agent.

\b
Exit codes:
  0  better or no worse: the mean score did not drop by more than --max-drop
  1  worse
  5  not enough data: neither is shown
"""


@click.command(epilog=_EPILOG)
@click.argument("candidate", metavar="CANDIDATE", shell_complete=complete_sweeps)
@click.option(
    "--against", "baseline", metavar="BASELINE", required=True, shell_complete=complete_sweeps, help="Side to compare with."
)
@click.option(
    "--max-drop",
    metavar="DROP",
    type=FiniteRange(min=0),
    default=0.02,
    show_default=True,
    help="Drop of the mean score that is tolerated.",
)
@click.option("--markdown", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False), help="Append a summary to this file.")
@target_options
@output_option
def gate(candidate: str, baseline: str, max_drop: float, markdown: Path | None, target: Target, output: str) -> int:
    """Fail if CANDIDATE scores worse than a baseline: a test for CI, paired by task."""
    require_report()
    from multistep.cli.sweep.gate_verdict import read_gate, write_verdict

    found = asyncio.run(read_gate(target, candidate, baseline, max_drop))
    return write_verdict(found, markdown, as_json=output == "json")
