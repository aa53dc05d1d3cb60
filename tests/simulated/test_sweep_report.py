"""Run a sweep of 60 trials, kill the operator meanwhile, and check the statistics, and the HTML report in a real browser."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.async_api import Page, expect

from multistep.kube.resources import SWEEPS, TRIALS
from tests.e2e.browser import chromium, opened, overflow, walk
from tests.e2e.test_cli import multistep
from tests.harbor.environment import harbor_python
from tests.simulated.given import NO_IMAGE, Given, OwnOperators
from tests.support.waiting import eventually

TASKS, AGENTS, ATTEMPTS = ("t0", "t1", "t2", "t3", "t4"), ("good", "idle", "poor"), 4
LOST = "Infrastructure"
# Outcome of each attempt: a reward, the class of a failure that its agent may have caused (scored 0), or LOST (excluded).
OUTCOMES: Mapping[tuple[str, str], Sequence[float | str]] = {
    ("t0", "good"): (1, 1, 1, 1), ("t0", "poor"): (1, 0, 0, 1), ("t0", "idle"): (0, 0, 0.25, 0),
    ("t1", "good"): (1, 1, 0, 1), ("t1", "poor"): (0, 0, 0, 0), ("t1", "idle"): (0, 0, 0, 0),
    ("t2", "good"): (0.5, 1, 0.75, 1), ("t2", "poor"): (0.25, "Agent", 0.5, 0), ("t2", "idle"): (0, 0, 0, 0),
    ("t3", "good"): (1, 1, 1, "Verifier"), ("t3", "poor"): (0.5, 0, 0, 0.25), ("t3", "idle"): (0, 0, 0, 0),
    ("t4", "good"): (0, 1, 1, 0), ("t4", "poor"): (LOST,) * 4, ("t4", "idle"): (0, 0, 0, 0),
}  # fmt: skip
# By number of tasks n: the 97.5 % quantile of Student's t for n-1 degrees of freedom, from a printed table.
STUDENT = {5: 2.7764451051977987, 4: 3.182446305284263}
LOAD_JOB = Path(__file__).parents[1] / "harbor/load_job.py"


def verifier() -> str:
    """Return a test.sh that finds its trial by the pod's name and writes that trial's reward, if OUTCOMES has one."""
    cases = [
        f"if *-{task}-{agent}-{attempt}-* reward {outcome}"
        for (task, agent), those in OUTCOMES.items()
        for attempt, outcome in enumerate(those, 1)
        if not isinstance(outcome, str)
    ]
    return "\n".join(cases)


def sweep(name: str) -> dict[str, Any]:
    """Return the sweep. Task t4 has two steps; the second runs only if the first has reward 1."""

    def task(name: str, steps: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        scripts = {"instruction.md": "Do it.\n", "tests/test.sh": verifier()}
        files = {f"steps/{step}/{path}": text for step in steps for path, text in scripts.items()}
        config = {"steps": [{"name": step, **fields} for step, fields in steps.items()]}
        return {"name": name, "inline": {"config": config, "files": files}}

    command = {"name": "command", "command": ["if *-t2-poor-2-* exit 3"]}
    return {
        "apiVersion": SWEEPS.api_version,
        "kind": SWEEPS.kind,
        "metadata": {"name": name},
        "spec": {
            "tasks": [
                *(task(each, {"only": {}}) for each in TASKS[:-1]),
                task(TASKS[-1], {"first": {"min_reward": 1.0}, "second": {}}),
            ],
            "agents": [{"name": each, "agent": {"name": "nop"} if each == "idle" else command} for each in AGENTS],
            "attempts": ATTEMPTS,
            "parallelism": 10,
            "overrides": [
                {
                    "tasks": ["t4"],
                    "agents": ["poor"],
                    "spec": {"environment": {"image": NO_IMAGE}, "environmentTimeoutMultiplier": 0.01},
                }
            ],
        },
    }


async def test_sixty_trials_through_the_death_of_the_operator_come_to_the_right_numbers_and_a_page(
    own: OwnOperators, tmp_path: Path
) -> None:
    given, operator = own.given, await own.started()
    manifest = tmp_path / "sweep.yaml"
    manifest.write_text(yaml.safe_dump(given.ours(sweep("nightly"))))
    code, out, err = await multistep("sweep", "run", str(manifest), "-n", given.namespace, "--detach")
    assert (code, out) == (0, "nightly\n"), err
    following = asyncio.create_task(multistep("sweep", "status", "nightly", "-n", given.namespace, "--follow", "-o", "json"))
    await until_done(given, 10)
    await operator.kill()
    assert (await trials_of(given))["finished"] < 60
    await operator.start()
    code, out, err = await following
    reported = json.loads(out)
    assert (code, reported["phase"], reported["faults"]) == (1, "Complete", ["4 of 60 trials are excluded"]), err

    statuses = await given.client.list_all(TRIALS, given.namespace, label_selector="multistep.dev/sweep=nightly")
    rewards = independent_rewards(statuses)
    files = [tmp_path / f"nightly.{form}" for form in ("html", "json", "csv", "parquet")]
    outputs = [word for file in files for word in ("-o", str(file))]
    code, out, err = await multistep("sweep", "report", "nightly", "-n", given.namespace, *outputs)
    assert code == 0, err
    report = json.loads(files[1].read_text())
    assert_standings(report, rewards)
    assert_status_agrees(reported["status"], report)
    assert_steps(report)
    assert_differences(report, rewards)
    assert_lines(files[2].read_text())

    code, out, err = await multistep("sweep", "compare", "nightly/good", "nightly/idle", "-n", given.namespace)
    assert (code, "this is not significant: fewer than 6 tasks never show a difference" in out) == (0, True), err
    await assert_the_page_is_fine(files[0], tmp_path)

    code, out, err = await multistep("sweep", "results", "nightly", str(tmp_path / "jobs"), "-n", given.namespace, "-o", "json")
    fetched = json.loads(out)
    assert (code, fetched["trials"], fetched["fetched"], fetched["failed"], fetched["no_results"]) == (0, 60, 60, {}, []), err
    assert_harbor_shows_the_report(tmp_path / "jobs", report)


def assert_harbor_shows_the_report(jobs: Path, report: Mapping[str, Any]) -> None:
    """Check that Harbor's models load every file, and that the API of `harbor view` has the numbers of the report."""
    done = harbor_python().run(LOAD_JOB, jobs)
    assert done.returncode == 0, done.stderr[-4000:]
    shown = json.loads(done.stdout)
    summary, stats = shown["nightly"]["summary"], shown["nightly"]["job"]["stats"]
    counted = sum(each["counted"] for each in report["agents"])
    errors = 2  # exceptions of steps: an exit status of 3, and no reward
    assert (summary["n_total_trials"], summary["n_completed_trials"], summary["n_errored_trials"]) == (counted, counted, errors)
    assert (summary["total_input_tokens"], summary["total_cost_usd"]) == (None, report["cost_usd"])
    assert summary["finished_at"] is not None
    for agent in report["agents"]:
        found = stats["evals"][f"{agent['agent']}__adhoc"]
        metric, _ = found["metrics"]  # the report's score, and Harbor's own mean of valid rewards
        assert metric["score"] == pytest.approx(agent["mean"]["value"])
        assert found["pass_at_k"] == pytest.approx({k: each["value"] for k, each in agent["passes"].items()})
    excluded = shown["nightly.excluded"]
    assert {each["name"] for each in excluded["trials"]} == {
        trial for each in report["failures"] if each["failure_class"] == LOST for trial in each["trials"]
    }
    rewards = {each["trial"]: (each["rewards"] or {}).get("reward") for each in report["trials"] if each["counts"] is not None}
    assert {each["name"]: each["reward"] for each in shown["nightly"]["trials"]} == rewards


