"""Test the networks of phases, the switches between them in the script, and the counts of refused connections."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import pytest

from multistep.api.task.task_toml import parse_task
from multistep.api.trial.status import EgressStatus, RefusedTarget, StepStatus, TrialStatus, total
from multistep.api.trial.status_journal import joined
from multistep.engine.journal.operations import SwitchNetwork
from multistep.engine.plan.network_types import PUBLIC, Network
from multistep.engine.plan.phase_networks import limited_networks
from multistep.engine.plan.plan import TrialPlan
from multistep.engine.script.network_switch import boot_id, refused_connections
from multistep.engine.status.status_size import MAX_STATUS_BYTES, status_bytes, to_json
from multistep.engine.status.trial_status import step_run, step_status
from multistep.errors import InvalidSpec, RunnerError
from tests.support.played import IMAGE, Played, plan, play

NONE = 'network_mode = "no-network"\n'
ONE_HOST = 'network_mode = "allowlist"\nallowed_hosts = ["pypi.org", "*.pythonhosted.org", "10.0.0.0/8"]\n'
HOSTS = ("pypi.org", "*.pythonhosted.org", "10.0.0.0/8")
CREDENTIALS = [{"name": "OPENAI_API_KEY", "value": "k"}]
MODEL = {"name": "terminus-2", "model": "openai/m", "credentials": CREDENTIALS}


def task(environment: str = "", rest: str = "", step: str = "") -> str:
    return f'{IMAGE}{environment}{rest}[[steps]]\nname = "a"\n{step}[[steps]]\nname = "b"\n'


def made(toml: str, **spec: Any) -> TrialPlan:
    return plan(toml, spec, egress="Sidecar")


def switched(played: Played) -> list[tuple[str, str]]:
    """Return each switch of the network: its id without the attempt's number, and the network's mode."""
    found = [each for each in played.operations if isinstance(each, SwitchNetwork)]
    return [(each.id.split("/", 1)[1], each.network.mode + ("+gateway" if each.network.gateway else "")) for each in found]


def test_without_a_limit_nothing_is_switched() -> None:
    whole = made(task())
    assert (whole.sidecar, whole.switches_networks, switched(play(whole))) == (False, False, [])
    assert plan(task(NONE), egress="NetworkPolicy").sidecar is False


def test_one_network_is_switched_to_once_and_counted_at_the_end_of_each_step() -> None:
    wanted = [("/network", "no-network"), ("a/network-end", "no-network"), ("b/network-end", "no-network")]
    assert switched(play(made(task(NONE)))) == wanted


def test_each_phase_has_its_network() -> None:
    toml = task(
        "", f"[agent]\n{NONE}[verifier]\n{ONE_HOST}collect = [{{command = 'true'}}]\n", '[steps.agent]\nnetwork_mode = "public"\n'
    )
    played = play(made(toml))
    assert switched(played) == [
        ("/network", "public"),
        ("a/network-verifier", "allowlist"),
        ("a/network-end", "public"),
        ("b/network-agent", "no-network"),
        ("b/network-hooks", "public"),
        ("b/network-verifier", "allowlist"),
        ("b/network-end", "public"),
    ]
    order = ["b/network-agent", "b/agent", "b/network-hooks", "b/collect-hook-0", "b/network-verifier", "b/verifier", "b/collect"]
    assert [each for each in played.ids if each in order] == order
    assert played.operation("b/network-verifier").network.hosts == HOSTS


def test_a_step_that_fails_before_its_agent_still_ends_with_the_environments_network() -> None:
    toml = task("", f"[agent]\n{NONE}", "[steps.healthcheck]\ncommand = 'true'\n")
    played = play(made(toml), {"a/healthcheck": {"healthy": False}})
    assert switched(played) == [("/network", "public"), ("a/network-end", "public")]


def test_the_gateway_stays_reachable_but_for_verifiers() -> None:
    played = play(made(task(NONE), agent=MODEL))
    assert switched(played)[:4] == [
        ("/network", "no-network+gateway"),
        ("a/network-verifier", "no-network"),
        ("a/network-end", "no-network+gateway"),
        ("b/network-verifier", "no-network"),
    ]
    public = made(task("", f"[verifier]\n{NONE}"), agent=MODEL)
    assert public.network == public.steps[0].network == PUBLIC


@pytest.mark.parametrize("rest", [f"[agent]\n{NONE}", f"[verifier]\n{NONE}"])
def test_a_limit_of_any_phase_needs_the_sidecar(rest: str) -> None:
    whole = made(task("", rest))
    assert whole.sidecar and whole.switches_networks


def test_a_verifiers_pod_has_a_sidecar_of_its_own() -> None:
    toml = task("", f"[verifier]\n{ONE_HOST}[verifier.environment]\nbuild_timeout_sec = 9\n")
    whole = made(toml)
    assert (whole.sidecar, whole.switches_networks) == (False, True)
    played = play(whole)
    assert switched(played)[:3] == [
        ("a/verifier/network", "public"),
        ("a/verifier/network-verifier", "allowlist"),
        ("a/verifier/network-end", "public"),
    ]
    order = [
        "a/verifier/environment",
        "a/verifier/network",
        "a/verifier/prepare",
        "a/verifier/network-verifier",
        "a/verifier/verifier",
    ]
    assert [each for each in played.ids if each in order] == order
    same = play(made(task("", f"[verifier.environment]\n{NONE}")))
    assert switched(same)[:2] == [("a/verifier/network", "no-network"), ("a/verifier/network-end", "no-network")]


def test_without_verification_its_networks_do_not_matter() -> None:
    whole = made(task("", f"[verifier]\n{NONE}"), verifier={"disable": True})
    assert not whole.sidecar


@pytest.mark.parametrize(
    ("toml", "agent", "why"),
    [
        (task(NONE), {**MODEL, "access": "Direct"}, "spec.agent: its model cannot be reached.*access Gateway"),
        (task("", "", f"[steps.agent]\n{NONE}"), {**MODEL, "access": "Direct"}, "its model cannot be reached"),
    ],
)
def test_a_provider_that_is_called_directly_must_be_reachable(toml: str, agent: Mapping[str, Any], why: str) -> None:
    with pytest.raises(InvalidSpec, match=why):
        made(toml, agent=agent)


@pytest.mark.parametrize(
    ("agent", "hosts"),
    [
        (MODEL, ("api.openai.com",)),
        ({**MODEL, "baseURL": "https://LLM.corp:8443/v1"}, ("llm.corp",)),
        ({**MODEL, "baseURL": "http://[fd00::1]:8000/v1"}, ("fd00::1",)),
        ({"name": "claude-code", "model": "google/x"}, ("generativelanguage.googleapis.com",)),
        ({"name": "cursor-cli", "model": "cursor/x", "credentials": [{"name": "CURSOR_API_KEY", "value": "k"}]}, ()),
        ({**MODEL, "baseURL": "https://pypi.org/v1"}, ()),
    ],
)
def test_an_agent_that_calls_the_provider_reaches_it_in_its_own_phase(agent: Mapping[str, Any], hosts: tuple[str, ...]) -> None:
    """As in Harbor 0.26, the agent phase's list also has the provider's host. Setup and verifier have the task's own list."""
    whole = made(task(ONE_HOST), agent={**agent, "access": "Direct"})
    assert [each.network.hosts for each in whole.steps] == [HOSTS + hosts] * 2
    assert whole.network.hosts == HOSTS
    assert made(task(), agent={**agent, "access": "Direct"}).steps[0].network == PUBLIC


