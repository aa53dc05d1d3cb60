"""Train with TRL's GRPOTrainer on the tokens of trials that a played client returns, and check rewards, masks and rows.

Run by ``python -m tests.training.run_token_rows``, with the Python of an environment that has TRL and Multistep.
"""

# mypy: disable-error-code="import-not-found,import-untyped"
from __future__ import annotations

import tempfile
from array import array
from types import SimpleNamespace
from typing import Any

from datasets import Dataset
from grpo import GROUP, PROMPTS, model, tokenizer
from trl import GRPOConfig, GRPOTrainer

from multistep.client.rollouts.merge_records import samples_of_records
from multistep.client.rollouts.sample import Samples
from multistep.client.trl import TrialRollouts, rollout_score
from multistep.token_records.record import Record, StepRecords, StoredPrompt

STEPS = 4
LOST = 5  # the attempt of each group that the infrastructure lost
SOLVE, IDLE, GO = 8, 9, 3


def request(order: int, prompt: list[int], ids: list[int]) -> Record:
    """Return the record of a request of a new model, for which all words are about equally likely."""
    values = {"id": f"r{order}", "answer": "", "order": order, "began": 1.0, "ended": 2.0, "step": "", "choice": 0, "context": ""}
    stored, logprobs = StoredPrompt([], array("I", prompt).tobytes()), array("f", [-2.3] * len(ids))
    more = {"finish": "stop", "state": "Done", "seen": 1, "ids": array("I", ids), "logprobs": logprobs}
    return Record.model_validate({**values, **more, "stored_prompt": stored})


class PlayedClient:
    """Stands for Client: every second trial answers ``solve`` in its second step, and its score is 1."""

    def __init__(self) -> None:
        self.attempts: list[int] = []

    def submit(self, tasks: list[str], *, attempts: int, **_: Any) -> list[Any]:
        self.attempts.append(attempts)
        return [
            SimpleNamespace(name=f"{tasks[0]}-{number}", attempt=number, valid=number != LOST) for number in range(1, attempts + 1)
        ]

    def samples(self, rollout: Any) -> Samples:
        word = SOLVE if rollout.attempt % 2 else IDLE
        one, two = [request(1, [GO, 4], [word, 1])], [request(1, [GO, 4, word, 1, GO], [word, 5, 1])]
        records = {"one": StepRecords({}, one, ""), "two": StepRecords({}, two, "")}
        reward = float(word == SOLVE)
        return samples_of_records(records, {"one": 0.0, "two": reward}, reward)


def main() -> None:
    seen: list[list[float | None]] = []

    def score(**given: Any) -> list[float | None]:
        seen.append(rollout_score(**given))
        assert given["left_out"] == [0] * len(seen[-1])
        return seen[-1]

    played, policy = PlayedClient(), model()
    rollouts = TrialRollouts(played, "oracle", lambda prompt: prompt)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as output:
        config = GRPOConfig(
            output_dir=output, use_cpu=True, bf16=False, report_to=[], save_strategy="no", logging_steps=1, max_steps=STEPS, seed=1,
            num_generations=GROUP, per_device_train_batch_size=GROUP * PROMPTS, learning_rate=0.01, disable_tqdm=True,
        )  # fmt: skip
        dataset = Dataset.from_list([{"prompt": f"go {number}"} for number in range(PROMPTS * STEPS)])
        trainer = GRPOTrainer(
            policy, reward_funcs=score, args=config, train_dataset=dataset, processing_class=tokenizer(), rollout_func=rollouts
        )
        before = chance_of_solve(policy)
        trainer.train()
    assert played.attempts == [GROUP] * PROMPTS * STEPS, "equal prompts are one sweep"
    assert all(each == [1.0, 0.0, 1.0, 0.0, None, 0.0, 1.0, 0.0] * PROMPTS for each in seen) and len(seen) == STEPS
    after = chance_of_solve(policy)
    assert after > before, (before, after)
    trained = f"the chance of the rewarded word rose from {before:.3f} to {after:.3f}"
    print(f"{len(seen) * len(seen[0])} rollouts in TRL, an eighth masked; {trained}")


def chance_of_solve(policy: Any) -> float:
    """Return the probability of the rewarded word as the first answer."""
    import torch

    with torch.no_grad():
        logits = policy(torch.tensor([[GO, 4]])).logits[0, -1]
    return float(logits.softmax(-1)[SOLVE])


if __name__ == "__main__":
    main()