async def trials_of(given: Given) -> dict[str, int]:
    """Return the trial counts of the sweep's status."""
    found = await given.client.get(SWEEPS, given.namespace, "nightly")
    return {"finished": 0, **((found.get("status") or {}).get("trials") or {})}


async def until_done(given: Given, least: int) -> None:

    async def done() -> bool:
        return (await trials_of(given))["finished"] >= least

    await given.when(done)


def independent_rewards(trials: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[Fraction]]]:
    """Return the scored rewards by agent and task, from the trials' statuses alone.

    Assert that each trial occurs once and has its planned outcome.
    """
    found: dict[str, dict[str, list[Fraction]]] = {agent: {task: [] for task in TASKS} for agent in AGENTS}
    seen = set()
    for each in trials:
        noted, status = each["metadata"]["annotations"], each["status"]
        task, agent, attempt = (noted[f"multistep.dev/{what}"] for what in ("task", "agent", "attempt"))
        assert (task, agent, attempt) not in seen
        seen.add((task, agent, attempt))
        expected = OUTCOMES[task, agent][int(attempt) - 1]
        reward, failure_class = status.get("rewards"), (status.get("failure") or {}).get("class")
        if isinstance(expected, str):
            assert (reward, failure_class) == (None, expected), each["metadata"]["name"]
            found[agent][task] += [] if failure_class == LOST else [Fraction(0)]
        else:
            assert (reward, failure_class) == ({"reward": expected}, None), each["metadata"]["name"]
            found[agent][task].append(Fraction(reward["reward"]))
    assert len(seen) == 60
    return found


