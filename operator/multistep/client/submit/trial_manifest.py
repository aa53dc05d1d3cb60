"""Builds a trial and the objects that it needs from a task and options. No access to the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from multistep.client.options import JudgeOptions, ModelOptions
from multistep.client.submit.agent_choice import agent_entry, check_images, check_keys, label, script_command
from multistep.client.submit.judge_choice import with_judge
from multistep.client.submit.manifests import (
    Manifest,
    Submission,
    TrialImage,
    bundle_config_maps,
    bundle_source,
    checked_name,
    environment,
    new_name,
    optional,
    trial_manifest,
)
from multistep.client.submit.values import Values, from_secret
from multistep.client.task.task_directory import TaskDirectory
from multistep.errors import UsageError


@dataclass(frozen=True)
class TrialOptions:
    """The options of a trial, as `multistep run` and `multistep package` have them."""

    agent: str | None = None
    agent_file: Path | None = None
    command: Sequence[str] = ()
    name: str | None = None
    secret_variables: Sequence[str] = ()
    secret_agent_env: Sequence[str] = ()
    timeout_multiplier: float | None = None
    on_agent_error: str | None = None
    no_verify: bool = False
    keep: bool = False
    queue: str | None = None
    resume: bool = False
    start: str | None = None
    from_step: str | None = None
    to_step: str | None = None
    model: ModelOptions = field(default_factory=ModelOptions)
    judge: JudgeOptions = field(default_factory=JudgeOptions)
    resources: Manifest = field(default_factory=dict)


def trial_submission(
    task: TaskDirectory,
    options: TrialOptions,
    values: Values,
    *,
    image: TrialImage | None = None,
    source: Manifest | None = None,
    shared: bool = False,
) -> Submission:
    """Return the trial and the objects that it needs. Fields that have their default value are omitted.

    image: the image of the trial, or None for the task's own image. source: the fields of spec.task that refer to a bundle outside
    the cluster, or None to store the bundle in ConfigMaps. shared: whether the ConfigMaps are named after the task, so that many
    trials can use them, and not after the trial. Raises UsageError if options are invalid or exclude each other.
    """
    agent = _agent(options)
    name = checked_name(options.name) if options.name else new_name(task.name, label(agent))
    parts = [] if source else bundle_config_maps(task.packed, task.name if shared else name, task.digest)
    env = [*agent.get("env", ()), *values.agent_entries(name)]
    variables = [from_secret("--var-from-secret", each) for each in options.secret_variables]
    variables += values.variable_entries(name)
    spec = {
        "task": {"name": task.directory_name, **(source or bundle_source(parts, task.digest))},
        "agent": {**agent, **optional(env=env or None)},
        **_part(options),
        **optional(
            environment=environment(image, options.resources),
            verifier={"disable": True} if options.no_verify else None,
            timeoutMultiplier=options.timeout_multiplier,
            variables=variables or None,
            onAgentError=options.on_agent_error and options.on_agent_error.capitalize(),
            podCleanup="Never" if options.keep else None,
            resumeTrajectory=options.resume or None,
        ),
    }
    return Submission(
        trial_manifest(name, with_judge(spec, options.judge), task.digest, queue=options.queue), [*parts, *values.secrets(name)]
    )


def _agent(options: TrialOptions) -> Manifest:
    env = [from_secret("--agent-env-from-secret", each) for each in options.secret_agent_env]
    command = options.command
    if options.agent_file is not None:
        if options.agent not in (None, "command"):
            raise UsageError(f"--agent {options.agent} and --agent-file exclude each other: the script is the agent")
        command = script_command(options.agent_file, command)
    agent = agent_entry(options.agent or ("command" if command else "oracle"), options.model, command=command, env=env)
    check_images(options.model, [agent])
    check_keys(options.model, [agent])
    return agent


def _part(options: TrialOptions) -> Manifest:
    """Return the fields of spec that limit the trial to some of the task's steps. Raises UsageError if the options exclude each
    other."""
    if options.start is not None and options.from_step is not None:
        raise UsageError("--from and --from-step exclude each other: a trial starts from another trial or from the reference state")
    trial, colon, step = (options.start or "").partition(":")
    if options.start is not None and not (trial and colon and step):
        raise UsageError(f"--from {options.start!r} must be TRIAL:STEP, the name of a trial and of its step")
    start = {"trial": trial, "step": step} if options.start else None
    return optional(**{"from": start, "fromStep": options.from_step, "toStep": options.to_step})
