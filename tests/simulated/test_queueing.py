"""Test trials that wait for admission by Kueue or for resource quota."""

from __future__ import annotations

from tests.e2e.given import Object, condition, finished, holds, in_agent
from tests.simulated.given import HOLDS_IN_FIRST_POD, Given, Step, reward, trial
from tests.support.kueue import PRIORITY, QUEUE, kueue
from tests.support.waiting import eventually


def queued(manifest: Object, **labels: str) -> Object:
    return {**manifest, "metadata": {**manifest["metadata"], "labels": {QUEUE: "team", **labels}}}


def waits_for(reason: str, pod: str = "") -> object:
    def waiting(found: Object) -> bool:
        if not holds(found, "Reconciling") or condition(found, "Reconciling")["reason"] != reason:
            return False
        return not pod or found["status"]["podName"] == pod

    return waiting


async def test_queued_trials_wait_visibly_start_when_kueue_admits_them_and_give_back_their_place(given: Given) -> None:
    low = queued(trial(Step("a", solve=HOLDS_IN_FIRST_POD, test=reward(0.1)), name="low"))
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


async def test_trials_wait_for_room_in_a_quota_and_start_one_after_another_when_there_is_some(given: Given) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "0"}}}
    await given.applied(quota)
    resource = await given.client.resource_of(quota)

    async def counts() -> bool:
        return "used" in ((await given.client.get(resource, given.namespace, "few")).get("status") or {})

    await eventually(counts)
    rewards = {"a": 0.1, "b": 0.2}
    for name, each in rewards.items():
        await given.applied(trial(Step("a", test=reward(each)), name=name))
    for name in rewards:
        waiting = await given.until(name, waits_for("QuotaExceeded"))  # type: ignore[arg-type]
        assert waiting["status"]["phase"] == "Pending" and "exceeded quota: few" in condition(waiting, "Reconciling")["message"]
    await given.client.patch(resource, given.namespace, "few", {"spec": {"hard": {"pods": "1"}}})
    done = [(await given.until(name, finished))["status"] for name in rewards]
    assert [each["rewards"]["reward"] for each in done] == list(rewards.values())
    assert [each.get("attempts", []) for each in done] == [[], []]
    first, second = sorted(done, key=lambda each: str(each["steps"][0]["startTime"]))
    assert second["steps"][0]["startTime"] >= first["completionTime"]


async def test_a_trial_that_cannot_have_a_pod_now_waits_with_the_reason(given: Given) -> None:
    nowhere = trial(Step("a"), environment={"image": "simulated", "podTemplate": {"spec": {"nodeSelector": {"no": "such"}}}})
    too_large = trial(Step("a"), config={"environment": {"cpus": 100_000}})
    for manifest, output in ((nowhere, "node affinity/selector"), (too_large, "Insufficient cpu")):
        await given.applied(manifest)
        found = await given.until(manifest["metadata"]["name"], waits_for("Unschedulable"))  # type: ignore[arg-type]
        assert found["status"]["phase"] == "Pending" and output in condition(found, "Reconciling")["message"]

    for manifest in (nowhere, too_large):
        await given.changed(manifest["metadata"]["name"], activeDeadlineSeconds=1)
        done = await given.until(manifest["metadata"]["name"], finished)
        assert done["status"]["failure"] == {"class": "User", "reason": "DeadlineExceeded"}
        assert "activeDeadlineSeconds = 1" in condition(done, "Failed")["message"]
        assert "rewards" not in done["status"]
