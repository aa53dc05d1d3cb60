"""Test which pods are orphans, and how long results are retained after their trial was deleted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.api.trial.trial import MultiStepTrial, parse_trial
from multistep.engine.lifecycle.clean_up import builder_orphaned, fate_of_results, pod_orphaned
from multistep.engine.lifecycle.decisions import PodFacts

NOW, GRACE = 1_700_000_000.0, 60.0
RUNNING: dict[str, Any] = {"phase": "Running", "attempt": 2, "podName": "t-2", "podUID": "p2"}


def trial(status: dict[str, Any] = RUNNING, **metadata: Any) -> MultiStepTrial:
    task: dict[str, Any] = {"inline": {"config": {}}}
    return parse_trial(
        {"metadata": {"name": "t", "namespace": "n", "uid": "t1", **metadata}, "spec": {"task": task}, "status": status}
    )


def pod(name: str = "t-2", uid: str = "p2", *, owner: str = "t1", age: float = 1000.0, deleting: bool = False) -> PodFacts:
    return PodFacts(name=name, uid=uid, owner_uid=owner, phase="Running", created_at=NOW - age, deleting=deleting)


def why(pod: PodFacts, trial: MultiStepTrial | None) -> str:
    return pod_orphaned(pod, trial, NOW, GRACE)


VERIFIED = {**RUNNING, "verifier": {"podName": "t-2-v0", "podUID": "v"}}
GONE, OVER, TAKEN = "its trial does not exist", "its attempt or step is finished", "it has the name of a pod that was deleted"


@pytest.mark.parametrize(
    ("pod", "trial", "reported"),
    [
        (pod(), trial(), ""),
        (pod("t-1", "p1"), trial(), OVER),
        (pod("t-1", "p1", age=59.0), trial(), ""),
        (pod("t-1", "p1", deleting=True), trial(), ""),
        (pod(uid="other"), trial(), TAKEN),
        (pod(), trial({**RUNNING, "podUID": None}), ""),
        (pod(), None, GONE),
        (pod(age=59.0), None, ""),
        (pod(owner="former"), trial(), GONE),
        (pod(owner=""), trial(), GONE),
        (pod("t-2-v0", "v"), trial(VERIFIED), ""),
        (pod("t-2-v0", "other"), trial(VERIFIED), TAKEN),
        (pod("t-2-v0", "v"), trial({**VERIFIED, "verifier": {"podName": "t-2-v0"}}), ""),
        (pod("t-1-v1", "v"), trial(VERIFIED), OVER),
        (pod("t-2-v0", "v"), trial(), OVER),
        (pod("t-1", "p1"), trial(deletionTimestamp=datetime.now(UTC).isoformat()), ""),
        (pod("t-1", "p1"), trial({}), ""),
        (pod("t-1", "p1"), trial({"phase": "Pending"}), ""),  # its first attempt is written together with the pod's UID
        (pod("t-1", "p1"), trial({"phase": "Suspended"}), OVER),
        (pod("t-1", "p1"), trial({"phase": "Failed"}), OVER),
        (pod("t-1", "p1"), trial({**RUNNING, "phase": "Complete"}), OVER),
        (pod(), trial({**RUNNING, "phase": "Complete"}), ""),
    ],
)
def test_whose_a_pod_is(pod: PodFacts, trial: MultiStepTrial | None, reported: str) -> None:
    assert why(pod, trial) == reported


NAMES = st.sampled_from(["t-1", "t-2", "t-2-root", "t-2-v0"])
UIDS = st.sampled_from(["p1", "p2", "p3"])
PODS = st.builds(pod, NAMES, UIDS, owner=st.sampled_from(["", "t1", "t2"]), age=st.floats(-100, 1000), deleting=st.booleans())
STATUSES = st.fixed_dictionaries(
    {
        "phase": st.sampled_from(["Pending", "Running", "Complete", "Failed"]),
        "attempt": st.just(1),
        "podName": NAMES,
        "podUID": st.none() | UIDS,
    },
    optional={"verifier": st.fixed_dictionaries({"podName": NAMES, "podUID": st.none() | UIDS})},
)


@given(PODS, st.none() | STATUSES.map(trial))
def test_a_pod_that_its_trial_names_is_never_an_orphan_and_every_other_is_one_in_time(
    pod: PodFacts, trial: MultiStepTrial | None
) -> None:
    named: list[tuple[str | None, str | None]] = []
    if trial is not None and pod.owner_uid == trial.metadata.uid:
        verifier = trial.status.verifier
        named = [(verifier.pod_name, verifier.pod_uid)] if verifier else []
        if not verifier or verifier.pod_name != trial.status.pod_name:
            named.append((trial.status.pod_name, trial.status.pod_uid))
    wanted = (pod.name, pod.uid) in named or (pod.name, None) in named
    old_enough = NOW - pod.created_at >= GRACE and not pod.deleting
    assert bool(why(pod, trial)) == (old_enough and not wanted)


# -- results of deleted trials


@pytest.mark.parametrize(
    ("alive", "since", "keep", "fate"),
    [
        (True, None, 0.0, "Stay"),
        (True, -1e9, 0.0, "Unmark"),
        (False, None, None, "MarkGone"),
        (False, None, 0.0, "MarkGone"),
        (False, -1e9, None, "Stay"),
        (False, -9.0, 10.0, "Stay"),
        (False, -10.0, 10.0, "Remove"),
    ],
)
def test_the_fate_of_results(alive: bool, since: float | None, keep: float | None, fate: str) -> None:
    gone_since = None if since is None else NOW + since
    assert fate_of_results(alive=alive, gone_since=gone_since, now=NOW, keep=keep) == fate


@given(st.lists(st.booleans(), max_size=30), st.none() | st.floats(0, 50))
def test_results_are_removed_only_after_a_trial_was_gone_at_every_check_for_as_long_as_they_are_kept(
    seen: list[bool], keep: float | None
) -> None:
    """The checks are ten seconds apart. Only one value is stored between checks: when the trial was first found missing."""
    gone_since: float | None = None
    for check, alive in enumerate(seen):
        now = NOW + 10 * check
        match fate_of_results(alive=alive, gone_since=gone_since, now=now, keep=keep):
            case "MarkGone":
                gone_since = now
            case "Unmark":
                gone_since = None
            case "Remove":
                assert keep is not None
                gone = next((back for back, there in enumerate(reversed(seen[: check + 1])) if there), check + 1)
                assert 10 * (gone - 1) >= keep and gone > 1
                return
        assert not (alive and gone_since)


def test_a_builders_pod_that_no_trial_waits_for_is_an_orphan_after_a_while() -> None:
    def orphaned(*, age: float = 600.0, wanted: bool = False, deleting: bool = False) -> bool:
        return builder_orphaned(NOW - age, wanted=wanted, deleting=deleting, now=NOW, grace=600.0)

    assert orphaned()
    assert not (orphaned(age=599.0) or orphaned(wanted=True) or orphaned(deleting=True))
