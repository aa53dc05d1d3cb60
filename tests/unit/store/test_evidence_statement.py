"""The contents of a trial's statement, and the evidence of results on the volume and in an object store."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from multistep.api.common import labels
from multistep.api.trial.regrade import SourceAgent
from multistep.api.trial.status import AttemptStatus, CheckpointStatus, ResumeStatus, TrialFailure, TrialStatus
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.journal.journal import Journal, StepRun
from multistep.store.bucket.object_store import Bucket
from multistep.store.bucket.upload_results import ResultsUploader
from multistep.store.evidence import statement
from multistep.store.evidence.file_list import ListDigests
from multistep.store.evidence.signing import PublicKey, Signer
from multistep.store.evidence.statement import parse_predicate
from multistep.store.evidence.verify_results import check_evidence, compare_documents
from multistep.store.harbor import trial_files
from multistep.store.results_volume import ResultsVolume
from multistep.store.trial.unpack_download import DownloadFacts, UploadedObject
from tests.harbor.samples import BEGIN, FIRST, SECOND, SECRET, Sample, finish, journal, run
from tests.support.signing_keys import write_keys

from .evidence_cases import BY_NAME, SAMPLE, fetched
from .helpers import Step, entries, member, tar


def finished(sample: Sample, trial: MultiStepTrial | None = None, played: Journal | None = None) -> dict[str, Any]:
    plan, played = sample.plan(), played or sample.journal
    tests = {each: (each.step or "").encode().hex() for each in statement.test_uploads(plan, played)}
    of = statement.FinishedTrial(plan, trial or sample.trial(), played, ListDigests(), tests, sample.failure, {SECRET})
    found: dict[str, Any] = json.loads(statement.evidence_statement(of))["predicate"]
    return found


def test_the_statement_names_what_ran() -> None:
    trial = SAMPLE.trial()
    trial.status.image_id, trial.status.runner_image_id, trial.status.attempt = "i@sha256:1", "op@sha256:2", 2
    resumed = ResumeStatus(after=FIRST, attempts=[1], digest="ef")
    trial.status.attempts = [AttemptStatus(number=1, reason="NodeLost", image_id="i@sha256:1", runner_image_id="op@sha256:0")]
    trial.status.resumed = resumed
    step = run(FIRST, BEGIN, rewards={"reward": 1}, checkpoint=CheckpointStatus(digest="ef"), verifier_image_id="v@sha256:3")
    found = finished(SAMPLE, trial, journal(step, rewards={"reward": 1}))

    assert found["environment"] == {"image": "i", "imageID": "i@sha256:1"} and found["runner"] == {"imageID": "op@sha256:2"}
    assert found["task"] == {"name": "org/sample", "digest": {"sha256": "ab" * 32}, "revision": None}
    assert [(each["number"], each["reason"], each["runnerImageID"]) for each in found["attempts"]] == [
        (1, "NodeLost", "op@sha256:0"),
        (2, None, "op@sha256:2"),
    ]
    assert found["attempts"][1]["resumed"] == {"after": FIRST, "attempts": [1], "checkpoint": {"digest": {"sha256": "ef"}}}
    [shown] = found["steps"]
    assert shown["tests"] == [
        {"name": "tests", "digest": {"sha256": ""}},
        {"name": f"steps/{FIRST}/tests", "digest": {"sha256": FIRST.encode().hex()}},
    ]
    assert (shown["checkpoint"], shown["verifierImageID"]) == ({"digest": {"sha256": "ef"}}, "v@sha256:3")


def test_the_statement_of_a_regrade_names_both_trials() -> None:
    sample = BY_NAME["regraded"]
    found = finished(sample)
    assert found["regraded"] == {
        "trial": "rewards",
        "uid": "u-1",
        "task": {"digest": {"sha256": "ab" * 32}},
        "steps": [
            {
                "name": FIRST,
                "tests": [{"name": "tests", "digest": {"sha256": "cd" * 32}}],
                "checkpoint": {"digest": {"sha256": "12" * 32}},
                "exception": "AgentTimeoutError",
            },
            {"name": SECOND, "tests": [], "checkpoint": None, "exception": None},
        ],
    }
    assert found["agent"] == {"name": "claude-code", "version": "2.1", "model": "anthropic/claude-sonnet-4-5"}
    assert [each["exceptionPhase"] for each in found["steps"]] == ["agent", None] and found["tampering"] == []
    result = trial_files.result_json(sample.plan(), sample.trial(), sample.journal, BEGIN + 30)
    assert result["agent_info"]["model_info"] == {"name": "claude-sonnet-4-5", "provider": "anthropic"}
    assert list(compare_documents(found, {"result.json": json.dumps(result).encode()}, None)) == []
    result["regraded"]["uid"] = "another"
    [(file, problem)] = compare_documents(found, {"result.json": json.dumps(result).encode()}, None)
    assert (file, problem) == ("result.json", 'the regraded uid is "another", but the evidence says "u-1"')


def test_a_source_of_unknown_task_and_model_is_named_all_the_same() -> None:
    sample = BY_NAME["regraded"]
    trial = sample.trial()
    assert trial.status.regraded is not None
    unknown = trial.status.regraded.model_copy(update={"task_digest": None, "agent": SourceAgent(name="oracle")})
    trial.status.regraded = unknown
    found = finished(sample, trial)
    assert found["regraded"]["task"] is None and found["agent"]["version"] == "unknown"
    assert trial_files.result_json(sample.plan(), trial, sample.journal, BEGIN)["agent_info"]["model_info"] is None


def test_the_statement_says_if_the_digests_of_the_sources_tests_are_omitted() -> None:
    sample = BY_NAME["regraded"]
    trial = sample.trial()
    assert trial.status.regraded is not None
    trial.status.regraded.steps[0].tests = "omitted"
    found = finished(sample, trial)
    assert [each["tests"] for each in found["regraded"]["steps"]] == ["omitted", []]
    result = trial_files.result_json(sample.plan(), trial, sample.journal, BEGIN)
    assert [each["tests"] for each in result["regraded"]["steps"]] == ["omitted", {}]


def test_a_failed_trial_has_evidence_without_a_reward() -> None:
    found = finished(BY_NAME["failed"])
    assert [each["reason"] for each in found["attempts"]] == ["NodeLost", None]
    assert (found["outcome"], found["rewards"], found["steps"]) == ("Failed", None, [])
    assert finished(BY_NAME["environment"])["outcome"] == "Failed"


def test_the_statement_has_the_failure_and_the_score_without_secrets() -> None:
    failure = TrialFailure(class_="Agent", reason=f"Error{SECRET}", step="a")
    ended = TrialStatus(failure=failure, score=0.0, passed=False)
    of = statement.FinishedTrial(SAMPLE.plan(), SAMPLE.trial(), SAMPLE.journal, ListDigests(), {}, None, {SECRET}, ended)
    of = replace(of, tests=dict.fromkeys(statement.test_uploads(of.plan, of.journal), ""))
    text = statement.evidence_statement(of)
    stated, parsed = json.loads(text)["predicate"], parse_predicate(text)
    assert stated["failure"] == {"class": "Agent", "reason": "Error[REDACTED]", "step": "a"}
    assert (stated["score"], stated["passed"]) == (0.0, False)
    assert parsed is not None and parsed.failure is not None and (parsed.failure.class_, parsed.score) == ("Agent", 0.0)


def test_the_digest_of_the_spec_is_that_of_a_spec_without_secrets() -> None:
    def digest(**env: str) -> str:
        spec = {**SAMPLE.spec, "agent": {"name": "nop", "env": [{"name": name, "value": value} for name, value in env.items()]}}
        return str(finished(replace(SAMPLE, spec=spec))["trial"]["spec"]["digest"]["sha256"])

    assert digest(API_KEY="short") == digest(API_KEY="other") != digest(MODE="fast") != digest(MODE="slow")


def test_a_command_has_its_name_in_the_sweep_in_the_statement_and_in_the_result() -> None:
    trial = SAMPLE.trial()
    trial.metadata.annotations[labels.AGENT] = "asker"
    result = trial_files.result_json(SAMPLE.plan(), trial, SAMPLE.journal, BEGIN)
    assert result["agent_info"]["name"] == finished(SAMPLE, trial)["agent"]["name"] == "asker"


def test_no_secret_of_a_verifier_or_agent_is_in_the_statement() -> None:
    played = journal(run(FIRST, BEGIN, rewards={f"key {SECRET}": 1}), rewards={f"key {SECRET}": 1})
    found = finished(SAMPLE, played=played)
    assert found["rewards"] == found["steps"][0]["rewards"] == {"key [REDACTED]": 1}


async def test_evidence_is_also_right_where_secrets_were_replaced(volume: ResultsVolume) -> None:
    """A short secret is replaced everywhere in result.json, but not in digests."""
    spec = {**SAMPLE.spec, "agent": {"name": "nop", "env": [{"name": "KEY", "value": "a"}]}}
    path = await finish(volume, Short("rewards", SAMPLE.journal, spec=spec))
    assert "[REDACTED]" in (path / "result.json").read_text()
    checked = check_evidence(await asyncio.to_thread(fetched, path, volume.root.parent / "out"))
    assert checked.ok, checked.findings


class Short(Sample):
    """A trial with a secret of one character."""

    @property
    def env(self) -> Any:
        return replace(super().env, agent={"KEY": "a"})


async def test_the_evidence_of_a_trial_that_is_finished_again_replaces_the_former(volume: ResultsVolume, tmp_path: Path) -> None:
    private, _ = write_keys(tmp_path)
    await finish(volume, SAMPLE, Signer.load(private).envelope)
    path = await finish(volume, SAMPLE)
    assert not (path / "evidence.dsse.json").exists()
    assert check_evidence(await asyncio.to_thread(fetched, path, tmp_path / "out")).ok


def test_steps_without_a_plan_are_listed() -> None:
    """A journal that was rebuilt from the trial's status can have a step that the plan does not have."""
    assert finished(SAMPLE, played=journal(StepRun(name="other")))["steps"][0]["tests"] == []


