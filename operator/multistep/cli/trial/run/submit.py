"""Builds a trial and the objects that it needs from command-line options, and creates them in the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from multistep.cli.cluster import Cluster, create
from multistep.cli.image.images import plan_build
from multistep.cli.options import ModelOptions
from multistep.cli.task.task_directory import TaskDirectory
from multistep.cli.trial.run.agent_choice import agent_entry, check_images, check_keys, label, script_command
from multistep.cli.trial.run.manifests import (
    Manifest,
    TrialImage,
    TrialRequest,
    bundle_config_maps,
    checked_name,
    new_name,
    optional,
    owned_by,
    trial_manifest,
)
from multistep.cli.values import Values, from_secret
from multistep.errors import ClusterError, UsageError
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import TRIALS


@dataclass(frozen=True)
class TrialOptions:
    """The values of the options that options.trial_options adds."""

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


@dataclass(frozen=True)
class Submission:
    """The manifests of a trial and of the ConfigMaps and Secrets that it needs."""

    dependencies: Sequence[Manifest]
    trial: Manifest


def make_request(task: TaskDirectory, options: TrialOptions, *, image: TrialImage | None, namespace: str | None) -> TrialRequest:
    """Return the request for a trial with these options, without the names of the bundle's ConfigMaps, which make_submission adds.

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
        config_maps=(),
        agent=agent,
        namespace=namespace,
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
    parts = [] if request.source else bundle_config_maps(task.packed, stem, request.digest, request.namespace)
    names = [part["metadata"]["name"] for part in parts]
    variables = [*request.variables, *values.variable_entries(request.name)]
    env = [*request.agent.get("env", ()), *values.agent_entries(request.name)]
    agent = {**request.agent, **({"env": env} if env else {})}
    trial = trial_manifest(replace(request, config_maps=names, variables=variables, agent=agent))
    return Submission([*parts, *values.secrets(request.name, request.namespace)], trial)


def existing_image(task: TaskDirectory, image: str | None, *, runner_in_image: bool) -> TrialImage | None:
    """Return the image of --image, else the image that `multistep build` builds for the task; None if the task needs no build."""
    if image:
        return TrialImage(image, runner=runner_in_image)
    return plan_build(task).image if task.needs_build else None


async def submit(cluster: Cluster, submission: Submission) -> Object:
    """Create the trial, then the objects that it owns, so that an interruption leaves no orphans. Return the trial.

    Until the objects exist, the operator waits for them. Raises ClusterError if a request fails.
    """
    trial = await create(cluster, TRIALS, submission.trial)
    try:
        for manifest in submission.dependencies:
            await cluster.apply(owned_by(manifest, trial))
    except (ClusterError, asyncio.CancelledError):
        await _withdraw(cluster, trial)
        raise
    return trial


async def _withdraw(cluster: Cluster, trial: Object) -> None:
    """Delete a trial, because an object that it needs could not be created. Kubernetes then deletes the objects that the trial
    owns."""
    metadata = trial["metadata"]
    with suppress(ClusterError):
        await cluster.delete(TRIALS, metadata["namespace"], metadata["name"], uid=metadata["uid"])
