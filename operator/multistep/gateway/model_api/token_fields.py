"""Cuts token ids and log-probabilities out of the answers to chat completions that the gateway asked for them.

A server adds fields to its answer if it is asked for token ids (``return_token_ids`` of vLLM and SGLang). The agent must get the
bytes that it would have got without them. So the fields are cut out of the answer's text, and all other text stays unchanged.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined]  # not in typeshed
from typing import Any, Final, NamedTuple

from multistep.gateway.model_api.answer_memory import MAX_PARTS, AnswerTooLarge, has_too_many_parts
from multistep.gateway.model_api.json_text import past, space

IDS_FIELD: Final = "return_token_ids"
LOGPROBS_FIELD: Final = "logprobs"
FIELDS: Final = (IDS_FIELD, LOGPROBS_FIELD)
"""The fields of a request that ask for tokens. Each is true."""
_PROMPT: Final = '"prompt_token_ids":['  # in a JSON string, its quotes would be escaped
_ASKED_BY: Final = {"prompt_token_ids": IDS_FIELD, "token_ids": IDS_FIELD, "logprobs": LOGPROBS_FIELD}
_MAX_CHOICES: Final = 128
_MAX_TOKENS: Final = 1 << 22
_DECODER: Final = json.JSONDecoder()
_INVALID: Final = (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True)
class AnswerForm:
    """How a server writes an answer if it is not asked for tokens."""

    nulls: frozenset[str] = frozenset()
    """The members of _ASKED_BY that it writes as null, e.g. ``choices.token_ids``. It leaves out the others."""


class AnswerForms(NamedTuple):
    """The forms of a server's whole answers, and of the chunks of its streams. The default is what vLLM writes."""

    whole: AnswerForm = AnswerForm(frozenset(("prompt_token_ids", "choices.token_ids", "choices.logprobs")))
    chunk: AnswerForm = AnswerForm(frozenset(("prompt_token_ids", "choices.token_ids", "choices.logprobs")))


@dataclass
class ChoiceTokens:
    """The tokens of one choice that have arrived."""

    ids: array[int] = field(default_factory=lambda: array("I"))
    logprobs: array[float] = field(default_factory=lambda: array("f"))
    finish: str | None = None


