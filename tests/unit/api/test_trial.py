"""The MultiStepTrial resource is parsed with its defaults; errors name the field's path."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from multistep.api.sweep.sweep import Scoring, SweepStatus
from multistep.api.task.task_toml import ArtifactConfig
from multistep.api.trial.agent_spec import AgentSpec
from multistep.api.trial.score import outcome_level, outcome_words
from multistep.api.trial.status import TrialStatus
from multistep.api.trial.trial import MultiStepTrial, parse_status, parse_trial
from multistep.engine.status.tampering_findings import evidence
from multistep.engine.sweep.trial_manifests import trial_facts
from multistep.errors import InvalidSpec

TASK: dict[str, Any] = {"inline": {"config": {}}}
BUNDLE: dict[str, Any] = {"configMaps": ["a"], "digest": "sha256:" + "0" * 64}
SECRET = {"secretKeyRef": {"name": "s", "key": "k"}}


def trial(**spec: Any) -> MultiStepTrial:
    return parse_trial({"spec": {"task": TASK, **spec}})


def test_defaults_are_those_of_the_code() -> None:
    spec = trial().spec
    assert spec.agent == AgentSpec(name="oracle")
    assert (spec.on_agent_error, spec.pod_cleanup, spec.infrastructure_retries) == ("Abort", "Always", 2)
    assert spec.timeout_multiplier == 1
    assert spec.agent.timeout_multiplier is None
    assert not spec.suspend
    assert spec.ttl_seconds_after_finished is None


def test_fields_have_their_names_in_the_resource() -> None:
    spec = trial(
        podTTLSecondsAfterFinished=3,
        agent={"name": "command", "command": ["a"], "timeoutSeconds": 1.5, "user": 1000},
        variables=[{"name": "A", "valueFrom": SECRET}],
        artifacts=[{"source": "/a", "exclude": ["*.log"]}],
        environment={"podTemplate": {"spec": {"tolerations": [1]}}, "runnerInImage": True},
    ).spec
    assert spec.pod_ttl_seconds_after_finished == 3
    assert (spec.agent.timeout_seconds, spec.agent.user) == (1.5, 1000)
    assert spec.variables[0].value_from is not None
    assert spec.environment.pod_template == {"spec": {"tolerations": [1]}}
    assert spec.artifacts[0].config() == ArtifactConfig(source="/a", exclude=["*.log"])


def test_null_is_absent() -> None:
    assert trial(agent=None, suspend=None, variables=[{"name": "A", "value": None}]).spec.agent.name == "oracle"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"task": {}}, "spec.task: must have exactly one of bundle, inline, oci, git and url"),
        ({"task": {**TASK, "bundle": BUNDLE}}, "spec.task: must have exactly one of bundle, inline, oci, git and url"),
        ({"task": {"bundle": {**BUNDLE, "digest": "md5:0"}}}, "spec.task.bundle.digest: should match pattern"),
        ({"from": {"trial": "t", "step": "a"}, "fromStep": "b"}, "spec: must have only one of from and fromStep"),
        ({"from": {"trial": "T", "step": "a"}}, "spec.from.trial: should match pattern"),
        ({"toStep": "a/b"}, "spec.toStep: must be one portable directory name"),
        (
            {"fromStep": "b", "resumeTrajectory": True, "agent": {"name": "claude-code"}},
            "spec: resumeTrajectory must not be true with fromStep",
        ),
        (
            {"from": {"trial": "t", "step": "b"}, "resumeTrajectory": True, "agent": {"name": "claude-code"}},
            "spec: resumeTrajectory must not be true with from: no checkpoint has the agent's session of a kept step",
        ),
        (
            {"agent": {"name": "claude"}},
            "spec.agent.name: must be oracle, nop, command or the name of an agent of Harbor 0.26",
        ),
        ({"agent": {"name": "command"}}, "spec.agent: command is required with name 'command'"),
        ({"agent": {"name": "nop", "command": ["a"]}}, "spec.agent: command is required with name 'command'"),
        ({"agent": {"name": "nop", "timeoutSeconds": -1}}, "spec.agent.timeoutSeconds: should be greater than or equal"),
        ({"agent": {"name": "nop", "timeoutSeconds": "x"}}, "spec.agent.timeoutSeconds: should be a valid number"),
        ({"variables": [{"name": "1A"}]}, "spec.variables[0].name: should match pattern"),
        ({"variables": [{"name": "A", "value": "", "valueFrom": SECRET}]}, "spec.variables[0]: must have only one of"),
        (
            {"variables": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "../../red2/secrets/x", "key": "k"}}}]},
            "spec.variables[0].valueFrom.secretKeyRef.name: should match pattern",
        ),
        (
            {"variables": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "../k"}}}]},
            "spec.variables[0].valueFrom.configMapKeyRef.key: should match pattern",
        ),
        ({"task": {"bundle": {**BUNDLE, "configMaps": ["a/b"]}}}, "spec.task.bundle.configMaps[0]: should match pattern"),
        (
            {"task": {"git": {"url": "https://git.example/r.git", "secretRef": {"name": "../x"}}}},
            "spec.task.git.secretRef.name: should match pattern",
        ),
        ({"variables": [{"name": "A", "valueFrom": {}}]}, "spec.variables[0].valueFrom: must have exactly one of"),
        ({"artifacts": [{"source": "/a/../b"}]}, "spec.artifacts[0].source: must not have a '..' in it"),
        ({"artifacts": ["/a"]}, "spec.artifacts[0]: should be a table; got '/a'"),
        ({"ttlSecondsAfterFinished": -1}, "spec.ttlSecondsAfterFinished: should be greater than or equal to 0"),
        ({"activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds: should be greater than or equal to 1"),
        ({"onAgentError": "abort"}, "spec.onAgentError: should be 'Abort' or 'Continue'; got 'abort'"),
        ({"resumeTrajectory": True}, "spec: resumeTrajectory must not be true: oracle cannot resume a trajectory"),
        (
            {"agent": {"name": "claude-code"}, "resumeTrajectory": True, "checkpoints": {"policy": "AfterStep"}},
            "spec: checkpoints.policy must be Never with resumeTrajectory",
        ),
        ({"agent": {"name": "aider", "importPath": "a:B"}}, "spec.agent: must have exactly one of name and importPath"),
        (
            {"agent": {"name": "cursor-cli", "model": "a/b", "credentials": [{"name": "CURSOR_API_KEY", "value": "k"}]}},
            "spec.agent: access must be Direct: cursor-cli takes no base URL",
        ),
        (
            {"agent": {"name": "codex", "model": "a/b", "credentials": [{"name": "MY_KEY", "value": "k"}]}},
            "spec.agent: credentials: the model gateway does not know MY_KEY, only ANTHROPIC_API_KEY",
        ),
        ({"agent": {"importPath": "a.B"}}, "spec.agent.importPath: should match pattern"),
        (
            {"agent": {"name": "codex", "model": "a/b", "limits": {"costUSD": 1}}},
            "spec.agent: limits need the model gateway: access must be Gateway",
        ),
        *(
            ({"agent": {**agent, **field}}, f"spec.agent: {message} needs the model gateway")
            for field, message in (({"providerTools": "Refuse"}, "providerTools Refuse"), ({"capture": "Tokens"}, "capture Tokens"))
            for agent in ({"name": "nop"}, {"name": "codex", "model": "a/b", "access": "Direct"})
        ),
        ({"agent": {"name": "nop", "limits": {"costUSD": 1}}}, "spec.agent: limits is not allowed: the nop agent uses no model"),
        ({"agent": {"name": "nop", "model": "a/b"}}, "spec.agent: model is not allowed: the nop agent uses no model"),
        (
            {"agent": {"name": "cluade-code"}},
            "spec.agent.name: must be oracle, nop, command or the name of an agent of Harbor 0.26; did",
        ),
    ],
)
def test_what_is_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        trial(**spec)
    assert str(caught.value).startswith(message)


def test_a_refusal_does_not_show_the_variables() -> None:
    with pytest.raises(InvalidSpec) as caught:
        trial(variables=[{"name": "A", "value": "hunter2", "valueFrom": SECRET}])
    assert "hunter2" not in str(caught.value)


def test_status_can_be_read_when_the_spec_cannot() -> None:
    status = parse_status({"spec": {}, "status": {"podUID": "u", "rewards": {}, "steps": [{"name": "a"}]}})
    assert (status.pod_uid, status.rewards, status.steps[0].rewards) == ("u", {}, None)
    assert parse_status({"status": None}) == TrialStatus()
    with pytest.raises(InvalidSpec, match=r"status.attempt: should be a valid integer"):
        parse_status({"status": {"attempt": "x"}})


def test_a_status_with_a_choice_of_a_later_release_can_be_read_and_is_kept_by_a_rollback() -> None:
    found = {"attempt": 1, "step": "a", "kind": "LaterKind", "detail": ""}
    usage = {"source": "LaterSource"}
    failure = {"class": "LaterClass", "reason": "Why"}
    later = {
        "isolation": "LaterIsolation", "tampering": [found], "steps": [{"name": "a", "usage": usage}], "usage": usage,
        "outcome": "LaterOutcome", "failure": failure,
    }  # fmt: skip
    status = parse_status({"status": later})
    with warnings.catch_warnings(action="error"):
        shown = status.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert {name: shown[name] for name in later} == later
    assert evidence(each.kind for each in status.tampering) == [], "this release cannot know what it means"
    counts = trial_facts({"metadata": {"name": "t"}, "status": {**later, "score": 0.5}}, Scoring())
    assert (counts.invalid, counts.score, counts.failure_class) == (False, 0.5, "LaterClass")
    assert (outcome_words(status.outcome or "Excluded"), outcome_level(status.outcome or "Excluded")) == ("LaterOutcome", "neutral")
    sweep = SweepStatus.model_validate({"excluded": {"LaterClass": 1}})
    assert sweep.model_dump(mode="json")["excluded"] == {"LaterClass": 1}


@pytest.mark.parametrize("kind", [1, "x" * 65, None])
def test_a_choice_that_no_release_can_have_written_is_refused(kind: object) -> None:
    with pytest.raises(InvalidSpec, match=r"status.tampering\[0\].kind"):
        parse_status({"status": {"tampering": [{"attempt": 1, "step": "a", "kind": kind}]}})


def test_rewards_keep_their_kind_of_number() -> None:
    rewards = parse_status({"status": {"rewards": {"a": 1, "b": 1.0}}}).rewards or {}
    assert [type(value) for value in rewards.values()] == [int, float]
