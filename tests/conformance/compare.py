"""Compare two outcomes of a trial.

Compared are: whether the task was rejected; which steps ran; the trial's rewards and exception; for each step whether agent and
verifier ran, its rewards, exception, artifacts and manifest. Some details are ignored, because Harbor's providers and Harbor's
document on multi-step tasks contradict each other about them: the artifact files' directories (only base names count) and order,
the manifest's entry for /logs/artifacts (always collected), and the reason of a rejection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Outcome = Mapping[str, Any]
Files = Sequence[Mapping[str, Any]] | None

_TOLERANCE = 1e-9
_IMPLICIT_SOURCE = "/logs/artifacts"
_STEP_FIELDS = ("name", "ran_agent", "ran_verifier", "exception_type")


def differences(expected: Outcome, actual: Outcome) -> list[str]:
    """Return a line for each difference."""
    if bool(expected["load_error"]) != bool(actual["load_error"]):
        return [f"refused: expected {_refusal(expected)}, got {_refusal(actual)}"]
    return [] if expected["load_error"] else list(_of_trial(expected, actual))


def same_rewards(one: Mapping[str, float] | None, other: Mapping[str, float] | None) -> bool:
    """Return whether both have the same keys, with numbers equal up to rounding. None equals only None."""
    if one is None or other is None:
        return one is other
    return one.keys() == other.keys() and all(_close(one[key], other[key]) for key in one)


def _of_trial(expected: Outcome, actual: Outcome) -> Iterator[str]:
    want, got = expected["trial"], actual["trial"]
    yield from _compared("trial's rewards", want["rewards"], got["rewards"], same_rewards)
    yield from _compared("trial's exception_type", want["exception_type"], got["exception_type"])
    if expected.get("kind") == "multi-step":
        for field in ("steps_run", "steps_not_run"):
            yield from _compared(field, expected[field], actual.get(field))
        for step, other in zip(expected["steps"], actual.get("steps") or [], strict=False):
            yield from (f"step {step['name']}: {line}" for line in _of_step(step, other))


def _of_step(want: Outcome, got: Outcome) -> Iterator[str]:
    for field in _STEP_FIELDS:
        yield from _compared(field, want[field], got.get(field))
    yield from _compared("rewards", want["rewards"], got.get("rewards"), same_rewards)
    yield from _compared("artifacts", _files(want["artifacts"]), _files(got.get("artifacts")))
    yield from _compared("manifest", _manifest(want["manifest"]), _manifest(got.get("manifest")))


def _compared(what: str, want: Any, got: Any, equal: Callable[[Any, Any], bool] = lambda a, b: bool(a == b)) -> Iterator[str]:
    if not equal(want, got):
        yield _line(what, want, got)


def _line(what: str, want: object, got: object) -> str:
    return f"{what}: expected {want!r}, got {got!r}"


def _refusal(outcome: Outcome) -> str:
    error = outcome["load_error"]
    return f"yes ({': '.join(each for each in (error.get('type'), error.get('message')) if each)})" if error else "no"


def _files(entries: Files) -> list[tuple[str, str, bool]]:
    found = ((each["path"].rpartition("/")[2], each.get("sha256") or "", bool(each.get("executable"))) for each in entries or ())
    return sorted(found)


def _manifest(entries: Files) -> list[tuple[str, str]] | None:
    if entries is None:
        return None
    return [(each["source"], each["status"]) for each in entries if each["source"] != _IMPLICIT_SOURCE]


def _close(one: float, other: float) -> bool:
    if one == other:
        return True
    try:
        return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    except OverflowError:  # an integer too large for a float equals no other number
        return False
