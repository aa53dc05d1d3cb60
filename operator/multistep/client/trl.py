"""A reward function for trl.GRPOTrainer that runs each completion as a trial. Imports nothing of TRL; tested with TRL 1.16."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from multistep.client.async_client import TTL_SECONDS, Task
from multistep.client.blocking import Client, Run
from multistep.client.run import Rollout

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
