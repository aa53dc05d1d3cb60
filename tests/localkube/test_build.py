"""Test the build's cache: a digest of all inputs identifies the binary."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from localkube import build, locking
from localkube.build import KUBERNETES, RUNTIME, Module, inputs_digest, required_go_version
from localkube.toolchain import find_go, go_version, parse_go_version


@pytest.fixture
def module(tmp_path: Path) -> Path:
    (tmp_path / "part").mkdir()
    for name in ("go.mod", "go.sum", "main.go", "part/main.go"):
        (tmp_path / name).write_text(name)
    return tmp_path


def test_the_same_inputs_have_the_same_digest(module: Path) -> None:
    assert inputs_digest(module, ["go1"]) == inputs_digest(module, ["go1"])


@pytest.mark.parametrize(
    "change",
    [
        lambda module: (module / "go.mod").write_text("other"),
        lambda module: (module / "go.sum").write_text("other"),
        lambda module: (module / "part/main.go").write_text("other"),
        lambda module: (module / "more.go").write_text(""),
        lambda module: (module / "main.go").rename(module / "other.go"),
    ],
)
def test_any_change_of_the_source_changes_the_digest(module: Path, change: Callable[[Path], object]) -> None:
    before = inputs_digest(module, ["go1"])
    change(module)
    assert inputs_digest(module, ["go1"]) != before


@pytest.mark.parametrize("settings", [[], ["go2"], ["go1", "-race"], ["go", "1"]])
def test_other_settings_change_the_digest(module: Path, settings: list[str]) -> None:
    assert inputs_digest(module, settings) != inputs_digest(module, ["go1"])


def test_files_that_are_not_built_do_not_matter(module: Path) -> None:
    before = inputs_digest(module, [])
    (module / "README.md").write_text("text")
    assert inputs_digest(module, []) == before


@pytest.mark.parametrize("ours", [KUBERNETES, RUNTIME])
def test_our_modules_need_a_known_go(ours: Module) -> None:
    assert required_go_version(ours.directory) >= (1, 25)


def test_programs_of_the_container_runtime_are_pinned() -> None:
    """`go build` without a version builds what go.mod requires, and go.sum verifies it."""
    required, sums = ((RUNTIME.directory / name).read_text() for name in ("go.mod", "go.sum"))
    for module in ("github.com/containerd/containerd/v2", "github.com/opencontainers/runc"):
        version = required.split(f"\t{module} v")[1].split()[0]
        assert f"{module} v{version} h1:" in sums


@pytest.mark.parametrize(
    ("text", "version"),
    [("go1.26.8\n", (1, 26, 8)), ("go1.25rc1", (1, 25)), ("devel go1.27-abc", ()), ("", ())],
)
def test_versions_of_go_are_read(text: str, version: tuple[int, ...]) -> None:
    assert parse_go_version(text) == version


def test_a_program_that_does_not_run_has_no_version(tmp_path: Path) -> None:
    assert go_version(tmp_path / "go") == ()


def test_a_go_that_is_too_old_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "go"
    old.write_text("#!/bin/sh\necho go1.19.8\n")
    old.chmod(0o755)
    kept = tmp_path / "cache/go/lib/python3.11/site-packages/go/bin/go"
    kept.parent.mkdir(parents=True)
    kept.touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert find_go(tmp_path / "cache", (1, 18)) == old
    assert find_go(tmp_path / "cache", (1, 25)) == kept


def test_clusters_that_start_at_the_same_time_build_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds: list[Path] = []
    second = Event()  # set when the second thread also builds, or waits for the first thread's lock

    def slow_build(go: Path, module: Module, directory: Path) -> None:
        builds.append(directory)
        if len(builds) == 2:
            second.set()
        assert second.wait(60)
        directory.mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(build, "_build", slow_build)
    monkeypatch.setattr(locking, "print_line", lambda _: second.set())
    with ThreadPoolExecutor() as threads:
        found = list(threads.map(build.ensure_module, [tmp_path] * 2, [KUBERNETES] * 2))
    assert found == [builds[0]] * 2 and len(builds) == 1
