"""Test `multistep agent`: the list of agents, the images of their programs, and the choice of an image for a trial."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from multistep.api.trial import harbor_agents
from multistep.api.trial.agent_spec import AgentSpec
from multistep.cli.image.agent_programs import PROGRAMS, files_of
from multistep.client.options import ModelOptions
from multistep.client.submit.agent_choice import agent_entry, check_images, check_keys
from multistep.client.submit.sweep_manifest import SweepOptions, sweep_of_source
from multistep.errors import UsageError

from .conftest import Invoke


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Put a fake docker into PATH. Return a function that returns docker's calls and the lines of the built Dockerfile."""
    program, log = tmp_path / "bin" / "docker", tmp_path / "calls"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$*" >> {log}\n[ "$1" = build ] && while read -r line; do echo "$line"; done < "$5" >> {log}\nexit 0\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    return lambda: log.read_text().splitlines()


def test_the_list_has_all_agents_and_what_each_can_do(invoke: Invoke) -> None:
    listed = json.loads(invoke("agent", "list", "-o", "json").stdout)
    assert [each["name"] for each in listed] == list(harbor_agents.NAMES)
    codex = {"name": "codex", "resume": True, "access": "Gateway", "image": PROGRAMS["codex"].version}
    assert codex in listed and {"name": "devin", "resume": False, "access": "Direct", "image": None} in listed
    table = invoke("agent", "list").stdout
    assert "claude-code" in table and "RESUME  the agent can continue its trajectory" in table


def test_an_image_is_built_of_the_version_asked_for(invoke: Invoke, docker: Callable[[], list[str]]) -> None:
    result = invoke("agent", "build", "claude-code@2.1.197")
    assert result.stdout == "localhost/multistep/agent-claude-code:2.1.197\n" and "only on this machine" in result.stderr
    assert any("--prefix /multistep-agent/installed @anthropic-ai/claude-code@2.1.197" in line for line in docker())


def test_an_image_is_pushed_to_the_registry_in_its_name(invoke: Invoke, docker: Callable[[], list[str]]) -> None:
    result = invoke("agent", "build", "codex", "-t", "registry.example/codex:1", "--push", "-o", "json")
    version = PROGRAMS["codex"].version
    assert json.loads(result.stdout) == {
        **{"agent": "codex", "version": version, "image": "registry.example/codex:1"},
        **{"pushed": True, "loaded": False, "engine": "docker"},
    }
    assert docker()[-1] == "push registry.example/codex:1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("claud-code",), "claud-code: no such agent; did you mean 'claude-code'?"),
        (("nope",), "nope: no such agent; `multistep agent list` lists all\n"),
        (("oracle",), "oracle: has no program of its own, so it needs no image\n"),
        (("terminus-2",), "terminus-2: no image can be built of it, only of claude-code, codex,"),
        (("codex", "--push"), "has no registry in its name"),
        (("fabric",), "fabric: not available: it cannot be installed with Harbor 0.26"),
    ],
)
def test_what_cannot_be_built_is_named(arguments: tuple[str, ...], message: str, invoke: Invoke) -> None:
    result = invoke("agent", "build", *arguments)
    assert result.exit_code == 2 and message in result.stderr


def locked_harbor() -> str:
    """Return Harbor's version in the lock of the agent host."""
    lock = Path("agent-host/requirements/host.lock").read_text()
    return lock.partition("\nharbor==")[2].split()[0]


def test_an_agent_host_is_built_with_the_locked_harbor(invoke: Invoke, docker: Callable[[], list[str]]) -> None:
    result = invoke("agent", "host", "build", "--source", ".")
    assert result.stdout == f"localhost/multistep/agent-host:harbor-{locked_harbor()}\n", result.stderr
    lines = docker()
    assert [line.split()[-1] for line in lines if line.startswith("build --tag")] == [str(Path.cwd())]
    assert "ARG HARBOR=" in lines


