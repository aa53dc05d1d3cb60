"""Random combinations of features, and of faults that no agent causes: the trial ends as an undisturbed one.

Each seed is one trial, always the same. The reward, the score, the steps and the usage must not depend on the faults, no phase may
run twice, and nothing may be left behind.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.score.usage_totals import usage_of_all_attempts
from multistep.errors import StoreError, StreamLost, Unavailable
from multistep.reconcile.models.model_gateway import AgentOrUser
from tests.support.fake_models import FakeModels, counted
from tests.support.fake_runner import Json
from tests.support.fake_volume import FakeVolume
from tests.support.faults import Faults, Killed
from tests.support.played import outcome
from tests.support.world import CONFIG, KEY, MIXED, SEPARATE, Source, World, manifest
from tests.unit.reconcile.scenarios import GATEWAY_SETTINGS, KEY_OF, lose_pod

TOKENS = 100  # input tokens of each run of an agent
SOURCE = asyncio.run(Source.ran(trial=manifest({"checkpoints": {"policy": "AfterStep", "keep": "WithResults"}})))


class Models(FakeModels):
    """A model gateway that saw requests of each agent that ran."""

    world: World

    async def close(self, trial: MultiStepTrial, step: str, role: AgentOrUser = "agent") -> Mapping[str, Any]:
        await super().close(trial, step, role)
        id = f"{trial.status.attempt}/{step}/host/agent"
        return counted((TOKENS, 0, 0)) if id in starts(self.world) else {}


class Noise(Faults):
    """Lets some calls of the operator fail, and kills the operator at others."""

    def __init__(self, rng: random.Random, chance: float) -> None:
        super().__init__()
        self._rng, self._chance, self._left = rng, chance, 12

    def point(self, name: str) -> None:
        super().point(name)
        if self._left and self._rng.random() < self._chance:
            self._left -= 1
            self.dead = self._rng.random() < 0.4
            raise Killed if self.dead else self._error(name)

    def _error(self, name: str) -> Exception:
        if name.startswith(("volume", "store")):
            return StoreError(name)
        return StreamLost(name) if name.startswith(("send", "receive", "switch")) else Unavailable(name)


def starts(world: World) -> Counter[str]:
    """Return how often each operation of the trial was started."""
    return sum((runner.starts for runner in world.cluster.runners.values()), Counter[str]())


def end_container(world: World) -> None:
    """Kill the container of the trial, as the node does."""
    ended = [{"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "Error"}}}]
    for name in (each for each in world.pods if "-v" not in each):
        world.cluster.set_pod_status(KEY[0], name, phase="Failed", containerStatuses=ended)


def lose_verifier(world: World) -> None:
    for name in (each for each in world.pods if "-v" in each):
        world.cluster.remove("Pod", KEY[0], name)


def close_gateway(world: World) -> None:
    if world.models is not None:
        world.models.down = 5


def fill_namespace(world: World, room: int = 0) -> None:
    assert isinstance(world.volume, FakeVolume)
    world.volume.room_bytes = room


def features(rng: random.Random) -> tuple[Json, Json]:
    """Return a trial and the options of its world."""
    config = rng.choice([CONFIG, SEPARATE, MIXED])
    spec: Json = {"infrastructureRetries": 20, "suspendPolicy": rng.choice(["Pause", "ReleaseAfterStep", "Release"])}
    spec["verifier"] = {"isolation": rng.choice(["Declared", "Separate", "Both"])}
    settings: Json = dict(GATEWAY_SETTINGS)
    phases = ("agent", "host/agent", "verifier", "verifier/verifier")
    durations = {f"{step}/{phase}": rng.choice([0.0, 60.0, 900.0]) for step in "abc" for phase in phases}
    options: Json = {"settings": settings, "durations": durations, "stored": rng.random() < 0.3, "user": rng.choice([0, 1000])}
    if rng.random() < 0.7:
        spec["checkpoints"] = {"policy": "AfterStep", "keep": rng.choice(["WhileActive", "WithResults"])}
    if rng.random() < 0.5:
        spec["agent"] = {"name": "terminus-2", "model": "openai/m", "credentials": [KEY_OF]}
        options["results"] = {f"{step}/host/agent": outcome() for step in "abc"} | {"/host/agent-setup": outcome()}
    if rng.random() < 0.3:
        spec["from"] = {"trial": "source", "step": rng.choice("ab")}
        options["source"] = SOURCE
    if rng.random() < 0.4:
        settings["egress"] = "Sidecar"
        config = {**config, "verifier": {**config["verifier"], "network_mode": "allowlist", "allowed_hosts": ["pypi.org"]}}
    return manifest(spec, config=config), options


def faults(rng: random.Random) -> dict[float, Callable[[World], None]]:
    """Return what happens to the trial, by the time at which it happens."""
    found, now = dict[float, Callable[[World], None]](), 0.0
    for _ in range(rng.randint(1, 4)):
        now += rng.choice([1.0, 15.0, 50.0, 120.0, 400.0, 700.0])
        what = rng.choice(["suspend", "fill", lose_pod, end_container, lose_verifier, lose_verifier, close_gateway])
        if what == "suspend":
            found[now] = lambda world: world.change_trial(suspend=True)
            found[now := now + 30.0] = lambda world: world.change_trial(suspend=False)
        elif what == "fill":
            found[now] = fill_namespace
            found[now := now + 30.0] = lambda world: fill_namespace(world, 1 << 30)
        elif callable(what):
            found[now] = what
    return found


async def ran(trial: Json, options: Json, **more: Any) -> World:
    models = Models()
    models.world = World(trial=trial, models=models, **options, **more)
    await models.world.run(most=1500)
    return models.world


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 20))])
async def test_a_trial_ends_the_same_whatever_happens_that_no_agent_causes(seed: int) -> None:
    random.seed(seed)  # for the jitter of the polls
    rng = random.Random(seed)
    trial, options = features(rng)
    calm = await ran(trial, options)
    assert calm.condition[0] == "Complete"
    world = await ran(trial, options, happens=faults(rng), faults=Noise(rng, rng.choice([0.0, 0.005, 0.02])))
    now, then = world.status, calm.status
    for name in ("rewards", "score", "passed", "outcome", "usage"):
        assert getattr(now, name) == getattr(then, name), (name, world.condition, now.attempts)
    assert [(each.name, each.rewards, each.usage) for each in now.steps] == [
        (each.name, each.rewards, each.usage) for each in then.steps
    ]
    assert {each.kind for each in now.tampering} <= {"ComparisonIncomplete"}
    agents = [id for id in starts(world) if id.endswith("/host/agent")]
    used = usage_of_all_attempts(now)
    assert (used.input_tokens if used else 0) == TOKENS * len(agents)
    assert all(count == 1 for id, count in starts(world).items() if id.endswith(("/agent", "/verifier")))
    assert (world.pods, now.verifier, sorted(world.kept.steps)) == ([], None, sorted(calm.kept.steps))
