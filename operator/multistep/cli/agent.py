"""`multistep agent`: lists Harbor's agents, and builds images of their programs."""

from __future__ import annotations

from pathlib import Path

import click

from multistep.cli.groups import SuggestingGroup
from multistep.cli.options import kubeconfig_options, output_option, verbose_option

_EPILOG = """\b
Examples:
  multistep agent list
  multistep agent build claude-code
  multistep run my-task --agent claude-code --model anthropic/claude-sonnet-4-5 --agent-image IMAGE \\
    --key-from-secret keys:anthropic
"""

_LIST_EPILOG = """\b
Examples:
  multistep agent list
  multistep agent list -o json | jq -r '.[] | select(.resume) | .name'
"""

_BUILD_EPILOG = """\b
Examples:
  multistep agent build claude-code
  multistep agent build codex@0.169.0 -t registry.example/agents/codex:0.169.0 --push

The image contains the agent's program and Node.js below /multistep-agent, from the npm registry. Trials with --agent-image mount it
read-only, so that nothing is installed per trial. It runs in task images with glibc 2.28 or newer. Without --push the image is
loaded into the cluster of the current context if that is localkube or kind. Check the program's licence before you publish it.
"""

_HOST_EPILOG = """\b
Examples:
  multistep agent host build
  multistep agent host build --harbor 0.26.0 -t registry.example/multistep-agent-host:harbor-0.26.0 --push
"""

_BUILD_HOST_EPILOG = """\b
Examples:
  multistep agent host build
  multistep agent host build --harbor 0.26.0 -t registry.example/multistep-agent-host:harbor-0.26.0 --push

The agent host runs Harbor's agent classes beside the environment. It is built from a checkout of Multistep. The locked version of
Harbor is the one that Multistep's tests run; pip chooses the packages of any other. The chart's settings.agentHostImage names the
image for all trials. Without --push the image is loaded into the cluster of the current context if that is localkube or kind.
"""


@click.group(cls=SuggestingGroup, epilog=_EPILOG)
def agent() -> None:
    """List Harbor's agents, and build images of their programs."""


@agent.command("list", epilog=_LIST_EPILOG)
@output_option
def list_agents(output: str) -> None:
    """List the agents that trials can run."""
    from multistep.cli.image.agent_programs import agents_document, agents_table
    from multistep.cli.terminal import print_json, print_out

    if output == "json":
        print_json(agents_document())
    else:
        print_out(agents_table())


@agent.command("build", epilog=_BUILD_EPILOG)
@click.argument("program", metavar="AGENT[@VERSION]")
@click.option("-t", "--tag", metavar="IMAGE", help="Name of the image; default: localhost/multistep/agent-AGENT:VERSION.")
@click.option("--push", is_flag=True, help="Push it to the registry in its name.")
@kubeconfig_options
@verbose_option
@output_option
def build_agent(
    program: str, tag: str | None, push: bool, kubeconfig: str | None, context: str | None, verbose: bool, output: str
) -> None:
    """Build an image of an agent's program."""
    from multistep.cli.image.agent_programs import AgentBuild
    from multistep.cli.terminal import print_json, print_line

    built = AgentBuild.of(program, tag, push=push).run(kubeconfig, context, verbose=verbose)
    if output == "json":
        print_json(built)
    else:
        print_line(built["image"])


@agent.group("host", cls=SuggestingGroup, epilog=_HOST_EPILOG)
def host() -> None:
    """Build the image of the agent host, which runs Harbor's agent classes."""


@host.command("build", epilog=_BUILD_HOST_EPILOG)
@click.option("--harbor", metavar="VERSION", help="Version of Harbor, 0.26 or newer; default: the locked one.")
@click.option(
    "--source",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Checkout of Multistep; default: the one that this command runs from.",
)
@click.option("-t", "--tag", metavar="IMAGE", help="Name of the image; default: localhost/multistep/agent-host:harbor-VERSION.")
@click.option("--push", is_flag=True, help="Push it to the registry in its name.")
@kubeconfig_options
@verbose_option
@output_option
def build_host(
    harbor: str | None,
    source: Path | None,
    tag: str | None,
    push: bool,
    kubeconfig: str | None,
    context: str | None,
    verbose: bool,
    output: str,
) -> None:
    """Build an image of the agent host."""
    from multistep.cli.image.agent_host import HostBuild
    from multistep.cli.terminal import print_json, print_line

    built = HostBuild.of(source, harbor, tag, push=push).run(kubeconfig, context, verbose=verbose)
    if output == "json":
        print_json(built)
    else:
        print_line(built["image"])
