"""Test the alert rules with promtool: each alert fires if and only if its condition is true."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from multistep.gateway.http.gateway_metrics import GatewayMetrics
from multistep.gateway.pace import Lanes
from multistep.telemetry.metrics import TABLE
from tests.docs import pages

ROOT = Path(__file__).parents[3]
RULES = ROOT / "charts" / "multistep" / "files" / "alerts.yaml"
ALERTS = {each["alert"]: each for group in yaml.safe_load(RULES.read_text())["groups"] for each in group["rules"]}

Series = Mapping[str, str]  # maps a series to its values in promtool's notation, one per minute

IDLE = {"multistep_build_info": "1x120", 'multistep_leading{namespace="s", job="m", pod="a"}': "1x120"}


@dataclass(frozen=True)
class Case:
    """A test of one alert: at `minute`, the alert fires for the series in `fires`, and does not fire for those in `quiet`."""

    fires: Series
    quiet: Series
    minute: int = 60


def restarts(times: str) -> Series:
    """Return the start times of one replica, and of a pod of another program, which restarts always."""
    operator, other = 'namespace="s", job="m", instance="a"', 'namespace="s", job="m", instance="b"'
    starts = {f"process_start_time_seconds{{{operator}}}": times, f"process_start_time_seconds{{{other}}}": "0+1x120"}
    return {**starts, f'multistep_build_info{{{operator}, version="1"}}': "1x120"}


def gateways(leader: str, standby: str) -> Series:
    """Return what two replicas report of the model gateway."""
    return {
        'multistep_gateway_up{namespace="s", job="m", pod="a"}': leader,
        'multistep_gateway_up{namespace="s", job="m", pod="b"}': standby,
    }


def failed_attempts(reason: str, values: str, started: str) -> Series:
    return {
        f'multistep_attempts_failed_total{{reason="{reason}"}}': values,
        'multistep_pod_startup_duration_seconds_count{agent="oracle"}': started,
    }


def failed(outcome: str, class_: str, values: str) -> Series:
    return {f'multistep_trials_finished_total{{outcome="{outcome}", class="{class_}", reason="ImageNotFound"}}': values}


def buckets(name: str, fast: str, slow: str) -> Series:
    """Return a histogram's buckets. fast: count of values up to 0.1 s; slow: count of values up to 30 s."""
    return {f'multistep_{name}_bucket{{le="{le}"}}': values for le, values in (("0.1", fast), ("30", slow), ("+Inf", slow))}


def pending(trials: str, started: str) -> Series:
    return {
        'multistep_trials{phase="Pending"}': trials,
        'multistep_trials{phase="Running"}': "3x120",
        'multistep_pod_startup_duration_seconds_count{agent="oracle"}': started,
    }


def execs(failures: str, all_: str) -> Series:
    return {'multistep_exec_session_failures_total{cause="stream"}': failures, "multistep_exec_sessions_total": all_}


def requests(failures: str, all_: str) -> Series:
    return {
        'multistep_api_requests_total{code="0", verb="get"}': failures,
        'multistep_api_requests_total{code="404", verb="get"}': all_,
    }


