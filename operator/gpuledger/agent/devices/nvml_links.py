"""Reads from NVML how cards are connected; `topology.py` makes scores of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import pynvml

from gpuledger.agent.devices.nvml_calls import Handle, pci_address, try_to_ask
from gpuledger.agent.devices.topology import Links, Pair, Wiring, link_scores, wired


@dataclass(frozen=True, slots=True)
class Wired:
    """A card that can be connected to others."""

    uuid: str
    bus_id: str
    handle: Handle


def read_links(cards: Sequence[Wired]) -> Links:
    """Return the scores of all pairs. What a card can't answer adds nothing to them. Raises DriverGone."""
    wirings = [_wiring(card, {each.bus_id for each in cards}) for card in cards]
    some_nvlinks = wired(wirings)
    pairs = {
        frozenset((one.uuid, other.uuid)): Pair(
            ancestor=try_to_ask(pynvml.nvmlDeviceGetTopologyCommonAncestor, one.handle, other.handle),
            nvlink_usable=some_nvlinks and _nvlink_usable(one.handle, other.handle),
        )
        for one, other in combinations(cards, 2)
    }
    return link_scores(wirings, pairs)


def _wiring(card: Wired, cards: set[str]) -> Wiring:
    peers: list[str] = []
    switch_links = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        active = try_to_ask(pynvml.nvmlDeviceGetNvLinkState, card.handle, link)
        if active is None:
            break  # the card has no link of this number, and none of a higher one
        if not active:
            continue
        remote = try_to_ask(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, card.handle, link)
        address = pci_address(remote.busId) if remote is not None else ""
        if address in cards:
            peers.append(address)
        elif try_to_ask(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, card.handle, link) == _SWITCH:
            switch_links += 1
    return Wiring(card.uuid, card.bus_id, tuple(peers), switch_links)


_SWITCH = pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH


def _nvlink_usable(one: Handle, other: Handle) -> bool:
    """Tell whether the driver lets the pair use NVLink; a driver that does not say so is believed to."""
    status = try_to_ask(pynvml.nvmlDeviceGetP2PStatus, one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    return status in (None, pynvml.NVML_P2P_STATUS_OK, pynvml.NVML_P2P_STATUS_UNKNOWN)
