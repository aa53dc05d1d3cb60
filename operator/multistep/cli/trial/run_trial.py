"""`multistep run`: checks the task, builds its image, submits and follows the trial, fetches its results, shows its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from multistep.api.trial.agent_spec import AgentSpec
from multistep.api.trial.status import TrialStatus
from multistep.api.trial.trial import parse_trial
from multistep.api.trial.values import PLAIN
from multistep.cli import cluster
from multistep.cli.exit_codes import Exit, Interrupted, exit_of, exit_of_outcome
from multistep.cli.image.images import build_image, choose_engine, load_image, plan_build
from multistep.cli.options import RunOptions
from multistep.cli.terminal import print_err, print_json, print_line, print_out, print_warning
from multistep.cli.trial.follow_trial import follow
from multistep.cli.trial.results import fetch_results
from multistep.cli.trial.trial_view import Progress, status_document, trial_view
from multistep.client.connection import Cluster
from multistep.client.kubeconfig import current_cluster
from multistep.client.options import Target
from multistep.client.outcome import outcome
from multistep.client.results.fetch import check_directory
from multistep.client.submit.create import check_accepted, submit
from multistep.client.submit.manifests import Submission, TrialImage
from multistep.client.submit.trial_manifest import TrialOptions, trial_submission
from multistep.client.task.check_task import validate
from multistep.client.task.task_directory import TaskDirectory
from multistep.engine.plan.image_builds import FROM_DOCKERFILE
from multistep.engine.plan.task_steps import part_of_task
from multistep.errors import MultistepError, Unavailable, UsageError
from multistep.sources.task.task import load_task


def run_trial(task: Path, options: TrialOptions, common: RunOptions, results: Path | None) -> Exit:
    """Validate the task, build its image, create the trial and follow it. Return the exit code of its outcome."""
    if results:
        check_directory(results)
    values = common.values()
    directory = TaskDirectory.open(task)
    planned = trial_submission(directory, options, values)
    spec = parse_trial(planned.main).spec
    given = {each.name for each in spec.variables}
    report = validate(
        directory,
        agents=[spec.agent],
        given=given | {*spec.models.variables},
        show=show_finding,
        remedy=var_options,
        verification=not spec.verifier.disable,
        image=common.image,
    )
    check_used(given, report.used, agents=[spec.agent])
    part_of_task(spec, [each.name for each in report.steps], single=not directory.table.get("steps"))
    asyncio.run(check_accepted_by(common.target, planned))
    image = image_of(directory, task, common)
    named = replace(options, name=planned.main["metadata"]["name"])
    submission = trial_submission(directory, named, values, image=image)
    parse_trial(submission.main)
    return asyncio.run(submit_trial(submission, common, results))


async def check_accepted_by(target: Target, planned: Submission) -> None:
    """Check by a dry run, before a long build, that the cluster will accept a trial or a sweep."""
    async with cluster.connect(target) as connected:
        await check_accepted(connected, planned)


async def submit_trial(submission: Submission, common: RunOptions, results: Path | None) -> Exit:
    """Create the trial and its objects, follow the trial and fetch its results. Return the exit code of the trial's outcome or, if
    that is 0, of the fetch.

    With --detach, only create the objects. results: new directory for the results.
    """
    async with cluster.connect(common.target) as connected:
        metadata = (await submit(connected, submission))["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        if common.detach:
            return _leave(namespace, name, as_json=common.as_json)
        print_err(f"trial {name} in namespace {namespace}")
        status = await _follow(connected, namespace, name)
        fault: MultistepError | None = None
        if results:
            try:
                await fetch_results(connected, name, status, results)
            except MultistepError as error:
                fault = error
    if common.as_json:
        fetched = str(results) if results and fault is None else None
        print_json(status_document(namespace, name, status, fetched))
    else:
        print_out(trial_view(name, status, namespace=namespace))
    if fault is not None:
        print_err(f"error: results were not fetched: {fault}")
    return exit_of_outcome(outcome(status)) or (exit_of(fault) if fault else Exit.OK)


def _leave(namespace: str, name: str, *, as_json: bool) -> Exit:
    if as_json:
        print_json(status_document(namespace, name, TrialStatus()))
    else:
        print_line(name)
        print_err(f"submitted; {_hints(namespace, name)}")
    return Exit.OK


async def _follow(connected: Cluster, namespace: str, name: str) -> TrialStatus:
    continues = f"trial {name} continues in the cluster; {_hints(namespace, name)}"
    try:
        with Progress(name) as progress:
            return await follow(connected, namespace, name, progress)
    except asyncio.CancelledError:  # Ctrl-C
        raise Interrupted(continues) from None
    except Unavailable as error:
        raise Unavailable(f"{error}; {continues}") from error


def show_finding(kind: str, text: str) -> None:
    """Print a warning or a note on a task."""
    print_err(f"{kind}: {text}")


def var_options(names: Sequence[str]) -> str:
    """Return how to give variables a value."""
    return f"give --var {' --var '.join(names)}"


def check_used(given: Collection[str], used: Collection[str], *, agents: Sequence[AgentSpec]) -> None:
    """Raise UsageError for variables that no template uses, because no process would receive their values. If all agents are oracle
    or nop, only print a warning."""
    unused = sorted(set(given).difference(used))
    if not unused:
        return
    names = ", ".join(f"${{{name}}}" for name in unused)
    message = f"--var {' --var '.join(unused)}: no template in task.toml or a compose file uses {names}"
    if any(each.name not in PLAIN for each in agents):
        raise UsageError(f"{message}, so nothing would receive it; for the agent's environment use --agent-env {unused[0]}")
    print_warning(message)


def image_of(directory: TaskDirectory, task: Path, common: RunOptions) -> TrialImage | None:
    """Return the image of --image, else that of a task's Dockerfile, built and loaded into a local cluster. task: the path that the
    user gave, for messages.

    Return None if the task names an image, or if the cluster must build it: because the compose file changes the build, the cluster
    is not local, or this machine has no container engine.
    """
    if common.image or not directory.needs_build:
        return common.trial_image
    compose = load_task(directory.bundle(), verification=False).layout.compose
    if compose is not None and compose.main.build not in (None, FROM_DOCKERFILE):
        _leave_to_cluster(task, "the compose file has a build of its own for main")
        return None
    planned = plan_build(directory)
    current = current_cluster(common.target.kubeconfig, common.target.context)
    if current is None or not current.local:
        _leave_to_cluster(task, "the cluster is not localkube, kind or k3s on this machine, so its nodes must pull the image")
        return None
    try:
        engine = choose_engine(current)
    except UsageError:
        _leave_to_cluster(task, "no container engine works here")
        return None
    build_image(planned, engine, verbose=common.verbose)
    load_image(planned.name, engine, current, verbose=common.verbose)
    return planned.image


def _leave_to_cluster(task: Path, why: str) -> None:
    print_err(f"{task}: {why}: the cluster builds it (chart value builds.registry); its log: multistep logs -f --build TRIAL")


def _hints(namespace: str, name: str) -> str:
    there = f"{name} -n {namespace}"
    return f"follow: multistep show --follow {there}; stop: multistep stop {there}"
