"""Training with trl.GRPOTrainer: a reward function that runs each completion as a trial, and a rollout_func whose completions are
what the agents of trials sampled. Imports nothing of TRL; tested with TRL 1.16."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from multistep.client.async_client import TTL_SECONDS, Agent, Task
from multistep.client.blocking import Client, Run
from multistep.client.rollouts.sample import Samples
from multistep.client.run import Rollout
from multistep.errors import MultistepError

logger = logging.getLogger(__name__)

_COLUMNS: Final = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "score", "left_out")
_MAX_AGENTS: Final = 64  # maximum number of agents of a sweep


class TrialReward:
    """A reward function of trl.GRPOTrainer: each completion is run as a trial, and its score is the reward.

        trainer = GRPOTrainer(model, reward_funcs=TrialReward(client, ["bash", "-c"]), train_dataset=dataset, args=config)

    The dataset needs a column ``task``: a task's directory, or an entry of spec.tasks as a table or as JSON text. The completion is
    the last argument of the command, so ["bash", "-c"] runs it as a script, in each step of the task. The completions of a task
    become one sweep, or several for more than 64 completions.

    An invalid rollout has the reward None. TRL excludes it from the group's mean and gives it no advantage, so an infrastructure
    failure does not change the model.
    """

    __name__ = "multistep"  # TRL's name of this reward in its logs

    def __init__(
        self,
        client: Client,
        command: Sequence[str],
        *,
        parallelism: int = 8,
        image: str | None = None,
        lease_seconds: int = 60,
        spec: Mapping[str, Any] | None = None,
    ) -> None:
        """parallelism: the maximum number of active trials per sweep. image, lease_seconds and spec are those of
        ``AsyncClient.submit``. A finished sweep is deleted after an hour, unless spec has another ttlSecondsAfterFinished."""
        self._client, self._command = client, list(command)
        self._parallelism, self._image, self._lease_seconds = parallelism, image, lease_seconds
        self._spec = {"ttlSecondsAfterFinished": TTL_SECONDS, **(spec or {})}
        self.rollouts: list[Rollout | None] = []
        """The trials of the last call, in the order of its completions; None if a trial was not created."""

    def __call__(self, *, completions: Sequence[Any], task: Sequence[Any], **_: Any) -> list[float | None]:
        """Return the reward of each completion; None if training must mask it. Raises ClusterError, UsageError and InvalidSpec as
        ``AsyncClient.submit``."""
        texts = [_text(each) for each in completions]
        runs = [(numbers, self._submit(place, [texts[each] for each in numbers])) for place, numbers in _groups(task)]
        self.rollouts = [None] * len(texts)
        for numbers, run in runs:
            for rollout in run:
                self.rollouts[numbers[int(rollout.agent)]] = rollout
        return [each.reward if each is not None else None for each in self.rollouts]

    def _submit(self, task: Task, texts: Sequence[str]) -> Run:
        agents = [{"name": str(number), "agent": self._agent(text)} for number, text in enumerate(texts)]
        return self._client.submit(
            [task],
            agents=agents,
            parallelism=self._parallelism,
            image=self._image,
            lease_seconds=self._lease_seconds,
            spec=self._spec,
        )

    def _agent(self, text: str) -> dict[str, Any]:
        return {"name": "command", "command": [*self._command, text.replace("\0", "\ufffd")]}  # no argument can contain NUL


class TrialRollouts:
    """A rollout_func of trl.GRPOTrainer: each completion is a trial, whose agent calls the trainer's model by the model gateway.

        rollouts = TrialRollouts(client, agent, task_of={"fix the build": "tasks/build"}.__getitem__)
        trainer = GRPOTrainer(model, reward_funcs=rollout_score, rollout_func=rollouts, train_dataset=dataset, args=config)

    The agent needs ``capture: Tokens``. TRL trains one sequence per completion: that with the most trained tokens. The column
    ``left_out`` has the number of trained tokens in the others. A rollout that is not valid, or whose token records cannot be read,
    has the reward None and a sequence without trained tokens.
    """

    def __init__(
        self,
        client: Client,
        agent: Agent,
        task_of: Callable[[Any], Task],
        *,
        parallelism: int = 8,
        image: str | None = None,
        lease_seconds: int = 60,
        spec: Mapping[str, Any] | None = None,
    ) -> None:
        """task_of: the task of a prompt of the dataset. The other arguments are those of TrialReward and ``AsyncClient.submit``."""
        self._client, self._agent, self._task_of = client, agent, task_of
        self._parallelism, self._image, self._lease_seconds = parallelism, image, lease_seconds
        self._spec = {"ttlSecondsAfterFinished": TTL_SECONDS, **(spec or {})}
        self.rollouts: list[Rollout | None] = []
        """The trials of the last call, in the order of its prompts; None if a trial was not created."""

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """Run a trial for each prompt, and return TRL's columns and the columns of ``rollout_score``. Raises ClusterError,
        UsageError and InvalidSpec as ``AsyncClient.submit``."""
        runs = [(numbers, self._submit(prompts[numbers[0]], len(numbers))) for numbers in _equal(prompts)]
        self.rollouts = [None] * len(prompts)
        for numbers, run in runs:
            for rollout in run:
                self.rollouts[numbers[rollout.attempt - 1]] = rollout
        return columns([self._samples(each) for each in self.rollouts], trainer.processing_class.pad_token_id)

    def _submit(self, prompt: Any, attempts: int) -> Run:
        return self._client.submit(
            [self._task_of(prompt)],
            agents=[self._agent],
            attempts=attempts,
            parallelism=self._parallelism,
            image=self._image,
            lease_seconds=self._lease_seconds,
            spec=self._spec,
        )

    def _samples(self, rollout: Rollout | None) -> Samples | None:
        if rollout is None or not rollout.valid:
            return None
        try:
            return self._client.samples(rollout)
        except MultistepError as error:
            logger.warning("the token records of trial %s cannot be read, so it is masked: %s", rollout.name, error)
            return None


def columns(rollouts: Sequence[Samples | None], padding: int) -> dict[str, list[Any]]:
    """Return the columns of TRL's rollout_func, one item per rollout, and ``score`` and ``left_out``, which TRL passes to reward
    functions. padding: id of a token for rollouts without trained tokens."""
    rows = [_row(each, padding) for each in rollouts]
    return {name: [row[name] for row in rows] for name in _COLUMNS}


def _row(samples: Samples | None, padding: int) -> dict[str, Any]:
    trained = [sum(each.mask) for each in samples.sequences] if samples else []
    row = {"score": samples.reward if samples else None, "left_out": sum(trained) - max(trained, default=0)}
    if samples is None or not any(trained):
        return row | {"prompt_ids": [padding], "completion_ids": [padding], "logprobs": [0.0], "env_mask": [0]}
    best = samples.sequences[trained.index(max(trained))]
    start = best.mask.index(1)
    return row | {
        "prompt_ids": list(best.ids[:start]),
        "completion_ids": list(best.ids[start:]),
        "logprobs": list(best.logprobs[start:]),
        "env_mask": list(best.mask[start:]),
    }


def rollout_score(*, score: Sequence[float | None], **_: Any) -> list[float | None]:
    """A reward function of trl.GRPOTrainer: the rewards of the trials of ``TrialRollouts``; None masks a completion."""
    return list(score)


def _equal(prompts: Sequence[Any]) -> Iterable[list[int]]:
    """Return the indexes of equal prompts: TRL repeats a prompt for each completion."""
    found: dict[str, list[int]] = {}
    for number, each in enumerate(prompts):
        found.setdefault(json.dumps(each, sort_keys=True, default=str), []).append(number)
    return found.values()


def _groups(tasks: Sequence[Any]) -> list[tuple[Task, list[int]]]:
    """Return the sweeps to create: the task of each, and the indexes of its completions (at most _MAX_AGENTS)."""
    by_task: dict[str, tuple[Task, list[int]]] = {}
    for number, each in enumerate(tasks):
        place = _place(each)
        by_task.setdefault(json.dumps(place, sort_keys=True, default=str), (place, []))[1].append(number)
    return [
        (place, numbers[start : start + _MAX_AGENTS])
        for place, numbers in by_task.values()
        for start in range(0, len(numbers), _MAX_AGENTS)
    ]


def _place(task: Any) -> Task:
    """Return the task of a dataset's row. An entry of spec.tasks may be JSON text, because a column of tables adds nulls to a
    row for keys that only other rows have."""
    if isinstance(task, str) and task.lstrip().startswith("{"):
        found: dict[str, Any] = json.loads(task)
        return found
    return task if isinstance(task, Mapping) else Path(task)


def _text(completion: Any) -> str:
    """Return the text of a completion: the completion itself, or the last message if it is a conversation."""
    return str(completion if isinstance(completion, str) else completion[-1]["content"])