class AnswerTokens:
    """Cuts one answer, and collects its tokens."""

    def __init__(self, added: Collection[str], forms: AnswerForms) -> None:
        """Prepare to cut an answer. ``added`` has the names in FIELDS that the gateway added to the request. The agent asked for
        the others itself, so it gets what they add."""
        self.choices: dict[int, ChoiceTokens] = {}
        self.answer = ""
        """The server's id of the answer."""
        self.malformed = False
        """Whether a part of the answer could not be read, so that tokens may be missing."""
        self.prompt: array[int] | None = None
        """The tokens of the prompt, after ``read_prompt``."""
        self._added = frozenset(added)
        self._forms = forms
        self._form = forms.whole
        self._count = 0
        self._prompt_text = ""  # the JSON text of the prompt's tokens, until ``read_prompt``

    def cut(self, document: bytes, *, streamed: bool) -> bytes | None:
        """Collect the tokens of a document of the answer. Return the document as the agent must get it. Return None for a chunk
        that the server sends only for its tokens. Raises AnswerTooLarge."""
        if has_too_many_parts(document):
            raise AnswerTooLarge(f"the provider's answer has more than {MAX_PARTS:,} values")
        try:
            return self._cut(document.decode(), streamed)
        except _INVALID:
            self.malformed = True
            return document

    @property
    def has_prompt(self) -> bool:
        """Whether the tokens of the prompt have arrived."""
        return bool(self._prompt_text) or self.prompt is not None

    def read_prompt(self) -> bool:
        """Parse the tokens of the prompt, which takes milliseconds, if they have arrived since the last call. Return whether they
        have."""
        text, self._prompt_text = self._prompt_text, ""
        if not text:
            return False
        try:
            self.prompt = array("I", json.loads(text))
        except _INVALID:
            self.malformed = True
        return self.prompt is not None

    def _cut(self, text: str, streamed: bool) -> bytes | None:
        self._form = self._forms.chunk if streamed else self._forms.whole
        taken_at = text.find(_PROMPT)
        if taken_at >= 0:  # most of the document, so it is taken out before the rest is parsed
            taken_at += len(_PROMPT) - 1
            end = text.index("]", taken_at) + 1
            self._prompt_text, text = text[taken_at:end], f"{text[:taken_at]}null{text[end:]}"
        members, _ = _object(text, space(text, 0), nested=False)
        edits = self._edits(members, "", taken_at)
        needless = streamed and self._added == frozenset(FIELDS) and any(member.name == "choices" for member in members)
        for member in members:
            if member.name == "id" and isinstance(member.value, str):
                self.answer = member.value[:200]
            elif member.name == "choices":
                empty = [self._choice(choice, edits, taken_at) for choice in member.value]
                needless = needless and bool(empty) and all(empty)
        if needless:
            return None
        for start, end, instead in sorted(edits, reverse=True):
            text = f"{text[:start]}{instead}{text[end:]}"
        return text.encode()

    def _choice(self, members: Sequence[_Member], edits: list[tuple[int, int, str]], taken_at: int) -> bool:
        """Collect the tokens of a choice. Return whether the choice has nothing else."""
        values = {member.name: member.value for member in members}
        index = values.get("index", 0)
        if type(index) is not int or (index not in self.choices and len(self.choices) == _MAX_CHOICES):
            raise ValueError("invalid index")
        choice = self.choices.setdefault(index, ChoiceTokens())
        if (ids := values.get("token_ids")) is not None:
            choice.ids.extend(array("I", ids))
            self._count += len(ids)
            if self._count > _MAX_TOKENS:
                raise AnswerTooLarge(f"the provider's answer has more than {_MAX_TOKENS:,} tokens")
        if (logprobs := values.get("logprobs")) is not None:
            choice.logprobs.extend(array("f", [token["logprob"] for token in logprobs.get("content") or ()]))
        finish = values.get("finish_reason")
        if isinstance(finish, str):
            choice.finish = finish[:100]
        edits += self._edits(members, "choices.", taken_at)
        return finish is None and values.get("delta") == {}

    def _edits(self, members: Sequence[_Member], path: str, taken_at: int) -> list[tuple[int, int, str]]:
        """Return the changes to an object's text: the added members are cut, or replaced by null where the server writes null.

        ``taken_at`` is the position of the null that stands for the prompt's tokens. They are put back if the agent asked for them.
        """
        edits: list[tuple[int, int, str]] = []
        kept = False  # whether a member so far is not cut
        for number, member in enumerate(members):
            if member.name == "prompt_token_ids" and isinstance(member.value, list):
                self._prompt_text = json.dumps(member.value)
            taken = member.start == taken_at
            by = _ASKED_BY.get(member.name) if path or member.name == "prompt_token_ids" else None
            if by is None or (member.value is None and not taken):
                kept = True
            elif by not in self._added:
                kept = True
                edits += [(member.start, member.end, self._prompt_text)] if taken else []
            elif path + member.name in self._form.nulls:
                kept = True
                edits.append((member.start, member.end, "null"))
            elif kept:
                edits.append((members[number - 1].end, member.end, ""))
            else:
                edits.append((member.name_start, members[number + 1].name_start if number + 1 < len(members) else member.end, ""))
        return edits


def form_of(documents: Sequence[Mapping[str, Any]]) -> AnswerForm:
    """Return the form of an answer to a request that did not ask for tokens, from its documents."""
    nulls = {name for document in documents for name, value in document.items() if value is None and name in _ASKED_BY}
    for document in documents:
        for choice in document.get("choices", ()):
            nulls |= {f"choices.{name}" for name, value in choice.items() if value is None and name in _ASKED_BY}
    return AnswerForm(frozenset(nulls))


class _Member(NamedTuple):  # created ten times for each chunk of a stream, more quickly than a frozen dataclass
    name: str
    name_start: int
    start: int
    end: int
    value: Any
    """The parsed value; of ``choices`` the members of each choice."""


def _object(text: str, at: int, *, nested: bool) -> tuple[list[_Member], int]:
    """Return the members of the object at ``at``, and the position after it. Raises ValueError, IndexError."""
    found: list[_Member] = []
    at = past(text, at, "{")
    while text[at] != "}":
        at = past(text, at, ",") if found else at
        name, end = scanstring(text, past(text, at, '"'), True)
        start = past(text, space(text, end), ":")
        array_of_objects = name == "choices" and not nested and text[start] == "["
        value, end = _array(text, start) if array_of_objects else _DECODER.raw_decode(text, start)
        found.append(_Member(name, at, start, end, value))
        at = space(text, end)
    return found, at + 1


def _array(text: str, at: int) -> tuple[list[list[_Member]], int]:
    found: list[list[_Member]] = []
    at = past(text, at, "[")
    while text[at] != "]":
        at = past(text, at, ",") if found else at
        members, at = _object(text, at, nested=True)
        found.append(members)
        at = space(text, at)
    return found, at + 1
