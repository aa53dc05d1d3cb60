"""Determines how well the verdicts of a trial are isolated from its agent. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from multistep.api.trial.runner_records import Identity
from multistep.api.trial.status import Isolation
from multistep.engine.plan.plan import TrialPlan

_ROOT: Final = "0"
_NOBODY_KNOWN: Final[Mapping[str, Identity]] = MappingProxyType({})


def isolation(plan: TrialPlan, default_user: str, known: Mapping[str, Identity] = _NOBODY_KNOWN) -> Isolation:
    """Return how well verdicts are isolated from agents, for the least isolated step.

    Separate: every verifier runs in a pod of its own. Restored: as Separate, but the agent's files are restored in at least one of
    the verifiers' pods. User: no agent is root, in root's group or a verifier's user, so no agent can change verdicts or runner.
    Shared: all other cases. A collect hook counts like the agent: it runs in a directory that the agent filled, where Git, for
    example, runs commands of the directory's own configuration.
    default_user: user of a phase that configures none. known: ids of users in the image. With a custom agent class that is
    not preinstalled, Shared replaces User: the installation runs as root, so the class could prepare a way to become root later.
    """
    verifiers = [step.verifier for step in plan.steps if step.verifier]
    shared = [each for each in verifiers if each.environment is None]
    if verifiers and not shared:
        return "Restored" if any(step.verified_restored for step in plan.steps) else "Separate"
    if plan.hosted is not None and plan.hosted.spec.name is None and plan.hosted.spec.installs:
        return "Shared"
    agents = {step.agent_user or default_user for step in plan.steps}
    agents |= {hook.user or default_user for step in plan.steps for hook in step.hooks}
    others = {each.user or default_user for each in shared} | {_ROOT}
    alike = any(_may_be_one(agent, other, known) for agent in agents for other in others)
    return "Shared" if alike or any(_is_in_roots_group(each, known) for each in agents) else "User"


def users_of(plan: TrialPlan) -> set[str]:
    """Return the users of the plan whose ids decide about the isolation."""
    verifiers = {step.verifier.user for step in plan.steps if step.verifier}
    found = verifiers | {step.agent_user for step in plan.steps} | {hook.user for step in plan.steps for hook in step.hooks}
    return {each for each in found if each}


def _may_be_one(user: str, other: str, known: Mapping[str, Identity]) -> bool:
    """Return whether two users may have the same uid. Only the image defines the uid of a user name, except for root."""
    uids = [_uid(user, known), _uid(other, known)]
    if None not in uids:
        return uids[0] == uids[1]
    return 0 not in uids and (uids != [None, None] or _name(user) == _name(other))


def _is_in_roots_group(user: str, known: Mapping[str, Identity]) -> bool:
    """Return whether a user is in root's group, which can write protected files, e.g. /etc/passwd, in some images."""
    group = user.partition(":")[2]
    return group == "root" or (group.isdecimal() and int(group) == 0) or (user in known and 0 in known[user].gids)


def _uid(user: str, known: Mapping[str, Identity]) -> int | None:
    if user in known:
        return known[user].uid
    name = _name(user)
    return 0 if name == "root" else int(name) if name.isdecimal() else None


def _name(user: str) -> str:
    return user.partition(":")[0]
