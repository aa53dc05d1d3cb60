"""Identify processes by pid, start time and boot id, never by name."""

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from localkube.commands import wait_until

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_START_TIME_FIELD = 22  # field number in /proc/PID/stat, counted from 1 as in proc(5)
_STATE_FIELD = 3


@dataclass(frozen=True)
class Identity:
    """Identifies a process. A pid alone does not identify it, because the kernel reuses pids."""

    pid: int
    start_ticks: int  # clock ticks after boot
    boot_id: str

    @property
    def is_running(self) -> bool:
        return identify(self.pid) == self


def parse_stat(stat: str) -> tuple[str, int]:
    """Return the state letter and start time (clock ticks after boot) from the text of /proc/PID/stat.

    The second field is the program's name in parentheses and can itself contain spaces and parentheses.
    """
    after_name = stat[stat.rindex(")") + 2 :].split()
    first = 3  # number of the first field after the name, counted from 1 as in proc(5)
    return after_name[_STATE_FIELD - first], int(after_name[_START_TIME_FIELD - first])


def identify(pid: int) -> Identity | None:
    """Return the identity of a running process, or None if no process has this pid or the process is a zombie."""
    try:
        state, start_ticks = parse_stat(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None
    if state in "ZX":
        return None
    return Identity(pid, start_ticks, _BOOT_ID.read_text().strip())


def start(command: Sequence[str], log: Path, cgroup_procs: Path) -> Identity:
    """Start a process in a session of its own and in a cgroup. Its output is appended to `log`."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            [*_INTO_CGROUP, str(cgroup_procs), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | _FEWER_COLLECTIONS,
        )
    identity = identify(child.pid)
    child.returncode = 0  # prevents subprocess's ResourceWarning, because the child outlives this process
    return identity or Identity(child.pid, 0, "")


# The components are Go programs. These settings use more memory to save CPU time, because with Go's defaults, garbage collection
# takes an eighth of the API server's time.
_FEWER_COLLECTIONS = {"GOGC": "400", "GOMEMLIMIT": "3GiB"}

_INTO_CGROUP = ("sh", "-c", 'echo $$ >"$0" && exec "$@"')


def stop(identity: Identity, grace_seconds: float) -> None:
    """Send SIGTERM, and SIGKILL after the grace period."""
    _signal(identity, signal.SIGTERM)
    if not wait_until(lambda: not identity.is_running, grace_seconds):
        _signal(identity, signal.SIGKILL)
        wait_until(lambda: not identity.is_running, 5.0)


def _signal(identity: Identity, number: signal.Signals) -> None:
    """Send a signal to exactly this process. With a pidfd, the kernel cannot reuse the pid between the check and the signal."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return
    try:
        if identity.is_running:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Registry:
    """The records of the cluster's processes, with a file for each component."""

    directory: Path

    def record(self, name: str, identity: Identity) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        temporary = self.directory / f".{name}"
        temporary.write_text(json.dumps(asdict(identity)))
        temporary.rename(self.directory / name)

    def recorded(self, name: str) -> Identity | None:
        """Return the recorded process, running or not, or None if the record is missing or invalid."""
        try:
            return Identity(**json.loads((self.directory / name).read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def running(self, name: str) -> Identity | None:
        """Return the recorded process if it is running, otherwise None."""
        identity = self.recorded(name)
        return identity if identity and identity.is_running else None

    def forget(self, name: str) -> None:
        (self.directory / name).unlink(missing_ok=True)
