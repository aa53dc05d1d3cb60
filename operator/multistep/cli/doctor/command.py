"""`multistep doctor`: runs all checks and prints their results."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from multistep.api.common.plural import plural
from multistep.cli.exit_codes import Exit
from multistep.cli.options import output_option, target_options
from multistep.client.options import Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from multistep.cli.doctor.observe import Finding

_EPILOG = """\b
Examples:
  multistep doctor
  multistep doctor -n evals
  multistep doctor --operator-namespace multistep-system -o json | jq '.checks[] | select(.verdict == "fault")'

Checks the API server's version and clock, the CRDs, the namespace, your rights and the operator's, the operator (ready, leader, of
this version), its volume and gateway, nodes, storage classes, quotas, Pod Security, and the images of trials. Changes nothing. A
check of something that you may not read is unknown; an administrator's kubeconfig can read all.

\b
Exit codes:
  0  no fault was found (there may be warnings)
  1  a fault was found
  4  the cluster could not be reached
"""


@click.command(epilog=_EPILOG)
@click.option("--operator-namespace", metavar="NAME", help="Namespace of the installation; default: that of the only installation.")
@target_options
@output_option
def doctor(operator_namespace: str | None, target: Target, output: str) -> int:
    """Check the cluster and the installation, and name the fix of each fault."""
    found = asyncio.run(_findings(target, operator_namespace))
    _print(found, as_json=output == "json")
    return Exit.FAULT if any(each.verdict == "fault" for each in found) else Exit.OK


async def _findings(target: Target, operator_namespace: str | None) -> Sequence[Finding]:
    from multistep.cli.cluster import connect
    from multistep.cli.doctor.checks import run_checks
    from multistep.cli.doctor.observe import observe

    async with connect(target) as client:
        return run_checks(await observe(client, client.namespace, operator_namespace))


def _print(found: Sequence[Finding], *, as_json: bool) -> None:
    from dataclasses import asdict

    from rich.text import Text

    from multistep.cli.terminal import clean, clean_lines, print_json, print_out

    counts = {verdict: sum(each.verdict == verdict for each in found) for verdict in ("ok", "warning", "fault", "unknown")}
    if as_json:
        print_json({"ok": not counts["fault"], "counts": counts, "checks": [asdict(each) for each in found]})
        return
    styles = {"ok": "green", "warning": "yellow", "fault": "bold red", "unknown": "cyan"}
    width = max(len(each.check) for each in found)
    for each in found:
        line = Text.assemble((f"{each.verdict:<7}", styles[each.verdict]), f"  {each.check:<{width}}  {clean_lines(each.message)}")
        print_out(line, *([Text(f"{'':<{width + 9}}  fix: {clean(each.fix)}")] if each.fix else []))
    found_of = ", ".join(plural(counts[each], each) for each in ("fault", "warning"))
    print_out(Text(f"{found_of}, {counts['unknown']} unknown", style="bold"))
