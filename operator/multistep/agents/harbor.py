"""The script for Harbor's agents, which the agent host runs.

As in a trial of Harbor 0.26, there is one agent object per trial, one setup before step 1, and one run or resume per step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from multistep.agents.command_exception import NOT_STARTED, SECONDS_TO_START, is_first, out_of_memory
from multistep.api.trial.agent_spec import PROGRAM_DIR, AgentSpec
from multistep.api.trial.failure_table import (
    AGENT_NOT_STARTED,
    AGENT_SETUP_FAILED,
    BUDGET_USED_BY_LOST_ATTEMPTS,
    MODEL_GATEWAY_DOWN,
    PROVIDER_FAILED,
)
from multistep.api.trial.harbor_agents import WEB_TOOLS
from multistep.api.trial.models_spec import UserSpec
from multistep.api.trial.runner_records import Fields, PhaseResult, Record
from multistep.api.trial.status import Usage
from multistep.api.trial.values import AGENT, AGENT_SETUP
from multistep.engine.journal.journal import AgentInfo, AttemptLost, Journal, StepException, StepRun
from multistep.engine.journal.operations import HOST_OUTCOME, Admit, CloseModelAccess, Dismiss, HostCall, Script
from multistep.engine.lifecycle.stop_and_suspend import SWEEP_BUDGET_SPENT
from multistep.engine.plan.hosted_agent import HostedAgent
from multistep.engine.plan.plan import StepPlan
from multistep.engine.score.usage_totals import SETUP_ACCESS, ModelFailure, ModelReport, parse_report, parse_usage
from multistep.engine.script.operation_scope import Scope, TrialError, at_timeout, fault_of, how_it_ended, require
from multistep.errors import RunnerError

HOST_ERROR: Final = "AgentHostError"
_TEXT_CHARACTERS = 16_384


@dataclass(frozen=True)
class HostError:
    """The error of a failed setup or step."""

    type: str
    """Class name of Harbor's exception, or HOST_ERROR."""
    message: str
    exit_code: int | None = None
    """Exit status of the agent's last command, None if it is unknown."""


@dataclass(frozen=True)
class HostOutcome:
    """The outcome of a setup or a step, which the agent host wrote."""

    error: HostError | None = None
    agent: AgentInfo | None = None
    usage: Usage | None = None
    metadata: Mapping[str, Any] | None = None
    """Data that the agent returned, for result.json."""


def parse_outcome(result: PhaseResult) -> HostOutcome:
    """Return the outcome of a finished command of the agent host, with an error of type HOST_ERROR if the outcome is invalid."""
    if result.error is not None or result.timed_out:
        return HostOutcome(HostError(HOST_ERROR, f"the agent host {how_it_ended(result)}"))
    capture = result.captures.get(HOST_OUTCOME)
    if capture is None:
        return HostOutcome(HostError(HOST_ERROR, f"the agent host returned no outcome; it {how_it_ended(result)}"))
    try:
        return _parsed(json.loads(capture.data))
    except (ValueError, RecursionError, RunnerError) as error:
        return HostOutcome(HostError(HOST_ERROR, f"the agent host returned an invalid outcome: {str(error)[:500]}"))


def _parsed(value: object) -> HostOutcome:
    fields = Fields(value, "outcome")
    error = fields.optional_mapping("error")
    agent, usage = fields.optional_mapping("agent"), fields.optional_mapping("usage")
    return HostOutcome(
        error=None if error is None else _error(Fields(error, "outcome.error")),
        agent=None if agent is None else _agent_facts(Fields(agent, "outcome.agent")),
        usage=None if usage is None else _usage(Fields(usage, "outcome.usage")),
        metadata=fields.optional_mapping("metadata"),
    )


def _error(fields: Fields) -> HostError:
    exit_code = fields.optional_integer("exitCode")
    return HostError(fields.text("type", 200) or HOST_ERROR, fields.text("message", _TEXT_CHARACTERS), exit_code)


def _agent_facts(fields: Fields) -> AgentInfo:
    model = Fields(fields.optional_mapping("model") or {}, "outcome.agent.model")
    return AgentInfo(
        fields.text("name", 200),
        fields.optional_text("version", 200) or "unknown",
        model.optional_text("name", 512),
        model.optional_text("provider", 512),
    )


