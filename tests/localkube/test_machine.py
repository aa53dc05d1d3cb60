"""Test control groups, locks, packages and the errors of the command line."""

import multiprocessing
import os
from pathlib import Path

import pytest

from localkube import cgroups, cli, packages
from localkube.commands import capture, pipe
from localkube.errors import CommandFailed
from localkube.locking import exclusive
from localkube.machine import user_namespaces_problem
from localkube.packages import apt_get, missing_packages


def test_with_cgroup_v1_membership_is_read_in_the_tree_of_pids(tmp_path: Path) -> None:
    group = cgroups.prepare("ours", tmp_path).parent
    assert group == tmp_path / "pids/ours/system"


def test_a_group_of_cgroup_v1_may_use_all_processors(tmp_path: Path) -> None:
    for directory, content in {"cpuset": "0-1\n", "cpuset/ours": "\n"}.items():
        (tmp_path / directory).mkdir()
        for file in ("cpuset.cpus", "cpuset.mems"):
            (tmp_path / directory / file).write_text(content)
    cgroups.prepare("ours", tmp_path)
    assert (tmp_path / "cpuset/ours/cpuset.cpus").read_text() == "0-1\n"


def test_the_pods_of_cgroup_v1_count_as_more_than_one_process(tmp_path: Path) -> None:
    (tmp_path / "cpu/ours").mkdir(parents=True)
    (tmp_path / "cpu/ours/cpu.shares").write_text("1024\n")
    cgroups.prepare("ours", tmp_path)
    assert int((tmp_path / "cpu/ours/cpu.shares").read_text()) == 2048 * (os.cpu_count() or 1)


def test_with_cgroup_v2_there_is_one_tree(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    assert cgroups.prepare("ours", tmp_path) == tmp_path / "ours/system/cgroup.procs"


def test_members_are_those_of_all_groups_below(tmp_path: Path) -> None:
    for name, pids in {"system": "1\n2\n", "container/inner": "3\n"}.items():
        (tmp_path / "pids/ours" / name).mkdir(parents=True)
        (tmp_path / "pids/ours" / name / "cgroup.procs").write_text(pids)
    (tmp_path / "pids/cgroup.procs").write_text("4\n")
    assert sorted(cgroups.members("ours", tmp_path)) == [1, 2, 3]


def test_the_group_is_removed_from_every_tree(tmp_path: Path) -> None:
    for tree in ("pids", "memory"):
        (tmp_path / tree / "ours/container").mkdir(parents=True)
    (tmp_path / "memory/theirs").mkdir()
    cgroups.kill_all("ours", tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*/*")) == ["theirs"]


def _append_twice(lock: Path, journal: Path) -> None:
    for _ in range(20):
        with exclusive(lock), journal.open("a") as file:
            file.write(f"enter {os.getpid()}\n")
            file.flush()
            file.write(f"leave {os.getpid()}\n")


def test_one_at_a_time_holds_the_lock_although_its_file_comes_and_goes(tmp_path: Path) -> None:
    lock, journal = tmp_path / "lock", tmp_path / "journal"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_append_twice, args=(lock, journal)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    lines = journal.read_text().splitlines()
    assert len(lines) == 3 * 20 * 2
    for entered, left in zip(lines[::2], lines[1::2], strict=True):
        assert entered.replace("enter", "leave") == left
    assert not lock.exists()


def test_only_packages_whose_program_or_file_is_missing_are_installed(tmp_path: Path) -> None:
    header = tmp_path / "stdio.h"
    header.touch(mode=0o644)
    programs = {"shell": "sh", "nonsense": "no-such-program", "by-path": "/bin/sh", "no-path": "/no/such/file", "c": str(header)}
    assert missing_packages(programs) == ["nonsense", "no-path"]


@pytest.mark.parametrize(
    ("release", "maximum", "problem"),
    [
        ("6.3.0-generic", "96365\n", None),
        ("6.18.44-fc-v657", "96365\n", None),
        ("6.1.0-28-amd64", "96365\n", "Linux 6.1.0-28-amd64 is older than 6.3"),
        ("6.18.44", "0\n", "the kernel allows none (sysctl user.max_user_namespaces)"),
    ],
)
def test_a_kernel_without_user_namespaces_for_pods_is_detected(
    tmp_path: Path, release: str, maximum: str, problem: str | None
) -> None:
    (tmp_path / "maximum").write_text(maximum)
    assert user_namespaces_problem(release, tmp_path / "maximum") == problem


def test_what_is_missing_is_reported_in_one_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CLUSTER", "local")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert cli.main(["status"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "needs root" in captured.err


def test_images_cannot_be_loaded_into_the_users_own_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLUSTER", "current")
    assert cli.main(["load", "app:dev"]) == 1
    assert "docker push app:dev" in capsys.readouterr().err


APT_GET = """#!/bin/sh
echo "$@" >> calls
test -e unlocked && exit 0
touch unlocked
echo "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)" >&2
exit 100
"""


def test_apt_get_waits_for_a_lock_that_another_program_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "apt-get").write_text(APT_GET)
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(packages, "_RETRY_SECONDS", 0.0)
    apt_get("update", cwd=tmp_path)
    assert (tmp_path / "calls").read_text().splitlines() == ["-qq -o DPkg::Lock::Timeout=300 update"] * 2
    monkeypatch.setattr(packages, "_LOCK_SECONDS", -1)
    (tmp_path / "unlocked").unlink()
    with pytest.raises(CommandFailed, match="held by process 7"):
        apt_get("update", cwd=tmp_path)


def test_the_output_of_one_program_is_the_input_of_another(tmp_path: Path) -> None:
    pipe(["seq", "100000"], ["tee", str(tmp_path / "numbers")])
    assert (tmp_path / "numbers").read_text() == capture(["seq", "100000"])


@pytest.mark.parametrize(
    ("source", "sink", "error"),
    [
        (["sh", "-c", "echo half; echo no disk >&2; exit 3"], ["cat"], "exit code 3.*no disk"),
        (["true"], ["sh", "-c", "echo no space >&2; exit 4"], "exit code 4.*no space"),
    ],
)
def test_a_failure_of_either_program_is_reported_with_its_output(source: list[str], sink: list[str], error: str) -> None:
    with pytest.raises(CommandFailed, match=f"(?s){error}"):
        pipe(source, sink)
