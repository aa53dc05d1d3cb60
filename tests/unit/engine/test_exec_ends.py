from __future__ import annotations

import pytest

from multistep.runner_client.frame_stream import ended_from_inside

RUNC = (
    "failed to exec in container: failed to start exec: OCI runtime exec failed: exec failed: unable to start container process: "
)


@pytest.mark.parametrize(
    ("code", "message", "inside"),
    [
        (137, "", True),
        (143, "", True),
        (None, RUNC + 'chdir to cwd ("/app") set in config.json failed: no such file or directory', True),
        (None, RUNC + 'chdir to cwd ("/app") set in config.json failed: not a directory', True),
        (None, RUNC + 'chdir to cwd ("/app") set in config.json failed: too many levels of symbolic links', True),
        (None, RUNC + 'chdir to cwd ("/app") set in config.json failed: file name too long', True),
        (None, RUNC + 'chdir to cwd ("/app") set in config.json failed: permission denied', True),
        (None, RUNC + "current working directory is outside of container mount namespace root -- possible breakout", True),
        (None, RUNC + 'chdir to cwd ("/app") set in config.json failed: stale file handle', False),
        (None, "error dialing backend: dial tcp 10.0.0.1:10250: connect: connection refused", False),
        (None, "ttrpc: closed", False),
        (None, RUNC + "fork/exec: resource temporarily unavailable", False),
        (None, "no such file or directory", False),
        (0, "", False),
        (2, "fatal error: out of memory", True),
        (1, "PID 1 does not answer", False),
        (126, "", False),
        (128, "", False),
        (255, "", False),
    ],
)
def test_only_what_no_infrastructure_failure_explains_is_the_containers_doing(code: int | None, message: str, inside: bool) -> None:
    assert ended_from_inside(code, message) is inside
