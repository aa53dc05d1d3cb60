"""Build the Go programs, and cache each module's programs under the digest of the build's inputs."""

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localkube.commands import capture, print_line, step, stream
from localkube.config import KUBERNETES_VERSION, SOURCE_DIR
from localkube.locking import exclusive
from localkube.toolchain import find_go

# All modules have the same flags, so that the standard library is compiled once. Without DWARF, compiling takes less time.
BUILD_FLAGS = ("-trimpath", "-buildvcs=false", "-mod=readonly", "-gcflags=all=-dwarf=false")
FEWER_COLLECTIONS = {"GOGC": "400"}  # the compiler collects its garbage less often, so it needs less time and more memory
_SMALL = ("-s", "-w")  # linker flags that leave out symbols
_KEPT_BUILDS = 2


@dataclass(frozen=True)
class Program:
    """A program of a Go module."""

    name: str
    package: str
    cgo_options: tuple[str, ...] = ()
    """Options of `go build` for a program in Go and C, or () for a program in Go alone."""


@dataclass(frozen=True)
class Module:
    """A Go module of localkube, and the programs that are built from it."""

    name: str
    """Name of the module's directory, and of its programs' directory in the cache."""
    content: str
    """What is built, for the message to the user."""
    duration: str
    """How long the build takes, for the message to the user."""
    programs: tuple[Program, ...]
    linker_flags: tuple[str, ...] = _SMALL

    @property
    def directory(self) -> Path:
        return SOURCE_DIR / self.name


def _version_flags() -> tuple[str, ...]:
    """Return the linker flags that set the Kubernetes version. Without the flags, components report v0.0.0 and reject each
    other."""
    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
    values = {"gitVersion": KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return tuple(f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items())


KUBERNETES = Module(
    "kube",
    f"Kubernetes {KUBERNETES_VERSION}",
    "7 minutes",
    (Program("localkube", "."), Program("coredns", "./dns"), Program("pause", "./pause")),
    (*_SMALL, *_version_flags()),
)
_CONTAINERD = "github.com/containerd/containerd/v2/cmd"
# runc needs C, for its program that enters namespaces and for libseccomp, which is linked statically.
_RUNC_OPTIONS = ("-tags=seccomp,netgo,osusergo", f"-ldflags={' '.join(_SMALL)} -extldflags -static")
RUNTIME = Module(
    "runtime",
    "containerd and runc",
    "2 minutes",
    (
        *(Program(name, f"{_CONTAINERD}/{name}") for name in ("containerd", "containerd-shim-runc-v2", "ctr")),
        Program("runc", "github.com/opencontainers/runc", _RUNC_OPTIONS),
    ),
)


def ensure_module(cache_dir: Path, module: Module) -> Path:
    """Return the directory of the module's programs, and build them if they are not in the cache."""
    directory, go = directory_of(cache_dir, module), _go(cache_dir, module)
    with exclusive(cache_dir / f"{module.name}.lock"):  # clusters of several checkouts may start at the same time
        if not directory.exists():
            _build(go, module, directory)
            _forget_old_builds(cache_dir / module.name)
    os.utime(directory)
    return directory


def directory_of(cache_dir: Path, module: Module) -> Path:
    """Return the directory for the module's programs, whether they are built or not. The directory's name is the inputs' digest."""
    version = capture([str(_go(cache_dir, module)), "version"]).strip()
    options = [option for program in module.programs for option in program.cgo_options]
    return cache_dir / module.name / inputs_digest(module.directory, [version, *BUILD_FLAGS, *module.linker_flags, *options])


def _go(cache_dir: Path, module: Module) -> Path:
    return find_go(cache_dir, minimum=required_go_version(module.directory))


def inputs_digest(module_dir: Path, settings: Sequence[str]) -> str:
    """Return 16 hex digits that identify all inputs of the build."""
    digest = hashlib.sha256("\0".join(settings).encode())
    for file in sorted([module_dir / "go.mod", module_dir / "go.sum", *module_dir.rglob("*.go")]):
        content = file.read_bytes()
        digest.update(f"\0{file.relative_to(module_dir)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def required_go_version(module_dir: Path) -> tuple[int, ...]:
    """Return the version in the `go` line of go.mod."""
    for line in (module_dir / "go.mod").read_text().splitlines():
        if line.startswith("go "):
            return tuple(int(part) for part in line.split()[1].split("."))
    raise ValueError(f"{module_dir}/go.mod has no go line")


def _build(go: Path, module: Module, directory: Path) -> None:
    print_line(f"building {module.content} from source: about {module.duration} on 2 free cores the first time,")
    print_line("20 seconds if only a little changed; it stays in the cache")
    unfinished = directory.with_name(f"{directory.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    env = os.environ | {"GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": ""} | FEWER_COLLECTIONS
    with step(f"  {module.name}: 1/2 downloading Go modules (half a minute)"):
        stream([str(go), "mod", "download"], env=env, cwd=module.directory)
    with step(f"  {module.name}: 2/2 compiling and linking (almost {module.duration}, silent)"):
        command = [str(go), "build", *BUILD_FLAGS, "-ldflags", " ".join(module.linker_flags)]
        for program in module.programs:
            cgo = {"CGO_ENABLED": "1" if program.cgo_options else "0"}
            target = ["-o", str(unfinished / program.name), program.package]
            stream([*command, *program.cgo_options, *target], env=env | cgo, cwd=module.directory)
    unfinished.rename(directory)


def _forget_old_builds(directory: Path) -> None:
    """Delete all but the most recently used builds, because a build takes 150 MB."""
    by_use = sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in by_use[_KEPT_BUILDS:]:
        shutil.rmtree(old)
