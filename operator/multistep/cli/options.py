"""Options that several commands share, and the connection to the cluster that they choose."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from multistep.cli.completion import complete_agents, complete_namespaces, complete_trials
from multistep.client.options import JudgeOptions, ModelOptions, Target
from multistep.errors import UsageError

if TYPE_CHECKING:
    from multistep.client.datasets import DatasetOptions
    from multistep.client.submit.manifests import TrialImage
    from multistep.client.submit.values import Values

F = TypeVar("F", bound=Callable[..., Any])
Option = Callable[[Any], Any]
"""A decorator that adds options or arguments to a command."""


def add_options(*options: Option) -> Callable[[F], F]:
    """Return a decorator that adds options to a command; --help lists them in this order."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def as_one_argument(name: str, create: Callable[..., object], values: Sequence[str], *options: Option) -> Callable[[F], F]:
    """Return a decorator that adds options to a command, and passes their values to its function as one argument.

    name: the name of the argument. create: returns the argument from the values, which are its keywords. values: the names of the
    values. A value that the command does not have is not passed to ``create``.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def with_argument(*args: Any, **given: Any) -> object:
            created = create(**{each: given.pop(each) for each in values if each in given})
            return function(*args, **{name: created}, **given)

        wrapped: Any = with_argument
        return add_options(*options)(wrapped)  # type: ignore[no-any-return]

    return decorate


def require_report() -> None:
    """Raise UsageError unless the packages of the pip extra `report` are installed."""
    missing = [each for each in ("jinja2", "pyarrow", "scipy") if find_spec(each) is None]
    if missing:
        raise UsageError(
            f"this needs {' and '.join(missing)}, which Multistep's extra `report` brings: pip install 'multistep[report]', "
            "or in a checkout: pipx install --force '.[report]'"
        )


task_argument = click.argument("task", type=click.Path(path_type=Path))

namespace_option = click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    shell_complete=complete_namespaces,
    help="Namespace; default: that of the kubeconfig's context.",
)

trial_argument = click.argument("trial", shell_complete=complete_trials)

kubeconfig_options = add_options(
    click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, then ~/.kube/config."),
    click.option("--context", metavar="NAME", help="Context of the kubeconfig; default: the current one."),
)

target_options = as_one_argument("target", Target, ("namespace", "kubeconfig", "context"), namespace_option, kubeconfig_options)
"""Adds --namespace, --kubeconfig and --context. The function receives them as ``target``, a Target."""


def connected(function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """Add --namespace, --kubeconfig and --context, and connect to the cluster that they choose. The asynchronous function receives
    the connection as ``cluster``."""

    @functools.wraps(function)
    def run(*args: Any, target: Target, **given: Any) -> object:
        async def with_cluster() -> object:
            from multistep.cli import cluster

            async with cluster.connect(target) as client:
                return await function(*args, cluster=client, **given)

        return asyncio.run(with_cluster())

    return target_options(run)


output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", help="json: one document on stdout."
)

verbose_option = click.option("-v", "--verbose", is_flag=True, help="Stream the output of the build.")

agent_option = click.option(
    "--agent",
    metavar="AGENT",
    shell_complete=complete_agents,
    help="oracle, nop, command, an agent of Harbor such as claude-code, or a class (package.module:Class). Default: "
    "command if a -- COMMAND or --agent-file is given, else oracle.",
)


class FiniteRange(click.FloatRange):
    """A range of finite numbers. click.FloatRange accepts NaN and infinity, too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


_HOSTED = (
    click.option(
        "--key-from-secret",
        "keys",
        multiple=True,
        metavar="[NAME=]SECRET:KEY",
        help="The provider's key, from an existing Secret, as variable NAME; default: the provider's variable.",
    ),
    click.option(
        "--agent-kwarg",
        "kwargs",
        multiple=True,
        metavar="NAME=VALUE",
        help="An option of the agent's class, as in Harbor; VALUE is JSON or a string.",
    ),
    click.option("--agent-version", "version", metavar="VERSION", help="Version of the agent's program."),
    click.option("--base-url", metavar="URL", help="URL of the model's API; default: the provider's."),
    click.option(
        "--access",
        type=click.Choice(("Gateway", "Direct"), case_sensitive=False),
        help="Gateway (default): the agent never has the key, and its tokens are counted. Direct: it has the key itself.",
    ),
    click.option("--preinstalled", is_flag=True, help="The image holds the agent's program: install nothing."),
    click.option(
        "--max-cost",
        type=FiniteRange(min=0, min_open=True),
        metavar="USD",
        help="Budget of a trial, over all its steps: US dollars. Model requests that might exceed it are refused.",
    ),
    click.option("--max-input-tokens", type=click.IntRange(1), metavar="N", help="Budget of a trial: input tokens."),
    click.option("--max-output-tokens", type=click.IntRange(1), metavar="N", help="Budget of a trial: output tokens."),
    click.option(
        "--agent-image",
        "images",
        multiple=True,
        metavar="[AGENT=]IMAGE",
        help="Image with the agent's program, built by `multistep agent build`: install nothing.",
    ),
)

