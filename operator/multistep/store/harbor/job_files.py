"""Creates the files of Harbor 0.26's job directory from a sweep and the result.json of its trials. It does no IO.

Harbor's JobConfig, JobResult and JobLock load these files, and its viewer shows them (tests/harbor).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from multistep.api.sweep.sweep import SweepSpec, TrialSweep
from multistep.api.trial.error_policy import ErrorPolicyOverrides, policy_of
from multistep.api.trial.status import TrialStatus, Usage, holds
from multistep.store.harbor.exception_info import overrides_json
from multistep.store.harbor.trial_config import ENVIRONMENT, agent_config, model_info

_NO_DATASET: Final = "adhoc"  # Harbor's name for the dataset of a trial without one
_SCORE: Final = "score"
_MEAN: Final = "mean"


def config_json(sweep: TrialSweep, name: str, tasks: Iterable[str]) -> dict[str, Any]:
    """Return config.json, Harbor's JobConfig. ``name`` is the job's name, and ``tasks`` has the names of its tasks."""
    spec, template = sweep.spec, sweep.spec.template.spec
    return {
        "schema_version": 1,
        "job_name": name,
        "jobs_dir": ".",
        "n_attempts": spec.attempts,
        "timeout_multiplier": template.timeout_multiplier,
        "agent_setup_timeout_multiplier": template.agent_setup_timeout_multiplier,
        "environment_build_timeout_multiplier": template.environment_timeout_multiplier,
        "n_concurrent_trials": spec.parallelism,
        "retry": _retry(spec),
        "override_error_policy": overrides_json(spec.scoring.override_error_policy),
        "environment": {"import_path": ENVIRONMENT},
        "agents": [agent_config(agent.agent) for agent in spec.agents],
        "extra_instructions": list(template.extra_instructions),
        **_sources(spec, tasks),
    }


def lock_head(sweep: TrialSweep) -> dict[str, Any]:
    """Return lock.json, Harbor's JobLock, without its list of trials. The caller adds the list, which has each trial's
    lock.json."""
    return {
        "schema_version": 3,
        "created_at": _text(_started(sweep)),
        "harbor": {},
        "n_concurrent_trials": sweep.spec.parallelism,
        "retry": _retry(sweep.spec),
    }


def _retry(spec: SweepSpec) -> dict[str, Any]:
    return {"max_retries": spec.template.spec.infrastructure_retries}


def _sources(spec: SweepSpec, tasks: Iterable[str]) -> dict[str, Any]:
    dataset = spec.tasks_from.dataset if spec.tasks_from else None
    if dataset is None:
        return {"tasks": [{"path": task} for task in tasks]}
    chosen = {
        "task_names": dataset.include or None,
        "exclude_task_names": dataset.exclude or None,
        "n_tasks": dataset.limit,
    }
    return {"datasets": [{"name": dataset.name, "version": dataset.version, "registry_url": dataset.registry, **chosen}]}


def result_facts(trial: Mapping[str, Any], status: TrialStatus) -> dict[str, Any]:
    """Return what JobStats reads of the result.json of a finished MultiStepTrial, from its status. The status of a trial with very
    many rewards has only some of them."""
    failed = holds(status, "Failed")
    exception = status.exception.type if status.exception else failed.reason if failed else None
    model = status.regraded.agent.model if status.regraded else ((trial.get("spec") or {}).get("agent") or {}).get("model")
    return {
        "trial_name": trial["metadata"]["name"],
        "agent_info": {"model_info": model_info(model)},
        "verifier_result": None if failed or status.rewards is None else {"rewards": status.rewards},
        "exception_info": _exception_info(exception),
        "step_results": [
            {"exception_info": _exception_info(step.exception.type if step.exception else None)} for step in status.steps
        ],
    }


def _exception_info(type_: str | None) -> dict[str, Any] | None:
    return None if type_ is None else {"exception_type": type_}


@dataclass
class _Eval:
    """The numbers of one agent for Harbor's AgentDatasetStats."""

    trials: int = 0
    errors: int = 0
    rewards: dict[str, dict[float, list[str]]] = field(default_factory=dict)
    exceptions: dict[str, list[str]] = field(default_factory=dict)
    valid: list[Mapping[str, float]] = field(default_factory=list)
    """The rewards that count."""


@dataclass(frozen=True)
class AgentResult:
    """An agent's numbers in the sweep's report."""

    score: float | None
    """Mean score over the tasks."""
    passes: Mapping[int, float]
    """Pass@k by k."""


