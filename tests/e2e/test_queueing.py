"""Trials that wait for what others give: a place in a queue of Kueue's, room in a quota."""

from __future__ import annotations

import asyncio

from tests.e2e.given import Given, Object, Step, condition, finished, holds, in_agent, reward, trial
from tests.support.kueue import PRIORITY, QUEUE, kueue

# The agent of a first attempt works until its pod is taken away.
FIRST_STAYS = "#!/bin/sh\ncase $(cat /etc/hostname) in *-1) sleep 600 ;; esac\n"


def queued(manifest: Object, **labels: str) -> Object:
    return {**manifest, "metadata": {**manifest["metadata"], "labels": {QUEUE: "team", **labels}}}


def waits_for(reason: str, pod: str = "") -> object:
    def waiting(found: Object) -> bool:
        if not holds(found, "Reconciling") or condition(found, "Reconciling")["reason"] != reason:
            return False
        return not pod or found["status"]["podName"] == pod

    return waiting


async def test_queued_trials_wait_visibly_start_when_kueue_admits_them_and_give_back_their_place(given: Given) -> None:
    low = queued(trial(Step("a", solve=FIRST_STAYS, test=reward(0.1)), name="low"))
    after = queued(trial(Step("a", test=reward(0.2)), name="next", podCleanup="Never"))
    apart = {"verifier": {"environment_mode": "separate"}}
    urgent = queued(trial(Step("a", test=reward(0.3)), name="urgent", config=apart, podCleanup="Never"), **{PRIORITY: "high"})
    async with kueue(given.client, given.namespace, {"team": 1}) as played:
        await given.applied(low)
        await given.until("low", in_agent)
        await given.applied(after)
        found = await given.until("next", waits_for("QueuedByKueue"))  # type: ignore[arg-type]
        assert condition(found, "Reconciling")["message"] == "pod next-1 waits in the queue team until Kueue admits it"
        assert (found["status"]["phase"], holds(found, "Suspended"), "nodeName" in found["status"]) == ("Pending", True, False)
        assert played.admitted == ["low-1"]

        await given.applied(urgent)
        again = await given.until("low", waits_for("QueuedByKueue", "low-2"))  # type: ignore[arg-type]
        (lost,) = again["status"]["attempts"]
        assert (lost["reason"], "Preempted to accommodate" in lost["message"]) == ("EvictedByKueue", True)
        done = [(await given.until(name, finished))["status"] for name in ("urgent", "next", "low")]
        assert [each["rewards"] for each in done] == [{"reward": 0.3}, {"reward": 0.2}, {"reward": 0.1}]
        assert [len(each.get("attempts", [])) for each in done] == [0, 0, 1]
        assert done[1]["suspendedSeconds"] >= 1 and done[0]["isolation"] == "Separate"
        assert (played.admitted, played.most) == (["low-1", "urgent-1", "next-1", "low-2"], {"team": 1})
        for name in ("urgent", "next", "low"):
            await given.without_pods(name)


async def test_trials_wait_for_room_in_a_quota_and_start_when_there_is_some(given: Given) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "one"}, "spec": {"hard": {"pods": "1"}}}
    await given.applied(quota)
    resource = await given.client.resource_of(quota)
    async with asyncio.timeout(60):
        while "used" not in ((await given.client.get(resource, given.namespace, "one")).get("status") or {}):
            await asyncio.sleep(0.2)
    names = ["a", "b", "c"]
    for number, name in enumerate(names):
        await given.applied(trial(Step("a", solve="#!/bin/sh\nsleep 2\n", test=reward(number / 10)), name=name))
    waiting = await given.until("c", waits_for("QuotaExceeded"))  # type: ignore[arg-type]
    assert "exceeded quota: one" in condition(waiting, "Reconciling")["message"] and waiting["status"]["phase"] == "Pending"
    done = [await given.until(name, finished) for name in names]
    assert [each["status"]["rewards"] for each in done] == [{"reward": number / 10} for number in range(3)]
    assert all("attempts" not in each["status"] for each in done)
