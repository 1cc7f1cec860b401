"""What is used beside what is held, on the page: shown to who asks for it, and asked of the agents only then."""

from typing import Any

from playwright.async_api import Page, expect

from browser.test_page import card, live
from fakes.usage import measure, measure_demo
from fakes.view_cluster import ViewCluster, demo
from page_screenshots import served

PAGE_ASKS_AGAIN_MS = 10_000


def measured() -> ViewCluster:
    cluster = demo()
    measure_demo(cluster)
    return cluster


async def test_it_is_asked_for_while_somebody_looks_and_only_then(page: Page) -> None:
    cluster = measured()
    await page.clock.install()
    async with served(cluster) as address:
        await live(page, address)
        await page.clock.run_for(3 * PAGE_ASKS_AGAIN_MS)
        assert cluster.asked_agents == 0
        await page.locator("#usage").select_option("300")
        await expect(page.locator("#totals")).to_contain_text("Held and idle")
        assert cluster.asked_agents == 1
        async with page.expect_response("**/v1/usage*"):
            await page.clock.run_for(PAGE_ASKS_AGAIN_MS)
        assert cluster.asked_agents == 2
        await page.locator("#usage").select_option("")
        await page.clock.run_for(3 * PAGE_ASKS_AGAIN_MS)
        assert cluster.asked_agents == 2
        await expect(page.locator("#totals")).not_to_contain_text("Held and idle")


async def test_a_card_says_what_is_used_of_what_is_held_and_what_is_idle(page: Page) -> None:
    async with served(measured()) as address:
        await live(page, address)
        await page.locator("#usage").select_option("300")
        name = "GPU 0 of gpu-node-1: 38,240 of 40,960 MiB used by 4 pods, 21,000 MiB in use, 47 % busy"
        await expect(card(page, 0, "gpu-node-1")).to_have_accessible_name(f"{name}, 10,240 MiB held and idle")
        await expect(card(page, 0, "gpu-node-1").locator(".badge")).to_have_text("Z")
        await expect(card(page, 4, "gpu-node-1").locator(".badge")).to_have_text("")
        await expect(page.locator("#totals")).to_contain_text("246.4 of 357.4 GiB")
        await expect(page.locator("#totals")).to_contain_text("15.9 of 517.4 GiB")  # embedding, and the notebook
        await card(page, 0, "gpu-node-1").click()
        uses = page.get_by_role("region", name="What containers use of this card").get_by_role("row")
        await expect(uses.nth(1)).to_have_text("default/chat-1: main9,000 of 12,00040 %in use")
        await expect(uses.nth(3)).to_have_text("search/embedding: main0 of 10,2400 %idle")


async def test_the_viewer_says_after_how_long_a_container_is_idle(page: Page) -> None:
    async with served(measured()) as address:
        await live(page, address)
        notebook = card(page, 5, "gpu-node-1")  # its last kernel began 4,000 s ago
        for seconds, badge in (("300", "Z"), ("3600", "Z"), ("86400", "")):
            async with page.expect_response(f"**/v1/usage?idleAfterS={seconds}"):
                await page.locator("#usage").select_option(seconds)
            await expect(notebook.locator(".badge")).to_have_text(badge)
        await notebook.click()
        await expect(page.locator("#details")).to_contain_text("research/notebook-7: main2,000 of 6,0000 %in use")


async def test_of_a_node_whose_agent_is_silent_it_says_that_and_of_the_others_what_they_use(page: Page) -> None:
    async with served(measured()) as address:
        await live(page, address)
        await page.locator("#usage").select_option("300")
        note = "What is used is not known of gpu-node-3: its agent does not answer within 5 s"
        await expect(page.locator("#usage-note")).to_have_text(note)
        await expect(card(page, 0, "gpu-node-3")).to_have_accessible_name(
            "GPU 0 of gpu-node-3: 40,960 of 40,960 MiB used by 1 pod, held by one pod alone, use not known"
        )
        await card(page, 0, "gpu-node-3").click()
        await expect(page.locator("#details")).to_contain_text("Not known: its agent does not answer within 5 s.")
        await expect(page.locator("#details")).to_contain_text("? of 40,960")


async def test_the_most_idle_node_comes_first_and_the_table_has_the_numbers(page: Page) -> None:
    cluster = measured()
    measure(cluster, "gpu-node-2", {"train-0": {"memoryUsedMiB": 0, "utilizationPercent": 0} | NO_KERNEL})
    async with served(cluster) as address:
        await live(page, address)
        assert await page.locator("#sort-idle").is_disabled()
        await page.locator("#usage").select_option("60")
        await page.locator("#sort").select_option("idle")
        await expect(page.locator(".node .label").first).to_have_text("gpu-node-2")
        await page.locator("#view").select_option("table")
        first = page.locator("#table tbody tr").first
        await expect(first).to_contain_text("gpu-node-20ready40,96040,9601001 of 1004740,960")
        await page.locator("#usage").select_option("")
        await expect(page.locator("#sort")).to_have_value("name")


async def test_an_operator_that_refuses_is_quoted(page: Page) -> None:
    cluster = measured()

    async def refuse(route: Any) -> None:
        await route.fulfill(status=404, json={"error": "no agents are asked here"})

    await page.route("**/v1/usage*", refuse)
    async with served(cluster) as address:
        await live(page, address)
        await page.locator("#usage").select_option("300")
        await expect(page.locator("#usage-note")).to_have_text("What is used is not known: no agents are asked here")


NO_KERNEL = {"lastKernelSecondsAgo": None}
