"""Implement the command line `python3 -m localkube COMMAND`. Progress goes to stderr, results to stdout."""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from localkube import cluster, images, node
from localkube.clients import ensure_clients
from localkube.commands import print_line
from localkube.config import ADDED_NUMBERS, Config, NodeOptions, load_config
from localkube.errors import LocalkubeError
from localkube.packages import ensure_packages
from localkube.targets import Local, choose

_EXAMPLES = """\
examples:
  eval "$(python3 -m localkube up)" && kubectl get nodes
  python3 -m localkube build -t localhost/app:dev . && python3 -m localkube load localhost/app:dev
  python3 -m localkube restart apiserver
  python3 -m localkube node ctr --address /var/opt/multistep-localkube/containerd.sock -n k8s.io tasks list

environment: CLUSTER=auto|own|local|kind|k3s|current, MULTISTEP_CACHE, LOCALKUBE_NUMBER, LOCALKUBE_DIR (see localkube/README.md)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int | None = options.run(load_config(), options)
        return code or 0
    except LocalkubeError as error:
        print_line(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m localkube",
        description="A real Kubernetes for the demo and the tests.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add(commands, "up", _up, "start the cluster, or repair it, or use the one that runs")
    _add(commands, "down", _down, "stop it and leave nothing behind but the cache")
    _add(commands, "status", _status, "show its processes and whether it is healthy")
    _add(commands, "kubeconfig", _kubeconfig, "print the path of the kubeconfig")
    _add(commands, "load", _load, "take built images into the cluster").add_argument("image", nargs="+")
    _add_build(commands)
    base = _add(commands, "image-base", _image_base, f"make sure of the base image {images.BOOKWORM.image}")
    base.add_argument("--python", action="store_true", help=f"and of {images.BOOKWORM.python_image}")
    for name, run, text in (
        ("restart", _restart, "end a component and start it again"),
        ("stop", _stop, "end a component until `start` or `up`"),
        ("start", _start, "start a stopped component"),
    ):
        _add(commands, name, run, text).add_argument("component", help="a name that `status` shows")
    for name, run, text in (
        ("node", _node, "run a command inside the first node's namespaces"),
        ("kubectl", _kubectl, "run kubectl against the cluster"),
    ):
        _add(commands, name, run, text).add_argument("command", nargs=argparse.REMAINDER)
    _add_nodes(commands)
    _add(commands, "binary", _binary, "build the programs if need be and print their directory")
    return parser


_Run = Callable[[Config, argparse.Namespace], int | None]


def _add(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, run: _Run, text: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text)
    command.set_defaults(run=run)
    return command


def _add_build(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = _add(commands, "build", _build, "build an image from a Dockerfile")
    command.add_argument("-t", "--tag", required=True, metavar="NAME")
    command.add_argument("-f", "--file", type=Path, metavar="DOCKERFILE", help="default: CONTEXT/Dockerfile")
    command.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    command.add_argument("--target", metavar="STAGE")
    command.add_argument("context", type=Path)


def _add_nodes(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    names = [f"node{number}" for number in ADDED_NUMBERS]
    add = _add(commands, "node-add", _node_add, "add a node with a containerd and a kubelet of its own, or start it again")
    kill = _add(commands, "node-kill", _node_kill, "end an added node as a power cut does, until `node-add` or `up`")
    remove = _add(commands, "node-remove", _node_remove, "remove an added node, its pods, and all that it left")
    for command in (add, kill, remove):
        command.add_argument("name", choices=names, metavar="NAME", help=f"{names[0]} to {names[-1]}")
    idle = NodeOptions.stream_idle_seconds
    text = f"an exec stream that is silent for longer is ended (default: {idle})"
    add.add_argument("--stream-idle", type=int, default=idle, metavar="SECONDS", help=text)


def _up(config: Config, _: argparse.Namespace) -> None:
    target = choose(config)
    target.up()
    if isinstance(target, Local):
        target.load_base()
    print(f"export KUBECONFIG={target.kubeconfig()}")


def _down(config: Config, _: argparse.Namespace) -> None:
    choose(config).down()


def _status(config: Config, _: argparse.Namespace) -> int:
    return 0 if choose(config).status() else 1


def _kubeconfig(config: Config, _: argparse.Namespace) -> None:
    print(choose(config).kubeconfig())


def _load(config: Config, options: argparse.Namespace) -> None:
    target = choose(config)
    for image in options.image:
        target.load(image)


def _build(config: Config, options: argparse.Namespace) -> None:
    dockerfile = options.file or options.context / "Dockerfile"
    wanted = images.Build(options.tag, options.context, dockerfile, tuple(options.build_arg), options.target)
    choose(config).engine.build(wanted)


def _image_base(config: Config, options: argparse.Namespace) -> None:
    ensure_packages()
    images.ensure_debian(config)
    if options.python:
        images.ensure_python(config)


def _restart(config: Config, options: argparse.Namespace) -> None:
    cluster.restart(config, options.component)


def _stop(config: Config, options: argparse.Namespace) -> None:
    cluster.stop(config, options.component)


def _start(config: Config, options: argparse.Namespace) -> None:
    cluster.start(config, options.component)


def _node(config: Config, options: argparse.Namespace) -> None:
    command = node.inside(config, config.first, options.command or ["sh"])
    os.execvp(command[0], command)


def _node_add(config: Config, options: argparse.Namespace) -> None:
    cluster.add_node(config, _number(options), NodeOptions(stream_idle_seconds=options.stream_idle))


def _node_kill(config: Config, options: argparse.Namespace) -> None:
    cluster.kill_node(config, _number(options))


def _node_remove(config: Config, options: argparse.Namespace) -> None:
    cluster.remove_node(config, _number(options))


def _number(options: argparse.Namespace) -> int:
    return int(options.name.removeprefix("node"))


def _kubectl(config: Config, options: argparse.Namespace) -> None:
    kubeconfig = choose(config).kubeconfig()
    program = ensure_clients(config.paths.cache_dir) / "kubectl"
    os.execve(program, ["kubectl", *options.command], os.environ | {"KUBECONFIG": str(kubeconfig)})


def _binary(config: Config, _: argparse.Namespace) -> None:
    print(*cluster.ensure_binaries(config), sep="\n")
