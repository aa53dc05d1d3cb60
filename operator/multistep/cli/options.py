"""Options that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import click

from multistep.cli.completion import complete_agents, complete_namespaces, complete_trials
from multistep.client.options import ModelOptions, Target

F = TypeVar("F", bound=Callable[..., Any])


def task_argument(function: F) -> F:
    """Add the argument TASK, a directory."""
    return click.argument("task", type=click.Path(path_type=Path))(function)


def namespace_option(function: F) -> F:
    """Add --namespace, without --kubeconfig and --context."""
    return click.option(
        "-n",
        "--namespace",
        metavar="NAME",
        shell_complete=complete_namespaces,
        help="Namespace; default: that of the kubeconfig's context.",
    )(function)


def trial_argument(function: F) -> F:
    """Add the argument TRIAL, a name."""
    return click.argument("trial", shell_complete=complete_trials)(function)


def kubeconfig_options(function: F) -> F:
    """Add --kubeconfig and --context."""
    function = click.option("--context", metavar="NAME", help="Context of the kubeconfig; default: the current one.")(function)
    return click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, then ~/.kube/config.")(function)


def target_options(function: F) -> F:
    """Add --namespace, --kubeconfig and --context. The function receives them as ``target``, a Target."""

    @functools.wraps(function)
    def with_target(*args: Any, namespace: str | None, kubeconfig: str | None, context: str | None, **given: Any) -> object:
        return function(*args, target=Target(kubeconfig, context, namespace), **given)

    wrapped: Any = with_target
    return namespace_option(kubeconfig_options(wrapped))  # type: ignore[no-any-return]


def output_option(function: F) -> F:
    """Add --output: a table, or one JSON document on stdout."""
    return click.option(
        "-o", "--output", type=click.Choice(["table", "json"]), default="table", help="json: one document on stdout."
    )(function)


def verbose_option(function: F) -> F:
    """Add --verbose, which streams the output of the build tools."""
    return click.option("-v", "--verbose", is_flag=True, help="Stream the output of the build.")(function)


def agent_option(function: F) -> F:
    """Add --agent."""
    return click.option(
        "--agent",
        metavar="AGENT",
        shell_complete=complete_agents,
        help="oracle, nop, command, an agent of Harbor such as claude-code, or a class (package.module:Class). Default: "
        "command if a -- COMMAND or --agent-file is given, else oracle.",
    )(function)


class FiniteRange(click.FloatRange):
    """A range of finite numbers. click.FloatRange accepts NaN and infinity, too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


_BUDGETS = (
    click.option("--max-output-tokens", type=click.IntRange(1), metavar="N", help="Budget of a trial: output tokens."),
    click.option("--max-input-tokens", type=click.IntRange(1), metavar="N", help="Budget of a trial: input tokens."),
    click.option(
        "--max-cost",
        type=FiniteRange(min=0, min_open=True),
        metavar="USD",
        help="Budget of a trial, over all its steps: US dollars. Model requests that might exceed it are refused.",
    ),
)  # in reverse order, because --help lists the last added option first


_API = (
    click.option(
        "--access",
        type=click.Choice(("Gateway", "Direct"), case_sensitive=False),
        help="Gateway (default): the agent never has the key, and its tokens are counted. Direct: it has the key itself.",
    ),
    click.option("--base-url", metavar="URL", help="URL of the model's API; default: the provider's."),
)


def hosted_options(function: F) -> F:
    """Add the options for agents of Harbor, apart from --model. The function receives them and ``model`` as one ModelOptions."""

    @functools.wraps(function)
    def with_model(*args: Any, model: str | None = None, **given: Any) -> object:
        chosen = ModelOptions(model, *(given.pop(each.name) for each in fields(ModelOptions)[1:]))
        return function(*args, model=chosen, **given)

    wrapped: Any = with_model
    for option in (
        click.option(
            "--agent-image",
            "images",
            multiple=True,
            metavar="[AGENT=]IMAGE",
            help="Image with the agent's program, built by `multistep agent build`: install nothing.",
        ),
        *_BUDGETS,
        click.option("--preinstalled", is_flag=True, help="The image holds the agent's program: install nothing."),
        *_API,
        click.option("--agent-version", "version", metavar="VERSION", help="Version of the agent's program."),
        click.option(
            "--agent-kwarg",
            "kwargs",
            multiple=True,
            metavar="NAME=VALUE",
            help="An option of the agent's class, as in Harbor; VALUE is JSON or a string.",
        ),
        click.option(
            "--key-from-secret",
            "keys",
            multiple=True,
            metavar="[NAME=]SECRET:KEY",
            help="The provider's key, from an existing Secret, as variable NAME; default: the provider's variable.",
        ),
    ):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


def dataset_options(function: F) -> F:
    """Add --registry, --task, --exclude and --limit. The function receives them as `chosen`, a DatasetOptions."""

    @functools.wraps(function)
    def with_options(
        *args: Any, registry: str | None, include: Sequence[str], exclude: Sequence[str], limit: int | None, **given: Any
    ) -> object:
        from multistep.client.datasets import DatasetOptions

        return function(*args, chosen=DatasetOptions(None, registry, include, exclude, limit), **given)

    wrapped: Any = with_options
    for option in (
        click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the first N of the selected tasks."),
        click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave out tasks whose name matches; repeatable."),
        click.option(
            "--task",
            "include",
            multiple=True,
            metavar="PATTERN",
            help="Only tasks whose directory's name matches; repeatable.",
        ),
        click.option(
            "--registry", metavar="URL|FILE", help="The dataset's registry.json, as --registry-url and --registry-path of Harbor."
        ),
    ):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


