"""Creates config.json and lock.json of Harbor 0.26's trial directory, without the values of secret variables. It does no IO."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any, Final

from multistep.api.common.base_model import API_VERSION, EnvVar
from multistep.api.trial.agent_spec import AgentSpec
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.journal.journal import Journal
from multistep.engine.plan.plan import TrialPlan
from multistep.engine.status.status_size import MARK
from multistep.store.harbor.exception_info import overrides_json
from multistep.store.harbor.secret_variables import is_sensitive

ENVIRONMENT: Final = API_VERSION  # Harbor's environment config requires an import path for a type that Harbor does not know

_TEMPLATE = re.compile(r"\$\{[^}:]+\}")  # matches ${NAME}, but not ${NAME:-default}, whose default could be the secret


def config_json(plan: TrialPlan, trial: MultiStepTrial) -> dict[str, Any]:
    """Return config.json, the spec as Harbor's TrialConfig. Variables from Secrets and ConfigMaps are shown as ``${NAME}``."""
    spec = trial.spec
    return {
        "schema_version": 1,
        "task": {"path": plan.task_name},
        "trial_name": trial.metadata.name,
        "trials_dir": ".",
        "timeout_multiplier": spec.timeout_multiplier,
        "agent_timeout_multiplier": spec.agent.timeout_multiplier,
        "verifier_timeout_multiplier": spec.verifier.timeout_multiplier,
        "agent_setup_timeout_multiplier": spec.agent_setup_timeout_multiplier,
        "environment_build_timeout_multiplier": spec.environment_timeout_multiplier,
        "agent": agent_config(trial.spec.agent),
        "environment": _environment(plan, trial),
        "verifier": _verifier(trial),
        "override_error_policy": overrides_json(spec.scoring.override_error_policy),
        "artifacts": [artifact.model_dump(include={"source", "destination", "exclude"}) for artifact in spec.artifacts],
        "extra_instructions": list(spec.extra_instructions),
    }


def lock_json(plan: TrialPlan, trial: MultiStepTrial, journal: Journal) -> dict[str, Any]:
    """Return lock.json, Harbor's TrialLock, with the task's digest. environment.kwargs has the image IDs that the kubelet
    resolved."""
    config = config_json(plan, trial)
    same = [key for key in config if key.endswith("multiplier")]
    return {
        "schema_version": 2,
        "task": {"name": plan.task_name, "type": "local", "digest": task_digest(trial), "path": plan.task_name},
        **{key: config[key] for key in same},
        "extra_instructions": [{"digest": _sha256(text)} for text in trial.spec.extra_instructions] or None,
        "agent": config["agent"],
        "environment": _locked_environment(config["environment"], trial, journal),
        "verifier": {**config["verifier"], "environment_mode": verifier_mode(plan) if plan.single else None},
        "artifacts": config["artifacts"],
        "override_error_policy": config["override_error_policy"],
    }


def verifier_mode(plan: TrialPlan) -> str:
    """Return "separate" if any step has a verifier in an environment of its own, otherwise "shared"."""
    return "separate" if any(step.verifier and step.verifier.environment for step in plan.steps) else "shared"


def agent_config(agent: AgentSpec) -> dict[str, Any]:
    """Return an agent's spec as Harbor's AgentConfig."""
    own = {"command": agent.command, "user": agent.user, "version": agent.version, **agent.options}
    return {
        "name": agent.name,
        "import_path": agent.import_path,
        "model_name": agent.model,
        "override_timeout_sec": agent.timeout_seconds,
        "max_timeout_sec": agent.max_timeout_seconds,
        "env": _env([*agent.credentials, *agent.env]),
        "kwargs": {key: value for key, value in own.items() if value is not None},
    }


def model_info(model: str | None) -> dict[str, Any] | None:
    """Return a model, named PROVIDER/NAME or NAME, as Harbor's ModelInfo; None without a model."""
    if not model:
        return None
    provider, slash, name = model.partition("/")
    return {"name": name, "provider": provider} if slash else {"name": model, "provider": None}


def _environment(plan: TrialPlan, trial: MultiStepTrial) -> dict[str, Any]:
    """Return the environment as Harbor's EnvironmentConfig."""
    return {"import_path": ENVIRONMENT, "env": _env(trial.spec.environment.env), "kwargs": {"image": plan.image}}


def _locked_environment(environment: dict[str, Any], trial: MultiStepTrial, journal: Journal) -> dict[str, Any]:
    """Return the environment config with the image ID of the agent's pod, and those of the steps' separate verifiers."""
    verifiers = {run.name: run.verifier_image_id for run in journal.steps if run.verifier_image_id}
    images = {"image_id": trial.status.image_id, **({"verifier_image_ids": verifiers} if verifiers else {})}
    return {**environment, "kwargs": {**environment["kwargs"], **images}}


def _verifier(trial: MultiStepTrial) -> dict[str, Any]:
    verifier = trial.spec.verifier
    return {
        "override_timeout_sec": verifier.timeout_seconds,
        "max_timeout_sec": verifier.max_timeout_seconds,
        "env": _env(verifier.env),
        "disable": verifier.disable,
    }


def _env(variables: Sequence[EnvVar]) -> dict[str, str]:
    return {variable.name: _shown_value(variable) for variable in variables}


def _shown_value(variable: EnvVar) -> str:
    """Return a variable's value for config.json. It is redacted if the name looks secret, and ``${NAME}`` if it comes from a Secret
    or ConfigMap."""
    if variable.value_from is not None:
        return f"${{{variable.name}}}"
    value = variable.value or ""
    return MARK if value and is_sensitive(variable.name) and not _TEMPLATE.fullmatch(value) else value


def task_digest(trial: MultiStepTrial) -> str:
    """Return the digest of the task's bundle, of its resolved remote source, or of its inline text."""
    task, source = trial.spec.task, trial.status.task_source
    if task.bundle is not None:
        return task.bundle.digest
    if source is not None:
        return source.digest
    text = task.inline or task  # for a remote task that was never resolved, only the address is known
    return _sha256(json.dumps(text.model_dump(mode="json"), sort_keys=True))


def _sha256(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode(errors='replace')).hexdigest()}"
