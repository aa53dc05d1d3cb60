"""Build container images and base images without a container engine, and load them into the cluster."""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from localkube import archive
from localkube.commands import capture, print_line, step, stream
from localkube.config import Config, Node
from localkube.containerd import Containerd, architecture
from localkube.errors import CommandFailed, LocalkubeError
from localkube.locking import exclusive

_PYTHON_DOCKERFILE = Path(__file__).parent / "python.Dockerfile"
_UNNEEDED = ("usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale", "var/cache/apt", "var/lib/apt/lists")
_APT_SETTINGS = """\
Acquire::Languages "none";
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb || true"; };
"""
_CA_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
_CA_OF_DEBIAN = Path("/etc/ssl/certs/ca-certificates.crt")
_CA_IN_BUILD = "/run/build-ca.crt"


@dataclass(frozen=True)
class Debian:
    """A Debian release and its Python version, from which localkube builds base images that replace the official images."""

    suite: str
    python: str

    @property
    def image(self) -> str:
        return f"localhost/debian:{self.suite}-slim"

    @property
    def python_image(self) -> str:
        return f"localhost/python:{self.python}-slim-{self.suite}"


BOOKWORM = Debian("bookworm", "3.11")
TRIXIE = Debian("trixie", "3.13")


@dataclass(frozen=True)
class Build:
    """The arguments of an image build, like those of `docker build`."""

    name: str
    context: Path
    dockerfile: Path
    arguments: tuple[str, ...] = ()
    target: str | None = None

    @property
    def options(self) -> list[str]:
        """The options that docker and buildah share."""
        arguments = [f"--build-arg={each}" for each in self.arguments]
        target = [f"--target={self.target}"] if self.target else []
        return ["--tag", self.name, "--file", str(self.dockerfile), *arguments, *target]


def build(config: Config, wanted: Build) -> None:
    """Build an image with buildah. It caches layers, so a second build runs only the steps that changed."""
    trust = _trust_of_machine(config.paths.cache_dir / "build", os.environ)
    command = ["buildah", "bud", "--isolation", "chroot", "--layers", "--force-rm"]
    stream([*command, *wanted.options, *trust, str(wanted.context)])


def load(config: Config, name: str) -> None:
    """Load an image of buildah's storage into the containerd of each node that lacks it."""
    image_id = _image_id(name)
    if image_id is None:
        raise LocalkubeError(f"there is no image {name!r}; build it: python3 -m localkube build -t {name} CONTEXT")
    for node in config.nodes:
        daemon = Containerd.of(config, node)
        if not daemon.answers():
            raise LocalkubeError(f"{node.name} is not running; start it: python3 -m localkube up")
        with exclusive(config.paths.images_lock):
            missing = [each for each in names_in_cluster(name) if not daemon.has(each, image_id)]
            if missing:
                _import(daemon, name, missing)
    print_line(f"{name} is in the cluster as {', '.join(names_in_cluster(name))}")


def copy(config: Config, node: Node) -> None:
    """Copy the first node's images to an added node."""
    there, here = (Containerd.of(config, each) for each in (config.first, node))
    missing = [each for each in there.names() if there.digest(each) != here.digest(each)]
    if missing:
        with step(f"copying {len(missing)} images"), tempfile.TemporaryDirectory(dir=config.paths.run_dir) as directory:
            file = Path(directory) / "images.tar"
            there.save(missing, file)
            here.load(file)


def names_in_cluster(name: str) -> list[str]:
    """Return the full names under which pods can refer to the image `name`.

    Kubernetes expands a short name to `docker.io/...`, buildah to `localhost/...`, so the image gets both names.
    """
    tagged = name if ":" in name.rsplit("/", 1)[-1] else f"{name}:latest"
    first, _, rest = tagged.partition("/")
    if rest and ("." in first or ":" in first or first == "localhost"):
        return [tagged]
    return [f"docker.io/{tagged if rest else f'library/{tagged}'}", f"localhost/{tagged}"]


def ensure_bases(config: Config, dockerfile: Path) -> None:
    """Create the base images that the Dockerfile names, if localkube can build them."""
    text = dockerfile.read_text() if dockerfile.exists() else ""
    for debian in (BOOKWORM, TRIXIE):
        if _short(debian.python_image) in text:
            ensure_python(config, debian)
        elif _short(debian.image) in text:
            ensure_debian(config, debian)


