"""Creates the files of Harbor 0.26's trial directory from a plan and a journal. It does no IO. Times are in seconds since the
epoch.

Harbor's own models load these files (tests/harbor). The files do not contain values of secret variables.
``secret_variables.secret_values`` returns the values to redact from all other files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from multistep.api.common import labels
from multistep.api.common.base_model import API_VERSION
from multistep.api.common.plural import plural
from multistep.api.trial.error_policy import ErrorPolicyOverrides
from multistep.api.trial.status import Usage
from multistep.api.trial.trial import PLURAL, MultiStepTrial
from multistep.api.trial.values import AGENT, VERIFIER
from multistep.engine.journal.journal import Journal, StepException, StepRun
from multistep.engine.plan.plan import TrialPlan
from multistep.engine.status.tampering_findings import merged
from multistep.engine.status.trial_status import LATEST
from multistep.store.harbor.exception_info import policy_json, reward_valid
from multistep.store.harbor.trial_config import config_json, lock_json, model_info, task_digest, verifier_mode
from multistep.timestamps import rfc3339

_COMMAND: Final = "command"
_MULTISTEP: Final = "multistep"  # the key of Multistep's own metadata, which no agent can set


def agent_info(plan: TrialPlan, trial: MultiStepTrial, journal: Journal) -> dict[str, Any]:
    """Return Harbor's AgentInfo. An agent of Harbor reports its own AgentInfo. Multistep's own agents have Multistep's version, and
    a regrade has the agent of its source trial. The name "command" is replaced by the agent's name in the sweep, because Harbor's
    viewer groups by name."""
    info = _agent_info(plan, trial, journal)
    return {**info, "name": trial.metadata.annotations.get(labels.AGENT, _COMMAND)} if info["name"] == _COMMAND else info


def _agent_info(plan: TrialPlan, trial: MultiStepTrial, journal: Journal) -> dict[str, Any]:
    agent = journal.agent
    if (source := trial.status.regraded) is not None:
        return {"name": source.agent.name, "version": source.agent.version, "model_info": model_info(source.agent.model)}
    if agent is None:
        version = "unknown" if plan.hosted is not None else own_version()
        return {"name": plan.agent_name, "version": version, "model_info": model_info(trial.spec.agent.model)}
    model = {"name": agent.model_name, "provider": agent.model_provider} if agent.model_name else None
    return {"name": agent.name, "version": agent.version, "model_info": model}


def agent_result(run: StepRun) -> dict[str, Any]:
    """Return a step's usage and metadata as Harbor's AgentContext."""
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
    """Return the agent's own metadata. If the model gateway counted the usage, add the values for which Harbor has no field."""
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


def service_log(service: str) -> str:
    """Return the path of a service's log in the results."""
    return f"services/{service}.log"


def trial_files(
    plan: TrialPlan, trial: MultiStepTrial, journal: Journal, now: float, *, failure: StepException | None = None
) -> dict[str, bytes]:
    """Return the files' contents by name, for ResultsVolume.finish. ``failure`` is the exception of a Failed trial."""
    texts = {
        "result.json": _dump(result_json(plan, trial, journal, now, failure=failure)),
        "config.json": _dump(config_json(plan, trial)),
        "lock.json": _dump(lock_json(plan, trial, journal)),
        "trial.log": trial_log(plan, trial, journal, now, failure=failure),
        "exception.txt": exception_txt(journal, failure=failure),
    }
    present = {name: text for name, text in texts.items() if text is not None} | _printed(plan, journal)
    return {name: text.encode(errors="replace") for name, text in present.items()}


def _printed(plan: TrialPlan, journal: Journal) -> dict[str, str]:
    """Return files with the output of each step's setup and healthcheck, which Harbor discards."""
    return {
        f"{phase}.txt" if plan.single else f"steps/{run.name}/{phase}.txt": text
        for run in journal.steps
        for phase, text in run.printed.items()
        if text
    }


def step_directories(plan: TrialPlan, journal: Journal) -> list[str]:
    """Return the directories that ResultsVolume.finish creates for each started step, even if they stay empty, as in Harbor
    0.26."""
    if plan.single:
        return ["agent", "verifier", "artifacts"]
    return [f"steps/{run.name}/{name}" for run in journal.steps if run.trial is None for name in ("agent", "verifier")]


def result_json(
    plan: TrialPlan, trial: MultiStepTrial, journal: Journal, now: float, *, failure: StepException | None = None
) -> dict[str, Any]:
    """Return result.json. ``failure`` is the exception of a Failed trial, which has no reward."""
    rewards, overrides = None if failure else journal.rewards, trial.spec.scoring.override_error_policy
    own = journal.exception or failure
    raised = [exception for exception in (own, *_step_exceptions(plan, journal)) if exception is not None]
    return {
        "schema_version": 1,
        "id": trial.metadata.uid,
        "task_name": plan.task_name,
        "trial_name": trial.metadata.name,
        "trial_uri": _uri(trial),
        "task_id": {"path": plan.task_name},
        "source": None,
        "task_checksum": task_digest(trial),
        "config": config_json(plan, trial),
        "agent_info": agent_info(plan, trial, journal),
        "verifier_result": _rewards(rewards),
        "exception_info": _trial_exception(journal, failure, now, overrides),
        "started_at": _started(trial, journal),
        "finished_at": iso_time(now),
        **_own_fields(trial, journal),
        **_preparation(trial, journal, now),
        **(_single(plan, journal) if plan.single else _steps(journal, overrides)),
        "reward_valid": reward_valid(rewards, raised, overrides),
    }


