"""What the components are told: where things are, who may do what, and that the files can be read."""

import ipaddress
import json
import tomllib
from pathlib import Path

import pytest

from localkube import components, network, objects, pki, settings_files, volumes
from localkube.config import Config, Network, Paths, load_config
from localkube.health import takes_pods
from localkube.pki import Pki


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(Paths(run_dir=tmp_path / "run", cache_dir=tmp_path / "cache"))


@pytest.fixture
def keys(config: Config) -> Pki:
    """Files in the place of keys and certificates."""
    made = Pki(config.paths.pki)
    made.directory.mkdir(parents=True)
    for name in ("ca", *(each.file for each in pki.certificates(config))):
        made.certificate(name).write_text(f"certificate of {name}")
        made.key(name).write_text(f"key of {name}")
    return made


def test_settings_come_from_the_environment() -> None:
    config = load_config({"MULTISTEP_CACHE": "/c", "LOCALKUBE_DIR": "/r", "LOCALKUBE_AUDIT": "1"})
    assert (config.paths.cache_dir, config.paths.run_dir, config.audit) == (Path("/c"), Path("/r"), True)


def test_settings_have_defaults() -> None:
    config = load_config({"HOME": "/home/me"})
    assert config.paths.cache_dir == Path("/home/me/.cache/multistep")
    assert not config.audit


def test_every_file_is_written_and_can_be_parsed(config: Config, keys: Pki) -> None:
    settings_files.write_all(config, keys)
    for file in config.paths.config.rglob("*"):
        if file.suffix == ".toml":
            tomllib.loads(file.read_text())
        elif file.suffix in {".yaml", ".conflist", ".kubeconfig"}:
            json.loads(file.read_text())


def test_every_file_that_a_component_is_told_of_exists(config: Config, keys: Pki) -> None:
    settings_files.write_all(config, keys)
    keys.key("service-accounts").touch()
    told = [part for each in components.COMPONENTS for flag in each.command(config) for part in flag.split("=")]
    made = (str(config.paths.config), str(config.paths.pki))
    files = [Path(part) for part in told if part.startswith(made)]
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
    kubelet = settings_files.kubelet(config, keys)
    assert kubelet["authentication"]["anonymous"] == {"enabled": False}
    assert kubelet["authorization"] == {"mode": "Webhook"}


def test_audit_is_off_unless_asked_for(config: Config) -> None:
    asked = Config(config.paths, audit=True)
    assert not [flag for flag in components.apiserver(config) if flag.startswith("--audit")]
    assert [flag for flag in components.apiserver(asked) if flag.startswith("--audit-log-path=")]


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


def test_dns_is_a_service_at_the_address_that_pods_are_told(config: Config, keys: Pki) -> None:
    net = config.network
    assert settings_files.kubelet(config, keys)["clusterDNS"] == [objects.dns_service(net)["spec"]["clusterIP"]]
    assert objects.dns_endpoints(net)["endpoints"][0]["addresses"] == [net.node_address]
    assert f"bind {net.node_address}\n" in settings_files.corefile(config)


def test_no_route_leads_out_of_the_namespace() -> None:
    assert "route" not in network._inside_commands(Network())


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
