"""Test which cluster is used: the one that CLUSTER names, one that exists, or a new one."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hack.tools import kubectl
from localkube import engines, targets
from localkube.config import Config, load_config
from localkube.engines import Buildah, Docker
from localkube.errors import Unsupported
from localkube.targets import Current, K3s, Kind, Local, choose

Program = Callable[[str, str], None]
NOTHING = "echo No kind clusters found. >&2"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Return the configuration of localkube's cluster 3, with root's rights and an empty PATH."""
    clients = kubectl().parent
    monkeypatch.setattr(targets, "ensure_clients", lambda _: clients)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return load_config({"LOCALKUBE_NUMBER": "3", "LOCALKUBE_DIR": f"{tmp_path}/run", "MULTISTEP_CACHE": f"{tmp_path}/cache"})


@pytest.fixture
def program(tmp_path: Path, config: Config) -> Program:
    """Return a function that puts a program, of which it gives the shell script, on the PATH."""

    def write(name: str, script: str) -> None:
        file = tmp_path / "bin" / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    return write


def kubeconfig(file: Path, server: str, context: str = "c") -> dict[str, str]:
    """Write a kubeconfig, and return the environment variable that names it."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "contexts": [{"name": context, "context": {"cluster": "x", "user": "u"}}],
        "clusters": [{"name": "other", "cluster": {"server": "https://other"}}, {"name": "x", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
    }
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(document))
    return {"KUBECONFIG": str(file)}


@pytest.mark.parametrize(("name", "kind"), [("local", Local), ("kind", Kind), ("k3s", K3s), ("current", Current)])
def test_the_variable_names_the_cluster_whatever_else_exists(config: Config, program: Program, name: str, kind: type) -> None:
    program("kind", "echo dev")
    assert isinstance(choose(config, {"CLUSTER": name, "KUBECONFIG": "/none"}), kind)


def test_an_unknown_cluster_is_refused(config: Config) -> None:
    with pytest.raises(Unsupported, match="CLUSTER=cloud is not known"):
        choose(config, {"CLUSTER": "cloud"})


@pytest.mark.parametrize("wanted", ["", "auto"])
def test_a_cluster_of_the_kubeconfig_is_used_without_asking_for_it(config: Config, tmp_path: Path, wanted: str) -> None:
    variables = kubeconfig(tmp_path / "k", "https://production:6443", "prod")
    chosen = choose(config, {"CLUSTER": wanted, **variables})
    assert isinstance(chosen, Current) and chosen.kubeconfig() == tmp_path / "k"


def test_the_user_is_told_which_cluster_is_used_and_how_to_choose_another(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    choose(config, kubeconfig(tmp_path / "k", "https://production:6443", "prod")).up()
    told = capsys.readouterr().err
    assert f"using the context prod of {tmp_path / 'k'}, https://production:6443; CLUSTER=local" in told


def test_localkubes_own_kubeconfig_means_its_cluster_even_if_the_cluster_was_stopped(config: Config) -> None:
    assert isinstance(choose(config, {"KUBECONFIG": str(config.paths.kubeconfig)}), Local)


def test_a_copy_of_localkubes_kubeconfig_means_its_cluster(config: Config, tmp_path: Path) -> None:
    variables = kubeconfig(tmp_path / "copy", config.network.api_url)
    assert isinstance(choose(config, variables), Local)


def test_another_cluster_of_localkube_needs_its_number_and_a_number_wins(config: Config, tmp_path: Path) -> None:
    variables = kubeconfig(tmp_path / "copy", "https://10.243.12.2:6443")
    with pytest.raises(Unsupported, match="KUBECONFIG names localkube's cluster 12: set LOCALKUBE_NUMBER=12"):
        choose(config, variables)
    assert isinstance(choose(config, {**variables, "LOCALKUBE_NUMBER": "3"}), Local)


def test_a_kind_cluster_of_the_kubeconfig_gets_its_images_from_kind(config: Config, program: Program, tmp_path: Path) -> None:
    variables = kubeconfig(tmp_path / "k", "https://127.0.0.1:1", "kind-mine")
    assert isinstance(choose(config, variables), Current)
    program("kind", NOTHING)
    chosen = choose(config, variables)
    assert isinstance(chosen, Kind) and chosen.name == "mine"


@pytest.mark.parametrize("content", [None, "{}"])
def test_a_kubeconfig_without_a_cluster_is_an_error_that_names_it(config: Config, tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "k"
    if content:
        file.write_text(content)
    with pytest.raises(Unsupported, match=f"the kubeconfig {file} (does not exist|has no current context).*CLUSTER=local"):
        choose(config, {"KUBECONFIG": str(file)})


@pytest.mark.parametrize(("clusters", "name"), [("dev\nother", "dev"), ("dev\nmultistep", "multistep")])
def test_a_cluster_of_kind_is_used_and_ours_comes_first(config: Config, program: Program, clusters: str, name: str) -> None:
    program("kind", f"printf '{clusters}'")
    chosen = choose(config, {})
    assert isinstance(chosen, Kind) and chosen.name == name


def test_a_cluster_of_kind_that_was_not_created_here_is_never_deleted(
    config: Config, program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program("kind", f'test "$1" = get && echo dev || touch {tmp_path}/deleted')
    choose(config, {}).down()
    assert not (tmp_path / "deleted").exists() and "dev: it was not created here" in capsys.readouterr().err


@pytest.mark.parametrize(("script", "kind"), [("exit 0", K3s), ("exit 1", Local)])
def test_k3s_is_used_if_its_server_answers(config: Config, program: Program, script: str, kind: type) -> None:
    program("kind", NOTHING)
    program("k3s", script)
    assert isinstance(choose(config, {}), kind)


@pytest.mark.parametrize(("docker", "kind"), [("exit 0", Kind), ("exit 1", Local)])
def test_without_a_cluster_a_working_engine_decides(config: Config, program: Program, docker: str, kind: type) -> None:
    program("docker", docker)
    program("kind", NOTHING)
    assert isinstance(choose(config, {}), kind)


def test_tests_never_use_a_cluster_that_merely_exists(config: Config, program: Program, tmp_path: Path) -> None:
    program("kind", "echo dev")
    assert isinstance(choose(config, {"CLUSTER": "own", **kubeconfig(tmp_path / "k", "https://production")}), Local)


@pytest.mark.parametrize(("docker", "engine"), [("exit 0", Docker), ("exit 1", Buildah)])
def test_images_for_a_cluster_with_a_registry_are_built_by_docker_or_else_by_buildah(
    config: Config, program: Program, docker: str, engine: type
) -> None:
    program("docker", docker)
    assert isinstance(engines.find_engine(config), engine)


def test_k3s_gets_an_image_as_an_archive(config: Config, program: Program, tmp_path: Path) -> None:
    program("buildah", f'echo "$@" >> {tmp_path}/calls')
    program("k3s", f'echo "$@" >> {tmp_path}/calls')
    K3s(config).load("localhost/x:1")
    saved, imported = (tmp_path / "calls").read_text().splitlines()
    archive = imported.removeprefix("ctr images import ")
    assert saved == f"push --quiet localhost/x:1 docker-archive:{archive}:localhost/x:1"
