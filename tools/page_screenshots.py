"""Takes the pictures of the page for docs/page.md, in a headless Chromium.

python tools/page_screenshots.py                   the real server over made-up clusters: empty, large, with faults
python tools/page_screenshots.py --live ADDRESS    a real cluster with a pod that waits, such as that of `make demo`
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "operator"), str(ROOT / "tests")]

from aiohttp import web  # noqa: E402
from playwright.async_api import Browser, Page, async_playwright  # noqa: E402

from fakes.usage import measure_demo  # noqa: E402
from fakes.view_cluster import ViewCluster, demo, teams, with_reports  # noqa: E402
from gpuledger.controller.web.view_server import Access, LocalAccess, ViewServer  # noqa: E402

IMAGES = ROOT / "docs" / "images"
NARROW = (360, 780)
WIDE = (1280, 720)
TALL = (390, 1240)
LOW = (1280, 620)
"""As high as a card's details need: this picture is the first that readers of README.md see."""


def chromium() -> str | None:
    """Return the program of an installed Chromium, None if there is none."""
    return next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )


@asynccontextmanager
async def served(cluster: ViewCluster, access: Access | None = None, port: int = 0) -> AsyncIterator[str]:
    """Serve a cluster on a port of this machine, 0 for any that is free; yield the address."""
    runner = web.AppRunner(ViewServer(cluster.source, access or LocalAccess()).application(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def opened(
    browser: Browser, cluster: ViewCluster, size: tuple[int, int], query: str = "", **more: Any
) -> AsyncIterator[Page]:
    """Open the page of a cluster; yield it when it is drawn and live."""
    async with served(cluster) as address:
        page = await browser.new_page(viewport={"width": size[0], "height": size[1]}, **more)
        await page.goto(address + query)
        await page.wait_for_selector("#state[data-kind=live]")
        yield page
        await page.close()


async def shoot(page: Page, name: str) -> None:
    """Take a picture."""
    file = IMAGES / f"page-{name}.png"
    await page.screenshot(path=file, animations="disabled")
    print(f"{file.relative_to(ROOT)}: {file.stat().st_size // 1024} kB")


def large() -> ViewCluster:
    """Return a thousand nodes of two models."""
    cluster = ViewCluster()
    cards = cluster.add_nodes(700) + cluster.add_nodes(300, model="H100-80GB", prefix="h100-node")
    cluster.fill(cards)
    for number, (text, nodes) in enumerate(
        [("no card with 30000 MiB free", 1000), ("no 8 cards entirely free", 996)], 1
    ):
        cluster.wait(
            "research",
            f"train-{number}",
            "8 cards, whole" if number > 1 else "1 x 30000 MiB",
            [("no-memory", text, nodes)],
        )
    return cluster


def broken() -> ViewCluster:
    """Return the demo's cluster after a card has failed."""
    cluster = demo()
    entry = cluster.ledger.entries_of_node("gpu-node-1")[4]
    cluster.put(entry.card, *entry.holders.values(), phase="Unhealthy", reason="Xid 79: the GPU has fallen off the bus")
    return cluster


def measured() -> ViewCluster:
    """Return the demo's cluster, with what the agents of two nodes say."""
    cluster = demo()
    measure_demo(cluster)
    return cluster


async def take_all(browser: Browser) -> None:
    """Take every picture."""
    async with opened(browser, ViewCluster(), WIDE) as page:
        await shoot(page, "empty")
    async with opened(browser, broken(), WIDE) as page:
        await page.click('.card[aria-label*="unhealthy"]')
        await shoot(page, "unhealthy")
    async with opened(browser, measured(), WIDE) as page:
        await page.select_option("#usage", "300")
        await page.click('.card[aria-label*="held and idle"]')
        await page.locator("#details .uses").scroll_into_view_if_needed()
        await shoot(page, "usage")
    async with opened(browser, with_reports(demo()), WIDE, "?view=reports") as page:
        await page.wait_for_selector(".chart")
        await shoot(page, "reports")
    async with opened(browser, large(), WIDE) as page:
        await shoot(page, "large")
    async with opened(browser, demo(), NARROW, has_touch=True, is_mobile=True) as page:
        await shoot(page, "narrow")
    two = "?filter=ns:team-a,team-b"
    async with opened(browser, teams(), TALL, two, has_touch=True, is_mobile=True, color_scheme="dark") as page:
        await shoot(page, "team")


async def take_live(browser: Browser, address: str) -> None:
    """Take the pictures of a real cluster."""
    for scheme in ("light", "dark"):
        page = await browser.new_page(viewport={"width": LOW[0], "height": LOW[1]}, color_scheme=scheme)
        await page.goto(address)
        await page.wait_for_selector("#state[data-kind=live]")
        if scheme == "dark":
            await page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
            await page.click("#tab-history")
            await page.wait_for_selector("#history li")
            await shoot(page, "dark")
            continue
        await page.click('.card[aria-label^="GPU 0 of gpu-node-1:"]')
        await shoot(page, "demo")
        await page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
        await page.click("#tab-waiting")
        await page.click(".pod:first-child")
        await page.wait_for_selector("#details details")
        await shoot(page, "waiting")


async def main(arguments: Sequence[str]) -> int:
    """Take the pictures with the Chromium of this machine."""
    program = chromium()
    if program is None:
        print("there is no Chromium here: apt install chromium", file=sys.stderr)
        return 1
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        if arguments[:1] == ["--live"]:
            await take_live(browser, arguments[1])
        else:
            await take_all(browser)
        await browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
