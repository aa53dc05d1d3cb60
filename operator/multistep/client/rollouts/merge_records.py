"""Merges the records of a rollout into sequences.

A request whose prompt starts with all tokens of a sequence continues the longest such sequence. Any other request starts a new one,
in which earlier answers are only context. So no token is trained twice, and each has exactly the context with which it was sampled.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from math import fsum, isfinite
from typing import Final

from multistep.client.rollouts.sample import CONTEXT, Answer, Credit, Sample, Samples, Why
from multistep.token_records.record import Record, StepRecords, TokenIds

_MAX_SEQUENCES: Final = 4096
_MAX_TOKENS: Final = 1 << 26  # of all sequences: a sequence needs 15 bytes of memory per token
_WIDTH: Final = 4  # bytes of a token id


def samples_of_records(
    records: Mapping[str, StepRecords],
    parts: Mapping[str, float],
    reward: float | None,
    credit: Credit = "ToGo",
    *,
    aborted: bool = False,
) -> Samples:
    """Return the samples of a rollout.

    records: the records of its steps, in the order of the steps. parts: what each step adds to the reward. reward: None if the
    rollout is not valid. aborted: whether answers that the agent left are trained up to what it received.
    """
    steps = list(records)
    merge = _Merge(aborted)
    for number, (step, found) in enumerate(records.items()):
        for record in found.records:
            merge.add(record, number, f"{step}/{record.id}/{record.choice}")
    if reward is not None:
        per_step = _credits([parts.get(step, 0.0) for step in steps], reward, credit)
        for each in merge.sequences:
            each.credit = array("f", [per_step[step] if mask else 0.0 for step, mask in zip(each.steps, each.mask, strict=True)])
    return Samples(
        sequences=merge.sequences,
        steps=steps,
        versions=list(merge.versions),
        left_out=merge.left_out,
        missing={step: found.why for step, found in records.items() if not found.complete},
        reward=reward,
    )


class _Merge:
    """The sequences so far. They are also kept as sorted bytes: sequences that share the most tokens with a prompt are its
    neighbours, so a request costs no comparison with each of them."""

    def __init__(self, aborted: bool) -> None:
        self._aborted = aborted
        self.sequences: list[Sample] = []
        self.versions: dict[str, int] = {}
        self.left_out: dict[str, str] = {}
        self._sorted: list[tuple[bytes, int]] = []  # the tokens of each sequence, and its index
        self._prompts: set[bytes] = set()
        self._contexts: set[str] = set()
        self._tokens = 0

    def add(self, record: Record, step: int, request: str) -> None:
        """Add a record to the sequence that it continues, or to a new one. request: its name."""
        if record.state == "Aborted" and self._aborted and record.seen:
            record = _as_received(record)
        if reason := self._reason(record):
            self.left_out[request] = reason
            return
        prompt = record.prompt
        raw = prompt.tobytes()
        place = self._continued(raw)
        added = len(prompt) + len(record.ids) - (0 if place is None else len(self._sorted[place][0]) // _WIDTH)
        if self._tokens + added > _MAX_TOKENS or (place is None and len(self.sequences) == _MAX_SEQUENCES):
            self.left_out[request] = "TooMany"
            return
        self._tokens += added
        if place is None:
            index = len(self.sequences)
            self.sequences.append(self._new(record, raw))
        else:
            _, index = self._sorted.pop(place)
        self._extend(self.sequences[index], record, prompt, step, request)
        place = bisect_right(self._sorted, raw + record.ids.tobytes(), key=_tokens_of)
        self._sorted.insert(place, (raw + record.ids.tobytes(), index))
        self._prompts.add(_digest(raw))
        self._contexts.add(record.context)

    def _reason(self, record: Record) -> str:
        """Return why a record cannot be trained, or ""."""
        if record.state != "Done":
            return record.state
        return "" if len(record.ids) == len(record.logprobs) and all(map(isfinite, record.logprobs)) else "Inexact"

    def _continued(self, prompt: bytes) -> int | None:
        """Return the place of the longest sequence with whose tokens a prompt starts, or None."""
        end = len(prompt)
        while (place := bisect_right(self._sorted, prompt[:end], key=_tokens_of) - 1) >= 0:
            tokens, _ = self._sorted[place]
            shared = _shared(tokens, prompt)
            if shared == len(tokens):
                return place
            end = shared  # any sequence with which the prompt starts is a prefix of these tokens, too
        return None

    def _new(self, record: Record, prompt: bytes) -> Sample:
        if not self.sequences:
            return Sample("First", 0, record.context)
        place = bisect_right(self._sorted, prompt, key=_tokens_of)
        neighbours = self._sorted[max(place - 1, 0) : place + 1]
        shared, index = max((_shared(tokens, prompt) // _WIDTH, index) for tokens, index in neighbours)
        return Sample(self._why(record, prompt, shared, self.sequences[index]), shared, record.context)

    def _why(self, record: Record, prompt: bytes, shared: int, nearest: Sample) -> Why:
        if _digest(prompt) in self._prompts:
            return "SamePrompt"
        if record.context not in self._contexts:
            return "OtherAgent"
        inside = any(answer.start <= shared < answer.end for answer in nearest.answers)
        return "AnswerChanged" if inside else "HistoryChanged"

    def _extend(self, sample: Sample, record: Record, prompt: TokenIds, step: int, request: str) -> None:
        """Append what the prompt adds to a sequence, and the answer."""
        start, count = len(prompt), len(record.ids)
        context = start - len(sample.ids)
        sample.ids += prompt[len(sample.ids) :] + record.ids
        sample.mask.extend([0] * context + [1] * count)
        sample.logprobs += array("f", bytes(_WIDTH * context)) + record.logprobs
        sample.steps.extend([step] * (context + count))
        sample.versions.extend([CONTEXT] * context + self._versions(record))
        sample.answers.append(Answer(start, start + count, request))

    def _versions(self, record: Record) -> list[int]:
        """Return the index of the version of each token of an answer."""
        found: list[int] = []
        spans = [(0, ""), *sorted(record.versions), (len(record.ids), "")]
        for (_, name), (end, _) in pairwise(spans):
            if (count := min(end, len(record.ids)) - len(found)) > 0:
                found += [self.versions.setdefault(name, len(self.versions))] * count
        return found


def _as_received(record: Record) -> Record:
    """Return the record of an answer that the agent left, with the tokens that the agent received."""
    received = {"state": "Done", "ids": record.ids[: record.seen], "logprobs": record.logprobs[: record.seen]}
    return record.model_copy(update=received)


def _tokens_of(entry: tuple[bytes, int]) -> bytes:
    return entry[0]


def _digest(prompt: bytes) -> bytes:
    return blake2b(prompt, digest_size=16).digest()


def _shared(left: bytes, right: bytes) -> int:
    """Return the number of bytes of the whole tokens with which both start."""
    low, high = 0, min(len(left), len(right)) // _WIDTH
    while low < high:
        middle = (low + high + 1) // 2
        if left[low * _WIDTH : middle * _WIDTH] == right[low * _WIDTH : middle * _WIDTH]:
            low = middle
        else:
            high = middle - 1
    return low * _WIDTH


def _credits(parts: Sequence[float], reward: float, credit: Credit) -> Sequence[float]:
    """Return the credit of each step's tokens."""
    if credit == "Trial":
        return [reward] * len(parts)
    return parts if credit == "Step" else [fsum(parts[number:]) for number in range(len(parts))]