def image_options(function: F) -> F:
    """Add --image and --runner-in-image, for an image that is already built."""
    function = click.option("--runner-in-image", is_flag=True, help="IMAGE contains the runner, as `multistep build` reported.")(
        function
    )
    return click.option("--image", metavar="IMAGE", help="Use this image instead of the task's.")(function)


def agent_env_option(function: F) -> F:
    """Add --agent-env: environment variables of the agent."""
    return click.option(
        "--agent-env",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="A variable of the agent's environment; stored in a Secret. Without VALUE: that of your environment.",
    )(function)


def agent_secret_option(function: F) -> F:
    """Add --agent-env-from-secret: environment variables of the agent from existing Secrets."""
    return click.option(
        "--agent-env-from-secret",
        "secret_agent_env",
        multiple=True,
        metavar="NAME=SECRET:KEY",
        help="A variable of the agent's environment, from an existing Secret.",
    )(function)


def agent_file_option(function: F) -> F:
    """Add --agent-file: a local script to run as the command agent."""
    return click.option(
        "--agent-file",
        type=click.Path(path_type=Path),
        metavar="SCRIPT",
        help="Run this local script as the command agent, by its #! line; its arguments follow --. At most 32 KiB.",
    )(function)


def resume_option(function: F) -> F:
    """Add --resume."""
    return click.option(
        "--resume", is_flag=True, help="Agents resume their trajectory in each step; see RESUME in `multistep agent list`."
    )(function)


def queue_option(function: F) -> F:
    """Add --queue: Kueue's LocalQueue."""
    return click.option("--queue", metavar="NAME", help="Kueue's LocalQueue to wait in; default: none.")(function)


def _amount(number: Callable[[str], float], least: float, right: str) -> Callable[[str], float]:
    """Return the type of an option whose value is an amount of a resource. right: the valid amounts, for the error."""

    def convert(text: str) -> float:
        with suppress(ValueError):
            amount = number(text)
            if least <= amount < 2**31:
                return int(amount) if amount == int(amount) else amount
        raise click.BadParameter(f"{text!r} must be {right}")

    return convert


_MEBIBYTES = _amount(int, 1, "a whole number of mebibytes, at least 1, such as 4096 for 4 GiB")
_RESOURCES = {
    "gpus": click.option(
        "--override-gpus",
        "gpus",
        type=_amount(int, 0, "a whole number of GPUs, such as 1, or 0 for none"),
        metavar="N",
        help="Number of GPUs instead of the task's gpus; 0: none.",
    ),
    "storageMB": click.option(
        "--override-storage-mb",
        "storageMB",
        type=_MEBIBYTES,
        metavar="N",
        help="Ephemeral storage in mebibytes instead of the task's storage_mb.",
    ),
    "memoryMB": click.option(
        "--override-memory-mb",
        "memoryMB",
        type=_MEBIBYTES,
        metavar="N",
        help="Memory in mebibytes instead of the task's memory_mb.",
    ),
    "cpus": click.option(
        "--override-cpus",
        "cpus",
        type=_amount(float, 0.001, "a number of CPU cores, at least 0.001, such as 2 or 0.5"),
        metavar="N",
        help="CPU cores of the container, as request and limit, instead of the task's cpus.",
    ),
}  # by field of spec.environment.resources; in reverse order, as _BUDGETS


def resource_options(function: F) -> F:
    """Add --override-cpus, --override-memory-mb, --override-storage-mb and --override-gpus, named as in Harbor. The function
    receives the given amounts as ``resources``, by field of spec.environment.resources."""

    @functools.wraps(function)
    def with_resources(*args: Any, **given: Any) -> object:
        amounts = {field: given.pop(field) for field in reversed(_RESOURCES)}
        return function(*args, resources={field: each for field, each in amounts.items() if each is not None}, **given)

    wrapped: Any = with_resources
    for option in _RESOURCES.values():
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


_PART = (
    click.option("--to-step", metavar="STEP", help="End the trial after this step."),
    click.option(
        "--from-step",
        metavar="STEP",
        help="Start at this step, from the reference state: the files that the task's own solutions of the earlier steps leave.",
    ),
    click.option(
        "--from",
        "start",
        metavar="TRIAL:STEP",
        help="Continue after this step of another trial, from its checkpoint; the steps up to it keep their rewards.",
    ),
)


def trial_options(function: F) -> F:
    """Add the options of a trial, for the commands package and run."""
    for option in (
        click.argument("command", nargs=-1, metavar="[-- COMMAND...]"),
        click.option("--keep", is_flag=True, help="Keep the pod after the trial finishes, for debugging."),
        click.option("--no-verify", is_flag=True, help="Skip verification: no rewards, and gates are ignored."),
        click.option(
            "--on-agent-error",
            type=click.Choice(["abort", "continue"]),
            help="After an agent's exception: abort (default), or continue as Harbor does.",
        ),
        click.option("--timeout-multiplier", type=FiniteRange(min=0), metavar="X", help="Multiply every timeout by X."),
        resource_options,
        click.option(
            "--var-from-secret",
            "secret_variables",
            multiple=True,
            metavar="NAME=SECRET:KEY",
            help="A variable for ${NAME} in task.toml or a compose file, from an existing Secret.",
        ),
        agent_secret_option,
        queue_option,
        *_PART,
        resume_option,
        hosted_options,
        click.option("--model", metavar="PROVIDER/NAME", help="The model of one of Harbor's agents."),
        click.option("--name", metavar="NAME", help="Name of the trial; default: TASK-AGENT-RANDOM."),
        agent_file_option,
        agent_option,
    ):
        function = option(function)
    return function
