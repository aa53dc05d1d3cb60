"""Attack the operator and the verifiers with hostile agents: an attack may harm only its own trial."""

from __future__ import annotations

import asyncio

from tests.e2e.given import Step, holds, trial
from tests.support.process_world import Trials as Given


async def test_sparse_files_are_left_out_by_name_and_cost_others_nothing(given: Given) -> None:
    holes = "#!/bin/sh\ntruncate -s 3G /logs/artifacts/hole\ntruncate -s 100G /logs/agent/hole\n"
    huge = "#!/bin/sh\ntruncate -s 100G /logs/verifier/reward.json\n"
    sparse, honest = await asyncio.gather(given.ended(trial(Step("a", solve=holes, test=huge))), given.ended(trial(Step("a"))))
    (step,) = sparse["status"]["steps"]
    assert sparse["status"]["failure"] == {"class": "Verifier", "reason": "VerifierOutputParseError", "step": "a"}
    assert sparse["status"]["score"] == 0
    assert "rewards" not in sparse["status"] and "too large" in step["exception"]["message"]
    left_out = step["artifacts"]["incomplete"]
    assert [each.partition(":")[0] for each in left_out] == ["/logs/agent", "/logs/verifier", "/logs/artifacts"]
    assert holds(honest, "Complete") and honest["status"]["rewards"] == {"reward": 1.0}


READS_TESTS = "setsid sh -c 'while cat /tests/test.sh >> /tmp/seen; echo >> /tmp/rounds; do sleep 0.05; done' > /dev/null 2>&1 &\n"
AWAITS_READS = """#!/bin/sh
rounds() { wc -l < /tmp/rounds; }
before=$(rounds)
until [ "$(rounds)" -gt $((before + 2)) ]; do sleep 0.05; done
[ ! -s /tmp/seen ]
echo $((! $?)) > /logs/verifier/reward.txt
"""


async def test_a_process_that_an_agent_left_cannot_read_the_tests(given: Given) -> None:
    """The reward is 0 if the process has read any test: with the tests it could solve a later step that has the same tests."""
    step = Step("a", solve=f"#!/bin/sh\n{READS_TESTS}", test=AWAITS_READS)
    done = await given.ended(trial(step, Step("b", test=AWAITS_READS), config={"agent": {"user": "nobody"}}))
    status = done["status"]
    assert (status["isolation"], status["rewards"]) == ("User", {"reward": 1.0}), status
