"""Create the cluster's certificate authority, and a certificate for each client and server."""

from dataclasses import dataclass, field
from pathlib import Path

from localkube.commands import capture
from localkube.config import Config, Node

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_LIFE_DAYS = 3650

_CA_EXTENSIONS = """\
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign, digitalSignature
subjectKeyIdentifier = hash
"""


@dataclass(frozen=True)
class Certificate:
    """The content of a certificate."""

    file: str
    user: str
    """Common name."""
    groups: tuple[str, ...] = ()
    server_names: tuple[str, ...] = ()
    """DNS names and IP addresses of a server."""
    client: bool = True
    """Whether the certificate is for a client."""

    @property
    def subject(self) -> str:
        return "".join(f"/O={group}" for group in self.groups) + f"/CN={self.user}"

    @property
    def extensions(self) -> str:
        usages = (["clientAuth"] if self.client else []) + (["serverAuth"] if self.server_names else [])
        lines = [
            "basicConstraints = critical, CA:FALSE",
            "keyUsage = critical, digitalSignature",
            f"extendedKeyUsage = {', '.join(usages)}",
        ]
        if self.server_names:
            lines.append(f"subjectAltName = {', '.join(_alternative_name(name) for name in self.server_names)}")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Pki:
    """The directory with certificates (`NAME.crt`) and keys (`NAME.key`)."""

    directory: Path
    ca: str = field(default="ca", init=False)

    def certificate(self, name: str) -> Path:
        return self.directory / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.directory / f"{name}.key"


def certificates(config: Config) -> list[Certificate]:
    """Return all certificates of the cluster's clients and servers."""
    net = config.network
    api_names = (
        *("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"),
        *("localhost", "127.0.0.1", net.api_address, net.node_address, net.first_service_address),
    )
    return [
        Certificate("apiserver", "kube-apiserver", server_names=api_names, client=False),
        Certificate("apiserver-kubelet-client", "kube-apiserver-kubelet-client"),
        *(_kubelet(node) for node in config.nodes),
        Certificate("controller-manager", "system:kube-controller-manager"),
        Certificate("scheduler", "system:kube-scheduler"),
        Certificate("proxy", "system:kube-proxy"),
        Certificate("dns", "system:dns"),
        Certificate("admin", "kubernetes-admin", ("system:masters",)),
    ]


def _kubelet(node: Node) -> Certificate:
    return Certificate(f"{node.prefix}kubelet", f"system:node:{node.name}", ("system:nodes",), (node.name, node.address))


def create(config: Config) -> Pki:
    """Create the keys and certificates that are missing. Only root can read the keys."""
    pki = Pki(config.paths.pki)
    pki.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not pki.certificate(pki.ca).exists():
        _issue(pki, pki.ca, "/CN=multistep-localkube", _CA_EXTENSIONS, signer=[])
    signer = ["-CA", str(pki.certificate(pki.ca)), "-CAkey", str(pki.key(pki.ca))]
    for wanted in certificates(config):
        if not pki.certificate(wanted.file).exists():
            _issue(pki, wanted.file, wanted.subject, wanted.extensions, signer)
    if not pki.key("service-accounts").exists():
        _create_signing_key(pki.key("service-accounts"))
    return pki


def _issue(pki: Pki, name: str, subject: str, extensions: str, signer: list[str]) -> None:
    settings = pki.directory / f"{name}.cnf"
    settings.write_text(f"[req]\ndistinguished_name = dn\nx509_extensions = ext\n[dn]\n[ext]\n{extensions}")
    unfinished = pki.certificate(name).with_suffix(".new")
    command = ["openssl", "req", "-x509", "-config", str(settings), "-subj", subject, "-days", str(_LIFE_DAYS)]
    capture([*command, *_NEW_KEY, "-keyout", str(pki.key(name)), "-out", str(unfinished), *signer])
    unfinished.rename(pki.certificate(name))
    settings.unlink()


def _create_signing_key(path: Path) -> None:
    unfinished = path.with_suffix(".new")
    capture(["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", str(unfinished)])
    unfinished.rename(path)


def _alternative_name(name: str) -> str:
    kind = "IP" if name.replace(".", "").isdigit() else "DNS"
    return f"{kind}:{name}"
