"""JSON, CSV and Parquet files contain the same data, and reading them returns the original values."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from multistep.report.files import csv_text, json_text, parquet_bytes, report_json
from multistep.report.rows import trial_row
from multistep.report.summary import ReportedSweep, summarize
from tests.unit.report.samples import step, sweep, trial, used

ABOUT = ReportedSweep("nightly", "evals", datetime(2026, 1, 2, tzinfo=UTC), planned=4, phase="Running")
ROWS = [
    trial_row(trial('t,"1"\n', reward=0.25, steps=[step("a", 0.25, seconds={"agent": 1.5})])),
    trial_row(trial("b", ended="Failed", failure=("Infrastructure", "NodeLost"))),
    trial_row(trial("c", ended=None)),
]


def test_json_holds_all_of_the_report() -> None:
    rows = sweep({("a", "x"): [1.0, "Infrastructure"], ("a", "y"): [0.0]})
    found = json.loads(json_text(report_json(ABOUT, summarize(rows))))
    assert (found["sweep"], found["namespace"], found["planned"], found["read"]) == (
        "nightly", "evals", 4, "2026-01-02T00:00:00+00:00",
    )  # fmt: skip
    assert [(each["agent"], each["mean"]["value"], each["excluded"]) for each in found["agents"]] == [
        ("x", 1.0, {"Infrastructure": 1}),
        ("y", 0.0, {}),
    ]
    assert [(each["first"], each["second"], each["is_real"]) for each in found["differences"]] == [("x", "y", False)]
    assert found["failures"] == [{"failure_class": "Infrastructure", "reason": "InfrastructureReason", "trials": ["s-a-x-2"]}]
    assert [each["trial"] for each in found["trials"]] == ["s-a-x-1", "s-a-x-2", "s-a-y-1"]


def test_csv_has_a_line_for_each_trial_and_leaves_empty_what_is_not_known() -> None:
    first, second, third = csv.DictReader(io.StringIO(csv_text(ROWS)))
    assert (first["task"], first["rewards"], first["counts"]) == ('t,"1"\n', '{"reward": 0.25}', "0.25")
    assert (first["outcome"], first["passed"], first["how"]) == ("NotPassed", "False", "a 0.25")
    assert json.loads(first["steps"]) == [
        {
            "name": "a",
            "rewards": {"reward": 0.25},
            "score": 0.25,
            "passed": False,
            "exception": "",
            "message": "",
            "seconds": {"agent": 1.5},
        }
    ]
    assert (second["state"], second["rewards"], second["counts"], second["outcome"]) == ("Failed", "", "", "Excluded")
    assert second["failure_class"] == "Infrastructure"
    assert (third["state"], third["seconds"]) == ("Active", "")


def test_each_file_has_the_requests_that_are_in_no_tokens_and_no_cost() -> None:
    rows = [trial_row(trial(attempt=n, reward=1.0, steps=[step("a", 1.0, usage=used(0.5, incomplete=n))])) for n in (0, 1, 2)]
    rows.append(trial_row(trial("other", reward=1.0)))
    found = report_json(ABOUT, summarize(rows))
    assert [each["incomplete_requests"] for each in found["trials"]] == [0, 1, 2, None]
    assert [each["incomplete_requests"] for each in found["agents"]] == [3]
    assert [each["incomplete_requests"] for each in csv.DictReader(io.StringIO(csv_text(rows)))] == ["0", "1", "2", ""]
    assert pq.read_table(pa.BufferReader(parquet_bytes(rows)))["incomplete_requests"].to_pylist() == [0, 1, 2, None]


@pytest.mark.parametrize(
    "name",
    [
        '=HYPERLINK("http://evil/")',
        "+1",
        "-1+2",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "\n=1",
        "\uff1d1",
        "\uff0b1",
        "\uff0d1",
        "\uff20SUM(A1)",
    ],
)
def test_a_name_that_is_a_formula_is_text_for_a_spreadsheet_and_numbers_stay_numbers(name: str) -> None:
    made = trial_row(trial(name, name, reward=-0.5, steps=[step(name, -0.5)]))
    (found,) = csv.DictReader(io.StringIO(csv_text([made]), newline=""))
    assert (found["task"], found["agent"]) == (f"'{name}", f"'{name}")
    assert found["trial"] == f"s-{name}-{name}-1"
    assert (json.loads(found["rewards"]), float(found["counts"])) == ({"reward": -0.5}, -0.5)
    assert json.loads(found["steps"])[0]["name"] == name


def test_parquet_has_the_same_columns_and_types_even_when_empty() -> None:
    whole, empty = (pq.read_table(pa.BufferReader(parquet_bytes(rows))) for rows in (ROWS, []))
    assert whole.schema == empty.schema
    assert whole.column_names == csv_text([]).strip().split(",")
    first, second, _ = whole.to_pylist()
    assert (first["counts"], first["steps"][0]["seconds"]["agent"], first["steps"][0]["seconds"]["verifier"]) == (0.25, 1.5, None)
    assert (first["rewards"], first["steps"][0]["rewards"]) == ([("reward", 0.25)], [("reward", 0.25)])
    assert (second["counts"], second["reason"]) == (None, "NodeLost")