def _usage(fields: Fields) -> Usage | None:
    usage = parse_usage(fields)
    return None if usage == Usage() else usage


_Command: TypeAlias = Literal["setup", "step"]
_GRACE_SECONDS: Final = 60.0  # time for the agent host to collect usage and logs of an agent that it stopped
_CLOCK_SECONDS: Final = 5.0  # tolerance, because the agent host and the runner measure the elapsed time separately
_MAX_STALLED_SECONDS: Final = 3600.0
_NO_CLASS: Final = "AgentClassNotFoundError"  # the agent host did not find the module or class, before it ran any code of it
_NO_CLASS_STATUS: Final = 78  # exit status of the agent host's command with _NO_CLASS, which no code of the class can have caused
_WRONG_OPTIONS: Final = "ValueError"  # Harbor's agents raise it in a step if an option or a model is missing
_NOT_PREINSTALLED: Final = "NotPreinstalledError"  # the agent host did not find the agent's program
_NO_KEY: Final = "MissingModelCredentialError"  # Harbor's agent does not have the key of its model's provider
# The name of each agent host command in operation ids.
_NAMES: Final[Mapping[_Command, str]] = {"setup": "agent-setup", "step": "agent"}
_TIMEOUTS: Final[Mapping[_Command, str]] = {"setup": "AgentSetupTimeoutError", "step": "AgentTimeoutError"}


@dataclass(frozen=True)
class _Called:
    """A finished command of the agent host."""

    command: _Command
    record: Record
    outcome: HostOutcome
    result: PhaseResult

    @property
    def ended(self) -> float:
        """Return when the command ended, in seconds since the epoch."""
        return self.record.ended_at or self.record.started_at

    @property
    def timed_out(self) -> bool:
        error = self.outcome.error
        stopped = error is not None and error.type == _TIMEOUTS[self.command]
        return stopped or self.result.timed_out


def setup(scope: Scope, journal: Journal) -> Script[None]:
    """Set up the agent. Its installation runs as root if the agent requests this.

    A failed setup of one of Harbor's own agents is an infrastructure failure, because the agent has not seen an instruction. A
    failed setup of a custom agent class is an agent failure, because the class can read the environment and could fail on purpose
    if the task is hard. As in a step, this does not apply if the model gateway reports a failed model request or its own downtime.
    A downtime ends the attempt even if the setup of the class succeeded, because the class may have continued without the answer
    that it lost. If the environment lacks the agent's user, the task or the restored checkpoint is to blame. The environment's
    runner reports this before any code of the agent runs.
    """
    hosted, user = _hosted(scope), scope.plan.steps[0].agent_user
    request = {**_environment(scope, user), **_agent(scope), "env": _variables(scope), "trial": scope.trial_uid}
    admission = yield from _admit(scope, "setup", user)
    require(admission, "the agent could not be started")
    if hosted.spec.name is None:
        journal.class_ran_at = admission.started_at
    called = yield from _call(scope, "setup", admission.id, request, hosted.setup_timeout)
    journal.agent_setup = (called.record.started_at, called.record.ended_at)
    journal.agent = called.outcome.agent
    models = ModelReport()
    if hosted.spec.uses_gateway:
        models = parse_report(
            (yield CloseModelAccess(replace(scope, where="host").id("agent-setup-model-usage"), SETUP_ACCESS)).result
        )
        journal.setup_usage = models.usage
    if (error := _setup_error(called, hosted.setup_timeout)) is not None:
        yield from _close_user(scope)
        journal.lost = _lost_in_setup(hosted, called, error, models)
    elif hosted.spec.name is None:
        journal.lost = _lost_by_downtime(called, models)


def _lost_in_setup(hosted: HostedAgent, called: _Called, error: StepException, models: ModelReport) -> AttemptLost:
    """Return why the attempt failed in the agent's setup. Raises TrialError if a custom class is to blame."""
    down = _lost_by_downtime(called, models)
    if models.failure is not None and models.failure.kind != "Budget":
        return down or _lost_by_provider(_keys(hosted), models.failure)
    if why := models.provider_fault(failed=True, timeout=hosted.setup_timeout if called.timed_out else None, ended=called.ended):
        return AttemptLost(PROVIDER_FAILED, why)
    if error.type == _NO_CLASS and called.result.exit_code == _NO_CLASS_STATUS:
        return AttemptLost(AGENT_NOT_STARTED, f"{error.message}; check importPath", final=True)
    if hosted.spec.name is not None:
        if error.type == _NO_KEY:
            return AttemptLost("ModelAccessDenied", f"{error.message}; {_keys(hosted)}", final=True)
        if error.type == _NOT_PREINSTALLED:
            return AttemptLost(AGENT_NOT_STARTED, error.message, final=True)
        return AttemptLost(AGENT_SETUP_FAILED, f"{error.type}: {error.message}")
    if down is not None:
        return down
    raise TrialError(error)