def test_an_agent_host_is_built_with_the_harbor_asked_for(invoke: Invoke, docker: Callable[[], list[str]]) -> None:
    options = ("--harbor", "0.26.7", "-t", "registry.example/host:1", "--push", "-o", "json")
    result = invoke("agent", "host", "build", "--source", ".", *options)
    assert json.loads(result.stdout) == {
        **{"harbor": "0.26.7", "locked": False, "image": "registry.example/host:1"},
        **{"pushed": True, "loaded": False, "engine": "docker"},
    }
    assert "ARG HARBOR=0.26.7" in docker() and docker()[-1] == "push registry.example/host:1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--source", ".", "--harbor", "0.25.0"), "--harbor: the agent host needs Harbor 0.26 or newer, not 0.25.0"),
        (("--source", ".", "--harbor", "0.26.0 evil"), "--harbor: must be a version such as 0.26.0, not '0.26.0 evil'"),
        (("--source", "docs"), "docs has no agent-host/Dockerfile: name a checkout of Multistep with --source"),
        (("--source", ".", "--push"), "has no registry in its name"),
        ((), "this installation has no agent-host/Dockerfile"),
    ],
)
def test_an_agent_host_that_cannot_be_built_is_refused(arguments: tuple[str, ...], message: str, invoke: Invoke) -> None:
    result = invoke("agent", "host", "build", *arguments)
    assert result.exit_code == 2 and message in result.stderr


def test_a_launcher_starts_scripts_with_the_images_node_and_native_programs_directly(tmp_path: Path) -> None:
    root = tmp_path / "multistep-agent"
    for name, text in (("script.js", "#!/usr/bin/env node\n"), ("native", "\x7fELF")):
        (root / "installed/lib").mkdir(parents=True, exist_ok=True)
        (root / "installed/lib" / name).write_text(text)
    (root / "installed/bin").mkdir()
    (root / "node").mkdir()
    script, native = root / "installed/bin/script", root / "installed/bin/native"
    native.symlink_to("../lib/native")
    launch(root)
    assert (root / "bin/native").read_text() == f'#!/bin/sh\nexec {root}/installed/lib/native "$@"\n'
    assert not (root / "node").exists()  # no program needs Node.js
    (root / "node").mkdir()
    script.symlink_to("../lib/script.js")
    launch(root)
    assert (root / "bin/script").read_text() == f'#!/bin/sh\nexec {root}/node/bin/node {root}/installed/lib/script.js "$@"\n'
    assert (root / "node").exists() and (root / "bin/script").stat().st_mode & 0o111 == 0o111


def launch(root: Path) -> None:
    """Run the script that writes the launchers in an image build, with ``root`` instead of /multistep-agent."""
    script = files_of(PROGRAMS["codex"])["launchers.py"].replace("/multistep-agent", str(root))
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_trial_gets_the_image_of_its_agent() -> None:
    options = ModelOptions(model="openai/gpt-5", images=("codex=registry.example/codex:1", "registry.example/all:1"))
    assert agent_entry("codex", options)["image"] == "registry.example/codex:1"
    assert agent_entry("claude-code", options)["image"] == "registry.example/all:1"
    assert "image" not in agent_entry("codex", ModelOptions(model="openai/gpt-5"))


def test_an_agent_of_a_sweep_gets_its_image_by_the_name_that_the_sweep_gives_it() -> None:
    agents = ("new=codex@openai/gpt-5", "old=codex@openai/gpt-5", "codex@openai/gpt-5-mini")
    options = SweepOptions("s", agents=agents, model=ModelOptions(images=("new=x:2", "codex=x:1"), keys=("keys:openai",)))
    made = sweep_of_source({"git": {"url": "https://x/y", "ref": "main"}}, None, options).main
    assert [each["agent"]["image"] for each in made["spec"]["agents"]] == ["x:2", "x:1", "x:1"]


@pytest.mark.parametrize(
    ("agents", "image"),
    [
        (["mine=python solve.py"], "mine=x:1"),  # a command has no image of a program
        (["codex@openai/gpt-5"], "other=x:1"),
        (["codex=claude-code@anthropic/claude-sonnet-4-5", "new=codex@openai/gpt-5"], "codex=x:1"),  # would be the image of both
    ],
)
def test_an_image_for_no_agent_or_for_two_of_a_sweep_is_an_error(agents: list[str], image: str) -> None:
    keys = ("OPENAI_API_KEY=keys:openai", "ANTHROPIC_API_KEY=keys:anthropic")
    options = SweepOptions("s", agents=(*agents, "old=codex@openai/gpt-5"), model=ModelOptions(images=(image,), keys=keys))
    with pytest.raises(UsageError, match="--agent-image"):
        sweep_of_source({"git": {"url": "https://x/y", "ref": "main"}}, None, options)


