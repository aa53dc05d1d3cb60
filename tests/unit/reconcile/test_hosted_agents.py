"""Trials with one of Harbor's agents: the agent host's exec sessions, and which of the pod's runners the operator trusts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from multistep.kube.cluster_protocols import ExecStream
from multistep.pods import agent_host
from multistep.token_records.record import PATH
from tests.support.fake_models import FakeModels, counted, failed
from tests.support.fake_runner import FakeRunner
from tests.support.phase_results import DEFAULTS
from tests.support.played import outcome
from tests.support.world import World, manifest
from tests.unit.reconcile.scenarios import GATEWAY_SETTINGS, HOSTED, HOSTED_OPTIONS, KEY_OF, WITH_GATEWAY, lose_pod


def containers(world: World) -> list[str]:
    (pod,) = [each for key, each in world.cluster.objects.items() if key[0] == "Pod"]
    return [each["name"] for each in pod["spec"]["containers"]]


async def test_only_a_trial_with_such_an_agent_has_an_agent_host() -> None:
    keep = {"podCleanup": "Never"}
    world = World(trial=manifest({**HOSTED, **keep}), **HOSTED_OPTIONS)
    await world.run()
    assert containers(world) == ["main", "agent-host"]
    plain = World(trial=manifest(keep), settings=HOSTED_OPTIONS["settings"])
    await plain.run()
    assert containers(plain) == ["main"]


async def test_without_an_image_of_the_agent_host_the_trial_says_what_is_missing() -> None:
    world = World(trial=manifest(HOSTED))
    await world.run()
    assert world.condition[:2] == ("Failed", "InvalidSpec")
    assert "agents of Harbor need the chart's setting agentHostImage" in world.condition[2]


async def test_the_status_has_the_usage_of_each_step_and_of_the_trial() -> None:
    world = World(trial=manifest(HOSTED), **HOSTED_OPTIONS)
    await world.run()
    assert world.condition[0] == "Complete", world.condition
    used = [each.usage.input_tokens if each.usage else None for each in world.status.steps]
    assert used == [100, 200, None]
    assert world.status.usage is not None and world.status.usage.output_tokens == 12


async def test_the_token_and_the_request_are_in_no_record() -> None:
    world = World(trial=manifest(HOSTED), **HOSTED_OPTIONS)
    await world.run()
    (call,) = [each for each in world.runner.requests if each.get("id") == "1/a/host/agent" and each["op"] == "start"]
    assert '"token": "' + "ab" * 32 in call["stdin"] and call["argv"] == ["multistep-host", "step"]
    assert call["output"]["path"] == "/run/multistep-host/output.txt"  # `multistep logs` reads this file
    assert all("stdin" not in each for each in world.runner.records.values())


async def test_records_of_the_agent_host_are_not_believed_from_the_environment() -> None:
    """An agent may control the runner in the environment's container, and forge a record of its own outcome there."""
    world = World(trial=manifest(HOSTED), **HOSTED_OPTIONS)
    host, opened = FakeRunner(results={"1//host/agent-setup": outcome()}), world.cluster.open_exec

    async def open_exec(namespace: str, pod: str, container: str, argv: Sequence[str]) -> ExecStream:
        stream = await opened(namespace, pod, container, argv)
        host.pod_uid, world.runner.host.key = world.runner.pod_uid, ""
        forged = {"id": "1/a/host/agent", "op": "start", "state": "done", "startedAt": 1.0, "endedAt": 1.0}
        result = {**DEFAULTS["start"], **outcome(tokens=(1, 1, 1))}
        world.runner.records["1/a/host/agent"] = {**forged, "acknowledged": True, "result": result}
        return host.stream() if container == agent_host.CONTAINER else stream

    world.cluster.open_exec = open_exec  # type: ignore[method-assign]
    await world.run(until=lambda: host.starts["1/a/host/agent"])
    assert host.starts["1/a/host/agent"] == 1