def assert_standings(report: Mapping[str, Any], rewards: Mapping[str, Mapping[str, Sequence[Fraction]]]) -> None:
    """Compare the report's means, intervals and pass@k with direct calculations, and its counts of trials with OUTCOMES."""
    assert [each["agent"] for each in report["agents"]] == ["good", "poor", "idle"]
    for standing in report["agents"]:
        by_task = {task: those for task, those in rewards[standing["agent"]].items() if those}
        means = [sum(those) / len(those) for those in by_task.values()]
        mean = sum(means) / len(means)
        error = math.sqrt(sum((each - mean) ** 2 for each in means) / (len(means) - 1) / len(means)) * STUDENT[len(means)]
        found = standing["mean"]
        assert (found["tasks"], found["trials"]) == (len(means), sum(map(len, by_task.values())))
        assert [found["value"], found["low"], found["high"]] == pytest.approx(
            [float(mean), max(0, mean - error), min(1, mean + error)]
        )
        assert list(standing["passes"]) == ["1", "2", "4"]
        for k in (1, 2, 4):
            shares = [share_of_draws_with_a_pass(those, k) for those in by_task.values() if len(those) >= k]
            assert standing["passes"][str(k)]["value"] == pytest.approx(float(sum(shares) / len(shares)))
            assert standing["passes"][str(k)]["tasks"] == len(shares)
    assert [each["excluded"] for each in report["agents"]] == [{}, {LOST: 4}, {}]
    assert [each["scored_failures"] for each in report["agents"]] == [{"Verifier": 1}, {"Agent": 1}, {}]
    assert [(each["trials"], each["counted"], each["active"]) for each in report["agents"]] == [
        (20, 20, 0),
        (20, 16, 0),
        (20, 20, 0),
    ]


def share_of_draws_with_a_pass(rewards: Sequence[Fraction], k: int) -> Fraction:
    draws = list(combinations(rewards, k))
    return Fraction(sum(any(each >= 1 for each in draw) for draw in draws), len(draws))


def assert_status_agrees(status: Mapping[str, Any], report: Mapping[str, Any]) -> None:
    """Check that the sweep's status, written by an operator that was killed meanwhile, has the report's counts and means."""
    means = {each["name"]: (each["counted"], each["mean"]) for each in status["agents"]}
    for each in report["agents"]:
        counted, mean = means[each["agent"]]
        assert counted == each["counted"]
        assert mean == pytest.approx(each["mean"]["value"])
    assert (status["excluded"], status["scoredFailures"]) == ({LOST: 4}, {"Agent": 1, "Verifier": 1})
    assert {key: status["trials"].get(key, 0) for key in ("total", "created", "finished", "counted", "deleted", "active")} == {
        "total": 60, "created": 60, "finished": 60, "counted": 56, "deleted": 0, "active": 0,
    }  # fmt: skip


def assert_steps(report: Mapping[str, Any]) -> None:
    """Check the report's steps of task t4 and agent `good`: of the four trials, two pass the first step and reach the second."""
    tasks = {(each["task"], each["agent"]): each for each in report["tasks"]}
    found = tasks["t4", "good"]["steps"]
    assert [(each["step"], each["trials"], each["reached"], each["passed"], each["score"]) for each in found] == [
        ("first", 4, 4, 2, 0.5),
        ("second", 4, 2, 2, 1.0),
    ]
    assert all(each["seconds"] > 0 for each in found)
    assert (tasks["t4", "poor"]["counted"], tasks["t4", "poor"]["mean"], tasks["t4", "poor"]["steps"]) == (0, None, [])
    (only,) = tasks["t2", "poor"]["steps"]
    assert (only["trials"], only["reached"], only["passed"], only["score"]) == (4, 4, 0, 0.1875)
    assert {(each["failure_class"], len(each["trials"])) for each in report["failures"]} == {
        (LOST, 4),
        ("Verifier", 1),
        ("Agent", 1),
    }


