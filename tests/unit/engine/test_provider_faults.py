"""When the provider is to blame for the end of an agent although its last request did not fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from multistep.engine.score.usage_totals import SILENCE_SECONDS, ModelFailure, ModelReport

FAULT = ModelFailure("Provider", "the provider answered no JSON")
LEFT_SOON = replace(FAULT, at_timeout=True)


@pytest.mark.parametrize(
    ("fault", "silent", "failed", "timeout", "why"),
    [
        (FAULT, 0.0, True, None, FAULT.message),
        (FAULT, 0.0, False, None, ""),
        (LEFT_SOON, 0.0, True, None, ""),
        (LEFT_SOON, 0.0, True, 60.0, FAULT.message),
        (None, SILENCE_SECONDS, True, None, "the provider sent nothing for 10 s until the agent left"),
        (None, 600.0, False, None, ""),
        (None, SILENCE_SECONDS - 0.1, True, None, ""),
        (None, 30.0, True, 60.0, "the provider sent nothing for 30 s until the agent left"),
        (None, 29.0, True, 60.0, ""),
        (None, 600.0, True, 7200.0, "the provider sent nothing for 600 s until the agent left"),
        (None, 0.0, True, 0.0, ""),
    ],
)
def test_a_fault_or_a_long_silence_of_the_provider_explains_the_end(
    fault: ModelFailure | None, silent: float, failed: bool, timeout: float | None, why: str
) -> None:
    report = ModelReport(usage=None, fault=fault, silent_seconds=silent)
    assert report.provider_fault(failed=failed, timeout=timeout, ended=0.0) == why
