"""`multistep run`: check the task, build its image, submit and follow the trial, fetch its results, show its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from multistep.api.trial.agent_spec import AgentSpec
from multistep.api.trial.status import TrialStatus
from multistep.api.trial.trial import parse_trial
from multistep.api.trial.values import PLAIN
from multistep.cli import cluster
from multistep.cli.cluster import Cluster
from multistep.cli.exits import Exit, Interrupted, exit_of
from multistep.cli.image.images import build_image, choose_engine, load_image, plan_build
from multistep.cli.image.kubeconfig import current_cluster
from multistep.cli.options import Target
from multistep.cli.task.examine import Report, examine
from multistep.cli.task.task_directory import TaskDirectory
from multistep.cli.terminal import Progress, print_err, print_json, print_line, print_out, status_document, trial_view
from multistep.cli.trial.outcome import outcome
from multistep.cli.trial.results.fetch import check_directory, fetch_results
from multistep.cli.trial.run.follow import follow
from multistep.cli.trial.run.manifests import TrialImage, TrialRequest
from multistep.cli.trial.run.submit import Submission, TrialOptions, existing_image, make_request, make_submission, submit
from multistep.cli.values import Values, given_values
from multistep.engine.plan.image_builds import FROM_DOCKERFILE
from multistep.engine.plan.task_steps import branch_of
from multistep.errors import InvalidTask, MultistepError, Unavailable, UsageError
from multistep.kube.resources import TRIALS
from multistep.sources.task.task import load_task


@dataclass(frozen=True)
class Session:
    """One call of `multistep run`. variables, agent_env: values of --var and --agent-env; image: None for the task's own image."""

    task: Path
    target: Target
    options: TrialOptions
    variables: Sequence[str] = ()
    agent_env: Sequence[str] = ()
    image: str | None = None
    runner_in_image: bool = False
    results: Path | None = None
    detach: bool = False
    verbose: bool = False
    as_json: bool = False

    def run(self) -> Exit:
        """Validate the task, build its image, create the trial and follow it."""
        if self.results:
            check_directory(self.results)
        values = given_values(self.variables, self.agent_env)
        directory = TaskDirectory.open(self.task)
        request = make_request(directory, self.options, image=None, namespace=self.target.namespace)
        given = {*values.variables, *(each["name"] for each in request.variables)}
        spec = parse_trial(make_submission(directory, request, values, shared=False).trial).spec
        report = check(directory, verification=request.verify, agents=[spec.agent], given=given, image=self.image)
        check_used(given, report.used, agents=[spec.agent])
        branch_of(spec, [each.name for each in report.steps], single=not directory.table.get("steps"))
        request = asyncio.run(self._reserve(directory, request, values))
        request = replace(request, image=self._image(directory))
        submission = make_submission(directory, request, values, shared=False)
        parse_trial(submission.trial)
        followed = Followed(self.target, self.results, detach=self.detach, as_json=self.as_json)
        return asyncio.run(followed.run(submission))

    async def _reserve(self, directory: TaskDirectory, request: TrialRequest, values: Values) -> TrialRequest:
        """Check by a dry run, before a long build, that the cluster accepts the trial; return the request with its namespace."""
        async with cluster.connect(self.target) as connected:
            namespace = request.namespace or connected.namespace
            if await cluster.find_trial(connected, namespace, request.name):
                raise UsageError(cluster.taken(TRIALS, request.name))
            request = replace(request, namespace=namespace)
            planned = make_submission(directory, request, values, shared=False)
            await cluster.check_accepted(connected, planned.trial, planned.dependencies)
            return request

    def _image(self, directory: TaskDirectory) -> TrialImage | None:
        if self.image or not directory.needs_build:
            return existing_image(directory, self.image, runner_in_image=self.runner_in_image)
        return built_image(directory, self.task, self.target, verbose=self.verbose)


