"""Take the documents' screenshots of the report and the dashboard in a real browser. SCREENSHOTS=1 stores them in docs/images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from hack.paths import ROOT
from multistep.kube.resources import SWEEPS
from tests.e2e.browser import chromium, opened, overflow
from tests.e2e.given import DEADLINE_SECONDS, in_agent
from tests.e2e.test_cli import multistep
from tests.simulated.given import HOLD, Given, Step, reward, trial
from tests.simulated.test_dashboard import dashboard, row

pytestmark = pytest.mark.long

IMAGES = ROOT / "docs" / "images"
MAX_BYTES = 150_000
_STEPS = {"parse-dates": ("reproduce", "fix", "document"), "cache-pages": ("measure", "cache"), "rename-module": ("rename", "test")}
_PATCH = "print Do the step.\nwrite /tmp/patch done"  # what the agent `patch` does in each step
# The first step is solved by any agent that runs; each later one needs the patch.
_TEST = "reward-if /tmp/patch done"


def _task(name: str) -> dict[str, Any]:
    first, *later = _STEPS[name]
    steps = [Step(first, test=reward(1)), *(Step(each, test=_TEST, config={"min_reward": 1.0}) for each in later)]
    files = {path: text for step in steps for path, text in step.files().items()}
    config = {"steps": [{"name": step.name, **step.config} for step in steps]}
    return {"name": name, "inline": {"config": config, "files": files}}


def _sweep() -> dict[str, Any]:
    patch = {"name": "command", "command": [_PATCH]}
    agents = [{"name": "patch", "agent": patch}, {"name": "idle", "agent": {"name": "nop"}}]
    return {
        "apiVersion": SWEEPS.api_version,
        "kind": SWEEPS.kind,
        "metadata": {"name": "nightly"},
        "spec": {
            "tasks": [_task(name) for name in _STEPS],
            "agents": agents,
            "attempts": 2,
            "parallelism": 6,
        },
    }


async def _keep(page: Page, name: str, scratch: Path) -> None:
    """Check that the page fits into its window, and store a screenshot. docs/images changes only if SCREENSHOTS is set."""
    assert await overflow(page) <= 0
    file = (IMAGES if os.environ.get("SCREENSHOTS") else scratch) / name
    await page.screenshot(path=file, animations="disabled")
    assert file.stat().st_size < MAX_BYTES
    assert (IMAGES / name).stat().st_size < MAX_BYTES


async def test_report_and_dashboard_look_as_the_documents_show_them(given: Given, tmp_path: Path) -> None:
    await given.applied(_sweep())
    code, _, err = await multistep("sweep", "status", "nightly", "-n", given.namespace, "--follow")
    assert code == 0, err
    report = tmp_path / "nightly.html"
    code, _, err = await multistep("sweep", "report", "nightly", "-n", given.namespace, "-o", str(report))
    assert code == 0, err
    fix = Step("fix", solve=f"print reading parser.py\nprint running 14 tests\n{HOLD}")
    await given.applied(trial(Step("reproduce"), fix, Step("document"), name="parse-dates-rerun"))
    await given.until("parse-dates-rerun", lambda obj: in_agent(obj) and len(obj["status"]["steps"]) == 2)
    async with chromium() as browser, dashboard(given.namespace) as url:
        page, complaints = await opened(browser, report.as_uri(), width=1280, height=900, dark=False)
        assert await page.title() == "Sweep nightly"
        await expect(page.locator("#agents")).to_contain_text("patch")
        await _keep(page, "report.png", tmp_path)
        assert complaints == []
        page, complaints = await opened(browser, url, width=1280, height=700, dark=False)
        await expect(page.locator(row(page, "parse-dates-rerun"))).to_contain_text("2/3 fix", timeout=DEADLINE_SECONDS * 1000)
        await _keep(page, "dashboard.png", tmp_path)
        await page.get_by_role("button", name="parse-dates-rerun", exact=True).click()
        await expect(page.locator("#output")).to_contain_text("running 14 tests", timeout=DEADLINE_SECONDS * 1000)
        await _keep(page, "trial.png", tmp_path)
        assert complaints == []