def _step_exceptions(plan: TrialPlan, journal: Journal) -> list[StepException | None]:
    return [] if plan.single else [run.exception for run in journal.steps]


def _own_fields(trial: MultiStepTrial, journal: Journal) -> dict[str, Any]:
    """Return Multistep's own fields, which are also in the status. They are evidence of tampering, the source trial of a regrade,
    and the other trial's checkpoint from which the trial started. A field that does not apply is left out."""
    findings = [finding.model_dump() for finding in merged(trial.status, journal)]
    sources = {"regraded": trial.status.regraded, "started_from": trial.status.started_from}
    shown = {name: source.model_dump(mode="json") for name, source in sources.items() if source is not None}
    return {**({"tampering": findings} if findings else {}), **shown}


def exception_txt(journal: Journal, *, failure: StepException | None = None) -> str | None:
    """Return exception.txt, or None if the trial has no exception."""
    exception = journal.exception or failure
    return None if exception is None else _traceback(exception)


def _steps(journal: Journal, overrides: ErrorPolicyOverrides) -> dict[str, Any]:
    return {
        "agent_result": None,
        "verifier_environment_mode": None,
        "agent_execution": None,
        "verifier": None,
        "step_results": [_step_result(run, overrides) for run in journal.steps] or None,
    }


def _step_result(run: StepRun, overrides: ErrorPolicyOverrides) -> dict[str, Any]:
    return {
        "step_name": run.name,
        **({"trial": run.trial} if run.trial else {}),  # Multistep's own field names the other trial that ran the step
        "verifier_result": _rewards(run.rewards),
        "exception_info": _exception_info(run.exception, _when(run), overrides, where=f"step {run.name!r}"),
        **_phases(run),
    }


def _single(plan: TrialPlan, journal: Journal) -> dict[str, Any]:
    """Return the results of a single-step trial's step, which result.json has at its top level, as in Harbor 0.26."""
    run = journal.steps[0] if journal.steps else StepRun(name="")
    mode = verifier_mode(plan) if VERIFIER in run.timings else None
    return {**_phases(run), "verifier_environment_mode": mode, "step_results": None}


def _phases(run: StepRun) -> dict[str, Any]:
    """Return the results of a step's phases. Multistep adds artifacts_incomplete if an artifact or log is incomplete, egress if the
    pod has an egress sidecar, and judge_usage and user_usage if the step's judge or simulated user made requests."""
    incomplete = list(run.collected.incomplete) if run.collected else []
    return {
        **({"artifacts_incomplete": incomplete} if incomplete else {}),
        **({"egress": run.egress.model_dump(mode="json", exclude_none=True)} if run.egress else {}),
        **({"judge_usage": run.judge_usage.model_dump(mode="json", exclude_none=True)} if run.judge_usage else {}),
        **({"user_usage": run.user_usage.model_dump(mode="json", exclude_none=True)} if run.user_usage else {}),
        "agent_result": agent_result(run) if AGENT in run.timings else None,
        "agent_execution": _timing(run.timings.get(AGENT)),
        "verifier": _timing(run.timings.get(VERIFIER)),
    }


def _preparation(trial: MultiStepTrial, journal: Journal, now: float) -> dict[str, Any]:
    """Return the timings environment_setup and agent_setup. The former ends when the agent's setup starts. If the agent has no
    setup, it ends at the start of the first step that the attempt itself runs, and agent_setup lasts 0 s."""
    former = trial.status.attempts[-1].completion_time if trial.status.attempts else None
    attempt_start = former or trial.status.start_time
    own = journal.steps[trial.status.kept_steps :]
    ready = own[0].started_at if own else None
    setup = journal.agent_setup or (None if ready is None else (ready, ready))
    start = attempt_start.timestamp() if attempt_start else journal.started_at
    if start is None:
        return {"environment_setup": None, "agent_setup": None}
    return {"environment_setup": _timing((start, now if setup is None else setup[0])), "agent_setup": _timing(setup)}


def _trial_exception(
    journal: Journal, failure: StepException | None, now: float, overrides: ErrorPolicyOverrides
) -> dict[str, Any] | None:
    last = _when(journal.steps[-1]) if journal.steps and journal.exception else None
    return _exception_info(journal.exception or failure, last or now, overrides)