@dataclass
class JobStats:
    """Adds up Harbor's JobStats, one trial after the other, as Harbor 0.26 does: rewards count if they are valid, and a trial is an
    error if it or one of its steps has an exception. Tokens and costs include all attempts of a trial."""

    overrides: ErrorPolicyOverrides = field(default_factory=dict)
    """spec.scoring.overrideErrorPolicy of the sweep."""
    completed: int = 0
    retries: int = 0
    _evals: dict[tuple[str, str], _Eval] = field(default_factory=dict)
    _usage: Usage = field(default_factory=Usage)

    def add(self, agent: str, result: Mapping[str, Any], usage: Usage | None, retries: int) -> None:
        """Add a finished trial.

        Args:
            agent: Name of the agent in the sweep.
            result: The trial's result.json.
            usage: Usage of all attempts of the trial.
            retries: Number of failed attempts that were retried.
        """
        self.completed += 1
        self.retries += retries
        model = (result["agent_info"].get("model_info") or {}).get("name") or ""
        evaluation = self._evals.setdefault((agent, model), _Eval())
        rewards = (result.get("verifier_result") or {}).get("rewards")
        exceptions = _exceptions(result)
        if rewards and self._is_valid(exceptions):
            evaluation.trials += 1
            evaluation.valid.append(rewards)
            for key, value in rewards.items():
                evaluation.rewards.setdefault(key, {}).setdefault(value, []).append(result["trial_name"])
        evaluation.errors += bool(exceptions)
        for type_ in sorted(exceptions):
            evaluation.exceptions.setdefault(type_, []).append(result["trial_name"])
        if usage is not None:
            self._usage = _sum(self._usage, usage)

    def _is_valid(self, exceptions: Iterable[str]) -> bool:
        return all(policy_of(type_, self.overrides).valid for type_ in exceptions)

    def json(self, standings: Mapping[str, AgentResult], total: int, running: int) -> dict[str, Any]:
        """Return the job's stats. ``standings`` has each agent's numbers. ``total`` and ``running`` are numbers of trials."""
        used = self._usage
        return {
            "n_completed_trials": self.completed,
            "n_errored_trials": sum(evaluation.errors for evaluation in self._evals.values()),
            "n_running_trials": running,
            "n_pending_trials": max(0, total - self.completed - running),
            "n_cancelled_trials": 0,
            "n_retries": self.retries,
            "evals": {_key(*key): _eval(evaluation, standings.get(key[0])) for key, evaluation in sorted(self._evals.items())},
            "n_input_tokens": used.input_tokens,
            "n_cache_tokens": used.cached_tokens,
            "n_output_tokens": used.output_tokens,
            "cost_usd": used.cost_usd,
        }


def result_json(
    sweep: TrialSweep, uid: str, stats: Mapping[str, Any], total: int, updated: datetime, *, finished: bool
) -> dict[str, Any]:
    """Return result.json, Harbor's JobResult. ``uid`` is the job's id. ``updated`` is the time when the job's trials were read."""
    end = sweep.status.completion_time if finished else None
    return {
        "schema_version": 1,
        "id": uid,
        "started_at": _text(_started(sweep)),
        "updated_at": _text(end or updated),
        "finished_at": end and _text(end),
        "n_total_trials": total,
        "stats": stats,
    }


def _eval(evaluation: _Eval, standing: AgentResult | None) -> dict[str, Any]:
    scored = standing is not None and standing.score is not None
    return {
        "n_trials": evaluation.trials,
        "n_errors": evaluation.errors,
        "metrics": [each for each in ({_SCORE: standing.score} if standing and scored else {}, _mean(evaluation.valid)) if each],
        "pass_at_k": {str(k): chance for k, chance in standing.passes.items()} if standing else {},
        "reward_stats": {key: {str(value): names for value, names in those.items()} for key, those in evaluation.rewards.items()},
        "exception_stats": evaluation.exceptions,
    }


def _mean(rewards: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return Harbor's metric of rewards: "mean" if all have the same only key, else the mean of each key; a missing key counts 0.
    {} if there are no rewards, or if a mean is not finite."""
    keys = sorted({key for each in rewards for key in each})
    try:
        means = {key: sum(each.get(key, 0) for each in rewards) / len(rewards) for key in keys}
    except OverflowError:  # an integer that is too large for a float
        return {}
    if not all(map(math.isfinite, means.values())):
        return {}
    return {_MEAN: means[keys[0]]} if len(keys) == 1 else means


def _exceptions(result: Mapping[str, Any]) -> set[str]:
    """Return the types of the exceptions of a trial and of its steps."""
    recorded = [result.get("exception_info"), *(step.get("exception_info") for step in result.get("step_results") or [])]
    return {exception["exception_type"] for exception in recorded if exception is not None}


def _key(agent: str, model: str) -> str:
    return "__".join(filter(None, (agent, model, _NO_DATASET)))


def _sum(first: Usage, second: Usage) -> Usage:
    """Return the sum of two usages. Unknown amounts are skipped, as in Harbor."""
    return Usage.model_validate({name: _known([getattr(first, name), getattr(second, name)]) for name in _AMOUNTS})


_AMOUNTS: Final = ("input_tokens", "cached_tokens", "output_tokens", "cost_usd")


def _known(amounts: Sequence[float | None]) -> Any:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


def _started(sweep: TrialSweep) -> datetime | None:
    return sweep.status.start_time or sweep.metadata.creation_timestamp


def _text(time: datetime | None) -> str | None:
    return time.isoformat() if time else None
