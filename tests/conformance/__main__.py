"""``python -m tests.conformance DIR``: run cases on KUBECONFIG's cluster, or without one, and compare the outcomes."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from multistep.errors import MultistepError

from .case import find_cases
from .images import CHECKOUT
from .judging import Report, Verdict
from .report import brief, summary
from .run import DEFAULT_JOBS, DEFAULT_LIMIT_SECONDS, Settings, run
from .without_cluster import run_without_cluster

ALL_AGREE, NOT_ALL, USAGE, NO_CLUSTER = 0, 1, 2, 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    options = _parser().parse_args(arguments)
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    directories = _chosen(options.directory, options.only)
    if not directories:
        print(f"error: {options.directory} has no cases{' of that name' if options.only else ''}", file=sys.stderr)
        return USAGE
    if not options.without_cluster:
        ensure_kubeconfig()
    settings = Settings(
        jobs=options.jobs,
        limit_seconds=options.limit,
        namespace=options.namespace,
        keep=options.keep,
        say=lambda text: print(text, file=sys.stderr, flush=True),
        reported=lambda report: _report(report, options.outcomes),
    )
    try:
        reports = asyncio.run((run_without_cluster if options.without_cluster else run)(directories, settings))
    except MultistepError as error:
        print(f"error: {error}", file=sys.stderr)
        return NO_CLUSTER
    except KeyboardInterrupt:
        return 130
    print("\n".join(summary(reports)))
    return ALL_AGREE if all(report.verdict is Verdict.AGREE for report in reports) else NOT_ALL


def ensure_kubeconfig() -> None:
    """Set KUBECONFIG to localkube's cluster if it is unset and that cluster exists."""
    if os.environ.get("KUBECONFIG"):
        return
    command = [sys.executable, "-m", "localkube", "kubeconfig"]
    asked = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    if asked.returncode == 0 and Path(asked.stdout.strip()).is_file():
        os.environ["KUBECONFIG"] = asked.stdout.strip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("directory", type=_directory, metavar="DIR", help="each directory in it with a trial.json is a case")
    parser.add_argument("--jobs", type=_at_least_one, default=DEFAULT_JOBS, metavar="N", help="cases at once (%(default)s)")
    parser.add_argument("--only", action="append", default=[], metavar="GLOB", help="only cases of such names; may be repeated")
    parser.add_argument(
        "--without-cluster", action="store_true", help="run operator and pods as processes here; needs root on Linux"
    )
    parser.add_argument("--limit", type=float, default=DEFAULT_LIMIT_SECONDS, metavar="SECONDS", help="of each case (%(default)s)")
    parser.add_argument("--namespace", default="", metavar="NAME", help="name of the run's own namespace (a random one)")
    parser.add_argument("--keep", action="store_true", help="keep the run's namespace, with all trials")
    parser.add_argument("--outcomes", type=Path, metavar="DIR", help="write what came of each case to DIR/NAME.json")
    return parser


def _directory(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is not a directory")
    return Path(text)


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number from 1")
    return int(text)


def _chosen(directory: Path, only: Sequence[str]) -> list[Path]:
    return [each for each in find_cases(directory) if not only or any(fnmatchcase(each.name, glob) for glob in only)]


def _report(report: Report, outcomes: Path | None) -> None:
    print("\n".join(brief(report)), flush=True)
    if outcomes is not None and report.outcome is not None:
        outcomes.mkdir(parents=True, exist_ok=True)
        (outcomes / f"{report.name}.json").write_text(json.dumps(report.outcome, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main())