async def test_with_the_gateway_the_key_is_in_no_request_and_the_usage_is_the_wires() -> None:
    models = FakeModels({"1/a": counted((100, 10, 5)), "1/b": counted((50, 0, 1), incomplete=2)})
    world = World(trial=manifest(WITH_GATEWAY), **{**HOSTED_OPTIONS, "settings": GATEWAY_SETTINGS}, models=models)
    await world.run()
    sent = [each["stdin"] for each in world.runner.requests if "stdin" in each]
    assert len(sent) == 4 and not any('"sk"' in each for each in sent)
    assert '"OPENAI_API_KEY": "token of b"' in sent[2] and "http://gateway/openai/v1" in sent[2]
    assert models.closed == ["1//setup", "1/a", "1/b", "1/c"]
    used = [each.usage for each in world.status.steps]
    assert [each and (each.input_tokens, each.source) for each in used] == [(100, "Gateway"), (50, "Gateway"), None]
    assert used[1] is not None and used[1].incomplete == 2


CAPTURING = {"agent": {**WITH_GATEWAY["agent"], "capture": "Tokens", "baseURL": "https://policy.example/v1"}}


async def test_the_token_records_of_each_step_are_stored_with_it_and_then_deleted_at_the_gateway() -> None:
    models = FakeModels({"1/a": counted((100, 10, 5)), "1/b": counted((50, 0, 1))}, tokens={"1/a": b"of a", "1/b": b"of b"})
    world = World(trial=manifest(CAPTURING), **{**HOSTED_OPTIONS, "settings": GATEWAY_SETTINGS}, models=models)
    await world.run()
    assert world.kept.tokens == {"a": b"of a", "b": b"of b", "c": b""}
    assert models.deleted == ["1/a", "1/b", "1/c"]


async def test_an_event_and_the_status_say_why_token_records_are_missing() -> None:
    why = "2 records exceeded gateway.settings.captureStepBytes, 10: raise it"
    models = FakeModels({"1/a": counted((100, 10, 5))}, tokens={"1/a": b"of a"}, missing_tokens={"a": why})
    world = World(trial=manifest(CAPTURING), **{**HOSTED_OPTIONS, "settings": GATEWAY_SETTINGS}, models=models)
    await world.run()
    assert world.condition[0] == "Complete"
    assert [step.artifacts and step.artifacts.incomplete for step in world.status.steps] == [[f"{PATH}: {why}"], None, None]
    (event,) = [each for each in world.cluster.events if each["reason"] == "TokensIncomplete"]
    assert (event["type"], event["note"]) == ("Warning", f"step a: {PATH}: {why}")


async def test_the_token_records_of_a_step_that_lost_its_pod_are_deleted_at_the_gateway() -> None:
    models = FakeModels({"1/a": counted((100, 10, 5)), "2/a": counted((200, 20, 7))}, tokens={"1/a": b"lost"})
    options = {**HOSTED_OPTIONS, "settings": GATEWAY_SETTINGS, "happens": {50.0: lose_pod}}
    world = World(trial=manifest({**CAPTURING, "infrastructureRetries": 1}), **options, models=models)
    await world.run()
    assert models.deleted == ["1/a", "2/a", "2/b", "2/c"]
    assert world.kept.tokens == dict.fromkeys("abc", b"")


async def test_a_trial_waits_for_a_gateway_that_does_not_answer() -> None:
    models = FakeModels(down=3)
    world = World(trial=manifest(WITH_GATEWAY), **{**HOSTED_OPTIONS, "settings": GATEWAY_SETTINGS}, models=models)
    await world.run(until=lambda: models.down < 3)
    assert [each.reason for each in world.status.conditions if each.type == "Reconciling"] == ["GatewayUnavailable"]
    await world.run()
    assert world.condition[0] == "Complete" and world.status.attempts == []


async def test_the_usage_of_a_step_that_lost_its_pod_is_counted_in_its_attempt_and_its_token_is_blocked() -> None:
    models = FakeModels({"1/a": counted((100, 10, 5)), "2/a": counted((200, 20, 7))})
    options = {**HOSTED_OPTIONS, "settings": GATEWAY_SETTINGS, "happens": {50.0: lose_pod}}
    world = World(trial=manifest({**WITH_GATEWAY, "infrastructureRetries": 1}), **options, models=models)
    await world.run()
    assert world.condition[0] == "Complete", world.condition
    (lost,) = world.status.attempts
    assert [each.usage and each.usage.input_tokens for each in (lost.steps[0], world.status.steps[0])] == [100, 200]
    assert models.closed[:4] == ["1//setup", "1/a", "2//setup", "2/a"]


