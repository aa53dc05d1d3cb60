"""Base model, common types, environment variables and metadata of the models of both custom resources.

Field names are in snake case here and in camelCase in the resource. Durations are in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Any, Final, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from multistep.api.common.problems import problems
from multistep.errors import InvalidSpec

GROUP = "multistep.dev"
VERSION = "v1alpha1"
_LONGEST_WORD = 64
API_VERSION = f"{GROUP}/{VERSION}"

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Multiplier = Annotated[float, Field(ge=0, allow_inf_nan=False)]
WholeSeconds = Annotated[int, Field(ge=0, le=2**31 - 1)]
DeadlineSeconds = Annotated[int, Field(ge=1, le=2**31 - 1)]
ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", max_length=253)]
Name = Annotated[str, Field(min_length=1, max_length=253)]
DataKey = Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]+$", max_length=253)]

_M = TypeVar("_M", bound=BaseModel)


class Model(BaseModel):
    """Base of all models. A null counts as an absent field, as it does for the API server."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: object) -> object:
        return {k: v for k, v in value.items() if v is not None} if isinstance(value, Mapping) else value


def cel(*rules: tuple[str, str], changes: Mapping[str, tuple[str, str]] = MappingProxyType({})) -> ConfigDict:
    """Return CEL validation rules for the CRD, from pairs of rule and message.

    The models check the same ``rules`` in Python, for specs that are read from files. ``changes`` are rules for changes of an
    object, by the name of the field that they restrict.
    """
    validations: list[JsonValue] = [{"rule": rule, "message": message} for rule, message in rules]
    validations += [{"rule": rule, "message": message, "fieldPath": f".{name}"} for name, (rule, message) in changes.items()]
    return ConfigDict(json_schema_extra={"x-kubernetes-validations": validations})


class KeySelector(Model):
    """A key of a Secret or ConfigMap in the trial's namespace."""

    name: ObjectName
    """Name of the Secret or ConfigMap."""
    key: DataKey
    """Key in the data of the Secret or ConfigMap."""
    optional: bool = False
    """If true, a missing object or key leaves the variable unset. If false, the trial waits until object and key exist."""


class EnvVarSource(Model):
    """Source of a variable's value: exactly one of secretKeyRef and configMapKeyRef."""

    model_config = cel(
        ("has(self.secretKeyRef) != has(self.configMapKeyRef)", "must have exactly one of secretKeyRef and configMapKeyRef")
    )

    secret_key_ref: KeySelector | None = None
    """A key of a Secret."""
    config_map_key_ref: KeySelector | None = None
    """A key of a ConfigMap."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.secret_key_ref is None) == (self.config_map_key_ref is None):
            raise ValueError("must have exactly one of secretKeyRef and configMapKeyRef")
        return self


class EnvVar(Model):
    """An environment variable, as in a pod: a value or its source."""

    model_config = cel(("!has(self.value) || !has(self.valueFrom)", "must have only one of value and valueFrom"))

    name: Annotated[str, Field(pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$", max_length=1024)]
    """Name of letters, digits, '_', '.' and '-', which must not start with a digit."""
    value: str | None = None
    """Literal value. Defaults to "" if valueFrom is unset."""
    value_from: EnvVarSource | None = None
    """Source of the value."""

    @model_validator(mode="after")
    def _not_both(self) -> Self:
        if self.value is not None and self.value_from is not None:
            raise ValueError("must have only one of value and valueFrom")
        return self


EnvVars = Annotated[list[EnvVar], Field(max_length=256)]


def _kept_if_text(value: object, known: ValidatorFunctionWrapHandler) -> object:
    try:
        return known(value)
    except ValidationError:
        if isinstance(value, str) and len(value) <= _LONGEST_WORD:
            return value
        raise


OPEN_CHOICE: Final = (WrapValidator(_kept_if_text), PlainSerializer(str), WithJsonSchema({"type": "string"}))
"""Annotation of a choice in a status to which later releases may add values.

After a rollback of the operator an unknown value is kept, because a trial whose status cannot be parsed fails.
"""


class Metadata(Model):
    """The fields of metav1.ObjectMeta that Multistep uses."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[dict[str, Any]] = []


def parsed(model: type[_M], document: Mapping[str, Any], under: str = "") -> _M:
    """Parse a document into a model. Raises InvalidSpec with one line per problem, each starting with the field's path.

    ``under`` is a prefix of the field paths.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise InvalidSpec("\n".join(f"{under}{problem}" for problem in problems(error, document))) from None


_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([eE][+-]?[0-9]+)|([a-zA-Z]*))")
_SUFFIXES = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SUFFIXES |= {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60}


def quantity(text: str) -> float | None:
    """Return a Kubernetes quantity such as 500m or 2Gi as a number, None if the text is not a quantity."""
    found = _QUANTITY.fullmatch(text)
    if found is None or (suffix := found[3] or "") not in _SUFFIXES:
        return None
    return float(found[1] + (found[2] or "")) * _SUFFIXES[suffix]
