"""The kubelet finds our driver, whatever happens to either of them, and gets an answer for each claim."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from builders import a_card
from fakes.dra_manager import DraManager
from gpuledger.agent._generated import dra_plugin_pb2 as messages
from gpuledger.agent.kubelet import device_plugin, dra
from gpuledger.agent.kubelet.dra import HEALTH_SERVICES, ClaimKey, DraPlugin, PreparedDevice
from gpuledger.formats.resource_claims.claims import DRIVER
from gpuledger.model.errors import StartRefused

Until = Callable[[Callable[[], object]], Awaitable[None]]

CLAIMS = [messages.Claim(namespace="team", name=f"claim-{uid}", uid=uid) for uid in "ab"]


class Driver:
    """Our driver, and what it was asked."""

    def __init__(self, directory: Path) -> None:
        self.prepared: list[ClaimKey] = []
        self.taken_back: list[ClaimKey] = []
        self.refusals: dict[str, Exception] = {}
        self.told: list[bool] = []
        self.plugin = DraPlugin("node-a", directory, self._prepare, self._unprepare, self.told.append)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.plugin.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _prepare(self, claim: ClaimKey) -> list[PreparedDevice]:
        self.prepared.append(claim)
        if claim.uid in self.refusals:
            raise self.refusals[claim.uid]
        return [PreparedDevice("gpu", "gpu-1", ("gpuledger.dev/share=1",)), PreparedDevice("gpu", "gpu-2")]

    async def _unprepare(self, claim: ClaimKey) -> None:
        self.taken_back.append(claim)
        if claim.uid in self.refusals:
            raise self.refusals[claim.uid]


@pytest.fixture
def manager(root: Path, monkeypatch: pytest.MonkeyPatch) -> DraManager:
    """Return a kubelet that is not started yet; the driver looks round quickly."""
    for module in (dra, device_plugin):
        monkeypatch.setattr(module, "LOOK_INTERVAL_S", 0.02)
    (root / "plugins_registry").mkdir()
    return DraManager(root / "plugins_registry")


@pytest.fixture
async def driver(manager: DraManager, root: Path, until: Until) -> AsyncIterator[Driver]:
    """Return a driver that the kubelet has taken up."""
    found = Driver(root)
    async with manager.running(), found.serving():
        # The kubelet has taken it up once it has answered, too: the driver hears of it before that.
        await until(lambda: found.told and manager.registrations and manager.drivers)
        yield found


async def test_the_kubelet_takes_the_driver_up_and_says_so(manager: DraManager, driver: Driver) -> None:
    assert manager.registrations == [(DRIVER, True)]
    assert driver.told == [True]
    assert manager.drivers == {DRIVER: str(manager.directory / "gpu.gpuledger.dev-reg.sock")}


async def test_a_kubelet_that_does_not_speak_our_version_says_so_and_gets_no_other(
    manager: DraManager, root: Path, until: Until
) -> None:
    manager.versions = ["v1beta1.DRAPlugin", "v1alpha4.Node"]
    found = Driver(root)
    async with manager.running(), found.serving():
        await until(lambda: found.told)
    assert (found.told, manager.drivers) == ([False], {})


async def test_each_claim_has_an_answer_of_its_own(manager: DraManager, driver: Driver) -> None:
    driver.refusals["b"] = StartRefused("it is not in the ledger")
    answers = await manager.prepare(DRIVER, *CLAIMS)
    assert driver.prepared == [ClaimKey("team", "claim-a", "a"), ClaimKey("team", "claim-b", "b")]
    assert {uid: each.error for uid, each in answers.items()} == {"a": "", "b": "it is not in the ledger"}
    assert not answers["b"].devices
    devices = [(*each.request_names, each.pool_name, each.device_name) for each in answers["a"].devices]
    assert devices == [("gpu", "node-a", "gpu-1"), ("gpu", "node-a", "gpu-2")]
    assert [list(each.cdi_device_ids) for each in answers["a"].devices] == [["gpuledger.dev/share=1"], []]


async def test_what_fails_without_a_word_is_an_error_too(manager: DraManager, driver: Driver) -> None:
    """An empty error would mean that the claim is prepared."""
    driver.refusals = {"a": OSError(), "b": StartRefused("")}
    answers = await manager.prepare(DRIVER, *CLAIMS)
    assert {each.error for each in answers.values()} == {"OSError()", "StartRefused('')"}
    assert set((await manager.unprepare(DRIVER, *CLAIMS)).values()) == {"OSError()", "StartRefused('')"}


async def test_claims_are_taken_back_each_with_an_answer(manager: DraManager, driver: Driver) -> None:
    assert await manager.unprepare(DRIVER, *CLAIMS) == {"a": "", "b": ""}
    assert [claim.uid for claim in driver.taken_back] == ["a", "b"]


async def test_after_a_restart_of_the_kubelet_it_finds_the_driver_again(
    manager: DraManager, root: Path, until: Until
) -> None:
    found = Driver(root)
    async with found.serving():
        for number in range(1, 4):
            async with manager.running():
                await until(lambda number=number: len(found.told) == number and manager.drivers)  # type: ignore[misc]
                await manager.prepare(DRIVER, CLAIMS[0])
    assert len(found.prepared) == 3


async def test_a_driver_that_was_killed_is_replaced_by_the_next(manager: DraManager, root: Path, until: Until) -> None:
    """What was killed leaves its socket behind."""
    (manager.directory / "gpu.gpuledger.dev-reg.sock").touch()
    async with manager.running():
        for number in range(1, 3):
            found = Driver(root)
            async with found.serving():
                await until(lambda number=number: len(manager.registrations) == number)  # type: ignore[misc]
                await manager.prepare(DRIVER, CLAIMS[0])
            assert len(found.prepared) == 1


async def test_a_socket_that_somebody_removes_is_there_again(manager: DraManager, driver: Driver, until: Until) -> None:
    driver.plugin.socket.unlink()
    await until(lambda: len(driver.told) == 2)
    await manager.prepare(DRIVER, CLAIMS[0])


async def test_a_directory_that_the_kubelet_has_not_made_yet_is_waited_for(
    manager: DraManager, root: Path, until: Until
) -> None:
    manager.directory.rmdir()
    found = Driver(root)
    async with manager.running(), found.serving():
        await asyncio.sleep(0.05)
        manager.directory.mkdir()
        await until(lambda: found.told)


@pytest.mark.parametrize("service", HEALTH_SERVICES)
async def test_a_cards_health_is_said_at_once_and_when_it_changes(
    manager: DraManager, driver: Driver, service: str
) -> None:
    card = a_card(0, "node-a")
    driver.plugin.show([card])
    said = aiter(manager.health(DRIVER, service))
    async with asyncio.timeout(20):
        assert await anext(said) == {("node-a", card.uuid.lower()): (1, "")}
        driver.plugin.show([replace(card, healthy=False, fault="it is on fire")])
        assert await anext(said) == {("node-a", card.uuid.lower()): (2, "it is on fire")}


async def test_a_cards_health_is_said_again_before_it_counts_as_unknown(
    manager: DraManager, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 2 * dra.SAY_AGAIN_S < dra.COUNTS_FOR_S
    monkeypatch.setattr(dra, "SAY_AGAIN_S", 0.01)
    driver.plugin.show([a_card(0, "node-a")])
    said = aiter(manager.health(DRIVER, HEALTH_SERVICES[0]))
    async with asyncio.timeout(20):
        assert await anext(said) == await anext(said)