def assert_differences(report: Mapping[str, Any], rewards: Mapping[str, Mapping[str, Sequence[Fraction]]]) -> None:
    for pair in report["differences"]:
        first, second = rewards[pair["first"]], rewards[pair["second"]]
        deltas = [
            sum(first[task]) / len(first[task]) - sum(second[task]) / len(second[task])
            for task in TASKS
            if first[task] and second[task]
        ]
        found = pair["difference"]["estimate"]
        assert (found["tasks"], pair["is_real"]) == (len(deltas), False)  # five tasks are too few for a significant difference
        assert found["value"] == pytest.approx(float(sum(deltas) / len(deltas)))
    assert len(report["differences"]) == 3


def assert_lines(text: str) -> None:
    lines = list(csv.DictReader(io.StringIO(text)))
    assert len(lines) == 60
    assert sum(float(each["counts"] or 0) for each in lines) == sum(
        each for those in OUTCOMES.values() for each in those if not isinstance(each, str)
    )


async def assert_the_page_is_fine(file: Path, screenshots: Path) -> None:
    """Check the HTML report for errors, overflow and keyboard access: on a wide screen, on a phone, and in dark mode."""
    async with chromium() as browser:
        for width, height, dark in ((1200, 900, False), (390, 844, False), (390, 844, True)):
            page, complaints = await opened(browser, file.as_uri(), width=width, height=height, dark=dark)
            assert await page.title() == "Sweep nightly"
            assert await overflow(page) <= 0
            await page.screenshot(path=screenshots / f"{width}-{'dark' if dark else 'light'}.png", full_page=True)
            await assert_all_is_reached_by_keyboard(page)
            await assert_trials_are_sorted_and_filtered(page)
            assert complaints == []
        await assert_wide_tables_are_scrolled_by_keyboard(page)


async def assert_all_is_reached_by_keyboard(page: Page) -> None:
    way = await walk(page)
    assert way[0] == "A To the results"
    assert [each for each in way if each.startswith("A ")][1:7] == [
        "A Agents", "A Differences", "A Tasks and steps", "A Durations", "A Failures", "A Trials",
    ]  # fmt: skip
    assert sum(each.startswith("SUMMARY ") for each in way) == 60 + 3  # one <details> per trial, one per failure reason
    assert sum(each.startswith("DIV ") for each in way) == 6  # scrollable containers of the visible tables
    await page.locator("#failures summary").first.focus()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")  # follow the link to the first excluded trial, whose <details> opens
    target = page.locator("tbody:target")
    await target.locator("pre").first.wait_for(state="visible")
    assert f"excluded, {LOST}: EnvironmentStartTimeout" in await target.inner_text()


async def assert_trials_are_sorted_and_filtered(page: Page) -> None:
    shown = page.locator("#trial-table > tbody:not([hidden]) > tr:first-child")
    await page.get_by_label("Outcome").select_option(f"excluded: {LOST.lower()}")
    await expect(page.locator("#count")).to_have_text("4 of 60 trials")
    await page.get_by_label("Outcome").select_option("")
    await page.get_by_label("Search").fill("t4 good")
    await expect(page.locator("#count")).to_have_text("4 of 60 trials")
    score = page.get_by_role("columnheader", name="Score").last.get_by_role("button")
    await score.click()
    await expect(shown.first).to_contain_text("0.000")
    await score.click()
    await expect(shown.first).to_contain_text("1.000")


async def assert_wide_tables_are_scrolled_by_keyboard(page: Page) -> None:
    await page.locator("#agents .wide >> nth=0").focus()
    await page.keyboard.press("ArrowRight")
    # Poll, because wait_for_function can evaluate its condition only once: the content security policy rejects later evaluations.
    await eventually(lambda: page.evaluate("document.querySelector('#agents .wide').scrollLeft > 0"))
