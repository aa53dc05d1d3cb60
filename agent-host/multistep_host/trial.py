"""Sets up and runs one trial's agent, which is an object of Harbor. The object's methods are called in the order of Harbor 0.26's
MultiStepTrial."""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from harbor.agents.agent_auth_resolution import MissingModelCredentialError
from harbor.agents.base import BaseAgent
from harbor.agents.factory import AgentFactory
from harbor.models.agent.context import AgentContext
from harbor.models.task.config import MCPServerConfig
from harbor.models.trial.config import AgentConfig
from harbor.trial.errors import AgentSetupTimeoutError, AgentTimeoutError

from multistep_host import preinstalled
from multistep_host.environment import GuestEnvironment
from multistep_host.frames import GuestError, RefusedError
from multistep_host.logs import AgentLogs
from multistep_host.outcome import Outcome, error_of, host_error, outcome
from multistep_host.phase_requests import PhaseRequest, SetupRequest, StepRequest, UserSetup
from multistep_host.provider_stalls import pin, stalled_seconds
from multistep_host.transcript import Send, discard, transcript
from multistep_host.variables import Variables

if TYPE_CHECKING:
    from multistep_host.simulated_user import SimulatedUser

_KEYS = frozenset({"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"})
_NOT_STARTED = (126, 127)  # exit codes of a shell whose command cannot be executed or does not exist
_log = logging.getLogger(__name__)


class TrialAgent:
    """The agent of a trial. The object is kept until the trial ends, because some agents keep their session in it."""

    def __init__(
        self, environment: GuestEnvironment, agent: BaseAgent, variables: Variables, user: SimulatedUser | None = None
    ) -> None:
        self._environment = environment
        self._agent = agent
        self._variables = variables
        self._user = user
        self._logs = AgentLogs(environment, agent.logs_dir)

    @classmethod
    def create(cls, request: SetupRequest, directory: Path) -> TrialAgent:
        """Create the agent, whose logs are below `directory`, Harbor's trial directory.

        Raises:
            Exception: Harbor or the agent's class rejects the configuration.
        """
        variables = Variables()
        variables.replace(request.env)
        environment = GuestEnvironment(request.trial, directory, request.environment.workdir)
        agent = create_agent(request, variables, environment.trial_paths.agent_dir)
        user = None
        if request.user is not None:
            user = _simulated_user(request, request.user, agent, variables, environment)
            variables.replace(request.env)
        return cls(environment, agent, variables, user)

    async def setup(self, request: SetupRequest) -> Outcome:
        """Set up the agent, which includes the installation of its program unless the program is preinstalled."""
        with self._admitted(request):
            try:
                await _within(request.timeout_seconds, self._set_up(request), AgentSetupTimeoutError, "Agent setup", _never_stalled)
            except Exception as error:
                _log.exception("the agent's setup failed")
                return outcome(error=_error(error), agent=self._info())
        return outcome(agent=self._info())

    async def step(self, request: StepRequest, send: Send = discard) -> Outcome:
        """Run the agent on a step, upload its logs to the environment, and return the outcome with its usage.

        `send` is called with each block of output of the agent's commands.
        """
        error: dict[str, Any] | None = None
        context, self._environment.exit_code = AgentContext(), None
        await pin(request.stalls)
        with self._admitted(request):
            if not request.step.resume:
                self._logs.clear()
            try:
                with self._shown(send):
                    await self._work(request, context)
            except Exception as exception:
                _log.exception("the agent's step failed")
                error = _error(exception)
                if (code := self._environment.exit_code) in _NOT_STARTED:
                    error["exitCode"] = code
            if self._user is not None:
                await self._user.close()
            await self._logs.exchange(self._agent, context)
        return outcome(error=error, agent=self._info(), **report(context))

    def dismiss(self) -> None:
        """Close all connections to the environment's runner, so that it kills the agent's commands."""
        self._environment.guest.dismiss()

    async def _set_up(self, request: SetupRequest) -> None:
        if self._user is not None and request.user is not None:
            await self._user.set_up(request.user)
            self._variables.replace(request.env)
        with self._environment.scoped_exec_env(self._agent.extra_env):
            if request.agent.preinstalled:
                await preinstalled.set_up(self._agent, self._environment)
            else:
                await self._agent.setup(environment=self._environment)
        if self._user is not None and request.user is not None:
            await self._user.connect(request.user)

    async def _work(self, request: StepRequest, context: AgentContext) -> None:
        self._variables.replace(request.env)
        self._variables.refresh(self._agent)
        stalled = partial(_stalled_of_roles, request)
        if self._user is not None and request.user is not None:
            talk = self._user.talk(request.step.instruction, request.user)
            await _within(request.timeout_seconds, talk, AgentTimeoutError, "Agent execution", stalled)
            return
        run = self._agent.resume if request.step.resume else self._agent.run
        with self._environment.scoped_exec_env(self._agent.extra_env):
            work = run(instruction=request.step.instruction, environment=self._environment, context=context)
            await _within(request.timeout_seconds, work, AgentTimeoutError, "Agent execution", stalled)

    @contextmanager
    def _shown(self, send: Send) -> Iterator[None]:
        """During the ``with`` block, send the output of the agent's commands to `send`, and write it to a file of the agent's
        logs. The commands find the files of these logs that they name."""
        with transcript(self._agent.logs_dir, send) as written:
            self._environment.guest.show = written.add
            self._environment.before = partial(self._logs.share, self._agent)
            try:
                yield
            finally:
                self._environment.guest.show, self._environment.before = discard, None

    @contextmanager
    def _admitted(self, request: PhaseRequest) -> Iterator[None]:
        defaults = request.environment
        self._environment.configure(defaults.env, defaults.workdir, defaults.path)
        self._environment.guest.admit(request.admission.admission())
        try:
            with self._environment.with_default_user(request.environment.user or None):
                yield
        finally:
            self._environment.guest.dismiss()

    def _info(self) -> dict[str, object] | None:
        try:
            info = self._agent.to_agent_info()
        except Exception:
            _log.exception("the agent does not describe itself")
            return None
        model = info.model_info and {"name": info.model_info.name, "provider": info.model_info.provider}
        return {"name": info.name, "version": info.version, "model": model}


