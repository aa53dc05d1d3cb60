"""A sweep's trials: their manifests, and the facts that the sweep reads from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.api.sweep.sweep import TrialSweep, parse_sweep
from multistep.api.sweep.tasks_source import TasksSource
from multistep.api.trial.trial import parse_trial
from multistep.engine.sweep.next_trials import TrialFacts
from multistep.engine.sweep.trial_manifests import owner_of, plan_sweep, tasks_at, trial_facts, trial_manifest
from multistep.errors import InvalidSpec

TASKS = [
    {"name": "easy", "inline": {"config": {"steps": [{"name": "a", "note": None}]}}},
    {"name": "hard", "git": {"url": "https://git.example/t", "path": "hard"}, "environment": {"image": "big"}},
]
AGENTS = [
    {"name": "mine", "agent": {"name": "command", "command": ["work"], "env": [{"name": "A", "value": "1"}]}},
    {"name": "idle", "agent": {"name": "nop"}},
]


def sweep(**spec: Any) -> TrialSweep:
    metadata = {"name": "nightly", "namespace": "team", "uid": "sweep-uid"}
    return parse_sweep({"metadata": metadata, "spec": {"tasks": TASKS, "agents": AGENTS, "attempts": 2, **spec}})


def trials(found: TrialSweep) -> list[dict[str, Any]]:
    made = plan_sweep(found, found.spec.tasks)
    return [trial_manifest(found, made, number) for number in range(len(made.grid))]


def spec_of(found: TrialSweep, task: str, agent: str) -> dict[str, Any]:
    wanted = {"multistep.dev/task": task, "multistep.dev/agent": agent}.items()
    return next(each["spec"] for each in trials(found) if wanted <= each["metadata"]["annotations"].items())


def test_a_trial_shows_whose_it_is_and_what_it_is_about() -> None:
    made = trials(sweep(template={"metadata": {"labels": {"team": "a"}, "annotations": {"why": "nightly"}}}))
    assert len(made) == 8
    metadata = made[6]["metadata"]
    assert metadata["name"].startswith("nightly-hard-mine-2-") and metadata["namespace"] == "team"
    assert metadata["labels"] == {"team": "a", "multistep.dev/sweep": "nightly", "multistep.dev/number": "6"}
    assert metadata["annotations"] == {
        "why": "nightly",
        "multistep.dev/task": "hard",
        "multistep.dev/agent": "mine",
        "multistep.dev/attempt": "2",
    }
    assert owner_of(made[6]) == ("nightly", "sweep-uid")


def test_one_that_is_created_early_waits_ready_for_the_sweep_to_let_it_start() -> None:
    found = sweep(template={"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}})
    usual, early = (trial_manifest(found, plan_sweep(found, found.spec.tasks), 0, early=each) for each in (False, True))
    assert early["spec"] == {**usual["spec"], "suspend": True, "prestart": True}
    assert early["metadata"]["annotations"] == {**usual["metadata"]["annotations"], "multistep.dev/suspended-by": "nightly"}
    assert usual["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"


def test_a_trial_of_a_limited_model_gets_no_pod_before_its_turn() -> None:
    hosted = {"name": "claude-code", "model": "anthropic/claude-sonnet-4-5", "access": "Direct"}
    found = sweep(agents=[{"name": "cc", "agent": hosted}])
    for limited, prestart in (["anthropic/claude-sonnet-4-5"], False), (["openai/gpt-5"], True):
        early = trial_manifest(found, plan_sweep(found, found.spec.tasks), 0, early=True, limited_models=limited)
        assert (early["spec"]["suspend"], early["spec"]["prestart"]) == (True, prestart)


def test_every_trial_is_one_and_has_what_was_written_and_no_more() -> None:
    for each in trials(sweep()):
        assert parse_trial(each).kind == "MultiStepTrial"
    assert spec_of(sweep(), "easy", "mine") == {"task": TASKS[0], "agent": AGENTS[0]["agent"]}
    assert spec_of(sweep(), "hard", "idle") == {
        "task": {"name": "hard", "git": TASKS[1]["git"]},
        "agent": {"name": "nop"},
        "environment": {"image": "big"},
    }


def test_each_trial_of_a_regrade_names_the_trial_with_its_number() -> None:
    agents = [{"name": each["name"], "agent": {"name": "nop"}} for each in AGENTS]
    former, again = sweep(agents=agents), sweep(agents=agents, regrade={"sweep": "former"})
    former.metadata.name = "former"
    assert [each["spec"]["regrade"]["trial"] for each in trials(again)] == [each["metadata"]["name"] for each in trials(former)]
    assert all("regrade" not in each["spec"] for each in trials(former))


def test_a_regrade_runs_no_agent() -> None:
    with pytest.raises(InvalidSpec, match=r"regrade runs no agent: agents\[.*\]\.agent\.name must be nop"):
        sweep(regrade={"sweep": "former"})


def test_a_regrade_has_no_branches() -> None:
    agents = [{"name": each["name"], "agent": {"name": "nop"}} for each in AGENTS]
    with pytest.raises(InvalidSpec, match="branch must not be set with regrade"):
        sweep(agents=agents, regrade={"sweep": "former"}, branch={"at": ["each"], "attempts": 1})


def test_a_sweep_of_a_shard_has_its_trials_there() -> None:
    found = sweep()
    sharded = found.model_copy(
        update={"metadata": found.metadata.model_copy(update={"labels": {"multistep.dev/shard": "a", "b": "c"}})}
    )
    labels = trials(sharded)[0]["metadata"]["labels"]
    assert labels["multistep.dev/shard"] == "a" and "b" not in labels


def test_labels_that_a_template_gives_are_never_those_of_the_sweep() -> None:
    found = sweep(template={"metadata": {"labels": {"multistep.dev/sweep": "other"}, "annotations": {"multistep.dev/task": "x"}}})
    assert trials(found)[0]["metadata"]["labels"]["multistep.dev/sweep"] == "nightly"
    assert trials(found)[0]["metadata"]["annotations"]["multistep.dev/task"] == "easy"


def test_tables_are_merged_field_by_field_and_lists_are_replaced_the_last_one_wins() -> None:
    variable = {"name": "X", "value": "1"}
    found = sweep(
        template={
            "spec": {
                "timeoutMultiplier": 2,
                "environment": {"image": "small", "imagePullPolicy": "Never", "env": [variable]},
                "extraInstructions": ["one", "two"],
            }
        },
        overrides=[
            {"tasks": ["hard"], "spec": {"timeoutMultiplier": 3, "environment": {"podTemplate": {"spec": {"nodeName": "n"}}}}},
            {"agents": ["idle"], "spec": {"extraInstructions": ["three"]}},
            {"tasks": ["hard"], "agents": ["idle"], "spec": {"timeoutMultiplier": 4, "environment": {"env": []}}},
        ],
    )
    easy = {"image": "small", "imagePullPolicy": "Never", "env": [variable]}
    hard = {"image": "big", "imagePullPolicy": "Never", "env": [variable], "podTemplate": {"spec": {"nodeName": "n"}}}
    several = {"timeoutMultiplier": 2.0, "extraInstructions": ["one", "two"]}
    assert spec_of(found, "easy", "mine") == {"task": TASKS[0], "agent": AGENTS[0]["agent"], "environment": easy, **several}
    assert spec_of(found, "hard", "mine")["environment"] == hard
    assert spec_of(found, "hard", "mine")["timeoutMultiplier"] == 3
    assert spec_of(found, "easy", "idle")["extraInstructions"] == ["three"]
    assert spec_of(found, "hard", "idle")["timeoutMultiplier"] == 4
    assert spec_of(found, "hard", "idle")["environment"] == {**hard, "env": []}


def test_a_sweep_that_would_be_too_large_is_refused_with_its_size() -> None:
    with pytest.raises(
        InvalidSpec, match=r"2 tasks, 64 agents and spec\.attempts = 1000 are 128000 trials; a sweep may have 50000"
    ):
        trials(sweep(attempts=1000, agents=[{"name": f"a{number}", "agent": {"name": "nop"}} for number in range(64)]))


def test_overrides_are_checked_against_the_tasks_that_were_found() -> None:
    found = sweep(tasks=None, tasksFrom={"git": {"url": "https://g"}}, overrides=[{"tasks": ["gone"], "spec": {}}])
    with pytest.raises(InvalidSpec, match=r"overrides\[0\]\.tasks: 'gone' does not exist in the sweep, which has easy, hard$"):
        plan_sweep(found, sweep().spec.tasks)


def test_tasks_from_elsewhere_make_trials_like_any_others() -> None:
    found = sweep(tasks=None, tasksFrom={"git": {"url": "https://g"}})
    made = plan_sweep(found, sweep().spec.tasks[:1])
    assert trial_manifest(found, made, 0)["spec"] == {"task": TASKS[0], "agent": AGENTS[0]["agent"]}


@pytest.mark.parametrize(
    "owners",
    [
        None,
        [{"kind": "TrialSweep", "apiVersion": "multistep.dev/v1alpha1", "name": "s", "uid": "u"}],
        [{"kind": "TrialSweep", "apiVersion": "other/v1", "name": "s", "uid": "u", "controller": True}],
        [{"kind": "Other", "apiVersion": "multistep.dev/v1alpha1", "name": "s", "uid": "u", "controller": True}],
    ],
)
def test_a_trial_that_a_sweep_does_not_control_is_nobodys(owners: Any) -> None:
    assert owner_of({"metadata": {"ownerReferences": owners}}) is None


@pytest.mark.parametrize(
    ("source", "task"),
    [
        ({"git": {"url": "https://g", "ref": "main"}}, {"git": {"url": "https://g", "ref": "REVISION", "path": "one"}}),
        ({"git": {"url": "https://g", "path": "/a/b/"}}, {"git": {"url": "https://g", "ref": "REVISION", "path": "a/b/one"}}),
        ({"oci": {"image": "host:5000/x/y:1", "path": "t"}}, {"oci": {"image": "host:5000/x/y@REVISION", "path": "t/one"}}),
        ({"oci": {"image": "tasks"}}, {"oci": {"image": "tasks@REVISION", "path": "one"}}),
        (
            {"url": {"url": "https://u/t.tgz", "digest": f"sha256:{'0' * 64}", "secretRef": {"name": "s"}}},
            {"url": {"url": "https://u/t.tgz", "digest": f"sha256:{'0' * 64}", "secretRef": {"name": "s"}, "path": "one"}},
        ),
    ],
)
def test_a_task_of_a_place_names_the_revision_and_its_own_directory(source: Any, task: Any) -> None:
    place = TasksSource.model_validate(source)
    (found,) = tasks_at(place, "REVISION", ["one"])
    assert found.model_dump(mode="json", by_alias=True, exclude_unset=True) == {"name": "one", **task}


# -- facts that a sweep reads from a trial


def trial(status: Any = None, number: str = "3", spec: Any = None, **annotations: str) -> dict[str, Any]:
    metadata = {"name": "t", "labels": {"multistep.dev/number": number}, "annotations": annotations}
    return {"metadata": metadata, "spec": spec, "status": written(status) if status and status.get("steps") != 7 else status}


def written(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status with what the operator writes into every status."""
    condition = {"reason": "R", "lastTransitionTime": FIRST}
    attempts = [{"number": number, **each, **_with_steps(each)} for number, each in enumerate(status.get("attempts") or (), 1)]
    conditions = status.get("conditions", [])
    return {
        "attempt": len(attempts) + 1,
        **status,
        **_with_steps(status),
        "attempts": attempts,
        "conditions": [{**condition, **each} for each in conditions] if isinstance(conditions, list) else conditions,
    }


