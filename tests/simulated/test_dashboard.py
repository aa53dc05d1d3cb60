"""`multistep dashboard` in a real browser: a trial's progress, output and reward appear while it runs, at three widths."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from playwright.async_api import Page, expect

from tests.e2e.browser import chromium, opened, overflow, walk
from tests.e2e.given import DEADLINE_SECONDS, in_agent
from tests.simulated.given import HOLD, Given, Step, trial

SOLVE = f"print <b>half way</b>\n{HOLD}\nprint arrived"


@asynccontextmanager
async def dashboard(namespace: str) -> AsyncIterator[str]:
    """Run `multistep dashboard` for a namespace, and yield the URL that it prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "multistep.cli", "dashboard", "--no-browser", "-n", namespace), stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        line = (await asyncio.wait_for(process.stderr.readline(), DEADLINE_SECONDS)).decode()
        before, _, url = line.strip().partition(": ")
        assert before == f"dashboard of namespace {namespace}", line
        yield url
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def row(page: Page, name: str) -> str:
    return f"#trial-rows tr:has(button:text-is('{name}'))"


async def test_progress_output_and_reward_appear_as_they_come(given: Given, tmp_path: Path) -> None:
    await given.applied(trial(Step("first", solve=SOLVE), Step("second"), name="seen"))
    await given.until("seen", in_agent)
    async with dashboard(given.namespace) as url, chromium() as browser:
        page, complaints = await opened(browser, url, width=1280, height=900, dark=False)
        await expect(page.locator(row(page, "seen"))).to_contain_text("1/2 first")
        await page.get_by_role("button", name="seen", exact=True).click()
        await expect(page.locator("#output")).to_contain_text("<b>half way</b>")
        await page.screenshot(path=tmp_path / "running.png")
        await given.go("seen")
        await expect(page.locator("#output")).to_contain_text("arrived")
        await expect(page.locator("#step-rows")).to_contain_text("second")
        await page.get_by_role("button", name="Close").click()
        await expect(page.locator(row(page, "seen"))).to_contain_text("passed")
        await given.applied(trial(Step("only"), name="later"))
        await expect(page.locator(row(page, "later"))).to_contain_text("passed")
        await page.get_by_label("Search").fill("later")
        await expect(page.locator("#count")).to_have_text("1 of 2 trials")
        await page.screenshot(path=tmp_path / "complete.png")
        assert "BUTTON later" in await walk(page)
        for width, dark in ((800, True), (390, True)):
            other, found = await opened(browser, url, width=width, height=800, dark=dark)
            await expect(other.locator(row(other, "seen"))).to_contain_text("passed")
            assert await overflow(other) == 0
            await other.screenshot(path=tmp_path / f"{width}.png")
            complaints += found
        # Chromium reports a failed load of /logs: the page cancels the request for a trial's output when the trial is closed.
        assert [each for each in complaints if not each.endswith("/logs")] == []
