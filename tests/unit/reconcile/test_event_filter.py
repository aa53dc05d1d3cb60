"""Which watch events cause a reconcile."""

from __future__ import annotations

from typing import Any

import pytest

from multistep.api.common.base_model import API_VERSION, Metadata
from multistep.api.trial.trial import KIND
from multistep.pods.pod_facts import pod_facts
from multistep.reconcile.queue.event_filter import EventFilter, PodEvent

KEY = ("ns", "t")


def trial(**changes: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "ns", "name": "t", "uid": "u", "generation": 1, **changes}, "status": {}}


def pod(**status: Any) -> dict[str, Any]:
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": "t", "uid": "u", "controller": True}
    metadata = {"namespace": "ns", "name": "t-1", "uid": "p", "ownerReferences": [owner]}
    return {"metadata": metadata, "spec": {}, "status": status}


def test_a_trials_own_status_is_ignored_but_its_spec_its_end_and_another_of_its_name_are() -> None:
    event_filter = EventFilter()
    assert event_filter.trial(trial(), "ADDED") == KEY
    assert event_filter.trial({**trial(), "status": {"phase": "Running"}}, "MODIFIED") is None
    assert event_filter.trial(trial(generation=2), "MODIFIED") == KEY
    assert event_filter.trial(trial(generation=2, deletionTimestamp="2026-01-01T00:00:00Z"), "MODIFIED") == KEY
    assert event_filter.trial(trial(generation=2), "DELETED") == KEY
    assert event_filter.trial(trial(uid="another"), "ADDED") == KEY


@pytest.mark.parametrize(
    ("event", "changed"),
    [
        (trial(), False),
        ({**trial(), "status": {"phase": "Running"}}, False),
        (trial(generation=2), True),
        (trial(deletionTimestamp="2026-01-01T00:00:00Z"), True),
        (trial(uid="another"), True),
    ],
    ids=["nothing", "status", "spec", "deletion", "another of its name"],
)
def test_a_trial_is_changed_once_an_event_shows_it(event: dict[str, Any], changed: bool) -> None:
    event_filter, known = EventFilter(), Metadata.model_validate(trial()["metadata"])
    assert not event_filter.changed(known)
    event_filter.trial(event, "MODIFIED")
    assert event_filter.changed(known) is changed
    event_filter.trial(event, "DELETED")
    assert not event_filter.changed(known)


def test_whatever_a_listing_returns_needs_a_reconcile() -> None:
    event_filter = EventFilter()
    assert [event_filter.trial(trial(), None), event_filter.trial(trial(), None)] == [KEY, KEY]
    assert [event_filter.pod(pod(phase="Pending"), None) is not None for _ in range(2)] == [True, True]


def test_a_pod_needs_a_reconcile_when_a_decision_could_change_with_it() -> None:
    event_filter = EventFilter()
    pending = pod(phase="Pending")
    assert event_filter.pod(pending, "ADDED") == PodEvent(KEY, pod_facts(pending), None)
    assert event_filter.pod(pod(phase="Pending", podIP="10.0.0.1"), "MODIFIED") is None
    ready = {"type": "Ready", "status": "True"}
    is_ready = pod(phase="Pending", conditions=[ready])
    assert event_filter.pod(is_ready, "MODIFIED") == PodEvent(KEY, pod_facts(is_ready), pod_facts(pending))
    assert event_filter.pod(pod(phase="Pending", conditions=[ready]), "DELETED") is not None


def test_a_pod_without_an_owner_is_ignored() -> None:
    stray = pod()
    stray["metadata"]["ownerReferences"] = []
    assert EventFilter().pod(stray, "ADDED") is None


def test_a_trial_is_finished_while_its_last_event_is() -> None:
    event_filter = EventFilter()
    assert not event_filter.finished(KEY)
    for phase, over in (("Running", False), ("Complete", True), ("Failed", True)):
        event_filter.trial({**trial(), "status": {"phase": phase}}, "MODIFIED")
        assert event_filter.finished(KEY) is over
    event_filter.trial(trial(), "DELETED")
    assert not event_filter.finished(KEY)
    event_filter.trial(trial(uid="another"), "ADDED")
    assert not event_filter.finished(KEY)
