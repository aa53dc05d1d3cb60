"""Warns of steps whose rewards lack the key "reward", as far as gates and test.sh show the keys. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from multistep.api.task.task_toml import StepConfig
from multistep.cli.task.findings import Finding, line_of
from multistep.engine.score.trial_score import REWARD
from multistep.sources.task.bundle import Bundle
from multistep.sources.task.bundle_links import lookup

_KEY: Final = re.compile(rb"""\\?["']reward\\?["']\s*[:\]=]""")  # the key "reward" in JSON, a dict or a subscript


def reward_key_warnings(bundle: Bundle, steps: Sequence[StepConfig]) -> Iterator[Finding]:
    """Yield a warning for each step whose rewards lack the key "reward". The text says how this affects the step's score or the
    task's reward."""
    found = [known for index, step in enumerate(steps) if (known := _has_reward(bundle, index, step)) is not None]
    mixed = any(named for named, _ in found)
    for named, where in found:
        if not named and mixed:
            yield Finding(
                where,
                "the rewards have no key reward, but those of other steps do: the task's own reward counts a missing key "
                "as 0, so the highest reward is less than 1; write the key reward, too",
            )
        elif not named:
            text = "the rewards have no key reward: the step's score is the mean of all keys"
            yield Finding(where, f"{text}; a sweep can choose one with spec.scoring.key")


def _has_reward(bundle: Bundle, index: int, step: StepConfig) -> tuple[bool, str] | None:
    """Return whether a step's rewards have the key "reward", and the field or file that shows this; None if unknown."""
    gate, where = step.min_reward, f"steps[{index}].min_reward"
    if gate is not None and (not isinstance(gate, Mapping) or REWARD in gate):
        return True, where
    own = f"steps/{step.name}/tests/test.sh"
    script = lookup(bundle, own)
    path = own if script else "tests/test.sh"
    entry = script or lookup(bundle, path)
    text = bytes(entry.data) if entry else b""
    if b"reward.txt" in text or _KEY.search(text):
        return True, path
    if line := line_of(text, lambda each: b"reward.json" in each):
        return False, f"{path}:{line}"
    return (False, where) if gate else None
