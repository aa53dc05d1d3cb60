"""Check a page in Chromium: its errors, its width, and its use by keyboard alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, Page, ViewportSize, async_playwright, expect

from tests.e2e.given import DEADLINE_SECONDS

CHROMIUM = "/usr/bin/chromium"
_TIMEOUT_MILLISECONDS = DEADLINE_SECONDS * 1000
expect.set_options(timeout=_TIMEOUT_MILLISECONDS)
_FLAGS = (  # let Chromium run as root, and keep it from sending requests of its own
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_FOCUSED = """() => {
    const found = document.activeElement;
    if (found === document.body) return "";
    const name = found.getAttribute("aria-label") || found.textContent;
    return `${found.tagName} ${name.trim().slice(0, 40)}`;
}"""


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Yield a Chromium with a fresh profile."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=_FLAGS, timeout=_TIMEOUT_MILLISECONDS)
        yield browser
        await browser.close()


async def opened(browser: Browser, url: str, *, width: int, height: int, dark: bool) -> tuple[Page, list[str]]:
    """Open a page; return the page and the list of its console messages, uncaught exceptions and failed loads."""
    size = ViewportSize(width=width, height=height)
    context = await browser.new_context(viewport=size, color_scheme="dark" if dark else "light")
    context.set_default_timeout(_TIMEOUT_MILLISECONDS)
    page, complaints = await context.new_page(), list[str]()
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(f"not loaded: {request.url}"))
    await page.goto(url)
    return page, complaints


async def walk(page: Page, most: int = 500) -> list[str]:
    """Press Tab until the focus leaves the page, and return the focused elements in order."""
    found: list[str] = []
    for _ in range(most):
        await page.keyboard.press("Tab")
        focused = str(await page.evaluate(_FOCUSED))
        if not focused:
            return found
        found.append(focused)
    raise AssertionError(f"the focus never left the page: {found[-5:]}")


async def overflow(page: Page) -> int:
    """Return the number of pixels by which the page is wider than its window."""
    return int(await page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))
