"""The rule for a trial's score in its status, and how outcomes of trials are shown."""

from __future__ import annotations

from typing import Final, Literal

from multistep.api.common.base_model import Model
from multistep.api.trial.values import Outcome

Level = Literal["good", "bad", "excluded", "neutral"]
"""How an outcome is shown. ``good`` means passed, ``bad`` scored but not passed, ``excluded`` not scored, ``neutral`` not
verified."""

_SHOWN: Final[dict[Outcome, tuple[str, Level]]] = {
    "Passed": ("passed", "good"),
    "NotPassed": ("not passed", "bad"),
    "GateNotMet": ("gate not met", "bad"),
    "AgentError": ("agent error", "bad"),
    "VerifierError": ("verifier error", "bad"),
    "TaskError": ("task error", "bad"),
    "Unverified": ("not verified", "neutral"),
    "Excluded": ("excluded", "excluded"),
}


def outcome_words(outcome: Outcome, failure_class: str = "") -> str:
    """Return an outcome in words. ``failure_class`` is the class of the failure, which the words for Excluded contain."""
    words, _ = _SHOWN.get(outcome, (outcome, "neutral"))
    return f"{words}: {failure_class.lower()}" if outcome == "Excluded" and failure_class else words


def outcome_level(outcome: Outcome) -> Level:
    """Return the level that determines the colour of an outcome."""
    return _SHOWN[outcome][1] if outcome in _SHOWN else "neutral"


class ScoreRule(Model):
    """How the score is computed from the steps' results."""

    steps: int
    """Number of declared steps, which are those that this trial was to run and verify. A step that it did not reach counts 0."""
    strategy: Literal["Mean", "Final"]
    """The task's multi_step_reward_strategy. Mean is the mean over the declared steps. Final is the last declared step."""
