"""From options to a trial in the cluster: the request, the order in which its objects are made, who owns them."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ..cluster.edge import Object
from ..cluster.resources import TRIALS
from ..errors import ClusterError, Conflict, Unavailable, UsageError
from .cluster import FIELD_MANAGER, Cluster, find_trial
from .images import plan_build
from .manifests import (
    Manifest,
    TrialImage,
    TrialRequest,
    bundle_config_maps,
    checked_name,
    new_name,
    owned_by,
    trial_manifest,
    variable_from_secret,
    variables_secret,
)
from .tasks import TaskDirectory

_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")


@dataclass(frozen=True)
class TrialOptions:
    """The options of options.trial_options, as the command line gives them."""

    agent: str | None = None
    command: Sequence[str] = ()
    name: str | None = None
    secret_variables: Sequence[str] = ()
    timeout_multiplier: float | None = None
    on_agent_error: str | None = None
    no_verify: bool = False
    keep: bool = False
    queue: str | None = None


@dataclass(frozen=True)
class Submission:
    """A trial and what has to be there before it."""

    dependencies: Sequence[Manifest]
    trial: Manifest


def make_request(task: TaskDirectory, options: TrialOptions, *, image: TrialImage | None, namespace: str | None) -> TrialRequest:
    """The trial that the options ask for, without its bundle's ConfigMaps. Raises UsageError."""
    agent = options.agent or ("command" if options.command else "oracle")
    if (agent == "command") != bool(options.command):
        raise UsageError("the command agent, and no other, needs a command: --agent command -- PROGRAM ARGUMENT...")
    return TrialRequest(
        name=checked_name(options.name) if options.name else new_name(task.name, agent),
        task_name=task.directory_name,
        digest=task.digest,
        config_maps=(),
        agent=agent,
        command=options.command,
        namespace=namespace,
        image=image,
        variables=[_from_secret(each) for each in options.secret_variables],
        timeout_multiplier=options.timeout_multiplier,
        on_agent_error=options.on_agent_error,
        verify=not options.no_verify,
        keep=options.keep,
        queue=options.queue,
    )


def make_submission(task: TaskDirectory, request: TrialRequest, values: dict[str, str], *, shared: bool) -> Submission:
    """The manifests. values: of variables, for a Secret of the trial's own.

    shared: the ConfigMaps are named after the task and may serve many trials; else after the trial, which will own them.
    """
    stem = task.name if shared else request.name
    parts = [] if request.source else bundle_config_maps(task.packed, stem, request.digest, request.namespace)
    dependencies = list(parts)
    variables = list(request.variables)
    if values:
        secret = variables_secret(request.name, values, request.namespace)
        dependencies.append(secret)
        variables += [variable_from_secret(name, secret["metadata"]["name"], name) for name in values]
    names = [part["metadata"]["name"] for part in parts]
    return Submission(dependencies, trial_manifest(replace(request, config_maps=names, variables=variables)))


def existing_image(task: TaskDirectory, image: str | None, *, runner_in_image: bool) -> TrialImage | None:
    """The image named by --image; else, for a task that has only a Dockerfile, the one that `multistep build` makes of it."""
    if image:
        return TrialImage(image, runner=runner_in_image)
    return plan_build(task).image if task.needs_build else None


def variable_values(given: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE``, or ``NAME`` for the value it has in this process's environment. Raises UsageError."""
    values: dict[str, str] = {}
    for each in given:
        name, told, value = each.partition("=")
        if not told and name not in os.environ:
            raise UsageError(f"--var {name}: there is no such environment variable here; give a value with --var {name}=VALUE")
        values[_variable_name(name, f"--var {name}")] = value if told else os.environ[name]
    return values


async def submit(cluster: Cluster, submission: Submission) -> Object:
    """Make the trial, then what it needs, as its own from the first moment: whenever this ends, nothing is left that nobody owns.

    The operator waits for what is not there yet. Raises ClusterError.
    """
    trial = await _create(cluster, submission.trial)
    try:
        for manifest in submission.dependencies:
            await cluster.apply(owned_by(manifest, trial))
    except (ClusterError, asyncio.CancelledError):
        await _withdraw(cluster, trial)
        raise
    return trial


async def _create(cluster: Cluster, trial: Manifest) -> Object:
    """Created, not applied: a name that is taken is another trial, and must not pass for this one."""
    metadata = trial["metadata"]
    try:
        return await cluster.create(trial, field_manager=FIELD_MANAGER)
    except Conflict as error:
        raise Conflict(f"there is a trial {metadata['name']!r} already: delete it, or choose another --name", status=409) from error
    except Unavailable:
        found = await find_trial(cluster, metadata["namespace"], metadata["name"])  # the answer may be all that was lost
        if found is None:
            raise
        return found


async def _withdraw(cluster: Cluster, trial: Object) -> None:
    """Delete a trial that could not be given what it needs; what it has goes with it."""
    metadata = trial["metadata"]
    with suppress(ClusterError):
        await cluster.delete(TRIALS, metadata["namespace"], metadata["name"], uid=metadata["uid"])


def _from_secret(text: str) -> Manifest:
    name, _, source = text.partition("=")
    secret, _, key = source.partition(":")
    if not secret or not key:
        raise UsageError(f"--var-from-secret {text}: must be NAME=SECRET:KEY")
    return variable_from_secret(_variable_name(name, f"--var-from-secret {text}"), secret, key)


def _variable_name(name: str, option: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise UsageError(f"{option}: a name is made of letters, digits, '_', '.' and '-', and does not begin with a digit")
    return name
