"""Compares a statement with result.json and lock.json. Pure. All input is untrusted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from multistep.engine.status.redact_status import MARK

_RESULT, _LOCK = "result.json", "lock.json"
_MARKED_KEY = re.compile(re.escape(MARK.encode()) + rb'[^"]*":')


def compare(
    predicate: Mapping[str, Any], documents: Mapping[str, bytes], artifacts: Mapping[str, str] | None
) -> Iterator[tuple[str, str]]:
    """Yield each difference as a file and a problem. documents: result.json and lock.json; artifacts: the digest of each directory
    of artifacts; None: do not compare artifacts, because some files are already known to differ.

    Values that contain redacted secrets are not compared. If redaction changed a key of a JSON document, none of the document's
    values is compared, because the changed key may be any of those to compare.
    """
    for file, data in documents.items():
        if _MARKED_KEY.search(data):
            continue
        try:
            document = json.loads(data)
        except ValueError:
            yield file, "is not JSON"
            continue
        pairs = _of_result(predicate, document) if file == _RESULT else _of_lock(predicate, document)
        for what, here, stated in pairs:
            if here != stated and MARK not in json.dumps(here):
                yield file, f"{what} is {_shown(here)}, but the evidence says {_shown(stated)}"
    if artifacts is None:
        return
    for step in _list(predicate, "steps"):
        directory, stated = _at(step, "artifacts", "name"), _at(step, "artifacts", "digest", "sha256")
        if stated is not None and artifacts.get(str(directory)) != stated:
            yield str(directory), "is not what the evidence says: the digest of all its files differs"


def _of_result(predicate: Mapping[str, Any], result: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield values that must be equal: a description, the value in result.json, and the value in the statement."""
    yield "the trial's UID", _at(result, "id"), _at(predicate, "trial", "uid")
    yield "the trial's name", _at(result, "trial_name"), _at(predicate, "trial", "name")
    yield "the task's name", _at(result, "task_name"), _at(predicate, "task", "name")
    yield "the task's digest", _at(result, "task_checksum"), f"sha256:{_at(predicate, 'task', 'digest', 'sha256')}"
    yield "the agent's name", _at(result, "agent_info", "name"), _at(predicate, "agent", "name")
    yield "the agent's version", _at(result, "agent_info", "version"), _at(predicate, "agent", "version")
    for name in ("trial", "uid", "step"):
        yield f"the {name} that it started from", _at(result, "started_from", name), _at(predicate, "startedFrom", name)
    for name in ("trial", "uid"):
        yield f"the regraded {name}", _at(result, "regraded", name), _at(predicate, "regraded", name)
    yield "the trial's rewards", _at(result, "verifier_result", "rewards"), _at(predicate, "rewards")
    steps = _list(result, "step_results")
    if not steps:
        return
    stated = _list(predicate, "steps")
    yield "the list of steps", [_at(each, "step_name") for each in steps], [_at(each, "name") for each in stated]
    for here, there in zip(steps, stated, strict=False):
        what = f"of step {_shown(_at(there, 'name'))}"
        yield f"the trial {what}", _at(here, "trial"), _at(there, "trial")
        yield f"the reward {what}", _at(here, "verifier_result", "rewards"), _at(there, "rewards")
        yield f"the exception {what}", _at(here, "exception_info", "exception_type"), _at(there, "exception")


def _of_lock(predicate: Mapping[str, Any], lock: Any) -> Iterator[tuple[str, Any, Any]]:
    yield "the task's digest", _at(lock, "task", "digest"), f"sha256:{_at(predicate, 'task', 'digest', 'sha256')}"
    yield "the image", _at(lock, "environment", "kwargs", "image"), _at(predicate, "environment", "image")
    yield "the image's ID", _at(lock, "environment", "kwargs", "image_id"), _at(predicate, "environment", "imageID")
    steps = _list(predicate, "steps")
    stated = {str(_at(each, "name")): _at(each, "verifierImageID") for each in steps if _at(each, "verifierImageID")}
    yield "the verifiers' images", _at(lock, "environment", "kwargs", "verifier_image_ids") or {}, stated


def _at(value: Any, *keys: str) -> Any:
    """Return a value inside nested objects; None if a key is missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _list(value: Any, key: str) -> Sequence[Any]:
    found = _at(value, key)
    return found if isinstance(found, list) else []


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