def run(scope: Scope, step: StepPlan, run: StepRun) -> Script[StepException | None]:
    """Run the agent on the step's instruction. From step 2 on, the agent resumes its trajectory if spec.resumeTrajectory is
    true."""
    hosted = _hosted(scope)
    instruction = {"name": step.name, "instruction": step.instruction, "resume": hosted.resumes(step.index)}
    request = {**_environment(scope, step.agent_user), "env": _variables(scope), "step": instruction}
    admission = yield from _admit(scope, "step", step.agent_user)
    if (fault := fault_of(admission)) is not None:
        run.timed(AGENT, admission)
        return StepException("RuntimeError", f"the agent could not be started: {fault.message}", AGENT)
    called = yield from _call(scope, "step", admission.id, request, step.agent_timeout)
    run.timed(AGENT, called.record)
    run.usage, run.metadata, stalled = called.outcome.usage, called.outcome.metadata, 0.0
    models = users = ModelReport()
    if hosted.spec.uses_gateway:
        models = parse_report((yield CloseModelAccess(replace(scope, where="host").id("model-usage"), step.name)).result)
        users = yield from _close_user(scope)
        run.usage, run.user_usage = models.usage or run.usage, users.usage
        stalled = min(max(models.stalled_seconds, users.stalled_seconds), _max_stalled(scope))
        run.lost = _lost_by_requests(_keys(hosted), called, models) or _lost_by_requests(_keys_of_user(scope), called, users)
        if run.lost is not None:
            return None
        if (spent := models.failure or users.failure) is not None:  # a spent budget of the trial is a result of the agent
            return StepException("BudgetExceededError", spent.message, AGENT)
    own = called.outcome.error
    error = None if own is None else StepException(own.type, own.message, AGENT)
    if called.timed_out or _overran(called.result.duration_seconds, step.agent_timeout, stalled):
        extended = f", extended by {stalled:.0f} s in which the provider refused requests" if stalled >= 1 else ""
        error = StepException("AgentTimeoutError", f"the agent was stopped {at_timeout(step.agent_timeout)}{extended}", AGENT)
    elif (killed := out_of_memory(called.result)) is not None:
        return killed
    if own is not None and not called.timed_out and _not_started(scope, own, called, run):
        run.lost = AttemptLost(AGENT_NOT_STARTED, f"{own.type}: {own.message}; {_hint(hosted)}", final=True)
        return None
    timed_out = error is not None and error.type == "AgentTimeoutError"
    for report in (models, users):
        timeout = step.agent_timeout if timed_out else None
        if why := report.provider_fault(failed=error is not None, timeout=timeout, ended=called.ended):
            run.lost = AttemptLost(PROVIDER_FAILED, why)
            return None
    return error


def _close_user(scope: Scope) -> Script[ModelReport]:
    """Block the token of the simulated user, and return the gateway's report on its requests in the setup and the step."""
    if scope.plan.user is None:
        return ModelReport()
    closing = CloseModelAccess(replace(scope, where="host").id("user-usage"), _user_access(scope), "user")
    return parse_report((yield closing).result)


def _user_access(scope: Scope) -> str:
    """Return the name under which the gateway counts the simulated user's requests. Its task has one step."""
    return scope.plan.steps[0].name if scope.plan.user is not None else ""


def _not_started(scope: Scope, error: HostError, called: _Called, run: StepRun) -> bool:
    """Return whether one of Harbor's own agents failed before its first model request, for lack of its program, an option or its
    key.

    Return False for a custom class, which could claim this.
    """
    spec = _hosted(scope).spec
    if spec.name is None or not is_first(scope) or run.usage is not None:
        return False
    keyless = spec.access == "Gateway" and not spec.credentials and not any(variable.name.endswith("_KEY") for variable in spec.env)
    missing = error.exit_code in NOT_STARTED and called.result.duration_seconds <= SECONDS_TO_START
    return missing or keyless or (error.type == _WRONG_OPTIONS and spec.uses_gateway)


