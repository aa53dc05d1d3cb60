"""Compares the fetched results of a trial with their evidence. All input is untrusted."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from multistep.engine.status.status_size import MARK
from multistep.store.evidence import file_list, signing, statement
from multistep.store.evidence.fetched_results import (
    DamagedResults,
    DownloadedObjects,
    FetchedItem,
    FetchedResults,
    MissingResult,
    ResultsDirectory,
    read_result,
    result_sha256,
)
from multistep.store.evidence.file_list import ListDigester, ListDigests, ListedItem
from multistep.store.evidence.signing import InvalidEnvelope, PublicKey
from multistep.store.trial import object_manifest

_RESULT, _LOCK = "result.json", "lock.json"
_MARKED_KEY = re.compile(re.escape(MARK.encode()) + rb'[^"]*":')


def compare_documents(
    predicate: Mapping[str, Any], documents: Mapping[str, bytes], artifacts: Mapping[str, str] | None
) -> Iterator[tuple[str, str]]:
    """Yield each difference as a file and a problem.

    ``documents`` has result.json and lock.json. ``artifacts`` has the digest of each directory of artifacts, or is None if some
    files are already known to differ. Values that contain redacted secrets are not compared. If redaction changed a key of a JSON
    document, none of the document's values is compared, because the changed key may be one of those to compare.
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
    """Yield pairs of values that must be equal, each as a description, the value in result.json and the value in the statement."""
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
    yield "the list of steps", [_at(step, "step_name") for step in steps], [_at(step, "name") for step in stated]
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
    stated = {str(_at(step, "name")): _at(step, "verifierImageID") for step in steps if _at(step, "verifierImageID")}
    yield "the verifiers' images", _at(lock, "environment", "kwargs", "verifier_image_ids") or {}, stated


def _at(value: Any, *keys: str) -> Any:
    """Return a value inside nested objects, or None if a key is missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _list(value: Any, key: str) -> Sequence[Any]:
    items = _at(value, key)
    return items if isinstance(items, list) else []


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


MAX_FILES: Final = 1_000_000
"""Maximum number of files, directories and links to compare."""

_MAX_STATEMENT_BYTES = 16 << 20
_MAX_RESULT_BYTES = 16 << 20  # of a larger document, only the digest is compared
_MAX_FINDINGS = 1000

Signature = Literal["valid", "not checked", "none", "invalid"]


@dataclass(frozen=True)
class Discrepancy:
    """A difference between fetched results and their evidence."""

    file: str
    """Path of the file in the results."""
    problem: str
    """The difference between the results and the evidence."""


@dataclass
class EvidenceCheck:
    """The outcome of comparing a trial's results with their evidence."""

    directory: Path
    predicate: Mapping[str, Any] = field(default_factory=dict)
    """The statement's predicate, or {} if it cannot be read."""
    digests: ListDigests = field(default_factory=ListDigests)
    signature: Signature = "none"
    findings: list[Discrepancy] = field(default_factory=list)
    more: int = 0
    """Number of findings beyond the first _MAX_FINDINGS."""

    @property
    def ok(self) -> bool:
        """Whether the results are those that the evidence describes."""
        return not self.findings

    def add(self, file: str, problem: str) -> None:
        if len(self.findings) < _MAX_FINDINGS:
            self.findings.append(Discrepancy(file, problem))
        else:
            self.more += 1


def check_evidence(directory: Path, key: PublicKey | None = None) -> EvidenceCheck:
    """Compare the results of one trial with their evidence. With a ``key``, this key must have signed the evidence."""
    outcome = EvidenceCheck(directory)
    results = DownloadedObjects(directory) if (directory / object_manifest.NAME).is_file() else ResultsDirectory(directory)
    try:
        _check(outcome, results, key)
    except DamagedResults as error:
        outcome.add(error.path, error.reason)
    except RecursionError:
        outcome.add(file_list.STATEMENT, "is nested too deeply")
    return outcome


def _check(outcome: EvidenceCheck, results: FetchedResults, key: PublicKey | None) -> None:
    try:
        text = read_result(results, file_list.STATEMENT, _MAX_STATEMENT_BYTES)
    except MissingResult:
        return outcome.add(file_list.STATEMENT, "is missing: it was deleted, or an operator without evidence wrote the results")
    _check_signature(outcome, results, key, text)
    subjects, outcome.predicate = _parse(text)
    listed, list_digests = _read_list(results)
    if list_digests != subjects.get(file_list.FILES):
        return outcome.add(file_list.FILES, f"is not the list of files that {file_list.STATEMENT} names: its SHA-256 differs")
    outcome.digests = _compare_files(outcome, results, listed)
    if not outcome.findings and outcome.digests.result != subjects.get("result.json"):
        outcome.add("result.json", f"is not the one that {file_list.STATEMENT} names: its SHA-256 differs")
    artifacts = None if outcome.findings else outcome.digests.artifacts
    for file, problem in compare_documents(outcome.predicate, _documents(results), artifacts):
        outcome.add(file, problem)
    return None


def _documents(results: FetchedResults) -> dict[str, bytes]:
    """Return the documents to compare with the statement. Unreadable ones are left out, because _compare_files reports them."""
    documents = {}
    for name in ("result.json", "lock.json"):
        with suppress(DamagedResults):
            documents[name] = read_result(results, name, _MAX_RESULT_BYTES)
    return documents


