"""Trials that must end the same, wherever the operator crashes and whichever of its calls fail."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hack import image
from multistep.api.trial.trial import KIND
from multistep.settings import ModelLimit
from tests.support.fake_models import FakeModels, counted, failed
from tests.support.fake_runner import Json
from tests.support.fake_volume import FakeVolume
from tests.support.played import outcome, rewarded
from tests.support.world import CONFIG, KEY, MIXED, SEPARATE, Source, World, manifest

TWO: Json = {**CONFIG, "steps": CONFIG["steps"][:2]}
APART: Json = {**SEPARATE, "steps": SEPARATE["steps"][:2]}
ONE_HOST: Json = {"network_mode": "allowlist", "allowed_hosts": ["pypi.org"]}
LIMITED: Json = {**TWO, "agent": {"network_mode": "no-network"}, "verifier": {**TWO["verifier"], **ONE_HOST}}
WAITS = {"a/agent": 100.0, "b/agent": 100.0}


@dataclass(frozen=True)
class Scenario:
    """A trial and its expected end.

    options: arguments of World. condition, reward, attempts: expected type and reason of the condition, expected reward, and
    expected reasons of failed attempts. fail_calls: whether test_crashes also lets each call fail while the operator survives.
    all_variants: whether the long form of test_crashes tries all VARIANTS after each crash; if not, it tries the first variant, and
    one of the others in turn.
    """

    options: Mapping[str, Any]
    condition: tuple[str, str] = ("Complete", "TrialComplete")
    reward: float | None = None
    attempts: tuple[str, ...] = ()
    fail_calls: bool = False
    all_variants: bool = False


def _trial(config: Json = TWO, **spec: Any) -> Any:
    return manifest(spec, config=config)


def _with_services() -> Any:
    """Return a trial with a collect hook and an artifact of a service."""
    image.ensure_compose_reader()
    hook = {"command": "dump", "service": "db"}
    evidence = {"artifacts": [{"source": "/app/out", "service": "db"}], "verifier": {"collect": [hook]}}
    trial = _trial({**TWO, **evidence})
    inline = trial["spec"]["task"]["inline"]
    inline["files"] = {**inline["files"], "environment/docker-compose.yaml": "services: {db: {image: redis}}"}
    return trial


def lose_pod(world: World) -> None:
    """Delete the trial's pod and break its exec sessions."""
    name = world.status.pod_name
    if (pod := world.cluster.objects.get(("Pod", KEY[0], name or ""))) is not None:
        for stream in world.cluster.runners[pod["metadata"]["uid"]].streams:
            stream.broken = True
        world.cluster.remove("Pod", KEY[0], pod["metadata"]["name"])


def _lose_verifier(world: World) -> None:
    """Delete the newest verifier's pod. A leader that read an older status may have created an earlier one again, which then stays
    unused until the trial ends."""
    name = max(each for each in world.pods if "-v" in each)
    world.cluster.remove("Pod", KEY[0], name)


def _resume(world: World) -> None:
    world.change_trial(suspend=False)


def _out_of_memory(world: World) -> None:
    ended = {"exitCode": 137, "reason": "OOMKilled"}
    world.pod_status(phase="Failed", containerStatuses=[{"name": "main", "state": {"terminated": ended}}])


def end_container(world: World) -> None:
    """End the trial's container from inside, with exit status 1."""
    ended = {"exitCode": 1, "reason": "Error"}
    world.pod_status(phase="Failed", containerStatuses=[{"name": "main", "state": {"terminated": ended}}])


def _kill_sidecar(world: World) -> None:
    """Kill the egress sidecar of the trial's pod, as the node does; the kubelet restarts it."""
    world.runner.sidecar.restart()
    killed = {"exitCode": 137, "reason": "Error"}
    (name,) = world.pods
    restarted = {"name": "egress", "state": {"running": {}}, "restartCount": 1, "lastState": {"terminated": killed}}
    world.cluster.set_pod_status(KEY[0], name, initContainerStatuses=[restarted])


HOSTED: Json = {"agent": {"name": "terminus-2", "model": "openai/m", "access": "Direct"}}
HOSTED_OPTIONS: Mapping[str, Any] = {
    "settings": {"agent_host_image": "agent-host"},
    "durations": {"/host/agent-setup": 20.0, "a/host/agent": 100.0, "b/host/agent": 100.0},
    "results": {
        "/host/agent-setup": outcome(),
        "a/host/agent": outcome(tokens=(100, 10, 5)),
        "b/host/agent": outcome(tokens=(200, 20, 7)),
    },
}

