"""Harbor 0.26's ExceptionInfo of an exception, and whether it counts the trial's reward. It does no IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from multistep.api.trial.error_policy import ErrorPolicyOverrides, policy_of
from multistep.engine.journal.journal import StepException


def overrides_json(overrides: ErrorPolicyOverrides) -> dict[str, dict[str, bool | None]]:
    """Return spec.scoring.overrideErrorPolicy as Harbor's override_error_policy."""
    return {type_: _flags(change.retry, change.grade, change.valid) for type_, change in overrides.items()}


def policy_json(type_: str, overrides: ErrorPolicyOverrides) -> dict[str, Any]:
    """Return the fields policy and, if the spec changes it, policy_override of an exception of this type."""
    policy, changed = policy_of(type_, overrides), overrides_json(overrides).get(type_)
    return {**({"policy_override": changed} if changed else {}), "policy": _flags(policy.retry, policy.grade, policy.valid)}


def reward_valid(
    rewards: Mapping[str, float | int] | None, exceptions: Iterable[StepException], overrides: ErrorPolicyOverrides
) -> bool:
    """Return whether Harbor counts the rewards of a trial. exceptions: those of the trial and of its steps."""
    return bool(rewards) and all(policy_of(exception.type, overrides).valid for exception in exceptions)


def _flags(retry: bool | None, grade: bool | None, valid: bool | None) -> dict[str, bool | None]:
    return {"should_retry": retry, "should_grade": grade, "has_valid_reward": valid}
