"""Extract code, fences, links and headings from Markdown, and check that fields of models exist."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Sequence

from pydantic import BaseModel


def fences(text: str, language: str) -> list[str]:
    """Return the contents of the fenced code blocks of a language."""
    return re.findall(rf"^```{language}(?: [^\n]*)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def code(text: str) -> list[str]:
    """Return the inline code outside of fences."""
    plain = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [" ".join(each.split()) for each in re.findall(r"`([^`]+)`", plain)]


def links(text: str) -> list[str]:
    """Return the targets of links within the repository."""
    return [each for each in re.findall(r"\]\(([^)]+)\)", text) if "://" not in each]


def headings(text: str) -> set[str]:
    """Return the anchors of the headings, as GitHub generates them."""
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def field_names(model: type[BaseModel]) -> Iterator[str]:
    """Return the model's field names as YAML and TOML files spell them."""
    return (field.alias or name for name, field in model.model_fields.items())


def exists(annotation: object, path: Sequence[str]) -> bool:
    """Return whether a model has the field at a path such as ["steps", "verifier", "env"]. A dict has every field."""
    if not path:
        return True
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = {field.alias or name: field.annotation for name, field in annotation.model_fields.items()}
        return path[0] in fields and exists(fields[path[0]], path[1:])
    return typing.get_origin(annotation) is dict or any(exists(each, path) for each in typing.get_args(annotation))
