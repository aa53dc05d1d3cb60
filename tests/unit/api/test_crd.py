"""Test that the CRDs in crds/ match the models and retain every field that the models write."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from hack.generate.crds import KINDS, SWEEP, TRIAL, Kind, crd, crd_yaml, openapi_schema
from multistep.api.sweep.sweep import SweepSpec, SweepStatus
from multistep.api.trial.spec import TrialSpec
from multistep.api.trial.status import TrialStatus
from multistep.api.trial.status_journal import FIELD, joined, stored
from multistep.api.trial.trial import parse_trial

ROOT = Path(__file__).parents[3]
SCHEMAS = {kind: openapi_schema(kind) for kind in KINDS}
SCHEMA, OF_SWEEPS = SCHEMAS[TRIAL], SCHEMAS[SWEEP]
JSON = st.recursive(
    st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.kind)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def test_the_file_is_current(kind: Kind) -> None:
    text = (ROOT / "crds" / kind.file).read_text()
    assert text == crd_yaml(kind), "run: make generate"
    assert yaml.safe_load(text) == crd(kind)


def nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for below in [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]:
        if below:
            yield from nodes(below)


def test_descriptions_of_a_spec_name_its_defaults() -> None:
    attempts = OF_SWEEPS["properties"]["spec"]["properties"]
    assert attempts["parallelism"]["description"].endswith("Default: 10.")
    assert attempts["order"]["description"].endswith("Default: Attempts.")
    assert attempts["suspend"]["description"].endswith("Default: false.")
    assert "Default" not in attempts["tasks"]["description"]
    assert "Default: " not in json.dumps(SCHEMA["properties"]["status"])


def test_the_schema_is_structural(kind: Kind) -> None:
    for node in nodes(SCHEMAS[kind]):
        assert "type" in node or node.get("x-kubernetes-int-or-string"), node
        assert not {"$ref", "anyOf", "allOf", "oneOf", "title", "const"} & node.keys(), node
        assert node.get("additionalProperties") is not False


def test_a_spec_has_no_defaults_and_a_status_only_that_no_operator_saw_it_yet(kind: Kind) -> None:
    """Specs have no defaults, so GitOps tools see no drift; a new status is not ready (kstatus) until an operator reconciles it."""
    [default] = [node["default"] for node in nodes(SCHEMAS[kind]) if "default" in node]
    assert SCHEMAS[kind]["properties"]["status"]["default"] == default
    assert (default["observedGeneration"], [(each["type"], each["status"]) for each in default["conditions"]]) == (
        -1, [("Ready", "Unknown")],
    )  # fmt: skip
    TrialStatus.model_validate(default)


def test_the_status_of_a_trial_has_few_fields() -> None:
    """What people do not read is in status.journal."""
    assert sum(len(node.get("properties", {})) for node in nodes(SCHEMA["properties"]["status"])) <= 100


def test_every_field_of_spec_and_status_is_described(kind: Kind) -> None:
    for part in ("spec", "status"):
        for node in nodes(SCHEMAS[kind]["properties"][part]):
            for name, below in node.get("properties", {}).items():
                assert below.get("description"), name


def test_all_of_the_spec_is_immutable_but_what_is_meant_to_change(kind: Kind) -> None:
    spec = SCHEMAS[kind]["properties"]["spec"]
    rules = [rule for rule in spec["x-kubernetes-validations"] if "oldSelf" in rule["rule"]]
    # These are mutable, but in one direction only: their rules also compare with oldSelf.
    fixed = {rule["fieldPath"].removeprefix(".") for rule in rules} - {"stop", "retries", "tasks", "open"}
    assert fixed | set(kind.spec.mutable) == spec["properties"].keys()
    assert not fixed & set(kind.spec.mutable)


def test_lists_are_atomic(kind: Kind) -> None:
    assert all(node["x-kubernetes-list-type"] == "atomic" for node in nodes(SCHEMAS[kind]) if node.get("type") == "array")


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for JSON values of the annotated type. It ignores constraints, because pruning ignores them."""
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
    fields = {field.alias or name: values(field.annotation) for name, field in model.model_fields.items() if name != FIELD}
    return st.fixed_dictionaries({}, optional=fields)


def pruned(value: Any, schema: dict[str, Any]) -> Any:
    """Return the value without the fields that the API server prunes."""
    if isinstance(value, list):
        return [pruned(item, schema["items"]) for item in value]
    if not isinstance(value, dict) or schema.get("x-kubernetes-preserve-unknown-fields"):
        return value
    below = schema.get("properties", {})
    if more := schema.get("additionalProperties"):
        return {key: pruned(item, more) for key, item in value.items()}
    return {key: pruned(item, below[key]) for key, item in value.items() if key in below}


@given(resources(TrialSpec), resources(SweepSpec))
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_nothing_of_a_spec_is_pruned(trial: dict[str, Any], sweep: dict[str, Any]) -> None:
    assert pruned(trial, SCHEMA["properties"]["spec"]) == trial
    assert pruned(sweep, OF_SWEEPS["properties"]["spec"]) == sweep


@given(resources(TrialStatus), resources(SweepStatus))
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_nothing_of_a_status_is_pruned(trial: dict[str, Any], sweep: dict[str, Any]) -> None:
    as_stored = stored(TrialStatus, trial)
    assert pruned(as_stored, SCHEMA["properties"]["status"]) == as_stored
    assert joined(TrialStatus, as_stored) == joined(TrialStatus, trial)
    assert pruned(sweep, OF_SWEEPS["properties"]["status"]) == sweep


@pytest.mark.parametrize("name", ["inline-trial.yaml", "own-agent/trial.yaml"])
def test_the_examples_fit_the_schema_and_are_valid(name: str) -> None:
    example = yaml.safe_load((ROOT / "examples" / name).read_text())
    parse_trial({**example, "metadata": {**example["metadata"], "namespace": "default", "uid": "u"}})
    assert pruned(example["spec"], SCHEMA["properties"]["spec"]) == example["spec"]
    assert json.loads(json.dumps(example)) == example
