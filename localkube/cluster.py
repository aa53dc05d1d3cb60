"""Start, repair, stop and inspect the cluster, and stop parts of it for tests."""

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from localkube import build, clients, components, health, images, node, objects, packages, pki, settings_files, startups
from localkube.commands import print_line, step, wait_until
from localkube.config import Config, Node, NodeOptions
from localkube.containerd import Containerd, ensure_pause_image
from localkube.errors import LocalkubeError, Unhealthy
from localkube.locking import exclusive
from localkube.processes import Registry
from localkube.volumes import ensure_volumes

_KUBERNETES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubelet")
_STOP_GRACE_SECONDS = 3.0


@dataclass(frozen=True)
class ComponentState:
    """The state of one process of the cluster, a row in the output of `localkube status`."""

    name: str
    pid: int | None
    """None if the process does not run."""
    log: Path


def up(config: Config) -> None:
    """Ensure that a healthy cluster runs. A running cluster is kept or repaired. Otherwise a new one is created."""
    with exclusive(config.paths.lock):
        if _inputs_differ(config) or not _has_programs(config) or health.problems(config):
            binaries = _binaries(config)
            _remove_if_inputs_differ(config)
            _start(config, binaries)
        else:
            ensure_volumes(config, health.connect(config))
            print_line(f"the cluster is up already: {config.network.api_url}")


def ensure_binaries(config: Config) -> list[Path]:
    """Return the directories of the programs. The programs are built or installed if needed, but not started."""
    with exclusive(config.paths.lock):
        return _binaries(config)


def _binaries(config: Config) -> list[Path]:
    """Return the directories of the programs. The programs are built in parallel, because downloading modules and linking leave
    cores idle."""
    packages.check_installable()
    cache_dir = config.paths.cache_dir
    with ThreadPoolExecutor(1) as thread:
        runtime = thread.submit(_runtime, cache_dir)
        return [build.ensure_module(cache_dir, build.KUBERNETES), runtime.result(), clients.ensure_clients(cache_dir)]


def _runtime(cache_dir: Path) -> Path:
    packages.ensure_packages()  # the build of runc needs some of these packages
    return build.ensure_module(cache_dir, build.RUNTIME)


def down(config: Config) -> None:
    """Stop the cluster and delete everything that it created, except the cache."""
    with exclusive(config.paths.lock):
        start = time.monotonic()
        _remove(config)
        print_line(f"the cluster is gone ({time.monotonic() - start:.1f} s)")


def restart(config: Config, name: str) -> None:
    """Stop a component and start it again."""
    stop(config, name)
    start(config, name)


def stop(config: Config, name: str) -> None:
    """Stop a component until `start` or `up` starts it."""
    component = components.by_name(config, name)
    with exclusive(config.paths.lock):
        components.stop(config, component, _STOP_GRACE_SECONDS)
        print_line(f"{name} stopped")


def start(config: Config, name: str) -> None:
    """Start a component and wait until the cluster is healthy."""
    component = components.by_name(config, name)
    with exclusive(config.paths.lock), startups.recorded(config.paths.logs, name):
        components.start(config, component)
        _wait_until_healthy(config)
        print_line(f"{name} runs")


def add_node(config: Config, number: int, options: NodeOptions) -> None:
    """Create or restart this node, and wait until the cluster is healthy."""
    added = config.added(number)
    with exclusive(config.paths.lock):
        if not node.is_up(config, config.first):
            raise Unhealthy("the cluster is not running; start it with `python3 -m localkube up`")
        _keep_options(config, added, options)
        _start(config, _binaries(config))
        print_line(f"{added.name} takes pods")


def _keep_options(config: Config, added: Node, options: NodeOptions) -> None:
    file = config.paths.node_options(added)
    if added not in config.nodes:
        options.write(file)
    elif options not in (NodeOptions(), NodeOptions.read(file)):
        raise LocalkubeError(
            f"{added.name} exists with other options; remove it first: python3 -m localkube node-remove {added.name}"
        )


def kill_node(config: Config, number: int) -> None:
    """Kill all processes of an added node without a clean shutdown, as a power failure does. `node-add` or `up` restarts it."""
    with exclusive(config.paths.lock):
        node.cut_power(config, _existing(config, number))
        print_line(f"node{number} is dead")


def remove_node(config: Config, number: int) -> None:
    """Remove an added node and its pods from the cluster, and delete its files."""
    with exclusive(config.paths.lock):
        added = _existing(config, number)
        node.remove(config, added)
        objects.forget_node(health.connect(config), added.name)
        print_line(f"{added.name} is gone")


def _existing(config: Config, number: int) -> Node:
    added = config.added(number)
    if added not in config.nodes:
        raise LocalkubeError(f"there is no {added.name}; there are: {', '.join(each.name for each in config.nodes)}")
    return added


