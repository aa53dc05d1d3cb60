"""`multistep completion`, and completions of names from the cluster."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

from multistep.api.trial import harbor_agents
from multistep.api.trial.values import BUILT_IN, PLAIN

if TYPE_CHECKING:
    from multistep.kube.client import ClusterClient
    from multistep.kube.resources import Resource

_SECONDS = 2.0  # timeout: short, because the user waits for the completion
_SECONDS_VARIABLE = "MULTISTEP_COMPLETION_SECONDS"
_MAX_ITEMS = 500

_EPILOG = """\b
Examples:
  source <(multistep completion bash)                      # for this session; in ~/.bashrc: for all
  multistep completion zsh > "${fpath[1]}/_multistep"
  multistep completion fish > ~/.config/fish/completions/multistep.fish

Names of agents are completed, too. Trials, namespaces and steps are read from the cluster,
in 2 seconds (MULTISTEP_COMPLETION_SECONDS) or not at all. For `kubectl multistep` kubectl's own
completion calls kubectl_complete-multistep, which is installed beside kubectl-multistep.
"""


@click.command(epilog=_EPILOG)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of bash, zsh or fish."""
    from multistep.cli.main import COMPLETION_VARIABLE, cli

    found = get_completion_class(shell)
    assert found is not None  # click supports all three shells
    click.echo(found(cli, {}, "multistep", COMPLETION_VARIABLE).source())


def kubectl_complete() -> None:
    """Run `kubectl_complete-multistep`, which kubectl calls with the words typed so far; the last word is incomplete.

    Print kubectl's format: on each line a word, a tab and a description; then ``:4``, which disables completion of file names.
    """
    from multistep.cli.main import COMPLETION_VARIABLE, cli, drop_library_logs

    drop_library_logs()
    shell = _KubectlComplete(cli, {}, "multistep", COMPLETION_VARIABLE)
    *words, unfinished = sys.argv[1:] or [""]
    for item in shell.get_completions(words, unfinished):
        click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(":4")


class _KubectlComplete(get_completion_class("bash")):  # type: ignore[misc]
    """Computes completions with click's bash class; kubectl_complete prints them in kubectl's format."""


def complete_trials(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of trials in the namespace."""
    from multistep.kube.resources import TRIALS

    return _matching(_asked(ctx, lambda client: _named(ctx, client, TRIALS)), incomplete)


def complete_sweeps(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of sweeps in the namespace."""
    from multistep.kube.resources import SWEEPS

    return _matching(_asked(ctx, lambda client: _named(ctx, client, SWEEPS)), incomplete)


async def _named(ctx: click.Context, client: ClusterClient, resource: Resource) -> list[CompletionItem]:
    found = await client.list_all(resource, ctx.params.get("namespace") or client.namespace)
    return [CompletionItem(each["metadata"]["name"], help=(each.get("status") or {}).get("phase")) for each in found]


def complete_either(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of trials and sweeps in the namespace."""
    return [*complete_trials(ctx, parameter, incomplete), *complete_sweeps(ctx, parameter, incomplete)]


def complete_namespaces(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of namespaces."""

    async def ask(client: ClusterClient) -> list[CompletionItem]:
        from multistep.kube.resources import NAMESPACES

        return [CompletionItem(each["metadata"]["name"]) for each in await client.list_all(NAMESPACES)]

    return _matching(_asked(ctx, ask), incomplete)


def complete_steps(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of the steps that the trial has started."""

    async def ask(client: ClusterClient) -> list[CompletionItem]:
        from multistep.kube.resources import TRIALS

        found = await client.get(TRIALS, ctx.params.get("namespace") or client.namespace, ctx.params.get("trial") or "")
        return [CompletionItem(each["name"], help=each.get("phase")) for each in (found.get("status") or {}).get("steps") or []]

    return _matching(_asked(ctx, ask), incomplete)


def complete_agents(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return completions of --agent of a trial: the names of the operator's own agents and of Harbor's agents."""
    return _matching([CompletionItem(each) for each in (*BUILT_IN, *harbor_agents.NAMES)], incomplete)


def complete_sweep_agents(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return completions of --agent of a sweep: the names of agents, followed by the @ of AGENT@MODEL for agents of Harbor. The
    agent ``command`` is omitted, because a sweep needs NAME=COMMAND instead."""
    return _matching([CompletionItem(each) for each in (*PLAIN, *(f"{each}@" for each in harbor_agents.NAMES))], incomplete)


def _matching(items: list[CompletionItem], incomplete: str) -> list[CompletionItem]:
    fit = (each for each in items if each.value.startswith(incomplete))
    return [each for each in fit if f"{each.value}{each.help or ''}".isprintable()][:_MAX_ITEMS]


def _asked(ctx: click.Context, ask: Callable[..., Awaitable[list[CompletionItem]]]) -> list[CompletionItem]:
    """Return the result of ``ask``; [] after a timeout or error, because a message would appear in the user's command line."""

    async def within() -> list[CompletionItem]:
        from multistep.kube.client import ClusterClient

        seconds = float(os.environ.get(_SECONDS_VARIABLE, _SECONDS))
        async with asyncio.timeout(seconds):
            kubeconfig, context = ctx.params.get("kubeconfig"), ctx.params.get("context")
            async with await ClusterClient.connect(kubeconfig=kubeconfig, context=context, timeout_seconds=seconds) as client:
                return await ask(client)

    with suppress(Exception):
        return asyncio.run(within())
    return []
