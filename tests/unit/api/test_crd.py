"""The CRD in crds/ is what the models make, and it keeps whatever they write."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from multistep.api.crd import MUTABLE, crd, crd_yaml, openapi_schema
from multistep.api.trial import TrialSpec, TrialStatus

ROOT = Path(__file__).parents[3]
FILE = ROOT / "crds/multistep.dev_multisteptrials.yaml"
SCHEMA = openapi_schema()
JSON = st.recursive(
    st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def test_the_file_is_current() -> None:
    assert FILE.read_text() == crd_yaml(), "run: PYTHONPATH=operator python -m multistep.api.crd > crds/..."
    assert yaml.safe_load(FILE.read_text()) == crd()


def nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for below in [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]:
        if below:
            yield from nodes(below)


def test_the_schema_is_structural() -> None:
    for node in nodes(SCHEMA):
        assert "type" in node or node.get("x-kubernetes-int-or-string"), node
        assert not {"$ref", "anyOf", "allOf", "oneOf", "title", "const"} & node.keys(), node
        assert node.get("additionalProperties") is not False


def test_nothing_of_a_spec_is_defaulted_and_of_a_status_only_that_nobody_saw_the_trial_yet() -> None:
    """A GitOps tool finds in the cluster what it wrote; and what no operator saw is not ready (kstatus)."""
    assert [node["default"] for node in nodes(SCHEMA) if "default" in node] == [{"observedGeneration": -1}]
    assert SCHEMA["properties"]["status"]["default"] == {"observedGeneration": -1}


def test_every_field_of_spec_and_status_is_described() -> None:
    for part in ("spec", "status"):
        for node in nodes(SCHEMA["properties"][part]):
            for name, below in node.get("properties", {}).items():
                assert below.get("description"), name


def test_all_of_the_spec_is_immutable_but_what_is_meant_to_change() -> None:
    spec = SCHEMA["properties"]["spec"]
    fixed = {rule["fieldPath"].removeprefix(".") for rule in spec["x-kubernetes-validations"]} - {"stop"}  # which is one-way
    assert fixed | set(MUTABLE) == spec["properties"].keys()
    assert not fixed & set(MUTABLE)


def test_lists_are_atomic() -> None:
    assert all(node["x-kubernetes-list-type"] == "atomic" for node in nodes(SCHEMA) if node.get("type") == "array")


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """JSON of the shape of a field's annotation; constraints are left aside, pruning does not look at them."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return values(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*(values(argument) for argument in arguments if argument is not type(None)))
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is list:
        return st.lists(values(arguments[0]), max_size=2)
    if origin is dict:
        return st.dictionaries(st.text(max_size=4), values(arguments[1]), max_size=2)
    if annotation is Any:
        return JSON
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return resources(annotation)
    return {bool: st.booleans(), int: st.integers(0, 9), float: st.floats(0, 9)}.get(annotation, st.text(max_size=4))


def resources(model: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    fields = {field.alias or name: values(field.annotation) for name, field in model.model_fields.items()}
    return st.fixed_dictionaries({}, optional=fields)


def pruned(value: Any, schema: dict[str, Any]) -> Any:
    """What the API server keeps of a value."""
    if isinstance(value, list):
        return [pruned(item, schema["items"]) for item in value]
    if not isinstance(value, dict) or schema.get("x-kubernetes-preserve-unknown-fields"):
        return value
    below = schema.get("properties", {})
    if more := schema.get("additionalProperties"):
        return {key: pruned(item, more) for key, item in value.items()}
    return {key: pruned(item, below[key]) for key, item in value.items() if key in below}


@given(resources(TrialSpec))
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_nothing_of_a_spec_is_pruned(spec: dict[str, Any]) -> None:
    assert pruned(spec, SCHEMA["properties"]["spec"]) == spec


@given(resources(TrialStatus))
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_nothing_of_a_status_is_pruned(status: dict[str, Any]) -> None:
    assert pruned(status, SCHEMA["properties"]["status"]) == status


def test_the_example_fits_the_schema() -> None:
    example = yaml.safe_load((ROOT / "examples/inline-trial.yaml").read_text())
    assert pruned(example["spec"], SCHEMA["properties"]["spec"]) == example["spec"]
    assert json.loads(json.dumps(example)) == example
