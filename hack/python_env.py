"""Install the packages of the lock file, verified by their hashes, in the checkout's `.venv`."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from hack.paths import CACHE, ROOT, VENV, cached, digest_of
from hack.stages import print_line, stage
from hack.tools import apt_install
from localkube.commands import capture, stream

LOCK = ROOT / "requirements" / "dev.lock"
TOOLS_LOCK = ROOT / "hack" / "tools.lock"
_LOCKING = ("--universal", "--generate-hashes", "--no-annotate", "--no-header")
_OURS = ("--python-version", "3.11")
_OPERATOR = (*_OURS, "--extra", "operator", "--extra", "otel")
_HOST = "agent-host/pyproject.toml"
_HOST_LOCK = "agent-host/requirements/host.lock"
_HARBORS = ("--python-version", "3.12")
_OF_CHILDREN = ("dulwich", "urllib3")  # only the operator's child processes import these packages, and write no bytecode
_STAMP = VENV / ".made-of"


def ensure() -> None:
    """Create or update .venv, unless it is up to date."""
    wanted = digest_of([LOCK, TOOLS_LOCK, ROOT / "pyproject.toml"], str(ROOT), sys.version)
    if _STAMP.exists() and _STAMP.read_text() == wanted:
        return
    with stage("Python environment .venv"):
        _create_venv()
        _install_locked()
        _install_ourselves()
        _STAMP.write_text(wanted)


def lock() -> None:
    """Pin the newest versions that pyproject.toml and tools.in allow, with the hashes of their files."""
    for source, output, *options in (
        ("pyproject.toml", "requirements/operator.lock", *_OPERATOR),
        ("pyproject.toml", "requirements/dev.lock", *_OPERATOR, "--extra", "report", "--extra", "history", "--group", "dev"),
        ("hack/tools.in", "hack/tools.lock", *_OURS),
        (_HOST, _HOST_LOCK, *_HARBORS),
        (_HOST, "agent-host/requirements/test.lock", *_HARBORS, "--constraint", _HOST_LOCK, "--group", f"{_HOST}:test"),
    ):
        uv("pip", "compile", "--quiet", "--upgrade", *_LOCKING, *options, source, "--output-file", output, offline_first=False)
        print_line(f"wrote {output}")


def tools() -> Path:
    """Return the directory of the build and install tools (uv, hatchling) in the cache, and install the tools if necessary."""
    digest = digest_of([TOOLS_LOCK], sys.version, sys.executable)
    return cached("tools", digest, _install_tools) / "bin"


def uv(*arguments: str, offline_first: bool = True) -> None:
    """Run uv with the project's cache: first offline and, if that fails, with the network."""
    command = [str(tools() / "uv"), *arguments]
    settings = {"UV_CACHE_DIR": str(CACHE / "uv"), "UV_NO_PROGRESS": "1", "UV_NO_CONFIG": "1"}
    settings["UV_SYSTEM_CERTS"] = "1"  # the system's certificates can include the certificate of a company's proxy
    env = _clean_environment() | settings
    if offline_first and _succeeds([*command, "--quiet", "--offline"], env):
        return
    stream(command, env=env, cwd=ROOT)


def _succeeds(command: list[str], env: dict[str, str]) -> bool:
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, check=False).returncode == 0


def _clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")}


def _create_venv() -> None:
    if not _runs(VENV / "bin" / "python"):
        capture([sys.executable, "-m", "venv", "--clear", "--without-pip", str(VENV)])


def _runs(python: Path) -> bool:
    """Return whether .venv's interpreter exists and has the current interpreter's minor version. The versions differ after an
    upgrade of Python."""
    if not python.exists():
        return False
    version = f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    return subprocess.run([str(python), "-c", version], check=False).returncode == 0


def _install_locked() -> None:
    uv("pip", "sync", "--python", str(VENV), "--require-hashes", "--only-binary", ":all:", str(LOCK))


def _install_ourselves() -> None:
    """Build the project's editable wheel with the locked hatchling, and install it in .venv."""
    with tempfile.TemporaryDirectory() as directory:
        build_wheel(Path(directory), "wheel:editable")
        wheel = next(Path(directory).glob("*.whl"))
        uv("pip", "install", "--python", str(VENV), "--no-deps", "--reinstall", str(wheel))


def compile_modules() -> None:
    """Compile the modules that several processes of a test run would otherwise each compile. This takes seconds in a new checkout,
    and no time later."""
    packages = [next(VENV.glob("lib/python3*/site-packages")) / name for name in _OF_CHILDREN]
    ours = [ROOT / name for name in ("operator", "hack", "localkube", "tests")]
    command = [str(VENV / "bin" / "python"), "-m", "compileall", "-q", "-j", "0", *map(str, [*packages, *ours])]
    subprocess.run(command, capture_output=True, check=False)  # tests/conformance has invalid Python files on purpose


def build_wheel(directory: Path, target: str = "wheel") -> None:
    """Build the project's wheel in a directory."""
    capture([str(tools() / "python"), "-m", "hatchling", "build", "-t", target, "-d", str(directory)], cwd=ROOT)


def _install_tools(directory: Path) -> None:
    with stage("build tools (uv, hatchling)"):
        if importlib.util.find_spec("ensurepip") is None:  # Debian ships ensurepip in a separate package
            apt_install("python3-venv")
        # The directory is renamed later. That breaks scripts with absolute paths, but only python and uv are used.
        capture([sys.executable, "-m", "venv", str(directory)])
        pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        capture([*pip, "--only-binary", ":all:", "--require-hashes", "--requirement", str(TOOLS_LOCK)])
