"""Runs the command and the healthcheck that a compose file gives main, the trial's own container, as operations of the script."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from multistep.engine.journal.operations import Healthcheck, Launch, Script
from multistep.engine.plan.plan_services import PodServices
from multistep.engine.script.operation_scope import Scope, failed, healthcheck_failure


def start_main(scope: Scope, services: PodServices | None, env: Mapping[str, str]) -> Script[str | None]:
    """Start main's command and wait until main is healthy. Return why it was not started or is not healthy; None if it is."""
    if services is None:
        return None
    if services.background:
        record = yield Launch(scope.id("main-command"), services.background, env=env, where=scope.where)
        if (fault := failed(record)) is not None:
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