KEY_OF = {"name": "OPENAI_API_KEY", "value": "sk"}
WITH_GATEWAY: Json = {"agent": {"name": "terminus-2", "model": "openai/m", "credentials": [KEY_OF]}}
GATEWAY_SETTINGS = {
    "agent_host_image": "agent-host",
    "gateway_url": "http://gateway",
    "models": [ModelLimit(model="openai/m", max_active=1)],
}


def _gateway(**reports: Any) -> Any:
    return {
        "trial": _trial(**WITH_GATEWAY, infrastructureRetries=1),
        **HOSTED_OPTIONS,
        "settings": GATEWAY_SETTINGS,
        "models": FakeModels({each[1:].replace("_", "/"): report for each, report in reports.items()}),
    }


SOURCE = asyncio.run(Source.ran(trial=_trial(checkpoints={"policy": "AfterStep", "keep": "WithResults"})))
BRANCH: Json = {"from": {"trial": "source", "step": "a"}, "agent": {"name": "command", "command": ["x"]}}
TIMED_OUT_SOURCE = asyncio.run(
    Source.ran(
        trial=_trial(onAgentError="Continue", checkpoints={"policy": "AfterStep", "keep": "WithResults"}),
        results={"a/agent": {"timedOut": True, "exitCode": None}},
    )
)
REGRADE: Json = {"regrade": {"trial": "source"}, "agent": {"name": "nop"}, "onAgentError": "Continue"}


def _damaged(source: Source) -> Source:
    """Return the source with a checkpoint that no runner can restore."""
    results = pickle.loads(source.results)
    commit, files = results.checkpoints[1, 0]
    results.checkpoints[1, 0] = (commit, {**files, "layer": b"[]"})
    return Source(source.trial, pickle.dumps(results))


def _delete_source(world: World) -> None:
    world.cluster.remove(KIND, KEY[0], "source")
    assert isinstance(world.volume, FakeVolume)
    world.volume.results.pop("source-uid", None)


