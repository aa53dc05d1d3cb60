"""How well the verdicts of a trial are isolated from its agent. Pure."""

from __future__ import annotations

from multistep.api.trial_status import Isolation
from multistep.engine.plan import TrialPlan


def isolation(plan: TrialPlan, default_user: str) -> Isolation:
    """Return how well verdicts are isolated from agents, for the least isolated step.

    Separate: every verifier runs in a pod of its own. Restored: the same, but in at least one the agent's files are restored.
    User: no agent of the trial is root or a verifier's user, so no agent can change verdicts or runner. Shared: all other cases.
    default_user: user of a phase that configures none. A custom agent class that is not preinstalled is always Shared: its
    installation runs as root, so it could prepare a way to become root.
    """
    verifiers = [step.verifier for step in plan.steps if step.verifier]
    shared = [each for each in verifiers if each.environment is None]
    if verifiers and not shared:
        return "Restored" if any(step.verified_restored for step in plan.steps) else "Separate"
    if plan.hosted is not None and plan.hosted.spec.name is None and plan.hosted.spec.installs:
        return "Shared"
    agents = {step.agent_user or default_user for step in plan.steps}
    others = {each.user or default_user for each in shared} | {"0"}
    return "Shared" if any(_may_be_one(agent, other) for agent in agents for other in others) else "User"


def _may_be_one(user: str, other: str) -> bool:
    """Return whether two users may have the same uid. Only the image defines the uid of a user name, except for root."""
    uids = [_uid(user), _uid(other)]
    if None not in uids:
        return uids[0] == uids[1]
    return 0 not in uids and (uids != [None, None] or _name(user) == _name(other))


def _uid(user: str) -> int | None:
    name = _name(user)
    return 0 if name == "root" else int(name) if name.isdecimal() else None


def _name(user: str) -> str:
    return user.partition(":")[0]
