"""Scrape the operator, the model gateway and kube-state-metrics with a real Prometheus while trials run; compare Prometheus's data
with statuses."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from multistep.kube.resources import NAMESPACES, PODS
from tests.e2e.given import STAYS_IN_FIRST_POD, Given, Object, Step, in_agent, made_namespace, reward, trial
from tests.e2e.replicas import NAMESPACE, SELECTOR
from tests.support import servers
from tests.support.waiting import eventually

FILES = Path(__file__).parents[2] / "charts" / "multistep" / "files"
SCRAPE_SECONDS = 1
GATEWAY_SELECTOR = f"{SELECTOR}-gateway"
OTHERS = '{job!="gateway"}'  # all targets but the gateway, which other tests restart
BOTH = '#!/bin/sh\necho \'{"reward": 0.25, "style": 1}\' > /logs/verifier/reward.json\n'
NOTHING = "#!/bin/sh\ntrue\n"

TRIALS = {
    "good": trial(Step("a", test=reward(0.5)), Step("b", test=BOTH), name="good"),
    "bad": trial(Step("a", test=reward(0)), name="bad"),
    "unverified": trial(Step("a", test=NOTHING), name="unverified"),
    "interrupted": trial(Step("a", solve=STAYS_IN_FIRST_POD), name="interrupted"),
}


@dataclass
class Prometheus:
    """A client of Prometheus's HTTP API."""

    url: str
    session: aiohttp.ClientSession
    moment: float | None = None  # time at which queries are evaluated, in seconds since the epoch; None: now

    async def ask(self, path: str, **params: str) -> Any:
        async with self.session.get(f"{self.url}/api/v1/{path}", params=params) as response:
            reported = await response.json()
            assert reported["status"] == "success", (params, reported)
            return reported["data"]

    async def query(self, expression: str) -> dict[tuple[str, ...], float]:
        """Evaluate a PromQL expression; return its values by label values, which are sorted by label name."""
        when = {} if self.moment is None else {"time": str(self.moment)}
        found = (await self.ask("query", query=expression, **when))["result"]
        return {tuple(value for _, value in sorted(each["metric"].items())): float(each["value"][1]) for each in found}


@dataclass
class Seen:
    """Prometheus's data and the trials' statuses (by name) after all trials of the namespace finished."""

    prometheus: Prometheus
    statuses: dict[str, Object]
    namespace: str


async def addresses(given: Given, selector: str) -> list[str]:
    """Return the addresses at which the pods with these labels serve metrics."""
    pods = await given.client.list_all(PODS, NAMESPACE, label_selector=selector)
    there = [each for each in pods if not each["metadata"].get("deletionTimestamp")]
    return [f"{each['status']['podIP']}:8081" for each in there if each["status"].get("podIP")]


def configuration(operators: Iterable[str], gateways: Iterable[str], states: str) -> Object:
    own = {"namespace": NAMESPACE, "pod": "p"}
    return {
        "global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": f"{SCRAPE_SECONDS}s"},
        "rule_files": [str(FILES / "alerts.yaml")],
        "scrape_configs": [
            {"job_name": "multistep", "static_configs": [{"targets": list(operators), "labels": own}]},
            {"job_name": "gateway", "static_configs": [{"targets": list(gateways), "labels": own}]},
            {"job_name": "states", "honor_labels": True, "static_configs": [{"targets": [states]}]},
        ],
    }


async def run(given: Given) -> dict[str, Object]:
    """Run the trials and delete a pod of one of them."""

    async def interrupted() -> Object:
        await given.applied(TRIALS["interrupted"])
        await given.until("interrupted", in_agent)
        for pod in await given.pods("interrupted"):
            await given.client.delete(PODS, given.namespace, pod["metadata"]["name"], grace_period_seconds=0)
        return await given.until("interrupted", lambda each: bool(each["status"].get("completionTime")))

    others = [name for name in TRIALS if name != "interrupted"]
    ended = await asyncio.gather(*(given.ended(TRIALS[name]) for name in others), interrupted())
    return {each["metadata"]["name"]: each["status"] for each in ended}