hosted_options = as_one_argument("model", ModelOptions, [each.name for each in fields(ModelOptions)], *_HOSTED)
"""Adds the options for agents of Harbor, apart from --model. The function receives them and ``model`` as one ModelOptions."""

_NAMES_OF_JUDGE = {
    "judge": "model",
    "judge_keys": "keys",
    "judge_base_url": "base_url",
    "judge_max_cost": "max_cost",
    "judge_model_env": "model_env",
}
"""The fields of JudgeOptions, by the name of the option."""


def _judge_options(**values: Any) -> JudgeOptions:
    return JudgeOptions(**{_NAMES_OF_JUDGE[name]: value for name, value in values.items()})


judge_options = as_one_argument(
    "judge",
    _judge_options,
    tuple(_NAMES_OF_JUDGE),
    click.option("--judge", metavar="PROVIDER/NAME", help="The model that the task's tests ask to grade."),
    click.option(
        "--judge-key-from-secret",
        "judge_keys",
        multiple=True,
        metavar="[NAME=]SECRET:KEY",
        help="The key of the judge's provider, from an existing Secret, as variable NAME; default: the provider's variable.",
    ),
    click.option("--judge-base-url", metavar="URL", help="URL of the judge's API; default: the provider's."),
    click.option(
        "--judge-max-cost",
        type=FiniteRange(min=0, min_open=True),
        metavar="USD",
        help="Budget of the judge in a trial, over all its steps: US dollars.",
    ),
    click.option(
        "--judge-model-env",
        multiple=True,
        metavar="NAME",
        help="A variable from which the tests read the name of the model to ask, such as REWARDKIT_JUDGE; repeatable.",
    ),
)
"""Adds --judge and the other options of a judge. The function receives them as ``judge``, a JudgeOptions."""


def _dataset_options(**values: Any) -> DatasetOptions:
    from multistep.client.datasets import DatasetOptions

    return DatasetOptions(**values)


dataset_options = as_one_argument(
    "chosen",
    _dataset_options,
    ("registry", "include", "exclude", "limit"),
    click.option(
        "--registry", metavar="URL|FILE", help="The dataset's registry.json, as --registry-url and --registry-path of Harbor."
    ),
    click.option(
        "--task",
        "include",
        multiple=True,
        metavar="PATTERN",
        help="Only tasks whose directory's name matches; repeatable.",
    ),
    click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave out tasks whose name matches; repeatable."),
    click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the first N of the selected tasks."),
)
"""Adds --registry, --task, --exclude and --limit. The function receives them as ``chosen``, a DatasetOptions."""

image_options = add_options(
    click.option("--image", metavar="IMAGE", help="Use this image instead of the task's."),
    click.option("--runner-in-image", is_flag=True, help="IMAGE contains the runner, as `multistep build` reported."),
)
var_option = click.option(
    "--var",
    "variables",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="A value for ${NAME} in task.toml or a compose file; stored in a Secret.",
)

agent_env_option = click.option(
    "--agent-env",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="A variable of the agent's environment; stored in a Secret. Without VALUE: that of your environment.",
)

agent_secret_option = click.option(
    "--agent-env-from-secret",
    "secret_agent_env",
    multiple=True,
    metavar="NAME=SECRET:KEY",
    help="A variable of the agent's environment, from an existing Secret.",
)

agent_file_option = click.option(
    "--agent-file",
    type=click.Path(path_type=Path),
    metavar="SCRIPT",
    help="Run this local script as the command agent, by its #! line; its arguments follow --. At most 32 KiB.",
)

resume_option = click.option(
    "--resume", is_flag=True, help="Agents resume their trajectory in each step; see RESUME in `multistep agent list`."
)

