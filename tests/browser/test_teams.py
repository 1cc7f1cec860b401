"""A team's own view: what its namespaces hold, may have and wait for, at an address that can be kept and sent."""

from typing import Any, Literal

import pytest
from playwright.async_api import Browser, Page, expect

from browser.test_accessibility import problems
from browser.test_page import card, live
from browser.test_phone import FINGER_PX, PHONES, SIDEWAYS, TOO_SMALL, on_a_phone
from fakes.view_cluster import teams
from page_screenshots import served

TEAM = "?filter=ns:team-a,team-b"


def row(page: Page, namespace: str) -> Any:
    return page.get_by_role("table", name="Namespaces").get_by_role("row").filter(has_text=namespace)


@pytest.mark.promise("page")
async def test_a_team_sees_its_own_cards_pods_sums_and_quotas_and_nothing_else(page: Page) -> None:
    async with served(teams()) as address:
        await live(page, address + TEAM)
        await expect(page.locator(".card:not(.other)")).to_have_count(5)
        await expect(page.locator("#waiting strong")).to_have_text(["team-a/wide", "team-b/six"])
        await expect(page.locator("#waiting")).to_contain_text("7 of 8 pending pods match the filter")
        await expect(page.get_by_role("tab", name="Waiting 7")).to_be_visible()
        totals = page.locator("#totals")
        await expect(totals).to_contain_text("Memory held172.7 of 960 GiB")
        await expect(totals).to_contain_text("2 nodes5 cards")
        await expect(page.locator("#teams tbody tr")).to_have_count(2)
        await expect(row(page, "team-a").get_by_role("cell")).to_have_text(
            ["2", "54,000 of 80,000", "90 of 200", "4", "1 pod", "Grafana"]
        )
        await expect(row(page, "team-a")).to_contain_text("limits.nvidia.com/gpumem.A100 of gpus: 54,000 of 60,000")
        await expect(row(page, "team-b").get_by_role("cell")).to_have_text(
            ["3", "122,880", "300", "3 of 3", "6 pods", "Grafana"]
        )
        await page.locator("#tab-history").click()
        await expect(page.locator("#history li")).to_have_count(1)
        await expect(page.locator("#history")).to_contain_text("team-a/wide")


async def test_a_change_of_a_quota_and_of_what_is_held_appears_without_a_reload(page: Page) -> None:
    cluster = teams()
    async with served(cluster) as address:
        await live(page, f"{address}?filter=ns:team-b")
        await expect(row(page, "team-b")).to_contain_text("3 of 3")
        cluster.quotas["team-b"][0]["limit"] = 8
        free = cluster.ledger.entries_of_node("gpu-node-3")[6].card
        cluster.put(free, cluster.holder(free, 40_960, 100, namespace="team-b"))
        await expect(row(page, "team-b")).to_contain_text("4 of 8")
        await expect(page.locator(".card:not(.other)")).to_have_count(4)


async def test_names_of_namespaces_are_meant_in_full_and_a_star_is_for_the_rest(page: Page) -> None:
    cluster = teams()
    free = cluster.ledger.entries_of_node("gpu-node-3")[6].card
    cluster.put(free, cluster.holder(free, 1_000, 0, namespace="team-a-dev"))
    async with served(cluster) as address:
        for words, found in (
            ("ns:team-a", 2),
            ("ns:team-a*", 3),
            ("ns:team-*", 6),
            ("ns:team", 0),
            ("ns:team-a llm", 2),
        ):
            await live(page, f"{address}?filter={words}")
            await expect(page.locator(".card:not(.other)")).to_have_count(found)


@pytest.mark.promise("page")
async def test_what_is_chosen_is_in_the_address_and_the_back_button_undoes_it(page: Page) -> None:
    async with served(teams()) as address:
        await live(page, address)
        await page.locator("#filter").press_sequentially("ns:team-b")
        await expect(page).to_have_url(f"{address}?filter=ns:team-b")
        await page.locator("#view").select_option("table")
        await page.locator("#colour").select_option("health")
        await page.locator("#sort").select_option("full")
        await page.locator("#usage").select_option("300")
        await card_row(page).first.get_by_role("button").click()
        chosen = f"{address}?filter=ns:team-b&view=table&colour=health&usage=300&sort=full"
        await expect(page).to_have_url(f"{chosen}#card=GPU-gpu-node-00001-7")
        await page.reload()
        await expect(page.get_by_role("heading", name="GPU 7 of gpu-node-1")).to_be_visible()
        await expect(card_row(page)).to_have_count(3)
        for element, value in (("filter", "ns:team-b"), ("view", "table"), ("colour", "health"), ("sort", "full")):
            await expect(page.locator(f"#{element}")).to_have_value(value)
        await expect(page.locator("#usage")).to_have_value("300")
        await page.go_back()  # to before the card was chosen
        await expect(page).to_have_url(chosen)
        await expect(page.get_by_role("tab", name="Waiting")).to_have_attribute("aria-selected", "true")
        for _ in range(4):
            await page.go_back()
        await expect(page).to_have_url(f"{address}?filter=ns:team-b")
        await expect(page.locator("#map")).to_be_visible()
        await page.go_back()  # what was typed is one step
        await expect(page).to_have_url(address)
        await expect(page.locator("#waiting strong")).to_have_count(3)
        await page.go_forward()
        await expect(page.locator("#waiting strong")).to_have_text(["team-b/six"])


