"""Decides whether a process in the container ended an exec session."""

from __future__ import annotations

_FIRST_SIGNAL = 128  # a process killed by signal N has the exit status 128 + N
_WITHOUT_RESOURCES = 2  # status of ``runner call`` without memory, threads or file descriptors
_CHDIR = "chdir to cwd"  # part of runc's message if it cannot enter the container's working directory
_NO_WORKDIR = (  # errors of a directory that was deleted or replaced, or whose mode permits no entry
    "no such file or directory",
    "not a directory",
    "too many levels of symbolic links",
    "file name too long",
    "permission denied",
)
_WORKDIR_OUTSIDE = "current working directory is outside of container mount namespace root"  # runc's message: a link to nowhere


def ended_from_inside(code: int | None, message: str) -> bool:
    """Return whether a process in the container ended the exec session; False if an infrastructure failure may have ended it.

    True if a signal killed the session's process, if this process had no resources (prlimit), or if no session can start because
    the container's working directory was deleted or replaced. While the container runs, only its own processes or its limits cause
    such ends, and the report of the end shows that API server, network, kubelet and node work. All other ends may be infrastructure
    failures, e.g. status 1 (the container's process 1 does not answer) and errors of containerd or runc.

    code: exit status of the session's process, None if it could not be started; message: the error that the kubelet reported.
    """
    if code is not None:  # 255: an error of the container runtime, not the process's status
        return code == _WITHOUT_RESOURCES or (code > _FIRST_SIGNAL and code != 255)
    return _WORKDIR_OUTSIDE in message or (_CHDIR in message and any(each in message for each in _NO_WORKDIR))
