"""Generate the names in values.schema.json, the list of settings in values.yaml and the tables of docs/reference/chart.md.

The sources are the chart's values and the programs' settings.

Run this module in the checkout's Python environment with ``python -m hack.generate.chart``.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic_settings import BaseSettings

from multistep.gateway.settings import GatewaySettings
from multistep.settings import Settings

from .reference import between_marks, markdown_table

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "multistep"
SCHEMA = CHART / "values.schema.json"
VALUES = CHART / "values.yaml"
DOCS = ROOT / "docs" / "reference" / "chart.md"

_KEPT = ("type", "enum", "items", "pattern", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_KEY = re.compile(r"^( *)([A-Za-z]\w*):(.*)$")
_WHOLE = frozenset(
    {"podSecurityContext", "resources", "labels"}
)  # each of these values gets one row, without rows for its keys, because Kubernetes or the user defines its keys

Schema = dict[str, Any]


@dataclass(frozen=True)
class Program:
    """A program whose settings are values of the chart."""

    values: str
    """Path of the settings in values.yaml."""
    model: type[BaseSettings]
    template: str
    """The chart's template that sets the program's environment variables."""

    def settings(self) -> dict[str, Schema]:
        """Return the schemas of the settings that users can set with chart values. The template sets the other settings itself."""
        found = self.model.model_json_schema()
        fields = _resolved(found["properties"], found.get("$defs", {}))
        return {_camel(name): _plain(field) for name, field in fields.items() if name not in self._set_by_chart()}

    def _set_by_chart(self) -> set[str]:
        text = (CHART / "templates" / self.template).read_text()
        return {name.lower() for name in re.findall(rf"name: {self.model.model_config['env_prefix']}([A-Z_]+)\n", text)}


OPERATOR = Program("settings", Settings, "deployment.yaml")
GATEWAY = Program("gateway.settings", GatewaySettings, "gateway/statefulset.yaml")


def schema(text: str) -> str:
    """Return the chart's JSON schema ``text``, updated with the programs' current settings. The schema rejects unknown keys."""
    whole: Schema = json.loads(text)
    values = whole["properties"]
    values["settings"] = {"type": "object", "properties": OPERATOR.settings()}
    values["gateway"]["properties"]["settings"] = {"type": "object", "properties": GATEWAY.settings()}
    _close(whole)
    return json.dumps(whole, indent=2) + "\n"


def values(text: str) -> str:
    """Return values.yaml, whose content is ``text``, with an updated list of the programs' settings and defaults as comments."""
    for program, indent in ((OPERATOR, ""), (GATEWAY, "  ")):
        listed = "".join(f"{indent}  # {name}: {json.dumps(default)}\n" for name, default in _defaults(program))
        text = re.sub(rf"(?m)^({indent}settings: {{}}\n)({indent}  # .*\n)*\n?", rf"\1{listed}\n", text)
    return text


def page(text: str) -> str:
    """Return docs/reference/chart.md, whose content is ``text``, with updated tables of values and settings."""
    rows = {"values": _value_rows(), "settings": _setting_rows(OPERATOR), "gateway": _setting_rows(GATEWAY)}
    return between_marks(text, lambda name: markdown_table(("value", "default", "meaning"), rows[name]))


def main() -> None:
    """Rewrite values.schema.json, values.yaml and docs/reference/chart.md."""
    SCHEMA.write_text(schema(SCHEMA.read_text()))
    VALUES.write_text(values(VALUES.read_text()))
    DOCS.write_text(page(DOCS.read_text()))


def _camel(name: str) -> str:
    return re.sub("_([a-z])", lambda found: found[1].upper(), name)


def _snake(name: str) -> str:
    return re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name)


def _resolved(node: Any, definitions: Schema) -> Any:
    """Return the schema with definitions in place of references, and without titles."""
    if isinstance(node, list):
        return [_resolved(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _resolved(definitions[node["$ref"].rpartition("/")[2]], definitions)
    return {key: _resolved(each, definitions) for key, each in node.items() if key not in ("title", "description")}


def _plain(field: Schema) -> Schema:
    """Return a setting's schema with only the keys of _KEPT, and without null, because users omit the value instead."""
    [one] = [each for each in field.get("anyOf", [field]) if each.get("type") != "null"]
    return {key: one[key] for key in _KEPT if key in one}


def _close(node: Schema) -> None:
    """Make the schema reject unknown keys. Remove `propertyNames`, whose errors Helm's library reports at a random location."""
    node.pop("propertyNames", None)
    if "properties" in node:
        node["additionalProperties"] = False
        for below in node["properties"].values():
            _close(below)


# -- tables of docs/reference/chart.md


def _value_rows() -> Iterator[Sequence[str]]:
    lines = VALUES.read_text().splitlines()
    values = yaml.safe_load("\n".join(lines))
    path: list[str] = []
    comment: list[str] = []
    skip = -1  # indentation of the last value that has a row, below which lines get no row, otherwise -1
    for line in lines:
        if line.lstrip().startswith("#"):
            comment.append(line.lstrip(" #"))
            continue
        found = _KEY.match(line)
        if found is None or 0 <= skip < len(found[1]):
            comment = comment if found and line.strip() else []
            continue
        depth = len(found[1]) // 2
        path[depth:] = [found[2]]
        value, skip = _at(values, path), -1
        if isinstance(value, Mapping) and value and path[-1] not in _WHOLE:
            if comment:
                yield f"`{'.'.join(path)}`", "", " ".join(comment)
        else:
            skip = len(found[1])
            yield f"`{'.'.join(path)}`", _shown(value), " ".join(comment)
        comment = []


def _at(values: Any, path: Sequence[str]) -> Any:
    for key in path:
        values = values[key]
    return values


def _shown(value: object) -> str:
    text = json.dumps(value)
    return f"`{text}`" if len(text) <= 60 else "see values.yaml"


def _setting_rows(program: Program) -> Iterator[Sequence[str]]:
    for name, default in _defaults(program):
        description = program.model.model_fields[_snake(name)].description or ""
        yield f"`{program.values}.{name}`", _shown(default), " ".join(description.split())


def _defaults(program: Program) -> Iterator[tuple[str, object]]:
    """Yield each setting that users can set, with its default."""
    known = program.settings()
    for name, field in program.model.model_fields.items():
        if (value := _camel(name)) in known:
            default = field.default
            yield value, default if isinstance(default, str | int | float | dict | None) else [str(each) for each in default]


if __name__ == "__main__":
    main()
