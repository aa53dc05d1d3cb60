"""Generate the tables of the references in docs/ from the models: ``python -m hack.generate.reference``.

A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``. NAME is the name of a model or of a table of failures, or
"columns" or "sweepColumns" for kubectl's columns. A model that another page describes becomes a link to that page.
"""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Callable, Container, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from multistep.api.common import base_model
from multistep.api.sweep import sweep, tasks_source
from multistep.api.task import task_toml as task
from multistep.api.trial import (
    agent_spec,
    error_policy,
    failure_table,
    models_spec,
    regrade,
    spec,
    status,
    task_source,
    trial,
    waiting_reasons,
)
from multistep.api.trial import status as egress_status
from multistep.api.trial import status as image_status
from multistep.api.trial.agent_end_table import BLAME, Blame
from multistep.api.trial.failure_table import EXCEPTIONS
from multistep.api.trial.status_journal import in_journal

from . import crds

PAGES: Final = tuple(f"docs/reference/{name}.md" for name in ("task-format", "trial-reference", "sweeps", "failures"))

_MARKED = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_FAILURES = {"attempts": failure_table.ATTEMPTS, "failed": failure_table.FAILED, "exceptions": EXCEPTIONS}
_COLUMNS = {"columns": crds.TRIAL.columns, "sweepColumns": crds.SWEEP.columns}
_FIRST = {"attempts": "reason", "failed": "reason", "exceptions": "type"}
_SHARED = "trial-reference.md"  # the page with the models that trials and sweeps share
MODULES = (
    *(task, sweep, trial, spec, agent_spec, models_spec, status, egress_status, image_status),
    *(task_source, tasks_source, regrade, base_model, error_policy),
)
_WORDS = {str: "text", int: "integer", float: "number", bool: "boolean", datetime: "time", Any: "anything"}


def with_tables(page: str) -> str:
    """Return the page with updated tables of the models."""
    here = {name for _, name, _ in _MARKED.findall(page)}
    return between_marks(page, lambda name: table(name, here))


def between_marks(page: str, render: Callable[[str], str]) -> str:
    """Replace the text between each pair of marks by `render(name)`, and return the page."""
    return _MARKED.sub(lambda found: f"{found[1]}{render(found[2])}{found[3]}", page)


def table(name: str, here: Container[str]) -> str:
    """Return the table of a model's fields, of kubectl's columns, of waiting reasons or of failures.

    ``here`` has the names of the tables on the same page.
    """
    if name in _COLUMNS:
        rows = [[column, f"`{path}`", text, "yes" if wide else ""] for column, _, path, wide, text in _COLUMNS[name]]
        return markdown_table(("column", "what it shows", "meaning", "only with `-o wide`"), rows)
    if name == "waiting":
        rows = [[f"`{row.reason}`", row.what, row.ends] for row in waiting_reasons.WAITING]
        return markdown_table(("reason", "what it means", "ends"), rows)
    if name == "blame":
        return markdown_table(("what happened", "class", "reason", "score", "retried"), map(_blame_row, BLAME))
    if name == "policies":
        return markdown_table(("type", "verified", "retried", "reward valid", "here"), _policy_rows())
    if rows_of := _FAILURES.get(name):
        rows = [[f"`{row.reason}`", row.failure_class or "of the phase", row.what, row.do] for row in rows_of]
        return markdown_table((_FIRST[name], "class", "what happened", "what to do"), rows)
    shown: type[BaseModel] = next(getattr(module, name) for module in MODULES if hasattr(module, name))
    rows = [_row(field.alias or key, field, here) for key, field in shown.model_fields.items() if not in_journal(shown, key)]
    return markdown_table(("field", "type", "default", "meaning"), rows)


def _blame_row(row: Blame) -> list[str]:
    what = f"{row.what}; the agent fails or reaches its timeout" if row.if_failed and row.failure_class != "Agent" else row.what
    score = "by its verdict" if row.score == "verdict" else "none"
    return [what, row.failure_class or "", row.reason and f"`{row.reason}`", score, "yes" if row.retried else "no"]


def _policy_rows() -> Iterable[list[str]]:
    policies = [*error_policy.POLICIES.items(), ("any other type", error_policy.UNKNOWN)]
    for type_, policy in policies:
        flags = ["yes" if flag else "no" for flag in (policy.grade, policy.retry, policy.valid)]
        here = error_policy.HERE.get(type_, "")
        different = [here, "not retried" if policy.retry and "retried" not in here else ""]
        yield [f"`{type_}`" if type_ in error_policy.POLICIES else type_, *flags, "; ".join(filter(None, different)) or "the same"]


def _row(name: str, field: FieldInfo, here: Container[str]) -> list[str]:
    meaning = " ".join((field.description or "").split())
    return [f"`{name}`", _type(field.annotation, here), _default(field), meaning]


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table of these rows."""
    lines = [head, ["---"] * len(head), *([each.replace("|", "\\|") for each in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _type(annotation: object, here: Container[str]) -> str:
    """Return a field's type in words. A model becomes a link to the section with its table."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0], here)
    if origin in (typing.Union, UnionType):
        return " or ".join(dict.fromkeys(_type(each, here) for each in arguments if each is not NoneType))
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in arguments)
    if origin is list:
        return f"list of {_type(arguments[0], here)}"
    if origin is dict:
        return f"table of {_type(arguments[1], here)}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        heading = annotation.__name__.removesuffix("Config")
        page = "" if annotation.__name__ in here else _SHARED
        return f"[{heading}]({page}#{heading.lower()})"
    assert annotation in _WORDS, annotation
    return _WORDS[annotation]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.default
    if value is None or isinstance(value, BaseModel):
        return ""
    return f"`{json.dumps(value)}`"


def main() -> None:
    """Rewrite the pages of the checkout in the current directory."""
    for page in map(Path, PAGES):
        page.write_text(with_tables(page.read_text()))


if __name__ == "__main__":
    main()
