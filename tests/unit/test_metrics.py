"""The metrics: their cardinality is bounded whatever names objects have, and Prometheus can parse them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from hack.generate.metrics_page import PAGE, with_table
from multistep.app.operator import App
from multistep.errors import GatewayUnavailable, StoreError
from multistep.settings import Settings
from multistep.telemetry.metric_types import MAX_VALUE_CHARACTERS, OTHER
from multistep.telemetry.metrics import TABLE, Metrics

ROOT = Path(__file__).parents[2]
ALL = Settings(metrics_labels=["namespace", "agent"], metrics_label_sets=3)


def names(number: int) -> dict[str, str]:
    return {"namespace": f"ns {number}", "agent": "oracle", "model": ""}


def samples(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """Return the metric's samples by their labels (namespace, agent)."""
    found = [each for family in text_string_to_metric_families(metrics.render().decode()) for each in family.samples]
    return {(each.labels["namespace"], each.labels["agent"]): each.value for each in found if each.name == name}


def test_the_table_of_the_page_is_current() -> None:
    page = (ROOT / PAGE).read_text()
    assert with_table(page) == page, "run: make generate"


def test_every_metric_is_described_and_nothing_else_is() -> None:
    families = {each.name for each in text_string_to_metric_families(Metrics().render().decode())}
    own = {each for each in families if each.startswith("multistep_")}
    assert {each.described.name.removesuffix("_total") for each in TABLE} == own
    assert all(each.described.text.endswith(".") for each in TABLE)


def test_no_label_can_name_a_task_a_step_or_a_trial() -> None:
    """A pod that reads the metrics must not learn the scores of single trials, or of its own earlier steps."""
    labels = {label for each in TABLE for label in (*each.described.labels, *each.described.choices)}
    assert labels.isdisjoint({"task", "step", "trial", "name", "pod", "uid", "key"})
    scores = [each.described for each in TABLE if "score" in each.described.name]
    assert [(each.name, set(each.labels), set(each.choices)) for each in scores] == [
        ("multistep_trial_score", set(), {"namespace", "agent"})
    ]
    for label in ("task", "step", "key"):
        with pytest.raises(ValidationError):
            Settings.model_validate({"metrics_labels": [label]})


def test_namespaces_are_no_label_unless_chosen() -> None:
    metrics = Metrics()
    metrics.trial_score.of(**names(1)).observe(1)
    assert metrics.registry.get_sample_value("multistep_trial_score_count", {"agent": "oracle"}) == 1


def test_with_no_label_chosen_all_is_one_series() -> None:
    metrics = Metrics(Settings(metrics_labels=[]))
    metrics.trial_score.of(**names(1)).observe(1)
    metrics.trial_score.of(**names(2)).observe(0)
    assert metrics.registry.get_sample_value("multistep_trial_score_count") == 2


def test_the_first_sets_have_series_and_the_rest_is_other_so_that_sums_stay_right() -> None:
    metrics = Metrics(ALL)
    for number in range(1000):
        metrics.trial_score.of(**names(number)).observe(1)
        metrics.trial_score.of(**names(0)).observe(1)
    found = samples(metrics, "multistep_trial_score_count")
    assert found == {("ns 0", "oracle"): 1001, ("ns 1", "oracle"): 1, ("ns 2", "oracle"): 1, (OTHER, OTHER): 997}


@pytest.mark.parametrize("hostile", ["\ud800", 'a"b\\c\nd{e="f"} 1', "x" * 100_000, "\0\x1b[31m", "\u202e"])
def test_hostile_names_leave_a_text_that_prometheus_reads(hostile: str) -> None:
    metrics = Metrics(ALL)
    metrics.trial_score.of(namespace="ns", agent=hostile).observe(1)
    ((namespace, agent),) = samples(metrics, "multistep_trial_score_count")
    assert namespace == "ns" and 0 < len(agent) <= MAX_VALUE_CHARACTERS and agent.isprintable()
    assert len(metrics.render()) < 100_000


def test_promtool_finds_no_problem_in_them() -> None:
    metrics = Metrics(ALL)
    metrics.trial_score.of(**names(1)).observe(1)
    metrics.trials_finished.of("Complete", "", "", **names(1)).inc()
    done = subprocess.run(["promtool", "check", "metrics"], input=metrics.render(), capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_trials_by_phase_are_shown_by_the_replica_that_leads_only() -> None:
    metrics = Metrics()
    for name, phase in (("a", None), ("b", "Running"), ("c", "Running"), ("d", "an invalid phase")):
        metrics.phases.observe(("ns", name), phase)
    metrics.phases.forget(("ns", "c"))
    shown = {each: metrics.registry.get_sample_value("multistep_trials", {"phase": each}) for each in ("Pending", "Running", OTHER)}
    assert shown == {"Pending": 1, "Running": 1, OTHER: 1}
    metrics.phases.shown = lambda: False
    assert metrics.registry.get_sample_value("multistep_trials", {"phase": "Running"}) is None


def test_labels_whose_values_are_known_have_series_from_the_start() -> None:
    """A series exists with value 0 before its first event. Otherwise PromQL's increase() would not count the first event."""
    metrics = Metrics()
    rows = [each.described for each in TABLE if each.described.known and each.described.labels != ("phase",)]
    assert len(rows) == 8
    for row in rows:
        for value in row.known:
            assert metrics.registry.get_sample_value(row.name, {row.labels[0]: value}) == 0, (row.name, value)
    assert metrics.registry.get_sample_value("multistep_attempts_failed_total", {"reason": "PodDeleted"}) == 0


def test_a_reconcile_that_fails_is_counted_under_its_error() -> None:
    metrics = Metrics()
    for error in (StoreError("full"), KeyError("a bug")):
        metrics.failed(error)
    failures = {
        name: metrics.registry.get_sample_value("multistep_reconcile_failures_total", {"error": name})
        for name in ("StoreError", "Unforeseen", "InvalidSpec")
    }
    assert failures == {"StoreError": 1, "Unforeseen": 1, "InvalidSpec": 0}


async def test_the_metrics_show_whether_the_model_gateway_answers(tmp_path: Path) -> None:
    app = App(Settings(results_dir=tmp_path))

    async def fails() -> None:
        raise GatewayUnavailable("no answer")

    async def works() -> None:
        pass

    def shown() -> str:
        [line] = [each for each in app.metrics.render().decode().splitlines() if each.startswith("multistep_gateway_up ")]
        return line.split()[1]

    assert shown() == "NaN"  # no gateway is configured
    await app._renew_keys(works)
    assert shown() == "1.0"
    with pytest.raises(GatewayUnavailable):
        await app._renew_keys(fails)
    assert shown() == "0.0"