@pytest.fixture
async def seen(given: Given) -> AsyncIterator[Seen]:
    place = servers.node()
    own = await addresses(given, SELECTOR), await addresses(given, GATEWAY_SELECTOR)
    async with (
        servers.kube_state_metrics(FILES / "kube-state-metrics.yaml", place) as states,
        servers.prometheus(configuration(*own, states.host), place) as server,
        aiohttp.ClientSession() as session,
        AsyncExitStack() as made,
    ):
        prometheus = Prometheus(server.url, session)

        async def up() -> bool:
            return await prometheus.query(f"sum(up{OTHERS})") == {(): 2}

        await eventually(up)  # PromQL's increase() needs a sample from before the trials
        while (found := await seen_by(prometheus, given)) is None:  # repeat if the operator restarted, which resets its counters
            given = Given(given.client, f"{given.namespace}-a")
            await made_namespace(given.client, given.namespace)
            made.push_async_callback(given.client.delete, NAMESPACES, None, given.namespace)
            await made.enter_async_context(given.recorder)
        yield found


async def seen_by(prometheus: Prometheus, given: Given) -> Seen | None:
    """Run the trials and return Prometheus's data on them; return None if the operator restarted meanwhile."""
    started = f"process_start_time_seconds{OTHERS}"
    process = await replace(prometheus, moment=await scraped_since(prometheus, 0.0)).query(started)
    statuses = await run(given)

    async def all_finished() -> bool:
        times = await prometheus.query(f'kube_multisteptrial_status_completion_time{{namespace="{given.namespace}"}}')
        return len(times) == len(TRIALS)

    async def all_counted() -> bool:
        """Return whether the operator, which counts a trial after it has written the status, has counted all, or has restarted."""
        counted = await prometheus.query(f'sum(multistep_trials_finished_total{{exported_namespace="{given.namespace}"}})')
        restarted = any(process.get(target) != since for target, since in (await prometheus.query(started)).items())
        return restarted or counted == {(): len(TRIALS)}

    await eventually(all_finished)
    await eventually(all_counted)
    moment = time.time()
    for _ in range(2):  # PromQL's rate() needs two scrapes
        moment = await scraped_since(prometheus, moment)
    at_moment = replace(prometheus, moment=moment)
    same = await at_moment.query(started) == process
    return Seen(at_moment, statuses, given.namespace) if same else None


async def scraped_since(prometheus: Prometheus, since: float) -> float:
    """Wait for, and return, a time at which each target's newest scrape has succeeded and is newer than `since`.

    On a busy machine some scrapes fail, and Prometheus then has no samples of them. The result is the time of a successful scrape,
    not the current time, because a scrape that is in progress may still fail.
    """

    async def newest() -> float:
        moment = min((await good_scrapes(prometheus, time.time())).values(), default=0.0)
        good = await good_scrapes(prometheus, moment)
        return moment if len(good) == 2 and min(good.values()) > since else 0.0

    return await eventually(newest)


async def good_scrapes(prometheus: Prometheus, moment: float) -> dict[tuple[str, ...], float]:
    """Return, by target, the time of the newest scrape before `moment`. Omit targets whose newest scrape failed."""
    return await replace(prometheus, moment=moment).query(f"timestamp(up{OTHERS}) and up == 1")


async def test_what_prometheus_has_is_what_the_statuses_have(seen: Seen) -> None:
    await rewards_are_those_of_the_statuses(seen)
    await series_of_single_trials_are_those_of_the_statuses(seen)
    await times_failures_and_attempts_are_counted(seen)
    await every_question_of_the_dashboard_has_an_answer(seen)
    await the_alert_rules_are_evaluated_and_ask_for_what_there_is(seen)


