"""Test which of a step's files are stored under the size limits of results, and how the status describes the other files."""

from __future__ import annotations

import pytest

from multistep.engine.journal.results_limits import (
    Amount,
    Filling,
    Headroom,
    LargeFile,
    ResultsLimits,
    crowded_out,
    remaining_headroom,
    too_large,
    total_amount,
)
from multistep.store.trial.unpack_download import MAX_NAMED, IncompleteSource, incomplete_lines

LIMITS = ResultsLimits(step=Amount(100, 10), trial=Amount(150, 30), namespace=Amount(1000, 12))
NONE = Amount()


@pytest.mark.parametrize(
    ("step", "trial", "namespace", "wanted"),
    [
        (NONE, NONE, NONE, Headroom(100, 10, "step", "step")),
        (Amount(40, 1), Amount(40, 1), Amount(40, 1), Headroom(60, 9, "step", "step")),
        (NONE, Amount(100, 5), Amount(100, 5), Headroom(50, 7, "trial", "namespace")),
        (NONE, NONE, Amount(1200, 13), Headroom(0, 0, "namespace", "namespace")),
    ],
)
def test_the_smallest_of_what_the_limits_leave_is_the_room(
    step: Amount, trial: Amount, namespace: Amount, wanted: Headroom
) -> None:
    assert remaining_headroom(LIMITS, step=step, trial=trial, namespace=namespace) == wanted


def test_amounts_add_up() -> None:
    assert total_amount([Amount(1, 2), Amount(3, 4)]) == Amount(4, 6)
    assert Amount(3, 4) - Amount(1, 2) == Amount(2, 2)


def test_a_huge_file_displaces_no_small_one() -> None:
    huge, large, small = LargeFile(2, "x", 3 * 2**30), LargeFile(3, "y", 90), LargeFile(0, "z", 20)
    assert too_large([huge, large, small], Headroom(100, 10)) == (large, huge)
    assert too_large([], Headroom(0, 0)) == ()
    assert Headroom(6400, 10).survey_bytes == 101


def test_bytes_and_files_are_refused_beyond_the_room_and_the_limit_is_named() -> None:
    filling = Filling(Headroom(100, 3, "trial", "namespace"))
    assert filling.refuse("artifacts/a", 60) == ""
    assert filling.refuse("artifacts/b", 50) == "its 50 bytes exceed what is left of the trial's results limit"
    assert filling.refuse("artifacts/c", 40) == "" and filling.refuse("artifacts/d", 0) == ""
    assert filling.refuse("artifacts/e", 0) == "more files than the namespace's results limit"
    assert filling.used == Amount(100, 3)


def test_files_that_only_other_trials_displace_are_told_from_those_that_never_fit() -> None:
    small, large, huge = files = [LargeFile(1, name, size, binary=True) for name, size in (("s", 10), ("l", 60), ("h", 200))]
    assert crowded_out(files, Headroom(20, 10), Headroom(100, 10)) == (large,)
    assert crowded_out(files, Headroom(0, 10), Headroom(100, 10)) == (small, large)
    assert (
        crowded_out(files, Headroom(0, 10), Headroom(0, 10)) == ()
        and crowded_out([huge], Headroom(300, 10), Headroom(300, 10)) == ()
    )


def test_a_reward_always_fits_but_not_one_that_no_reward_is_as_large_as() -> None:
    filling = Filling(Headroom(0, 0))
    assert filling.refuse("verifier/reward.json", 12) == "" and filling.refuse("verifier/reward.txt", 64 * 1024) == ""
    assert filling.refuse("verifier/reward.json", 100 * 2**30) != ""
    assert filling.refuse("agent/verifier/reward.txt", 1) != ""


def test_the_agents_logs_take_half_of_the_room_at_most() -> None:
    filling = Filling(Headroom(100, 10))
    assert filling.refuse("agent/log", 50) == "" and filling.refuse("agent/more", 1) != ""
    assert filling.refuse("verifier/test-stdout.txt", 50) == ""


def test_what_is_incomplete_is_named_by_source_without_the_agents_file_names() -> None:
    one, cut, whole = IncompleteSource(), IncompleteSource(whole_reason="cut off: it took longer than 300 s"), IncompleteSource()
    one.add("secret-name", "its 5 bytes are too many", "left out")
    one.add("other", "changed")
    one.add("third", "changed")
    assert one and cut and not whole
    assert incomplete_lines(["/a", "/b", "/c"], [one, cut, whole]) == (
        "/a: 1 file: left out; 2 files: changed",
        "/b: cut off: it took longer than 300 s",
    )
    assert one.entries()[0] == {"path": "secret-name", "reason": "its 5 bytes are too many"}
    assert cut.entries() == [{"path": "", "reason": "cut off: it took longer than 300 s"}]


def test_a_bounded_number_of_files_is_named_and_all_are_counted() -> None:
    many = IncompleteSource()
    for number in range(3 * MAX_NAMED):
        many.add(str(number), "changed")
    assert len(many.entries()) == MAX_NAMED and many.summary("/a") == f"/a: {3 * MAX_NAMED} files: changed"