def _exception_info(
    exception: StepException | None, when: float | None, overrides: ErrorPolicyOverrides, where: str = ""
) -> dict[str, Any] | None:
    if exception is None:
        return None
    return {
        "exception_type": exception.type,
        "exception_message": exception.message,
        "exception_traceback": _traceback(exception, where),
        "occurred_at": iso_time(when or 0.0),
        **policy_json(exception.type, overrides),
    }


def _traceback(exception: StepException, where: str = "") -> str:
    """Return the text of Harbor's traceback field, with step, phase and message. The operator's own stack would not help users."""
    places = [place for place in (where, exception.phase and f"phase {exception.phase}") if place]
    shown = f"  in {', '.join(places)}\n" if places else ""
    return f"{shown}{exception.type}: {exception.message}\n"


def _when(run: StepRun) -> float | None:
    """Return the time of a step's exception. It is the end of the phase or, if unknown, the end or the start of the step."""
    phase = run.exception.phase if run.exception else ""
    _, end = run.timings.get(phase, (None, None))
    return end or run.completed_at or run.started_at


def _started(trial: MultiStepTrial, journal: Journal) -> str | None:
    start = trial.status.start_time
    return iso_time(start.timestamp() if start else journal.started_at)


def _rewards(rewards: Mapping[str, float | int] | None) -> dict[str, Any] | None:
    return None if rewards is None else {"rewards": dict(rewards)}


def _timing(span: tuple[float, float | None] | None) -> dict[str, Any] | None:
    return None if span is None else {"started_at": iso_time(span[0]), "finished_at": iso_time(span[1])}


def _uri(trial: MultiStepTrial) -> str:
    """Return the URI of the trial's Kubernetes object, instead of the results' URL, whose access token results must not reveal."""
    return f"kubernetes:///apis/{API_VERSION}/namespaces/{trial.metadata.namespace}/{PLURAL}/{trial.metadata.name}"


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(valid_utf8(value), indent=4) + "\n"


def valid_utf8(value: Any) -> Any:
    """Replace characters that are not valid UTF-8. A reward's key may contain a lone surrogate, which other parsers reject."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, Mapping):
        return {valid_utf8(key): valid_utf8(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [valid_utf8(inner) for inner in value]
    return value


def trial_log(plan: TrialPlan, trial: MultiStepTrial, journal: Journal, now: float, *, failure: StepException | None = None) -> str:
    """Return trial.log, which has a line for each event, sorted by time."""
    events = [
        *_trial_events(plan, trial, journal, now, failure),
        *(event for run in journal.steps if run.trial is None for event in _step_events(run)),
    ]
    return "".join(f"{iso_time(time)} {_line(text)}\n" for time, text in sorted(events, key=lambda event: event[0]))


def _trial_events(
    plan: TrialPlan, trial: MultiStepTrial, journal: Journal, now: float, failure: StepException | None
) -> Iterator[tuple[float, str]]:
    start = trial.status.start_time
    if start:
        yield start.timestamp(), f"trial {trial.metadata.name} started: task {plan.task_name}, agent {plan.agent_name}"
    if start and (source := trial.status.started_from):
        yield start.timestamp(), f"it continues after step {source.step} of trial {source.trial}"
    for attempt in trial.status.attempts:
        if attempt.completion_time:
            yield attempt.completion_time.timestamp(), f"attempt {attempt.number} failed: {attempt.reason}: {attempt.message}"
    if journal.started_at is not None:
        yield journal.started_at, "the environment is running"
    if exception := journal.exception or failure:
        yield now, f"the trial ended with {exception.type}: {exception.message}"
    yield now, f"the trial ended; rewards: {json.dumps(None if failure else journal.rewards)}"


def _step_events(run: StepRun) -> Iterator[tuple[float, str]]:
    name = f"step {run.name}"
    if run.started_at is not None:
        yield run.started_at, f"{name} started"
    for phase, (start, end) in run.timings.items():
        yield start, f"{name}: {phase} started"
        if end is not None:
            yield end, f"{name}: {phase} finished after {end - start:.3f} s"
    if run.completed_at is not None:
        for text in _outcome(run):
            yield run.completed_at, f"{name}: {text}"


def _outcome(run: StepRun) -> Iterable[str]:
    if run.exception:
        yield f"{run.exception.type}: {run.exception.message}"
    if run.collected:
        yield f"{plural(run.collected.count, 'file')} collected, {run.collected.bytes} bytes"
        yield from (f"collected incompletely: {line}" for line in run.collected.incomplete)
    if run.gate_failure:
        yield f"the gate was not met: {run.gate_failure}"
    yield f"ended; rewards: {json.dumps(run.rewards)}"


def _line(text: str) -> str:
    return " ".join(text.splitlines())[:4096]


def iso_time(seconds: float | None) -> str | None:
    """Return a time (seconds since the epoch) in the format of Harbor's files, or None for None. The range is limited, because a
    runner may report any number."""
    if seconds is None:
        return None
    return rfc3339(min(max(seconds, 0.0), LATEST), "milliseconds")
