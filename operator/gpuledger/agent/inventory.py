"""From the cards that a source lists to those that the node offers. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpuledger.agent.devices.source import Device, Snapshot
from gpuledger.model.amounts import Amounts
from gpuledger.model.card import ALL_CORES, Card
from gpuledger.model.card_filter import MIG
from gpuledger.model.node_config import NodeConfig

WHOLE_CARDS = "none"
"""Mode of a card that is not cut into MIG devices, on a node that keeps shares apart by MIG alone."""


DRIVER = "driver"
"""Mode of a card on a node whose driver is to limit memory."""


def node_cards(snapshot: Snapshot, node_name: str, config: NodeConfig, keep_reserved: bool = False) -> tuple[Card, ...]:
    """Return the cards as the node offers them, in the order of their indexes.

    The configuration's `mode` is how the node keeps shares apart. A MIG device is always one share, whatever it says;
    and where it says `mig`, a card that is not cut into MIG devices is one share, too: nothing would keep two apart.
    Where it says `driver`, a card that the driver can't limit memory on takes no pods. With `keep_reserved`, what the
    driver itself takes of a card's memory is not offered.
    """
    devices = (_usable(device, keep_reserved) for device in snapshot.devices)
    return tuple(_offered(devices, node_name, config))


def why_no_limits(snapshot: Snapshot) -> str:
    """Return why the driver can't limit memory on one of the node's cards, whole ones; empty: it can on all."""
    return next((each.why_no_limits for each in snapshot.devices if each.mode != MIG and each.why_no_limits), "")


def _usable(device: Device, keep_reserved: bool) -> Device:
    left_mib = device.memory_mib - device.reserved_mib
    return replace(device, memory_mib=left_mib) if keep_reserved and left_mib > 0 else device


def _offered(devices: Iterable[Device], node_name: str, config: NodeConfig) -> Iterable[Card]:
    own = replace(config, mode="")  # MIG devices keep their mode
    whole = replace(config, mode=WHOLE_CARDS, split_count=1, memory_scaling=1.0, core_scaling=1.0)
    for device in devices:
        card = _card(device, node_name, config.split_count)
        its_config = own if device.mode == MIG else whole if config.mode == MIG else config
        for offered in its_config.offered([card]):  # none, if the configuration hides the card
            yield _closed_without_limits(_with_its_number(offered, device), device)


def _card(device: Device, node_name: str, split_count: int) -> Card:
    return Card(
        uuid=device.uuid,
        node_name=node_name,
        index=device.index,
        capacity=Amounts(device.memory_mib, ALL_CORES, split_count),
        vendor=device.vendor,
        model=device.model,
        mode=device.mode,
        numa_node=device.numa_node,
        pcie_root=device.pcie_root,
        healthy=not device.fault,
        fault=device.fault,
        links=dict(device.links),
    )


def _with_its_number(card: Card, device: Device) -> Card:
    if device.number is None:
        return card
    return replace(card, capacity=replace(card.capacity, number=device.number))


def _closed_without_limits(card: Card, device: Device) -> Card:
    if card.mode != DRIVER or not device.why_no_limits or not card.healthy:
        return card
    return replace(card, healthy=False, fault=f"isolation is driver, and {device.why_no_limits}")