def _hint(hosted: HostedAgent) -> str:
    missing = "" if hosted.spec.credentials else ", spec.agent.credentials, which is empty,"
    return f"check spec.agent{missing} and whether the agent's program exists in the environment"


def _lost_by_requests(keys: str, called: _Called, models: ModelReport) -> AttemptLost | None:
    """Return why the model requests of the agent or the simulated user end the attempt, None if they do not. keys: what to check
    if key or model are wrong.

    A downtime takes precedence, because the gateway may have lost the record that shows that key and model are right, or the record
    of what the trial had used.
    """
    if (lost := _lost_by_downtime(called, models)) is not None:
        return lost
    failure = models.failure
    return _lost_by_provider(keys, failure) if failure is not None and failure.kind != "Budget" else None


def _lost_by_downtime(called: _Called, models: ModelReport) -> AttemptLost | None:
    """Return why the attempt is lost if the model gateway was down while the agent ran, else None.

    A request of the agent may not have reached the gateway, and no agent can cause a downtime.
    """
    error = called.outcome.error
    if (down := models.downtime(called.ended)) is None:
        return None
    ended = f"; the agent ended with {error.type}: {error.message}" if error is not None else ""
    return AttemptLost(MODEL_GATEWAY_DOWN, f"the model gateway {down.why} while the agent ran{ended}")


def _overran(seconds: float, timeout: float | None, stalled: float) -> bool:
    """Return whether the agent ran longer than its timeout plus the stalled seconds that the gateway reported.

    A custom class can cause this, because it controls the agent host, which applies the timeout. ``seconds`` is how long the agent
    ran according to a monotonic clock, because corrections of the node's clock change the record's times.
    """
    return timeout is not None and seconds > timeout + stalled + _GRACE_SECONDS + _CLOCK_SECONDS


def _lost_by_provider(keys: str, failure: ModelFailure) -> AttemptLost:
    """Return why the attempt or the trial failed because of a model request.

    The provider failed or rejected the request, or the request could have exceeded the sweep's budget, or the trial's budget, of
    which lost attempts had used a part.
    """
    if failure.kind == "SweepBudget":
        return AttemptLost(SWEEP_BUDGET_SPENT, failure.message)
    if failure.kind == "LostBudget":
        message = f"{failure.message}; attempts that were lost have used a part of it"
        return AttemptLost(BUDGET_USED_BY_LOST_ATTEMPTS, message, final=True)
    if failure.kind == "Provider":
        return AttemptLost(PROVIDER_FAILED, failure.message)
    return AttemptLost("ModelAccessDenied", f"{failure.message}; {keys}", final=True)


def _keys_of_user(scope: Scope) -> str:
    user = scope.plan.user
    return "" if user is None else f"check model ({user.spec.model}) and credentials of spec.models.user"


def _keys(hosted: HostedAgent) -> str:
    """Return the hint for the message about a rejected key or model, with the field and the Secrets to check."""
    refs = [credential.value_from.secret_key_ref for credential in hosted.spec.credentials if credential.value_from]
    places = [f"key {ref.key!r} of Secret {ref.name!r}" for ref in refs if ref]
    return f"check spec.agent.model ({hosted.spec.model}) and {' and '.join(places) or 'spec.agent.credentials'}"


def _setup_error(called: _Called, timeout: float | None) -> StepException | None:
    if called.timed_out:
        return StepException("AgentSetupTimeoutError", f"the agent's setup was stopped {at_timeout(timeout)}", AGENT_SETUP)
    error = called.outcome.error
    return None if error is None else StepException(error.type, f"the agent's setup failed: {error.message}", AGENT_SETUP)


def _admit(scope: Scope, command: _Command, user: str) -> Script[Record]:
    """Allow the agent host to run processes in the environment for a command. Return the record, which may have an error.

    Harbor's own agent classes may act as root, as in Harbor. A custom class may act as root only if its program is not
    preinstalled, because the class must then install the program.
    """
    spec = _hosted(scope).spec
    return (yield Admit(scope.id(f"{_NAMES[command]}-admit"), user, root=spec.name is not None or spec.installs))


