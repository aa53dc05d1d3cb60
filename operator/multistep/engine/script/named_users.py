"""Fails a trial that names users that its image lacks, before an agent could have deleted them.

A missing user is a failure of the task. If the operator found it only in a later step, the failure would count as the agent's, with
a score of 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from multistep.api.task.layout import MAIN
from multistep.api.trial.failure_table import NO_SUCH_USER
from multistep.api.trial.runner_records import PhaseResult
from multistep.engine.journal.journal import AttemptLost
from multistep.engine.journal.operations import Script, Start
from multistep.engine.plan.plan import TrialPlan
from multistep.engine.script.operation_scope import Scope

_SECONDS = 30.0


def named_users(plan: TrialPlan) -> Mapping[str, str]:
    """Return the users of phases in the agent's container, each with the first field that names it."""
    users = dict[str, str]()
    for step in plan.steps:
        users.setdefault(step.agent_user, f"agent.user of step {step.name}")
        for hook in step.hooks:
            if hook.service == MAIN:
                users.setdefault(hook.user, f"verifier.collect.user of step {step.name}")
        if step.verifier is not None and (step.verifier.environment is None or not step.verifier.environment.own_image):
            users.setdefault(step.verifier.user, verifiers_user(step.name))
    return users


def verifiers_user(step: str) -> str:
    """Return the field that names the user of a step's verifier."""
    return f"verifier.user of step {step}"


def require_users(scope: Scope, users: Mapping[str, str]) -> Script[AttemptLost | None]:
    """Run a program as each user, and return why the trial fails if the image lacks one of them.

    The program need not exist, because the runner looks up the user first. ``users`` maps each user to the field that names it. The
    empty name and numeric users are not checked: the first means the image's user, and a uid needs no entry in /etc/passwd.
    """
    names = [user for user in users if user and not user.replace(":", "").isdecimal()]
    for number, user in enumerate(names):
        record = yield Start(scope.id(f"user-{number}"), ("true",), user=user, env={}, timeout=_SECONDS, where=scope.where)
        error = PhaseResult.from_record(record).error
        if error is not None and error.code == NO_SUCH_USER:
            return AttemptLost(NO_SUCH_USER, f"{users[user]}: {error.message}", final=True)
    return None