# -- on the volume


async def test_a_large_file_is_hashed_when_it_is_collected_and_not_again(
    volume: ResultsVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Step(name=FIRST, directory=FIRST, artifacts=entries("/out"))
    data = bytes(range(256)) * 8192
    async with volume.collections.spool(SAMPLE.key) as spool:
        await spool.write(tar(member("2", data)))
        types = ("missing", "missing", "file")
        await volume.collections.store_step(SAMPLE.key, spool, attempt=1, step=step, types=types)
    place = volume.root / str(SAMPLE.key) / f"steps/{FIRST}/artifacts/out"
    reads: list[int] = []
    read = checking_reads(monkeypatch, reads)
    await finish(volume, SAMPLE)
    assert reads and max(reads) < len(data)
    place.write_bytes(data[:-1] + b"x")
    reads.clear()
    path = await finish(volume, SAMPLE)
    assert max(reads) == len(data)
    reads.clear()
    await finish(volume, SAMPLE)
    assert max(reads) < len(data)
    monkeypatch.setattr("multistep.store.files.known_digests.read_sha256", read)
    assert check_evidence(await asyncio.to_thread(fetched, path, volume.root.parent / "out")).ok


def checking_reads(monkeypatch: pytest.MonkeyPatch, reads: list[int]) -> Callable[[int], tuple[str, int]]:
    """Append the size of each file that is hashed to ``reads``. Return the original function read_sha256."""
    from multistep.store.files import known_digests

    read = known_digests.read_sha256

    def noted(fd: int) -> tuple[str, int]:
        reads.append(os.fstat(fd).st_size)
        return read(fd)

    monkeypatch.setattr(known_digests, "read_sha256", noted)
    return read


# -- object stores


async def objects(bucket: Bucket, prefix: str, to: Path) -> Path:
    """Download all objects below a prefix, as a store's own tools do."""
    async for each in bucket.list(prefix):
        place = to / each.name.removeprefix(f"{prefix}/")
        place.parent.mkdir(parents=True, exist_ok=True)
        async with aclosing(bucket.get(each.name)) as chunks:
            place.write_bytes(b"".join([chunk async for chunk in chunks]))
    return to


async def test_objects_of_a_store_are_as_their_evidence_says(volume: ResultsVolume, tmp_path: Path) -> None:
    artifacts = volume.root / str(SAMPLE.key) / f"steps/{FIRST}/artifacts"
    artifacts.mkdir(parents=True)
    (artifacts / os.fsdecode(b"not-\xff-utf-8")).write_bytes(b"bytes")
    (artifacts / "link").symlink_to("/etc/passwd")
    private, public = write_keys(tmp_path)
    await finish(volume, SAMPLE, Signer.load(private).envelope)
    bucket = Bucket(MemoryStore(), "memory://", lambda: None)
    await ResultsUploader(bucket, volume).ship(SAMPLE.key)
    top = await objects(bucket, str(SAMPLE.key), tmp_path / "out")
    key = PublicKey.load(public)
    checked = check_evidence(top, key)
    assert checked.ok and checked.signature == "valid", checked.findings
    [named] = (top / "named").iterdir()
    named.write_bytes(b"edits")
    (top / "files/more").write_bytes(b"")
    assert {each.problem for each in check_evidence(top, key).findings} == {
        "was changed: its SHA-256 differs",
        "was added: the evidence does not list it",
    }
    (top / "manifest.jsonl").write_bytes(
        b'{"version": 1}\n{"path": "x", "kind": "file", "mode": 1, "mtime": 1, "object": "../x"}\n'
    )
    assert not check_evidence(top, key).ok


async def test_a_file_that_the_pod_uploaded_has_the_digest_that_the_pod_reported(volume: ResultsVolume, tmp_path: Path) -> None:
    data, step = b"large", Step(name=FIRST, directory=FIRST, artifacts=entries("/out"))
    pointer = UploadedObject("sent/1/0/0", len(data), "ab" * 32, "v")
    async with volume.collections.spool(SAMPLE.key) as spool:
        await spool.write(tar(member("2")))
        types = ("missing", "missing", "file")
        await volume.collections.store_step(
            SAMPLE.key, spool, attempt=1, step=step, types=types, sent={"2": pointer}, received=DownloadFacts()
        )
    path = await finish(volume, SAMPLE)
    lines = [json.loads(line) for line in (path / "evidence.files.jsonl").read_text().splitlines()]
    [line] = [each for each in lines if each["path"].endswith("artifacts/out")]
    assert (line["size"], line["sha256"], line["reportedBy"]) == (len(data), "ab" * 32, "pod")
