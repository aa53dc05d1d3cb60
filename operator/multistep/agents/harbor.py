"""The script of a Harbor agent, which the agent host runs: one agent object per trial, a setup before step 1, and a run or resume
per step (Harbor 0.25, trial)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from multistep.agents import host_outcome
from multistep.agents.common import out_of_memory
from multistep.agents.host_outcome import HostError, Outcome
from multistep.api.records import PhaseResult, Record
from multistep.engine.hosted_agent import HostedAgent
from multistep.engine.journal import AGENT, AGENT_SETUP, AttemptLost, Journal, StepRun
from multistep.engine.model_access import ModelFailure, report
from multistep.engine.operations import Admit, CloseModelAccess, Dismiss, HostCall, Script
from multistep.engine.plan import StepPlan
from multistep.engine.rewards import StepException
from multistep.engine.scope import Scope, TrialError, at_timeout, failed

_GRACE_SECONDS: Final = 60.0  # time for the agent host to collect usage and logs of an agent that it stopped
_NAMES: Final[Mapping[Literal["setup", "step"], str]] = {"setup": "agent-setup", "step": "agent"}  # name in operation ids


@dataclass(frozen=True)
class _Called:
    """A finished command of the agent host. result: None if the environment did not admit the agent host."""

    record: Record
    outcome: Outcome
    result: PhaseResult | None

    @property
    def timed_out(self) -> bool:
        error = self.outcome.error
        stopped = error is not None and error.type in ("AgentTimeoutError", "AgentSetupTimeoutError")
        return stopped or (self.result is not None and self.result.timed_out)


def setup(scope: Scope, journal: Journal) -> Script[None]:
    """Set up the agent. Its installation runs as root if the agent asks for it.

    If one of Harbor's own agents fails here, the failure is one of the infrastructure, because the agent has not seen an
    instruction. If a custom agent class fails, the failure is the agent's: the class could read the environment and give up on a
    hard task.
    """
    hosted, user = _hosted(scope), scope.plan.steps[0].agent_user
    request = {**_environment(scope, user), **_agent(hosted), "env": _variables(scope), "trial": scope.trial_uid}
    called = yield from _call(scope, "setup", user, request, hosted.setup_timeout)
    journal.agent_setup = (called.record.started_at, called.record.ended_at)
    journal.agent = called.outcome.agent
    if (error := _setup_error(called, hosted.setup_timeout)) is None:
        return
    if hosted.spec.name is None:
        raise TrialError(error)
    journal.lost = AttemptLost("AgentSetupFailed", f"{error.type}: {error.message}")


def run(scope: Scope, step: StepPlan, run: StepRun) -> Script[StepException | None]:
    """Run the agent on the step's instruction; from step 2 on, resume its trajectory if the trial asks for it."""
    hosted = _hosted(scope)
    instruction = {"name": step.name, "instruction": step.instruction, "resume": hosted.resumes(step.index)}
    request = {**_environment(scope, step.agent_user), "env": _variables(scope), "step": instruction}
    called = yield from _call(scope, "step", step.agent_user, request, step.agent_timeout)
    run.timed(AGENT, called.record)
    run.usage, run.metadata = called.outcome.usage, called.outcome.metadata
    if hosted.spec.uses_gateway:
        found = report((yield CloseModelAccess(replace(scope, where="host").id("model-usage"), step.name)))
        run.usage = found.usage or run.usage
        if found.failure is not None and (refused := _lost_by_provider(run, hosted, found.failure)) is not None:
            return refused
    if called.timed_out:
        return StepException("AgentTimeoutError", f"the agent was stopped {at_timeout(step.agent_timeout)}", AGENT)
    if called.result is not None and (killed := out_of_memory(called.result)) is not None:
        return killed
    error = called.outcome.error
    return None if error is None else StepException(error.type, error.message, AGENT)


