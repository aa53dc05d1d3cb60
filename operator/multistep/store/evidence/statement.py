"""Builds the statement of a trial, an in-toto Statement v1 whose predicate has the trial's inputs and outcome. It does no IO.

Image IDs are those that the kubelet resolved. Digests are in-toto's digest sets, such as ``{"sha256": "..."}``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from multistep.api.common import labels
from multistep.api.common.base_model import Model
from multistep.api.trial.content_references import Content
from multistep.api.trial.status import (
    AttemptStatus,
    EgressStatus,
    ResumeStatus,
    StartStatus,
    Tampering,
    TrialFailure,
    TrialStatus,
    Usage,
)
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.journal.journal import Journal, StepException, StepRun
from multistep.engine.plan.plan import StepPlan, TrialPlan
from multistep.engine.status.status_size import MARK
from multistep.engine.status.tampering_findings import merged
from multistep.engine.sweep.trial_manifests import owning_sweep
from multistep.store.evidence import file_list
from multistep.store.evidence.file_list import ListDigests
from multistep.store.harbor import secret_variables, trial_config, trial_files
from multistep.store.harbor.trial_files import agent_info, own_version

TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "https://multistep.dev/evidence/v1"

Tests = Mapping[Content, str]


@dataclass(frozen=True)
class FinishedTrial:
    """A finished trial, and what its statement needs beside it."""

    plan: TrialPlan
    trial: MultiStepTrial
    journal: Journal
    files: ListDigests
    """Digests of the trial's files."""
    tests: Tests
    """SHA-256 of each upload of tests (``test_uploads``)."""
    failure: StepException | None = None
    """The exception of a Failed trial."""
    secrets: Collection[str] = ()
    """Values to redact in texts of agents and verifiers."""
    ended: TrialStatus = field(default_factory=TrialStatus)
    """The trial's final status, with the failure class and the score."""

    def shown(self, value: Any) -> Any:
        """Return a value from an agent or verifier, with secrets replaced as in all files."""
        if isinstance(value, Mapping):
            return {self.shown(key): self.shown(inner) for key, inner in value.items()}
        if isinstance(value, str):
            for secret in sorted((secret for secret in self.secrets if secret not in MARK), key=len, reverse=True):
                value = value.replace(secret, MARK)
        return value


def test_uploads(plan: TrialPlan, journal: Journal) -> list[Content]:
    """Return the uploads of tests of all steps that this trial verified, without duplicates."""
    started = {run.name for run in journal.steps if run.trial is None or plan.regrade}
    return list(dict.fromkeys(content for step in plan.steps if step.name in started for content in _tests(step)))


def evidence_statement(of: FinishedTrial) -> bytes:
    """Return the statement as JSON."""
    subjects = (("result.json", of.files.result), (file_list.FILES, of.files.sha256))
    whole = {
        "_type": TYPE,
        "subject": [{"name": name, "digest": {"sha256": sha256}} for name, sha256 in subjects],
        "predicateType": PREDICATE_TYPE,
        "predicate": _predicate(of),
    }
    return json.dumps(trial_files.valid_utf8(whole), indent=2).encode() + b"\n"


def _predicate(of: FinishedTrial) -> dict[str, Any]:
    trial, journal, status = of.trial, of.journal, of.trial.status
    is_failed = of.failure is not None or journal.broken
    return {
        "trial": _trial(trial),
        "outcome": "Failed" if is_failed else "Complete",
        "rewards": None if of.failure is not None else of.shown(journal.rewards),
        "failure": of.shown(of.ended.failure.model_dump(by_alias=True)) if of.ended.failure else None,
        "score": of.ended.score,
        "passed": of.ended.passed,
        "task": _task(of.plan, trial),
        "environment": {"image": of.plan.image, "imageID": status.image_id},
        "isolation": status.isolation,
        "runner": {"imageID": status.runner_image_id},
        "operator": {"version": own_version()},
        "agent": _agent(of),
        "attempts": _attempts(trial),
        "startedFrom": _started_from(status.started_from),
        "regraded": _regraded(of),
        "steps": [_step(of, run) for run in journal.steps],
        "tampering": [of.shown(finding.model_dump()) for finding in merged(status, journal)],
        "files": {"count": of.files.files, "bytes": of.files.bytes},
    }


