"""Parses the verifier's reward files, checks gates and computes the trial's rewards, as Harbor 0.26 does (verifier)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Literal

from multistep.engine.journal.journal import Number

Rewards = Mapping[str, Number]

REWARD_JSON = "/logs/verifier/reward.json"
REWARD_TXT = "/logs/verifier/reward.txt"


class RewardError(Exception):
    """The reward files are missing or invalid."""

    def __init__(self, type_: str, message: str) -> None:
        """Create the error. ``type_`` is Harbor's class name for it."""
        super().__init__(message)
        self.type = type_


def parse_reward_files(json_file: bytes | None, txt_file: bytes | None) -> dict[str, Number]:
    """Return the rewards in reward.json, or in reward.txt if reward.json is missing. Raises RewardError.

    The arguments are the contents of the two files, None for a missing file. A malformed reward.json is an error even if reward.txt
    is valid.
    """
    if json_file is not None:
        return parse_reward_json(json_file)
    if txt_file is not None:
        return parse_reward_txt(txt_file)
    raise RewardError("RewardFileNotFoundError", f"the verifier wrote neither {REWARD_JSON} nor {REWARD_TXT}")


def parse_reward_txt(data: bytes) -> dict[str, Number]:
    """Return the single number in reward.txt under the key "reward". Python's float() parses the number. Raises RewardError."""
    _require_content(data, REWARD_TXT)
    try:
        value = float(data.decode())
    except ValueError as error:
        raise _unparsable(REWARD_TXT, f"{_shown(data)} is not a number") from error
    return {"reward": _finite(value, REWARD_TXT)}


def parse_reward_json(data: bytes) -> dict[str, Number]:
    """Return the JSON object in reward.json, whose values must be finite numbers or booleans. Raises RewardError.

    A boolean becomes 1.0 or 0.0. Integers stay integers.
    """
    _require_content(data, REWARD_JSON)
    try:
        value = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise _unparsable(REWARD_JSON, f"{_shown(data)} is not JSON") from error
    if isinstance(value, bool | int | float):
        _finite(value, REWARD_JSON)
        raise RewardError("ValidationError", f"{REWARD_JSON} holds a bare number; it must be an object of numbers")
    if not isinstance(value, dict):
        raise _unparsable(REWARD_JSON, "it must be an object of numbers")
    return {key: _finite(reward, f"{REWARD_JSON}, key {_shown_key(key)}") for key, reward in value.items()}


def gate_failure(minimum: float | Mapping[str, float] | None, rewards: Rewards | None) -> str | None:
    """Return why a step's rewards do not pass its min_reward, None if they pass.

    If ``minimum`` is a number, it is the minimum of the key "reward". If it is a table, it has the minimum of each of its keys. A
    missing reward counts as minus infinity. A reward equal to the minimum passes.
    """
    if minimum is None:
        return None
    thresholds = minimum if isinstance(minimum, Mapping) else {"reward": minimum}
    for key, threshold in thresholds.items():
        actual = (rewards or {}).get(key, -math.inf)
        if actual < threshold:
            return f"{key} is {_low(actual)}, below min_reward {threshold:g}"
    return None


def trial_rewards(strategy: Literal["mean", "final"] | None, steps: Sequence[Rewards | None]) -> dict[str, Number] | None:
    """Return the trial's rewards. ``steps`` has the rewards of the started steps in order, None for a step without a verifier
    result.

    Strategy "mean" computes, for each key, the mean over the steps with a result, in which a missing key counts as 0. Strategy
    "final" returns the rewards of the last started step. Raises OverflowError if a mean is not finite.
    """
    if strategy == "final":
        return None if not steps or steps[-1] is None else dict(steps[-1])
    results = [rewards for rewards in steps if rewards is not None]
    keys = {key: None for rewards in results for key in rewards}
    means = {key: sum(rewards.get(key, 0) for rewards in results) / len(results) for key in keys}
    if not all(math.isfinite(mean) for mean in means.values()):
        raise OverflowError("the mean of the steps' rewards is not finite")
    return means or None


def _low(reward: Number) -> str:
    """Return a reward that is below its minimum as text."""
    if reward == -math.inf:
        return "missing"
    try:
        return f"{reward:g}"
    except OverflowError:  # an integer that is too large for a float
        return "less than -1e308"


def _require_content(data: bytes, path: str) -> None:
    if not data:
        raise RewardError("RewardFileEmptyError", f"{path} is empty")


def _finite(value: object, where: str) -> Number:
    if isinstance(value, bool):
        return float(value)
    if not isinstance(value, int | float):
        raise _unparsable(where, f"{_shown(repr(value).encode())} is not a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise _unparsable(where, f"{value!r} is not finite")
    return value


def _unparsable(where: str, why: str) -> RewardError:
    return RewardError("VerifierOutputParseError", f"{where}: {why}")


def _shown_key(key: str) -> str:
    return _shown(key.encode(errors="backslashreplace"))


def _shown(data: bytes) -> str:
    text = data[:60].decode(errors="replace").strip()
    return repr(text + ("..." if len(data) > 60 else ""))
