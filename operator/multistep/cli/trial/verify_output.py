"""The output of `multistep verify`: a table and the differences found, or a JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from multistep.cli.terminal import bytes_text, clean, rewards_text, table
from multistep.store.evidence.verify_results import EvidenceCheck

_SHOWN = 20  # maximum number of findings shown per trial; the JSON document has all


def evidence_view(checked: Sequence[EvidenceCheck], top: Path) -> Group:
    """Return the table of checked trials. top: the trials' directories are shown relative to this directory."""
    found = table("DIRECTORY", "TRIAL", "OUTCOME", "REWARD", "FILES", "SIZE", "SIGNATURE", "RESULTS", numbers=("FILES", "SIZE"))
    lines: list[RenderableType] = []
    for each in checked:
        place = _place(each.directory, top)
        found.add_row(
            Text(place),
            Text(_trial(each)),
            Text(clean(str(each.predicate.get("outcome", "-")))[:20]),
            Text(_rewards(each)),
            str(each.digests.files),
            bytes_text(each.digests.bytes),
            Text(each.signature, style={"valid": "green", "invalid": "red"}.get(each.signature, "")),
            Text("as the evidence says", style="green") if each.ok else Text("differ", style="red"),
        )
        lines += [_line(place, finding.file, finding.problem) for finding in each.findings[:_SHOWN]]
        if (more := len(each.findings) - _SHOWN + each.more) > 0:
            lines.append(Text(f"{place}: and {more} more"))
    return Group(found, *lines)


def document(checked: Sequence[EvidenceCheck]) -> dict[str, Any]:
    """Return the JSON document of checked trials."""
    return {"ok": all(each.ok for each in checked), "trials": [_document(each) for each in checked]}


def _document(checked: EvidenceCheck) -> dict[str, Any]:
    trial = checked.predicate.get("trial")
    named = trial if isinstance(trial, Mapping) else {}
    return {
        "directory": shown(str(checked.directory)),
        "ok": checked.ok,
        "trial": {key: shown(str(named.get(key, ""))) for key in ("namespace", "name", "uid")},
        "files": checked.digests.files,
        "bytes": checked.digests.bytes,
        "signature": checked.signature,
        "findings": [{"file": shown(each.file), "problem": shown(each.problem)} for each in checked.findings],
        "moreFindings": checked.more,
    }


def shown(text: str) -> str:
    """Return a text that can be encoded as UTF-8: surrogates (bytes of file names that are not UTF-8) become escapes."""
    return text.encode(errors="backslashreplace").decode()


def _place(directory: Path, top: Path) -> str:
    return clean(shown(str(directory.relative_to(top))))


def _trial(checked: EvidenceCheck) -> str:
    trial = checked.predicate.get("trial")
    if not isinstance(trial, Mapping):
        return "-"
    return clean(shown(f"{trial.get('namespace')}/{trial.get('name')}"))[:300]


def _rewards(checked: EvidenceCheck) -> str:
    rewards = checked.predicate.get("rewards")
    try:
        return shown(rewards_text(rewards))[:300]
    except (ValueError, TypeError, OverflowError, AttributeError):
        return "-"


def _line(place: str, file: str, problem: str) -> Text:
    where = file if place == "." else f"{place}/{file}"
    return Text.assemble(("differs", "red"), ": ", clean(shown(where)), " ", clean(shown(problem)))