@pytest.mark.parametrize("seconds", [100.0, 900.0])
async def test_a_gateway_that_is_down_until_the_deadline_does_not_score_an_agent_that_has_finished_0(seconds: float) -> None:
    """The agent ran for ``seconds`` of the 1,000 s; for the rest, the operator waited for the usage of the step."""
    models = FakeModels()

    def fault(_: World) -> None:
        models.down = 10**6

    durations = {**HOSTED_OPTIONS["durations"], "a/host/agent": seconds}
    options = {**HOSTED_OPTIONS, "settings": GATEWAY_SETTINGS, "happens": {50.0: fault}, "durations": durations}
    world = World(trial=manifest({**WITH_GATEWAY, "activeDeadlineSeconds": 1000}), **options, models=models)
    await world.run()
    assert world.condition[:2] == ("Failed", "ResultUnknown")
    assert (world.status.score, world.status.outcome) == (None, "Excluded")
    (step,) = world.status.steps
    assert step.seconds is not None and step.seconds.agent == seconds
    assert world.status_writes < 20, "the status is not written at each try to reach the gateway"


@pytest.mark.parametrize("stops", [False, True])
async def test_an_attempt_ends_after_the_gateway_has_counted_but_a_stop_does_not_wait_for_the_gateway(stops: bool) -> None:
    models = FakeModels({"1/a": counted((100, 10, 5))})

    def fault(world: World) -> None:
        models.down = 10**6 if stops else 3
        world.change_trial(stop=True) if stops else lose_pod(world)

    options = {**HOSTED_OPTIONS, "settings": GATEWAY_SETTINGS, "happens": {50.0: fault}}
    world = World(trial=manifest({**WITH_GATEWAY, "infrastructureRetries": 1}), **options, models=models)
    await world.run()
    if stops:
        assert world.condition[:2] == ("Failed", "Stopped"), world.condition
    else:
        assert world.status.attempts[0].steps[0].usage is not None and models.down == 0


async def test_a_trial_whose_budget_lost_attempts_have_used_is_excluded() -> None:
    models = FakeModels({"1/a": counted((900, 10, 5)), "2/a": failed("LostBudget", "the trial's budget has no room")})
    options = {**HOSTED_OPTIONS, "settings": GATEWAY_SETTINGS, "happens": {50.0: lose_pod}}
    world = World(trial=manifest({**WITH_GATEWAY, "infrastructureRetries": 5}), **options, models=models)
    await world.run()
    assert world.condition[:2] == ("Failed", "BudgetUsedByLostAttempts")
    assert "attempts that were lost have used a part of it" in world.condition[2]
    assert (world.status.outcome, world.status.score, len(world.status.attempts)) == ("Excluded", None, 1)


async def test_without_a_gateway_the_trial_says_how_to_do_without() -> None:
    world = World(trial=manifest(WITH_GATEWAY), settings=HOSTED_OPTIONS["settings"])
    await world.run()
    assert world.condition[:2] == ("Failed", "InvalidSpec") and "use Direct without one" in world.condition[2]


