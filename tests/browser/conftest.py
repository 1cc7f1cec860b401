"""The page in a real browser. These tests are skipped, with the reason, where there is none; with CI=true they fail."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright

from page_screenshots import chromium
from requirements import require

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    own = [item for item in items if item.path.is_relative_to(HERE)]
    for item in own:
        item.add_marker(pytest.mark.browser)
        item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)  # they share a browser


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def program() -> AsyncIterator[Browser]:
    """Yield a browser without a window, which all tests share."""
    path = chromium()
    require(
        "the page is looked at in a browser", "" if path else "there is no Chromium (on Debian: apt install chromium)"
    )
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # as root it has none
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=sandbox)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def browser(program: Browser) -> AsyncIterator[Browser]:
    """Yield the browser, as if it were new."""
    yield program
    for context in program.contexts:
        await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """Yield a tab. Whatever the browser complains of fails the test: errors of scripts, and what the policy forbids."""
    page = await browser.new_page(viewport={"width": 1280, "height": 720})
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console", lambda message: complaints.append(message.text) if is_complaint(message.type, message.text) else None
    )
    yield page
    assert complaints == []


def is_complaint(kind: str, text: str) -> bool:
    """Return whether it is one. Answers like 401, and a server that is away, are logged by the browser itself."""
    return kind in ("error", "warning") and not text.startswith("Failed to load resource")