def ensure_debian(config: Config, debian: Debian = BOOKWORM) -> None:
    """Create the base image that `FROM debian:SUITE-slim` uses, unless it exists."""
    kept = config.paths.cache_dir / "images" / f"debian-{debian.suite}-slim-{architecture()}.tar"
    with exclusive(_lock(config, debian.image)):
        if _image_id(debian.image):
            return
        if not kept.exists():
            with step(f"making {debian.image} from Debian's packages (half a minute)"):
                _bootstrap_debian(debian, kept)
        _pull_archive(kept)


def ensure_python(config: Config, debian: Debian = BOOKWORM) -> None:
    """Create the base image that `FROM python:VERSION-slim-SUITE` uses, unless it exists. It has Debian's Python with pip and
    venv."""
    name = debian.python_image
    with exclusive(_lock(config, name)):
        if _image_id(name):
            return
        ensure_debian(config, debian)
        with step(f"making {name} (half a minute)"):
            build(config, Build(name, _PYTHON_DOCKERFILE.parent, _PYTHON_DOCKERFILE, (f"DEBIAN_IMAGE={debian.image}",)))


def _lock(config: Config, name: str) -> Path:
    """Return the path of the lock under which a base image is created, because the cluster's start and an image build may both need
    it."""
    return config.paths.cache_dir / "images" / f"{_short(name).replace(':', '-')}.lock"


def _short(name: str) -> str:
    return name.removeprefix("localhost/")


def _image_id(name: str) -> str | None:
    try:
        return capture(["buildah", "inspect", "--type", "image", "--format", "{{.FromImageID}}", name]).strip()
    except CommandFailed:
        return None


def _import(daemon: Containerd, name: str, names: Sequence[str]) -> None:
    with step(f"loading {name}"):
        daemon.load_from(["buildah", "push", "--quiet", name, f"docker-archive:/dev/stdout:{names[0]}"])
        for other in names[1:]:
            daemon.tag(names[0], other)


def _pull_archive(file: Path) -> None:
    with step(f"taking in {file.name}"):
        capture(["buildah", "pull", "--quiet", f"docker-archive:{file}"])


def _bootstrap_debian(debian: Debian, output: Path) -> None:
    with tempfile.TemporaryDirectory(dir=output.parent) as directory:
        root, layer = Path(directory) / "root", Path(directory) / "layer.tar"
        capture(["debootstrap", "--variant=minbase", debian.suite, str(root)])
        _slim(root)
        capture(["tar", "--numeric-owner", "--one-file-system", "-C", str(root), "-cf", str(layer), "."])
        archive.write_image(output, debian.image, layer, archive.ImageConfig(command=("bash",)), architecture())


def _slim(root: Path) -> None:
    """Delete documentation, locales and package caches, and configure dpkg and apt not to add them later."""
    for directory in _UNNEEDED:
        for entry in (root / directory).iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    rules = [f"path-exclude /{directory}/*\n" for directory in _UNNEEDED if directory.startswith("usr/share")]
    (root / "etc/dpkg/dpkg.cfg.d/slim").write_text("".join(rules))
    (root / "etc/apt/apt.conf.d/slim").write_text(_APT_SETTINGS)


def _trust_of_machine(directory: Path, environment: Mapping[str, str], system: Path = _CA_OF_DEBIAN) -> list[str]:
    """Return buildah options that make `pip` and `npm` trust this machine's own certificate authority.

    The authority's certificate is in the file that one of _CA_VARIABLES names or, if none of them is set, in Debian's bundle. The
    options only mount files into the build, because environment variables would remain in the image.
    """
    bundle = next((Path(environment[name]) for name in _CA_VARIABLES if environment.get(name)), system)
    if not bundle.is_file():
        return []
    directory.mkdir(parents=True, exist_ok=True)
    pip, npm = directory / "pip.conf", directory / "npmrc"
    pip.write_text(f"[global]\ncert = {_CA_IN_BUILD}\n")
    npm.write_text(f"cafile={_CA_IN_BUILD}\n")
    mounts = (f"{bundle}:{_CA_IN_BUILD}:ro", f"{pip}:/etc/pip.conf:ro", f"{npm}:/root/.npmrc:ro")
    return [option for mount in mounts for option in ("--volume", mount)]