CASES = {
    "MultistepDown": Case({"multistep_build_info": "1x40 stale"}, {"multistep_build_info": "1x54 _x3 1x60"}),
    "MultistepNoLeader": Case(
        {f'multistep_leading{{namespace="s", job="m", pod="{each}"}}': "0x120" for each in "ab"},
        {
            'multistep_leading{namespace="s", job="m", pod="a"}': "0x120",
            'multistep_leading{namespace="s", job="m", pod="b"}': "1x120",
        },
    ),
    "MultistepOperatorRestarts": Case(restarts("1 2 3 4 5 5x55"), restarts("1 1 2 2 3 3x55"), minute=30),
    "MultistepGatewayDown": Case(gateways("1 0x119", "0x120"), gateways("1x120", "0x120")),
    "MultistepGatewayLedgerFull": Case(
        {'multistep_gateway_ledger_free_bytes{namespace="s", job="g"}': "1e8x120"},
        {'multistep_gateway_ledger_free_bytes{namespace="s", job="g"}': "1e9x120"},
    ),
    "MultistepAttemptsFailed": Case(
        failed_attempts("Evicted", "0+1x120", "0+2x120"), failed_attempts("Evicted", "0+1x120", "0+20x120")
    ),
    "MultistepInfrastructureFailures": Case(
        failed("Excluded", "Infrastructure", "0+1x120"), failed("Excluded", "Task", "0+1x120"), minute=30
    ),
    "MultistepTrialsStuck": Case(pending("5x120", "7x120"), pending("5x120", "7+0.1x120")),
    "MultistepResultsVolumeFull": Case(
        {'multistep_results_free_bytes{namespace="s", job="m"}': "1e9x120"},
        {
            'multistep_results_free_bytes{namespace="s", job="m", pod="a"}': "2e9x120",
        },
    ),
    "MultistepResultsNotWritable": Case(
        {"multistep_store_failures_total": "0+1x120"}, {"multistep_store_failures_total": "0x20 3x100"}
    ),
    "MultistepWatchMisses": Case(
        {'multistep_missed_watch_events_total{kind="pod"}': "0x30 1x90"},
        {'multistep_missed_watch_events_total{kind="pod"}': "1x120"},
        minute=50,
    ),
    "MultistepExecFailures": Case(execs("0+1x120", "0+5x120"), execs("0+1x120", "0+50x120")),
    "MultistepExecSlow": Case(
        buckets("exec_session_handshake_duration_seconds", "0+8x120", "0+10x120"),
        buckets("exec_session_handshake_duration_seconds", "0+95x120", "0+100x120"),
    ),
    "MultistepAPIThrottled": Case(
        {"multistep_api_throttled_seconds_total": "0+120x120"}, {"multistep_api_throttled_seconds_total": "0+30x120"}
    ),
    "MultistepAPIErrors": Case(requests("0+10x120", "0+90x120"), requests("0+1x120", "0+90x120")),
    "MultistepOverloaded": Case(
        buckets("queue_wait_duration_seconds", "0+8x120", "0+10x120"),
        buckets("queue_wait_duration_seconds", "0+95x120", "0+100x120"),
    ),
    "MultistepUnforeseenErrors": Case(
        {'multistep_reconcile_failures_total{error="Unforeseen"}': "0x30 1x90"},
        {'multistep_reconcile_failures_total{error="StreamLost"}': "0+1x120"},
    ),
}


def test_promtool_takes_the_rules() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", "--lint=all", "--lint-fatal", str(RULES)], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


def test_each_alert_has_a_case_a_severity_a_summary_and_a_runbook() -> None:
    assert CASES.keys() == ALERTS.keys()
    anchors = pages.read(ROOT / "docs/reference/alerts.md").anchors
    for name, rule in ALERTS.items():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["annotations"]["runbook_url"] == f"docs/reference/alerts.md#{name.lower()}" and name.lower() in anchors


def test_each_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    reported = [test for name, case in CASES.items() for test in (question(name, case.fires, case.minute, 1), quiet(name, case))]
    file = tmp_path / "alerts.test.yaml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": reported}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, check=False)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


def quiet(name: str, case: Case) -> object:
    return question(name, case.quiet, case.minute, 0)


def question(name: str, series: Series, minute: int, firing: int) -> object:
    """Return a promtool test: at `minute`, `firing` alerts of this name fire. The input is `series`, and those series of IDLE whose
    metrics do not occur in `series`."""
    own = {each.partition("{")[0] for each in series}
    shown = {each: values for each, values in IDLE.items() if each.partition("{")[0] not in own} | dict(series)
    return {
        "name": f"{name} {'fires' if firing else 'is quiet'}",
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in shown.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}})',
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": "{}", "value": firing}] if firing else [],
            }
        ],
    }


def test_a_case_that_expects_the_contrary_fails(tmp_path: Path) -> None:
    """promtool fails if a test's expectation is wrong, so the tests above can fail."""
    name, case = next(iter(CASES.items()))
    file = tmp_path / "alerts.test.yaml"
    tests = [question(name, case.fires, case.minute, 0)]
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    assert subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, check=False).returncode == 1


@pytest.mark.parametrize("name", ALERTS)
def test_alerts_ask_for_metrics_that_there_are(name: str) -> None:
    known = {each.described.name for each in TABLE}
    known |= {
        f"{each.described.name}{end}"
        for each in TABLE
        if each.described.type == "histogram"
        for end in ("_bucket", "_sum", "_count")
    }
    known |= {each.name for each in GatewayMetrics(Lanes(1), 1, lambda: 0).registry.collect()}
    words = ALERTS[name]["expr"].replace("(", " ").replace("{", " ").replace("[", " ").replace(")", " ").split()
    asked = {each for each in words if each.startswith("multistep_")}
    assert asked and asked <= known
