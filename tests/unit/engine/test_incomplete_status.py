"""Test how the status reports outputs that were not copied completely, and reward files that changed while they were read."""

from __future__ import annotations

import pytest

from multistep.api.trial.runner_records import Capture, PhaseResult
from multistep.api.trial.status import TrialStatus
from multistep.engine.journal.journal import Collected, StepRun
from multistep.engine.score.rewards import REWARD_TXT, RewardError
from multistep.engine.script import verify_step
from multistep.engine.status import status_size, trial_status


def test_the_status_names_a_few_sources_and_removes_them_first() -> None:
    run = StepRun(name="a", collected=Collected(incomplete=tuple(f"/{number}: changed" for number in range(9))))
    step = trial_status.step_status(run)
    assert step.artifacts and step.artifacts.incomplete == [*(f"/{each}: changed" for each in range(4)), "and 5 more sources"]
    whole = trial_status.step_status(StepRun(name="b", collected=Collected()))
    short = status_size._without_lists(TrialStatus(steps=[step, whole])).steps
    assert [each.artifacts and each.artifacts.incomplete for each in short] == [["see manifest.json"], None]


def test_a_reward_file_that_changed_while_it_was_read_is_no_reward() -> None:
    capture = Capture(data=b"1", size=1, truncated=False, changed=True)
    result = PhaseResult(
        exit_code=0,
        signal=None,
        timed_out=False,
        error=None,
        tail="",
        output_bytes=0,
        output_truncated=False,
        oom_kills=0,
        memory_limit=None,
        duration_seconds=1.0,
        captures={REWARD_TXT: capture},
    )
    with pytest.raises(RewardError, match="changed while it was read"):
        verify_step._captured(result, REWARD_TXT)