def test_every_limit_of_a_task_is_found() -> None:
    toml = task(
        NONE,
        f"[agent]\n{ONE_HOST}[verifier.environment]\n{NONE}",
        f"[steps.verifier]\n{NONE}[steps.verifier.environment]\n{ONE_HOST}",
    )
    assert list(limited_networks(parse_task(toml))) == [
        ("environment", "no-network"),
        ("agent", "allowlist"),
        ("verifier.environment", "no-network"),
        ("steps[0].verifier", "no-network"),
        ("steps[0].verifier.environment", "allowlist"),
    ]


# -- refused connections


def report(*targets: tuple[str, str, int | None, int], others: int = 0) -> dict[str, Any]:
    names = ("protocol", "host", "port", "count")
    return {"boot": "b", "refused": [dict(zip(names, each, strict=True)) for each in targets], "others": others}


def test_what_was_refused_is_summed_over_the_phases_of_a_step() -> None:
    results = {
        "a/network-agent": report(("tls", "pypi.org", 443, 1)),
        "a/network-end": report(("tls", "evil.net", 443, 3), ("icmp", "10.0.0.1", None, 1), others=2),
    }
    run = play(made(task("", f"[agent]\n{NONE}")), results).journal.steps[0]
    assert run.egress == EgressStatus(
        refused=[
            RefusedTarget(protocol="tls", host="evil.net", port=443, count=3),
            RefusedTarget(protocol="icmp", host="10.0.0.1", count=1),
            RefusedTarget(protocol="tls", host="pypi.org", port=443, count=1),
        ],
        others=2,
    )
    assert step_run(step_status(run)).egress == run.egress


def test_names_in_a_record_are_reduced_to_plain_characters() -> None:
    found = refused_connections(report(("tls\x1b", "a\u00e4\n.net", 443, 1))).refused[0]
    assert (found.protocol, found.host) == ("tls?", "a??.net")


@pytest.mark.parametrize("bad", [{"boot": 1}, {"boot": "b" * 65}, {}])
def test_a_switch_without_a_boot_is_a_violation(bad: Mapping[str, Any]) -> None:
    with pytest.raises(RunnerError):
        boot_id(bad)


def test_the_status_shows_few_targets_and_a_large_one_only_their_number() -> None:
    many = EgressStatus(
        refused=[RefusedTarget(protocol="dns", host=f"h{number}", port=53, count=1) for number in range(30)], others=1
    )
    played = play(made(task(NONE)), {"a/network-end": report(*[("dns", f"h{number}", 53, 1) for number in range(30)])})
    shown = step_status(played.journal.steps[0]).egress
    assert shown is not None and (len(shown.refused), shown.others) == (10, 20)
    assert total([many], most=0) == EgressStatus(others=31)
    random = [RefusedTarget(protocol="dns", host=secrets.token_hex(1000), port=53, count=1) for _ in range(30)]
    large = TrialStatus(
        steps=[StepStatus(name=f"s{number}", egress=EgressStatus(refused=random, others=1)) for number in range(100)]
    )
    content = to_json(large)
    assert status_bytes(content) < MAX_STATUS_BYTES
    assert joined(TrialStatus, content)["steps"][0]["egress"] == {"refused": [], "others": 31}


def test_networks_are_limited_or_public() -> None:
    assert not PUBLIC.limited and Network("no-network").limited
