"""Test the components' configuration: paths, permissions, and valid files."""

import ipaddress
import itertools
import json
import tomllib
from pathlib import Path

import pytest

from localkube import components, network, objects, pki, settings_files, volumes
from localkube.config import ADDED_NUMBERS, Config, Network, Node, NodeOptions, Paths, load_config
from localkube.errors import LocalkubeError
from localkube.health import takes_pods
from localkube.pki import Pki


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(Paths(run_dir=tmp_path / "run", cache_dir=tmp_path / "cache"))


@pytest.fixture
def keys(config: Config) -> Pki:
    """Return a Pki whose keys and certificates are placeholder files."""
    made = Pki(config.paths.pki)
    made.directory.mkdir(parents=True)
    _certify(config, made)
    return made


def _certify(config: Config, made: Pki) -> None:
    for name in ("ca", *(each.file for each in pki.certificates(config))):
        made.certificate(name).write_text(f"certificate of {name}")
        made.key(name).write_text(f"key of {name}")


@pytest.fixture
def second(config: Config, keys: Pki) -> Node:
    """Add a second node to the cluster, and return it."""
    node = config.added(2)
    NodeOptions(stream_idle_seconds=5).write(config.paths.node_options(node))
    _certify(config, keys)
    return node


def test_settings_come_from_the_environment() -> None:
    config = load_config({"MULTISTEP_CACHE": "/c", "LOCALKUBE_DIR": "/r"})
    assert (config.paths.cache_dir, config.paths.run_dir) == (Path("/c"), Path("/r"))


def test_settings_have_defaults() -> None:
    config = load_config({"HOME": "/home/me"})
    assert config.paths.cache_dir == Path("/home/me/.cache/multistep")


def test_several_clusters_of_a_machine_share_nothing_on_the_host() -> None:
    first, other = load_config({}), load_config({"LOCALKUBE_NUMBER": "3"})
    assert other.network.api_url == "https://10.243.3.2:6443"
    for each in ("namespace", "host_device", "host_address", "api_address"):
        assert getattr(first.network, each) != getattr(other.network, each)
    assert (first.cgroup, first.paths.run_dir, first.paths.lock) != (other.cgroup, other.paths.run_dir, other.paths.lock)
    assert first.paths.lock != other.paths.lock


@pytest.mark.parametrize("number", ["20", "-1", "x", "03"])
def test_a_clusters_number_is_refused_that_is_none(number: str) -> None:
    with pytest.raises(LocalkubeError, match=f"LOCALKUBE_NUMBER is '{number}': it must be a number, 0 to 19"):
        load_config({"LOCALKUBE_NUMBER": number})


@pytest.mark.usefixtures("second")
def test_every_file_is_written_and_can_be_parsed(config: Config, keys: Pki) -> None:
    settings_files.write_all(config, keys)
    for file in config.paths.config.rglob("*"):
        if file.suffix == ".toml":
            tomllib.loads(file.read_text())
        elif file.suffix in {".yaml", ".conflist", ".kubeconfig"}:
            json.loads(file.read_text())


@pytest.mark.usefixtures("second")
def test_every_file_that_a_component_reads_exists(config: Config, keys: Pki) -> None:
    settings_files.write_all(config, keys)
    keys.key("service-accounts").touch()
    shown = [part for each in components.of_all(config) for flag in each.command for part in flag.split("=")]
    made = (str(config.paths.config), str(config.paths.pki))
    files = [Path(part) for part in shown if part.startswith(made)]
    assert files
    assert [file for file in files if not file.exists()] == []


def test_kubeconfigs_are_for_their_owner_only(config: Config, keys: Pki) -> None:
    settings_files.write_all(config, keys)
    for file in [config.paths.kubeconfig, *config.paths.config.glob("*.kubeconfig")]:
        assert file.stat().st_mode & 0o777 == 0o600


def test_an_unchanged_file_is_not_touched(config: Config, keys: Pki) -> None:
    settings_files.write_all(config, keys)
    before = (config.paths.config / "proxy.yaml").stat().st_mtime_ns
    settings_files.write_all(config, keys)
    assert (config.paths.config / "proxy.yaml").stat().st_mtime_ns == before


def test_the_kubeconfig_needs_no_other_file(config: Config, keys: Pki) -> None:
    text = json.dumps(settings_files.kubeconfig(config.network, keys, "admin"))
    assert str(config.paths.run_dir) not in text
    assert "insecure" not in text


