"""Pod templates are checked wherever a spec is parsed that has not started."""

from __future__ import annotations

from typing import Any

import pytest

from multistep.api.sweep.sweep import parse_sweep
from multistep.api.trial.trial import parse_trial
from multistep.errors import InvalidSpec

WRONG: dict[str, tuple[Any, str]] = {
    "a misspelt field": ({"spec": {"nodeSelectr": {"a": "b"}}}, r"spec\.nodeSelectr: unknown field; did you mean nodeSelector\?"),
    "a misspelt field of a container": (
        {"spec": {"containers": [{"name": "main", "resource": {}}]}},
        r"spec\.containers\[main\]\.resource: unknown field; did you mean resources\?",
    ),
    "a field of a pod at the top": ({"nodeSelector": {}}, "nodeSelector: unknown field"),
    "an owner": ({"metadata": {"ownerReferences": []}}, r"metadata\.ownerReferences: unknown field"),
    "a key that is no text": ({"spec": {1: 2, "nodeSelectr": {}}}, r"spec\.1: unknown field"),
    "no object": ({"spec": [1]}, "spec: must be an object"),
    "no list": ({"spec": {"containers": {"name": "main"}}}, r"spec\.containers: must be a list"),
    "no name": ({"spec": {"containers": [{"image": "x"}]}}, r"spec\.containers\[0\]\.name: must be the container's name"),
    "the sidecar's name": (
        {"spec": {"initContainers": [{"name": "egress", "image": "op", "command": ["sh"]}]}},
        r"spec\.initContainers\[egress\]: the name is reserved",
    ),
    "the sidecar's name among containers": ({"spec": {"containers": [{"name": "egress"}]}}, "the name is reserved"),
    "the installer's name": ({"spec": {"initContainers": [{"name": "install-runner"}]}}, "the name is reserved"),
    "a service's name": ({"spec": {"initContainers": [{"name": "svc-db"}]}}, "the name is reserved"),
    "main before main": ({"spec": {"initContainers": [{"name": "main"}]}}, "the name is reserved"),
    "another command": ({"spec": {"containers": [{"name": "main", "command": ["sh"]}]}}, r"containers\[main\]\.command: must not"),
    "arguments": ({"spec": {"containers": [{"name": "agent-host", "args": ["x"]}]}}, r"containers\[agent-host\]\.args: must not"),
}
RIGHT = {
    "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}, "name": "x", "generateName": "x-", "namespace": "y"},
    "spec": {
        "nodeSelector": {"a": "b"},
        "containers": [
            {"name": "main", "resources": {}},
            {"name": "agent-host", "env": []},
            {"name": "log", "image": "x", "command": ["sh"], "args": ["-c"]},
        ],
        "initContainers": [{"name": "seed", "image": "x", "command": ["sh"]}],
    },
}


TIME = "2026-11-29T12:00:00Z"
FAILED: dict[str, Any] = {"conditions": [{"type": "Failed", "status": "True", "reason": "Stopped", "lastTransitionTime": TIME}]}


def trial(template: Any, **status: Any) -> dict[str, Any]:
    return {"spec": {"task": {"inline": {"config": {}}}, "environment": {"podTemplate": template}}, "status": status}


def sweep(template: Any, **status: Any) -> dict[str, Any]:
    return sweep_of({"template": {"spec": {"environment": {"podTemplate": template}}}}, **status)


def sweep_of(fields: dict[str, Any], **status: Any) -> dict[str, Any]:
    agents, tasks = [{"name": "a", "agent": {"name": "nop"}}], [{"name": "t", "inline": {"config": {}}}]
    return {"metadata": {"name": "s", "namespace": "n"}, "spec": {"tasks": tasks, "agents": agents, **fields}, "status": status}


@pytest.mark.parametrize(("template", "message"), WRONG.values(), ids=WRONG)
def test_what_would_have_no_effect_or_takes_the_operators_place_is_rejected(template: Any, message: str) -> None:
    with pytest.raises(InvalidSpec, match=rf"spec\.environment\.podTemplate: .*{message}"):
        parse_trial(trial(template))
    with pytest.raises(InvalidSpec, match=rf"spec\.template\.spec\.environment\.podTemplate: .*{message}"):
        parse_sweep(sweep(template))


@pytest.mark.parametrize("template", [each for each, _ in WRONG.values()], ids=WRONG)
def test_trials_and_sweeps_that_an_earlier_release_started_or_finished_go_on(template: Any) -> None:
    for trials, sweeps in (({"attempt": 1}, {"startTime": TIME}), (FAILED, FAILED)):
        assert parse_trial(trial(template, **trials)).spec.environment.pod_template == template
        assert parse_sweep(sweep(template, **sweeps)).spec.template.spec.environment.pod_template == template


def test_each_wrong_template_of_a_sweep_is_named_by_its_field() -> None:
    wrong = {"environment": {"podTemplate": {"spec": {"x": 1}}}}
    tasks = [{"name": "t", "inline": {"config": {}}}, {"name": "u", "inline": {"config": {}}, **wrong}]
    with pytest.raises(InvalidSpec) as caught:
        parse_sweep(sweep_of({"tasks": tasks, "overrides": [{"spec": wrong}]}))
    assert str(caught.value).splitlines() == [
        "spec.tasks[1].environment.podTemplate: spec.x: unknown field",
        "spec.overrides[0].spec.environment.podTemplate: spec.x: unknown field",
    ]


@pytest.mark.parametrize("template", [RIGHT, {}, None])
def test_templates_of_pods_are_accepted(template: Any) -> None:
    assert parse_trial(trial(template)).spec.environment.pod_template == template