async def test_a_rejected_key_is_reported_at_once_with_secret_and_key() -> None:
    key = {"name": "OPENAI_API_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "openai"}}}
    models = FakeModels({"1/a": failed("Configuration", "the provider answered 401")})
    spec = {"agent": {**WITH_GATEWAY["agent"], "credentials": [key]}}
    world = World(trial=manifest(spec), **{**HOSTED_OPTIONS, "settings": GATEWAY_SETTINGS}, models=models)
    world.cluster.put({"kind": "Secret", "metadata": {"name": "keys", "namespace": "default"}, "data": {"openai": "c2s="}})
    await world.run()
    assert world.condition[:2] == ("Failed", "ModelAccessDenied"), world.condition
    assert "401" in world.condition[2] and "key 'openai' of Secret 'keys'" in world.condition[2]
    assert world.status.failure is not None and world.status.failure.class_ == "Configuration"


async def test_a_failure_of_the_provider_is_no_reward_and_its_own_class() -> None:
    models = FakeModels({"1/a": failed("Provider"), "2/a": failed("Provider")})
    spec = {**WITH_GATEWAY, "infrastructureRetries": 1}
    world = World(trial=manifest(spec), **{**HOSTED_OPTIONS, "settings": GATEWAY_SETTINGS}, models=models)
    await world.run()
    failure = world.status.failure
    assert failure is not None and (failure.class_, world.status.score, world.status.rewards) == ("Provider", None, None)


@pytest.mark.parametrize(
    "agent", [{"importPath": "my.agents:Mine", "model": "openai/m"}, {"name": "claude-code", "access": "Direct"}]
)
async def test_an_agents_user_that_the_image_lacks_is_the_tasks_failure_without_a_score(agent: dict[str, str]) -> None:
    lacks = {"/user-0": {"exitCode": None, "error": {"code": "NoSuchUser", "message": "no user x"}}}
    world = World(trial=manifest({"agent": {**agent, "user": "x"}}), **{**HOSTED_OPTIONS, "results": lacks})
    await world.run()
    failure = world.status.failure
    assert world.condition[:2] == ("Failed", "NoSuchUser") and "no user x" in world.condition[2], world.condition
    assert failure is not None and (failure.class_, world.status.score, world.status.attempts) == ("Task", None, [])


async def test_a_custom_class_that_gives_up_in_its_setup_scores_0() -> None:
    """The class can read the environment first. If such a failure were excluded from the score, the class could skip hard tasks."""
    spec = {"agent": {"importPath": "my.agents:Mine", "model": "openai/m"}}
    gives_up = {"/host/agent-setup": outcome(error=("RuntimeError", "too hard"))}
    world = World(trial=manifest(spec), **{**HOSTED_OPTIONS, "results": gives_up})
    await world.run()
    failure = world.status.failure
    assert world.condition[:2] == ("Failed", "AgentSetupFailed") and world.status.attempts == []
    assert failure is not None and (failure.class_, world.status.score) == ("Agent", 0.0)


@pytest.mark.parametrize(
    ("exit_code", "reason", "message"), [(137, "OOMKilled", "more than its memory limit"), (2, "Error", "ended with status 2")]
)
async def test_a_custom_class_that_ends_the_agent_host_in_its_setup_scores_0(exit_code: int, reason: str, message: str) -> None:
    def kill_host(world: World) -> None:
        (pod,) = world.pods
        running = world.cluster.objects["Pod", "default", pod]["status"]["containerStatuses"]
        killed = {"terminated": {"exitCode": exit_code, "reason": reason}}
        statuses = [*(each for each in running if each["name"] == "main"), {"name": agent_host.CONTAINER, "state": killed}]
        world.cluster.set_pod_status("default", pod, containerStatuses=statuses)

    spec = {"agent": {"importPath": "my.agents:Mine", "model": "openai/m"}}
    options = {**HOSTED_OPTIONS, "durations": {"/host/agent-setup": 100.0}, "happens": {50.0: kill_host}}
    world = World(trial=manifest(spec), **options)
    await world.run()
    failure = world.status.failure
    assert world.condition[:2] == ("Failed", "AgentSetupFailed") and world.status.attempts == [], world.condition
    assert message in world.condition[2]
    assert failure is not None and (failure.class_, world.status.score) == ("Agent", 0.0)


@pytest.mark.parametrize(("at", "closed", "tokens"), [(10.0, ["1//setup"], 7), (60.0, ["1//setup", "1/a", "1//setup"], 107)])
async def test_the_usage_of_a_setup_counts_although_the_agent_ends_its_container(at: float, closed: list[str], tokens: int) -> None:
    def end_container(world: World) -> None:
        ended = {"exitCode": 1, "reason": "Error"}
        world.pod_status(phase="Failed", containerStatuses=[{"name": "main", "state": {"terminated": ended}}])

    models = FakeModels({"1//setup": counted((7, 0, 0)), "1/a": counted((100, 10, 5))})
    spec = {"agent": {"importPath": "my.agents:Mine", "model": "openai/m", "credentials": [KEY_OF]}}
    options = {**HOSTED_OPTIONS, "settings": GATEWAY_SETTINGS, "happens": {at: end_container}}
    world = World(trial=manifest(spec), **options, models=models)
    await world.run()
    assert world.status.score == 0 and world.status.attempts == [], world.condition
    assert models.closed == closed
    assert world.status.usage is not None and world.status.usage.input_tokens == tokens


async def test_the_status_shows_that_a_custom_class_may_run_before_it_runs() -> None:
    """The class can end its container, and with it the runner's records, as soon as it runs."""
    shown: list[bool] = []

    def setup(_: Any) -> dict[str, Any]:
        shown.append(world.status.agent_setup_time is not None)
        return outcome()

    spec = {"agent": {"importPath": "my.agents:Mine", "model": "openai/m"}}
    world = World(trial=manifest(spec), **{**HOSTED_OPTIONS, "results": {"/host/agent-setup": setup}})
    await world.run()
    assert shown == [True] and world.condition[0] == "Complete", world.condition


@dataclass
class Sessions:
    """The exec sessions of a world's trial. opened: the current step and the container of each session; change: called with the
    pod's runner before a session opens."""

    world: World
    change: Callable[[FakeRunner], object] = lambda _: None
    opened: list[tuple[str | None, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._open_exec = self.world.cluster.open_exec
        self.world.cluster.open_exec = self  # type: ignore[method-assign]

    async def __call__(self, namespace: str, pod: str, container: str, argv: Sequence[str]) -> ExecStream:
        self.opened.append((self.world.status.current_step, container))
        self.change(self.world.runner)
        return await self._open_exec(namespace, pod, container, argv)

    def of(self, step: str) -> list[str]:
        return [container for current, container in self.opened if current == step]


async def test_a_poll_and_the_end_of_an_agent_open_one_session_each() -> None:
    """The agent runs for 100 s: the operator polls it after 60 s, and reads its result when the pod becomes unready."""
    world = World(trial=manifest(HOSTED), **HOSTED_OPTIONS)
    sessions = Sessions(world)
    await world.run()
    assert world.condition[0] == "Complete" and world.status.attempts == []
    assert sessions.of("a") == ["main", "main"]


async def test_a_command_of_main_that_ends_while_the_agent_works_does_not_hide_the_agents_end() -> None:
    """If the command's result left the pod unready, the pod's readiness would not change when the agent's result is available."""
    world = World(trial=manifest(HOSTED), **HOSTED_OPTIONS)
    await world.run(until=lambda: world.status.steps and world.status.steps[-1].phase == "Agent")
    id = "1//main-command-process"
    ended = {"id": id, "op": "start", "state": "done", "startedAt": 1.0, "endedAt": 2.0, "acknowledged": False}
    world.runner.records[id] = {**ended, "result": {**DEFAULTS["start"], "exitCode": 0}}
    assert not world.runner.ready
    await world.reconcile()
    assert world.runner.ready and world.status.steps[-1].phase == "Agent"


async def test_an_agent_host_without_a_key_gets_sessions_of_its_own() -> None:
    world = World(trial=manifest(HOSTED), **HOSTED_OPTIONS)
    sessions = Sessions(world, lambda runner: setattr(runner.host, "key", ""))
    await world.run()
    assert world.condition[0] == "Complete" and world.status.attempts == []
    assert sessions.of("a") == ["main", "agent-host", "main", "agent-host"]


async def test_a_runner_of_an_earlier_release_passes_nothing_to_the_agent_host() -> None:
    world = World(trial=manifest(HOSTED), **HOSTED_OPTIONS)
    sessions = Sessions(world, lambda runner: setattr(runner, "protocols", {3, 4}))
    await world.run()
    assert world.condition[0] == "Complete" and world.status.attempts == []
    assert sessions.of("a") == ["main", "agent-host", "main", "agent-host"]


async def test_each_pod_has_a_key_of_its_own_which_no_message_to_its_runners_contains() -> None:
    options = {**HOSTED_OPTIONS, "happens": {50.0: lose_pod}}
    world = World(trial=manifest({**HOSTED, "infrastructureRetries": 1}), **options)
    await world.run()
    assert world.condition[0] == "Complete" and len(world.status.attempts) == 1
    runners = list(world.cluster.runners.values())
    keys = {each.host.key for each in runners}
    assert len(keys) == 2 and all(len(key) == 64 for key in keys)
    assert not any(key in str(request) for each in runners for request in each.requests for key in keys)


async def test_a_forged_answer_of_the_agent_host_is_an_error_of_the_runner() -> None:
    """The environment's runner forwards the messages of the agent host, and an agent may control that runner."""
    world = World(trial=manifest(HOSTED), **HOSTED_OPTIONS)
    Sessions(world, lambda runner: setattr(runner.host, "forged", True))
    await world.run()
    assert world.condition[:2] == ("Failed", "RunnerBroken"), world.condition
    assert "the agent host's answer is not authentic" in world.condition[2]
