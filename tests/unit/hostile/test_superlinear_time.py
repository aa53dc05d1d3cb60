"""A search for inputs that take more than linear time: random tokens of each grammar, repeated n and 4n times.

Ignore patterns and TOML keys can take more than linear time, so a child process with limited CPU time reads them
(test_reading.py).
"""

from __future__ import annotations

import io
import json
import random
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest

from multistep import logs
from multistep.api.trial.runner_records import Hello
from multistep.api.trial.trial import parse_trial
from multistep.engine.plan import resolve_templates
from multistep.engine.score.rewards import RewardError, parse_reward_files
from multistep.errors import MultistepError
from multistep.runner_client.frame_stream import HEADER, FrameReader
from multistep.sources.fetch.registry_client import ImageReference
from multistep.sources.task import bundle_links
from multistep.sources.task.bundle import Bundle, BundleEntry
from multistep.sources.task.task import strip_canary
from multistep.store.files.read_tar import tar_members
from multistep.store.files.redact_secrets import Redactor
from tests.support.work import superlinear

FEW = 2_000  # number of repetitions of an input's piece in the smaller input
SHAPES = 40  # number of random inputs for each parser
FOUND = (MultistepError, RewardError, ValueError, RecursionError)


@dataclass(frozen=True)
class Shape:
    """An input: a prefix, a piece that is repeated, and a suffix."""

    prefix: str
    piece: str
    suffix: str

    def repeated(self, number: int) -> str:
        return self.prefix + self.piece * number + self.suffix


def shapes(tokens: list[str], seed: int) -> Iterator[Shape]:
    chance = random.Random(seed)

    def some(least: int, most: int) -> str:
        return "".join(chance.choice(tokens) for _ in range(chance.randint(least, most)))

    for _ in range(SHAPES):
        yield Shape(some(0, 2), some(1, 3), some(0, 2))


def read_reward(text: str) -> object:
    return parse_reward_files(text.encode(), None)


def read_frames(text: str) -> None:
    data, reader = text.encode(), FrameReader()
    reader.feed(HEADER.pack(b"J", len(data)) + data)
    for frame in reader:
        Hello.from_json(frame.json())


def read_spec(text: str) -> object:
    value = json.loads(text)
    return parse_trial({"metadata": {"name": "t", "namespace": "n", "uid": "u"}, "spec": value})


def read_tar(text: str) -> None:
    """Read a tar that has this text as the extended (pax) headers of its first file."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        extended = tarfile.TarInfo("x")
        extended.type, extended.size = tarfile.XHDTYPE, len(text)
        tar.addfile(extended, io.BytesIO(text.encode()))
        tar.addfile(tarfile.TarInfo("y"))
    with tempfile.TemporaryFile() as file:
        file.write(out.getvalue())
        file.flush()
        for _ in tar_members(file.fileno()):
            pass


def read_links(text: str) -> object:
    bundle = Bundle.from_entries(
        {"a": BundleEntry("link", target=text), "b": BundleEntry("dir"), "b/a": BundleEntry("link", target="..")}
    )
    return bundle_links.resolve_links(bundle, f"a/{text}")


def redact(text: str) -> bytes:
    return b"".join(Redactor(["aaab", "12"]).text([text.encode()], is_json=True))


JSON = ["[", "]", "{", "}", '"', '"a":', ",", "1", "1e9", "-", "\\", "\\u00", "null", " ", '"reward": 1', "[]", '{"a":[]},']
PARSERS: dict[str, tuple[list[str], Callable[[str], object]]] = {
    "rewards": (JSON, read_reward),
    "records of a runner": (JSON, read_frames),
    "spec": (JSON, read_spec),
    "instructions": (["\n", "\r", "<!--", "-->", "#", "canary", " ", "a", "\t"], strip_canary),
    "templates": (["${", "}", ":-", "A", ":", "$", "{"], lambda text: resolve_templates.resolve_templates({"A": text}, {"A": "b"})),
    "tar": (["11 path=a\n", "size=", "1", "9", " ", "\n", "=", "a/", "../", "30 mtime=1e9\n"], read_tar),
    "links": (["a/", "../", "./", "b/", "/", "c", "b/a/"], read_links),
    "references": (["a", "/", ".", "_", "-", ":", "@", "sha256:", "0", "__", "--"], ImageReference.parse),
    "redaction": (["a", "b", '"', "\\", "\n", "1", "2", "aaab", "\\u0061"], redact),
    "log lines": (["://", "@", "a", "&", "token=", "?", "bearer", " ", "=", "-", "/results/a/b/"], logs.escaped),
}


def slow_shape(tokens: list[str], work: Callable[[str], object], seed: int) -> str:
    """Return an input that takes more than linear time, with its times; "" if none was found."""
    for shape in shapes(tokens, seed):

        def run(number: int, shape: Shape = shape) -> None:
            with suppress(*FOUND):
                work(shape.repeated(number))

        if found := superlinear(run, FEW):
            return f"{shape}: {found}"
    return ""


@pytest.mark.parametrize("name", PARSERS)
def test_no_repetition_takes_more_than_linear_time(name: str) -> None:
    tokens, work = PARSERS[name]
    assert slow_shape(tokens, work, seed=len(name)) == ""


def test_the_search_finds_cubic_time() -> None:
    assert "s of CPU" in slow_shape(["a"], lambda text: sum(1 for _ in range(len(text) ** 3 // 4_000_000)), seed=1)
