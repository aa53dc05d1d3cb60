"""Test programs that are forked from a process that has imported them."""

import os
import signal
from pathlib import Path

from tests.support import forked


def test_a_program_has_its_own_arguments_environment_streams_and_exit_code(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    env = {**os.environ, "_MULTISTEP_COMPLETE": ""}
    codes = [
        forked.start(forked.COMMAND_LINE, arguments, env, out, err).exit_code()
        for arguments in (("version",), ("check", str(tmp_path / "none")))
    ]
    assert codes == [0, 2] and "multistep" in out.read_text() and "none" in err.read_text(), err.read_text()


def test_a_signal_ends_a_program_and_is_its_exit_code(tmp_path: Path) -> None:
    program = forked.start(f"{__name__}", (), os.environ, tmp_path / "out", tmp_path / "err")
    program.signal(signal.SIGKILL)
    assert program.exit_code() == -signal.SIGKILL
    program.signal(signal.SIGKILL)  # a program that has ended gets none


def main() -> None:
    """Wait for a signal."""
    signal.pause()
