"""A step that a later attempt keeps is counted and reported once, in the attempt that ran it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from multistep.api.trial.trial import parse_trial
from multistep.engine.status.trace_spans import spans
from multistep.report.rows import trial_row
from tests.support.fake_models import FakeModels, counted
from tests.support.world import World, manifest
from tests.unit.reconcile.scenarios import GATEWAY_SETTINGS, HOSTED_OPTIONS, TWO, WITH_GATEWAY, lose_pod
from tests.unit.reconcile.test_checkpoints import CHECKPOINTS, at_step, world_of
from tests.unit.reconcile.test_trial_metrics import value

ONCE = ["StepStarted", "StepCompleted", "StepCompleted"]  # the Event of a completed step reports that the next one started


def restart(world: World) -> None:
    """Restart the operator: the new one has an empty memory."""
    world.reconciler = world.fresh()


@pytest.mark.parametrize("happens", [lambda _: None, restart])
async def test_a_kept_step_has_one_event_one_sample_and_one_span(happens: Callable[[World], None]) -> None:
    world = world_of()
    await at_step(world, "c")
    lose_pod(world)
    await world.run(until=lambda: world.status.attempt == 2 and world.status.pod_uid)
    happens(world)
    await world.run()
    steps = [event["reason"] for event in world.cluster.events if event["reason"].startswith("Step")]
    assert steps == [*ONCE, "StepStarted", "StepCompleted"], "step c starts in each attempt and ends in the second"
    assert value(world, "steps_finished_total", agent="oracle", outcome="Complete") == 3
    assert value(world, "step_phase_duration_seconds_count", agent="oracle", phase="agent") == 3
    found = spans(parse_trial(world.object))
    names = {each.id: each.name for each in found}
    assert [(names[each.parent], each.name) for each in found if each.name.startswith("step ")] == [
        ("attempt 1", "step a"),
        ("attempt 1", "step b"),
        ("attempt 1", "step c"),
        ("attempt 2", "step c"),
    ]


async def test_the_model_usage_of_a_kept_step_is_counted_once() -> None:
    used = counted((100, 10, 5))
    models = FakeModels({"1/a": used, "1/b": {}, "2/b": used})
    world = World(
        trial=manifest({**WITH_GATEWAY, **CHECKPOINTS}, config=TWO),
        **{**HOSTED_OPTIONS, "settings": GATEWAY_SETTINGS, "durations": {"b/host/agent": 100.0}},
        models=models,
    )
    await world.run(until=lambda: world.status.current_step == "b" and world.status.steps[-1].phase == "Agent")
    lose_pod(world)
    await world.run()
    assert world.status.phase == "Complete" and world.status.resumed is not None
    labels = {"agent": "terminus-2", "model": "openai/m", "source": "Gateway"}
    assert value(world, "model_tokens_total", kind="input", **labels) == 200
    assert trial_row(world.object).input_tokens == 200
