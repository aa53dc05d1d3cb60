"""Test `multistep build`: it skips engines that do not work, adds the runner as a layer, and loads the image into clusters."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from multistep.cli.image import engines, images
from multistep.cli.image import images as runner
from multistep.cli.image.engines import Buildah, Command, DockerLike, Localkube, find_engine
from multistep.client.kubeconfig import CurrentCluster, current_cluster
from multistep.errors import UsageError

from .conftest import Invoke

KIND = CurrentCluster("kind-dev", "https://127.0.0.1:1")
LOCALKUBE = CurrentCluster("localkube", "https://10.243.0.2:6443")
K3S = CurrentCluster("default", "https://127.0.0.1:6443")


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that puts shell scripts into PATH and returns a file, to which each script logs its calls."""
    log = tmp_path / "calls"

    def make(**bodies: str) -> Path:
        (tmp_path / "bin").mkdir(exist_ok=True)
        for name, body in bodies.items():
            (tmp_path / "bin" / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\n{body}\n')
            (tmp_path / "bin" / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}")
        return log

    return make


@pytest.fixture
def dockerfile_task(task: Path) -> Path:
    """Return the directory of a task that has a Dockerfile and names no image."""
    (task / "task.toml").write_text("[[steps]]\nname = 'a'\n")
    (task / "environment").mkdir()
    (task / "environment/Dockerfile").write_text("FROM scratch\nUSER bob\n")
    return task


@pytest.mark.parametrize(
    ("working", "engine"),
    [
        ({"docker", "podman", "buildah"}, DockerLike("docker")),
        ({"podman", "buildah"}, DockerLike("podman")),
        ({"buildah"}, Buildah()),
    ],
)
def test_the_first_engine_that_works(working: set[str], engine: object) -> None:
    assert find_engine(lambda argv: argv[0] in working) == engine


def test_no_engine_works() -> None:
    with pytest.raises(UsageError, match="no container engine works here"):
        find_engine(lambda _: False)


@pytest.mark.parametrize(("body", "works"), [("exit 0", True), ("exit 1", False)])
def test_an_engine_is_asked(tools: Callable[..., Path], body: str, works: bool) -> None:
    log = tools(docker=body)
    assert engines.answers(["docker", "info"]) == works
    assert log.read_text() == "docker info\n"
    assert not engines.answers(["podman", "info"])


def test_a_build_without_runner(dockerfile_task: Path, tools: Callable[..., Path], invoke: Invoke) -> None:
    log = tools(docker="")
    result = invoke("build", dockerfile_task)
    name = result.stdout.strip()
    assert result.exit_code == 0 and re.fullmatch(r"localhost/multistep/my-task:[0-9a-f]{12}", name)
    environment = dockerfile_task / "environment"
    assert log.read_text() == f"docker info\ndocker build --tag {name} --file {environment}/Dockerfile {environment}\n"
    assert "init container" in result.stderr and "only on this machine" in result.stderr


def test_the_runner_is_a_layer_of_its_own(
    dockerfile_task: Path, tools: Callable[..., Path], invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runner").write_text("binary")
    monkeypatch.setattr(images, "find_runner", lambda: tmp_path / "runner")
    files = tmp_path / "files"
    lines = f'while read -r line; do echo "$line"; done < "$5" >> {files}'
    tools(docker=f'[ "$1" = build ] || exit 0\n{lines}\n[ ! -x "$6/runner" ] || echo x >> {files}')
    result = invoke("build", dockerfile_task, "-t", "registry.example/t:1", "-o", "json")
    assert json.loads(result.stdout) == {
        "image": "registry.example/t:1",
        "runnerInImage": True,
        "pushed": False,
        "loaded": False,
        "engine": "docker",
    }
    *first, base, copy, executable = files.read_text().splitlines()
    assert first == ["FROM scratch", "USER bob"]
    assert re.fullmatch(r"FROM localhost/multistep/my-task-base:[0-9a-f]{12}", base)
    assert (copy, executable) == ("COPY runner /multistep/runner", "x")


def test_the_default_name_is_that_of_the_contents(dockerfile_task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from multistep.client.task.task_directory import TaskDirectory

    def name() -> str:
        return images.plan_build(TaskDirectory.open(dockerfile_task)).name

    monkeypatch.setattr(images, "find_runner", lambda: None)
    first = name()
    (dockerfile_task / "steps/a/instruction.md").write_text("other")
    assert name() == first
    (dockerfile_task / "environment/Dockerfile").write_text("FROM scratch\n")
    second = name()
    (tmp_path / "runner").write_text("binary")
    monkeypatch.setattr(images, "find_runner", lambda: tmp_path / "runner")
    assert len({first, second, name()}) == 3


def test_a_failed_build_shows_what_the_engine_printed(dockerfile_task: Path, tools: Callable[..., Path], invoke: Invoke) -> None:
    tools(docker='[ "$1" = info ] || { echo no such base; exit 3; }')
    result = invoke("build", dockerfile_task)
    assert result.exit_code == 2 and result.stdout == ""
    assert "failed with status 3; its last lines:\n  no such base" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "calls"),
    [(["-t", "registry.example/t:1", "--push"], "docker push registry.example/t:1"), (["--push"], None)],
)
def test_push(dockerfile_task: Path, tools: Callable[..., Path], invoke: Invoke, arguments: list[str], calls: str | None) -> None:
    log = tools(docker="")
    result = invoke("build", dockerfile_task, *arguments)
    if calls:
        assert result.exit_code == 0 and log.read_text().splitlines()[-1] == calls
    else:
        assert result.exit_code == 2 and "has no registry in its name" in result.stderr
        assert not log.exists(), "refused before anything was built"


def test_nothing_to_build(task: Path, invoke: Invoke) -> None:
    result = invoke("build", task)
    assert result.exit_code == 2 and "has no Dockerfile" in result.stderr


@pytest.mark.parametrize(
    ("engine", "cluster", "calls"),
    [
        (DockerLike("docker"), KIND, ["kind load docker-image i:1 --name dev"]),
        (
            DockerLike("podman"),
            KIND,
            [r"podman save --output /\S+/image.tar i:1", r"kind load image-archive /\S+/image.tar --name dev"],
        ),
        (
            Buildah(),
            KIND,
            [r"buildah push --quiet i:1 docker-archive:/\S+/image.tar:i:1", r"kind load image-archive /\S+/image.tar --name dev"],
        ),
        (DockerLike("docker"), K3S, [r"docker save --output /\S+/image.tar i:1", r"k3s ctr images import /\S+/image.tar"]),
    ],
)
def test_a_cluster_on_this_machine_gets_the_image(
    engine: engines.Engine, cluster: CurrentCluster, calls: list[str], tools: Callable[..., Path]
) -> None:
    log = tools(docker="", podman="", buildah="", kind="", k3s="")
    assert images.load_image("i:1", engine, cluster)
    printed = log.read_text().splitlines()
    assert len(printed) == len(calls) and all(re.fullmatch(*pair) for pair in zip(calls, printed, strict=True))


@pytest.mark.parametrize("cluster", [None, CurrentCluster("prod", "https://10.0.0.1"), K3S])
def test_other_clusters_must_pull(cluster: CurrentCluster | None, tools: Callable[..., Path]) -> None:
    tools(docker="")  # without k3s, its address is that of another cluster
    assert not images.load_image("i:1", DockerLike("docker"), cluster)


def test_localkube_builds_and_loads_by_itself(tmp_path: Path, tools: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    tools(buildah="")
    monkeypatch.setattr(images, "source_checkout", lambda: tmp_path)
    engine = images.choose_engine(LOCALKUBE)
    assert isinstance(engine, Localkube)
    for command, words in (
        (engine.build("i:1", Path("/c"), Path("/c/D")), ["build", "--tag", "i:1", "--file", "/c/D", "/c"]),
        (engine.load("i:1"), ["load", "i:1"]),
    ):
        assert list(command.argv[1:]) == ["-m", "localkube", *words]
        assert command.directory == tmp_path and command.env == {"CLUSTER": "local", "LOCALKUBE_NUMBER": "0"}
    assert engine.push("i:1") == Command(["buildah", "push", "i:1"])


@pytest.mark.parametrize("variable", ["", "oci"])
def test_buildah_nests_nothing_by_default(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if variable:
        monkeypatch.setenv("BUILDAH_ISOLATION", variable)
    else:
        monkeypatch.delenv("BUILDAH_ISOLATION", raising=False)
    argv = Buildah().build("i", Path("c"), Path("d")).argv
    assert argv[argv.index("--isolation") + 1] == (variable or "chroot")


def test_the_runner_that_is_named_must_be_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MULTISTEP_RUNNER", str(tmp_path / "runner"))
    with pytest.raises(UsageError, match="which does not exist"):
        runner.find_runner()
    (tmp_path / "runner").touch()
    assert runner.find_runner() == tmp_path / "runner"


@pytest.mark.parametrize(
    ("text", "cluster"),
    [
        (
            "current-context: a\ncontexts: [{name: a, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: s}}]",
            ("a", "s"),
        ),
        ("current-context: a", ("a", "")),
        ("current-context: a\ncontexts: 3\nclusters: [3]", ("a", "")),
        ("contexts: 3", None),
        ("{", None),
        ("[]", None),
    ],
)
def test_the_kubeconfig_is_only_read(tmp_path: Path, text: str, cluster: tuple[str, str] | None) -> None:
    (tmp_path / "k").write_text(text)
    assert current_cluster(str(tmp_path / "k")) == (CurrentCluster(*cluster) if cluster else None)


def test_which_cluster_it_is() -> None:
    assert (KIND.kind, KIND.localkube) == ("dev", None)
    assert (LOCALKUBE.kind, LOCALKUBE.localkube) == (None, "0")


def test_run_leaves_an_image_to_a_cluster_that_must_pull_it(
    dockerfile_task: Path, tools: Callable[..., Path], invoke: Invoke, cluster: object
) -> None:
    log = tools(docker="")
    result = invoke("run", dockerfile_task)
    assert result.exit_code == 0 and "its nodes must pull the image: the cluster builds it" in result.stderr
    assert invoke("run", dockerfile_task, "--image", "i:1").exit_code == 0
    assert not log.exists()
