"""Trials whose pods exceed a quota: one of them retries, the others are queued, and each gets its pod in the end."""

from __future__ import annotations

import asyncio

from multistep.kube.cluster_protocols import Object
from multistep.reconcile.admission.concurrency_limit import Key
from multistep.reconcile.admission.quotas import BACKOFF, Quotas
from tests.support.virtual_time import in_virtual_time

FULL = "create pod: pods 'a-1' is forbidden: exceeded quota: few"
A, B, C = [("ns", name) for name in "abc"]


def pod(cpu: str = "1", priority: str | None = None) -> Object:
    spec: Object = {"containers": [{"resources": {"requests": {"cpu": cpu}}}], "priorityClassName": priority}
    return {"metadata": {"name": "x"}, "spec": spec}


SMALL, LARGE = pod(), pod("8")


class Trials:
    """Trials that want pods. woken: each requeued key with the time, in order."""

    def __init__(self) -> None:
        self.woken: list[tuple[float, Key]] = []
        self.time = asyncio.get_running_loop().time
        self.quotas = Quotas(lambda key: self.woken.append((self.time(), key)), self.time)

    def reconcile(self, key: Key, refusal: str | None = None, wanted: Object = SMALL, *, first: bool = False) -> bool:
        """Reconcile a trial once; return whether it may try to create its pod.

        refusal: message with which the creation is rejected; "": it succeeds; None: the trial does not try.
        """
        may = self.quotas.may_try(key, wanted, first=first)
        if may and refusal is not None:
            with self.quotas.trying(key, wanted, first=first) as attempt:
                attempt.rejection = refusal
        self.quotas.settle(key)
        return may


@in_virtual_time
async def test_nobody_waits_where_nothing_was_refused() -> None:
    trials = Trials()
    assert trials.reconcile(A, "") and trials.reconcile(B)
    assert (trials.quotas.waiting, A in trials.quotas, trials.woken) == (0, False, [])


@in_virtual_time
async def test_the_first_tries_again_later_each_time_and_the_others_wait() -> None:
    trials = Trials()
    assert trials.reconcile(A, FULL)
    assert not trials.reconcile(B)
    pauses = []
    for _ in range(9):
        pauses.append(trials.quotas.pause(A))
        assert not trials.reconcile(A, FULL)  # A must not try again during its pause
        await asyncio.sleep(pauses[-1] or 0)
        assert trials.reconcile(A, FULL)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, BACKOFF.last]
    assert (trials.quotas.pause(B), trials.quotas.rejection(B), trials.woken) == (None, "exceeded quota: few", [])


@in_virtual_time
async def test_who_gets_a_pod_lets_the_next_one_try_at_once() -> None:
    trials = Trials()
    trials.reconcile(A, FULL), trials.reconcile(B), trials.reconcile(C)
    await asyncio.sleep(1)
    assert trials.reconcile(A, "")
    assert [key for _, key in trials.woken] == [B]
    assert trials.reconcile(B, "") and trials.reconcile(C, "")
    assert trials.quotas.waiting == 0


@in_virtual_time
async def test_who_is_refused_beside_the_first_does_not_make_it_later() -> None:
    trials = Trials()
    assert trials.quotas.may_try(A, SMALL, first=False) and trials.quotas.may_try(B, SMALL, first=False)
    for each in (A, B):
        with trials.quotas.trying(each, SMALL, first=False) as attempt:
            attempt.rejection = FULL
    assert (trials.quotas.pause(A), trials.quotas.pause(B)) == (1, None)


@in_virtual_time
async def test_a_pod_that_went_lets_one_try_soon() -> None:
    trials = Trials()
    for _ in range(6):
        trials.reconcile(A, FULL)
        await asyncio.sleep(trials.quotas.pause(A) or 0)
    trials.reconcile(A, FULL), trials.reconcile(B)
    now = trials.time()
    trials.quotas.pod_ended("elsewhere")
    assert trials.quotas.pause(A) == 60
    for _ in range(2):
        trials.quotas.pod_ended("ns")
    assert trials.quotas.pause(A) == 1
    await asyncio.sleep(2)
    assert trials.woken == [(now + 1, A)]
    assert trials.reconcile(A, FULL) and trials.quotas.pause(A) == 1


@in_virtual_time
async def test_a_queue_that_is_gone_when_there_is_room_causes_no_reconcile() -> None:
    trials = Trials()
    trials.reconcile(A, FULL)
    await asyncio.sleep(1)
    trials.reconcile(A, FULL)
    trials.quotas.pod_ended("ns")
    trials.quotas.settle(A)
    await asyncio.sleep(5)
    assert trials.woken == []


@in_virtual_time
async def test_who_wants_no_pod_any_more_leaves_the_line() -> None:
    trials = Trials()
    trials.reconcile(A, FULL), trials.reconcile(B), trials.reconcile(C)
    trials.quotas.settle(A)  # A's reconcile ends without a try: A was stopped or deleted, or an error occurred
    assert [key for _, key in trials.woken] == [B]
    trials.quotas.settle(C)
    assert (trials.quotas.waiting, len(trials.woken)) == (1, 1)


@in_virtual_time
async def test_who_may_try_and_does_not_yet_keeps_its_turn() -> None:
    trials = Trials()
    trials.reconcile(A, FULL), trials.reconcile(B)
    await asyncio.sleep(1)
    assert trials.reconcile(A) and trials.woken == []
    assert trials.reconcile(A) and not trials.reconcile(B)


@in_virtual_time
async def test_a_small_pod_does_not_wait_behind_a_large_one_nor_behind_another_namespaces() -> None:
    trials = Trials()
    trials.reconcile(A, FULL, LARGE)
    assert trials.reconcile(B, "") and trials.reconcile(("other", "a"), "", LARGE) and trials.reconcile(C, "", pod("8", "high"))
    assert not trials.reconcile(B, wanted=LARGE)


@in_virtual_time
async def test_a_trial_that_wants_another_pod_than_before_changes_lines() -> None:
    trials = Trials()
    trials.reconcile(A, FULL, LARGE), trials.reconcile(B, wanted=LARGE)
    assert trials.reconcile(A, "", SMALL)
    assert [key for _, key in trials.woken] == [B]


@in_virtual_time
async def test_a_trial_that_has_a_pod_already_goes_before_those_that_have_none() -> None:
    trials = Trials()
    trials.reconcile(A, FULL), trials.reconcile(B)
    trials.reconcile(C, first=True)
    assert (trials.quotas.pause(C), trials.quotas.pause(A)) == (1, None)
    await asyncio.sleep(1)
    assert trials.reconcile(C, "", first=True)
    assert [key for _, key in trials.woken] == [A]
