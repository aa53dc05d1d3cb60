"""Test `multistep history` with an in-memory cluster whose results server is behind the API's proxy."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from multistep.api.common.history_address import config_map
from multistep.client.results import sync_history
from tests.unit.cli.conftest import Invoke
from tests.unit.cli.fakes import CliCluster
from tests.unit.report.test_history import HOSTILE, scored

URL = "service://multistep/multistep-operator:8080/history/default/token"
PATH = "/api/v1/namespaces/multistep/services/multistep-operator:8080/proxy/history/default/token"


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def serve(cluster: CliCluster, packs: dict[str, tuple[str, bytes]], opened: bytes = b"") -> None:
    """Serve a history. packs: version and lines by name."""
    address = config_map("default", URL)
    cluster.objects["ConfigMap", address["metadata"]["name"]] = address
    listed = [{"name": name, "version": version, "size": 1} for name, (version, _) in packs.items()]
    cluster.served[PATH] = json.dumps(listed).encode()
    cluster.served[f"{PATH}/open"] = opened
    for name, (_, lines) in packs.items():
        cluster.served[f"{PATH}/packs/{name.replace('=', '%3D')}"] = gzip.compress(lines)


def line(uid: str, score: float = 1.0, namespace: str = "default", **fields: object) -> bytes:
    return scored(uid, score, namespace=namespace, **fields)


def test_the_leaderboard_has_packed_and_open_trials_of_the_namespace(invoke: Invoke, cluster: CliCluster) -> None:
    serve(cluster, {"date=2026-11-30/s-0.jsonl.gz": ("1", line("a") + line("c", namespace="other"))}, line("b", 0.0))
    result = invoke("history", "-o", "json")
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)
    assert (found["agent"], found["trials"], found["score"]) == ("claude", 2, 0.5)
    (found,) = json.loads(invoke("history", "-A", "-o", "json").stdout)
    assert found["trials"] == 3


def test_only_changed_packs_are_read_again(invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_history, "_AT_ONCE", 1)
    serve(cluster, {"date=1/a-0.jsonl.gz": ("1", line("a")), "date=1/b-0.jsonl.gz": ("1", line("b"))})
    invoke("history")
    serve(cluster, {"date=1/a-0.jsonl.gz": ("1", b"not read"), "date=1/b-0.jsonl.gz": ("2", line("b") + line("c"))})
    found = invoke("history", "--sql", "SELECT string_agg(uid, '' ORDER BY uid) AS uids FROM trials", "-o", "json")
    assert json.loads(found.stdout) == [{"uids": "abc"}]


def test_the_history_outlives_its_operator_on_this_machine(invoke: Invoke, cluster: CliCluster) -> None:
    serve(cluster, {"date=1/a-0.jsonl.gz": ("1", line("a"))})
    invoke("history")
    cluster.served.clear()
    result = invoke("history")
    assert "claude" in result.stdout
    assert "nothing answers at its address" in result.stderr
    assert "warning" not in invoke("history", "--offline").stderr


def test_a_broken_server_is_a_warning(invoke: Invoke, cluster: CliCluster) -> None:
    serve(cluster, {})
    cluster.served[PATH] = b"<html>"
    assert "list of the history's packs is invalid" in invoke("history").stderr
    cluster.served[PATH] = b"[]"
    assert invoke("history").stdout == "no trials\n"


@pytest.mark.parametrize("question", ["leaderboard", "trends", "regressions", "costs"])
@pytest.mark.parametrize("output", ["table", "csv", "json"])
def test_hostile_texts_are_printed_without_effect(invoke: Invoke, cluster: CliCluster, question: str, output: str) -> None:
    versions = [line(f"u{n}", agent=HOSTILE, agent_version=str(n), task=HOSTILE, model=HOSTILE) for n in (1, 2)]
    serve(cluster, {}, b"".join(versions))
    result = invoke("history", question, "-o", output)
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.stdout
    assert output != "csv" or "\n=" not in result.stdout


def test_sql_values_have_a_form_in_each_output(invoke: Invoke, cluster: CliCluster) -> None:
    serve(cluster, {}, line("a"))
    query = "SELECT date, started, rewards, steps, passed, NULL AS nothing, 'NaN'::DOUBLE AS n, 1.5::DECIMAL(3,1) AS d FROM trials"
    (found,) = json.loads(invoke("history", "--sql", query, "-o", "json").stdout)
    assert (found["date"], found["started"], found["n"], found["d"]) == ("2026-11-30", "2026-11-30T23:30:00", None, "1.5")
    assert found["steps"][0]["rewards"] == {"reward": 0.5, "style": 1.0}
    assert invoke("history", "--sql", query, "-o", "csv").stdout.count("\n") == 2
    assert "2026-11-30" in invoke("history", "--sql", query).stdout


def test_rows_are_exported_as_parquet_or_for_psql(invoke: Invoke, cluster: CliCluster, tmp_path: Path) -> None:
    serve(cluster, {}, line("a") + line("b", task="other"))
    assert invoke("history", "--parquet", tmp_path / "out").exit_code == 0
    assert list((tmp_path / "out" / "namespace=default").rglob("*.parquet"))
    text = invoke("history", "--postgres", "--task", "other").stdout
    assert "CREATE TABLE IF NOT EXISTS multistep_trials" in text
    assert "\nb\tdefault\t2026-11-30\t" in text
    assert "\na\t" not in text


def test_one_output_at_a_time(invoke: Invoke, cluster: CliCluster, tmp_path: Path) -> None:
    assert invoke("history", "--postgres", "--parquet", tmp_path / "out").exit_code == 2


def test_missing_packages_are_named(invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multistep.cli.history.find_spec", lambda name: None if name == "duckdb" else name)
    result = invoke("history")
    assert (result.exit_code, "multistep[history]" in result.stderr) == (2, True)