def _with_steps(of: Mapping[str, Any]) -> dict[str, Any]:
    return {"steps": [{"name": f"step-{number}", **each} for number, each in enumerate(of.get("steps") or ())]}


def held(type_: str) -> list[dict[str, str]]:
    return [{"type": "Ready", "status": "False"}, {"type": type_, "status": "True"}]


FIRST, LATER = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"
SECONDS = 1767225600.0


def test_a_trial_that_no_operator_has_reconciled_is_active() -> None:
    assert trial_facts(trial()) == TrialFacts(3, "Active")


def test_a_number_that_is_none_is_distinguished() -> None:
    assert trial_facts(trial(number="x")).number == trial_facts({"metadata": {}}).number == -1


def test_a_status_that_no_operator_writes_has_no_score() -> None:
    assert trial_facts(trial({"phase": "Running", "steps": 7})) == TrialFacts(3, "Active", invalid=True)
    assert trial_facts(trial({"phase": "Complete", "conditions": 7})) == TrialFacts(3, "Failed", invalid=True)


def test_an_active_trial_reports_since_when_its_pod_works() -> None:
    status = {"phase": "Running", "steps": [{"startTime": FIRST}, {"startTime": LATER}], "rewards": None}
    assert trial_facts(trial(status)) == TrialFacts(3, "Active", since=SECONDS, phase="Running")
    assert trial_facts(trial({"phase": "Suspended", "steps": [{}]})).phase == "Suspended"


