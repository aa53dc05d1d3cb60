"""Build the Kubernetes programs once; cache them by the digest of the build's inputs."""

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from localkube.commands import capture, print_line, step, stream
from localkube.config import KUBERNETES_VERSION, SOURCE_DIR
from localkube.locking import exclusive
from localkube.toolchain import find_go

MODULE_DIR = SOURCE_DIR / "kube"
_PROGRAMS = {"localkube": ".", "coredns": "./dns", "pause": "./pause"}
_BUILD_FLAGS = ("-trimpath", "-buildvcs=false", "-mod=readonly")
_KEPT_BUILDS = 2


def ensure_binaries(cache_dir: Path) -> Path:
    """Return the directory of the programs; build them if they are not cached. The directory's name is the digest of the inputs."""
    go = find_go(cache_dir, minimum=required_go_version(MODULE_DIR))
    version = capture([str(go), "version"]).strip()
    digest = inputs_digest(MODULE_DIR, [version, *_BUILD_FLAGS, *_linker_flags()])
    directory = cache_dir / "kube" / digest
    with exclusive(cache_dir / "kube.lock"):  # clusters of several checkouts may start at the same time
        if not directory.exists():
            _build(go, directory)
            _forget_old_builds(cache_dir / "kube")
    os.utime(directory)
    return directory


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


def _linker_flags() -> list[str]:
    """Return the linker flags that set the Kubernetes version. Without them components report v0.0.0 and reject each other."""
    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
    values = {"gitVersion": KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    package = "k8s.io/component-base/version"
    return ["-s", "-w", *(f"-X {package}.{name}={value}" for name, value in values.items())]


def _build(go: Path, directory: Path) -> None:
    print_line(f"building Kubernetes {KUBERNETES_VERSION} from source: about 7 minutes on 2 free cores the first time,")
    print_line("20 seconds if only a little changed; it stays in the cache")
    unfinished = directory.with_name(f"{directory.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    env = os.environ | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": ""}
    with step("  1/2 downloading Go modules (0.8 GB unpacked, about half a minute)"):
        stream([str(go), "mod", "download"], env=env, cwd=MODULE_DIR)
    with step("  2/2 compiling and linking (about 6 minutes, silent)"):
        command = [str(go), "build", *_BUILD_FLAGS, "-ldflags", " ".join(_linker_flags())]
        for program, package in _PROGRAMS.items():
            stream([*command, "-o", str(unfinished / program), package], env=env, cwd=MODULE_DIR)
    unfinished.rename(directory)


def _forget_old_builds(directory: Path) -> None:
    """Delete all but the most recently used builds, because each build takes 150 MB."""
    by_use = sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in by_use[_KEPT_BUILDS:]:
        shutil.rmtree(old)
