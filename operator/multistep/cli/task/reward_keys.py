"""Warns of steps whose rewards have different keys, as far as gates and test.sh show them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from multistep.api.task_toml import StepConfig
from multistep.engine.score import REWARD
from multistep.sources.bundle import Bundle
from multistep.sources.links import lookup

_KEY: Final = re.compile(rb"""\\?["']reward\\?["']\s*[:\]=]""")  # the key in JSON, a dict or a subscript


def reward_key_warnings(bundle: Bundle, steps: Sequence[StepConfig]) -> Iterator[str]:
    """Yield why the task's own reward is not 1 for full marks, or which number its score is made of."""
    found = {step.name: known for step in steps if (known := _has_reward(bundle, step)) is not None}
    without = [name for name, known in found.items() if not known]
    if not without:
        return
    names = ", ".join(without)
    if len(without) < len(found):
        yield (
            f"rewards of step {names} have no key reward, but those of other steps do: the task's own reward counts a missing key "
            "as 0, so full marks are less than 1; write the key reward, too"
        )
    else:
        yield (
            f"rewards of step {names} have no key reward: the score counts the mean of their keys; a sweep can choose one with "
            "spec.scoring.key"
        )


def _has_reward(bundle: Bundle, step: StepConfig) -> bool | None:
    """Return whether a step's rewards have the key "reward"; None if that is unknown."""
    gate = step.min_reward
    if gate is not None and (not isinstance(gate, Mapping) or REWARD in gate):
        return True
    script = lookup(bundle, f"steps/{step.name}/tests/test.sh") or lookup(bundle, "tests/test.sh")
    text = bytes(script.data) if script else b""
    if b"reward.txt" in text or _KEY.search(text):
        return True
    return False if gate or b"reward.json" in text else None
