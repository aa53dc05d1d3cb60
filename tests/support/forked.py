"""Start this checkout's programs by a fork of a process that has imported them: importing takes one to two seconds of CPU.

Each program is a process of its own, with its own environment, working directory, streams and exit code.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from signal import Signals

OPERATOR, COMMAND_LINE = "multistep.app.kopf_handlers", "multistep.cli.main"  # modules with a function main
_KUBECONFIG = ("kubernetes.config.kube_config", "kubernetes.aio.config.kube_config")  # read $KUBECONFIG when they are imported

_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__, OPERATOR, COMMAND_LINE, *_KUBECONFIG])
_lock = threading.Lock()  # multiprocessing reads the exit codes of ended processes when it starts one, and not safely for threads


@dataclass(frozen=True)
class Program:
    """A program that was started."""

    _process: ForkServerProcess

    def exit_code(self) -> int:
        """Wait until the program has ended. Return its exit code, or the negative number of the signal that ended it."""
        wait([self._process.sentinel])
        with _lock:
            self._process.join()
        return self._process.exitcode or 0

    def signal(self, number: Signals) -> None:
        """Send a signal to the program if it runs."""
        with suppress(ProcessLookupError):
            os.kill(self._process.pid or 0, number)


def start(module: str, arguments: Sequence[str], env: Mapping[str, str], out: Path, err: Path) -> Program:
    """Start the function main of a module. out, err: files to which its output is appended."""
    process = _CONTEXT.Process(target=_run, args=(module, arguments, dict(env), out, err))
    with _lock:
        process.start()
    return Program(process)


def _run(module: str, arguments: Sequence[str], env: Mapping[str, str], out: Path, err: Path) -> None:
    for standard, file in ((1, out), (2, err)):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(env)
    for name in _KUBECONFIG:
        vars(import_module(name))["KUBE_CONFIG_DEFAULT_LOCATION"] = env.get("KUBECONFIG", "~/.kube/config")
    sys.argv[1:] = arguments
    import_module(module).main()
