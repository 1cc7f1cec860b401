"""Gangs on the page: one entry among those that wait, details of their own, their cards on the map and in the table."""

from typing import Any, Literal

import pytest
from playwright.async_api import Browser, Page, expect

from browser.test_accessibility import problems
from browser.test_page import card, live
from fakes.view_cluster import demo, with_gangs
from page_screenshots import served

Json = dict[str, Any]


async def test_members_of_one_gang_wait_as_one_entry_which_leads_to_the_gang(page: Page) -> None:
    async with served(with_gangs(demo())) as address:
        await live(page, address)
        await expect(page.get_by_role("tab", name="Waiting 10")).to_be_visible()
        await expect(page.locator("#waiting li")).to_have_count(2)
        await expect(page.locator(".pod.gang")).to_contain_text("9 pods, each 1 whole card")
        await page.locator(".pod.gang").click()
        await expect(page.get_by_role("heading", name="gang vision/pretrain")).to_be_focused()
        details = page.locator("#details")
        for words in ("5 of 9 members find cards at once", "gpu-node-3 3 members", "4 members: 1 whole card for each"):
            await expect(details).to_contain_text(words)
        await expect(details).to_contain_text("speech/asr is tried alone, for 12 s more")
        await expect(details.get_by_role("link", name="vision/pretrain-8")).to_be_visible()


async def test_a_gang_that_runs_leads_to_its_cards(page: Page) -> None:
    async with served(with_gangs(demo())) as address:
        await live(page, f"{address}#gang=speech%2Fasr")
        await expect(page.locator("#details")).to_contain_text("4 members are bound")
        await page.get_by_role("button", name="Show its cards").click()
        await expect(page.locator("#filter")).to_have_value("gang:speech/asr")
        await expect(page.locator(".card:not(.other)")).to_have_count(4)
        await page.locator("#view").select_option("table")
        await expect(page.locator("#table thead th").last).to_have_text("Gangs")
        await page.locator("#table").get_by_role("link", name="asr").first.click()
        await expect(page.get_by_role("heading", name="gang speech/asr")).to_be_visible()
        await page.locator("#filter").fill("ranker")
        await expect(page.locator("#table thead th").last).to_have_text("Pods")


async def test_a_member_and_a_record_lead_to_the_gang(page: Page) -> None:
    cluster = with_gangs(demo())
    cluster.explanations["speech/asr-0"] = {**cluster.explanations["default/too-large"], "gang": "asr"}
    cluster.explanations["speech/asr-0"] |= {
        "namespace": "speech",
        "name": "asr-0",
        "state": "placed",
        "hasPlace": True,
    }
    async with served(cluster) as address:
        await live(page, address)
        await card(page, 6, "gpu-node-1").click()
        await expect(page.locator("#details")).to_contain_text("gang asr")
        await page.get_by_role("link", name="speech/asr-0").click()
        await page.locator("#details").get_by_role("link", name="asr", exact=True).click()
        await expect(page.get_by_role("heading", name="gang speech/asr")).to_be_visible()
        await page.locator("#tab-history").click()
        await page.locator("#history").get_by_role("link", name="gang speech/asr").first.click()
        await expect(page.get_by_role("heading", name="gang speech/asr")).to_be_visible()


async def test_a_gang_that_has_gone_is_said_to_have_no_pod(page: Page) -> None:
    async with served(demo()) as address:
        await live(page, f"{address}#gang=lab%2Fgone")
        await expect(page.locator("#details")).to_contain_text("no pod of namespace lab is of a gang 'gone'")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 320])
async def test_everybody_can_read_a_gang(browser: Browser, scheme: Literal["light", "dark"], width: int) -> None:
    page = await browser.new_page(
        color_scheme=scheme, viewport={"width": width, "height": 800}, reduced_motion="reduce"
    )
    async with served(with_gangs(demo())) as address:
        await live(page, address)
        assert await problems(page) == []
        await page.locator(".pod.gang").click()
        await expect(page.locator("#details summary")).to_have_count(1)
        assert await problems(page) == []
        sideways = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert sideways <= 0