def states(config: Config) -> list[ComponentState]:
    """Return the state of all the cluster's processes, running or not."""
    registry = Registry(config.paths.processes)
    names = [name for each in config.nodes for name in (each.holder, *(part.name for part in components.of_node(config, each)))]
    running = {name: registry.running(name) for name in names}
    return [
        ComponentState(name, identity.pid if identity else None, config.paths.logs / f"{name}.log")
        for name, identity in running.items()
    ]


def _start(config: Config, binaries: list[Path]) -> None:
    """Start the components that do not run. Files of an earlier start are used again, for example after a reboot."""
    with step("starting the cluster"):
        _lay_out(config, binaries)
        if not node.is_up(config, config.first):
            node.stop_all(config)
            node.start_holder(config, config.first)
        _start_components(config)
        for each in config.nodes[1:]:
            _start_added(config, each)
        _wait_until_healthy(config)


def _start_components(config: Config) -> None:
    """Start the first node's components. Then load the pause image and create the cluster's objects."""
    daemon, api = Containerd.of(config, config.first), health.connect(config)
    with startups.recorded(config.paths.logs, "apiserver"):
        for component in components.of_node(config, config.first):
            components.start(config, component)
            if component.name == "etcd":  # wait for etcd, because without it the API server retries only after a second
                _wait(config, "etcd", config.paths.etcd_socket.exists)
        _wait(config, "containerd", daemon.answers)
        ensure_pause_image(config, daemon)
        _wait(config, "apiserver", lambda: api.answers_ok("/readyz"))
    objects.ensure_objects(config, api)


def _start_added(config: Config, added: Node) -> None:
    """Start the processes of an added node that do not run."""
    if not node.is_up(config, added):
        node.cut_power(config, added)
        node.start_holder(config, added)
    containerd, kubelet = components.of_node(config, added)
    components.start(config, containerd)
    _wait(config, containerd.name, Containerd.of(config, added).answers)
    images.copy(config, added)
    components.start(config, kubelet)  # started last, because the kubelet exits if containerd does not answer


def _lay_out(config: Config, binaries: list[Path]) -> None:
    """Create the directories, the links to the programs, the keys and the configuration files."""
    paths = config.paths
    paths.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    for directory in (paths.bin, paths.logs, paths.etcd, *_views(config)):
        directory.mkdir(parents=True, exist_ok=True)
    paths.etcd.chmod(0o700)
    for program in (program for directory in binaries for program in directory.iterdir()):
        _link(paths.bin / program.name, program)
    for part in _KUBERNETES:
        _link(paths.bin / part, paths.bin / "localkube")
    settings_files.write_all(config, pki.create(config))
    paths.made_of.write_text(_made_of(config))


def _views(config: Config) -> list[Path]:
    return [view for each in config.nodes for view in (config.paths.node_var_lib(each), config.paths.node_var_log(each))]


def _link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def _wait_until_healthy(config: Config) -> None:
    if not wait_until(lambda: not health.problems(config), config.start_timeout_seconds):
        problems = health.problems(config)
        raise Unhealthy(f"the cluster did not become healthy: {'; '.join(problems)}. The logs are in {config.paths.logs}")


def _wait(config: Config, name: str, ready: Callable[[], bool]) -> None:
    """Wait until one component is ready. Raises Unhealthy if its process exits, or at the timeout."""
    registry = Registry(config.paths.processes)
    wait_until(lambda: ready() or registry.running(name) is None, config.start_timeout_seconds)
    if registry.running(name) is None:
        raise Unhealthy(f"{name} ended", config.paths.logs / f"{name}.log")
    if not ready():
        raise Unhealthy(f"{name} did not become ready", config.paths.logs / f"{name}.log")


def _made_of(config: Config) -> str:
    """Return a text that identifies the programs, command lines and audit policy. If it changes, `up` creates a new cluster."""
    cache_dir = config.paths.cache_dir
    modules = (build.directory_of(cache_dir, each) for each in (build.KUBERNETES, build.RUNTIME))
    called = [component.command for component in components.of_node(config, config.first)]
    digest = hashlib.sha256(json.dumps([called, settings_files.AUDIT_POLICY]).encode())
    return f"{' '.join(each.name for each in modules)} {digest.hexdigest()}"


def _has_programs(config: Config) -> bool:
    """Return whether the components' programs exist. They are links into the cache, which the user may have deleted."""
    return config.paths.bin.exists() and all(link.exists() for link in config.paths.bin.iterdir())


def _inputs_differ(config: Config) -> bool:
    paths = config.paths
    return paths.run_dir.exists() and not (paths.made_of.exists() and paths.made_of.read_text() == _made_of(config))


def _remove_if_inputs_differ(config: Config) -> None:
    if _inputs_differ(config):
        print_line("the cluster was made by another version of localkube: replacing it")
        _remove(config)


def _remove(config: Config) -> None:
    node.stop_all(config)
    shutil.rmtree(config.paths.run_dir, ignore_errors=True)
    if config.paths.run_dir.exists():
        raise Unhealthy(f"{config.paths.run_dir} could not be removed; is something mounted in it?")
