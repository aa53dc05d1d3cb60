"""Decides whether a process in the container ended an exec session."""

from __future__ import annotations

_FIRST_SIGNAL = 128  # a process killed by signal N has the exit status 128 + N
_WORKDIR_GONE = "chdir to cwd"  # part of runc's message if the container's working directory was deleted
_MISSING = ("no such file or directory", "not a directory")


def ended_from_inside(code: int | None, message: str) -> bool:
    """Whether a process in the container ended the session. Conservative: False if an infrastructure failure could explain it.

    code, message: the exit status that the kubelet reported for the session's process. The kubelet reports one only if API server,
    network, kubelet and node work. While the container runs, only its own processes or its memory limit kill the session, and
    only its own processes can delete its working directory, without which no session starts. Other statuses (1: process 1 does
    not answer; None: containerd or runc failed) may be infrastructure failures.
    """
    if code is not None:
        return code > _FIRST_SIGNAL and code != 255  # 255: an error of the runtime
    return _WORKDIR_GONE in message and any(each in message for each in _MISSING)