SCENARIOS = {
    "with a service": Scenario({"trial": _with_services()}, reward=0.75, fail_calls=True),
    "started from another trial": Scenario(
        {"trial": _trial(**BRANCH), "source": SOURCE, "durations": {"b/agent": 100.0}},
        reward=0.75,
        fail_calls=True,
        all_variants=True,
    ),
    "started from another trial that was deleted before the pod was lost": Scenario(
        {
            "trial": _trial(**BRANCH),
            "source": SOURCE,
            "durations": {"b/agent": 4000.0},
            "happens": {1000.0: _delete_source, 2000.0: lose_pod},
        },
        reward=0.75,
        attempts=("PodDeleted",),
        fail_calls=True,
    ),
    "started from another trial whose checkpoint cannot be restored": Scenario(
        {"trial": _trial(**BRANCH), "source": _damaged(SOURCE)},
        ("Failed", "SourceUnusable"),
        attempts=("RestoreFailed", "RestoreFailed"),
    ),
    "an agent of Harbor with the model gateway": Scenario(
        _gateway(_1_a=counted((100, 10, 5)), _1_b=counted((50, 0, 1))), reward=0.75, fail_calls=True
    ),
    "an agent of Harbor whose tokens are recorded": Scenario(
        {
            **_gateway(),
            "trial": _trial(agent={**WITH_GATEWAY["agent"], "capture": "Tokens", "baseURL": "https://policy.example/v1"}),
            "models": FakeModels({"1/a": counted((100, 10, 5))}, tokens={"1/a": b"of a", "1/b": b"of b"}),
        },
        reward=0.75,
        fail_calls=True,
    ),
    "the provider failed once": Scenario(
        _gateway(_1_b=failed("Provider"), _2_a=counted((1, 0, 1))), reward=0.75, attempts=("ProviderFailed",), fail_calls=True
    ),
    "the provider failed too often": Scenario(
        _gateway(_1_a=failed("Provider"), _2_b=failed("Provider")),
        ("Failed", "ProviderFailed"),
        attempts=("ProviderFailed", "ProviderFailed"),
    ),
    "the agent failed while the model gateway was down": Scenario(
        {
            **_gateway(_1_b={**counted((50, 0, 1)), "downtimes": [{"began": 0.0, "ended": 1e12}]}, _2_b=counted((1, 0, 1))),
            "results": {**HOSTED_OPTIONS["results"], "b/host/agent": outcome(error=("APIConnectionError", "refused"))},
        },
        reward=0.75,
        attempts=("ModelGatewayDown",),
    ),
    "the provider rejects the key": Scenario(_gateway(_1_a=failed("Configuration", "401")), ("Failed", "ModelAccessDenied")),
    "an agent of Harbor": Scenario({"trial": _trial(**HOSTED), **HOSTED_OPTIONS}, reward=0.75, fail_calls=True, all_variants=True),
    "an agent of Harbor whose setup fails": Scenario(
        {
            "trial": _trial(**HOSTED, infrastructureRetries=1),
            **HOSTED_OPTIONS,
            "results": {"/host/agent-setup": outcome(error=("RuntimeError", "no network"))},
        },
        ("Failed", "AgentSetupFailed"),
        attempts=("AgentSetupFailed", "AgentSetupFailed"),
    ),
    "short": Scenario({}, reward=0.5, fail_calls=True),
    "long phases": Scenario(
        {"durations": {"/healthcheck": 3.0, "a/agent": 100.0, "b/healthcheck": 9.0, "b/verifier": 40.0, "c/agent": 200.0}},
        reward=0.5,
        all_variants=True,
    ),
    "results in an object store": Scenario(
        {"trial": _trial(), "stored": True, "durations": WAITS}, reward=0.75, fail_calls=True, all_variants=True
    ),
    "large files straight to the store": Scenario(
        {
            "trial": _trial(artifacts=[{"source": "/big"}, {"source": "/small"}]),
            "stored": True,
            "settings": {"results_direct_bytes": 100},
            "files": {"/big": {"one": b"\0" * 100, "two": b"x" * 101}, "/small": b"\0"},
            "durations": {"a/collect-send-0": 50.0, "b/collect-send-1": 30.0},
        },
        reward=0.75,
        fail_calls=True,
    ),
    "made again as root": Scenario({"trial": _trial(), "user": 1000}, reward=0.75),
    "networks that differ between phases": Scenario(
        {
            "trial": _trial(LIMITED),
            "settings": {"egress": "Sidecar"},
            "durations": {"a/agent": 30.0, "b/verifier": 20.0},
        },
        reward=0.75,
        fail_calls=True,
        all_variants=True,
    ),
    "networks of verifiers' pods": Scenario(
        {"trial": _trial({**APART, "verifier": {**APART["verifier"], **ONE_HOST}}), "settings": {"egress": "Sidecar"}},
        reward=0.75,
        fail_calls=True,
    ),
    "the egress sidecar was killed": Scenario(
        {
            "trial": _trial(LIMITED),
            "settings": {"egress": "Sidecar"},
            "durations": WAITS,
            "happens": {150.0: _kill_sidecar},
        },
        reward=0.75,
        attempts=("EgressEnded",),
    ),
    "verified apart": Scenario(
        {"trial": _trial(APART), "durations": {"a/verifier/verifier": 40.0, "b/agent": 9.0}},
        reward=0.75,
        fail_calls=True,
        all_variants=True,
    ),
    "one verified apart, as root": Scenario(
        {"trial": _trial({**MIXED, "steps": MIXED["steps"][:2]}), "user": 1000, "durations": {"a/verifier/verifier": 40.0}},
        reward=0.75,
    ),
    "stopped by min_reward": Scenario(
        {"trial": _trial(), "results": {"a/verifier": rewarded(txt="0.25")}, "durations": {"a/verifier": 30.0}}, reward=0.25
    ),
    "agent at its limit": Scenario(
        {
            "trial": _trial(onAgentError="Continue"),
            "results": {"a/agent": {"timedOut": True, "exitCode": None}},
            "durations": WAITS,
        },
        reward=0.75,
    ),
    "agent failed": Scenario(
        {"trial": _trial(agent={"name": "command", "command": ["x"]}), "results": {"a/agent": {"exitCode": 3}}}, reward=1.0
    ),
    "verifier failed": Scenario(
        {"trial": _trial(), "results": {"a/verifier": {**rewarded(txt="1"), "timedOut": True, "exitCode": None}}}, reward=None
    ),
    "verifier without a reward": Scenario({"trial": _trial(), "results": {"a/verifier": rewarded()}}, reward=None),
    "environment not healthy": Scenario(
        {"trial": _trial(), "results": {"/healthcheck": {"healthy": False}}}, ("Failed", "EnvironmentFailed")
    ),
    "pod lost in a phase": Scenario(
        {"trial": _trial(), "durations": WAITS, "happens": {150.0: lose_pod}},
        reward=0.75,
        attempts=("PodDeleted",),
    ),
    "checkpoints": Scenario(
        {"trial": _trial(checkpoints={"policy": "AfterStep", "keep": "WithResults"}), "durations": WAITS},
        reward=0.75,
        fail_calls=True,
    ),
    "continued from a checkpoint": Scenario(
        {
            "trial": _trial(APART, checkpoints={"policy": "AfterStep"}),
            "durations": {"a/agent": 100.0, "b/agent": 4000.0},  # b is long: whatever is delayed, the pod is lost in b
            "happens": {2000.0: lose_pod},
        },
        reward=0.75,
        attempts=("PodDeleted",),
        fail_calls=True,
    ),
    "verified in a restored environment": Scenario(
        {"trial": _trial(verifier={"isolation": "Separate"}), "durations": WAITS},
        reward=0.75,
        fail_calls=True,
    ),
    "verified in a restored environment and continued": Scenario(
        {
            "trial": _trial(verifier={"isolation": "Separate", "paths": ["/app"]}, checkpoints={"policy": "AfterStep"}),
            "durations": {"a/agent": 100.0, "b/agent": 4000.0},
            "happens": {2000.0: lose_pod},
        },
        reward=0.75,
        attempts=("PodDeleted",),
    ),
    "verified in place and once more": Scenario(
        {"trial": _trial(verifier={"isolation": "Both"}, checkpoints={"policy": "AfterStep"}), "durations": WAITS},
        reward=0.75,
        fail_calls=True,
    ),
    "the pod of a second verification lost": Scenario(
        {
            "trial": _trial(verifier={"isolation": "Both"}, infrastructureRetries=0),
            "durations": {"a/verifier/verifier": 100.0},
            "happens": {50.0: _lose_verifier},
        },
        reward=0.75,
    ),
    "an agent of Harbor that continues from a checkpoint": Scenario(
        {
            "trial": _trial(**HOSTED, checkpoints={"policy": "AfterStep"}),
            **HOSTED_OPTIONS,
            "durations": {"/host/agent-setup": 20.0, "a/host/agent": 100.0, "b/host/agent": 4000.0},
            "happens": {2000.0: lose_pod},
        },
        reward=0.75,
        attempts=("PodDeleted",),
    ),
    "regraded": Scenario(
        {
            "trial": _trial(**REGRADE),
            "source": TIMED_OUT_SOURCE,
            "durations": {"a/verifier/verifier": 40.0, "b/verifier/verifier": 40.0},
        },
        reward=0.75,
        fail_calls=True,
        all_variants=True,
    ),
    "regraded, and a verifier's pod lost": Scenario(
        {
            "trial": _trial(**REGRADE),
            "source": TIMED_OUT_SOURCE,
            "durations": {"b/verifier/verifier": 4000.0},
            "happens": {2000.0: _lose_verifier},
        },
        reward=0.75,
        attempts=("PodDeleted",),
    ),
    "pod lost too often": Scenario(
        {"trial": _trial(infrastructureRetries=1), "durations": WAITS, "happens": {50.0: lose_pod, 120.0: lose_pod}},
        ("Failed", "PodDeleted"),
        attempts=("PodDeleted", "PodDeleted"),
    ),
    "verifier's pod lost": Scenario(
        {"trial": _trial(APART), "durations": {"a/verifier/verifier": 100.0}, "happens": {50.0: _lose_verifier}},
        reward=0.75,
        attempts=("PodDeleted",),
    ),
    "out of memory": Scenario({"trial": _trial(), "durations": WAITS, "happens": {150.0: _out_of_memory}}, reward=1.0),
    "deadline": Scenario({"trial": _trial(activeDeadlineSeconds=150), "durations": WAITS}, ("Failed", "DeadlineExceeded")),
    "suspended at first": Scenario({"trial": _trial(suspend=True), "happens": {500.0: _resume}}, reward=0.75),
    "artifacts": Scenario(
        {"trial": _trial(artifacts=[{"source": "/none"}, {"source": "/logs/agent", "destination": "mine"}]), "durations": WAITS},
        reward=0.75,
    ),
}
