"""What was held over days, on the page: a chart and its numbers, asked for while somebody looks, and only then."""

from typing import Any, Literal

import pytest
from playwright.async_api import Browser, Page, expect

from browser.test_accessibility import problems
from browser.test_page import live
from browser.test_phone import FINGER_PX, PHONES, SIDEWAYS, TOO_SMALL, on_a_phone
from fakes.view_cluster import TEAMS, ViewCluster, demo, with_reports
from page_screenshots import served

REPORTS = "?view=reports"
PAGE_ASKS_AGAIN_MS = 300_000
BUSY_AGAIN_MS = 3_000
TYPED_MS = 500


def chart(page: Page) -> Any:
    return page.get_by_role("img", name="Card hours by day")


def rows(page: Page) -> Any:
    return page.get_by_role("region", name="Sums by").get_by_role("row")


@pytest.mark.promise("page")
async def test_a_report_has_a_bar_for_each_day_and_a_row_for_each_name(page: Page) -> None:
    cluster = with_reports(demo())
    async with served(cluster) as address:
        await live(page, address)
        await page.locator("#view").select_option("reports")
        await expect(page).to_have_url(f"{address}{REPORTS}")
        name = "Card hours by day from Oct 31 to Nov 30, by namespace: 9,294 in all, most on Nov 25 with 462."
        await expect(chart(page)).to_have_accessible_name(f"{name} The tables below have the numbers.")
        await expect(page.locator(".chart g")).to_have_count(31)
        await expect(page.locator(".chart g").first.locator("rect")).to_have_count(11)  # ten, and all others
        await expect(rows(page)).to_have_count(1 + len(TEAMS) + 1)
        await expect(rows(page).nth(1)).to_have_text("research2,87331 %57,4682,87322211.40359")
        await expect(rows(page).last).to_contain_text("Total9,294100 %")
        await expect(page.get_by_label("Sums", exact=True)).to_contain_text("Of all cards' hours53 % of 17,696")
        await expect(page.locator("#map")).to_be_hidden()
        await expect(page.get_by_label("Colour")).to_be_hidden()


async def test_days_and_names_are_chosen_and_kept_in_the_address(page: Page) -> None:
    cluster = with_reports(demo())
    async with served(cluster) as address:
        await live(page, address + REPORTS)
        await page.locator("#days").select_option("7")
        await expect(page.locator(".chart g")).to_have_count(8)
        for by, first in (
            ("queue", "(no queue)"),
            ("model", "NVIDIA A100-SXM4-40GB"),
            ("owner", "research: Job/train-0"),
            ("node", "gpu-node-3"),
        ):
            await page.locator("#by").select_option(by)
            await expect(rows(page).nth(1)).to_contain_text(first)
        await expect(page).to_have_url(f"{address}{REPORTS}&days=7&by=node")
        await page.reload()
        await expect(rows(page).nth(1)).to_contain_text("gpu-node-3")
        await page.go_back()
        await expect(rows(page).nth(1)).to_contain_text("research: Job/train-0")


async def test_the_numbers_of_each_day_are_there_for_who_does_not_see_the_chart(page: Page) -> None:
    async with served(with_reports(demo())) as address:
        await live(page, f"{address}{REPORTS}&days=7")
        await page.locator("#report summary").press("Enter")
        by_day = page.get_by_role("region", name="Card hours by day").get_by_role("row")
        await expect(by_day).to_have_count(9)
        await expect(by_day.nth(1)).to_contain_text("2026-11-30256")
        await page.get_by_role("button", name="Reload").click()
        await expect(by_day.nth(1)).to_be_visible()


async def test_a_team_sees_what_it_held_and_a_name_leads_there(page: Page) -> None:
    cluster = with_reports(demo())
    async with served(cluster) as address:
        await live(page, address + REPORTS)
        await page.get_by_role("button", name="team-a", exact=True).click()
        await expect(page).to_have_url(f"{address}?filter=ns:team-a&view=reports")
        await expect(rows(page)).to_have_count(3)
        await expect(rows(page).nth(1)).to_contain_text("team-a")
        assert cluster.asked_reports[-1].namespaces == ("team-a",)
        await live(page, f"{address}?filter=ns:team-*&view=reports")
        await expect(rows(page)).to_have_count(4)
        await live(page, f"{address}?filter=ns:team-a%20node-1&view=reports")
        await expect(page.locator("#report")).to_contain_text("Of the filter, only namespaces count here")
        await live(page, f"{address}?filter=ns:nobody&view=reports")
        await expect(page.locator("#report")).to_contain_text("Nothing was held.")


