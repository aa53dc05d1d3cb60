"""The leader lease: who holds it, for how long, and what happens when its holder was suspended."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from multistep.errors import Conflict, NotLeading, Unavailable
from multistep.kube.lease import Lease, Replica, boot_time
from multistep.kube.resources import LEASES
from tests.support.fake_cluster import FakeCluster

NAMESPACE, NAME, SECONDS = "multistep-system", "multistep", 15.0


@dataclass
class Election:
    """A cluster in which replicas, whose clocks may differ, compete for one Lease."""

    cluster: FakeCluster = field(default_factory=FakeCluster)
    passed: float = 0.0

    def lease(self, name: str, *, clock_offset: float = 0.0, pod_uid: str = "", objects: Any = None) -> Lease:
        clock = lambda: self.passed + clock_offset  # noqa: E731
        return Lease(objects or self.cluster, Replica(name, pod_uid), namespace=NAMESPACE, name=NAME, seconds=SECONDS, clock=clock)

    @property
    def spec(self) -> dict[str, Any]:
        return dict(self.cluster.objects["Lease", NAMESPACE, NAME]["spec"])

    async def until_acquired(self, lease: Lease, *, most_seconds: float = 60.0) -> float:
        """Attempt to acquire the lease once per second until it is held; return the seconds that passed."""
        started = self.passed
        await lease.attempt()
        while not lease.held:
            self.passed += 1.0
            assert self.passed - started < most_seconds
            await lease.attempt()
        return self.passed - started


@pytest.fixture
def election() -> Election:
    return Election()


async def test_the_first_takes_it_and_the_second_stands_by(election: Election) -> None:
    first, second = election.lease("a"), election.lease("b", clock_offset=1e6)
    await first.attempt()
    await second.attempt()
    assert (first.held, second.held) == (True, False)
    assert first.acquired.is_set() and not second.acquired.is_set()
    assert second.holder == str(first.replica) == election.spec["holderIdentity"]
    assert (election.spec["leaseDurationSeconds"], election.spec["leaseTransitions"]) == (15, 0)


async def test_a_lease_that_is_renewed_is_never_taken(election: Election) -> None:
    first, second = election.lease("a"), election.lease("b", clock_offset=-5000)
    for _ in range(40):
        await first.attempt()
        await second.attempt()
        election.passed += 4.0
        assert (first.held, second.held) == (True, False)
    assert election.spec["leaseTransitions"] == 0


async def test_one_that_is_not_renewed_is_taken_after_its_time_by_the_others_clock(election: Election) -> None:
    first, second = election.lease("a"), election.lease("b", clock_offset=777)
    await first.attempt()
    assert await election.until_acquired(second) > SECONDS
    assert election.spec["holderIdentity"] == str(second.replica)
    assert election.spec["leaseTransitions"] == 1


async def test_a_holder_stops_trusting_it_before_another_takes_it(election: Election) -> None:
    first, second = election.lease("a"), election.lease("b")
    await first.attempt()
    await second.attempt()
    while not second.held:
        was_held = first.held
        election.passed += 0.5
        await second.attempt()
        assert not (first.held and second.held)
    assert not was_held  # replica a stopped leading before replica b acquired the lease
    with pytest.raises(NotLeading, match="does not hold the lease multistep-system/multistep"):
        first.check()


async def test_one_that_slept_past_its_time_never_has_it_again(election: Election) -> None:
    first = election.lease("a")
    await first.attempt()
    election.passed += SECONDS
    assert not first.held
    for _ in range(2):  # both attempts fail, although no other replica has acquired the lease
        with pytest.raises(NotLeading):
            await first.attempt()
    assert not first.held


async def test_one_that_falls_asleep_in_the_middle_of_a_renewal_does_not_come_back(election: Election) -> None:
    class Sleepy(FakeCluster):
        async def replace(self, manifest: Any) -> Any:
            written = await super().replace(manifest)
            election.passed += asleep
            return written

    asleep = 0.0
    lease = election.lease("a", objects=Sleepy())
    await lease.attempt()
    asleep = SECONDS
    with pytest.raises(NotLeading):
        await lease.attempt()
    assert not lease.held


async def test_a_hold_is_counted_from_before_it_was_asked_for(election: Election) -> None:
    class Slow(FakeCluster):
        async def replace(self, manifest: Any) -> Any:
            election.passed += 9.0
            return await super().replace(manifest)

    lease = election.lease("a", objects=Slow())
    await lease.attempt()
    assert lease.held
    election.passed += 1.5
    assert not lease.held


async def test_of_two_that_find_it_free_one_gets_it(election: Election) -> None:
    first, second = election.lease("a"), election.lease("b")
    await election.lease("dead").attempt()
    for lease in (first, second):
        await lease.attempt()
    election.passed += SECONDS + 1
    outcomes = await asyncio.gather(Slowly(first).attempt(), Slowly(second).attempt(), return_exceptions=True)
    assert [type(each) for each in outcomes if each] == [Conflict]
    assert [first.held, second.held].count(True) == 1


class Slowly:
    """A wrapper of a lease: during an attempt, other tasks can run between the read and the write."""

    def __init__(self, lease: Lease) -> None:
        read = lease._read

        async def then_wait() -> Any:
            record = await read()
            await asyncio.sleep(0)
            return record

        lease._read = then_wait  # type: ignore[method-assign]
        self.attempt = lease.attempt


async def test_a_renewal_whose_answer_is_lost_is_found_to_have_happened(election: Election) -> None:
    class Lossy(FakeCluster):
        async def replace(self, manifest: Any) -> Any:
            written = await super().replace(manifest)
            if lossy:
                raise Unavailable("no answer")
            return written

    lossy = False
    lease = election.lease("a", objects=Lossy())
    await lease.attempt()
    lossy = True
    with pytest.raises(Unavailable):
        await lease.attempt()
    lossy = False
    election.passed += 8.0
    await lease.attempt()
    election.passed += 8.0
    assert lease.held


async def test_a_lease_that_another_replica_took_by_force_is_lost(election: Election) -> None:
    first = election.lease("a")
    await first.attempt()
    record = await election.cluster.get(LEASES, NAMESPACE, NAME)
    await election.cluster.replace({**record, "spec": {**record["spec"], "holderIdentity": "b"}})
    with pytest.raises(Conflict):
        await first.attempt()
    with pytest.raises(NotLeading):
        await first.attempt()
    assert not first.held


async def test_a_lease_that_was_deleted_is_created_again(election: Election) -> None:
    first, second = election.lease("a"), election.lease("b")
    await first.attempt()
    election.cluster.remove("Lease", NAMESPACE, NAME)
    with pytest.raises(Exception, match="not found"):
        await first.attempt()
    await first.attempt()
    await second.attempt()
    assert (first.held, second.held) == (True, False)


async def test_a_released_lease_is_taken_at_once(election: Election) -> None:
    first, second = election.lease("a"), election.lease("b")
    await first.attempt()
    await second.attempt()
    await first.release()
    await first.release()
    assert not first.held
    await second.attempt()
    assert second.held
    assert (election.spec["holderIdentity"], election.spec["leaseTransitions"]) == (str(second.replica), 1)


async def test_what_is_anothers_by_now_is_not_released(election: Election) -> None:
    first, second = election.lease("a"), election.lease("b")
    await first.attempt()
    await election.until_acquired(second)
    await first.release()
    assert second.holder == election.spec["holderIdentity"] == str(second.replica)


async def test_a_restarted_container_takes_the_lease_of_the_one_before_it_at_once(election: Election) -> None:
    await election.lease("a", pod_uid="uid-1").attempt()
    again = election.lease("a", pod_uid="uid-1")
    await again.attempt()
    assert again.held
    assert election.spec["leaseTransitions"] == 1


@pytest.mark.parametrize(("name", "pod_uid"), [("a", "uid-2"), ("a", ""), ("a_uid-1", "")])
async def test_another_pod_or_process_of_the_same_name_waits(election: Election, name: str, pod_uid: str) -> None:
    await election.lease("a", pod_uid="uid-1").attempt()
    other = election.lease(name, pod_uid=pod_uid)
    await other.attempt()
    assert not other.held


async def test_two_processes_of_a_host_wait_for_each_other(election: Election) -> None:
    first, second = election.lease("host"), election.lease("host")
    await first.attempt()
    await second.attempt()
    assert (first.held, second.held) == (True, False)


async def test_keeping_it_ends_when_the_api_server_is_away_for_longer_than_the_lease(
    election: Election, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away(FakeCluster):
        away = False

        async def replace(self, manifest: Any) -> Any:
            if self.away:
                raise Unavailable("no answer")
            return await super().replace(manifest)

        get = FakeCluster.get

    cluster = Away()
    lease = election.lease("a", objects=cluster)
    held: list[bool] = []

    async def sleep(seconds: float) -> None:
        election.passed += seconds
        held.append(lease.held)
        cluster.away = len(held) > 10

    monkeypatch.setattr("multistep.kube.lease.asyncio.sleep", sleep)
    with pytest.raises(NotLeading):
        await lease.hold()
    assert held[:11] == [True] * 11
    assert lease.last_error == "no answer"


async def test_standing_by_survives_an_api_server_that_is_away(election: Election, monkeypatch: pytest.MonkeyPatch) -> None:
    class Away(FakeCluster):
        async def get(self, *_: Any) -> Any:
            if election.passed < 100:
                raise Unavailable("no answer")
            return await super().get(*_)

    lease = election.lease("a", objects=Away())

    async def sleep(seconds: float) -> None:
        election.passed += seconds
        if lease.held:
            raise asyncio.CancelledError

    monkeypatch.setattr("multistep.kube.lease.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await lease.hold()
    assert lease.held and election.passed >= 100


def test_the_clock_continues() -> None:
    assert 0 < boot_time() <= boot_time()