@dataclass(frozen=True)
class Followed:
    """Submits a trial and follows it. results: new directory for the trial's results; detach: only submit the trial."""

    target: Target
    results: Path | None = None
    detach: bool = False
    as_json: bool = False

    async def run(self, submission: Submission) -> Exit:
        """Create the trial and its objects, follow the trial, and return the exit code of its outcome."""
        metadata = submission.trial["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        async with cluster.connect(self.target) as connected:
            await submit(connected, submission)
            if self.detach:
                return self._leave(namespace, name)
            print_err(f"trial {name} in namespace {namespace}")
            status = await self._follow(connected, namespace, name)
            return await self._finish(connected, namespace, name, status)

    def _leave(self, namespace: str, name: str) -> Exit:
        if self.as_json:
            print_json(status_document(namespace, name, TrialStatus()))
        else:
            print_line(name)
            print_err(f"submitted; {_hints(namespace, name)}")
        return Exit.OK

    async def _follow(self, connected: Cluster, namespace: str, name: str) -> TrialStatus:
        continues = f"trial {name} continues in the cluster; {_hints(namespace, name)}"
        try:
            with Progress(name) as progress:
                return await follow(connected, namespace, name, progress)
        except asyncio.CancelledError:  # Ctrl-C
            raise Interrupted(continues) from None
        except Unavailable as error:
            raise Unavailable(f"{error}; {continues}") from error

    async def _finish(self, connected: Cluster, namespace: str, name: str, status: TrialStatus) -> Exit:
        """Fetch the results, then show the outcome. Return the exit code of the trial's outcome or, if that is 0, the exit code of
        the fetch."""
        fault: MultistepError | None = None
        if self.results:
            try:
                await fetch_results(connected, name, status, self.results)
            except MultistepError as error:
                fault = error
        if self.as_json:
            fetched = str(self.results) if self.results and fault is None else None
            print_json(status_document(namespace, name, status, fetched))
        else:
            print_out(trial_view(name, status, namespace=namespace))
        if fault is not None:
            print_err(f"error: results were not fetched: {fault}")
        return outcome(status).exit or (exit_of(fault) if fault else Exit.OK)


def check(
    directory: TaskDirectory, *, verification: bool, agents: Sequence[AgentSpec], given: Collection[str], image: str | None = None
) -> Report:
    """Print a task's warnings and notes, and return the report. Raises InvalidTask, or UsageError if a variable is missing.

    given: names of the variables that have a value. image: image that replaces the task's image.
    """
    report = examine(directory.bundle(), directory.directory_name, verification=verification, agents=agents, image=image or None)
    for kind, found in (("warning", report.warnings), ("note", report.notes)):
        for each in found:
            print_err(f"{kind}: task {directory.name}: {each}")
    refuse(report, directory.directory_name, given, "give --var {}", " --var ")
    return report


def refuse(report: Report, name: str, given: Collection[str], remedy: str, separator: str = ", ") -> None:
    """Raise InvalidTask if the task with this directory name has problems, and UsageError if a variable is missing. remedy: how to
    give the variables; their names, joined with the separator, replace ``{}``."""
    if not report.ok:
        raise InvalidTask("\n".join([f"the task {name} cannot be run:", *map(str, report.problems)]))
    missing = [each for each in report.variables if each not in given]
    if missing:
        raise UsageError(f"{report.variables[missing[0]]} needs a variable: {remedy.format(separator.join(missing))}")


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
    print_err(f"warning: {message}")


def built_image(directory: TaskDirectory, task: Path, target: Target, *, verbose: bool) -> TrialImage | None:
    """Build the image of a task's Dockerfile, and load it into a local cluster. task: the path that the user gave, for messages.

    Return None if the cluster must build the image: because the compose file changes the build, the cluster is not local, or this
    machine has no container engine.
    """
    compose = load_task(directory.bundle(), verification=False).layout.compose
    if compose is not None and compose.main.build not in (None, FROM_DOCKERFILE):
        _leave_to_cluster(task, "the compose file has a build of its own for main")
        return None
    planned = plan_build(directory)
    current = current_cluster(target.kubeconfig, target.context)
    if current is None or not current.local:
        _leave_to_cluster(task, "the cluster is not localkube, kind or k3s on this machine, so its nodes must pull the image")
        return None
    try:
        engine = choose_engine(current)
    except UsageError:
        _leave_to_cluster(task, "no container engine works here")
        return None
    build_image(planned, engine, verbose=verbose)
    load_image(planned.name, engine, current, verbose=verbose)
    return planned.image


def _leave_to_cluster(task: Path, why: str) -> None:
    print_err(f"{task}: {why}: the cluster builds it (chart value builds.registry); its log: multistep logs -f --build TRIAL")


def _hints(namespace: str, name: str) -> str:
    there = f"{name} -n {namespace}"
    return f"follow: multistep show --follow {there}; stop: multistep stop {there}"
