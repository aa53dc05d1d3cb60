"""The runner reports finished phases by the pod's readiness, so that no exec session stays open while an agent works."""

from __future__ import annotations

from hack import image
from tests.e2e.given import WAITS, Step, finished, in_agent, trial
from tests.support.image_trees import named_image_tree
from tests.support.process_world import fresh, process_world

NEVER = 1e6  # seconds


async def test_a_phase_that_ends_without_a_session_is_noticed_by_the_pods_readiness() -> None:
    with fresh() as directory:
        settings = {"linger_seconds": 0.0, "poll_seconds": NEVER}
        async with process_world(directory, image.ensure_runner(), named_image_tree, **settings) as given:
            name = (await given.applied(trial(Step("a", solve=WAITS), Step("b"))))["metadata"]["name"]
            await given.until(name, in_agent)
            await given.go(name)
            status = (await given.until(name, finished))["status"]
            assert [each["rewards"] for each in status["steps"]] == [{"reward": 1.0}] * 2, status
