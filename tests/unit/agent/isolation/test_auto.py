"""`isolation: auto`: what fits a node now is what its cards say and what its containers get."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from gpuledger.agent.agent import Agent
from gpuledger.agent.config import agent_config
from gpuledger.agent.devices.source import NOT_ASKED, Device, Snapshot
from gpuledger.agent.devices.yaml_source import YamlSource
from gpuledger.agent.isolation.choice import HamiCore, Installed, Isolation, fitting
from gpuledger.configuration.settings import Settings
from gpuledger.kube_api.client import KubeClient
from gpuledger.model.errors import EventReason

BY_HAND = Installed(hami_core_directory="/usr/local/vgpu", hami_core=HamiCore(library_directory="/usr/local/vgpu"))
FROM_IMAGE = Installed(hami_core_directory="/usr/local/vgpu", hami_core=HamiCore(library_directory="/v/1"))
BY_DRIVER = Installed(hami_core_directory="/usr/local/vgpu", hami_core=FROM_IMAGE.hami_core, why_no_driver_limits="")


def a_device(why_no_limits: str) -> Device:
    return Device("GPU-0", 0, "A100", 81_920, reserved_mib=600, why_no_limits=why_no_limits)


def an_agent(root: Path, isolation: str = Settings().isolation) -> Agent:
    directories = {"cdi_directory": str(root), "hami_core_directory": str(root / "vgpu")}
    settings = Settings().changed({**directories, "isolation": isolation})
    plan = agent_config(settings, "node-a", root / "kubelet")
    return Agent(plan, YamlSource(root / "cards.yaml"), cast(KubeClient, None))


@pytest.mark.parametrize(
    ("installed", "fits"),
    [
        (Installed(), Isolation.NONE),
        (BY_HAND, Isolation.NONE),
        (FROM_IMAGE, Isolation.HAMI_CORE),
        (BY_DRIVER, Isolation.DRIVER),
        (Installed(mps_directory="/mps"), Isolation.NONE),
    ],
)
def test_the_driver_goes_before_an_images_library_and_nothing_else_counts(
    installed: Installed, fits: Isolation
) -> None:
    assert fitting(installed) is fits


@pytest.mark.parametrize("settings", [{"delivery": "directory"}, {"devices_file": "/cards.yaml"}])
def test_without_cdi_or_a_driver_of_nvidias_nothing_fits(settings: dict[str, object]) -> None:
    plan = agent_config(Settings().changed(settings), "node-a", Path("/kubelet"))
    assert (plan.isolation, plan.config.mode) == (Isolation.NONE, "none")


async def test_cards_say_what_fits_their_node_and_lose_what_the_driver_keeps_where_it_limits(tmp_path: Path) -> None:
    agent = an_agent(tmp_path)
    for why_no_limits, mode, memory_mib in (
        (NOT_ASKED, "none", 81_920),
        ("", "driver", 81_320),
        ("the driver is older than 615", "none", 81_920),
    ):
        agent._take_in(Snapshot((a_device(why_no_limits),)))
        (card,) = agent.cards
        assert (card.mode, card.capacity.memory_mib, card.healthy) == (mode, memory_mib, True)
        assert agent._capabilities().isolation == mode


async def test_a_library_that_somebody_else_has_put_on_the_node_does_not_count(tmp_path: Path) -> None:
    agent = an_agent(tmp_path)
    (tmp_path / "vgpu").mkdir()
    for name in ("libvgpu.so", "ld.so.preload"):
        (tmp_path / "vgpu" / name).write_bytes(b"HAMi's")
    found = agent._capabilities()
    assert found.installed.hami_core_directory
    assert found.isolation is Isolation.NONE


async def test_a_library_that_an_image_has_brought_meanwhile_shows_in_the_cards_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = an_agent(tmp_path)
    agent._take_in(Snapshot((a_device(NOT_ASKED),)))
    monkeypatch.setattr(agent._capabilities, "_installed", lambda: FROM_IMAGE)
    agent._list_cards_again()
    (card,) = agent.cards
    assert card.mode == "hami-core"


@pytest.mark.parametrize(
    ("isolation", "why_no_limits", "mode", "says"),
    [
        ("auto", "the driver is older than 615", "", True),
        ("auto", "", "", False),
        ("auto", NOT_ASKED, "mig", False),
        ("none", NOT_ASKED, "", False),
    ],
)
async def test_a_node_that_enforces_nothing_says_so_once_unless_that_was_chosen(
    tmp_path: Path, isolation: str, why_no_limits: str, mode: str, says: bool
) -> None:
    agent = an_agent(tmp_path, isolation=isolation)
    posted: list[tuple[EventReason, str, str]] = []
    agent._events.post = lambda *event, key="": posted.append((*event, key))  # type: ignore[method-assign]
    agent._take_in(Snapshot((replace(a_device(why_no_limits), mode=mode or "none"),)))
    await agent._tell_if_nothing_is_enforced()
    assert [reason for reason, _, _ in posted] == [EventReason.SHARES_NOT_ENFORCED] * says
    for _, sentence, key in posted:
        assert sentence.startswith("node node-a: nothing keeps containers to their shares of GPUs: HAMi-core: no image")
        assert f"the driver's limits: {why_no_limits}." in sentence
        assert sentence.endswith("if it is meant, set isolation: none")
        assert key