def card_row(page: Page) -> Any:
    return page.locator("#table tbody tr")


async def test_an_address_with_words_that_no_list_has_shows_what_is_usual(page: Page) -> None:
    async with served(teams()) as address:
        await live(page, f"{address}?view=sideways&sort=idle&usage=7&colour=")
        await expect(page.locator(".card")).to_have_count(24)
        for element, value in (("view", "auto"), ("sort", "name"), ("usage", ""), ("colour", "namespace")):
            await expect(page.locator(f"#{element}")).to_have_value(value)


async def test_all_teams_and_queues_have_a_view_that_leads_to_each(page: Page) -> None:
    async with served(teams()) as address:
        await live(page, f"{address}?view=teams")
        await expect(page.locator("#map")).to_be_hidden()
        names = page.get_by_role("table", name="Namespaces").get_by_role("rowheader")
        await expect(names).to_contain_text(
            ["default", "research", "search", "speech", "team-a", "team-b", "team-c", "vision"]
        )
        await expect(row(page, "team-c")).to_contain_text("0 of 1")
        queue = page.get_by_role("table", name="ClusterQueues").get_by_role("row").nth(1)
        await expect(queue).to_contain_text("nvidia.com/gpu 6 of 4, 2 borrowed")
        await expect(queue.get_by_role("cell")).to_have_text(
            ["all", "nvidia.com/gpu 6 of 4, 2 borrowed", "3", "1", "2"]
        )
        await page.get_by_role("button", name="team-b", exact=True).click()
        await expect(page).to_have_url(f"{address}?filter=ns:team-b&view=teams")
        await expect(page.locator("#waiting strong")).to_have_text(["team-b/six"])


async def test_links_to_grafana_name_the_namespaces(page: Page) -> None:
    async with served(teams()) as address:
        await live(page, address + TEAM)
        both = page.get_by_role("link", name="Grafana of team-a, team-b")
        url = "https://grafana.example.com/d/gpuledger?orgId=1"
        await expect(both).to_have_attribute("href", f"{url}&var-namespace=team-a&var-namespace=team-b")
        await expect(both).to_have_attribute("rel", "noopener noreferrer")
        one = row(page, "team-a").get_by_role("link")
        await expect(one).to_have_attribute("href", f"{url}&var-namespace=team-a")


async def test_a_pod_over_quota_shows_no_nodes_and_the_command_that_helps(browser: Browser) -> None:
    context = await browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = await context.new_page()
    async with served(teams()) as address:
        await live(page, address + TEAM)
        entry = page.locator(".pod").first
        await expect(entry).to_contain_text("limits.nvidia.com/gpumem of ResourceQuota gpus")
        await expect(entry).not_to_contain_text("node")
        await entry.click()
        await expect(page.locator("#details")).to_contain_text("ask for at most 80,000")
        await page.get_by_role("button", name="Copy the command").click()
        await expect(page.get_by_role("button", name="Copy the command")).to_have_text("Copied")
        copied = await page.evaluate("navigator.clipboard.readText()")
        assert copied == "kubectl gpuledger explain pod/wide -n team-a"


@pytest.mark.parametrize(
    ("phone", "scheme"), [pytest.param("small", "light", marks=pytest.mark.long), ("usual", "dark")]
)
async def test_a_team_can_use_it_on_a_telephone(browser: Browser, phone: str, scheme: Literal["light", "dark"]) -> None:
    async with on_a_phone(browser, teams(), PHONES[phone], scheme, TEAM) as page:
        for view in ("auto", "teams"):
            await page.locator("#view").select_option(view)
            await expect(row(page, "team-a").get_by_role("cell").first).to_be_visible()
            assert await page.evaluate(SIDEWAYS) == 0
            assert await page.evaluate(TOO_SMALL, FINGER_PX) == []
            assert await problems(page) == []


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
async def test_everybody_can_read_teams(browser: Browser, scheme: Literal["light", "dark"]) -> None:
    page = await browser.new_page(color_scheme=scheme, viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    async with served(teams()) as address:
        await live(page, address + TEAM)
        await expect(card(page, 7, "gpu-node-1")).to_be_visible()
        assert await problems(page) == []
        await page.locator("#view").select_option("teams")
        assert await problems(page) == []
