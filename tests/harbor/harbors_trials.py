"""Print as JSON Harbor's table of error policies, and how Harbor's own trials end whose agent raises an exception of each type.

Runs in a Python with Harbor. The environment is a stub: its commands do nothing, and each verification finds the reward 1.
"""

# mypy: disallow-subclassing-any=False
from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "true"  # prevents litellm from downloading its price list

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.models.trial.error_policy import ERROR_POLICIES, UNKNOWN_ERROR_POLICY, ErrorPolicyOverride
from harbor.trial.trial import Trial

OTHERS = ("RuntimeError", "ValueError", "FileNotFoundError", "OutOfMemoryError", "OutOfDiskError", "NoSuchError")
STEPS = ("a", "b")
OVERRIDDEN = {
    "ModelNotFoundError": {"should_grade": True},
    "ApiRateLimitError": {"should_grade": False},
    "NonZeroAgentExitCodeError": {"has_valid_reward": False},
    "ApiError": {"has_valid_reward": True},
}


class Environment(BaseEnvironment):
    """An environment whose commands do nothing and succeed."""

    @staticmethod
    def type() -> str:
        return "stub"

    def _validate_definition(self) -> None:
        pass

    async def start(self, force_build: bool) -> None:
        pass

    async def stop(self, delete: bool) -> None:
        pass

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        pass

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        pass

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        pass

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        _download(source_dir, Path(target_dir))

    async def exec(self, *_: Any, **__: Any) -> ExecResult:
        return ExecResult(stdout="/app", stderr="", return_code=0)


def _download(source: str, target: Path) -> None:
    """Write what a directory of the environment has: the verifier's has a reward."""
    target.mkdir(parents=True, exist_ok=True)
    if source.endswith("verifier"):
        (target / "reward.txt").write_text("1")


class Raises(BaseAgent):
    """An agent that raises an exception in its first run. raises: name of the exception's class."""

    def __init__(self, logs_dir: Path, raises: str = "", **kwargs: Any) -> None:
        super().__init__(logs_dir, **kwargs)
        self._raises = raises

    @staticmethod
    def name() -> str:
        return "raises"

    def version(self) -> str:
        return "1"

    async def setup(self, environment: BaseEnvironment) -> None:
        pass

    async def run(self, instruction: str, environment: BaseEnvironment, context: Any) -> None:
        raised, self._raises = self._raises, ""
        if raised:
            raise type(raised, (Exception,), {})("it failed")


def make_task(directory: Path, steps: tuple[str, ...]) -> Path:
    """Write a task with these steps, or a single-step task, and return its directory."""
    names = [f'[[steps]]\nname = "{name}"\n' for name in steps]
    for place in [directory / "steps" / name for name in steps] or [directory]:
        (place / "tests").mkdir(parents=True)
        (place / "tests/test.sh").write_text("#!/bin/sh\n")
        (place / "instruction.md").write_text("do it\n")
    (directory / "task.toml").write_text("".join(['[environment]\ndocker_image = "img"\n', *names]))
    return directory


async def ended(top: Path, task: Path, raises: str, overrides: dict[str, dict[str, bool]]) -> dict[str, Any]:
    """Return how the trial ended."""
    module = Path(__file__).stem
    config = TrialConfig(
        task=TaskConfig(path=task),
        trial_name=f"{task.name}-{raises}-{len(overrides)}",
        trials_dir=top / "trials",
        agent=AgentConfig(import_path=f"{module}:Raises", kwargs={"raises": raises}),
        environment=EnvironmentConfig(import_path=f"{module}:Environment"),
        override_error_policy={name: ErrorPolicyOverride(**flags) for name, flags in overrides.items()},
    )
    result = await (await Trial.create(config)).run()
    steps = result.step_results if result.step_results is not None else [result]
    return {
        "steps": [
            {
                "verified": step.verifier is not None,
                "rewards": step.verifier_result and step.verifier_result.rewards,
                "exception": step.exception_info and json.loads(step.exception_info.model_dump_json())["exception_type"],
                "policy": step.exception_info and json.loads(step.exception_info.model_dump_json())["policy"],
            }
            for step in steps
        ],
        "rewards": result.verifier_result and result.verifier_result.rewards,
        "reward_valid": result.reward_valid,
    }


async def main() -> None:
    flags = {name: [each.should_retry, each.should_grade, each.has_valid_reward] for name, each in ERROR_POLICIES.items()}
    unknown = [UNKNOWN_ERROR_POLICY.should_retry, UNKNOWN_ERROR_POLICY.should_grade, UNKNOWN_ERROR_POLICY.has_valid_reward]
    with tempfile.TemporaryDirectory() as directory:
        top = Path(directory)
        tasks = {"single": make_task(top / "single", ()), "multi": make_task(top / "multi", STEPS)}
        found = {
            f"{kind}-{name}": await ended(top, task, name, {})
            for kind, task in tasks.items()
            for name in ("", *ERROR_POLICIES, *OTHERS)
        }
        found |= {
            f"{kind}-{name}-overridden": await ended(top, task, name, {name: flag})
            for kind, task in tasks.items()
            for name, flag in OVERRIDDEN.items()
        }
    print(json.dumps({"policies": flags, "unknown": unknown, "overridden": OVERRIDDEN, "trials": found}), flush=True)
    os._exit(0)  # litellm leaves threads that do not end


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    asyncio.run(main())
