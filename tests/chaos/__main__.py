"""``make chaos``: run trials while operators are killed, connections cut, pods deleted and cluster components restarted.

Afterwards every trial must be Complete with its own reward, or Failed without a reward if all its attempts lost their pods.
Each phase must have started once per attempt, according to a counter in the pod and a log outside of the pod. No pod may be left.
docs/internals/development.md explains the output.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import signal
import sys
from pathlib import Path

from multistep.errors import MultistepError
from tests.chaos.course import Options, run
from tests.chaos.report import Outcome


def main() -> int:
    """Parse the command line and run. Return 0 if the run passed, 1 if it failed or was interrupted, 2 if an error ended it."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--trials", type=int, default=40, metavar="N")
    parser.add_argument(
        "--seconds", type=float, default=300.0, help="maximum duration of the faults in seconds (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="selects the faults; their timing still varies")
    parser.add_argument(
        "--out", type=Path, default=Path("out/chaos"), metavar="DIR", help="directory of the operator's log (default: %(default)s)"
    )
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.trials} trials, faults for at most {options.seconds:.0f} s", flush=True)
    try:
        outcome = asyncio.run(_run(Options(options.trials, options.seconds, options.seed, options.out / str(options.seed))))
    except asyncio.CancelledError:
        print("chaos: interrupted", file=sys.stderr)
        return 1
    except (MultistepError, OSError) as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 2
    print(outcome.summary())
    return 1 if outcome.wrong else 0


async def _run(options: Options) -> Outcome:
    """Perform the chaos run. SIGTERM cancels it like Ctrl-C, so that the cluster is restored."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await run(options)


if __name__ == "__main__":
    sys.exit(main())
