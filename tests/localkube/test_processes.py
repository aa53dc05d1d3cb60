"""Test that pid, start time and boot id identify a process, so that localkube never confuses two processes."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localkube.processes import Identity, Registry, identify, parse_stat, start, stop


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("name", ["sh", "a b", "a) S 1 2", "((", ")"])
def test_the_name_of_a_program_cannot_disturb_the_reading_of_its_state(name: str) -> None:
    between = " ".join(str(number) for number in range(4, 22))
    assert parse_stat(f"7 ({name}) Z {between} 123456 99 100") == ("Z", 123456)


def test_a_running_process_is_alive(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identify(sleeper.pid)
    assert identity is not None
    assert identity.is_running


def test_an_ended_process_is_not_alive_even_before_it_is_reaped(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identify(sleeper.pid)
    assert identity is not None
    stop(identity, grace_seconds=5)
    assert not identity.is_running


@pytest.mark.parametrize("other", [{"start_ticks": 1}, {"boot_id": "another"}])
def test_a_process_with_the_same_pid_is_another_one(sleeper: subprocess.Popen[bytes], other: dict[str, int | str]) -> None:
    identity = identify(sleeper.pid)
    assert identity is not None
    stale = replace(identity, **other)  # type: ignore[arg-type]
    assert not stale.is_running
    stop(stale, grace_seconds=0)
    assert sleeper.poll() is None


def test_there_is_no_process_with_a_pid_that_does_not_exist() -> None:
    assert identify(2**22 + 1) is None


def test_a_process_joins_its_control_group_before_it_runs(tmp_path: Path) -> None:
    log, procs = tmp_path / "log", tmp_path / "cgroup.procs"
    identity = start(["sh", "-c", "echo $$; exec sleep 60"], log, procs)
    try:
        assert identity.is_running
        while not log.read_text():
            pass
        assert procs.read_text() == log.read_text() == f"{identity.pid}\n"
    finally:
        stop(identity, grace_seconds=5)


def test_what_was_recorded_is_read_back(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    registry, identity = Registry(tmp_path / "processes"), identify(sleeper.pid)
    assert identity is not None
    registry.record("etcd", identity)
    assert registry.running("etcd") == identity
    registry.forget("etcd")
    assert registry.recorded("etcd") is None


@pytest.mark.parametrize("content", ["", "1234", '{"pid": 1}', "[]"])
def test_an_unreadable_record_is_no_record(tmp_path: Path, content: str) -> None:
    (tmp_path / "etcd").write_text(content)
    assert Registry(tmp_path).running("etcd") is None


def test_a_record_of_an_earlier_boot_does_not_run(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    registry.record("etcd", Identity(pid=1, start_ticks=1, boot_id="earlier"))
    assert registry.recorded("etcd") is not None
    assert registry.running("etcd") is None
