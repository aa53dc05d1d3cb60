"""Generate the CustomResourceDefinitions from the models: ``python -m hack.generate.crds DIRECTORY...``.

A structural schema has no $ref and no unions, unlike the schemas that pydantic generates. The schemas also have no defaults of the
spec. The code applies the defaults, and the descriptions name them for `kubectl explain`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel

from multistep.api.common.base_model import GROUP, VERSION
from multistep.api.sweep.sweep import SWEEP_KIND, SWEEP_PLURAL, SweepSpec, SweepStatus, TrialSweep
from multistep.api.trial.spec import TrialSpec
from multistep.api.trial.status import TrialStatus
from multistep.api.trial.trial import KIND, PLURAL, MultiStepTrial

Schema = dict[str, Any]
Column = tuple[str, str, str, int, str]  # name, type, path, priority (1 is shown only with -o wide), description


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of resource.

    ``another`` is advice in the error message about a change of a field that is not in ``spec.mutable``. ``rules`` are validation
    rules of the whole resource.
    """

    kind: str
    plural: str
    short: str
    whole: type[BaseModel]
    spec: type[TrialSpec | SweepSpec]
    status: type[BaseModel]
    columns: tuple[Column, ...]
    another: str
    rules: tuple[Schema, ...] = ()

    @property
    def file(self) -> str:
        """The name of the kind's file in crds/."""
        return f"{GROUP}_{self.plural}.yaml"


# The status of a new object until an operator reconciles it. With this status, kstatus reports the object as in progress, not as
# finished, and the message suggests to users what to check.
_NOT_SEEN_YET = {
    "observedGeneration": -1,
    "conditions": [
        {
            "type": "Ready",
            "status": "Unknown",
            "reason": "NotSeen",
            "message": "not reconciled yet: check that an operator watches this namespace and shard (label multistep.dev/shard)",
            "lastTransitionTime": "1970-01-01T00:00:00Z",
        }
    ],
}
_KEPT = (
    "description",
    "type",
    "format",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
    "x-kubernetes-validations",
)
_TRIAL_COLUMNS: Final[tuple[Column, ...]] = (
    ("Task", "string", ".status.task", 0, "Name of the task"),
    ("Agent", "string", ".spec.agent.name", 0, "Name of the agent"),
    ("Phase", "string", ".status.phase", 0, "Phase of the trial"),
    ("Step", "string", ".status.currentStep", 0, "Current step"),
    ("Outcome", "string", ".status.outcome", 0, "How the trial ended"),
    ("Score", "number", ".status.score", 0, "The number that sweeps count"),
    ("Reward", "number", ".status.rewards.reward", 0, "rewards.reward of the trial, the task's own reward"),
    ("Failure", "string", ".status.failure.reason", 0, "Reason of the failure"),
    ("Age", "date", ".metadata.creationTimestamp", 0, "Time since the trial was created"),
    ("Pod", "string", ".status.podName", 1, "The trial's pod"),
    ("Node", "string", ".status.nodeName", 1, "The pod's node"),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 1, "Reason of the Ready condition"),
)
_SWEEP_COLUMNS: Final[tuple[Column, ...]] = (
    ("Phase", "string", ".status.phase", 0, "Phase of the sweep"),
    ("Total", "integer", ".status.trials.total", 0, "Trials that the sweep creates in total"),
    ("Finished", "integer", ".status.trials.finished", 0, "Complete and failed trials"),
    ("Active", "integer", ".status.trials.active", 0, "Pending, running and suspended trials"),
    ("Failed", "integer", ".status.trials.failed", 0, "Failed trials"),
    ("Score", "string", ".status.score", 0, "Mean score of each agent so far"),
    ("Age", "date", ".metadata.creationTimestamp", 0, "Time since the sweep was created"),
    ("Created", "integer", ".status.trials.created", 1, "Trials created so far"),
    ("Counted", "integer", ".status.trials.counted", 1, "Scored trials"),
    ("Retried", "integer", ".status.trials.retried", 1, "Retries created so far"),
    ("Pod-Hours", "number", ".status.podHours", 1, "Pod-hours of the sweep's trials"),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 1, "Reason of the Ready condition"),
)
_LABEL_CHARACTERS: Final = 63
TRIAL: Final = Kind(
    KIND,
    PLURAL,
    "mst",
    MultiStepTrial,
    TrialSpec,
    TrialStatus,
    columns=_TRIAL_COLUMNS,
    another="create a new trial",
)
SWEEP: Final = Kind(
    SWEEP_KIND,
    SWEEP_PLURAL,
    "tsw",
    TrialSweep,
    SweepSpec,
    SweepStatus,
    columns=_SWEEP_COLUMNS,
    another="create a new sweep",
    rules=(
        {
            "rule": f"self.metadata.name.size() <= {_LABEL_CHARACTERS}",
            "message": f"the name must have at most {_LABEL_CHARACTERS} characters: it is a label of the sweep's trials",
        },
    ),
)
KINDS: Final = (TRIAL, SWEEP)