def test_a_trial_at_its_end_reports_its_reward_and_what_its_pods_worked() -> None:
    status = {
        "conditions": held("Complete"),
        "rewards": {"reward": 0.5, "style": 1},
        "failure": {"class": "Agent", "reason": "AgentTimeoutError"},
        "score": 0.5,
        "steps": [{"startTime": FIRST}],
        "completionTime": LATER,
        "attempts": [
            {"steps": [{"startTime": FIRST}], "completionTime": LATER},
            {"completionTime": LATER},
            {"steps": [{"startTime": FIRST}]},
        ],
    }
    assert trial_facts(trial(status)) == TrialFacts(3, "Complete", 0.5, "Agent", 7200.0)
    assert trial_facts(trial({"conditions": held("Failed")})) == TrialFacts(3, "Failed")


def test_a_pod_works_from_the_first_step_that_it_runs_itself() -> None:
    kept, own = {"name": "a", "startTime": "2025-12-31T00:00:00Z"}, {"name": "b", "startTime": FIRST}
    resumed = {"after": "a", "attempts": [1], "digest": "d"}
    lost = {"number": 2, "steps": [kept, own], "completionTime": LATER, "resumed": resumed}
    unused = {"number": 3, "completionTime": LATER, "resumed": resumed}
    active = {"attempt": 4, "attempts": [lost, unused], "steps": [kept, own], "resumed": resumed}
    assert trial_facts(trial(active)) == TrialFacts(3, "Active", pod_seconds=3600.0, since=SECONDS)
    done = trial_facts(trial({**active, "conditions": held("Complete"), "completionTime": LATER}))
    assert (done.pod_seconds, done.since) == (7200.0, None)
    paused = trial_facts(trial({**active, "steps": [kept]}))
    assert (paused.pod_seconds, paused.since) == (3600.0, None)


