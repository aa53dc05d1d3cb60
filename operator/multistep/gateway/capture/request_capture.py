"""The tokens of one model request. A record of each choice is in the step's file before the agent gets the answer's end."""

from __future__ import annotations

import sqlite3
import time
from array import array
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from multistep.gateway.capture.step_files import StepFiles
from multistep.gateway.keys.tokens import StepClaims
from multistep.gateway.model_api.answer_parsers import AnswerEvent, TokenUsage
from multistep.gateway.model_api.request_parsers import ParsedRequest
from multistep.gateway.model_api.token_fields import AnswerForms, AnswerTokens
from multistep.token_records.record import State
from multistep.token_records.write_file import PromptBlocks, Writer


class RequestCapture:
    """Collects the tokens of a request. A request that the provider refuses leaves no record, because it has no answer."""

    def __init__(self, files: StepFiles, claims: StepClaims, id_: str, parsed: ParsedRequest, version: Callable[[], str]) -> None:
        """Prepare to record a request. ``id_`` is its id in the ledger. ``version`` returns the version of the weights."""
        self._files = files
        self._step, self._sweep = claims.key, claims.sweep
        self._id = id_
        self._context, self._sampling = parsed.context, parsed.sampling
        self._untrained: State | None = "Constrained" if parsed.constrained else None
        if claims.trained_models and parsed.model not in claims.trained_models:
            self._untrained = "OtherModel"
        self._version = version
        self._writer: Writer | None = None
        self._tokens = AnswerTokens((), AnswerForms())
        self._order = 0
        self._sent_at = 0.0
        self._sent_version = ""
        self._versions: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
        self._prompt: PromptBlocks | None = None
        self._prompt_tokens = 0
        self._counted: dict[int, int] = {}  # tokens of each choice whose version is noted
        self._seen: dict[int, int] = {}
        self._mixed = False
        self._ended = False

    async def start(self, parsed: ParsedRequest, forms: AnswerForms) -> None:
        """Prepare for the answer to a request that is about to be sent. The step's file exists then, so that a crash of the gateway
        shows in it."""
        self._tokens = AnswerTokens(parsed.added, forms)
        self._order, self._sent_at, self._sent_version = time.time_ns(), time.time(), self._version()
        try:
            self._writer = await self._files.writer(self._step, self._sweep)
        except (OSError, sqlite3.Error) as error:
            self._miss(str(error))

    def cut_event(self, event: AnswerEvent) -> AnswerEvent | None:
        """Return the event as the agent must get it, or None for an event that the server sends only for its tokens. Raises
        AnswerTooLarge."""
        if not event.data.lstrip().startswith(b"{"):
            return event
        data = self._tokens.cut(event.data, streamed=True)
        if data is None or data == event.data:
            self._note_versions()
            return None if data is None else event
        self._note_versions()
        if event.data in event.raw:
            return replace(event, raw=event.raw.replace(event.data, data, 1), data=data)
        lines = b"".join(b"data: " + line + b"\n" for line in data.splitlines())
        name = b"event: " + event.name + b"\n" if event.name else b""
        return replace(event, raw=name + lines + b"\n", data=data)

    def cut_document(self, body: bytes) -> bytes:
        """Return the body as the agent must get it. Raises AnswerTooLarge."""
        cut = self._tokens.cut(body, streamed=False)
        assert cut is not None
        self._mixed = self._version() != self._sent_version
        if self._sent_version:
            self._versions = defaultdict(list, {index: [(0, self._sent_version)] for index in self._tokens.choices})
        return cut

    def passed_on(self) -> None:
        """Note that the agent has got what was read so far, and write the prompt's tokens to the file."""
        self._count_seen()
        self._store_prompt()

    @property
    def lacks_ids(self) -> bool:
        """Whether the answer, which is complete, has no token ids."""
        return not self._tokens.has_prompt and not self._tokens.malformed

    @property
    def usage(self) -> TokenUsage | None:
        """The tokens that have arrived, or None if none have."""
        if self._tokens.prompt is None:
            return None
        return TokenUsage(self._prompt_tokens, output=sum(len(choice.ids) for choice in self._tokens.choices.values()))

    def end(self, state: State, usage: TokenUsage | None = None) -> None:
        """Write the records. Only the first call after ``start`` does. ``usage`` has the server's own counts, if they are known."""
        if self._ended:
            return
        self._ended = True
        self._store_prompt()
        tokens = self._tokens
        if self._prompt is None or self._writer is None or not tokens.choices:
            if tokens.malformed or state == "Done":
                self._miss("the answer has no token ids")
            return
        if state == "Done":
            self._count_seen()
        sampled = sum(len(choice.ids) for choice in tokens.choices.values())
        usual = self._untrained or ("Mixed" if self._mixed else state)
        exact = not tokens.malformed and (state != "Done" or usage is None or usage.output == sampled)
        for index, choice in tokens.choices.items():
            counts_match = exact and len(choice.ids) == len(choice.logprobs)
            fields = {
                "id": self._id,
                "answer": tokens.answer,
                "order": self._order,
                "began": self._sent_at,
                "ended": time.time(),
                "step": self._step.step,
                "choice": index,
                "context": self._context,
                "ids": choice.ids,
                "logprobs": choice.logprobs,
                "finish": choice.finish,
                "state": state if state == "Cut" else usual if counts_match else "Inexact",
                "seen": self._seen.get(index, 0),
                "versions": self._versions[index],
                "sampling": self._sampling,
            }
            try:
                self._writer.record(self._prompt, **fields)
            except (OSError, ValueError) as error:
                self._miss(str(error))

    def _note_versions(self) -> None:
        version = self._version()
        for index, choice in self._tokens.choices.items():
            noted = self._versions[index]
            start = self._counted.get(index, 0)
            if len(choice.ids) > start and version and (not noted or noted[-1][1] != version):
                noted.append((start, version))
            self._counted[index] = len(choice.ids)

    def _count_seen(self) -> None:
        self._seen = {index: len(choice.ids) for index, choice in self._tokens.choices.items()}

    def _store_prompt(self) -> None:
        if not self._tokens.read_prompt() or self._tokens.prompt is None:
            return
        prompt, self._tokens.prompt = self._tokens.prompt, array("I")  # the file has it, so an open stream does not keep it
        self._prompt_tokens = len(prompt)
        if self._writer is not None and self._prompt is None:
            try:
                self._prompt = self._writer.prompt(prompt)
            except (OSError, ValueError) as error:
                self._miss(str(error))

    def _miss(self, why: str) -> None:
        self._files.miss(self._step, self._id, why)
