"""The rows of the history, its local copy, and the questions to it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from multistep.api.sweep.sweep import Scoring
from multistep.api.trial.trial import parse_status
from multistep.errors import StoreError, UsageError
from multistep.report.history_database import HistoryDatabase
from multistep.report.history_postgres import script
from multistep.report.history_questions import Filters, costs, leaderboard, regressions, trends
from multistep.report.history_row import MAX_BYTES, TYPES, SweepOrigin, history_row, line_of
from tests.bench import history as bench

START, END = "2026-11-30T23:30:00Z", "2026-12-01T00:10:00Z"
HOSTILE = "=cmd|'\"\\\t\n\r\0\x1b[31m</script>'; DROP TABLE trials; --\ud800 ü"


def trial(step: Mapping[str, Any] | None = None, agent: Mapping[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    """Return a finished trial of a sweep."""
    done = {"type": "Complete", "status": "True", "reason": "Done", "message": "ran", "lastTransitionTime": END}
    owner = {
        "apiVersion": "multistep.dev/v1alpha1",
        "kind": "TrialSweep",
        "name": "nightly",
        "uid": "sweep-uid",
        "controller": True,
    }
    return {
        "metadata": {
            "name": "nightly-3",
            "namespace": "evals",
            "uid": "trial-uid",
            "creationTimestamp": START,
            "labels": {"team": "blue", "multistep.dev/number": "3"},
            "annotations": {"multistep.dev/task": "hello", "multistep.dev/agent": "claude"},
            "ownerReferences": [owner],
        },
        "spec": {"agent": {"name": "claude-code", "model": "anthropic/claude", **(agent or {})}},
        "status": {
            "phase": "Complete",
            "conditions": [done],
            "startTime": START,
            "completionTime": END,
            "imageID": "image@sha256:1",
            "steps": [{"name": "a", "rewards": {"reward": 0.5, "style": 1}, "score": 0.5, "passed": False, **(step or {})}],
            "rewards": {"reward": 0.5},
            "score": 0.5,
            "passed": False,
            "outcome": "NotPassed",
            "scoreRule": {"steps": 1, "strategy": "Mean"},
            "usage": {"source": "Gateway", "inputTokens": 7, "outputTokens": 5, "costUSD": 0.25},
            **status,
        },
    }


def row(found: Mapping[str, Any], origin: SweepOrigin | None = None, version: str = "2.1") -> dict[str, Any]:
    return history_row(found, parse_status(found), origin or SweepOrigin(dataset="bench@1"), version)


def test_a_row_has_what_led_to_the_result() -> None:
    found = row(trial())
    assert list(found) == list(TYPES)
    assert {name: found[name] for name in ("date", "started", "finished", "seconds")} == {
        "date": "2026-11-30",
        "started": "2026-11-30T23:30:00",
        "finished": "2026-12-01T00:10:00",
        "seconds": 2400.0,
    }
    assert (found["sweep"], found["number"], found["dataset"], found["image"]) == ("nightly", 3, "bench@1", "image@sha256:1")
    assert (found["agent"], found["program"], found["agent_version"], found["model"], found["harbor_version"]) == (
        *("claude", "claude-code", "2.1", "anthropic/claude", "0.26"),
    )
    assert (found["score"], found["outcome"], found["input_tokens"], found["cost_usd"]) == (0.5, "NotPassed", 7, 0.25)
    assert found["labels"] == {"team": "blue"}


def test_a_row_has_the_score_of_its_sweeps_scoring() -> None:
    assert row(trial(), SweepOrigin(Scoring(key="style")))["score"] == 1.0


def test_an_agent_of_multistep_has_its_version_and_none_of_harbor() -> None:
    found = row(trial(agent={"name": "oracle"}), version="")
    assert found["agent_version"] == found["multistep_version"]
    assert found["harbor_version"] == ""


def test_a_regrade_has_the_agent_of_its_source() -> None:
    agent = {"name": "claude-code", "version": "1.9", "model": "anthropic/former"}
    found = trial(agent={"name": "oracle"}, regraded={"trial": "first", "uid": "first-uid", "agent": agent})
    found["spec"]["regrade"] = {"trial": "first"}
    del found["metadata"]["annotations"]["multistep.dev/agent"]
    known = row(found)
    assert (known["regrade_of"], known["agent_version"], known["model"]) == ("first", "1.9", "anthropic/former")
    assert (known["agent"], known["program"], known["harbor_version"]) == ("claude-code", "claude-code", "0.26")


def test_a_trial_that_never_started_is_a_row_on_the_day_of_its_end() -> None:
    failed = {"type": "Failed", "status": "True", "reason": "InvalidSpec", "message": "bad", "lastTransitionTime": END}
    found = trial() | {"spec": {}, "status": {"phase": "Failed", "conditions": [failed], "completionTime": END}}
    del found["metadata"]["creationTimestamp"]
    assert (row(found)["date"], row(found)["state"], row(found)["score"]) == ("2026-12-01", "Failed", None)


def test_texts_and_numbers_of_agents_stay_within_what_every_reader_accepts(tmp_path: Path) -> None:
    """A line that a reader rejects would hide all lines of its pack."""
    hostile = trial(
        {"name": HOSTILE, "rewards": {HOSTILE: 1, "x" * 5000: 10**400}},
        usage={"source": "Agent", "inputTokens": 10**30, "outputTokens": 1, "costUSD": 1e308},
        attempts=[{"number": 1, "steps": []}],
    )
    hostile["metadata"]["annotations"]["multistep.dev/task"] = HOSTILE
    line = line_of(row(hostile))
    assert json.loads(line)["input_tokens"] == 2**63 - 1
    found = copy(tmp_path, [line, line_of(row(trial()) | {"uid": "honest"})])
    _, tasks = found.query("SELECT task, len(steps) FROM trials ORDER BY uid")
    assert tasks == [("hello", 1), (HOSTILE.replace("\0", "\ufffd").replace("\ud800", "?"), 1)]


def test_a_row_that_is_too_large_loses_its_details_only() -> None:
    steps = [{"name": f"step-{number}", "rewards": {"reward": 1}, "score": 1.0, "passed": True} for number in range(900)]
    line = line_of(row(trial(steps=steps)))
    assert len(line) <= MAX_BYTES
    assert (json.loads(line)["steps"], json.loads(line)["score"]) == (None, 0.5)


def copy(directory: Path, lines: list[bytes], opened: bytes = b"") -> HistoryDatabase:
    """Return a local copy with one pack and open lines."""
    database = HistoryDatabase(directory / "history")
    database.update("ns/source", (), {"pack": ("1", gzip.compress(b"".join(lines)))}, opened)
    return database


def scored(uid: str, score: float | None, **fields: Any) -> bytes:
    base = row(trial()) | {"uid": uid, "score": score, "passed": None if score is None else score == 1}
    return line_of(base | fields)


def count(database: HistoryDatabase) -> int:
    return int(database.query("SELECT count(*) FROM trials")[1][0][0])


def test_a_trial_in_two_packs_counts_once_and_its_open_line_wins(tmp_path: Path) -> None:
    database = copy(tmp_path, [scored("a", 0.0), scored("b", 0.0)], scored("a", 1.0))
    database.update("ns/other", (), {"pack": ("1", gzip.compress(scored("b", 0.0)))}, b"")
    assert database.query("SELECT uid, score FROM trials ORDER BY uid")[1] == [("a", 1.0), ("b", 0.0)]
    database.update("ns/source", (), {}, b"")  # the operator packed the line without a change of the pack
    assert database.query("SELECT uid, score FROM trials ORDER BY uid")[1] == [("a", 0.0), ("b", 0.0)]


def test_changed_packs_are_replaced_and_deleted_ones_leave_the_copy(tmp_path: Path) -> None:
    database = copy(tmp_path, [scored("a", 0.0)])
    assert database.versions("ns/source") == {"pack": "1"}
    database.update("ns/source", (), {"pack": ("2", gzip.compress(scored("a", 1.0) + scored("b", 1.0)))}, b"")
    assert (count(database), database.versions("ns/source")) == (2, {"pack": "2"})
    database.update("ns/source", ["pack"], {}, b"")
    assert (count(database), database.versions("ns/source")) == (0, {})


def test_a_damaged_line_hides_no_other_one(tmp_path: Path) -> None:
    assert count(copy(tmp_path, [scored("a", 1.0), b'{"uid": \n', b"[]\n", scored("b", 1.0)])) == 2


@pytest.mark.parametrize(
    ("pack", "why"), [(gzip.compress(b"0" * (1 << 20)) * 200, "more than"), (b"damaged", "damaged")], ids=["large", "damaged"]
)
def test_a_pack_that_cannot_be_unpacked_in_bounded_space_is_refused_and_changes_nothing(
    tmp_path: Path, pack: bytes, why: str
) -> None:
    database = copy(tmp_path, [scored("a", 0.0)])
    with pytest.raises(StoreError, match=why):
        database.update("ns/source", ["pack"], {"other": ("1", pack)}, b"")
    assert (count(database), database.versions("ns/source")) == (1, {"pack": "1"})


def test_the_leaderboard_averages_tasks_and_leaves_out_excluded_trials(tmp_path: Path) -> None:
    lines = [
        *(scored(f"x{number}", 1.0, task="one") for number in range(3)),
        scored("y", 0.0, task="two"),
        scored("z", None, task="two", cost_usd=1.0),
        scored("other", 1.0, agent="codex", agent_version="9"),
        scored("branch", 0.0, branch="Start"),
        scored("regrade", 0.0, regrade_of="x0"),
    ]
    first, second = leaderboard(copy(tmp_path, lines), Filters())
    assert (first["agent"], first["version"], first["score"]) == ("codex", "9", 1.0)
    assert {name: second[name] for name in ("score", "passed", "tasks", "trials", "excluded", "cost_usd")} == {
        "score": 0.5,
        "passed": 0.5,
        "tasks": 2,
        "trials": 4,
        "excluded": 1,
        "cost_usd": 2.0,
    }


def test_filters_are_data(tmp_path: Path) -> None:
    database = copy(tmp_path, [scored("a", 1.0), scored("b", 1.0, task=HOSTILE[:20])])
    assert [each["tasks"] for each in leaderboard(database, Filters(task=HOSTILE[:20]))] == [1]
    assert leaderboard(database, Filters(task="' OR 1=1 --")) == []
    assert leaderboard(database, Filters(since="2026-12-01")) == []
    with pytest.raises(UsageError, match="tomorrow"):
        leaderboard(database, Filters(since="tomorrow"))


def test_a_regression_compares_the_two_newest_versions_over_their_common_tasks(tmp_path: Path) -> None:
    lines = [
        scored(f"{version}-{task}", score, task=f"t{task}", agent_version=version, finished=f"2026-11-0{day}T00:00:00")
        for day, (version, score) in enumerate([("1", 0.0), ("2", 1.0), ("3", 0.5)], start=1)
        for task in range(8)
    ]
    lines.append(scored("new", 1.0, task="only-new", agent_version="3"))
    (found,) = regressions(copy(tmp_path, lines), Filters())
    assert (found["former"], found["version"], found["difference"], found["tasks"], found["significant"]) == (
        "2",
        "3",
        -0.5,
        8,
        True,
    )
    assert found["worst_tasks"] == ["t0 -0.5", "t1 -0.5", "t2 -0.5"]


def test_one_version_is_no_regression(tmp_path: Path) -> None:
    assert regressions(copy(tmp_path, [scored("a", 1.0)]), Filters()) == []


def test_trends_have_a_row_per_period_and_agent(tmp_path: Path) -> None:
    lines = [scored("a", 1.0), scored("b", 0.0, task="two"), scored("c", None), scored("d", 1.0, date="2026-10-01")]
    former, now = trends(copy(tmp_path, lines), Filters(), "month")
    assert (former["period"], now["period"]) == ("2026-10-01", "2026-11-01")
    assert (now["score"], now["tasks"], now["trials"], now["excluded"], now["seconds"]) == (0.5, 2, 2, 1, 2400.0)


def test_costs_are_by_namespace_or_label_and_count_branches_and_unknown_prices(tmp_path: Path) -> None:
    lines = [scored("a", 1.0), scored("b", 1.0, branch="Own"), scored("c", 1.0, cost_usd=None, labels={})]
    database = copy(tmp_path, lines)
    (found,) = costs(database, Filters(), "month")
    assert (found["team"], found["trials"], found["cost_usd"], found["unpriced"]) == ("evals", 3, 0.5, 1)
    assert [(each["team"], each["trials"]) for each in costs(database, Filters(), "month", "team")] == [("", 1), ("blue", 2)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "COPY trials TO '/tmp/stolen.csv'",
        "DELETE FROM stored",
        "SET enable_external_access = true",
        "ATTACH '/tmp/other.duckdb'",
        "nonsense",
    ],
)
def test_a_query_can_read_and_change_no_file(tmp_path: Path, sql: str) -> None:
    with pytest.raises(UsageError, match="the query failed"):
        copy(tmp_path, [scored("a", 1.0)]).query(sql)


def test_parquet_files_are_partitioned_by_namespace_and_date(tmp_path: Path) -> None:
    copy(tmp_path, [scored("a", 1.0), scored("b", 1.0, namespace="other")]).export(tmp_path / "out", "score = ?", [1.0])
    files = sorted(path.relative_to(tmp_path / "out").parent.as_posix() for path in (tmp_path / "out").rglob("*.parquet"))
    assert files == ["namespace=evals/date=2026-11-30", "namespace=other/date=2026-11-30"]


def test_no_text_ends_the_data_of_the_script_for_psql(tmp_path: Path) -> None:
    database = copy(tmp_path, [scored("a", 1.0, task="\\.\n\\.\nDROP TABLE x;\tü")])
    text = "".join(script(database.rows("true", [])))
    lines = text.split("\n")
    assert lines.count("\\.") == 1
    (data,) = [line for line in lines if line.startswith("a\t")]
    assert len(data.split("\t")) == len(TYPES)
    assert "\\\\.\\n\\\\.\\nDROP TABLE x;\\tü" in data.split("\t")


def test_another_process_that_uses_the_copy_is_named(tmp_path: Path) -> None:
    file = tmp_path / "history"
    (tmp_path / "history.v1.duckdb").write_bytes(b"not a database" * 1000)
    with pytest.raises(UsageError, match=r"history\.v1\.duckdb cannot be opened"):
        HistoryDatabase(file)


def test_the_bench_answers_each_question(tmp_path: Path) -> None:
    cost = bench.measure(12_000, tmp_path)
    assert len(cost.seconds) == 13
    assert bench.table(cost).row_count == 13
