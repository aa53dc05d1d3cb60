"""Read a trial's outcome, in the format of expected.json, from its status and its results directory alone."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from multistep.api.trial.status import TrialStatus, holds
from multistep.engine.status.status_size import bounded_rewards

from .compare import same_rewards

MANIFEST_FILE = "manifest.json"
_ANY_EXECUTE = 0o111
_CHUNK = 1 << 20


class Unexplained(Exception):
    """Status or results do not form an outcome; the message states why."""


def refusal(status: TrialStatus) -> dict[str, Any] | None:
    """Return the outcome of a trial whose task or spec was rejected; None if it was not."""
    failed = holds(status, "Failed")
    if failed is None or failed.reason != "InvalidSpec":
        return None
    kind = status.exception.type if status.exception else None
    return {"load_error": {"type": kind, "message": failed.message}}


def outcome(status: TrialStatus, results: Path, declared: Sequence[str]) -> dict[str, Any]:
    """Return the outcome of a trial that was not rejected. Raise Unexplained if status and results contradict each other.

    Args:
        results: The trial's results directory.
        declared: The names of the task's steps.
    """
    result = _json(results / "result.json")
    contradictions = list(_contradictions(status, result))
    if contradictions:
        raise Unexplained("\n".join(contradictions))
    if not declared:
        return {"load_error": None, "kind": "single-step", "trial": _trial(result) | _outputs(result, results)}
    steps = result["step_results"] or []
    return {
        "load_error": None,
        "kind": "multi-step",
        "trial": _trial(result),
        "step_results_present": result["step_results"] is not None,
        "steps_run": [step["step_name"] for step in steps],
        "steps_not_run": list(declared[len(steps) :]),
        "steps": [_step(step, results / "steps" / step["step_name"]) for step in steps],
    }


def _trial(result: Mapping[str, Any]) -> dict[str, Any]:
    return {"rewards": _rewards(result), "exception_type": _exception(result)}


def _step(step: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    return {"name": step["step_name"], **_trial(step), **_outputs(step, directory)}


def _outputs(result: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return the phases that a step or a single-step trial ran, and the files that they left."""
    return {
        "ran_agent": result["agent_execution"] is not None,
        "ran_verifier": result["verifier"] is not None,
        "artifacts": [_file(path, directory / "artifacts") for path in _artifacts(directory / "artifacts")],
        "manifest": _json(directory / "artifacts" / MANIFEST_FILE) if _there(directory / "artifacts" / MANIFEST_FILE) else None,
        "agent_files": [path.name for path in _children(directory / "agent")],
        "verifier_files": [path.name for path in _children(directory / "verifier")],
    }


def _rewards(result: Mapping[str, Any]) -> Any:
    verified = result["verifier_result"]
    return None if verified is None else verified["rewards"]


def _exception(result: Mapping[str, Any]) -> Any:
    info = result["exception_info"]
    return None if info is None else info["exception_type"]


def _artifacts(directory: Path) -> list[Path]:
    return [path for path in _descend(directory) if path != directory / MANIFEST_FILE]


def _descend(directory: Path) -> Iterator[Path]:
    """Yield everything but directories, recursively. Do not follow links."""
    for path in _children(directory):
        if stat.S_ISDIR(path.lstat().st_mode):
            yield from _descend(path)
        else:
            yield path


def _file(path: Path, top: Path) -> dict[str, Any]:
    """Return a file's path, digest, size and whether it is executable. Links have no digest."""
    info, place = path.lstat(), path.relative_to(top).as_posix()
    if not stat.S_ISREG(info.st_mode):
        return {"path": place, "sha256": None, "executable": False}
    executable = bool(info.st_mode & _ANY_EXECUTE)
    return {"path": place, "sha256": _sha256(path), "executable": executable, "size": info.st_size}


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _children(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if _there(directory) else []


def _there(path: Path) -> bool:
    return path.exists() and not path.is_symlink()


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Unexplained(f"the results have no proper {path.name}: {error}") from error


def _contradictions(status: TrialStatus, result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the contradictions between the status and result.json, which both describe the trial."""
    yield from _contradiction("trial's", status, result)
    reported, recorded = [step.name for step in status.steps], [step["step_name"] for step in result["step_results"] or []]
    if result["step_results"] is not None and reported != recorded:
        yield f"status.steps are {reported!r}, step_results of result.json {recorded!r}"
        return
    for step, entry in zip(status.steps, result["step_results"] or [], strict=False):
        yield from _contradiction(f"step {step.name}:", step, entry)


def _contradiction(what: str, reported: Any, recorded: Mapping[str, Any]) -> Iterator[str]:
    exception = reported.exception.type if reported.exception else None
    if exception != _exception(recorded):
        yield f"{what} exception is {exception!r} in the status, {_exception(recorded)!r} in result.json"
    if not same_rewards(reported.rewards, bounded_rewards(_rewards(recorded))):
        yield f"{what} rewards are {reported.rewards!r} in the status, {_rewards(recorded)!r} in result.json"
