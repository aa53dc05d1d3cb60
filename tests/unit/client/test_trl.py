"""Rows for TRL: the tokens that the agents of trials sampled, masks, and rewards that are None for a trial that does not count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from multistep.api.sweep.sweep import Scoring
from multistep.client import Client, Rollout
from multistep.client.rollouts.merge_records import samples_of_records
from multistep.client.rollouts.sample import Samples
from multistep.client.run import rollout
from multistep.client.trl import TrialRollouts, rollout_score
from multistep.errors import StoreError

from .fakes import FakeCluster, excluded, scored
from .test_samples import request, steps

PADDING = 99
TRAINER = SimpleNamespace(processing_class=SimpleNamespace(pad_token_id=PADDING))
PADDED = ([PADDING], [PADDING], [0.0], [0])


class PlayedClient:
    """A client whose sweeps finish at once. statuses: of the trials of each task, in the order of their attempts."""

    def __init__(self, statuses: dict[str, list[dict[str, Any]]]) -> None:
        self.statuses = statuses
        self.options: list[dict[str, Any]] = []
        self.sampled: list[str] = []

    def submit(self, tasks: list[str], *, attempts: int, **options: Any) -> list[Rollout]:
        self.options.append(options)
        cluster = FakeCluster()
        assert attempts >= len(self.statuses[tasks[0]])
        for number, status in enumerate(self.statuses[tasks[0]], 1):
            name = f"{tasks[0]}-{number}"
            cluster.trial("s", name, status)
            cluster.objects["MultiStepTrial", name]["metadata"]["annotations"]["multistep.dev/attempt"] = str(number)
        return [rollout(found, Scoring()) for found in reversed(cluster.objects.values())]

    def samples(self, of: Rollout) -> Samples:
        self.sampled.append(of.name)
        if of.name == "b-2":
            raise StoreError("no results")
        number = of.attempt
        records = [
            request(1, [1, 2], [10, number]),
            request(2, [1, 2, 10, number, 3], [20]),
            request(3, [7], [30], context="helper"),
        ]
        return samples_of_records(steps(only=records if of.name != "b-1" else []), {"only": 1.0}, of.reward)


def test_each_prompt_gets_a_trial_and_its_row_has_the_sampled_tokens() -> None:
    played = PlayedClient({"a": [scored(1.0), excluded(), scored(0.0)], "b": [scored(0.5), scored(0.5)]})
    rollouts = TrialRollouts(cast(Client, played), "oracle", {"do a": "a", "do b": "b"}.__getitem__, parallelism=3)
    found = rollouts(["do a", "do b", "do a", "do a", "do b", "do b"], TRAINER)
    rows = list(zip(*(found[name] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask")), strict=True))
    first, no_requests, lost, third, unread, never_created = rows
    assert (first[0], first[1], first[3]) == ([1, 2], [10, 1, 3, 20], [1, 1, 0, 1])
    assert [round(each, 6) for each in first[2]] == [-1.0, -0.1, 0.0, -2.0]
    assert third[1] == [10, 3, 3, 20]
    assert [no_requests, lost, unread, never_created] == [PADDED] * 4
    assert found["score"] == [1.0, 0.5, None, 0.0, None, None]
    assert found["left_out"] == [1, 0, 0, 1, 0, 0]
    assert [each and each.name for each in rollouts.rollouts] == ["a-1", "b-1", "a-2", "a-3", "b-2", None]
    assert "a-2" not in played.sampled
    assert played.options[0]["spec"] == {"ttlSecondsAfterFinished": 3600} and played.options[0]["parallelism"] == 3


def test_the_reward_function_returns_the_scores_and_their_masks() -> None:
    assert rollout_score(completions=[[1], [2]], score=[1.0, None], prompts=["a", "a"]) == [1.0, None]