@pytest.mark.parametrize("image", ["claude=registry.example/x:1", "codex="])
def test_an_image_for_an_agent_that_is_not_chosen_is_an_error(image: str) -> None:
    entries = [{"name": "codex"}, {"importPath": "a:B"}]
    with pytest.raises(UsageError, match="must be IMAGE or AGENT=IMAGE, where AGENT is one of a:B, codex"):
        check_images(ModelOptions(images=(image,)), entries)
    check_images(ModelOptions(images=("codex=x:1", "a:B=y:1", "z:1")), entries)


@pytest.mark.parametrize("keys", [("keys:anthropic",), ("keys:anthropic", "keys:openai")])
def test_a_key_of_agents_with_several_providers_needs_the_name_of_its_variable(keys: tuple[str, ...]) -> None:
    """Without the variable's name, one provider could get the other provider's key."""
    entries = [{"name": "claude-code", "model": "anthropic/m"}, {"name": "codex", "model": "openai/m"}, {"name": "oracle"}]
    with pytest.raises(UsageError, match="Name its variable: ANTHROPIC_API_KEY=SECRET:KEY and OPENAI_API_KEY=SECRET:KEY"):
        check_keys(ModelOptions(keys=keys), entries)
    check_keys(ModelOptions(keys=keys[:1]), [entries[0], entries[0], entries[2]])
    check_keys(ModelOptions(keys=("ANTHROPIC_API_KEY=keys:anthropic", "OPENAI_API_KEY=keys:openai")), entries)


def test_two_keys_of_one_agent_need_their_variables() -> None:
    with pytest.raises(UsageError, match="Name its variable: OPENAI_API_KEY=SECRET:KEY"):
        check_keys(ModelOptions(keys=("a:b", "c:d")), [{"name": "codex", "model": "openai/m"}])


@pytest.mark.parametrize("command", ["run", "package"])
def test_an_agent_that_cannot_resume_is_refused_before_anything_is_built(command: str, invoke: Invoke) -> None:
    agent = ("--agent", "mini-swe-agent", "--model", "openai/gpt-5", "--access", "direct", "--resume")
    result = invoke(command, "examples/hello-multi-step-advanced", *agent)
    assert result.exit_code == 2 and "mini-swe-agent cannot resume a trajectory" in result.stderr


@pytest.mark.parametrize("command", ["run", "package"])
def test_an_agent_without_a_key_is_refused_before_anything_is_built(command: str, invoke: Invoke) -> None:
    """Without the key, all trials of the agent would score 0."""
    result = invoke(command, "examples/hello-multi-step-advanced", "--agent", "codex", "--model", "openai/gpt-5")
    assert result.exit_code == 2 and "credentials must hold the provider's key (--key-from-secret)" in result.stderr


def test_an_agent_with_direct_access_needs_no_key() -> None:
    entry = agent_entry("codex", ModelOptions(model="openai/gpt-5", access="Direct"))
    assert AgentSpec.model_validate(entry).access == "Direct"


def test_a_sweep_resumes_trajectories_if_all_its_agents_can(invoke: Invoke) -> None:
    agents = ("codex@openai/gpt-5", "mine=aider@openai/gpt-5")
    options = SweepOptions("s", agents=agents, resume=True, model=ModelOptions(keys=("keys:openai",)))
    planned = sweep_of_source({"git": {"url": "https://x/y", "ref": "main"}}, None, options)
    assert planned.main["spec"]["template"]["spec"]["resumeTrajectory"] is True
    given = (*(part for each in (*agents, "slim=terminus-2@openai/gpt-5", "oracle") for part in ("--agent", each)), "--resume")
    result = invoke("sweep", "run", "examples/hello-multi-step-advanced", *given, "--key-from-secret", "keys:openai")
    assert result.exit_code == 2 and "--resume: slim, oracle cannot resume a trajectory" in result.stderr


def test_resume_applies_to_no_file_of_a_sweep(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text("kind: TrialSweep\n")
    result = invoke("sweep", "run", str(tmp_path / "sweep.yaml"), "--resume")
    assert result.exit_code == 2 and "--resume applies to directories of tasks only" in result.stderr
