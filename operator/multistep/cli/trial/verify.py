"""`multistep verify`: compares fetched results with their evidence."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from multistep.cli.exit_codes import Exit
from multistep.cli.options import output_option

if TYPE_CHECKING:
    from multistep.store.evidence.signing import PublicKey
    from multistep.store.evidence.verify_results import EvidenceCheck

_EPILOG = """\b
Examples:
  multistep results my-task-oracle-x7k2p out/ && multistep verify out/
  multistep verify out/ --key signing-key.pub.pem
  multistep verify all-results/ -o json | jq '.trials[] | select(.ok | not)'

RESULTS is the directory of a trial, or of several, as `multistep results` and `multistep sweep results` fetch them or as other
tools download them from the object store. No cluster is needed.

\b
Exit codes:
  0  all files are those that the evidence names; with --key: and it is signed by this key
  1  a file was changed, moved, added or deleted, or there is no evidence, or no valid signature
  2  RESULTS has no results, or the key cannot be used
"""


@click.command(epilog=_EPILOG)
@click.argument("directory", metavar="RESULTS", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--key",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="PUBLIC.pem",
    help="The operator's public key, which must have signed the evidence. Default: signatures are not checked.",
)
@output_option
def verify(directory: Path, key: Path | None, output: str) -> int:
    """Compare fetched results with their evidence."""
    from multistep.cli.terminal import print_json, print_out
    from multistep.cli.trial.verify_output import document, evidence_view
    from multistep.store.evidence.signing import PublicKey

    checked = _check_all(directory.resolve(), PublicKey.load(key) if key else None)
    if output == "json":
        print_json(document(checked))
    else:
        print_out(evidence_view(checked, directory.resolve()))
    return Exit.OK if all(each.ok for each in checked) else Exit.FAULT


def _check_all(top: Path, key: PublicKey | None) -> list[EvidenceCheck]:
    """Check every trial below a directory. Raises UsageError if the directory contains no trial."""
    from multistep.errors import UsageError
    from multistep.store.evidence.fetched_results import trial_directories
    from multistep.store.evidence.verify_results import check_evidence

    checked = [check_evidence(each, key) for each in trial_directories(top)]
    if not checked:
        raise UsageError(f"{top} has no results: name the directory of a trial, or one with directories of trials")
    _find_copies(checked)
    return checked


def _find_copies(checked: Iterable[EvidenceCheck]) -> None:
    """Add a finding to each directory with the same trial as an earlier directory: one of the two is a copy."""
    first: dict[str, Path] = {}
    for each in checked:
        trial = each.predicate.get("trial")
        uid = trial.get("uid") if isinstance(trial, dict) else None
        if each.ok and isinstance(uid, str) and first.setdefault(uid, each.directory) != each.directory:
            each.add("evidence.json", f"is of the same trial as that in {first[uid]}")
