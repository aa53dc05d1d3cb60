"""Applies the rules of the runner, which checks each request before it acts, to the values of a task's plan. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from multistep.cli.task.findings import Finding
from multistep.engine.plan.plan import StepPlan, TrialPlan
from multistep.errors import InvalidRequest
from multistep.runner_client.check_requests import Request, require_valid


def refused_values(plan: TrialPlan) -> Iterator[Finding]:
    """Yield a problem for each value that the runner would refuse: the trial would fail when it is sent."""
    for field, request in _requests(plan):
        try:
            require_valid(request)
        except InvalidRequest as error:
            yield Finding(field, str(error).partition(": ")[2])


def _requests(plan: TrialPlan) -> Iterator[tuple[str, Request]]:
    """Yield the field of each value, with a request that has this value."""
    yield "environment.workdir", _start(cwd=plan.workdir)
    yield "environment.env", _start(env=plan.environment_env)
    if isinstance(plan.solution_env, Mapping):
        yield "solution.env", _start(env=plan.solution_env)
    if plan.healthcheck is not None:
        yield "environment.healthcheck.command", _start(["bash", "-c", plan.healthcheck.command])
    for step in plan.steps:
        yield from _of_step(step, "" if plan.single else f"steps[{step.index}].", hosted=plan.hosted is not None)


def _of_step(step: StepPlan, where: str, *, hosted: bool) -> Iterator[tuple[str, Request]]:
    yield f"{where}agent.user", _start(user=step.agent_user)
    if hosted:
        path = f"steps/{step.name}/instruction.md" if where else "instruction.md"
        yield path, {**_start(), "stdin": step.instruction or ""}
    if step.healthcheck is not None:
        yield f"{where}healthcheck.command", _start(["bash", "-c", step.healthcheck.command])
    for hook in step.hooks:
        yield f"{where}verifier.collect", _start(["bash", "-c", hook.command], user=hook.user)
    if step.verifier is not None:
        yield f"{where}verifier.user", _start(user=step.verifier.user)
        if isinstance(step.verifier.env, Mapping):
            yield f"{where}verifier.env", _start(env=step.verifier.env)


def _start(argv: Sequence[str] = ("true",), *, user: str = "", cwd: str = "", env: Mapping[str, str] | None = None) -> Request:
    return {"op": "start", "id": "check", "argv": argv, "user": user, "cwd": cwd, "env": env or {}}
