"""Another attempt after an exception of a step, if spec.scoring.overrideErrorPolicy asks for one.

By default no exception of a step starts another attempt: an agent would get a second chance by failing.
"""

from __future__ import annotations

from multistep.api.trial.failure_table import RETRIED_BY_SPEC
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.journal.journal import Journal
from multistep.engine.lifecycle.decisions import FailAttempt
from multistep.engine.lifecycle.next_decision import count_failed_attempts


def retried_by_spec(trial: MultiStepTrial, journal: Journal) -> FailAttempt | None:
    """Return the end of the attempt if the trial runs again; None if its result stands.

    It runs again if each exception of its own steps is of a type with retry true, as in Harbor, and a retry is left. journal: of
    the finished trial.
    """
    overrides = trial.spec.scoring.override_error_policy
    exceptions = [run.exception for run in journal.steps if run.trial is None and run.exception is not None]
    if trial.spec.regrade is not None or journal.broken or not exceptions:
        return None
    if not all((change := overrides.get(exception.type)) is not None and change.retry for exception in exceptions):
        return None
    if count_failed_attempts(trial.status.attempts) >= trial.spec.infrastructure_retries:
        return None
    return FailAttempt(RETRIED_BY_SPEC, f"{exceptions[0].type}: {exceptions[0].message}")
