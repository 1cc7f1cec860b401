"""The page on a telephone, and with 5,000 cards: it fits, a finger hits it, a change costs what has changed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from playwright.async_api import Browser, Page, ViewportSize, expect

from fakes.view_cluster import ViewCluster, demo, explanation
from page_screenshots import broken, served

PHONES = {"small": ViewportSize(width=320, height=640), "usual": ViewportSize(width=390, height=844)}
FINGER_PX = 40
CELL_PX = 32
"""How wide a card is at least: eight stand in a line of 320."""

SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
TOO_SMALL = """
limit => [...document.querySelectorAll("button, select, input, summary, a")]
  .filter(each => each.checkVisibility() && !each.matches(".skip"))
  .filter(each => each.getBoundingClientRect().height < limit)
  .map(each => `${each.outerHTML.slice(0, 80)} ${each.getBoundingClientRect().height}`)
"""
CELLS = """
width => [...document.querySelectorAll(".card")].filter(each => each.checkVisibility())
  .map(each => each.getBoundingClientRect()).map(box => [box.width, box.height, width - box.right])
"""
COUNT_CHANGES = """
() => {
  window.changes = 0;
  new MutationObserver(records => { window.changes += records.length; })
    .observe(document.getElementById("map"), { subtree: true, childList: true, attributes: true, characterData: true });
}
"""


def five_thousand() -> ViewCluster:
    """Return 625 nodes with eight cards each, and pods that wait."""
    cluster = ViewCluster()
    cards = cluster.add_nodes(625)
    cluster.fill(cards)
    for number in range(48):
        name = f"train-of-a-language-model-with-a-long-name-{number}"
        cluster.wait("research", name, "1 x 30000 MiB", [("no-memory", "no card with 30000 MiB free", 625)])
        cluster.explanations[f"research/{name}"] = explanation(cards, name)
    return cluster


@asynccontextmanager
async def on_a_phone(
    browser: Browser,
    cluster: ViewCluster,
    size: ViewportSize,
    scheme: Literal["light", "dark"] = "light",
    query: str = "",
) -> AsyncIterator[Page]:
    """Open the page on a touch screen of that size."""
    page = await browser.new_page(viewport=size, has_touch=True, is_mobile=True, color_scheme=scheme)
    async with served(cluster) as address:
        await page.goto(address + query)
        await expect(page.locator("#state")).to_have_attribute("data-kind", "live")
        yield page


async def every_part(page: Page) -> AsyncIterator[str]:
    """Show one part of the page after the other; yield its name when it is there."""
    await expect(page.locator(".card").first).to_be_visible()
    yield "map"
    await page.locator(".card").first.tap()
    yield "card"
    await page.locator("#tab-waiting").tap()
    yield "waiting"
    await page.locator(".pod").first.tap()
    await page.locator("#details summary").first.wait_for()
    yield "pod"
    await page.locator("#tab-history").tap()
    yield "history"
    await page.locator("#view").select_option("table")
    yield "table"


@pytest.mark.parametrize(("phone", "scheme"), [("small", "light"), ("small", "dark"), ("usual", "dark")])
@pytest.mark.parametrize("cluster", [broken, five_thousand], ids=["demo", "5000 cards"])
async def test_nothing_needs_scrolling_sideways_or_a_small_finger(
    browser: Browser, cluster: Any, phone: str, scheme: Literal["light", "dark"]
) -> None:
    size = PHONES[phone]
    async with on_a_phone(browser, cluster(), size, scheme) as page:
        seen = []
        async for part in every_part(page):
            seen.append(part)
            assert await page.evaluate(SIDEWAYS) == 0, part
            assert await page.evaluate(TOO_SMALL, FINGER_PX) == [], part
            for width, height, beside in await page.evaluate(CELLS, size["width"]):
                assert width >= CELL_PX
                assert height >= FINGER_PX
                assert beside >= 0
        assert seen == ["map", "card", "waiting", "pod", "history", "table"]


@pytest.mark.parametrize("cluster", [demo, five_thousand], ids=["demo", "5000 cards"])
async def test_what_is_chosen_begins_at_the_top_of_the_screen_and_one_tap_leads_back(
    browser: Browser, cluster: Any
) -> None:
    async with on_a_phone(browser, cluster(), PHONES["small"]) as page:
        await page.locator('.card[aria-label^="GPU 3 of gpu-node-3:"]').tap()
        heading = page.get_by_role("heading", name="GPU 3 of gpu-node-3")
        await expect(heading).to_be_in_viewport()
        box = await heading.bounding_box()
        assert box
        assert box["y"] < 100
        await page.get_by_role("button", name="Map", exact=True).tap()
        await expect(page.locator('.card[aria-selected="true"]')).to_be_in_viewport()
        await page.get_by_role("button", name="pod").first.tap()  # how many wait, at the top of the page
        await expect(page.get_by_role("tab", name="Waiting")).to_be_in_viewport()
        await expect(page.locator(".pod").first).to_be_in_viewport()


async def test_a_map_of_few_nodes_takes_no_more_room_than_they_need(browser: Browser) -> None:
    async with on_a_phone(browser, demo(), PHONES["usual"]) as page:
        last = await page.locator(".node").last.bounding_box()
        panel = await page.locator(".panel").bounding_box()
        assert last
        assert panel
        assert panel["y"] - (last["y"] + last["height"]) < 20


async def test_five_thousand_cards_cost_as_much_as_a_screen_full_of_them(page: Page) -> None:
    cluster = five_thousand()
    elements = "document.querySelectorAll('*').length"
    async with served(cluster) as address:
        await page.goto(address)
        await expect(page.locator("#state")).to_have_attribute("data-kind", "live")
        at_first = await page.evaluate(elements)
        for _ in range(10):
            await page.locator("#map").evaluate("map => map.scrollBy(0, 700)")
            await page.evaluate("new Promise(requestAnimationFrame)")
        await expect(page.locator(".card[aria-label*='gpu-node-500:']")).not_to_have_count(0)
        assert max(at_first, await page.evaluate(elements)) < 4_500


async def test_a_change_of_one_card_draws_one_node(page: Page) -> None:
    cluster = five_thousand()
    async with served(cluster) as address:
        await page.goto(address)
        await expect(page.locator("#state")).to_have_attribute("data-kind", "live")
        await page.evaluate(COUNT_CHANGES)
        entry = cluster.ledger.entries_of_node("gpu-node-7")[3]
        cluster.put(entry.card, cluster.holder(entry.card, 12_345, 5))
        changed = page.locator('.card[aria-label^="GPU 3 of gpu-node-7: 12,345"]')
        await expect(changed).to_have_class("card is-ready changed")
        await expect(changed).to_have_class("card is-ready")  # the mark goes again
        assert 0 < await page.evaluate("window.changes") < 400
