"""Operations for the services of a compose file: command and healthcheck of main, collected evidence."""

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

QUELL = ("/multistep/runner", "quell")
_LONGEST_SECONDS = 3600.0


def service_hooks(scope: Scope, services: PodServices, step: StepPlan, run: StepRun) -> Script[None]:
    """Run a step's collect hooks in services. First kill the processes that the agent left in main, if the environment is not used
    afterwards. Failures are ignored."""
    hooks = [(number, hook) for number, hook in enumerate(step.hooks) if hook.service != MAIN]
    if not hooks and all(artifact.service in (None, MAIN) for artifact in step.artifacts):
        return
    run.phase = ARTIFACTS
    if step.verified_apart and step is scope.plan.steps[-1]:
        yield Start(scope.id("quell"), QUELL, user="0", timeout=60.0)
    for number, hook in hooks:
        timeout = min(hook.timeout or _LONGEST_SECONDS, _LONGEST_SECONDS)
        argv = ("sh", "-c", hook.command)  # as in Harbor 0.25: images of services often have no bash
        yield ServiceHook(scope.id(f"collect-hook-{number}"), services.container_of(hook.service), argv, hook.user, timeout)


def artifact_source(scope: Scope, entry: ArtifactConfig) -> Source:
    """Return the absolute path to collect for an artifact entry. A relative path starts at WORKDIR; a service has none, as Harbor
    rejects relative paths there. A Windows path, which Harbor accepts, is below / in a service: it does not exist."""
    services = scope.plan.services
    apart = services is not None and entry.service not in (None, MAIN)
    container = services.container_of(entry.service or MAIN) if services is not None and apart else ""
    start = "/" if apart else scope.workdir
    path = entry.source if entry.source.startswith("/") else str(PurePosixPath(start, entry.source))
    return Source(path, tuple(entry.exclude), container=container)


def start_main(scope: Scope, services: PodServices | None, env: Mapping[str, str]) -> Script[str | None]:
    """Start main's command and wait until main is healthy. Return why it was not started or is not healthy; None if it is."""
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