def crd(kind: Kind = TRIAL) -> Schema:
    """Return the CustomResourceDefinition of a kind."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.kind.lower(),
                "shortNames": [kind.short],
                "categories": ["multistep"],
            },
            "versions": [_version(kind)],
        },
    }


def openapi_schema(kind: Kind = TRIAL) -> Schema:
    """Return the structural schema of the resource."""
    spec = _structural(kind.spec, nullable=False)
    fixed = [name for name in spec["properties"] if name not in kind.spec.mutable]
    immutable = [_immutable(name, spec["required"], kind.another) for name in fixed]
    spec["x-kubernetes-validations"] = [*spec.get("x-kubernetes-validations", ()), *immutable]
    rules = {"x-kubernetes-validations": list(kind.rules)} if kind.rules else {}
    return {
        "type": "object",
        "description": (kind.whole.__doc__ or "").strip(),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": {**_structural(kind.status, nullable=True), "default": _NOT_SEEN_YET},
        },
    } | rules


def _version(kind: Kind) -> Schema:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": name, "type": type_, "jsonPath": path, "priority": priority, "description": text}
            for name, type_, path, priority, text in kind.columns
        ],
        "schema": {"openAPIV3Schema": openapi_schema(kind)},
    }


def _immutable(name: str, required: list[str], another: str) -> dict[str, str]:
    rule = f"self.{name} == oldSelf.{name}"
    if name not in required:
        rule = f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || {rule})"
    return {"rule": rule, "message": f"{name} cannot be changed: {another}", "fieldPath": f".{name}"}


def _structural(model: type[BaseModel], *, nullable: bool) -> Schema:
    """Return a model's schema with all references inlined. With ``nullable``, optional fields may be null."""
    whole = model.model_json_schema(by_alias=True)
    return _converted(whole, whole.get("$defs", {}), nullable)


def _converted(node: Schema, definitions: Mapping[str, Schema], nullable: bool) -> Schema:
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[1]]
        return _converted({**target, **{k: v for k, v in node.items() if k != "$ref"}}, definitions, nullable)
    if "anyOf" in node:
        return _union(node, definitions, nullable)
    kept = {key: node[key] for key in _KEPT if key in node}
    if "description" in kept:
        kept["description"] = " ".join([*kept["description"].split(), *([] if nullable else _default(node))])
    if "properties" in node:
        kept["properties"] = {k: _converted(v, definitions, nullable) for k, v in node["properties"].items()}
    if "items" in node:
        kept |= {"items": _converted(node["items"], definitions, nullable), "x-kubernetes-list-type": "atomic"}
    return kept | _free_form(node, definitions, nullable)


def _default(node: Schema) -> list[str]:
    """Return a sentence with the field's default value, unless it is unset, empty or an object."""
    value = node.get("default")
    return (
        [f"Default: {value if isinstance(value, str) else json.dumps(value)}."]
        if value not in (None, "", [], {}) and not isinstance(value, dict)
        else []
    )


def _free_form(node: Schema, definitions: Mapping[str, Schema], nullable: bool) -> Schema:
    values = node.get("additionalProperties")
    if values is True:
        return {"x-kubernetes-preserve-unknown-fields": True}
    return {"additionalProperties": _converted(values, definitions, nullable)} if values else {}


def _union(node: Schema, definitions: Mapping[str, Schema], nullable: bool) -> Schema:
    members = [member for member in node["anyOf"] if member.get("type") != "null"]
    outer = {k: v for k, v in node.items() if k != "anyOf"}
    kinds = {member.get("type") for member in members}
    if kinds == {"string", "integer"}:
        merged = {"x-kubernetes-int-or-string": True} | _converted(outer, definitions, nullable)
    elif kinds == {"integer", "number"}:
        merged = _converted({"type": "number"} | outer, definitions, nullable)
    else:
        (member,) = members
        merged = _converted({**member, **outer}, definitions, nullable)
    return merged | ({"nullable": True} if nullable and len(members) < len(node["anyOf"]) else {})


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - no anchors, which some readers and tools do not expect
        return True


def crd_yaml(kind: Kind = TRIAL) -> str:
    """Return the text of the kind's file in crds/."""
    text = yaml.dump(crd(kind), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    return "# Generated by `make generate`; a test checks that it is current.\n" + text


def main() -> None:
    """Write the CustomResourceDefinitions into directories."""
    for directory in map(Path, sys.argv[1:]):
        for kind in KINDS:
            (directory / kind.file).write_text(crd_yaml(kind))


if __name__ == "__main__":
    main()
