"""Whether the end of an exec session was the doing of something in its container."""

from __future__ import annotations

_FIRST_SIGNAL = 128  # a process that signal N ended has the status 128 + N
_WORKDIR_GONE = "chdir to cwd"  # as runc says when the container's working directory does not exist any more
_MISSING = ("no such file or directory", "not a directory")


def ended_from_inside(code: int | None, message: str) -> bool:
    """Conservative: True only for what no failure of API server, network, kubelet or node explains.

    code, message: the status that the kubelet reported for the session's process, which it does only if all of these work. The
    container runs, so nothing from outside sends signals to single processes in it: the agent does, or its memory limit. Without
    its working directory, which only the container's processes can remove, no session can start. Other statuses (1: process 1
    does not answer; no number: containerd or runc failed) may be a node's doing.
    """
    if code is not None:
        return code > _FIRST_SIGNAL and code != 255  # 255: an error of the runtime
    return _WORKDIR_GONE in message and any(each in message for each in _MISSING)
