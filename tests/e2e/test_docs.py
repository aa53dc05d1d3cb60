"""Run every command of README.md and docs/ as it is written, page by page (docs/internals/development.md, Documents)."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from hack.paths import CACHE
from multistep.client.reconnecting_watch import WatchingClient
from tests.docs import pages
from tests.docs.pages import Page
from tests.docs.shell import Shell

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("docs")]  # one worker runs all pages

SIDE_BY_SIDE = 4
_COPIED = ("Makefile", "Dockerfile", "README.md", "pyproject.toml", ".dockerignore")
_COPIED_TREES = (
    "agent-host",
    "builder",
    "charts",
    "compose",
    "crds",
    "docs",
    "egress",
    "examples",
    "hack",
    "localkube",
    "operator",
    "requirements",
    "runner",
    "skills",
    "tests/support",  # the scripted model of `make demo AGENT=...`
)
PATHS = {str(path.relative_to(pages.ROOT)): path for path in pages.paths()}


@dataclass
class Outcome:
    """The number of commands of a page that ran, and the problems found in them."""

    run: int = 0
    problems: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Run all selected pages concurrently, each page's commands in order; return the pages' outcomes by name."""
    wanted = {
        item.callspec.params.get("name")
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
    }
    return asyncio.run(
        _run_pages([pages.read(path) for name, path in PATHS.items() if name in wanted], tmp_path_factory.mktemp("docs"))
    )


@pytest.mark.parametrize("name", PATHS)
def test_every_command_of_the_page_does_what_the_page_shows(name: str, outcomes: Mapping[str, Outcome]) -> None:
    outcome = outcomes[name]
    assert outcome.problems == [], "\n\n".join(outcome.problems)
    assert outcome.run == len(pages.read(PATHS[name]).commands)


def test_what_does_not_run_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    found = [pages.read(path) for path in PATHS.values()]
    with capsys.disabled():
        print(f"\ndocuments: {sum(len(page.commands) for page in found)} commands on {len(found)} pages are run; not run:")
        for page in found:
            for each in page.not_run:
                print(f"  {page.name}:{each.line}: {each.reason}")
    assert any(page.commands for page in found)


async def _run_pages(found: Iterable[Page], scratch: Path) -> dict[str, Outcome]:
    turns, outcomes = asyncio.Semaphore(SIDE_BY_SIDE), {}

    async def one(page: Page) -> None:
        async with turns:
            outcomes[page.name] = await _run_page(page, scratch)

    async with asyncio.TaskGroup() as group:
        for page in found:
            group.create_task(one(page))
    return outcomes


async def _run_page(page: Page, scratch: Path) -> Outcome:
    outcome = Outcome()
    if not page.commands:
        return outcome
    async with _reader(scratch / page.name.replace("/", "-")) as shell:
        for command in page.commands:
            code, printed = await shell.run(command.text)
            outcome.run += 1
            if code != command.exit_code:
                ended = "did not end in time, or ended the shell" if code is None else f"ended with {code}"
                outcome.problems.append(f"{page.name}:{command.line}: {ended}, not {command.exit_code}:\n{command.text}\n{printed}")
                break  # later commands depend on this one
            if command.output is not None and (problem := pages.output_problem(command.output, printed)):
                outcome.problems.append(f"{page.name}:{command.line}: {problem}")
    return outcome


@asynccontextmanager
async def _reader(scratch: Path) -> AsyncIterator[Shell]:
    """Yield a shell in a copy of the checkout, with a kubeconfig whose default namespace is a new one."""
    namespace = f"docs-{secrets.token_hex(4)}"
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    workdir = scratch / "multistep"
    await asyncio.to_thread(_copy_checkout, workdir)
    kubeconfig = _kubeconfig(scratch, namespace)
    env = os.environ | {"HOME": str(scratch), "KUBECONFIG": str(kubeconfig), "MULTISTEP_CACHE": str(CACHE), "NAMESPACE": namespace}
    async with await WatchingClient.connect() as client:
        await client.create(manifest)
        shell = await Shell.start(workdir, scratch, env, kubeconfig)
        try:
            yield shell
        finally:
            await shell.end()
            await client.delete(await client.resource_of(manifest), None, namespace)


def _copy_checkout(workdir: Path) -> None:
    workdir.mkdir(parents=True)
    for name in _COPIED:
        shutil.copy2(pages.ROOT / name, workdir / name)
    for name in _COPIED_TREES:
        shutil.copytree(pages.ROOT / name, workdir / name, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)


def _kubeconfig(scratch: Path, namespace: str) -> Path:
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    for context in config["contexts"]:
        context["context"]["namespace"] = namespace
    file = scratch / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    return file
