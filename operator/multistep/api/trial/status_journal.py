"""Stores details of a status in status.journal. Replay, sweeps and reports need these details, but readers of YAML do not.

TrialStatus has all fields. Those that are marked with ``JOURNAL`` are not fields of the CRD. ``stored`` writes them into one text,
which is gzip of JSON in base64, and ``joined`` reads them again. So the code works on whole statuses, while `kubectl get -o yaml`
prints one line instead of a hundred, and the status of a trial of 100 steps stays small.
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
MAX_WHOLE_BYTES: Final = 2**20
"""Maximum size of a whole status as JSON that an operator writes. It reads a journal of at most twice this size."""
MAX_OBJECTS: Final = 10_000
"""The same for the number of JSON objects, because a small compressed text can expand to very many."""
_GZIP: Final = 16 + zlib.MAX_WBITS  # zlib's number for data with gzip's header and checksum

Shape = dict[str, Any]


class _InJournal:
    """Marks a field as part of the journal, and leaves it out of the JSON schema and the CRD."""

    def __get_pydantic_json_schema__(self, *_: object) -> NoReturn:
        raise PydanticOmit


JOURNAL: Final = _InJournal()
"""Annotation of a status field that is stored in the journal."""


def in_journal(model: type[BaseModel], name: str) -> bool:
    """Return whether the model's field is stored in the journal."""
    return JOURNAL in model.model_fields[name].metadata


def stored(model: type[BaseModel], whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status as the API server stores it. ``model`` is the status's model, and ``whole`` has all of its fields as
    JSON."""
    shown, details = _split(whole, _shape(model))
    return {**shown, FIELD: _text(details)} if details else dict(shown)


def joined(model: type[BaseModel], status: Mapping[str, Any]) -> dict[str, Any]:
    """Return all fields of a status as JSON. Raises ValueError if the journal cannot be read.

    ``model`` is the status's model, and ``status`` is the status as the API server stores it. The journal neither replaces nor adds
    a field of the CRD.
    """
    shown = {name: value for name, value in status.items() if name != FIELD}
    text = status.get(FIELD)
    found: dict[str, Any] = _merged(shown, _details(text), _shape(model)) if text is not None else shown
    return found


def may_be_stored(whole: Mapping[str, Any]) -> bool:
    """Return whether a status, with all of its fields as JSON, is small enough that an operator reads its journal again."""
    return _objects(whole) <= MAX_OBJECTS and len(_encoded(whole)) <= MAX_WHOLE_BYTES


def _objects(value: Any) -> int:
    if isinstance(value, Mapping):
        return 1 + sum(map(_objects, value.values()))
    return sum(map(_objects, value)) if isinstance(value, list) else 0


@cache
def _shape(model: type[BaseModel]) -> Shape:
    """Return a dict with JOURNAL for each field that is stored in the journal, and the shape of each other field that has a model.

    The keys are the names in JSON.
    """
    found: Shape = {}
    for name, field in model.model_fields.items():
        below = model_in(field.annotation)
        if in_journal(model, name):
            found[field.alias or name] = JOURNAL
        elif below is not None and (inner := _shape(below)):
            found[field.alias or name] = inner
    return found


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model in a field's annotation, e.g. Condition in ``list[Condition]``, None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := model_in(each)) is not None), None)


def _split(value: Any, shape: Shape) -> tuple[Any, Any]:
    """Return the value without the journal's fields, and only these fields, None if there are none.

    Each list in the second result has an item for each item of the list in the first.
    """
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


def _merged(shown: Any, details: Any, shape: Any) -> Any:
    """Return the value with the journal's fields added.

    ``shape`` comes from ``_shape``. It is JOURNAL for a field that ``shown`` already has.
    """
    if shape is JOURNAL:
        return shown
    if isinstance(shown, Mapping) and isinstance(details, Mapping):
        own = {name: each for name, each in details.items() if shape.get(name) is JOURNAL}
        below = {name: _merged(shown[name], details[name], shape[name]) for name in shown if name in details and name in shape}
        return {**own, **shown, **below}
    if isinstance(shown, list) and isinstance(details, list):
        return [*(_merged(*both, shape) for both in zip(shown, details, strict=False)), *shown[len(details) :]]
    return shown


def _text(details: Mapping[str, Any]) -> str:
    packed = zlib.compressobj(wbits=_GZIP)
    return base64.b64encode(packed.compress(_encoded(details)) + packed.flush()).decode()


def _encoded(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(errors="replace")


def _details(text: object) -> Any:
    if not isinstance(text, str):
        raise ValueError("should be a text")
    unpacked = zlib.decompressobj(wbits=_GZIP)
    try:
        data = unpacked.decompress(base64.b64decode(text, validate=True), 2 * MAX_WHOLE_BYTES)
        details = json.loads(data, parse_constant=_refuse) if unpacked.eof else None
        if details is None or _objects(details) > 2 * MAX_OBJECTS:
            raise ValueError("is cut off or too large")
        return details
    except (ValueError, zlib.error, RecursionError) as error:
        raise ValueError(f"should be gzip of JSON in base64: {error}") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
