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


def node_cards(snapshot: Snapshot, node_name: str, config: NodeConfig) -> tuple[Card, ...]:
    """Return the cards as the node offers them, in the order of their indexes.

    The configuration's `mode` is how the node keeps shares apart. A MIG device is always one share, whatever it says;
    and where it says `mig`, a card that is not cut into MIG devices is one share, too: nothing would keep two apart.
    """
    return tuple(_offered(snapshot.devices, node_name, config))


def _offered(devices: Iterable[Device], node_name: str, config: NodeConfig) -> Iterable[Card]:
    own = replace(config, mode="")  # MIG devices keep their mode
    whole = replace(config, mode=WHOLE_CARDS, split_count=1, memory_scaling=1.0, core_scaling=1.0)
    for device in devices:
        card = _card(device, node_name, config.split_count)
        its_config = own if device.mode == MIG else whole if config.mode == MIG else config
        for offered in its_config.offered([card]):  # none, if the configuration hides the card
            yield _with_its_number(offered, device)


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
        healthy=not device.fault,
        fault=device.fault,
        links=dict(device.links),
    )


def _with_its_number(card: Card, device: Device) -> Card:
    if device.number is None:
        return card
    return replace(card, capacity=replace(card.capacity, number=device.number))