def test_nobody_speaks_with_the_kubelet_anonymously(config: Config, keys: Pki) -> None:
    kubelet = settings_files.kubelet(config, keys, config.first, NodeOptions())
    assert kubelet["authentication"]["anonymous"] == {"enabled": False}
    assert kubelet["authorization"] == {"mode": "Webhook"}


def test_the_api_server_writes_down_what_pods_ask_for_but_never_fills_the_disk(config: Config) -> None:
    flags = components.apiserver(config)
    assert f"--audit-log-path={config.paths.audit_log}" in flags
    assert {"--audit-log-maxsize=100", "--audit-log-maxbackup=2"} <= set(flags)


def test_the_kubelet_is_the_node_it_registers(config: Config) -> None:
    kubelet = next(each for each in pki.certificates(config) if each.file == "kubelet")
    assert kubelet.subject == "/O=system:nodes/CN=system:node:node1"
    assert "IP:10.244.0.1" in kubelet.extensions
    assert "clientAuth, serverAuth" in kubelet.extensions


def test_the_api_server_is_certified_for_every_address_it_has(config: Config) -> None:
    extensions = next(each for each in pki.certificates(config) if each.file == "apiserver").extensions
    for name in ("IP:10.243.0.2", "IP:10.244.0.1", "IP:10.96.0.1", "DNS:kubernetes.default.svc"):
        assert name in extensions
    assert "clientAuth" not in extensions


def test_only_the_administrator_is_a_master(config: Config) -> None:
    assert [each.user for each in pki.certificates(config) if "system:masters" in each.groups] == ["kubernetes-admin"]


def test_addresses_agree_with_each_other() -> None:
    net = Network()
    link = ipaddress.ip_interface(f"{net.host_address}/{net.link_prefix_length}").network
    assert ipaddress.ip_address(net.api_address) in link
    assert ipaddress.ip_address(net.node_address) in ipaddress.ip_network(net.pod_cidr)
    services = ipaddress.ip_network(net.service_cidr)
    assert ipaddress.ip_address(net.first_service_address) == services[1]
    assert ipaddress.ip_address(net.dns_address) in services


def test_dns_is_a_service_at_the_address_that_pods_use(config: Config, keys: Pki) -> None:
    net = config.network
    kubelet = settings_files.kubelet(config, keys, config.first, NodeOptions())
    assert kubelet["clusterDNS"] == [objects.dns_service(net)["spec"]["clusterIP"]]
    assert objects.dns_endpoints(net)["endpoints"][0]["addresses"] == [net.node_address]
    assert f"bind {net.node_address}\n" in settings_files.corefile(config)


def test_no_route_leads_out_of_the_namespace() -> None:
    net = Network()
    assert "route" not in network._first_commands(net, Config(Paths(Path(), Path())).first)


def test_only_the_first_node_is_there_until_another_is_added(config: Config) -> None:
    assert config.nodes == [config.first]
    assert (config.first.name, config.first.address) == ("node1", config.network.node_address)


def test_an_added_node_shares_nothing_with_the_first(config: Config, keys: Pki, second: Node) -> None:
    settings_files.write_all(config, keys)
    assert config.nodes == [config.first, second]
    ours, theirs = (_of_its_own(config, node) for node in (second, config.first))
    assert len(ours) == len(theirs)
    assert not set(ours) & set(theirs)


def _of_its_own(config: Config, node: Node) -> list[str]:
    """Return the node's settings that must differ from those of other nodes."""
    kubelet = json.loads((config.paths.config / f"{node.prefix}kubelet.yaml").read_text())
    containerd = tomllib.loads((config.paths.config / f"{node.prefix}containerd.toml").read_text())
    cri = containerd["plugins"]["io.containerd.cri.v1.runtime"]
    bridge = json.loads((Path(cri["cni"]["conf_dir"]) / "10-bridge.conflist").read_text())["plugins"][0]
    shown = [kubelet[name] for name in ("address", "tlsCertFile", "tlsPrivateKeyFile", "containerRuntimeEndpoint", "cgroupRoot")]
    views = [str(config.paths.node_var_lib(node)), str(config.paths.node_var_log(node))]
    return [
        node.namespace,
        *shown,
        *views,
        containerd["grpc"]["address"],
        *(each["subnet"] for each in bridge["ipam"]["ranges"][0]),
    ]


