"""Makes the CustomResourceDefinition from the models: ``python -m multistep.api.crd > crds/...yaml``.

A structural schema allows less than pydantic writes: no $ref, no unions, no defaults (those are applied in code).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import BaseModel

from .trial import GROUP, KIND, PLURAL, VERSION, MultiStepTrial, TrialSpec, TrialStatus

Schema = dict[str, Any]

MUTABLE = (
    "suspend",
    "suspendPolicy",
    "stop",
    "activeDeadlineSeconds",
    "podTTLSecondsAfterFinished",
    "ttlSecondsAfterFinished",
)
_STOPS_FOR_GOOD = {
    "rule": "!has(oldSelf.stop) || !oldSelf.stop || (has(self.stop) && self.stop)",
    "message": "stop cannot be taken back: make a new trial",
    "fieldPath": ".stop",
}
_NOT_SEEN_YET = {"observedGeneration": -1}  # else kstatus would take a trial that no operator has seen for one that is done
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
COLUMNS = (
    ("Task", "string", ".status.task", 0, "What the task is called"),
    ("Agent", "string", ".spec.agent.name", 0, "Who works on it"),
    ("Phase", "string", ".status.phase", 0, "Where the trial is"),
    ("Step", "string", ".status.currentStep", 0, "The step that runs"),
    ("Reward", "string", ".status.reward", 0, "rewards.reward of the trial"),
    ("Age", "date", ".metadata.creationTimestamp", 0, "Since the trial was made"),
    ("Pod", "string", ".status.podName", 1, "The trial's pod"),
    ("Node", "string", ".status.nodeName", 1, "The pod's node"),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 1, "Why it is as it is"),
)


def crd() -> Schema:
    """The CustomResourceDefinition of MultiStepTrial."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["mst"],
                "categories": ["multistep"],
            },
            "versions": [_version()],
        },
    }


def openapi_schema() -> Schema:
    """The structural schema of the resource."""
    spec = _structural(TrialSpec, nullable=False)
    immutable = [_immutable(name, spec["required"]) for name in _immutable_fields(spec)]
    spec["x-kubernetes-validations"] = [*immutable, _STOPS_FOR_GOOD]
    return {
        "type": "object",
        "description": (MultiStepTrial.__doc__ or "").strip(),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": {**_structural(TrialStatus, nullable=True), "default": _NOT_SEEN_YET},
        },
    }


def _version() -> Schema:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "priority": priority, "description": text}
            for name, kind, path, priority, text in COLUMNS
        ],
        "schema": {"openAPIV3Schema": openapi_schema()},
    }


def _immutable_fields(spec: Schema) -> list[str]:
    return [name for name in spec["properties"] if name not in MUTABLE]


def _immutable(name: str, required: list[str]) -> dict[str, str]:
    rule = f"self.{name} == oldSelf.{name}"
    if name not in required:
        rule = f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || {rule})"
    return {"rule": rule, "message": f"{name} cannot be changed: make a new trial", "fieldPath": f".{name}"}


def _structural(model: type[BaseModel], *, nullable: bool) -> Schema:
    """A model's schema with all references inlined. nullable: whether optional fields may be null."""
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
        kept["description"] = " ".join(kept["description"].split())
    if "properties" in node:
        kept["properties"] = {k: _converted(v, definitions, nullable) for k, v in node["properties"].items()}
    if "items" in node:
        kept |= {"items": _converted(node["items"], definitions, nullable), "x-kubernetes-list-type": "atomic"}
    return kept | _free_form(node, definitions, nullable)


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
        merged = {"x-kubernetes-int-or-string": True} | {k: outer[k] for k in ("description",) if k in outer}
    elif kinds == {"integer", "number"}:
        merged = _converted({"type": "number"} | outer, definitions, nullable)
    else:
        (member,) = members
        merged = _converted({**member, **outer}, definitions, nullable)
    return merged | ({"nullable": True} if nullable and len(members) < len(node["anyOf"]) else {})


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - no anchors: people and tools read this file
        return True


def crd_yaml() -> str:
    """The text of the file in crds/."""
    text = yaml.dump(crd(), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    return "# Made by `python -m multistep.api.crd`; a test keeps it current.\n" + text


def main() -> None:
    """Prints the CustomResourceDefinition."""
    print(crd_yaml(), end="")


if __name__ == "__main__":
    main()
