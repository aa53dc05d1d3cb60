"""Test that docs/reference/security.md lists the operator's RBAC rights, and that audit logs are parsed correctly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.rights import ACCOUNT, ROOT, Right, documented, granted, requested

OPTIONAL = {
    "trials.egress=NetworkPolicy": {
        Right("networking.k8s.io", "networkpolicies", "get"),
        Right("networking.k8s.io", "networkpolicies", "create"),
    },
    "drain=Wait": {Right("policy", "poddisruptionbudgets", "create"), Right("policy", "poddisruptionbudgets", "delete")},
}


def test_the_documented_rights_are_those_of_the_chart(program: str) -> None:
    shown = documented((ROOT / "docs" / "reference" / "security.md").read_text())
    assert sorted(shown) == sorted(granted(program))


@pytest.mark.parametrize("value", OPTIONAL)
def test_rights_of_optional_features_come_with_them_only(program: str, value: str) -> None:
    assert granted(program, [value]) - granted(program, []) == OPTIONAL[value]


def test_without_secrets_there_is_no_right_to_read_them(program: str) -> None:
    assert granted(program, []) - granted(program, ["rbac.secrets=false"]) == {Right("", "secrets", "get")}


def test_limited_to_namespaces_it_has_the_same_rights_there(program: str) -> None:
    assert granted(program, ["namespaces={a,b}"]) == granted(program, [])


# -- rights that were used, read from audit logs of the API server


EVENT = {
    "user": {"username": ACCOUNT},
    "verb": "patch",
    "requestURI": "/somewhere",
    "requestReceivedTimestamp": "2030-01-02T03:04:05.000000Z",
    "objectRef": {"resource": "multisteptrials", "subresource": "status", "apiGroup": "multistep.dev"},
    "annotations": {"authorization.k8s.io/decision": "allow"},
}


def logged(directory: Path, *changes: object) -> Path:
    """Write an audit log that contains a changed copy of EVENT for each of ``changes``; return the log's directory."""
    events = [json.dumps({**EVENT, **change}) for change in changes if isinstance(change, dict)]
    (directory / "audit.log").write_text("".join(f"{line}\n" for line in events))
    return directory


def test_a_request_is_the_use_of_a_right(tmp_path: Path) -> None:
    [request] = requested([logged(tmp_path, {})], "2030-01-02T03:04:04.999999+00:00")
    assert (request.right, request.allowed) == (Right("multistep.dev", "multisteptrials/status", "patch"), True)


def test_a_refused_request_is_reported_with_its_address(tmp_path: Path) -> None:
    [request] = requested([logged(tmp_path, {"annotations": {"authorization.k8s.io/decision": "forbid"}})], "2030")
    assert not request.allowed and "/somewhere" in request.shown and "patch multisteptrials/status.multistep.dev" in request.shown


@pytest.mark.parametrize(("verb", "allowed"), [("get", False), ("patch", True)])
def test_only_rules_refuse_reads_but_a_write_may_meet_a_quota(tmp_path: Path, verb: str, allowed: bool) -> None:
    [request] = requested([logged(tmp_path, {"verb": verb, "responseStatus": {"code": 403}})], "2030")
    assert request.allowed is allowed


def test_what_an_api_server_answers_before_it_is_ready_does_not_count(tmp_path: Path) -> None:
    second = "2030-01-02T03:04:{:02}.000000Z".format
    events = [{"requestReceivedTimestamp": second(number)} for number in range(10)]
    for component, started, ready in (("apiserver", 2, 4), ("containerd", 5, 6), ("apiserver", 8, 8)):
        startup = {"component": component, "started": second(started), "ready": second(ready)}
        with (tmp_path / "startups.jsonl").open("a") as file:
            file.write(json.dumps(startup) + "\n")
    found = requested([logged(tmp_path, *events)], "2030")
    assert [int(each.shown[-10:-8]) for each in found] == [0, 1, 5, 6, 7, 9]


def test_what_was_before_of_others_or_of_no_object_does_not_count(tmp_path: Path) -> None:
    others = {"user": {"username": "admin"}, "sourceIPs": [ACCOUNT]}
    assert not list(requested([logged(tmp_path, {}, others)], "2030-01-02T03:04:06.000000+00:00"))
    assert not list(requested([logged(tmp_path, others, {"objectRef": None})], "2030"))


def test_logs_that_were_put_aside_count_too(tmp_path: Path) -> None:
    logged(tmp_path, {}).joinpath("audit.log").rename(tmp_path / "audit-2030-01-02T03-05-00.000.log")
    assert len(list(requested([logged(tmp_path, {}, {})], "2030"))) == 3


def test_rows_of_a_table_are_rights() -> None:
    page = "| resource | verb |\n|---|---|\n| `pods/exec` | `get` | why |\n| `x.y.z/status` | `patch` | |\n| `pods` | nothing |\n"
    assert documented(page) == [Right("", "pods/exec", "get"), Right("y.z", "x/status", "patch")]
