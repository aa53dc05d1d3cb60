"""The HTML report: it has the summary's results, its links lead to their targets, and it loads no external resource."""

from __future__ import annotations

from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest

from multistep.report.excerpts import Excerpts, FailingTest
from multistep.report.html_page import dollars_text, number_text, p_value_text, report_page, seconds_text, signed_text
from multistep.report.rows import TrialRow, trial_row
from multistep.report.summary import ReportedSweep, summarize
from tests.unit.report.samples import step, sweep, trial, used

_VOID = {"meta", "link", "br", "input"}


class Document(HTMLParser):
    """A parsed HTML page: its elements, which must be closed in order, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text = " ".join(f"{self.text} {data}".split())

    def count(self, tag: str) -> int:
        return [each for each, _ in self.elements].count(tag)

    def all(self, attribute: str) -> list[str]:
        return [value for _, attributes in self.elements if (value := attributes.get(attribute))]


def made(rows: list[TrialRow], planned: int | None = 8) -> Document:
    return Document(
        report_page(ReportedSweep("nightly", "evals", datetime(2026, 1, 2, tzinfo=UTC), planned, "Running"), summarize(rows))
    )


ROWS = sweep(
    {
        ("a", "good"): [1.0, 1.0, "Infrastructure"],
        ("a", "poor"): [0.0, "Agent", None],
        ("b", "good"): [0.5],
        ("b", "poor"): [0.25],
    }
)


def test_the_page_shows_means_intervals_losses_and_failures() -> None:
    text = made(ROWS).text
    assert "good 0.750 0.000 to 1.000 3 of 4 trials 2 of 2 tasks 1 Infrastructure mean if 0: 0.583 0" in text
    assert "poor 0.125 0.000 to 1.000 3 of 4 trials 2 of 2 tasks 1 not finished 0 1 Agent" in text
    assert "Infrastructure: InfrastructureReason – 1 trial" in text
    assert "8 of 8 trials 1 not finished 1 excluded as of 2026-01-02 00:00 UTC" in text
    assert "25% of the finished trials of good are excluded, but 0% of poor's" in text
    assert "multistep logs -n evals s-a-good-3" in text


def test_pass_at_k_has_a_table_of_its_own_so_that_the_page_is_wide_enough_for_both() -> None:
    rows = sweep({(task, "good"): [1.0, 0.0, 1.0, 0.0] for task in "ab"})
    text = made(rows).text
    assert "Excluded trials Scored failures Tampering good 0.500" in text
    assert "Agent pass@1 pass@2 pass@4 good 0.500" in text


def test_the_page_marks_trials_with_evidence_of_tampering() -> None:
    evidence = [{"attempt": 1, "step": "a", "kind": "TestHook", "detail": "/conftest.py"}]
    text = made([trial_row(trial(reward=1.0, tampering=evidence))]).text
    assert "passed evidence of tampering: TestHook" in text and "1 of 1 trials of mine have evidence of tampering" in text


def test_links_lead_somewhere_and_no_name_is_used_twice() -> None:
    document = made(ROWS)
    names = document.all("id")
    assert len(names) == len(set(names))
    assert {each.removeprefix("#") for each in document.all("href") if each.startswith("#")} <= set(names)
    assert set(document.all("aria-labelledby")) <= set(names)


def test_the_page_needs_nothing_from_elsewhere() -> None:
    document = made(ROWS)
    tags = [tag for tag, _ in document.elements]
    assert not {"img", "iframe", "object"} & set(tags) and tags.count("script") == 1
    assert not any(attributes for tag, attributes in document.elements if tag == "script")
    assert {each for each in (*document.all("href"), *document.all("src")) if not each.startswith("#")} == {"data:,"}


def test_what_can_be_scrolled_can_be_reached_by_key_and_has_a_name() -> None:
    wide = [attributes for _, attributes in made(ROWS).elements if attributes.get("class") == "wide"]
    assert len(wide) >= 5
    for each in wide:
        assert (each["tabindex"], each["role"]) == ("0", "region")
        assert each.get("aria-labelledby") or each.get("aria-label")


def test_every_heading_cell_shows_what_it_heads() -> None:
    assert all(attributes.get("scope") for tag, attributes in made(ROWS).elements if tag == "th")


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", "\"'><b>", "</style></title>{{ 7 * 7 }}"])
def test_names_are_text_whatever_is_in_them(hostile: str) -> None:
    document = made([trial_row(trial(hostile, hostile, reward=1.0, steps=[step(hostile, 1.0)], resultsStore=hostile))])
    assert " ".join(hostile.split()) in document.text
    assert [tag for tag, _ in document.elements].count("script") == 1


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", "</pre></details></table><video>", "{{ 7 * 7 }}", "\"'><video>"])
def test_outputs_and_failing_tests_are_text_that_can_be_folded(hostile: str) -> None:
    failed = trial_row(trial(reward=0.0, steps=[step("one", 0.0)]))
    found = Excerpts(((f"step 1 {hostile}", hostile),), (FailingTest(hostile, hostile, hostile),))
    about = ReportedSweep("nightly", "evals", datetime(2026, 1, 2, tzinfo=UTC), 1, "Complete")
    document = Document(report_page(about, summarize([failed]), {failed.trial: found}))
    assert f"Failing tests {hostile} {hostile} {hostile} step 1 {hostile} {hostile}" in document.text
    assert [tag for tag, _ in document.elements].count("script") == 1 and "video" not in [tag for tag, _ in document.elements]
    plain = made([failed])
    assert [tag for tag, _ in document.elements].count("details") == [tag for tag, _ in plain.elements].count("details") + 1


def priced(agent: str, *, incomplete: int = 0) -> list[TrialRow]:
    steps = [step("a", 1.0, usage=used(0.02, incomplete=incomplete))]
    return [trial_row(trial(task, agent, reward=1.0, steps=steps)) for task in ("t", "u")]


def test_the_page_has_a_picture_of_score_against_cost_for_eyes_and_screen_readers() -> None:
    document = made([*priced("mine"), *priced("open", incomplete=3), *sweep({("t", "free"): [1.0]})])
    tags = [tag for tag, _ in document.elements]
    assert (tags.count("svg"), tags.count("circle"), tags.count("script")) == (1, 2, 1)
    (named,) = [attributes for tag, attributes in document.elements if tag == "svg"]
    assert (named["role"], named["aria-labelledby"]) == ("img", "costs-name costs-numbers")
    assert {"costs", "costs-name", "costs-numbers"} <= set(document.all("id")) and "#costs" in document.all("href")
    assert "mine: cost $0.0200, mean score 1.000, 95 % interval 0.158 to 1.000" in document.text
    assert "open: cost $0.0200, without 6 requests of unknown usage, mean score" in document.text
    assert "as cost or mean are unknown: free." in document.text
    assert [attributes.get("class") for tag, attributes in document.elements if tag == "circle"] == [None, "open"]


def test_a_page_without_costs_has_no_such_picture() -> None:
    document = made(ROWS)
    assert "svg" not in [tag for tag, _ in document.elements] and "#costs" not in document.all("href")


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", "\"'><b>", "</svg></title>{{ 7 * 7 }}"])
def test_names_in_the_picture_are_text(hostile: str) -> None:
    document = made(priced(hostile))
    tags = [tag for tag, _ in document.elements]
    assert (tags.count("script"), tags.count("svg"), tags.count("b")) == (1, 1, made(priced("mine")).count("b"))
    assert f"{hostile}: cost $0.0200" in document.text


def test_the_page_says_which_costs_are_a_lower_bound() -> None:
    text = made([*priced("mine", incomplete=1), *priced("exact")]).text
    assert "mine $0.0400 without 2 requests of unknown usage $0.0200 per scored trial" in text
    assert "≥ $0.0200" in text and "A cost with ≥ is a lower bound: without requests of unknown usage." in text
    assert "$0.0200, without 1 request of unknown usage, counted by the gateway" in text
    assert "of unknown usage" not in made(priced("exact")).text and "≥" not in made(priced("exact")).text


def test_a_sweep_without_trials_has_a_page() -> None:
    text = made([], planned=None).text
    assert "0 trials" in text and "The sweep has no trials." in text


def test_rewards_beyond_nought_and_one_widen_the_axis() -> None:
    assert "-2.000 to 3.000" in made(sweep({("a", "x"): [-2.0], ("a", "y"): [3.0]})).text


def test_numbers_are_as_people_read_them() -> None:
    assert [number_text(each) for each in (None, 0.12345, 12, 1.5e9)] == ["-", "0.123", "12.000", "1.5e+09"]
    assert [number_text(each) for each in (-0.0, -0.0004, -0.0006)] == ["0.000", "0.000", "-0.001"]
    assert [signed_text(each) for each in (0.5, 0.0, -0.0004, -0.25, 1e100)] == [
        "+0.500",
        "+0.000",
        "+0.000",
        "-0.250",
        "+1e+100",
    ]
    assert [dollars_text(each) for each in (None, 0.0, 0.004, 0.1, 1234.5)] == ["-", "$0.00", "$0.0040", "$0.10", "$1234.50"]
    assert [p_value_text(each) for each in (None, 0.0001, 0.0312)] == ["-", "< 0.001", "0.031"]
    assert [seconds_text(each) for each in (None, 0.44, 9.96, 12.4, 59.6, 200, 7500)] == [
        "-", "0.4 s", "10 s", "12 s", "1 min 0 s", "3 min 20 s", "2 h 5 min",
    ]  # fmt: skip
