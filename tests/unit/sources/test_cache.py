"""The cache of fetched tasks: it has a size limit, survives restarts, and drops incomplete and corrupt files."""

from __future__ import annotations

import os
from pathlib import Path

from multistep.sources.fetch.fetch_messages import FetchResult
from multistep.sources.load.task_cache import TaskCache
from multistep.sources.task.bundle import digest_of


def opened(directory: Path, most: int = 1000) -> TaskCache:
    cache = TaskCache(directory, most)
    cache.open()
    return cache


def put(cache: TaskCache, key: str, data: bytes) -> None:
    (cache.incoming / "new").write_bytes(data)
    cache.put(key, FetchResult("revision", digest_of(data), "new"))


def read(cache: TaskCache, key: str) -> bytes | None:
    kept = cache.find(key)
    return kept.path.read_bytes() if kept else None


def test_what_was_put_is_there_after_a_restart(tmp_path: Path) -> None:
    put(opened(tmp_path), "key", b"task")
    again = opened(tmp_path)
    assert read(again, "key") == b"task" and read(again, "other") is None and again.size == 4


def test_the_least_used_goes_first(tmp_path: Path) -> None:
    cache = opened(tmp_path, most=10)
    put(cache, "a", b"1234")
    put(cache, "b", b"1234")
    for name, seconds in (("a", 200), ("b", 100)):
        os.utime(cache.find(name).path, (seconds, seconds))  # type: ignore[union-attr]
    cache = opened(tmp_path, most=10)  # a restarted operator knows the order of use
    put(cache, "c", b"1234")
    assert [read(cache, key) for key in "abc"] == [b"1234", None, b"1234"]
    put(cache, "large", b"x" * 100)
    assert len(list(tmp_path.glob("*-*"))) == 1 and read(cache, "large") == b"x" * 100


def test_what_is_discarded_is_gone_unless_it_was_replaced(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    put(cache, "key", b"task")
    old = cache.find("key")
    assert old is not None
    put(cache, "key", b"other")
    cache.discard(old)
    new = cache.find("key")
    assert new is not None
    cache.discard(new)
    assert cache.find("key") is None and not list(tmp_path.glob("key-*"))


def test_what_was_never_finished_is_removed(tmp_path: Path) -> None:
    (opened(tmp_path).incoming / "half").write_bytes(b"x")
    assert not list(opened(tmp_path).incoming.iterdir())


def test_the_same_key_with_other_content_replaces_it(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    put(cache, "key", b"old")
    put(cache, "key", b"new!")
    assert read(cache, "key") == b"new!" and cache.size == 4 and len(list(tmp_path.glob("key-*"))) == 1
