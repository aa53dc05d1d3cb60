"""The helpers of the end-to-end tests that find the processes of a pod's container."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from multistep.kube.cluster_protocols import Object
from tests.support.machine import processes

ANY_CONTAINER = "any://:"  # each line of /proc/PID/cgroup has colons
PARENT_AND_CHILDREN = """
import os, subprocess, sys, time
forked = os.fork() or time.sleep(3600)
other = subprocess.Popen(["sleep", "3600"])
print(forked, other.pid, flush=True)
sys.stdin.read()
"""
COMMAND = [sys.executable, "-c", PARENT_AND_CHILDREN]


def pod(*statuses: Object) -> Object:
    return {"status": {"containerStatuses": [*statuses]} if statuses else {}}


@pytest.fixture
def family() -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    """Yield a process, its forked child, and its child with another program."""
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        forked, other = map(int, parent.stdout.readline().split())
        yield parent, forked, other
        for pid in (forked, other):
            os.kill(pid, 9)


def test_a_child_that_has_not_executed_its_own_program_yet_is_left_out(family: tuple[subprocess.Popen[str], int, int]) -> None:
    parent, forked, other = family
    running = pod({"name": "main", "containerID": ANY_CONTAINER})
    assert processes(running, "\0".join(COMMAND).encode()) == [parent.pid]
    found = processes(running)
    assert {parent.pid, other} <= set(found) and forked not in found


def test_a_container_that_the_kubelet_has_not_reported_has_no_processes() -> None:
    assert processes(pod()) == processes(pod({"name": "main"})) == processes(pod({"name": "main", "containerID": ""})) == []
