"""status.journal: the details of a status that replay, sweeps and reports need, and readers of YAML do not.

TrialStatus has all fields. Those that are marked with ``JOURNAL`` are no fields of the CRD: ``stored`` writes them into one text,
gzip of JSON in base64, and ``joined`` reads them again. So the code works on whole statuses, `kubectl get -o yaml` prints one line
instead of a hundred, and the status of a trial of 100 steps stays small.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NoReturn, get_args

from pydantic import BaseModel
from pydantic_core import PydanticOmit

FIELD: Final = "journal"
MAX_JOURNAL_BYTES: Final = 4 * 2**20
"""Maximum size of the JSON. A journal that expands to more was not written by an operator."""
_GZIP: Final = 16 + zlib.MAX_WBITS  # zlib's number for data with gzip's header and checksum

Shape = dict[str, Any]


class _InJournal:
    """Marks a field as part of the journal; leaves it out of the JSON schema, and so out of the CRD."""

    def __get_pydantic_json_schema__(self, *_: object) -> NoReturn:
        raise PydanticOmit


JOURNAL: Final = _InJournal()
"""Annotation of a field of a status that is stored in the journal."""


def in_journal(model: type[BaseModel], name: str) -> bool:
    """Return whether the model's field is stored in the journal."""
    return JOURNAL in model.model_fields[name].metadata


def stored(model: type[BaseModel], whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status as the API server stores it. model: the status's model; whole: all of its fields, as JSON."""
    shown, details = _split(whole, _shape(model))
    return {**shown, FIELD: _text(details)} if details else dict(shown)


def joined(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return all fields of a status, as JSON. status: as the API server stores it. A field of the CRD is never replaced by the
    journal. Raises ValueError if the journal cannot be read."""
    shown = {name: value for name, value in status.items() if name != FIELD}
    text = status.get(FIELD)
    found: dict[str, Any] = _merged(shown, _details(text)) if text is not None else shown
    return found


@cache
def _shape(model: type[BaseModel]) -> Shape:
    """Return, by name in JSON, JOURNAL for each field that is stored there, and the shape of each other field with a model."""
    found: Shape = {}
    for name, field in model.model_fields.items():
        below = model_in(field.annotation)
        if in_journal(model, name):
            found[field.alias or name] = JOURNAL
        elif below is not None and (inner := _shape(below)):
            found[field.alias or name] = inner
    return found


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model in a field's annotation, e.g. Condition in ``list[Condition]``; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := model_in(each)) is not None), None)


def _split(value: Any, shape: Shape) -> tuple[Any, Any]:
    """Return the value without the journal's fields, and these fields alone: None if there are none. A list of the second has an
    item for each item of the first."""
    if isinstance(value, list):
        pairs = [_split(each, shape) for each in value]
        details = [rest or {} for _, rest in pairs]
        return [shown for shown, _ in pairs], details if any(details) else None
    shown, rest = {}, {}
    for name, each in value.items():
        below = shape.get(name)
        if below is JOURNAL:
            rest[name] = each
        elif below is None:
            shown[name] = each
        else:
            shown[name], inner = _split(each, below)
            rest |= {name: inner} if inner else {}
    return shown, rest or None


def _merged(shown: Any, details: Any) -> Any:
    if isinstance(shown, Mapping) and isinstance(details, Mapping):
        both = {name: _merged(each, details[name]) if name in details else each for name, each in shown.items()}
        return {**details, **both}
    if isinstance(shown, list) and isinstance(details, list):
        return [*map(_merged, shown, details), *shown[len(details) :]]
    return shown


def _text(details: Mapping[str, Any]) -> str:
    data = json.dumps(details, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(errors="replace")
    packed = zlib.compressobj(wbits=_GZIP)
    return base64.b64encode(packed.compress(data) + packed.flush()).decode()


def _details(text: object) -> Any:
    if not isinstance(text, str):
        raise ValueError("should be a text")
    unpacked = zlib.decompressobj(wbits=_GZIP)
    try:
        data = unpacked.decompress(base64.b64decode(text, validate=True), MAX_JOURNAL_BYTES)
        if not unpacked.eof:
            raise ValueError("is cut off or too large")
        return json.loads(data, parse_constant=_refuse)
    except (ValueError, zlib.error, RecursionError) as error:
        raise ValueError(f"should be gzip of JSON in base64: {error}") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
