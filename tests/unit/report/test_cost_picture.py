"""The picture of mean score against cost: one mark for each agent with a cost, on axes with round numbers."""

from __future__ import annotations

import pytest

from multistep.report.cost_picture import CostPicture, cost_picture
from multistep.report.statistics import Estimate
from multistep.report.summary import LeaderboardRow


def standing(
    agent: str, cost: float | None, score: float | None = 0.5, low: float | None = None, high: float | None = None
) -> LeaderboardRow:
    mean = None if score is None else Estimate(score, low, high, 4, 8)
    counts = {"trials": 8, "active": 0, "counted": 8, "tasks": 4}
    return LeaderboardRow(
        agent, mean, {}, **counts, excluded={}, scored_failures={}, mean_if_excluded_zero=None, cost_per_trial=cost
    )


def picture(*standings: LeaderboardRow) -> CostPicture:
    found = cost_picture(standings)
    assert found is not None
    return found


def test_no_agent_with_a_cost_and_a_mean_is_no_picture() -> None:
    assert cost_picture([]) is None
    assert cost_picture([standing("a", None), standing("b", 1.0, None)]) is None


def test_marks_are_where_the_axes_have_their_numbers_and_agents_without_a_cost_have_none() -> None:
    found = picture(standing("dear", 0.4, 0.5, 0.25, 1.0), standing("cheap", 0.1, 0.0), standing("free", None))
    assert [text for _, text in found.across.numbers()] == ["0.0", "0.1", "0.2", "0.3", "0.4"]
    assert [text for _, text in found.up.numbers()] == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    dear, cheap = found.marks
    across, up = ({text: at for at, text in axis.numbers()} for axis in (found.across, found.up))
    assert (dear.x, cheap.x, cheap.y, dear.high) == (across["0.4"], across["0.1"], up["0.0"], up["1.0"])
    assert dear.low is not None and dear.high is not None and dear.high < dear.y < dear.low < cheap.y
    assert (cheap.low, cheap.high, found.absent) == (None, None, ["free"])


@pytest.mark.parametrize(
    ("costs", "first", "last"),
    [
        ([0.0, 0.0], "0.00000", "0.00010"),
        ([1e-300], "0.00000", "0.00010"),
        ([0.00123], "0.0000", "0.0015"),
        ([0.7], "0.0", "0.8"),
        ([12345.0], "0", "15,000"),
        ([3e9], "0", "3e+09"),
        ([-1.0, 2.0], "0.0", "2.0"),
    ],
)
def test_the_axis_of_cost_starts_at_nought_and_has_plain_numbers(costs: list[float], first: str, last: str) -> None:
    found = picture(*(standing(str(index), cost) for index, cost in enumerate(costs)))
    texts = [text for _, text in found.across.numbers()]
    assert (texts[0], texts[-1]) == (first, last) and 4 <= len(texts) <= 8 and len(set(texts)) == len(texts)
    assert all(found.across.start <= each.x <= found.across.end for each in found.marks)


def test_scores_beyond_nought_and_one_widen_the_axis() -> None:
    found = picture(standing("a", 1.0, -2.0), standing("b", 1.0, 3.0), standing("c", 1.0, 1e100, 0.0, 2e100))
    ends = [at for each in found.marks for at in (each.y, each.low, each.high) if at is not None]
    assert len(ends) == 5 and all(found.up.end <= at <= found.up.start for at in ends)


@pytest.mark.parametrize("count", [2, 12])
def test_labels_of_agents_at_the_same_place_do_not_cover_each_other(count: int) -> None:
    found = picture(*(standing(f"agent-{index}", 0.1, 1.0) for index in range(count)))
    labels = [each.label for each in found.marks]
    assert len({(each.x, each.y) for each in labels}) == count
    assert all(abs(one.y - other.y) > 15.9 or one.anchor != other.anchor for one in labels for other in labels if one is not other)


def test_a_label_stays_in_the_picture_and_a_long_one_is_cut() -> None:
    found = picture(standing("a" * 300, 1.0), standing("b" * 20, 0.99), *(standing("c" * 24, 0.5) for _ in range(60)))
    assert found.marks[0].label.anchor == "end" and found.marks[0].label.text == f"{'a' * 23}…"
    assert len(found.marks) == 62
