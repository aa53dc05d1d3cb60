"""A taskset and an environment for verifiers (0.4.0), whose episodes are trials with the tokens that their agents sampled.

verifiers loads them from a module of yours (docs/how-to/rollouts.md). This module needs the package verifiers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import verifiers.v1 as vf
from pydantic import Field
from verifiers.v1.configs.agent import resolve_agent
from verifiers.v1.errors import ProviderError
from verifiers.v1.graph import MessageNode
from verifiers.v1.trace import AgentInfo, Trace, TraceTask
from verifiers.v1.types import AssistantMessage, UserMessage

from multistep.client.async_client import TTL_SECONDS, AsyncClient
from multistep.client.rollouts.sample import Sample, Samples
from multistep.client.run import Rollout


class TrialTasksetConfig(vf.TasksetConfig):
    """The tasks."""

    tasks: list[str] = Field(default_factory=list)
    """Directories of tasks."""


class TrialTaskset(vf.Taskset[vf.Task, TrialTasksetConfig]):
    """Tasks of Multistep."""

    def load(self) -> Iterable[vf.Task]:
        """Yield the tasks. The prompt is the task's directory, which the environment submits."""
        for number, place in enumerate(self.config.tasks):
            yield vf.Task(vf.TaskData(idx=number, name=place, prompt=place), self.config.task)


class TrialEnvConfig(vf.EnvConfig):
    """How trials are run."""

    agent: vf.AgentConfig = vf.AgentConfig()
    trial_agent: dict[str, Any] = Field(default_factory=dict)
    """The trial's spec.agent, such as {"name": "terminus-2"}. By default its model and baseURL are those of verifiers' client, and
    capture is Tokens. The credentials are required."""
    namespace: str | None = None
    image: str | None = None
    """Image of the environments; default: the tasks' images."""
    spec: dict[str, Any] = Field(default_factory=dict)
    """Further fields of the sweep's spec."""


class TrialEnv(vf.Env[TrialEnvConfig]):
    """Runs an episode as a trial. An episode whose trial is not valid has an error and no reward."""

    async def run(self, task: vf.Task, agents: Any) -> None:
        """Not used: ``run_episode`` returns the trial's episode."""
        raise NotImplementedError

    async def run_episode(
        self,
        task: vf.Task,
        ctx: Any,
        *,
        on_trace: Callable[[Trace], None] | None = None,
        on_discard: Callable[[Trace], None] | None = None,  # noqa: ARG002  # verifiers calls it by this name
    ) -> vf.Episode:
        """Run a trial, and return it as an episode of one trace. Raises the errors of ``AsyncClient``."""
        known = TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        options = {"model": ctx.model, "client": ctx.client, "sampling": ctx.sampling, "harness": self._default_harness}
        trace = Trace(task=known, agent=AgentInfo(config=resolve_agent(self.config.agent, **options)))
        if on_trace is not None:
            on_trace(trace)
        fill_trace(trace, *await self._trial(task, ctx))
        return vf.Episode(env=vf.EnvInfo(id=self.config.env_id), task=known, traces=[trace], ok=trace.ok)

    async def _trial(self, task: vf.Task, ctx: Any) -> tuple[Rollout | None, Samples | None]:
        model = {"model": f"openai/{ctx.model}", "baseURL": ctx.client.base_url, "capture": "Tokens"}
        agent = {"name": "agent", "agent": {**model, **self.config.trial_agent}}
        spec = {"ttlSecondsAfterFinished": TTL_SECONDS, **self.config.spec}
        async with AsyncClient(namespace=self.config.namespace) as client:
            run = await client.submit([task.data.name], agents=[agent], image=self.config.image, spec=spec)
            found = next(iter(await run.results()), None)
            return found, await client.samples(found) if found and found.valid else None


def fill_trace(trace: Trace, rollout: Rollout | None, samples: Samples | None) -> None:
    """Write a trial to a trace: its sequences as branches, its reward, and each step's part of it. rollout: None if the trial was
    not created. samples: None if the trial is not valid."""
    if rollout is None or samples is None:
        message = "the trial was not created" if rollout is None else f"{rollout.reason}: {rollout.message}"
        trace.record_error(ProviderError(message))
    else:
        for each in samples.sequences:
            _add(trace, each)
        trace.record_reward("score", samples.reward)
        for step in rollout.steps:
            trace.record_metric(f"step/{step.name}", step.score)
        trace.ok = True
    trace.is_completed = True


def _add(trace: Trace, sample: Sample) -> None:
    """Add a sequence as a branch: for each answer a node with the context before it, and the sampled node."""
    parent, context = None, 0
    for start, end, request in sample.answers:
        ids = list(sample.ids[context:start])
        message = UserMessage(content=f"context of {request}")
        trace.nodes.append(MessageNode(parent=parent, message=message, token_ids=ids, mask=[False] * len(ids)))
        sampled = MessageNode(
            parent=len(trace.nodes) - 1,
            message=AssistantMessage(content=f"answer of {request}"),
            sampled=True,
            token_ids=list(sample.ids[start:end]),
            mask=[True] * (end - start),
            logprobs=list(sample.logprobs[start:end]),
            advantages=None if sample.credit is None else list(sample.credit[start:end]),
        )
        trace.nodes.append(sampled)
        parent, context = len(trace.nodes) - 1, end
