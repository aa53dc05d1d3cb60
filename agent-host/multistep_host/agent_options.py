"""Print the options (keyword arguments) of Harbor's registered agents as JSON, from which the operator's table is generated."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any

from harbor.agents.base import BaseAgent
from harbor.agents.factory import AgentFactory
from harbor.models.agent.name import AgentName
from pydantic import AliasChoices, BaseModel

Alternative = str | dict[str, Any]
"""A kind of value that an option accepts. It is the name of a JSON type, `path` (a text), or a type with an enum or bounds as in
JSON Schema."""

# Constructor parameters that are not options, because the agent host sets them or they have no use in a trial.
_OF_THE_HOST = frozenset(
    {
        "self",
        "logs_dir",
        "environment_logs_dir",
        "model_name",
        "logger",
        "mcp_servers",
        "skills_dir",
        "extra_env",
        "load_trajectory",
        "model_api_key_name",
    }
)
_OF_A_CONNECTION = frozenset({"base_url", "model_api_format"})
_RESTRICTIONS = ("enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def options(agent: type[BaseAgent]) -> dict[str, list[Alternative]] | None:
    """Return the kinds of value that an agent class accepts for each option, by option name. The list is ["any"] if the option
    accepts any value.

    Return None for a class without an options model, because such a class ignores unknown options. Harbor 0.26 checks options
    against the model. The constructors' parameters are options, too, even if the model lacks them. An option has a name for each of
    its aliases, such as variant for opencode's reasoning_effort. Options that need a capability that the class lacks are left out,
    because Harbor rejects them.
    """
    if agent.options_model is None:
        return None
    document = agent.options_model.model_json_schema(by_alias=False)
    converted, lacking = _converted(agent.options_model), _lacking(agent)
    found: dict[str, list[Alternative]] = {}
    for name, schema in document["properties"].items():
        alternatives: list[Alternative] = ["any"] if name in converted else _alternatives(schema, document.get("$defs", {}))
        found |= dict.fromkeys(_spellings(agent.options_model, name) if name not in lacking else (), alternatives)
    unchecked = {name for name in _parameters(agent) if name not in found}
    anything: dict[str, list[Alternative]] = {name: ["any"] for name in unchecked}
    if agent.MODEL_CONNECTION and (formats := [each.value for each in agent.MODEL_CONNECTION.supported_api_formats]):
        anything["model_api_format"] = [{"type": "string", "enum": formats}, "null"]
    else:
        anything.pop("model_api_format", None)
    return {name: each for name, each in {**found, **anything}.items() if name not in _OF_THE_HOST | lacking}


def _spellings(model: type[BaseModel], name: str) -> list[str]:
    """Return the names under which a field of the model can be given."""
    alias = model.model_fields[name].validation_alias
    return [each for each in alias.choices if isinstance(each, str)] if isinstance(alias, AliasChoices) else [name]


def _parameters(agent: type[BaseAgent]) -> set[str]:
    """Return the parameter names of the constructors of the class and its bases, up to the first constructor without **kwargs."""
    names: set[str] = set()
    for each in agent.__mro__:
        if (constructor := each.__dict__.get("__init__")) is None:
            continue
        parameters = inspect.signature(constructor).parameters.values()
        names |= {parameter.name for parameter in parameters if parameter.kind in _NAMED}
        if all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters):
            break
    return names


def _converted(model: type[BaseModel]) -> set[str]:
    """Return the names of options whose values a validator converts before their type is checked."""
    validators = model.__pydantic_decorators__.field_validators.values()
    return {name for each in validators if each.info.mode == "before" for name in each.info.fields}


def _lacking(agent: type[BaseAgent]) -> frozenset[str]:
    """Return the names of options that the class inherits but rejects."""
    has = agent.capabilities
    lacking = {name for name, can in (("base_url", has.base_url), ("reasoning_effort", has.reasoning_effort)) if not can}
    return frozenset(lacking) | (frozenset() if agent.MODEL_CONNECTION else _OF_A_CONNECTION)


def _alternatives(schema: dict[str, Any], definitions: Mapping[str, dict[str, Any]]) -> list[Alternative]:
    """Return the kinds of value that a JSON Schema allows (the members of a union), each with only its type and restrictions."""
    if "$ref" in schema:
        return _alternatives(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        return [each for member in schema["anyOf"] for each in _alternatives(member, definitions)]
    kind = "path" if schema.get("format") == "path" else schema.get("type", "any")
    restricted = {name: schema[name] for name in _RESTRICTIONS if name in schema}
    return [{"type": kind, **restricted} if restricted else kind]


if __name__ == "__main__":
    classes = {name: AgentFactory.get_agent_class(AgentName(name)) for name in AgentFactory.registered_names()}
    print(json.dumps({name: found for name, each in classes.items() if (found := options(each)) is not None}))