def _lost_by_provider(run: StepRun, hosted: HostedAgent, failure: ModelFailure) -> StepException | None:
    """Record in the step that the attempt has no result, because the provider failed or rejected the step's last model request. If
    an exceeded budget ended the request, return an exception instead: this is a result."""
    if failure.kind == "Budget":
        return StepException("BudgetExceededError", failure.message, AGENT)
    if failure.kind == "Provider":
        run.lost = AttemptLost("ProviderFailed", failure.message)
    else:
        run.lost = AttemptLost("ModelAccessDenied", f"{failure.message}; {_keys(hosted)}", final=True)
    return None


def _keys(hosted: HostedAgent) -> str:
    """Return what to check (the model, and where its keys are), for the message about a rejected key or model."""
    refs = [each.value_from.secret_key_ref for each in hosted.spec.credentials if each.value_from]
    places = [f"key {ref.key!r} of Secret {ref.name!r}" for ref in refs if ref]
    return f"check spec.agent.model ({hosted.spec.model}) and {' and '.join(places) or 'spec.agent.credentials'}"


def _setup_error(called: _Called, timeout: float | None) -> StepException | None:
    if called.timed_out:
        return StepException("AgentSetupTimeoutError", f"the agent's setup was stopped {at_timeout(timeout)}", AGENT_SETUP)
    error = called.outcome.error
    return None if error is None else StepException(error.type, f"the agent's setup failed: {error.message}", AGENT_SETUP)


def _call(
    scope: Scope,
    command: Literal["setup", "step"],
    user: str,
    request: Mapping[str, Any],
    timeout: float | None,
) -> Script[_Called]:
    """Run a command of the agent host, which the runner admits until it ends. Processes that the agent's programs left in
    the environment keep running, unless the agent was stopped at its timeout.

    The agent host applies the timeout, so that it can collect usage and logs of a stopped agent; if it fails to, the runner stops
    it _GRACE_SECONDS later. Harbor's own agent classes may act as root, as in Harbor; a custom class only if it is not
    preinstalled, because it then installs its program.
    """
    spec = _hosted(scope).spec
    root = spec.name is not None or not spec.preinstalled
    name = _NAMES[command]
    admission = scope.id(f"{name}-admit")
    record = yield Admit(admission, user, root=root)
    if (fault := failed(record)) is not None:
        return _Called(record, Outcome(HostError("RuntimeError", f"the agent could not be started: {fault.message}")), None)
    access = (scope.step.name if scope.step else "-") if spec.uses_gateway else ""
    request = {**request, "timeoutSeconds": timeout}
    limit = None if timeout is None else timeout + _GRACE_SECONDS
    record = yield HostCall(replace(scope, where="host").id(name), command, admission, request, limit, access)
    result = PhaseResult.from_record(record)
    called = _Called(record, host_outcome.read(result), result)
    yield Dismiss(scope.id(f"{name}-dismiss"), admission, kill=called.timed_out)
    return called


def _environment(scope: Scope, user: str) -> dict[str, Any]:
    return {"environment": {"workdir": scope.workdir, "user": user, "env": dict(scope.plan.environment_env)}}


def _agent(hosted: HostedAgent) -> dict[str, Any]:
    spec = hosted.spec
    agent = {
        "name": spec.name,
        "importPath": spec.import_path,
        "model": spec.model,
        "version": spec.version,
        "kwargs": dict(spec.options),
        "preinstalled": spec.preinstalled,
    }
    return {"agent": agent, "mcpServers": list(hosted.mcp_servers), "skillsDir": hosted.skills_dir}


def _variables(scope: Scope) -> dict[str, str]:
    """Return the agent's variables. For an agent that uses the gateway, the driver adds the variables with keys later."""
    hosted = _hosted(scope)
    return {**({} if hosted.spec.uses_gateway else hosted.direct_variables), **scope.plan.agent_env}


def _hosted(scope: Scope) -> HostedAgent:
    assert scope.plan.hosted is not None  # agents.script_of selects this script for hosted agents only
    return scope.plan.hosted
