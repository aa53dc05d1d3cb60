"""Test the load of each limited model since the last report, which is computed from the gateway's totals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.app.operator import App
from multistep.gateway.pace import _MAX_MODELS, AnswerCounts, ModelLoad
from multistep.reconcile.admission.model_slots import ModelLoads, is_model
from multistep.reconcile.trial.reconciler import Reconciler
from multistep.settings import ModelLimit, Settings
from tests.support.fake_cluster import FakeCluster
from tests.unit.gateway.world import world

MODEL = "openai/gpt-5"
totals = st.dictionaries(
    st.sampled_from(["gpt-5", "gpt-5-2025-08-07", "gpt-5-mini", "x"]),
    st.builds(ModelLoad, answered=st.integers(0, 99), refused=st.integers(0, 99)),
)


@pytest.mark.parametrize("requested", ["gpt-5", "openai/gpt-5", "gpt-5-2025-08-07", "gpt-5-20250807", "gpt-5@20250807"])
def test_a_date_may_follow_a_models_name(requested: str) -> None:
    assert is_model(MODEL, requested)


def test_claude_codes_suffix_of_a_large_window_is_not_in_its_requests() -> None:
    assert is_model("anthropic/claude-sonnet-4-5[1m]", "claude-sonnet-4-5")


@pytest.mark.parametrize("requested", ["gpt-5-mini", "gpt-5-mini-2025-08-07", "gpt-5.2", "gpt-50", "gpt", "", "gpt-5-2"])
def test_another_model_is_not_mistaken_for_it(requested: str) -> None:
    assert not is_model(MODEL, requested)


@given(st.lists(totals, max_size=8))
def test_the_increases_add_up_to_the_total_since_the_first_report(steps: list[Mapping[str, ModelLoad]]) -> None:
    """steps: the load of each requested model, for each interval between two reports."""
    loads, so_far, seen = ModelLoads([MODEL]), dict[str, ModelLoad](), ModelLoad()
    assert loads.since_last({}) == {}
    for step in steps:
        so_far |= {name: plus(so_far.get(name, ModelLoad()), load) for name, load in step.items()}
        seen = plus(seen, loads.since_last(so_far)[MODEL])
    assert seen == plus(so_far.get("gpt-5", ModelLoad()), so_far.get("gpt-5-2025-08-07", ModelLoad()))


def plus(a: ModelLoad, b: ModelLoad) -> ModelLoad:
    return ModelLoad(answered=a.answered + b.answered, refused=a.refused + b.refused)


def test_after_a_restart_of_the_gateway_its_new_totals_are_the_increase() -> None:
    loads = ModelLoads([MODEL])
    loads.since_last({"gpt-5": ModelLoad(answered=100, refused=5)})
    assert loads.since_last({"gpt-5": ModelLoad(answered=3, refused=1)}) == {MODEL: ModelLoad(answered=3, refused=1)}


def test_totals_of_before_the_first_report_are_no_load() -> None:
    assert ModelLoads([MODEL]).since_last({"gpt-5": ModelLoad(answered=100, refused=5)}) == {}


def test_the_gateway_forgets_the_models_requested_longest_ago() -> None:
    loads = AnswerCounts()
    for number in range(_MAX_MODELS):
        loads.count(f"m{number}", refused=False)
    loads.count("m0", refused=True)
    loads.count("another", refused=False)
    assert len(loads.totals) == _MAX_MODELS and "m1" not in loads.totals
    assert loads.totals["m0"] == ModelLoad(answered=1, refused=1)


async def test_the_gateway_counts_each_answer_and_each_refusal(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.call("chat", "-fail-429-2")
        await it.call("chat")
        found = await it.admin.loads()
        assert found["gpt-5-mini-fail-429-2"] == ModelLoad(answered=1, refused=2)
        assert found["gpt-5-mini"] == ModelLoad(answered=1)


class FakeGateway:
    """A gateway that reports the loads in ``totals``, by requested model."""

    def __init__(self) -> None:
        self.totals: dict[str, ModelLoad] = {}

    async def loads(self) -> Mapping[str, ModelLoad]:
        return self.totals


async def test_only_the_leader_adapts_its_limits(tmp_path: Path) -> None:
    app = App(Settings(results_dir=tmp_path, models=[ModelLimit(model=MODEL, max_active=8)]))
    app.reconciler = Reconciler(FakeCluster(), app.volume, app.settings, app.metrics)
    gateway, loads, slots = FakeGateway(), ModelLoads([MODEL]), app.reconciler.admission.model_slots
    for refused, leads, limit in ((0, True, 8), (1, False, 8), (2, True, 4)):
        app.lease = cast(Any, SimpleNamespace(held=leads))
        gateway.totals = {"gpt-5": ModelLoad(refused=refused)}
        await app._adapt_models(gateway, loads)
        assert slots.limit(MODEL) == limit
    app.volume.close()