def _trial(trial: MultiStepTrial) -> dict[str, Any]:
    metadata = trial.metadata
    spec = _without_secrets(trial.spec.model_dump(mode="json", by_alias=True))
    return {
        "namespace": metadata.namespace,
        "name": metadata.name,
        "uid": metadata.uid,
        "sweep": metadata.labels.get(labels.SWEEP),
        "sweepUID": owner[1] if (owner := owning_sweep(metadata.owner_references)) else "",
        "spec": {"digest": {"sha256": hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()}},
    }


def _without_secrets(value: Any) -> Any:
    """Return the spec without values of variables with secret-like names, because the spec's digest could reveal a short secret."""
    if isinstance(value, Mapping):
        hidden = {"value": MARK} if value.get("value") and secret_variables.is_sensitive(str(value.get("name", ""))) else {}
        return {**{key: _without_secrets(inner) for key, inner in value.items()}, **hidden}
    return [_without_secrets(inner) for inner in value] if isinstance(value, list) else value


def _task(plan: TrialPlan, trial: MultiStepTrial) -> dict[str, Any]:
    source = trial.status.task_source
    return {
        "name": plan.task_name,
        "digest": _digest_set(trial_config.task_digest(trial)),
        "revision": source.revision if source else None,
    }


def _digest_set(digest: str) -> dict[str, str]:
    """Return the digest ``ALGORITHM:HEX`` as a digest set."""
    algorithm, _, value = digest.partition(":")
    return {algorithm: value}


def _agent(of: FinishedTrial) -> dict[str, Any]:
    source = of.trial.status.regraded
    info, spec, status = agent_info(of.plan, of.trial, of.journal), of.trial.spec.agent, of.trial.status
    model = source.agent.model if source else spec.model
    shown = {"name": of.shown(info["name"]), "version": of.shown(info["version"]), "model": model}
    hosted = {"image": spec.image, "hostImageID": status.agent_host_image_id} if spec.hosted else {}
    return {**shown, **hosted}


def _started_from(start: StartStatus | None) -> dict[str, Any] | None:
    """Return the other trial's checkpoint from which the trial started, with the digest that the other trial's evidence has."""
    if start is None:
        return None
    return {"trial": start.trial, "uid": start.uid, "step": start.step, "checkpoint": {"digest": {"sha256": start.digest}}}


def _attempts(trial: MultiStepTrial) -> list[dict[str, Any]]:
    """Return all attempts. If the trial ran out of retries, the status already lists the last attempt as failed."""
    failed = [_former(attempt) for attempt in trial.status.attempts]
    return failed if trial.status.attempt in [attempt.number for attempt in trial.status.attempts] else [*failed, _last(trial)]


def _former(attempt: AttemptStatus) -> dict[str, Any]:
    images = {"imageID": attempt.image_id, "runnerImageID": attempt.runner_image_id}
    return {"number": attempt.number, "reason": attempt.reason, **images, "resumed": _resumed(attempt.resumed)}


def _last(trial: MultiStepTrial) -> dict[str, Any]:
    status = trial.status
    images = {"imageID": status.image_id, "runnerImageID": status.runner_image_id}
    return {"number": status.attempt or 1, "reason": None, **images, "resumed": _resumed(status.resumed)}


def _resumed(resumed: ResumeStatus | None) -> dict[str, Any] | None:
    if resumed is None:
        return None
    return {"after": resumed.after, "attempts": list(resumed.attempts), "checkpoint": {"digest": {"sha256": resumed.digest}}}


def _step(of: FinishedTrial, run: StepRun) -> dict[str, Any]:
    planned: Sequence[StepPlan] = [step for step in of.plan.steps if step.name == run.name]
    tests = [
        {"name": "tests" if content.step is None else f"steps/{content.step}/tests", "digest": {"sha256": of.tests[content]}}
        for step in planned
        for content in _tests(step)
        if run.trial is None or of.plan.regrade
    ]
    directory = "artifacts" if of.plan.single else f"steps/{run.name}/artifacts"
    artifacts = of.files.artifacts.get(directory)
    checkpoint = run.checkpoint.digest if run.checkpoint else None
    return {
        "name": run.name,
        "trial": run.trial,
        "rewards": of.shown(run.rewards),
        "gate": run.gate_passed,
        "exception": of.shown(run.exception.type) if run.exception else None,
        "exceptionPhase": run.exception.phase or None if run.exception else None,
        "tests": tests,
        "verifierImageID": run.verifier_image_id,
        "artifacts": {"name": directory, "digest": {"sha256": artifacts}} if artifacts else None,
        "checkpoint": {"digest": {"sha256": checkpoint}} if checkpoint else None,
        "usage": _usage(run.usage),
        "judgeUsage": _usage(run.judge_usage),
        "userUsage": _usage(run.user_usage),
        "egress": _egress(of, run.egress),
    }


