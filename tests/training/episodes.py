"""Run episodes of verifiers with a client whose trials have known tokens and rewards, and check the traces.

Run by ``python -m tests.training.run_episodes``, with the Python of an environment that has verifiers and Multistep.
"""

# mypy: disable-error-code="import-not-found,import-untyped"
from __future__ import annotations

import asyncio
from array import array
from types import SimpleNamespace
from typing import Any, Self

import verifiers.v1 as vf
from verifiers.v1.clients import ModelContext
from verifiers.v1.utils.loaders import load_environment

from multistep.client import verifiers_env
from multistep.client.rollouts.merge_records import samples_of_records
from multistep.client.rollouts.sample import Samples
from multistep.token_records.record import Record, StepRecords, StoredPrompt

LOST, NEVER_CREATED = "4", "5"
TASKS = ["0", "1", "2", "3", LOST, NEVER_CREATED]


def request(order: int, prompt: list[int], ids: list[int], context: str = "main") -> Record:
    values = {"id": f"r{order}", "answer": "", "order": order, "began": 1.0, "ended": 2.0, "step": "", "choice": 0}
    stored = StoredPrompt([], array("I", prompt).tobytes())
    logprobs = array("f", [-each / 10 for each in ids])
    more = {"context": context, "finish": "stop", "state": "Done", "seen": 1, "ids": array("I", ids), "logprobs": logprobs}
    return Record.model_validate({**values, **more, "stored_prompt": stored})


def samples_of(task: str) -> Samples:
    """Return the samples of a task's trial: two steps of one session, and a sub-agent."""
    number = int(task)
    one = [request(1, [1, 2], [10 + number])]
    two = [request(1, [1, 2, 10 + number, 3], [20, 21]), request(2, [5], [6], "helper")]
    records = {"one": StepRecords({}, one, ""), "two": StepRecords({}, two, "")}
    return samples_of_records(records, {"one": 0.25, "two": 0.5 * number}, 0.25 + 0.5 * number)


class PlayedClient:
    """Stands for AsyncClient."""

    submitted: list[dict[str, Any]] = []  # noqa: RUF012  # of all clients

    def __init__(self, *, namespace: str | None) -> None:
        assert namespace == "training"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def submit(self, tasks: list[str], *, agents: list[dict[str, Any]], **_: Any) -> Any:
        self.submitted.append(agents[0]["agent"])
        steps = [SimpleNamespace(name="one", score=0.5), SimpleNamespace(name="two", score=1.0)]
        trial = SimpleNamespace(name=tasks[0], valid=tasks[0] != LOST, steps=steps, reason="PodDeleted", message="the pod is gone")

        async def results() -> list[Any]:
            return [] if tasks[0] == NEVER_CREATED else [trial]

        return SimpleNamespace(results=results)

    async def samples(self, rollout: Any) -> Samples:
        return samples_of(rollout.name)


async def episodes() -> list[vf.Episode]:
    agent = {"name": "terminus-2", "credentials": [{"name": "OPENAI_API_KEY", "value": "k"}]}
    config = verifiers_env.TrialEnvConfig(taskset={"id": "my_tasks", "tasks": TASKS}, trial_agent=agent, namespace="training")
    env = load_environment(config)
    context = ModelContext(client=vf.EvalClientConfig(base_url="http://policy:8000/v1"), model="tiny", sampling=vf.SamplingConfig())
    async with env.serving():
        return [await env.run_slot(slot, context) for task in env.taskset for slot in env.slots(task)]


def main() -> None:
    verifiers_env.AsyncClient = PlayedClient  # type: ignore[assignment, attr-defined]
    found = asyncio.run(episodes())
    assert [each.ok for each in found] == [True] * 4 + [False] * 2
    assert PlayedClient.submitted[0] == {
        "model": "openai/tiny",
        "baseURL": "http://policy:8000/v1",
        "capture": "Tokens",
        "name": "terminus-2",
        "credentials": [{"name": "OPENAI_API_KEY", "value": "k"}],
    }
    for task, episode in zip(TASKS[:4], found, strict=False):
        (trace,) = vf.WireEpisode.model_validate(episode.model_dump(mode="python")).traces
        wanted = samples_of(task)
        assert trace.reward == wanted.reward
        for branch, sample in zip(trace.branches, wanted.sequences, strict=True):
            assert branch.token_ids == list(sample.ids) and branch.sampled_mask == [bool(each) for each in sample.mask]
            assert branch.logprobs == list(sample.logprobs) and branch.advantages == list(sample.credit or [])
    assert "PodDeleted: the pod is gone" in str(found[4].traces[0].errors), found[4].traces[0]
    print(f"{len(found)} episodes of verifiers: tokens, masks, log-probabilities, credit and rewards are those of the trials")


if __name__ == "__main__":
    main()
