"""The metrics themselves: bounded, whatever the names are, and as Prometheus wants them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hack.generate.metrics_page import PAGE, with_table
from multistep.metrics import MAX_VALUE_CHARACTERS, OTHER, Metrics
from multistep.settings import Settings

ROOT = Path(__file__).parents[2]
ALL = Settings(metrics_labels=["namespace", "task", "step", "agent", "key"], metrics_label_sets=3)


def names(number: int) -> dict[str, str]:
    return {"namespace": "ns", "task": f"task {number}", "step": "a", "agent": "oracle", "key": "reward"}


def samples(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """By the values of task and step."""
    found = [each for family in text_string_to_metric_families(metrics.render().decode()) for each in family.samples]
    return {(each.labels["task"], each.labels["step"]): each.value for each in found if each.name == name}


def test_the_table_of_the_page_is_current() -> None:
    page = (ROOT / PAGE).read_text()
    assert with_table(page) == page, "run: make generate"


def test_every_metric_is_described_and_nothing_else_is() -> None:
    metrics = Metrics()
    families = {each.name for each in text_string_to_metric_families(metrics.render().decode())}
    own = {each for each in families if each.startswith("multistep_")}
    assert {each.name.removesuffix("_total") for each in metrics.described} == own
    assert all(each.text.endswith(".") for each in metrics.described)


def test_names_that_users_invent_are_no_labels_unless_chosen() -> None:
    shown = {each.name: each.choices for each in Metrics().described if each.choices}
    metrics = Metrics()
    metrics.step_reward.of(**names(1)).observe(1)
    assert metrics.registry.get_sample_value("multistep_step_reward_count", {"agent": "oracle"}) == 1
    assert all("agent" in each for each in shown.values())


def test_with_no_label_chosen_all_is_one_series() -> None:
    metrics = Metrics(Settings(metrics_labels=[]))
    metrics.step_reward.of(**names(1)).observe(1)
    metrics.step_reward.of(**names(2)).observe(0)
    assert metrics.registry.get_sample_value("multistep_step_reward_count") == 2


def test_the_first_sets_have_series_and_the_rest_is_other_so_that_sums_stay_right() -> None:
    metrics = Metrics(ALL)
    for number in range(1000):
        metrics.step_reward.of(**names(number)).observe(1)
        metrics.step_reward.of(**names(0)).observe(1)
    found = samples(metrics, "multistep_step_reward_count")
    assert found == {("task 0", "a"): 1001, ("task 1", "a"): 1, ("task 2", "a"): 1, (OTHER, OTHER): 997}


@pytest.mark.parametrize("hostile", ["\ud800", 'a"b\\c\nd{e="f"} 1', "x" * 100_000, "\0\x1b[31m", "‮"])
def test_hostile_names_leave_a_text_that_prometheus_reads(hostile: str) -> None:
    metrics = Metrics(ALL)
    metrics.step_reward.of(**names(1) | {"task": hostile, "step": "b"}).observe(1)
    ((task, step),) = samples(metrics, "multistep_step_reward_count")
    assert step == "b" and 0 < len(task) <= MAX_VALUE_CHARACTERS and task.isprintable()
    assert len(metrics.render()) < 100_000


def test_promtool_finds_nothing_to_say_about_them() -> None:
    metrics = Metrics(ALL)
    metrics.step_reward.of(**names(1)).observe(1)
    metrics.trials_finished.of("Complete", "", "", **names(1)).inc()
    done = subprocess.run(["promtool", "check", "metrics"], input=metrics.render(), capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_trials_by_phase_are_shown_by_the_replica_that_leads_only() -> None:
    metrics = Metrics()
    for name, phase in (("a", None), ("b", "Running"), ("c", "Running"), ("d", "what somebody wrote there")):
        metrics.phases.saw(("ns", name), phase)
    metrics.phases.gone(("ns", "c"))
    shown = {each: metrics.registry.get_sample_value("multistep_trials", {"phase": each}) for each in ("Pending", "Running", OTHER)}
    assert shown == {"Pending": 1, "Running": 1, OTHER: 1}
    metrics.phases.shown = lambda: False
    assert metrics.registry.get_sample_value("multistep_trials", {"phase": "Running"}) is None


def test_what_may_happen_for_the_first_time_has_a_series_from_the_start() -> None:
    metrics = Metrics()
    assert metrics.registry.get_sample_value("multistep_attempts_lost_total", {"reason": "PodDeleted"}) == 0
    assert metrics.registry.get_sample_value("multistep_exec_failures_total", {"cause": "stream"}) == 0