def _check_signature(outcome: EvidenceCheck, results: FetchedResults, key: PublicKey | None, text: bytes) -> None:
    try:
        envelope = read_result(results, file_list.ENVELOPE, 2 * _MAX_STATEMENT_BYTES)
    except MissingResult as error:
        if key is not None:
            outcome.add(file_list.ENVELOPE, f"{error.reason}: the evidence is not signed")
        return
    outcome.signature = "not checked"
    try:
        if key is not None:
            key.verify(envelope)
            outcome.signature = "valid"
        if signing.envelope_statement(envelope) != text:
            raise InvalidEnvelope(f"signs another statement than {file_list.STATEMENT}")
    except InvalidEnvelope as error:
        outcome.signature = "invalid"
        outcome.add(file_list.ENVELOPE, str(error))


def _parse(text: bytes) -> tuple[dict[str, str], Mapping[str, Any]]:
    """Return the SHA-256 of each subject, and the predicate. Raises DamagedResults."""
    try:
        whole = json.loads(text)
        types = (whole["_type"], whole["predicateType"])
        subjects = {str(subject["name"]): str(subject["digest"]["sha256"]) for subject in whole["subject"]}
        predicate = whole["predicate"]
        if not isinstance(predicate, dict):
            raise TypeError
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedResults(file_list.STATEMENT, "is not an in-toto statement") from error
    if types != (statement.TYPE, statement.PREDICATE_TYPE):
        raise DamagedResults(file_list.STATEMENT, f"has the types {types!r:.200}, which this version does not know")
    return subjects, predicate


def _read_list(results: FetchedResults) -> tuple[dict[str, bytes], str]:
    """Return the lines of the list of files by path, and the SHA-256 of the whole list. Raises DamagedResults."""
    lines_by_path: dict[str, bytes] = {}
    digest = hashlib.sha256()
    with results.open(results.content_path(file_list.FILES)) as lines:
        while line := lines.readline(file_list.MAX_LINE_BYTES):
            digest.update(line)
            name = _name_of(line)
            if name in lines_by_path or len(lines_by_path) >= MAX_FILES:
                raise DamagedResults(file_list.FILES, f"lists a path twice, or more than {MAX_FILES} paths")
            lines_by_path[name] = line
    return lines_by_path, digest.hexdigest()


def _name_of(line: bytes) -> str:
    try:
        fields = json.loads(line)
        name = fields.get("path") or f"/{fields['pathSha256']}"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        name = None
    if not isinstance(name, str):
        raise DamagedResults(file_list.FILES, "has an invalid line")
    return name


def _compare_files(outcome: EvidenceCheck, results: FetchedResults, listed: dict[str, bytes]) -> ListDigests:
    """Compare all fetched items with the list. Return the digests of those lines of the list whose items exist."""
    digesting, added, count = ListDigester(), list[FetchedItem](), 0
    for item in results.items():
        if item.path in file_list.OWN:
            continue
        if (count := count + 1) > MAX_FILES:
            raise DamagedResults(".", f"has more than {MAX_FILES} files, directories and links")
        line = listed.pop(_name(item), None)
        if line is None:
            outcome.add(item.path, "was added: the evidence does not list it")
            if item.kind == "file" and len(added) < _MAX_FINDINGS:
                added.append(item)
            continue
        fields = json.loads(line)
        for problem in _differences(results, item, fields):
            outcome.add(item.path, problem)
        digesting.add(ListedItem(item.path, item.kind or "file", item.size, str(fields.get("sha256", ""))), line)
    for path, problem in _missing(results, listed, added):
        outcome.add(path, problem)
    return digesting.digests()


def _name(item: FetchedItem) -> str:
    fields = ListedItem(item.path, "directory").fields()
    return fields.get("path") or f"/{fields['pathSha256']}"


def _differences(results: FetchedResults, item: FetchedItem, listed: Mapping[str, Any]) -> Iterator[str]:
    """Yield how a file, directory or link differs from its line in the list. If the size of a file differs, the file is not
    read."""
    if item.kind != listed.get("kind"):
        yield f"is not a {listed.get('kind')}"
    elif item.kind == "link":
        expected = ListedItem(item.path, "link", target=item.target).fields()
        if any(listed.get(name) != expected.get(name) for name in ("target", "targetSha256")):
            yield "is a link to another target"
    elif item.kind == "file":
        if item.size != listed.get("size"):
            yield f"has {item.size} bytes instead of {listed.get('size')!r:.40}"
        elif (problem := _changed(results, item, listed)) is not None:
            yield problem


def _changed(results: FetchedResults, item: FetchedItem, listed: Mapping[str, Any]) -> str | None:
    try:
        return None if result_sha256(results, item) == listed.get("sha256") else "was changed: its SHA-256 differs"
    except DamagedResults as error:
        return error.reason


def _missing(results: FetchedResults, listed: Mapping[str, bytes], added: list[FetchedItem]) -> Iterator[tuple[str, str]]:
    """Yield each listed path that is missing, and a problem. The problem names an unlisted file with the same content, if any."""
    lines = {path: json.loads(line) for path, line in listed.items()}
    sizes = {line.get("size") for line in lines.values() if line.get("size")}
    moved = dict[str, str]()
    for item in added:
        with suppress(DamagedResults):
            moved |= {result_sha256(results, item): item.path} if item.size in sizes else {}
    for path, line in lines.items():
        name = f"the path with the SHA-256 {path[1:]}" if path.startswith("/") else path
        place = moved.get(str(line.get("sha256")))
        yield name, "is missing" if place is None else f"is missing: it was moved to {place}"
