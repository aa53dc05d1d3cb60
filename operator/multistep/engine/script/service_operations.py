"""The operations of a trial's script for a compose file's services.

They run main's command and healthcheck, and the collect hooks of other services.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath

from multistep.api.task.layout import MAIN
from multistep.api.task.task_toml import ArtifactConfig
from multistep.api.trial.values import ARTIFACTS
from multistep.engine.journal.journal import StepRun
from multistep.engine.journal.operations import Healthcheck, Launch, Script, ServiceHook, Source, Start
from multistep.engine.plan.plan import StepPlan
from multistep.engine.plan.plan_services import PodServices
from multistep.engine.script.operation_scope import Scope, fault_of, healthcheck_failure

KILL_LEFTOVER_PROCESSES = ("/multistep/runner", "quell")
_LONGEST_SECONDS = 3600.0


def service_hooks(scope: Scope, services: PodServices, step: StepPlan, run: StepRun) -> Script[None]:
    """Run a step's collect hooks in services other than main. Failures are ignored.

    If the environment is not used afterwards, first kill the processes that the agent left in main.
    """
    hooks = [(number, hook) for number, hook in enumerate(step.hooks) if hook.service != MAIN]
    if not hooks and all(artifact.service in (None, MAIN) for artifact in step.artifacts):
        return
    run.phase = ARTIFACTS
    if step.verified_apart and step is scope.plan.steps[-1]:
        yield Start(scope.id("quell"), KILL_LEFTOVER_PROCESSES, user="0", timeout=60.0)
    for number, hook in hooks:
        timeout = min(hook.timeout or _LONGEST_SECONDS, _LONGEST_SECONDS)
        argv = ("sh", "-c", hook.command)  # Harbor 0.26 uses sh too, because images of services often have no bash
        yield ServiceHook(scope.id(f"collect-hook-{number}"), services.container_of(hook.service), argv, hook.user, timeout)


def artifact_source(scope: Scope, entry: ArtifactConfig) -> Source:
    """Return the source to collect for an artifact entry, with an absolute path.

    In the trial's container a relative path starts at the working directory. In a service Harbor rejects relative paths, except
    Windows paths. Such a path becomes one below /, which does not exist.
    """
    services = scope.plan.services
    apart = services is not None and entry.service not in (None, MAIN)
    container = services.container_of(entry.service or MAIN) if services is not None and apart else ""
    start = "/" if apart else scope.workdir
    path = entry.source if entry.source.startswith("/") else str(PurePosixPath(start, entry.source))
    return Source(path, tuple(entry.exclude), container=container)


def start_main(scope: Scope, services: PodServices | None, env: Mapping[str, str]) -> Script[str | None]:
    """Start main's command and wait until main is healthy. Return why that failed, None if it worked."""
    if services is None:
        return None
    if services.background:
        record = yield Launch(scope.id("main-command"), services.background, env=env, where=scope.where)
        if (fault := fault_of(record)) is not None:
            return f"services.main.command: cannot be started: {fault.message}"
    check = services.main.healthcheck
    if check is None:
        return None
    record = yield Healthcheck(
        scope.id("main-healthcheck"),
        check.argv,
        user="",
        env=env,
        interval=check.interval,
        timeout=check.timeout,
        start_period=check.start_period,
        start_interval=check.start_interval,
        retries=check.retries,
        where=scope.where,
    )
    failure = healthcheck_failure(record, shlex.join(check.argv))
    return f"services.main.healthcheck: {failure}" if failure else None