def test_the_kubelet_of_an_added_node_speaks_with_its_own_containerd(config: Config, keys: Pki, second: Node) -> None:
    settings_files.write_all(config, keys)
    containerd = tomllib.loads((config.paths.config / "node2-containerd.toml").read_text())
    kubelet = settings_files.kubelet(config, keys, second, NodeOptions())
    assert kubelet["containerRuntimeEndpoint"] == f"unix://{containerd['grpc']['address']}"


def test_the_kubelet_of_an_added_node_is_certified_as_that_node(config: Config, second: Node) -> None:
    kubelet = next(each for each in pki.certificates(config) if each.file == "node2-kubelet")
    assert kubelet.subject == "/O=system:nodes/CN=system:node:node2"
    assert f"IP:{second.address}" in kubelet.extensions


def test_a_node_ends_silent_streams_after_the_time_that_was_asked_for(config: Config, keys: Pki, second: Node) -> None:
    settings_files.write_all(config, keys)
    for node, seconds in ((second, "5s"), (config.first, "14400s")):
        containerd = tomllib.loads((config.paths.config / f"{node.prefix}containerd.toml").read_text())
        kubelet = json.loads((config.paths.config / f"{node.prefix}kubelet.yaml").read_text())
        assert containerd["plugins"]["io.containerd.grpc.v1.cri"]["stream_idle_timeout"] == seconds
        assert kubelet["streamingConnectionIdleTimeout"] == seconds


def test_containerd_runs_pods_with_the_programs_that_localkube_builds(config: Config, second: Node) -> None:
    for node in (config.first, second):
        assert components.containerd(config, node)[0] == str(config.paths.bin / "containerd")
        cri = tomllib.loads(settings_files.containerd(config, node, NodeOptions()))["plugins"]["io.containerd.cri.v1.runtime"]
        runc = cri["containerd"]["runtimes"]["runc"]
        assert runc["runtime_path"] == str(config.paths.bin / "containerd-shim-runc-v2")
        assert runc["options"] == {"BinaryName": str(config.paths.bin / "runc"), "SystemdCgroup": False}


def test_addresses_of_all_nodes_are_apart(config: Config) -> None:
    nodes = [config.first, *map(config.added, ADDED_NUMBERS)]
    ranges = [ipaddress.ip_network(node.pod_cidr) for node in nodes]
    assert all(ipaddress.ip_address(node.address) in range_ for node, range_ in zip(nodes, ranges, strict=True))
    assert not any(one.overlaps(other) for one, other in itertools.combinations(ranges, 2))


def test_an_added_nodes_only_way_out_is_the_first_node(config: Config) -> None:
    first, node = config.first, config.added(2)
    assert "route add default via 10.244.0.1 dev node1\n" in network._link_commands(node, first, "default")
    assert "route add 10.245.2.0/24 via 10.245.2.1 dev node2\n" in network._link_commands(first, node, node.pod_cidr)


def test_a_lost_node_is_noticed_soon_and_a_slow_one_is_not_lost(config: Config, keys: Pki) -> None:
    lease = settings_files.kubelet(config, keys, config.first, NodeOptions())["nodeLeaseDurationSeconds"]
    flag = next(each for each in components.controller_manager(config) if each.startswith("--node-monitor-grace-period="))
    assert 20 <= int(flag.partition("=")[2].removesuffix("s")) <= 30
    # a kubelet renews its lease four times per lease duration: it tries ten times before the grace period ends
    assert lease / 4 * 10 <= 20


def test_volumes_are_of_the_default_class() -> None:
    assert volumes.storage_class()["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"] == "true"
    volume = volumes.volume("local-0", gibibytes=20, node="node1")
    assert volume["spec"]["storageClassName"] == volumes.storage_class()["metadata"]["name"]
    assert volume["spec"]["capacity"] == {"storage": "20Gi"}


@pytest.mark.parametrize(
    ("ready", "spec", "expected"),
    [
        ("True", {}, True),
        ("False", {}, False),
        ("Unknown", {}, False),
        ("True", {"taints": [{"key": "node.kubernetes.io/not-ready"}]}, False),
        ("True", {"unschedulable": True}, False),
    ],
)
def test_a_node_takes_pods_when_it_is_ready_and_has_no_taint(ready: str, spec: dict[str, object], expected: bool) -> None:
    found = {"spec": spec, "status": {"conditions": [{"type": "Ready", "status": ready}]}}
    assert takes_pods(found) is expected