queue_option = click.option("--queue", metavar="NAME", help="Kueue's LocalQueue to wait in; default: none.")


@dataclass(frozen=True)
class RunOptions:
    """The options that `run`, `sweep run` and `regrade` share."""

    target: Target
    variables: Sequence[str] = ()
    """The values of --var."""
    agent_env: Sequence[str] = ()
    """The values of --agent-env."""
    image: str | None = None
    """An image that replaces the tasks' images."""
    runner_in_image: bool = False
    detach: bool = False
    """Whether the command ends after it has created the trial or sweep."""
    verbose: bool = False
    output: str = "table"

    @property
    def as_json(self) -> bool:
        """Report whether the command prints a JSON document."""
        return self.output == "json"

    @property
    def trial_image(self) -> TrialImage | None:
        """Return the image of --image, if it is given."""
        from multistep.client.submit.manifests import TrialImage

        return TrialImage(self.image, runner=self.runner_in_image) if self.image else None

    def values(self) -> Values:
        """Return the values of --var and --agent-env. Raises UsageError if one is invalid."""
        from multistep.client.submit.values import given_values

        return given_values(self.variables, self.agent_env)


run_options = as_one_argument("common", RunOptions, [each.name for each in fields(RunOptions)])
"""Passes the values of the options in RunOptions to the function as ``common``. The command itself adds these options, because
their order in --help differs."""


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


def _given_amounts(**amounts: float | None) -> dict[str, float]:
    return {field: amount for field, amount in amounts.items() if amount is not None}


resource_options = as_one_argument(
    "resources",
    _given_amounts,
    ("cpus", "memoryMB", "storageMB", "gpus"),
    click.option(
        "--override-cpus",
        "cpus",
        type=_amount(float, 0.001, "a number of CPU cores, at least 0.001, such as 2 or 0.5"),
        metavar="N",
        help="CPU cores of the container, as request and limit, instead of the task's cpus.",
    ),
    click.option(
        "--override-memory-mb",
        "memoryMB",
        type=_MEBIBYTES,
        metavar="N",
        help="Memory in mebibytes instead of the task's memory_mb.",
    ),
    click.option(
        "--override-storage-mb",
        "storageMB",
        type=_MEBIBYTES,
        metavar="N",
        help="Ephemeral storage in mebibytes instead of the task's storage_mb.",
    ),
    click.option(
        "--override-gpus",
        "gpus",
        type=_amount(int, 0, "a whole number of GPUs, such as 1, or 0 for none"),
        metavar="N",
        help="Number of GPUs instead of the task's gpus; 0: none.",
    ),
)
"""Adds --override-cpus, --override-memory-mb, --override-storage-mb and --override-gpus, named as in Harbor. The function receives
the given amounts as ``resources``, by field of spec.environment.resources."""

trial_options = add_options(
    agent_option,
    agent_file_option,
    click.option("--name", metavar="NAME", help="Name of the trial; default: TASK-AGENT-RANDOM."),
    click.option("--model", metavar="PROVIDER/NAME", help="The model of one of Harbor's agents."),
    hosted_options,
    judge_options,
    resume_option,
    click.option(
        "--from",
        "start",
        metavar="TRIAL:STEP",
        help="Continue after this step of another trial, from its checkpoint; the steps up to it keep their rewards.",
    ),
    click.option(
        "--from-step",
        metavar="STEP",
        help="Start at this step, from the reference state: the files that the task's own solutions of the earlier steps leave.",
    ),
    click.option("--to-step", metavar="STEP", help="End the trial after this step."),
    queue_option,
    agent_secret_option,
    click.option(
        "--var-from-secret",
        "secret_variables",
        multiple=True,
        metavar="NAME=SECRET:KEY",
        help="A variable for ${NAME} in task.toml or a compose file, from an existing Secret.",
    ),
    resource_options,
    click.option("--timeout-multiplier", type=FiniteRange(min=0), metavar="X", help="Multiply every timeout by X."),
    click.option(
        "--on-agent-error",
        type=click.Choice(["abort", "continue"]),
        help="After an agent's exception: abort (default), or continue as Harbor does.",
    ),
    click.option("--no-verify", is_flag=True, help="Skip verification: no rewards, and gates are ignored."),
    click.option("--keep", is_flag=True, help="Keep the pod after the trial finishes, for debugging."),
    click.argument("command", nargs=-1, metavar="[-- COMMAND...]"),
)
"""Adds the options of a trial, for the commands package and run."""
