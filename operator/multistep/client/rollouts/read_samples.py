"""Reads the token records of a trial's steps from a directory with the trial's results."""

from __future__ import annotations

from pathlib import Path

from multistep.client.rollouts.merge_records import samples_of_records
from multistep.client.rollouts.sample import Credit, Samples
from multistep.client.run import Rollout
from multistep.errors import UsageError
from multistep.token_records.read_file import read
from multistep.token_records.record import PATH, StepRecords


def records_path(step: str) -> str:
    """Return the path of a step's token records in the trial's results."""
    return f"steps/{step}/{PATH}"


def read_samples(rollout: Rollout, directory: Path, credit: Credit = "ToGo", *, aborted: bool = False) -> Samples:
    """Return the training samples of a trial, as ``samples`` of the client does. directory: its results, as ``fetch`` of the client
    wrote them. Raises OSError, and UsageError if the tokens of its requests were not recorded."""
    if not rollout.captured:
        raise UsageError(f"trial {rollout.name} has no token records: set capture to Tokens in its spec.agent")
    records = {step.name: _read(directory / records_path(step.name)) for step in rollout.steps}
    parts = {step.name: step.part or 0.0 for step in rollout.steps}
    return samples_of_records(records, parts, rollout.reward, credit, aborted=aborted)


def _read(path: Path) -> StepRecords:
    return read(path) if path.is_file() else StepRecords({}, [], "the step has no token records")
