"""Pod templates are checked wherever a spec is parsed."""

from __future__ import annotations

from typing import Any

import pytest

from multistep.api.sweep import parse_sweep
from multistep.api.trial import parse_trial
from multistep.errors import InvalidSpec

WRONG: dict[str, tuple[Any, str]] = {
    "a misspelt field": ({"spec": {"nodeSelectr": {"a": "b"}}}, r"spec\.nodeSelectr: unknown field; did you mean nodeSelector\?"),
    "a misspelt field of a container": (
        {"spec": {"containers": [{"name": "main", "resource": {}}]}},
        r"spec\.containers\[main\]\.resource: unknown field; did you mean resources\?",
    ),
    "a field of a pod at the top": ({"nodeSelector": {}}, "nodeSelector: unknown field"),
    "a name in the metadata": ({"metadata": {"name": "x"}}, r"metadata\.name: unknown field"),
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
    "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
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


def trial(template: Any) -> dict[str, Any]:
    return {"spec": {"task": {"inline": {"config": {}}}, "environment": {"podTemplate": template}}}


def sweep(template: Any) -> dict[str, Any]:
    agents, tasks = [{"name": "a", "agent": {"name": "nop"}}], [{"name": "t", "inline": {"config": {}}}]
    spec = {"tasks": tasks, "agents": agents, "template": {"spec": {"environment": {"podTemplate": template}}}}
    return {"metadata": {"name": "s", "namespace": "n"}, "spec": spec}


@pytest.mark.parametrize(("template", "message"), WRONG.values(), ids=WRONG)
def test_what_would_have_no_effect_or_takes_the_operators_place_is_rejected(template: Any, message: str) -> None:
    with pytest.raises(InvalidSpec, match=rf"spec\.environment\.podTemplate: .*{message}"):
        parse_trial(trial(template))
    with pytest.raises(InvalidSpec, match=message):
        parse_sweep(sweep(template))


@pytest.mark.parametrize("template", [RIGHT, {}, None])
def test_templates_of_pods_are_accepted(template: Any) -> None:
    assert parse_trial(trial(template)).spec.environment.pod_template == template