async def rewards_are_those_of_the_statuses(seen: Seen) -> None:
    own = f'exported_namespace="{seen.namespace}"'
    rewarded = {name: status["rewards"] for name, status in seen.statuses.items() if "rewards" in status}
    assert rewarded == {"good": {"reward": 0.375, "style": 0.5}, "bad": {"reward": 0}, "interrupted": {"reward": 1}}
    scores = [status["score"] for status in seen.statuses.values() if "score" in status]
    for name, wanted in {"sum": pytest.approx(sum(scores)), "count": len(scores)}.items():
        assert await seen.prometheus.query(f"sum(multistep_trial_score_{name}{{{own}}})") == {(): wanted}
    for name in ("trial_score_count", "trials_finished_total", "step_phase_duration_seconds_count", "steps_finished_total"):
        assert set(await seen.prometheus.query(f"sum by (task, step, trial, key) (multistep_{name}{{{own}}})")) == {()}


async def series_of_single_trials_are_those_of_the_statuses(seen: Seen) -> None:
    own = f'{{namespace="{seen.namespace}"}}'
    statuses = seen.statuses
    assert await seen.prometheus.query(f"sum by (trial, key) (kube_multisteptrial_status_reward{own})") == {
        (key, name): value for name, status in statuses.items() for key, value in (status.get("rewards") or {}).items()
    }
    assert await seen.prometheus.query(f"sum by (trial, step) (kube_multisteptrial_status_step_reward{own})") == {
        (step["name"], name): step["rewards"]["reward"]
        for name, status in statuses.items()
        for step in status["steps"]
        if "rewards" in step
    }
    assert await seen.prometheus.query(f"sum by (trial, phase) (kube_multisteptrial_status_phase{own} == 1)") == {
        (status["phase"], name): 1 for name, status in statuses.items()
    }
    assert await seen.prometheus.query(f"sum by (trial) (kube_multisteptrial_status_attempt{own})") == {
        (name,): status["attempt"] for name, status in statuses.items()
    }
    assert await seen.prometheus.query(f"sum by (trial, class, reason, step) (kube_multisteptrial_status_failure{own})") == {
        ("Verifier", "RewardFileNotFoundError", "a", "unverified"): 1
    }


async def times_failures_and_attempts_are_counted(seen: Seen) -> None:
    own = f'exported_namespace="{seen.namespace}"'
    assert await seen.prometheus.query(f"sum by (outcome, reason) (multistep_trials_finished_total{{{own}}})") == {
        ("NotPassed",): 2,  # the label reason is empty, and Prometheus drops empty labels
        ("Passed",): 1,
        ("VerifierError", "RewardFileNotFoundError"): 1,
    }
    for name, count in {"trial_queue_duration_seconds": 4, "pod_startup_duration_seconds": 5, "trial_duration_seconds": 4}.items():
        assert await seen.prometheus.query(f"sum(multistep_{name}_count{{{own}}})") == {(): count}, name
    assert (await seen.prometheus.query('sum(multistep_attempts_failed_total{reason="PodDeleted"})'))[()] >= 1
    phases = await seen.prometheus.query(f"sum by (phase) (multistep_step_phase_duration_seconds_count{{{own}}})")
    assert {key for (key,) in phases} == {"agent", "verifier", "artifacts"}


async def every_question_of_the_dashboard_has_an_answer(seen: Seen) -> None:
    panels = json.loads((FILES / "dashboard.json").read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    assert len(asked) > 30
    for expression in asked:
        for name, value in {"$__rate_interval": "5m", "$__range": "5m"}.items():
            expression = expression.replace(name, value)
        assert await seen.prometheus.query(expression), expression


async def the_alert_rules_are_evaluated_and_ask_for_what_there_is(seen: Seen) -> None:
    known = set(await seen.prometheus.ask("label/__name__/values"))
    [group] = (await seen.prometheus.ask("rules"))["groups"]
    assert [rule["name"] for rule in group["rules"]] == [
        each["alert"] for each in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"][0]["rules"]
    ]
    for rule in group["rules"]:
        assert (rule["health"], rule.get("lastError", "")) == ("ok", ""), rule
        assert set(re.findall(r"multistep_\w+", rule["query"])) <= known, rule["name"]