def _call(scope: Scope, command: _Command, admission: str, request: Mapping[str, Any], timeout: float | None) -> Script[_Called]:
    """Run a command of the agent host, then revoke its permission to run processes in the environment.

    Processes that the agent left in the environment keep running, unless the agent was stopped at its timeout. The agent host
    applies the timeout, so that it can collect usage and logs of a stopped agent. If the host's command does not end, the runner
    stops it _GRACE_SECONDS later.
    """
    spec, name = _hosted(scope).spec, _NAMES[command]
    access = (scope.step.name if scope.step else SETUP_ACCESS) if spec.uses_gateway else ""
    request, stalled = {**request, "timeoutSeconds": timeout}, _max_stalled(scope)
    limit = None if timeout is None else timeout + stalled + _GRACE_SECONDS
    id, user = replace(scope, where="host").id(name), _user_access(scope)
    record = yield HostCall(id, command, admission, request, limit, stalled, access, user)
    result = PhaseResult.from_record(record)
    called = _Called(command, record, parse_outcome(result), result)
    yield Dismiss(scope.id(f"{name}-dismiss"), admission, kill=called.timed_out)
    return called


def _max_stalled(scope: Scope) -> float:
    """Return the maximum number of seconds by which the step's agent timeout is extended while the provider refuses requests.

    The maximum limits the time that an agent can gain by provoking refusals. A custom class gets no extension, because it controls
    the agent host, which applies the timeout.
    """
    spec = _hosted(scope).spec
    timeout = scope.step.agent_timeout if scope.step and spec.uses_gateway and spec.name is not None else None
    return 0.0 if timeout is None else min(timeout, _MAX_STALLED_SECONDS)


def _environment(scope: Scope, user: str) -> dict[str, Any]:
    path = f"{PROGRAM_DIR}/bin" if _hosted(scope).spec.image else ""
    return {"environment": {"workdir": scope.workdir, "user": user, "env": dict(scope.plan.environment_env), "path": path}}


def _agent(scope: Scope) -> dict[str, Any]:
    hosted = _hosted(scope)
    spec = hosted.spec
    request = {
        "agent": _program(scope, spec, preinstalled=not spec.installs),
        "mcpServers": list(hosted.mcp_servers),
        "skillsDir": hosted.skills_dir,
    }
    return {**request, **({"user": _simulated_user(scope, scope.plan.user.spec)} if scope.plan.user is not None else {})}


def _simulated_user(scope: Scope, spec: UserSpec) -> dict[str, Any]:
    preinstalled = spec.name is not None and spec.name == _hosted(scope).spec.name  # the agent's setup installs it
    agent = _program(scope, spec, preinstalled=preinstalled)
    return {"agent": agent, "persona": spec.persona, "promptTemplate": spec.prompt_template}


def _program(scope: Scope, spec: AgentSpec | UserSpec, *, preinstalled: bool) -> dict[str, Any]:
    """Return the class, the model and the options of agent or user. preinstalled: whether nothing must be installed for it."""
    return {
        "name": spec.name,
        "importPath": spec.import_path,
        "model": spec.model,
        "version": spec.version,
        "kwargs": _options(scope, spec),
        "preinstalled": preinstalled,
    }


def _options(scope: Scope, spec: AgentSpec | UserSpec) -> dict[str, Any]:
    """Return the options of agent or user, with web search disabled by default if it should not be used.

    That is the case if any step's network is limited (Harbor 0.26: in that step), or if the gateway refuses tools of the provider.
    """
    closed = spec.provider_tools == "Refuse" or any(step.network.limited for step in scope.plan.steps)
    limited = spec.name in WEB_TOOLS and closed
    return {**({"disable_web_search": True} if limited else {}), **spec.options}


def _variables(scope: Scope) -> dict[str, str]:
    """Return the agent's environment variables.

    If the agent uses the model gateway, reconcile.trial later adds the variables with the gateway's URL and with the step's token,
    which the agent uses as its API key.
    """
    hosted = _hosted(scope)
    return {**({} if hosted.spec.uses_gateway else hosted.direct_variables), **scope.plan.agent_env}


def _hosted(scope: Scope) -> HostedAgent:
    assert scope.plan.hosted is not None  # script_of selects this module only for hosted agents
    return scope.plan.hosted
