"""The agent's name, version and usage in Harbor 0.25's result.json."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from multistep.api.common import labels
from multistep.api.trial.status import Usage
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.journal.journal import Journal, StepRun
from multistep.engine.plan.plan import TrialPlan

_COMMAND: Final = "command"
_MULTISTEP: Final = "multistep"  # the key of Multistep's own metadata, which no agent can set


def agent_info(plan: TrialPlan, trial: MultiStepTrial, journal: Journal) -> dict[str, Any]:
    """Return Harbor's AgentInfo: for an agent of Harbor, as the agent reported it; for Multistep's own agents, their name and
    Multistep's version; for a regrade, that of the source trial. The name of the agent "command" is replaced by the agent's name
    in the sweep, because Harbor's viewer groups by name."""
    info = _agent_info(plan, trial, journal)
    return {**info, "name": trial.metadata.annotations.get(labels.AGENT, _COMMAND)} if info["name"] == _COMMAND else info


def _agent_info(plan: TrialPlan, trial: MultiStepTrial, journal: Journal) -> dict[str, Any]:
    agent = journal.agent
    if (source := trial.status.regraded) is not None:
        provider, slash, name = (source.agent.model or "").rpartition("/")
        model = {"name": name, "provider": provider if slash else None} if name else None
        return {"name": source.agent.name, "version": source.agent.version, "model_info": model}
    if agent is None:
        version = "unknown" if plan.hosted is not None else own_version()
        return {"name": plan.agent_name, "version": version, "model_info": None}
    model = {"name": agent.model_name, "provider": agent.model_provider} if agent.model_name else None
    return {"name": agent.name, "version": agent.version, "model_info": model}


def agent_result(run: StepRun) -> dict[str, Any]:
    """Return Harbor's AgentContext of a step."""
    usage = run.usage or Usage()
    return {
        "n_input_tokens": usage.input_tokens,
        "n_cache_tokens": usage.cached_tokens,
        "n_output_tokens": usage.output_tokens,
        "cost_usd": usage.cost_usd,
        "model_usage": None,
        "rollout_details": None,
        "metadata": _metadata(run, usage),
    }


def _metadata(run: StepRun, usage: Usage) -> dict[str, Any] | None:
    """Return the agent's own metadata and, for a usage that the model gateway counted, the values for which Harbor has no field."""
    own = None if run.metadata is None else {name: value for name, value in run.metadata.items() if name != _MULTISTEP}
    if usage.source != "Gateway":
        return own
    counted = usage.model_dump(by_alias=True, include={"source", "prices", "requests", "incomplete", "held_seconds"})
    return {**(own or {}), _MULTISTEP: counted}


@cache
def own_version() -> str:
    """Return Multistep's version, which is also the version of its agents."""
    try:
        return version("multistep")
    except PackageNotFoundError:
        return "unknown"
