"""The asynchronous Python client: submits sweeps, renews their leases, and reads the results of their trials."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

from multistep.api.common import labels
from multistep.api.sweep.sweep import MAX_PARALLELISM, SweepWeights, parse_sweep
from multistep.api.trial.status import is_finished
from multistep.client.connection import open_client
from multistep.client.objects import existing_sweep
from multistep.client.options import JudgeOptions, Target
from multistep.client.reconnecting_watch import WatchingClient
from multistep.client.results.fetch import download, download_file, read_file
from multistep.client.rollouts.groups import AsyncRollouts, Submitter
from multistep.client.rollouts.open_sweep import OpenSweep, with_names_ending
from multistep.client.rollouts.read_samples import read_samples, records_path
from multistep.client.rollouts.sample import Credit, Samples
from multistep.client.run import AsyncRun, Rollout
from multistep.client.submit.create import submit
from multistep.client.submit.judge_choice import with_judge
from multistep.client.submit.manifests import Manifest, Submission, TrialImage, checked_name, new_name
from multistep.client.submit.sweep_manifest import SweepOptions, agent_of_text, directories, find_tasks, sweep_of_tasks
from multistep.client.task.check_task import validate_tasks
from multistep.client.task.task_directory import TaskDirectory
from multistep.errors import MultistepError, NotFound, StoreError, UsageError
from multistep.kube.resources import SWEEPS

logger = logging.getLogger(__name__)

_FIELD_MANAGER: Final = "multistep-python"
TTL_SECONDS: Final = 3600
"""Seconds after which a finished sweep of a training run is deleted."""
_ARGUMENTS: Final = ("tasks", "agents", "attempts", "parallelism")  # fields of the spec that are arguments of submit
_OF_ROLLOUTS: Final = ("open", "order", "weights")  # fields of the spec that rollouts sets
_RENEWALS: Final = 3  # number of renewals per lease duration, so that two of them may fail

Task: TypeAlias = str | Path | Mapping[str, Any]
Agent: TypeAlias = str | Mapping[str, Any]


class AsyncClient(AbstractAsyncContextManager["AsyncClient"]):
    """Runs sweeps in a cluster. Use it as an async context manager:

        async with AsyncClient() as client:
            run = await client.submit(["tasks/hello"], agents=["oracle"], attempts=8)
            async for rollout in run:
                print(rollout.task, rollout.reward)

    The client renews the leases of the sweeps that it submits: if this process dies, the operator stops these sweeps and deletes
    their pods. At the end of the ``async with`` block, the client stops those sweeps that have not finished.
    """

    def __init__(self, *, namespace: str | None = None, kubeconfig: str | None = None, context: str | None = None) -> None:
        """namespace, kubeconfig, context: as the options of `multistep`; by default those of the current kubeconfig."""
        self._target = Target(kubeconfig, context, namespace)
        self._connected: WatchingClient | None = None
        self._leased: dict[str, tuple[AsyncRun, asyncio.Task[None]]] = {}

    async def __aenter__(self) -> Self:
        self._connected = await open_client(self._target, _FIELD_MANAGER)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            for run, renewal in list(self._leased.values()):
                renewal.cancel()
                await _stop_unfinished(run)
        finally:
            await self._cluster.__aexit__(None, None, None)
            self._connected = None

    @property
    def _cluster(self) -> WatchingClient:
        if self._connected is None:
            raise RuntimeError("the client is not connected: use it inside of `async with AsyncClient() as client:`")
        return self._connected

    @property
    def namespace(self) -> str:
        """Return the namespace in which sweeps are created."""
        return self._target.namespace or self._cluster.namespace

    async def submit(
        self,
        tasks: Sequence[Task],
        *,
        agents: Sequence[Agent] = ("oracle",),
        attempts: int = 1,
        parallelism: int = 10,
        name: str | None = None,
        image: str | None = None,
        judge: JudgeOptions | None = None,
        lease_seconds: int | None = 60,
        spec: Mapping[str, Any] | None = None,
    ) -> AsyncRun:
        """Create a sweep of tasks x agents x attempts.

        Args:
            tasks: Directories of tasks, or entries of a sweep's spec.tasks (docs/reference/sweeps.md). The image of a directory's
                environment must exist: build it first (`multistep build`), and name it in task.toml or as ``image``.
            agents: As --agent of `multistep sweep run`, such as "oracle" or "mine=./agent.sh", or entries of spec.agents.
            attempts: Trials per task and agent.
            parallelism: Maximum number of active trials.
            name: Name of the sweep; default: a generated name.
            image: Image of the environments; default: the tasks' images.
            judge: The model that the tasks' tests ask to grade, as --judge of `multistep sweep run`.
            lease_seconds: Seconds after which the operator ends the sweep when this client does not renew its lease. None: the
                sweep does not depend on this client.
            spec: Further fields of the sweep's spec, such as template, overrides, scoring or budget.

        Raises InvalidTask if a directory's task cannot be run, UsageError if an agent is invalid, InvalidSpec if a field is invalid
        (the message names it), ClusterError.
        """
        if wrong := [each for each in _ARGUMENTS if each in (spec or {})]:
            raise UsageError(f"spec: {wrong[0]} is an argument of submit: give it there, not in spec")
        lease = {"lease": {"seconds": lease_seconds}} if lease_seconds is not None else {}
        fields = {**(spec or {}), **lease, "attempts": attempts, "parallelism": parallelism}
        planned = submission(tasks, agents, fields, name=name, image=image, judge=judge or JudgeOptions())
        return await self._create(planned, lease_seconds)

    async def _create(self, planned: Submission, lease_seconds: int | None) -> AsyncRun:
        """Create a sweep, and renew its lease until it has finished. Raises ClusterError."""
        run = AsyncRun(self._cluster, parse_sweep(await submit(self._cluster, planned)))
        if lease_seconds is not None:
            renewal = asyncio.create_task(self._renew(run, lease_seconds / _RENEWALS))
            self._leased[run.uid] = run, renewal
        return run

    async def get(self, name: str) -> AsyncRun:
        """Return a sweep that exists, for example to continue after a restart. Its lease is not renewed. Raises UsageError if no
        such sweep exists."""
        return AsyncRun(self._cluster, parse_sweep(await existing_sweep(self._cluster, self.namespace, name)))

    async def file(self, rollout: Rollout, path: str) -> bytes:
        """Return a file of the trial's results, for example "steps/build/verifier/test-stdout.txt". Raises StoreError if there is
        no such file."""
        found = await read_file(self._cluster, _results(rollout), path)
        if found is None:
            raise StoreError(f"trial {rollout.name} has no file {path!r} in its results")
        return found

    async def fetch(self, rollout: Rollout, directory: Path | str) -> None:
        """Fetch all files of the trial into a directory, as `multistep results` does. Raises StoreError if the trial has no
        results."""
        await download(self._cluster, _results(rollout), Path(directory))

    def rollouts(
        self,
        tasks: Iterable[Task],
        *,
        agent: Agent = "oracle",
        group: int = 8,
        ahead: int = 2,
        max_staleness: int | None = None,
        image: str | None = None,
        lease_seconds: int = 60,
        spec: Mapping[str, Any] | None = None,
    ) -> AsyncRollouts[Task]:
        """Run each task ``group`` times, and yield the groups as they finish. Active groups are stopped when the loop ends.

        Args:
            tasks: Directories of tasks, or entries of spec.tasks. It may be endless: a task is taken when its group is submitted.
            agent: As for ``submit``.
            group: Trials per task. All trials of a group may be active at once.
            ahead: How many groups may be active, or finished and not yet taken: more keep the cluster busy while the caller trains,
                with older weights.
            max_staleness: How often the version of the weights may change before a group that was not taken is dropped. None: no
                group is dropped.
            image, lease_seconds, spec: As for ``submit``. Many groups share a sweep, which is deleted an hour after its end, unless
                spec has another ttlSecondsAfterFinished. A task's name in the sweep ends with the number of its group.

        Raises UsageError if an argument is invalid. The loop raises the errors of ``submit``, and NotFound if a sweep is deleted.
        """
        if min(group, ahead) < 1:
            raise UsageError(f"group and ahead must be at least 1: {group}, {ahead}")
        if wrong := [each for each in (*_ARGUMENTS, *_OF_ROLLOUTS) if each in (spec or {})]:
            raise UsageError(f"spec: {wrong[0]} is set by rollouts: leave it out")
        fixed = {"ttlSecondsAfterFinished": TTL_SECONDS, **(spec or {}), "lease": {"seconds": lease_seconds}}
        fixed |= {"attempts": group, "parallelism": min(group * ahead, MAX_PARALLELISM), "open": True, "order": "Tasks"}

        def plan(task: Task, ending: str, sweep: str | None, weights: SweepWeights | None) -> Submission:
            fields = {**fixed, **({} if weights is None else {"weights": weights.model_dump()})}
            return with_names_ending(submission([task], [agent], fields, name=sweep, image=image), ending)

        async def start(planned: Submission) -> OpenSweep:
            return OpenSweep(self._cluster, await self._create(planned, lease_seconds), planned)

        return AsyncRollouts(tasks, Submitter(plan, start), ahead, max_staleness)

    async def samples(self, rollout: Rollout, credit: Credit = "ToGo", *, aborted: bool = False) -> Samples:
        """Return the training samples of a trial: the token records of its model requests as sequences with masks.

        credit: which steps' parts of the reward a token is credited with. aborted: whether answers that the agent left are trained
        up to the last token that it received. Raises StoreError if the trial has no results, UsageError if its tokens were not
        recorded, and ClusterError.
        """
        with tempfile.TemporaryDirectory() as directory:
            for step in rollout.steps:
                path = records_path(step.name)
                await download_file(self._cluster, _results(rollout), path, Path(directory, path))
            return await asyncio.to_thread(read_samples, rollout, Path(directory), credit, aborted=aborted)

    async def _renew(self, run: AsyncRun, seconds: float) -> None:
        """Renew the lease until the sweep is finished or deleted. Failures are logged and retried; the lease outlasts two failures
        in a row."""
        while True:
            try:
                metadata = {"uid": run.uid, "annotations": {labels.RENEWAL: uuid.uuid4().hex}}
                found = await self._cluster.patch(SWEEPS, run.namespace, run.name, {"metadata": metadata})
                if is_finished(parse_sweep(found).status):
                    break
            except NotFound:
                break
            except Exception as error:  # any error: without renewals the lease would expire, and the operator stop the sweep
                logger.warning("the lease of sweep %s was not renewed, and will be retried: %s", run.name, error or repr(error))
            await asyncio.sleep(seconds)
        del self._leased[run.uid]


def _results(rollout: Rollout) -> str:
    if rollout.results is None:
        raise StoreError(f"trial {rollout.name} has no results: {rollout.message}")
    return rollout.results


async def _stop_unfinished(run: AsyncRun) -> None:
    """Stop a sweep unless it is finished: spec.stop would stop later retries of its trials. Best effort: if this fails, its lease
    expires."""
    try:
        if is_finished(await run.status()):
            return
    except NotFound:
        return
    except MultistepError:
        logger.debug("the state of sweep %s is unknown", run.name)
    with suppress(MultistepError):
        await run.stop()


def submission(
    tasks: Sequence[Task],
    agents: Sequence[Agent],
    fields: Mapping[str, Any],
    *,
    name: str | None,
    image: str | None,
    judge: JudgeOptions = JudgeOptions(),  # noqa: B008 - it is frozen
) -> Submission:
    """Return the sweep with its objects. fields: the spec's fields other than tasks and agents. Raises UsageError if a task's image
    or a variable is missing, InvalidTask if a task cannot be run, InvalidSpec if a field is invalid. Logs the tasks' warnings."""
    for argument, value in (("tasks", tasks), ("agents", agents)):
        if isinstance(value, str | Path | Mapping):
            raise UsageError(f"{argument}: must be a list, such as [{value!r}]")
    given = [entry for each in tasks for entry in _tasks(each)]
    given_image = TrialImage(image) if image else None
    images = {each.name: given_image for each in given if isinstance(each, TaskDirectory) and given_image}
    for each in given:
        if isinstance(each, TaskDirectory) and each.needs_build and given_image is None:
            raise UsageError(f"{each.path}: its image must be built first: `multistep build {each.path}`, then pass image=")
    name = checked_name(name, "name") if name else new_name("rollouts")
    planned = sweep_of_tasks(given, images, SweepOptions(name), given_image)
    entries = [_agent(each) for each in agents]
    template = fields.get("template") or {}
    judged = {"template": {**template, "spec": with_judge(template.get("spec") or {}, judge)}} if judge.given else {}
    sweep = {**planned.main, "spec": {**planned.main["spec"], **fields, **judged, "agents": entries}}
    spec = parse_sweep(sweep).spec
    validate_tasks(directories(given), spec, show=_show, remedy=_variables_of_spec, image=image)
    return Submission(sweep, planned.owned)


def _agent(agent: Agent) -> Manifest:
    """Return the entry of spec.agents. Raises UsageError, which names the argument and not the option of the command line."""
    if not isinstance(agent, str):
        return dict(agent)
    try:
        return agent_of_text(agent)
    except UsageError as error:
        raise UsageError(str(error).replace("--agent ", "agents: ")) from None


def _variables_of_spec(names: Sequence[str]) -> str:
    return f"set it in spec['template']['spec']['variables']: {', '.join(names)}"


def _show(kind: str, text: str) -> None:
    if kind == "warning":
        logger.warning(text)


def _tasks(task: Task) -> list[TaskDirectory | Manifest]:
    return [dict(task)] if isinstance(task, Mapping) else list(find_tasks([Path(task)]))
