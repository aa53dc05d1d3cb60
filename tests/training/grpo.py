"""Train a small model with TRL's GRPOTrainer; each completion is a trial in the cluster. Print the rollouts and rewards as JSON.

Run by ``python -m tests.training``, with the Python of an environment that has TRL and Multistep: ``python grpo.py NAMESPACE``.
The model is new and has a few thousand weights, so nothing is downloaded. One of its ten words solves the tasks.
"""

# mypy: disable-error-code="import-not-found,import-untyped"
from __future__ import annotations

import json
import os
import sys
import tempfile

os.environ |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TRL_EXPERIMENTAL_SILENCE": "1"}

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from multistep import Client
from multistep.client.trl import TrialReward

GROUP, PROMPTS, STEPS = 8, 4, 8  # 8 steps of 4 prompts with 8 completions: 256 rollouts
WORDS = ["<pad>", "<eos>", "<unk>", "go", "0", "1", "2", "3", "solve", "idle"]
TEST = "#!/bin/sh\ncat /tmp/solved > /logs/verifier/reward.txt 2>/dev/null || echo 0 > /logs/verifier/reward.txt\n"
STEP = {"steps/only/instruction.md": "Solve it.", "steps/only/tests/test.sh": TEST}
LOST = 3  # the number of the task whose image no node can pull: its rollouts must be masked


def task(number: int) -> str:
    """Return the task of a prompt as an entry of spec.tasks, in JSON."""
    image = "127.0.0.1:9/none:1" if number == LOST else "debian:bookworm-slim"
    environment = {"build_timeout_sec": 5} if number == LOST else {}
    inline = {"config": {"environment": environment, "steps": [{"name": "only"}]}, "files": STEP}
    return json.dumps({"name": f"task-{number}", "inline": inline, "environment": {"image": image}})


def tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def model() -> GPT2LMHeadModel:
    torch.manual_seed(1)
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(WORDS), n_positions=32, n_embd=32, n_layer=1, n_head=2, **tokens))


class Recorded(TrialReward):
    """Records the rollouts and rewards of all calls."""

    seen: list[dict[str, object]]

    def __call__(self, **given: object) -> list[float | None]:
        rewards = super().__call__(**given)  # type: ignore[arg-type]
        self.seen += [
            {"reward": reward, "task": each and each.task, "outcome": each and each.outcome, "name": each and each.name}
            for reward, each in zip(rewards, self.rollouts, strict=True)
        ]
        return rewards


def main(namespace: str) -> None:
    script = 'for word in $1; do [ "$word" = solve ] && echo 1 > /tmp/solved; done; true'
    spec = {"template": {"spec": {"infrastructureRetries": 0}}}
    with Client(namespace=namespace) as client, tempfile.TemporaryDirectory() as output:
        reward = Recorded(client, ["sh", "-c", script, "sh"], parallelism=GROUP, spec=spec)
        reward.seen = []
        config = GRPOConfig(
            output_dir=output, use_cpu=True, report_to=[], save_strategy="no", logging_steps=1, max_steps=STEPS, seed=1,
            num_generations=GROUP, per_device_train_batch_size=GROUP * PROMPTS, max_completion_length=2, learning_rate=0.05,
            disable_tqdm=True, dataloader_num_workers=0,
        )  # fmt: skip
        rows = [{"prompt": f"go {number}", "task": task(number)} for number in range(PROMPTS)] * STEPS
        trainer = GRPOTrainer(
            model(), reward_funcs=reward, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer()
        )
        trainer.train()
        log = [each for each in trainer.state.log_history if "reward" in each]
        print(
            json.dumps({"rollouts": reward.seen, "rewards": [each["reward"] for each in log], "steps": trainer.state.global_step})
        )


if __name__ == "__main__":
    main(sys.argv[1])