async def test_it_is_asked_for_while_somebody_looks_and_only_then(page: Page) -> None:
    cluster = with_reports(demo())
    await page.clock.install()
    async with served(cluster) as address:
        await live(page, address)
        await page.clock.run_for(2 * PAGE_ASKS_AGAIN_MS)
        assert cluster.asked_reports == []
        await page.locator("#view").select_option("reports")
        await expect(chart(page)).to_be_visible()
        assert len(cluster.asked_reports) == 1
        async with page.expect_response("**/v1/report*"):
            await page.clock.run_for(PAGE_ASKS_AGAIN_MS)
        assert len(cluster.asked_reports) == 2
        async with page.expect_response("**/v1/report*"):
            await page.get_by_role("button", name="Reload").click()
        await page.locator("#view").select_option("table")
        await page.clock.run_for(2 * PAGE_ASKS_AGAIN_MS)
        assert len(cluster.asked_reports) == 3


async def test_a_name_that_is_typed_is_asked_for_once(page: Page) -> None:
    cluster = with_reports(demo())
    await page.clock.install()
    async with served(cluster) as address:
        await live(page, address + REPORTS)
        await expect(chart(page)).to_be_visible()
        await page.locator("#filter").press_sequentially("ns:team-b")
        async with page.expect_response("**/v1/report*"):
            await page.clock.run_for(TYPED_MS)
        assert [asked.namespaces for asked in cluster.asked_reports] == [(), ("team-b",)]


async def test_what_can_not_be_read_is_said_and_the_page_asks_again_when_the_operator_was_busy(page: Page) -> None:
    async with served(with_reports(demo())) as address:
        await page.clock.install()
        busy = {"status": 429, "json": {"error": "other reports are being made: retry in a moment"}}
        await page.route("**/v1/report*", lambda route: route.fulfill(**busy), times=1)
        await live(page, address + REPORTS)
        await expect(page.locator("#report")).to_contain_text("other reports are being made")
        await page.clock.run_for(BUSY_AGAIN_MS)
        await expect(chart(page)).to_be_visible()
        await expect(page.locator("#report")).not_to_contain_text("other reports are being made")


async def test_a_cluster_without_cards_and_records_says_so(page: Page) -> None:
    async with served(ViewCluster()) as address:
        await live(page, address + REPORTS)
        await expect(page.locator("#report")).to_contain_text("Nothing was held.")
        await expect(page.locator("#view")).to_be_visible()


@pytest.mark.parametrize(
    ("phone", "scheme"), [("small", "light"), pytest.param("usual", "dark", marks=pytest.mark.long)]
)
async def test_it_can_be_used_on_a_telephone(browser: Browser, phone: str, scheme: Literal["light", "dark"]) -> None:
    async with on_a_phone(browser, with_reports(demo()), PHONES[phone], scheme, f"{REPORTS}&days=90") as page:
        await expect(chart(page)).to_be_visible()
        for by in ("namespace", "owner"):
            await page.locator("#by").select_option(by)
            await expect(page.get_by_role("region", name=f"Sums by {by}")).to_be_visible()
            assert await page.evaluate(SIDEWAYS) == 0
            assert await page.evaluate(TOO_SMALL, FINGER_PX) == []
            assert await problems(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_everybody_can_read_reports(browser: Browser, scheme: Literal["light", "dark"]) -> None:
    page = await browser.new_page(color_scheme=scheme, viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    async with served(with_reports(demo())) as address:
        await live(page, address + REPORTS)
        await expect(chart(page)).to_be_visible()
        assert await problems(page) == []
        await page.locator("#report summary").click()
        assert await problems(page) == []
