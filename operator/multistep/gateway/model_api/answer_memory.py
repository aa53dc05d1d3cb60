"""Limits the memory for answers that the gateway cannot forward yet, which are whole documents and incomplete events.

Users may choose the provider's URL, so an answer may have no end.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from multistep.gateway.keys.tokens import StepKey

MAX_ANSWER: Final = 64 << 20
"""Maximum bytes of one answer, or of one event of a stream, in memory."""
MAX_STEP: Final = 96 << 20
"""Maximum bytes of the answers to all open requests of a step in memory."""
MAX_TOTAL: Final = 256 << 20
"""Maximum bytes of all answers in memory, for answers of steps that have more than _ALWAYS bytes."""
MAX_SMALL: Final = 128 << 20
"""Bytes above MAX_TOTAL that are reserved for the answers of steps that have at most _ALWAYS bytes."""
_ALWAYS: Final = 2 << 20


class AnswerTooLarge(Exception):
    """The gateway has no memory for an answer. The message is shown to the agent."""

    def __init__(self, message: str, *, crowded: bool = False) -> None:
        super().__init__(message)
        self.crowded = crowded
        """Whether the answer is small enough, but answers to other steps fill the memory."""


class AnswerMemory:
    """Counts the bytes of answers in memory, by step."""

    def __init__(self) -> None:
        self._total = 0
        self._by_step = Counter[StepKey]()

    def count_bytes(self, step: StepKey, size: int, answer: int) -> None:
        """Add ``size`` to the bytes of an answer, which had ``answer`` bytes in memory before. A negative size subtracts.

        Raises AnswerTooLarge, and adds nothing, if the answer, its step or all answers together would have too many bytes.
        """
        of_step = self._by_step[step] + size
        total = self._total + size
        if size > 0 and (answer + size > MAX_ANSWER or of_step > MAX_STEP):
            raise AnswerTooLarge("the provider's answer is too large to be kept in memory")
        if size > 0 and total > (MAX_TOTAL if of_step > _ALWAYS else MAX_TOTAL + MAX_SMALL):
            raise AnswerTooLarge("answers to other steps take the memory for the provider's answer", crowded=True)
        self._total = total
        self._by_step[step] = of_step
        if not of_step:
            del self._by_step[step]


MAX_PARTS: Final = 1_000_000
"""Maximum number of brackets and commas in a document that the gateway parses."""


def has_too_many_parts(text: bytes) -> bool:
    """Return whether a JSON document may have too many values to be parsed."""
    return sum(map(text.count, (b"[", b"{", b","))) > MAX_PARTS
