"""The cache of a sweep's trials: filled by watch events and lists, never overwritten with an older version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from multistep.api.sweep import Scoring
from multistep.reconcile.sweep_book import Book

KEY = ("default", "s")


def trial(number: int, uid: str = "u", **status: Any) -> dict[str, Any]:
    owner = {"apiVersion": "multistep.dev/v1alpha1", "kind": "TrialSweep", "name": "s", "uid": uid, "controller": True}
    metadata = {"name": f"t{number}", "namespace": "default", "ownerReferences": [owner]}
    return {"metadata": {**metadata, "labels": {"multistep.dev/number": str(number)}}, "spec": {}, "status": status}


async def listing(*listed: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    for each in listed:
        yield each


async def test_event_of_a_trial_is_an_event_of_its_sweep_when_it_changes_what_a_sweep_counts() -> None:
    book = Book()
    assert book.saw(trial(0)) == KEY
    assert book.saw(trial(0)) is None
    assert book.saw(trial(0, currentStep="b")) is None
    assert book.saw(trial(0, phase="Running")) == KEY
    assert book.saw(trial(0), gone=True) == KEY
    assert book.saw(trial(0), gone=True) is None
    assert book.saw({"metadata": {"name": "alone", "namespace": "default"}}) is None


async def test_a_trial_that_was_deleted_during_its_creation_is_not_believed_to_exist() -> None:
    book = Book()
    page = book.page(KEY, "u", "", over=False)
    page.start_reconcile(Scoring())
    book.saw(trial(0))
    book.saw(trial(0), gone=True)
    page.read(trial(0))
    assert page.trials == {}
    page.start_reconcile(Scoring())
    page.read(trial(1))
    assert set(page.trials) == {"t1"}


async def test_a_list_reports_all_objects_except_those_with_newer_events() -> None:
    book = Book()
    for number in range(3):
        book.saw(trial(number))
    page = book.page(KEY, "u", "", over=False)
    page.start_reconcile(Scoring())
    book.saw(trial(1, phase="Running"))
    book.saw(trial(9))
    await page.fill(listing(trial(1), trial(2, phase="Running"), trial(3), trial(4, uid="another")), "u")
    assert {name: each.phase for name, each in page.trials.items()} == {
        "t1": "Running", "t2": "Running", "t3": "Pending", "t9": "Pending",
    }  # fmt: skip
    assert page.whole
    assert book.invalidate("elsewhere") == [] and book.invalidate("default") == [KEY] and not page.whole
    assert book.invalidate("default") == []


async def test_trials_read_before_the_sweeps_scoring_was_known_are_read_again() -> None:
    book = Book()
    styled = trial(
        0, score=0.5, scoreRule={"steps": 1, "strategy": "Mean"}, steps=[{"name": "a", "rewards": {"reward": 0.5, "style": 1}}]
    )
    book.saw(styled)
    page = book.page(KEY, "u", "", over=False)
    page.start_reconcile(Scoring(key="style"))
    assert not page.trials and not page.whole
    await page.fill(listing(styled), "u")
    assert page.trials["t0"].score == 1
    page.start_reconcile(Scoring(key="style"))
    book.saw(styled)
    assert page.whole and page.trials["t0"].score == 1


async def test_of_a_sweep_that_has_ended_nothing_is_noted() -> None:
    book = Book()
    book.saw(trial(0))
    page = book.page(KEY, "u", "", over=False)
    page.close()
    assert book.saw(trial(1)) is None and page.trials == {} and book.invalidate("default") == []


async def test_a_namesake_starts_with_an_empty_page() -> None:
    book = Book()
    book.saw(trial(0))
    assert book.page(KEY, "another", "", over=False).trials == {}
    assert book.page(KEY, "another", "", over=False) is book.page(KEY, "another", "", over=False)
    book.drop(KEY)
    assert book.saw(trial(0), gone=True) is None
