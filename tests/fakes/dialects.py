"""Nodes and pods in the words of HAMi, of Volcano and of other vendors, as their programs write them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from builders import stored
from fakes.objects import DIALECTS, a_container, a_pod_object
from gpuledger.configuration.dialects import dialects_of
from gpuledger.configuration.settings import Settings
from gpuledger.formats.dialects.registers import HAMIS_FIELDS
from gpuledger.formats.dialects.request import pod_request
from gpuledger.formats.dialects.vendors import VendorRow
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.kubernetes.node import Inventory, node_facts, read_registers
from gpuledger.ledger.book import Ledger
from gpuledger.model.card import Card
from gpuledger.model.errors import Refusal
from gpuledger.model.request import Demand, PodRequest
from gpuledger.model.share import Assignment
from gpuledger.placement.fit import choose_cards
from gpuledger.placement.policy import Preference

HAMI = "hami.io/node-nvidia-register"
VOLCANO = "volcano.sh/node-vgpu-register"
VOLCANO_COUNT = "volcano.sh/vgpu-number"
VOLCANO_MEMORY = "volcano.sh/vgpu-memory"
VOLCANO_PERCENTAGE = "volcano.sh/vgpu-memory-percentage"
VOLCANO_CORES = "volcano.sh/vgpu-cores"
CLASSIC_COUNT = "volcano.sh/gpu-number"
CLASSIC_MEMORY = "volcano.sh/gpu-memory"

Json = dict[str, Any]


def dialects_with(**settings: Any) -> Dialects:
    """Return the words as these settings have them."""
    return dialects_of(Settings().changed(settings))


def a_foreign_node(annotations: Mapping[str, str], allocatable: Mapping[str, object], name: str = "node-a") -> Json:
    """Return a node with these annotations, on which the kubelet offers these resources."""
    metadata = {"name": name, "annotations": dict(annotations)}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"allocatable": dict(allocatable)}}


def a_vendors_node(row: VendorRow, cards: int = 1, name: str = "node-a", memory_mib: int = 0) -> Json:
    """Return a node that lists a vendor's cards as that vendor's plugin does, all alike and in working order."""
    memory_mib = memory_mib or row.memory_of_card_mib or 65_536
    if row.capacity is not None:
        return a_node_with_capacity(row, cards, name, memory_mib)
    assert row.register_ is not None
    names = {str(part): name for part, name in row.register_.fields.items()} or HAMIS_FIELDS
    parts = {
        "model": row.model or "any",
        "memory_mib": memory_mib,
        "cores": row.cores_of_card,
        "number": 10,
        "healthy": True,
    }
    items = [{"uuid": f"card-{index}", "index": index, **parts} for index in range(cards)]
    told: Any = [{names[part]: value for part, value in item.items() if part in names} for item in items]
    told = {row.register_.entries: told} if row.register_.entries else told
    return a_foreign_node({row.register_.annotation: orjson.dumps(told).decode()}, {row.resources.count: "10"}, name)


def a_node_with_capacity(row: VendorRow, cards: int, name: str = "node-a", memory_mib: int = 65_536) -> Json:
    """Return a node that says only in its capacity how many cards of a vendor it has."""
    source = row.capacity
    assert source is not None
    amounts = {source.cards: str(cards * source.per_card)}
    if source.memory is not None:
        amounts[source.memory] = str(cards * memory_mib // row.memory_unit_mib)
    node = a_foreign_node({}, amounts, name)
    node["status"]["capacity"] = dict(amounts)
    return node


def inventory_of(node: Json, dialects: Dialects = DIALECTS) -> Inventory:
    """Return the cards that a node lists."""
    return read_registers(node_facts(node, dialects))


def an_annotated_pod(annotations: Mapping[str, object], *containers: Json, **spec: object) -> Json:
    """Return a pod with these annotations."""
    pod = a_pod_object(containers=containers)
    pod["metadata"]["annotations"] = dict(annotations)
    pod["spec"] |= spec
    return pod


def request_of(pod: Json, dialects: Dialects = DIALECTS) -> PodRequest:
    """Return what a pod asks for; it does ask for cards."""
    request = pod_request(pod, dialects)
    assert request is not None
    return request


def demand_of(limits: Mapping[str, object], dialects: Dialects = DIALECTS) -> Demand:
    """Return what a pod with one container asks for; not in which name it counts."""
    (demand,) = request_of(a_pod_object(limits=limits), dialects).shape
    return replace(demand, resource="")


def warnings_of(limits: Mapping[str, object], dialects: Dialects = DIALECTS) -> tuple[str, ...]:
    """Return what is said of a pod with one container that is understood."""
    return request_of(a_pod_object(limits=limits), dialects).warnings


def ledger_of(nodes: Sequence[Json], dialects: Dialects = DIALECTS) -> Ledger:
    """Return the ledger with all cards that these nodes list."""
    ledger = Ledger()
    for node in nodes:
        facts = node_facts(node, dialects)
        for card in read_registers(facts).cards:
            ledger.load(stored(card))
        ledger.set_offer(facts.name, facts.offer)
    return ledger


def placed(limits: Mapping[str, object], node: Json, dialects: Dialects = DIALECTS) -> Assignment | Refusal:
    """Return the cards of a pod with one container on an idle node, or why it gets none."""
    request = request_of(a_pod_object(containers=[a_container("main", limits)]), dialects)
    room = ledger_of([node], dialects).node_room(node["metadata"]["name"])
    return choose_cards(request.shape, room, Preference.BINPACK)


def hamis_item(card: Card) -> dict[str, Any]:
    """Return a card as HAMi's plugin writes it in JSON, with what is zero or false, which it leaves out."""
    return {
        "id": card.uuid,
        "index": card.index,
        "count": card.capacity.number,
        "devmem": card.capacity.memory_mib,
        "devcore": card.capacity.cores,
        "type": card.model,
        "numa": card.numa_node,
        "mode": card.mode,
        "health": card.healthy,
    }
