"""The Python client: sweeps that it submits, their trials as they finish, their lease, and the blocking client."""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

import multistep
from multistep.api.sweep.sweep import Scoring
from multistep.client import AsyncClient, Client, JudgeOptions
from multistep.client.run import rollout
from multistep.client.trl import TrialReward
from multistep.errors import InvalidSpec, InvalidTask, NotFound, StoreError, Unavailable, UsageError
from multistep.kube.client import ClusterClient
from multistep.token_records.write_file import Writer
from tests.support.waiting import eventually
from tests.unit.token_records.test_file import write

from .fakes import FakeCluster, excluded, scored

TASK: dict[str, Any] = {"name": "t", "inline": {"config": {}}}
FILE = "/api/v1/namespaces/m/services/o:1/proxy/results/x/files/a%20b/c.txt?offset={}&limit=1048576"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    fake = FakeCluster()
    monkeypatch.setattr(ClusterClient, "connect", FakeCluster.connecting(fake))
    return fake


async def until(check: Callable[[], bool]) -> None:
    """Wait until the check holds, while the client's own tasks run."""

    async def holds() -> bool:
        return check()

    await eventually(holds)


@pytest.fixture
async def client(cluster: FakeCluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient() as connected:
        yield connected


async def test_trials_are_returned_once_each_as_they_finish(client: AsyncClient, cluster: FakeCluster) -> None:
    run = await client.submit([TASK], name="s", attempts=4)
    assert repr(run) == f"AsyncRun(name='s', namespace={run.namespace!r})"
    rollouts = run.__aiter__()
    cluster.trial("s", "one", scored(0.5))
    assert cluster.aliases[(await anext(rollouts)).name] == "one"
    cluster.trial("s", "one", scored(0.5))
    cluster.trial("s", "other", {"phase": "Running"})
    cluster.trial("s", "two", scored(1.0))
    cluster.trial("another", "not-ours", scored(1.0))
    two = await anext(rollouts)
    assert (cluster.aliases[two.name], two.reward, two.passed, two.outcome, two.valid) == ("two", 1.0, True, "Passed", True)
    assert [(each.name, each.score, each.passed, each.rewards) for each in two.steps] == [("only", 1.0, True, {"reward": 1.0})]
    cluster.trial("s", "other", scored(0.0))
    cluster.finish("s")
    assert [cluster.aliases[each.name] async for each in rollouts] == ["other"]


async def test_a_trial_that_the_infrastructure_lost_is_invalid_and_has_no_reward(client: AsyncClient, cluster: FakeCluster) -> None:
    run = await client.submit([TASK], name="s", attempts=4)
    cluster.trial("s", "one", excluded())
    cluster.trial("s", "two", scored(0.0))
    cluster.finish("s")
    found = {cluster.aliases[each.name]: each for each in await run.results()}
    assert (found["one"].valid, found["one"].reward, found["one"].passed) == (False, None, None)
    assert (found["one"].outcome, found["one"].failure_class, found["one"].reason) == ("Excluded", "Infrastructure", "PodDeleted")
    assert (found["two"].valid, found["two"].reward) == (True, 0.0)


async def test_the_end_of_a_watch_and_the_deletion_of_the_sweep_are_errors(client: AsyncClient, cluster: FakeCluster) -> None:
    run = await client.submit([TASK], name="s")
    waiting = asyncio.create_task(run.results())
    await until(lambda: len(cluster._watches) == 2)
    cluster.break_watches(Unavailable("no answer"))
    with pytest.raises(Unavailable):
        await waiting
    waiting = asyncio.create_task(run.results())
    await until(lambda: len(cluster._watches) == 2)
    await run.delete()
    with pytest.raises(NotFound, match="was deleted before it finished"):
        await waiting


async def test_a_sweep_is_submitted_with_its_lease_which_is_renewed(
    client: AsyncClient, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multistep.client.async_client._RENEWALS", 6000)
    cluster.patch_fails = [Unavailable("no answer")]
    judge = JudgeOptions("openai/m", keys=["keys:openai"])
    more: dict[str, Any] = {"attempts": 8, "name": "s", "lease_seconds": 30, "image": "i:1", "judge": judge}
    given = {"template": {"spec": {"podCleanup": "Never"}}}
    run = await client.submit([TASK], agents=["oracle", "mine=./run.sh"], spec=given, **more)
    spec = cluster.objects["TrialSweep", "s"]["spec"]
    template = spec["template"]["spec"]
    assert (template["podCleanup"], template["models"]["judge"]["model"]) == ("Never", "openai/m")
    assert (spec["lease"], spec["attempts"], spec["tasks"][0]["environment"]) == ({"seconds": 30}, 8, {"image": "i:1"})
    assert [each["name"] for each in spec["agents"]] == ["oracle", "mine"]
    await until(lambda: len(cluster.patches) >= 3)
    renewals = [each["metadata"]["annotations"]["multistep.dev/renewal"] for each in cluster.patches]
    assert len(set(renewals)) == len(renewals) and not any("spec" in each for each in cluster.patches)
    cluster.finish("s")
    await until(lambda: not client._leased)
    assert run.uid == "u-s"


async def test_at_the_end_of_the_block_unfinished_sweeps_are_stopped(cluster: FakeCluster) -> None:
    async with AsyncClient() as client:
        await client.submit([TASK], name="leased")
        await client.submit([TASK], name="detached", lease_seconds=None)
    assert cluster.objects["TrialSweep", "leased"]["spec"]["stop"] is True
    assert "stop" not in cluster.objects["TrialSweep", "detached"]["spec"]
    assert cluster.closed


async def test_the_end_of_the_block_leaves_a_finished_sweep_alone_so_that_a_retry_can_run(cluster: FakeCluster) -> None:
    async with AsyncClient() as client:
        await client.submit([TASK], name="s")
        await client.submit([TASK], name="gone")
        cluster.finish("s")
        del cluster.objects["TrialSweep", "gone"]
    assert "stop" not in cluster.objects["TrialSweep", "s"]["spec"]


async def test_a_sweep_whose_state_is_unknown_at_the_end_of_the_block_is_stopped(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncClient() as client:
        await client.submit([TASK], name="s")

        get, failing = cluster.get, [Unavailable("no answer")]

        async def no_answer(*place: Any) -> Any:
            if failing:
                raise failing.pop()
            return await get(*place)

        monkeypatch.setattr(cluster, "get", no_answer)
    assert cluster.objects["TrialSweep", "s"]["spec"]["stop"] is True


async def test_a_renewal_survives_errors_that_nobody_expects(
    client: AsyncClient, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("multistep.client.async_client._RENEWALS", 6000)
    cluster.patch_fails = [cast(Any, TypeError("no answer")), cast(Any, InvalidSpec("a status of a later release"))]
    await client.submit([TASK], name="s", lease_seconds=30)
    await until(lambda: len(cluster.patches) >= 2)
    assert "the lease of sweep s was not renewed" in caplog.text


async def test_an_error_that_nobody_expects_ends_the_loop_over_the_trials(client: AsyncClient, cluster: FakeCluster) -> None:
    run = await client.submit([TASK], name="s")
    waiting = asyncio.create_task(run.results())
    await until(lambda: len(cluster._watches) == 2)
    cluster.break_watches(cast(Any, TypeError("an event without an object")))
    with pytest.raises(TypeError, match="an event without an object"):
        await waiting


async def test_a_trial_that_the_operator_did_not_create_is_not_returned(client: AsyncClient, cluster: FakeCluster) -> None:
    run = await client.submit([TASK], name="s", attempts=2)
    cluster.trial("s", "one", scored(0.5))
    forged = cluster.objects["MultiStepTrial", next(iter(cluster.aliases))]
    for number in ("0", "1", "9"):
        metadata = {**forged["metadata"], "name": f"forged-{number}", "uid": f"f{number}"}
        metadata["labels"] = {**metadata["labels"], "multistep.dev/number": number}
        cluster.objects["MultiStepTrial", f"forged-{number}"] = {**forged, "metadata": metadata}
        cluster.put("MultiStepTrial", f"forged-{number}", status=scored(1.0))
    cluster.finish("s")
    assert [each.reward for each in await run.results()] == [0.5]


async def test_a_directory_of_a_task_becomes_a_bundle(client: AsyncClient, cluster: FakeCluster) -> None:
    await client.submit(["examples/hello-multi-step-advanced"], name="s", image="i:1")
    (task,) = cluster.objects["TrialSweep", "s"]["spec"]["tasks"]
    assert task["bundle"]["digest"].startswith("sha256:")
    assert [kind for kind, _ in cluster.objects] == ["TrialSweep", "ConfigMap"]


async def test_a_directory_that_the_operator_would_not_load_is_refused(
    client: AsyncClient, cluster: FakeCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The client checks tasks as `multistep sweep run` does."""
    shutil.copytree("examples/hello-multi-step-advanced", tmp_path / "hello")
    toml, instruction = tmp_path / "hello/task.toml", next((tmp_path / "hello/steps").glob("*/instruction.md"))
    text = toml.read_text()
    toml.write_text(f'min_rewards = 1\n{text}\n[solution.env]\nKEY = "${{KEY}}"\n')
    with pytest.raises(UsageError, match=r"needs a variable: set it in spec\['template'\]\['spec'\]\['variables'\]: KEY"):
        await client.submit([tmp_path / "hello"], image="i:1")
    assert "task hello-multi-step-advanced: task.toml:1: min_rewards: unknown key" in caplog.text
    given = {"template": {"spec": {"variables": [{"name": "KEY", "value": "v"}]}}}
    await client.submit([tmp_path / "hello"], image="i:1", spec=given)
    cluster.objects.clear()
    instruction.write_text("x" * (3 << 20))
    with pytest.raises(InvalidTask, match="more than the limit"):
        await client.submit([tmp_path / "hello"], image="i:1", spec=given)
    with pytest.raises(UsageError, match="name 'A_B' must be at most 63"):
        await client.submit([TASK], name="A_B")
    assert not cluster.objects


async def test_bad_input_names_what_is_wrong(client: AsyncClient, cluster: FakeCluster) -> None:
    with pytest.raises(UsageError, match="its image must be built first: `multistep build"):
        await client.submit(["examples/hello-multi-step-advanced"])
    with pytest.raises(InvalidSpec, match=r"spec\.attempts"):
        await client.submit([TASK], attempts=0)
    with pytest.raises(UsageError, match=r"^agents: x: must be oracle, nop"):
        await client.submit([TASK], agents=["x"])
    with pytest.raises(UsageError, match="sweep 'none' does not exist"):
        await client.get("none")
    assert not cluster.objects


@pytest.mark.parametrize("field", ["tasks", "agents", "attempts", "parallelism"])
async def test_a_field_of_the_spec_that_is_an_argument_is_an_error(client: AsyncClient, field: str) -> None:
    with pytest.raises(UsageError, match=f"spec: {field} is an argument of submit"):
        await client.submit([TASK], spec={field: 4})


async def test_files_are_read_on_demand(client: AsyncClient, cluster: FakeCluster) -> None:
    run = await client.submit([TASK], name="s", attempts=2)
    cluster.trial("s", "one", scored(1.0) | {"results": "service://m/o:1/results/x"})
    cluster.trial("s", "two", scored(1.0))
    cluster.finish("s")
    one, two = await run.results()
    cluster.files = {FILE.format(0): b"x" * (1 << 20), FILE.format(1 << 20): b"end"}
    assert await client.file(one, "a b/c.txt") == b"x" * (1 << 20) + b"end"
    with pytest.raises(StoreError, match=f"trial {one.name} has no file 'none'"):
        await client.file(one, "none")
    with pytest.raises(StoreError, match=f"trial {two.name} has no results"):
        await client.fetch(two, "out")


TOKENS = "/api/v1/namespaces/m/services/o:1/proxy/results/x/files/steps/only/agent/tokens.msgpack.zst?offset=0&limit=1048576"


async def test_samples_are_read_from_the_token_records_of_the_steps(
    client: AsyncClient, cluster: FakeCluster, tmp_path: Path
) -> None:
    run = await client.submit([TASK], name="s", attempts=2)
    for name in ("one", "two"):
        cluster.trial("s", name, scored(0.5) | {"results": "service://m/o:1/results/x"})
    cluster.finish("s")
    uncaptured, _ = await run.results()
    one, two = [replace(each, captured=True) for each in await run.results()]
    writer = Writer(tmp_path / "tokens", {})
    write(writer, 0, [1, 2], [3])
    writer.close()
    cluster.files = {TOKENS: (tmp_path / "tokens").read_bytes()}
    found = await client.samples(one)
    (sequence,) = found.sequences
    assert (list(sequence.ids), list(sequence.mask), list(sequence.credit or [])) == ([1, 2, 3], [0, 0, 1], [0, 0, 0.5])
    assert (found.reward, found.steps, found.missing) == (0.5, ["only"], {})
    cluster.files = {}
    without = await client.samples(two)
    with pytest.raises(UsageError, match="set capture to Tokens"):
        await client.samples(uncaptured)
    assert (without.sequences, without.reward, without.missing) == ([], 0.5, {"only": "the step has no token records"})


STEPS = [{"name": name, "phase": "Complete", "rewards": {"reward": score}} for name, score in (("a", 0.5), ("b", 1.0))]


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"score": 0.75, "scoreRule": {"steps": 2, "strategy": "Mean"}}, [0.25, 0.5]),
        ({"score": 0.375, "scoreRule": {"steps": 4, "strategy": "Mean"}}, [0.125, 0.25]),
        ({"score": 1.0, "scoreRule": {"steps": 2, "strategy": "Final"}}, [0.0, 1.0]),
        ({"score": 0.3, "scoreRule": None}, [0.0, 0.3]),
    ],
)
def test_the_parts_of_the_steps_sum_up_to_the_reward(changes: dict[str, Any], parts: list[float]) -> None:
    trial = {"metadata": {"name": "t"}, "status": {**scored(1.0), "steps": STEPS, **changes}}
    found = rollout(trial, Scoring())
    assert [each.part for each in found.steps] == parts and found.reward == sum(parts)


def test_the_steps_of_an_excluded_trial_have_no_part_of_a_reward() -> None:
    found = rollout({"metadata": {"name": "t"}, "status": {**excluded(), "steps": STEPS}}, Scoring())
    assert found.reward is None and [each.part for each in found.steps] == [None, None]


async def test_a_file_that_is_deleted_while_it_is_read_is_an_error(client: AsyncClient, cluster: FakeCluster) -> None:
    run = await client.submit([TASK], name="s")
    cluster.trial("s", "one", scored(1.0) | {"results": "service://m/o:1/results/x"})
    cluster.finish("s")
    cluster.files = {FILE.format(0): b"x" * (1 << 20)}
    with pytest.raises(StoreError, match="was deleted while it was read"):
        await client.file((await run.results())[0], "a b/c.txt")


def test_the_blocking_client_renews_in_its_own_thread_and_iterates(cluster: FakeCluster) -> None:
    with Client() as client:
        run = client.submit([TASK], name="s")
        client._loop.call_soon_threadsafe(cluster.trial, "s", "one", scored(0.5))
        client._loop.call_soon_threadsafe(cluster.finish, "s")
        assert [each.reward for each in run] == [0.5]
        assert client.get("s").status().phase == "Complete"
    assert cluster.closed and not client._thread.is_alive()


def test_the_client_is_imported_at_first_use() -> None:
    assert multistep.Client is Client
    code = "import sys, multistep; assert 'multistep.client' not in sys.modules; multistep.AsyncClient; import multistep.client"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": str(Path("operator").absolute())})
    with pytest.raises(AttributeError):
        _ = multistep.Nothing


class PlayedClient:
    """A client whose sweeps finish at once. outcomes: status of each trial, by the last argument of its command."""

    def __init__(self, outcomes: dict[str, dict[str, Any]]) -> None:
        self.outcomes = outcomes
        self.submitted: list[tuple[Any, list[str]]] = []

    def submit(self, tasks: list[Any], *, agents: list[dict[str, Any]], **options: Any) -> list[Any]:
        from multistep.api.sweep.sweep import Scoring
        from multistep.client.run import rollout

        cluster = FakeCluster()
        self.submitted.append((tasks[0], [each["agent"]["command"][-1] for each in agents]))
        assert options["spec"]["ttlSecondsAfterFinished"] == 3600
        for each in reversed(agents):
            cluster.trial("s", f"t{each['name']}", self.outcomes[each["agent"]["command"][-1]], agent=each["name"])
        return [rollout(found, Scoring()) for found in cluster.objects.values()]


def test_completions_become_trials_of_their_task_and_lost_ones_are_masked_for_trl() -> None:
    played = PlayedClient({"a": scored(1.0), "b": excluded(), "c": scored(0.0), "d\ufffd": scored(0.25)})
    reward = TrialReward(cast(Client, played), ["bash", "-c"])
    task = '{"name": "u", "inline": {"config": {}}}'
    completions: list[Any] = ["a", "b", [{"role": "assistant", "content": "c"}], "d\0"]
    found = reward(prompts=["p"] * 4, completions=completions, task=["tasks/t", task, "tasks/t", task], trainer_state=None)
    assert found == [1.0, None, 0.0, 0.25]
    assert played.submitted == [(Path("tasks/t"), ["a", "c"]), ({"name": "u", "inline": {"config": {}}}, ["b", "d\ufffd"])]
    assert [each and each.outcome for each in reward.rollouts] == ["Passed", "Excluded", "NotPassed", "NotPassed"]


@pytest.mark.parametrize("used", [False, True])
def test_a_blocking_client_after_its_block_is_an_error_and_does_not_hang(cluster: FakeCluster, used: bool) -> None:
    with Client() as client:
        if used:
            client.submit([TASK], name="s")
    for call in (lambda: client.submit([TASK]), client.__enter__):
        with pytest.raises(RuntimeError, match="the client is closed: create another one"):
            call()


def test_a_blocking_client_connects_at_its_first_call_and_close_stops_its_sweeps(cluster: FakeCluster) -> None:
    client = Client()
    run = client.submit([TASK], name="s")
    thread = client._thread
    assert client.get("s").name == run.name and client._thread is thread
    client.close()
    client.close()
    assert cluster.objects["TrialSweep", "s"]["spec"]["stop"] is True
    assert cluster.closed and not thread.is_alive()
    with pytest.raises(RuntimeError, match="the client is closed"):
        run.status()


def test_a_blocking_client_that_was_never_used_closes(cluster: FakeCluster) -> None:
    client = Client()
    client.close()
    with pytest.raises(RuntimeError, match="the client is closed"):
        client.submit([TASK])


def test_a_blocking_client_that_cannot_connect_can_try_again(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    client, connect = Client(), AsyncClient.__aenter__
    monkeypatch.setattr(AsyncClient, "__aenter__", refused)
    with pytest.raises(Unavailable, match="not now"):
        client.submit([TASK])
    assert not client._thread.is_alive()
    monkeypatch.setattr(AsyncClient, "__aenter__", connect)
    assert client.submit([TASK], name="s").name == "s"
    client.close()


async def refused(_: AsyncClient) -> AsyncClient:
    raise Unavailable("not now")


async def test_a_client_has_the_given_namespace_before_and_after_it_connects(cluster: FakeCluster) -> None:
    client = AsyncClient(namespace="evals")
    assert client.namespace == "evals"
    async with client:
        assert (client.namespace, cluster.namespace) == ("evals", "evals")


async def test_an_asynchronous_client_outside_of_its_block_is_an_error(cluster: FakeCluster) -> None:
    async with AsyncClient() as client:
        pass
    with pytest.raises(RuntimeError, match="use it inside of `async with AsyncClient"):
        await client.submit([TASK])


@pytest.mark.parametrize("given", [{"tasks": "tasks/hello"}, {"tasks": TASK}, {"tasks": [TASK], "agents": "oracle"}])
async def test_one_task_or_agent_that_is_not_in_a_list_is_an_error(client: AsyncClient, given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^{list(given)[-1]}: must be a list, such as "):
        await client.submit(**given)


async def test_a_client_names_the_kubeconfig_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=f"kubeconfig {tmp_path}/none does not exist"):
        async with AsyncClient(kubeconfig=f"{tmp_path}/none"):
            pass


@pytest.mark.parametrize("name", ["submit", "get", "file", "fetch", "samples", "rollouts"])
def test_a_blocking_method_has_the_parameters_and_the_docstring_of_the_asynchronous_one(name: str) -> None:
    blocking, asynchronous = getattr(Client, name), getattr(AsyncClient, name)
    assert inspect.signature(blocking).parameters == inspect.signature(asynchronous).parameters
    assert blocking.__doc__ == asynchronous.__doc__


def test_the_blocking_client_returns_blocking_runs() -> None:
    assert inspect.signature(Client.submit).return_annotation == "Run"
    assert inspect.signature(AsyncClient.submit).return_annotation == "AsyncRun"