def test_what_was_asked_of_a_trial_and_by_whom() -> None:
    found = trial_facts(trial(spec={"suspend": True, "stop": True}, **{"multistep.dev/suspended-by": "nightly"}))
    assert (found.suspend, found.by_sweep, found.stop) == (True, True, True)


TIMES = st.datetimes().map(lambda time: time.strftime("%Y-%m-%dT%H:%M:%SZ").zfill(20))
STEPS = st.lists(st.fixed_dictionaries({}, optional={"startTime": TIMES}), max_size=2)
STATUSES = st.fixed_dictionaries(
    {},
    optional={
        "phase": st.sampled_from(["Pending", "Running", "Suspended", "Complete", "Failed"]),
        "conditions": st.sampled_from([held("Complete"), held("Failed"), held("Suspended")]),
        "steps": STEPS,
        "attempts": st.lists(st.fixed_dictionaries({}, optional={"steps": STEPS, "completionTime": TIMES}), max_size=2),
        "completionTime": TIMES,
        "rewards": st.none() | st.dictionaries(st.sampled_from(["reward", "style"]), st.floats(0, 1)),
    },
)


@given(STATUSES)
def test_whatever_a_status_holds_time_never_runs_backwards(status: Any) -> None:
    found = trial_facts(trial(status))
    assert found.pod_seconds >= 0
    assert found.since is None or found.state == "Active"


def test_the_cost_of_a_refused_request_is_read_from_the_attempt() -> None:
    message = "the sweep's budget has no room for this request: 0.5 of 1.0 US dollars are used, and it may use 1.28; words"
    attempt = {"number": 1, "reason": "SweepBudgetSpent", "completionTime": "2026-01-01T00:00:00Z", "message": message}
    assert trial_facts(trial({"attempt": 2, "attempts": [attempt]})).refused_usd == 1.28
    assert trial_facts(trial({"attempt": 2, "attempts": [{**attempt, "message": "others"}]})).refused_usd is None


