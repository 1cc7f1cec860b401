"""What axe-core finds that keeps people from using the page: contrast, names, roles, headings, and more."""

from importlib import resources
from typing import Any, Literal, cast

import pytest
from playwright.async_api import Browser, Page, expect

from fakes.usage import measure_demo
from fakes.view_cluster import ViewCluster
from gpuledger.controller.web.view_server import TokenAccess
from page_screenshots import broken, served

AXE = resources.files("axe_playwright_python").joinpath("axe.min.js")
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
OF_COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
"""All that can differ in the dark."""


async def problems(page: Page) -> list[str]:
    """Return what axe-core finds now: rule, and the elements."""
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(AXE.read_text())
    is_dark = await page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    found: dict[str, Any] = await page.evaluate("rules => axe.run(document, rules)", OF_COLOURS if is_dark else RULES)
    assert found["passes"], "axe has not looked at anything"
    return [f"{each['id']}: {[node['html'][:120] for node in each['nodes'][:3]]}" for each in found["violations"]]


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (1280, "light"),
        (320, "dark"),
        pytest.param(1280, "dark", marks=pytest.mark.long),
        pytest.param(320, "light", marks=pytest.mark.long),
    ],
)
async def test_every_part_of_the_page_can_be_used_by_everybody(
    browser: Browser, scheme: Literal["light", "dark"], width: int
) -> None:
    touch = width < 400
    page = await browser.new_page(
        color_scheme=scheme,
        viewport={"width": width, "height": 800},
        reduced_motion="reduce",
        has_touch=touch,
        is_mobile=touch,
    )
    cluster = broken()
    measure_demo(cluster)
    async with served(cluster) as address:
        await page.goto(address)
        await expect(page.locator("#state")).to_have_attribute("data-kind", "live")
        found = {"at first": await problems(page)}
        await page.locator(".card.is-unhealthy").click()
        found["a card"] = await problems(page)
        await page.locator("#tab-waiting").click()
        await page.locator(".pod").click()
        await expect(page.locator("#details summary")).to_have_count(1)
        found["a waiting pod"] = await problems(page)
        await page.locator("#tab-history").click()
        await expect(page.locator("#history li")).to_have_count(5)
        found["history"] = await problems(page)
        await page.locator("#view").select_option("small")
        found["a small map"] = await problems(page)
        await page.locator("#view").select_option("table")
        found["the table"] = await problems(page)
        await page.locator("#usage").select_option("300")
        await expect(page.locator("#table")).to_contain_text("Held and idle")
        found["the table with what is used"] = await problems(page)
        await page.locator("#view").select_option("auto")
        await page.locator(".card").first.click()
        await expect(page.locator("#details")).to_contain_text("Used beside held")
        found["what is used of a card"] = await problems(page)
    await expect(page.locator("#state")).to_have_attribute("data-kind", "lost")
    found["disconnected"] = await problems(page)
    assert {part: each for part, each in found.items() if each} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_an_empty_page_and_the_dialogue_for_a_token(browser: Browser, scheme: Literal["light", "dark"]) -> None:
    page = await browser.new_page(color_scheme=scheme)
    async with served(ViewCluster()) as address:
        await page.goto(address)
        await expect(page.locator("#empty")).to_be_visible()
        empty = await problems(page)
    async with served(ViewCluster(), TokenAccess(cast(Any, None))) as address:  # nobody is asked
        await page.goto(address)
        await expect(page.get_by_role("dialog")).to_be_visible()
        assert (empty, await problems(page)) == ([], [])
