"""Builds a trial and the objects that it needs from a task and options. No access to the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from multistep.client.options import ModelOptions
from multistep.client.submit.agent_choice import agent_entry, check_images, check_keys, label, script_command
from multistep.client.submit.manifests import (
    Manifest,
    Submission,
    TrialImage,
    TrialRequest,
    bundle_config_maps,
    bundle_source,
    checked_name,
    new_name,
    optional,
    trial_manifest,
)
from multistep.client.submit.values import Values, from_secret
from multistep.client.task.task_directory import TaskDirectory
from multistep.errors import UsageError


@dataclass(frozen=True)
class TrialOptions:
    """What a user chooses for a trial, as texts of the command line's options."""

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
    resources: Manifest = field(default_factory=dict)


def make_request(task: TaskDirectory, options: TrialOptions, *, image: TrialImage | None) -> TrialRequest:
    """Return the request for a trial with these options, without the bundle's ConfigMaps, which make_submission adds.

    Raises UsageError if options are invalid or exclude each other.
    """
    env = [from_secret("--agent-env-from-secret", each) for each in options.secret_agent_env]
    command = options.command
    if options.agent_file is not None:
        if options.agent not in (None, "command"):
            raise UsageError(f"--agent {options.agent} and --agent-file exclude each other: the script is the agent")
        command = script_command(options.agent_file, command)
    chosen = options.agent or ("command" if command else "oracle")
    agent = agent_entry(chosen, options.model, command=command, env=env)
    check_images(options.model, [agent])
    check_keys(options.model, [agent])
    return TrialRequest(
        name=checked_name(options.name) if options.name else new_name(task.name, label(agent)),
        task_name=task.directory_name,
        digest=task.digest,
        agent=agent,
        image=image,
        variables=[from_secret("--var-from-secret", each) for each in options.secret_variables],
        timeout_multiplier=options.timeout_multiplier,
        on_agent_error=options.on_agent_error,
        verify=not options.no_verify,
        keep=options.keep,
        queue=options.queue,
        resume=options.resume,
        part=_part(options),
        resources=options.resources,
    )


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


def make_submission(task: TaskDirectory, request: TrialRequest, values: Values, *, shared: bool) -> Submission:
    """Return the manifests of the trial and the objects that it needs.

    shared: name the ConfigMaps after the task, for use by many trials, instead of after the trial.
    """
    stem = task.name if shared else request.name
    parts = [] if request.source else bundle_config_maps(task.packed, stem, request.digest)
    source = request.source or bundle_source(parts, request.digest)
    variables = [*request.variables, *values.variable_entries(request.name)]
    env = [*request.agent.get("env", ()), *values.agent_entries(request.name)]
    agent = {**request.agent, **({"env": env} if env else {})}
    trial = trial_manifest(replace(request, source=source, variables=variables, agent=agent))
    return Submission(trial, [*parts, *values.secrets(request.name)])