def _regraded(of: FinishedTrial) -> dict[str, Any] | None:
    """Return the trial that this regrade verified again, with the digests of that trial's task, tests and checkpoints."""
    source = of.trial.status.regraded
    if source is None:
        return None
    return {
        "trial": source.trial,
        "uid": source.uid,
        "task": {"digest": _digest_set(source.task_digest)} if source.task_digest else None,
        "steps": [
            {
                "name": step.name,
                "tests": "omitted"
                if step.tests == "omitted"
                else [{"name": name, "digest": {"sha256": sha256}} for name, sha256 in step.tests.items()],
                "checkpoint": {"digest": {"sha256": step.checkpoint}} if step.checkpoint else None,
                "exception": of.shown(step.exception.type) if step.exception else None,
            }
            for step in source.steps
        ],
    }


def _tests(step: StepPlan) -> list[Content]:
    """Return the uploads of a step's tests in order. [] if the tests are in the verifier's image."""
    if step.verifier is None:
        return []
    uploads = ((step.verifier.task_tests, None), (step.verifier.step_tests, step.directory))
    return [Content("tests", directory) for exists, directory in uploads if exists]


def _egress(of: FinishedTrial, egress: EgressStatus | None) -> dict[str, Any] | None:
    if egress is None:
        return None
    refused = [of.shown(target.model_dump(mode="json", exclude_none=True)) for target in egress.refused]
    return {"refused": refused, "others": egress.others}


def _usage(usage: Usage | None) -> dict[str, Any] | None:
    return None if usage is None else usage.model_dump(mode="json", by_alias=True, exclude_none=True)


MAX_BYTES = 16 * 2**20


class Sha256(Model):
    """A digest in in-toto's format."""

    sha256: str


class Digested(Model):
    """The digest of a checkpoint or of a directory of tests."""

    digest: Sha256
    name: str = ""
    """Directory of the tests in the task, or "" for a checkpoint."""


class PredicateTask(Model):
    """The trial's task."""

    digest: dict[str, str]
    """Hexadecimal digests, by algorithm."""


class PredicateAgent(Model):
    """The trial's agent."""

    name: str
    version: str = "unknown"
    model: str | None = None


class PredicateTrial(Model):
    """The trial that the statement is about."""

    sweep_uid: Annotated[str | None, Field(alias="sweepUID")] = None
    """UID of the sweep that created the trial, or "". It is None in statements of earlier releases."""


class PredicateStep(Model):
    """A step of the trial."""

    name: str
    trial: str | None = None
    """The other trial that ran the step, or None if the trial itself ran it."""
    checkpoint: Digested | None = None
    exception: str | None = None
    """The exception's type."""
    exception_phase: str | None = None
    """The phase that raised the exception."""
    tests: Sequence[Digested] = ()


class PredicateSource(Model):
    """The trial that a regrade verified again."""

    trial: str


class Predicate(Model):
    """The parts of a statement's predicate that other trials read. Statements of earlier releases lack failure, score and
    passed."""

    trial: PredicateTrial = PredicateTrial()
    outcome: Literal["Complete", "Failed"]
    failure: TrialFailure | None = None
    score: Annotated[float | None, Field(allow_inf_nan=False)] = None
    passed: bool | None = None
    task: PredicateTask
    agent: PredicateAgent
    steps: Sequence[PredicateStep] = ()
    tampering: Sequence[Tampering] = ()
    regraded: PredicateSource | None = None


class _Statement(Model):
    predicate: Predicate


def parse_predicate(data: bytes) -> Predicate | None:
    """Return a statement's predicate, or None if the statement does not have this operator's format."""
    try:
        return _Statement.model_validate_json(data).predicate
    except ValidationError:
        return None
