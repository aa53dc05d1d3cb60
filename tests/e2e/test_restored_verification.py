"""Verification in a fresh pod with restored files, on the real cluster: changed programs do not come along."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.given import Given, Step, trial

# Puts a program before `cat` that prints the right answer to whoever asks.
FORGE = """#!/bin/bash
printf '#!/bin/bash\\necho solved\\n' > /usr/local/bin/cat && chmod +x /usr/local/bin/cat
mkdir -p /app && echo wrong > /app/answer
"""
SOLVE = "#!/bin/bash\nmkdir -p /app && echo solved > /app/answer && ln -s answer /app/link && chmod 0640 /app/answer\n"
TEST = """#!/bin/bash
[ "$(cat /app/answer)" = solved ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""


@pytest.mark.parametrize(
    ("solve", "verifier", "reward"),
    [
        (FORGE, {}, 1.0),
        (FORGE, {"isolation": "Separate"}, 1.0),
        (FORGE, {"isolation": "Separate", "paths": ["/app"]}, 0.0),
        (SOLVE, {"isolation": "Separate", "paths": ["/app"]}, 1.0),
        (SOLVE, {"isolation": "Separate"}, 1.0),
    ],
    ids=["forged, in place", "forged, all files", "forged, its directory only", "honest, its directory only", "honest, all files"],
)
async def test_a_changed_program_does_not_come_along(solve: str, verifier: dict[str, Any], reward: float, given: Given) -> None:
    made = trial(Step("one", solve=solve, test=TEST), Step("two", test=TEST), verifier=verifier)
    status = (await given.ended(made))["status"]
    assert [each.get("rewards") for each in status["steps"]] == [{"reward": reward}] * 2, status
    assert status["isolation"] == ("Restored" if verifier else "Shared")
