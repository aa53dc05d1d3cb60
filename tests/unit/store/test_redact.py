"""Redaction gives the same result as replacing in the whole file at once, however the file is split into chunks."""

from __future__ import annotations

import json
import os
import stat
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.engine.status.status_size import MARK
from multistep.store.files.file_trees import CHUNK_BYTES
from multistep.store.files.redact_secrets import Redactor

TEXT = st.text("ab1\u00e9", max_size=60)
SECRETS = st.lists(st.text("ab1\u00e9", min_size=1, max_size=6), min_size=1, max_size=4)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    chunks, at = [], 0
    for size in sizes:
        chunks.append(data[at : at + size])
        at += size
    return [*chunks, data[at:]]


@given(TEXT, SECRETS, st.lists(st.integers(0, 9), max_size=20), st.booleans())
def test_no_chunk_boundary_hides_or_changes_anything(text: str, secrets: list[str], sizes: list[int], is_json: bool) -> None:
    redactor = Redactor(secrets)
    data = (f'"{text}" {text}\n' if is_json else text).encode()
    whole = b"".join(redactor.text([data], is_json=is_json))
    assert b"".join(redactor.text(cut(data, sizes), is_json=is_json)) == whole
    if not is_json:
        assert not any(secret in part for secret in secrets for part in whole.decode().split(MARK))


@given(TEXT, st.text("ab1\u00e9", min_size=1, max_size=6))
def test_one_secret_is_replaced_as_python_would(text: str, secret: str) -> None:
    assert b"".join(Redactor([secret]).text([text.encode()])).decode() == text.replace(secret, MARK)


def test_the_longest_secret_goes_first() -> None:
    assert b"".join(Redactor(["abc", "abcdef"]).text([b"abcdef abc"])) == b"[REDACTED] [REDACTED]"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"pin": "1234", "tokens": 1234}', '{"pin": "[REDACTED]", "tokens": 1234}'),
        ('{"a\\"1234": 1234}', '{"a\\"[REDACTED]": 1234}'),
        ('{"a\\\\": 1234}', '{"a\\\\": 1234}'),
        ('{"stray\n{"n": 1234, "s": "1234"}', '{"stray\n{"n": 1234, "s": "[REDACTED]"}'),
        ('hunter2 "hunter2"', '[REDACTED] "[REDACTED]"'),
        ('{"path": "C:\\\\new"}', '{"path": "[REDACTED]"}'),
        ('"caf\\u00e9!" "café!"', '"[REDACTED]" "[REDACTED]"'),
    ],
)
def test_numbers_in_json_stay_numbers(text: str, shown: str) -> None:
    redactor = Redactor(["1234", "hunter2", "C:\\new", "café!"])
    assert b"".join(redactor.text([text.encode()], is_json=True)).decode() == shown


def test_files_that_are_no_text_stay_untouched(tmp_path: Path) -> None:
    files = {"latin": b"caf\xe9 hunter2", "nul": b"hunter2\0", "end": b"hunter2 \xc3", "late": b" " * CHUNK_BYTES + b"\xffhunter2"}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    Redactor(["hunter2"]).tree(tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in files} == files


def test_mode_and_time_stay_links_are_not_followed_and_nothing_is_left_behind(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("hunter2")
    trial = tmp_path / "trial"
    deep = trial / "steps/a/agent"
    deep.mkdir(parents=True)
    (deep / "run.sh").write_text("echo hunter2")
    (deep / "run.sh").chmod(0o751)
    os.utime(deep / "run.sh", (1000, 1000))
    (deep / "link").symlink_to(outside)
    Redactor(["hunter2"]).tree(trial)
    info = (deep / "run.sh").stat()
    assert (deep / "run.sh").read_text() == "echo [REDACTED]"
    assert (stat.S_IMODE(info.st_mode), info.st_mtime) == (0o751, 1000)
    assert outside.read_text() == "hunter2"
    assert [path.name for path in trial.iterdir()] == ["steps"]
    assert sorted(path.name for path in deep.iterdir()) == ["link", "run.sh"]


def test_a_file_without_secrets_is_not_written_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("nothing to see")
    before = (tmp_path / "a").stat().st_ino
    Redactor(["hunter2"]).tree(tmp_path)
    assert (tmp_path / "a").stat().st_ino == before


def test_secrets_that_are_part_of_the_mark_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("RED hunter2")
    for _ in range(2):
        Redactor(["RED", "", "hunter2"]).tree(tmp_path)
    assert (tmp_path / "a").read_text() == "RED [REDACTED]"


def test_results_stay_json_when_a_secret_is_a_number(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps({"n": 42, "s": "is 42"}))
    Redactor(["42"]).tree(tmp_path)
    assert json.loads((tmp_path / "result.json").read_text()) == {"n": 42, "s": "is [REDACTED]"}


def test_a_file_of_any_size_is_redacted_in_little_memory(tmp_path: Path) -> None:
    with (tmp_path / "big.log").open("wb") as file:
        for _ in range(40):
            file.write(b"x" * (CHUNK_BYTES - 3) + b"hunter2")
    tracemalloc.start()
    Redactor(["hunter2"]).tree(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "big.log").read_bytes().count(MARK.encode()) == 40
    assert peak < 10 * CHUNK_BYTES


def test_a_file_of_quotes_is_searched_for_secrets_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent may write gigabytes of quotes. Only the search for numbers needs to know what is in quotes."""
    found: list[bytes] = []

    def replace(_: object, token: bytes) -> bytes:
        found.append(token)
        return b""

    monkeypatch.setattr("multistep.store.files.redact_secrets._Scrubber._replacement", replace)
    b"".join(Redactor(["hunter2"]).text([b'"' * 1000 + b"hunter2"], is_json=True))
    assert found == [b"hunter2"]


@pytest.mark.parametrize("size", range(1, 6))
def test_a_secret_that_two_chunks_share_is_replaced_wherever_it_is_cut(size: int) -> None:
    assert b"".join(Redactor(["secret"]).text([b"secret"[:size], b"secret"[size:]])) == MARK.encode()