def test_a_trial_whose_requests_have_no_price_is_unpriced() -> None:
    used = {"requests": 1, "costUSD": None}
    assert trial_facts(trial({"steps": [{"name": "b", "usage": used}]})).unpriced
    assert not trial_facts(trial({"steps": [{"name": "b", "usage": {**used, "costUSD": 0.0}}, {"name": "c"}]})).unpriced


def test_the_cost_of_all_attempts_counts_as_far_as_it_is_known() -> None:
    paid = {"name": "a", "usage": {"costUSD": 0.25}}
    attempts = [{"number": 1, "reason": "Evicted", "steps": [paid, {"name": "b", "usage": {}}]}]
    assert trial_facts(trial({"attempt": 2, "attempts": attempts, "steps": [paid, {"name": "b"}]})).cost_usd == 0.5
    assert trial_facts(trial({"steps": [{"name": "b"}]})).cost_usd is None
    last = {**paid, "name": "b"}
    known = {"attempts": attempts, "attempt": 2, "steps": [last], "usage": {"costUSD": 1.25}}
    resumed = {**known, "steps": [paid, last], "resumed": {"after": "a", "attempts": [1], "digest": "d"}}
    assert trial_facts(trial(known)).cost_usd == 1.5  # 1.0 of the last attempt's agent setup
    assert trial_facts(trial(resumed)).cost_usd == 1.25


def test_a_refusal_by_the_sweeps_budget_has_the_time_at_which_the_step_started() -> None:
    def attempt(reason: str, **more: Any) -> dict[str, Any]:
        return {"number": 1, "reason": reason, "completionTime": "2026-01-01T00:00:30Z", **more}

    steps = [{"name": "a", "startTime": "2026-01-01T00:00:00Z"}, {"name": "b", "startTime": "2026-01-01T00:00:10Z"}]
    start = trial_facts(trial({"attempts": [attempt("SweepBudgetSpent", steps=steps), attempt("Evicted", steps=steps)]})).refused_at
    assert start is not None
    assert trial_facts(trial({"attempts": [attempt("SweepBudgetSpent")]})).refused_at == start + 20
    assert trial_facts(trial({"attempts": [attempt("Evicted", steps=steps)]})).refused_at is None
    in_setup = {**attempt("SweepBudgetSpent", steps=steps), "resumed": {"after": "b", "attempts": [1] * len(steps), "digest": "d"}}
    assert trial_facts(trial({"attempts": [in_setup]})).refused_at == start + 20, (
        "a kept step may have started before the budget was raised"
    )


@pytest.mark.parametrize(
    ("registry", "repository", "secret"),
    [
        ("https://git.example/registry.json", "https://git.example/r.git", True),
        ("https://git.example:443/registry.json", "https://GIT.example/r.git", True),
        ("http://git.example/registry.json", "http://git.example:80/r.git", True),
        ("https://git.example/registry.json", "http://git.example/r.git", False),
        ("https://git.example/registry.json", "https://git.example:8443/r.git", False),
        ("https://git.example/registry.json", "https://git.example.evil/r.git", False),
        ("https://git.example/registry.json", "https://evil/git.example/r.git", False),
    ],
)
def test_a_task_of_a_dataset_has_its_repository_and_the_secret_only_on_the_registrys_server(
    registry: str, repository: str, secret: bool
) -> None:
    place = TasksSource.model_validate({"dataset": {"registry": registry, "name": "b", "secretRef": {"name": "s"}}})
    (found,) = tasks_at(place, "sha256:", [json.dumps(["one-2", repository, "COMMIT", "a/one"])])
    git = {"url": repository, "ref": "COMMIT", "path": "a/one", **({"secretRef": {"name": "s"}} if secret else {})}
    assert found.model_dump(mode="json", by_alias=True, exclude_unset=True) == {"name": "one-2", "git": git}


def test_a_dataset_without_a_secret_gives_none_to_its_tasks() -> None:
    place = TasksSource.model_validate({"dataset": {"registry": "https://g/registry.json", "name": "b"}})
    (found,) = tasks_at(place, "sha256:", ['["one", "https://g/r", "COMMIT", "one"]'])
    assert found.git is not None and found.git.secret_ref is None