def _simulated_user(
    request: SetupRequest, user: UserSetup, agent: BaseAgent, variables: Variables, environment: GuestEnvironment
) -> SimulatedUser:
    """Create the simulated user, whose logs are beside the agent's. Raises Exception if Harbor or a class rejects it."""
    from multistep_host.simulated_user import LOGS_NAME, SimulatedUser  # not at the top, as it takes 0.04 s of CPU time

    variables.replace(user.env)
    wanted = request.model_copy(update={"agent": user.agent, "mcp_servers": [], "skills_dir": None})
    logs = environment.trial_paths.user_agent_dir
    player = create_agent(wanted, variables, logs, agent.environment_logs_dir / LOGS_NAME)
    player.session_id = f"{request.trial}__user"
    return SimulatedUser(environment, agent, player, variables, user)


def create_agent(request: SetupRequest, variables: Variables, logs: Path, in_environment: PurePosixPath | None = None) -> BaseAgent:
    """Create Harbor's agent object as Harbor 0.26's Trial does. in_environment: directory of its logs there, None: /logs/agent.

    If an agent that can use the model gateway has a provider's key, first check that the key is for the agent's model, as Harbor
    0.26's Job does. With another key, the agent would fail without sending a request. An agent without a key is not checked,
    because it may need no key, or may read the key from a file of its image.
    """
    wanted = request.agent
    kwargs = dict(wanted.options)
    skips = bool(kwargs.pop("skip_model_parsing", False))  # a field of AgentConfig. Harbor's check accepts no such option
    if wanted.version is not None:
        kwargs["version"] = wanted.version
    config = AgentConfig(
        name=wanted.name,
        import_path=wanted.import_path,
        model_name=wanted.model,
        kwargs=kwargs,
        skip_model_parsing=skips,
        env=variables.references(),
    )
    has_key = not _KEYS.isdisjoint(config.env)
    if has_key and wanted.name and wanted.model and AgentFactory.get_agent_class_from_config(config).capabilities.base_url:
        AgentFactory.run_preflight(config)
    optional: dict[str, object] = {} if in_environment is None else {"environment_logs_dir": in_environment}
    if request.mcp_servers:
        optional["mcp_servers"] = [MCPServerConfig.model_validate(each) for each in request.mcp_servers]
    if request.skills_dir:
        optional["skills_dir"] = request.skills_dir
    agent = AgentFactory.create_agent_from_config(config, logs_dir=logs, **optional)
    agent.session_id, agent.context_id = f"{request.trial}__agent", uuid.uuid4()
    return agent


def report(context: AgentContext) -> dict[str, Any]:
    """Return the context's usage, metadata and rollout details, as arguments of `outcome`."""
    usage = {
        "inputTokens": context.n_input_tokens,
        "cachedTokens": context.n_cache_tokens,
        "outputTokens": context.n_output_tokens,
        "costUSD": context.cost_usd,
    }
    return {"usage": usage, "metadata": context.metadata, "rollout_details": bool(context.rollout_details)}


def _error(exception: Exception) -> dict[str, Any]:
    """Return the error of a setup or step. If the environment cannot be reached, the error is an AgentHostError, not the agent's
    error."""
    if isinstance(exception, GuestError) and not isinstance(exception, RefusedError):
        return host_error(str(exception))
    return error_of(exception)


async def _never_stalled() -> float:
    return 0.0


async def _stalled_of_roles(request: StepRequest) -> float:
    """Return how long the provider stalled the step's agent or its simulated user, whichever is longer, in seconds."""
    of_user = None if request.user is None else request.user.stalls
    return max(await stalled_seconds(request.stalls), await stalled_seconds(of_user))


async def _within(
    seconds: float | None, work: Awaitable[None], error: type[TimeoutError], what: str, stalled: Callable[[], Awaitable[float]]
) -> None:
    """Await the work. Cancel the work at the timeout, which is extended by the seconds that ``stalled`` returns at that time."""
    task = asyncio.ensure_future(work)
    try:
        await _wait(task, seconds, stalled)
        await task
    except TimeoutError as timeout:
        raise error(f"{what} timed out after {seconds} seconds") from timeout
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _wait(task: asyncio.Future[None], seconds: float | None, stalled: Callable[[], Awaitable[float]]) -> None:
    """Wait until the task has finished. Raises TimeoutError at the extended timeout."""
    time, extended = asyncio.get_running_loop().time, 0.0
    started = time()
    while True:
        left = None if seconds is None else max(0.0, started + seconds + extended - time())
        await asyncio.wait({task}, timeout=left)
        if task.done():
            return
        before, extended = extended, await stalled()
        if extended <= before and not task.done():
            raise TimeoutError


def failed_creation(exception: Exception) -> Outcome:
    """Return the outcome of a setup whose agent could not be created."""
    if isinstance(exception, MissingModelCredentialError):
        without_options = re.split(r"[,.] (?:or )?[Uu]se --", str(exception))[0]  # omit the advice to use options of Harbor's CLI
        return outcome(error={**error_of(exception), "message": without_options})
    return outcome(error=host_error(f"the agent cannot be created: {type(exception).__name__}: {exception}"))
