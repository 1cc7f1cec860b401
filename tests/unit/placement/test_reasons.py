"""Every reason that placement can give, with the text that a person reads in the pod's event."""

from dataclasses import dataclass, replace

import pytest

from builders import OFFER, a_card, a_ledger, a_share, mib, occupy, percent, stored, whole, whole_share
from gpuledger.ledger.book import Ledger
from gpuledger.model.card import Amounts, Card, CardFilter, CardRule
from gpuledger.model.errors import Reason, Refusal
from gpuledger.model.node import Dialect, NodeOffer
from gpuledger.model.request import Demand, HostAmounts, Lifetime
from gpuledger.model.share import Misfit, Pod
from gpuledger.placement.explain import explain_node
from gpuledger.placement.fit import choose_cards, fits
from gpuledger.placement.policy import Preference

OF_SEVERAL_CARDS = {Reason.NUMA, Reason.CONSTRAINT, Reason.NOT_WANTED}
"""Each card can be one that takes the container, if there were others."""

NOT_PLACEMENT = {
    Reason.KUBE_SCHEDULER,
    Reason.BAD_REQUEST,
    Reason.PREEMPTING,
    Reason.GANG,
    Reason.QUOTA,
    Reason.BUDGET,
    Reason.CLAIM_ELSEWHERE,
}
"""Found before or after placement is asked: the request can't be read; the pod is on its way to another node, or has
to go to where others are; or not of this pod alone."""

ONE, TWO = a_card(0), a_card(1)


@dataclass(frozen=True)
class Case:
    """Shares that are on the node, the pod that comes, and what it is told."""

    reason: Reason
    text: str
    pod: tuple[Demand, ...]
    ledger: Ledger


def not_ready() -> Ledger:
    """Return a node whose agent does not answer."""
    ledger = a_ledger(ONE)
    ledger.set_offer("node-a", None)
    return ledger


def arriving() -> Ledger:
    ledger = a_ledger(ONE)
    ledger.arriving.note("node-a", True)
    return ledger


def hanging() -> Ledger:
    """Return a node whose kubelet starts no pods."""
    ledger = a_ledger(ONE)
    ledger.set_offer("node-a", ledger.offer("node-a"), hangs=True)
    return ledger


def used(first: tuple[int, int, int], second: tuple[int, int, int] | None = None, *, alone: bool = False) -> Ledger:
    """Return one or two cards with something on each: memory, cores, number."""
    ledger = a_ledger(*((ONE, TWO) if second else (ONE,)))
    occupy(ledger, "a", a_share(ONE, *first, exclusive=alone))
    if second:
        occupy(ledger, "b", a_share(TWO, *second))
    return ledger


def one_of_two_used() -> Ledger:
    """Return two cards, the first with something on it."""
    ledger = a_ledger(ONE, TWO)
    occupy(ledger, "a", a_share(ONE))
    return ledger


def two_numa_nodes() -> Ledger:
    """Return two cards, each on a NUMA node of its own."""
    return a_ledger(replace(ONE, numa_node=0), replace(TWO, numa_node=1))


def on_pcie_roots(*roots: str) -> Ledger:
    """Return cards that are on these PCIe roots."""
    return a_ledger(*(replace(a_card(index), pcie_root=root) for index, root in enumerate(roots)))


def one_of_each_root_taken() -> Ledger:
    """Return two PCIe roots with two cards each, one of which is taken as a whole."""
    ledger = on_pcie_roots("pci0000:16", "pci0000:16", "pci0000:97", "pci0000:97")
    for index in (0, 2):
        occupy(ledger, f"p{index}", whole_share(a_card(index)))
    return ledger


def used_third_root() -> Ledger:
    """Return cards on three PCIe roots, one of which has no room."""
    ledger = on_pcie_roots("pci0000:16", "pci0000:16", "pci0000:97", "pci0000:c9")
    occupy(ledger, "p", whole_share(a_card(3)))
    return ledger


def with_volcanos_plugin() -> Ledger:
    """Return two cards of a node with Volcano's device plugin."""
    ledger = a_ledger(ONE, TWO)
    ledger.set_offer("node-a", NodeOffer(Dialect.VOLCANO))
    return ledger


def unaccounted() -> Ledger:
    """Return a node on whose only card in order a share was found that does not fit."""
    ledger = Ledger()
    ledger.load(replace(stored(ONE), misfits=(Misfit(Pod("uid-x", "default", "x"), Amounts(1), "why"),)))
    ledger.load(stored(replace(TWO, healthy=False)))
    ledger.set_offer("node-a", OFFER)
    return ledger


def unreported(*cards: Card) -> Ledger:
    """Return the cards of a node that does not report them any more, as its driver is gone."""
    ledger = a_ledger(*cards)
    for card in cards:
        ledger.set_reported(card.uuid, reported=False)
    return ledger


def cordoned() -> Ledger:
    """Return a card in working order on which a person wants no new pods."""
    ledger = Ledger()
    ledger.load(replace(stored(ONE), cordoned="fans are to be changed"))
    ledger.set_offer("node-a", OFFER)
    return ledger


def only_counting(cards: int) -> Ledger:
    """Return a node whose own device plugin counts so many cards, none of which is in the ledger."""
    ledger = Ledger()
    ledger.hosts.set_capacity("node-a", HostAmounts(cards=cards))
    return ledger


BY_NUMBER = replace(whole(), resource="nvidia.com/gpu")
ON_ONE_NUMA_NODE = replace(mib(1, cards=2), one_numa_node=True)
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
ON_ONE_ROOT, ON_DIFFERENT_ROOTS = CardRule(PCIE_ROOT, 0), CardRule(PCIE_ROOT, 0, distinct=True)

CASES = [
    Case(Reason.NO_INVENTORY, "no GPUs in the ledger", (whole(),), Ledger()),
    Case(Reason.NO_INVENTORY, "the node no longer reports any of its 2 GPUs", (whole(),), unreported(ONE, TWO)),
    Case(Reason.NO_INVENTORY, "the node no longer reports its GPU", (whole(),), unreported(ONE)),
    Case(Reason.AGENT_NOT_READY, "GPU node agent is not ready", (whole(),), not_ready()),
    Case(
        Reason.NODE_NOT_STARTING,
        "node starts no pods: its kubelet or GPU node agent hangs",
        (whole(),),
        hanging(),
    ),
    Case(
        Reason.NODE_ARRIVING,
        "node has just come, and takes pods once its stand-in is deleted",
        (whole(),),
        arriving(),
    ),
    Case(
        Reason.ONLY_WHOLE_GPUS,
        "the node's own device plugin gives out whole GPUs only, without a choice",
        (mib(1),),
        only_counting(2),
    ),
    Case(
        Reason.NO_GPU_LEFT,
        "fewer than 3 GPUs are left of those that the node's own device plugin counts",
        (BY_NUMBER, replace(BY_NUMBER, cards=2)),
        only_counting(2),
    ),
    Case(
        Reason.OTHER_RESOURCE,
        "the node's device plugin does not serve volcano.sh/vgpu-number",
        (replace(whole(), resource="volcano.sh/vgpu-number"),),
        a_ledger(ONE),
    ),
    Case(
        Reason.NOT_WANTED,
        "no card of the kind that the pod asks for",
        (replace(mib(1), wanted=CardFilter(use_models=("H100",))),),
        a_ledger(ONE),
    ),
    Case(
        Reason.NOT_WANTED,
        f"fewer than 2 cards of the kind that the pod asks for have the same {PCIE_ROOT}",
        (replace(mib(1, cards=2), rules=(ON_ONE_ROOT,)),),
        on_pcie_roots("pci0000:16", "pci0000:97"),
    ),
    Case(
        Reason.NOT_WANTED,
        f"no card of the kind that the pod asks for has {PCIE_ROOT}",
        (replace(mib(1), rules=(ON_ONE_ROOT,)),),
        a_ledger(ONE),
    ),
    Case(
        Reason.CONSTRAINT,
        f"fewer than 2 cards with room that have the same {PCIE_ROOT}",
        (replace(mib(1, cards=2), rules=(ON_ONE_ROOT,)),),
        one_of_each_root_taken(),
    ),
    Case(
        Reason.CONSTRAINT,
        f"fewer than 3 cards with room that differ in {PCIE_ROOT}",
        (replace(mib(1, cards=3), rules=(ON_DIFFERENT_ROOTS,)),),
        used_third_root(),
    ),
    Case(
        Reason.UNHEALTHY,
        "fewer than 2 cards in working order",
        (replace(whole(), every_card=True),),
        a_ledger(ONE, a_card(1, healthy=False)),
    ),
    Case(
        Reason.NO_WHOLE_CARD,
        "fewer than 2 cards entirely free",
        (replace(whole(), every_card=True),),
        one_of_two_used(),
    ),
    Case(
        Reason.CONTAINERS_TOGETHER,
        f"no cards that hold all containers of the pod at once and have the same {PCIE_ROOT}",
        (replace(whole(), rules=(ON_ONE_ROOT,)), replace(whole(), rules=(ON_ONE_ROOT,))),
        on_pcie_roots("pci0000:16", "pci0000:97"),
    ),
    Case(
        Reason.PLUGIN_LIMIT,
        "Volcano's device plugin serves only one container, and no init container",
        (mib(1), mib(1)),
        with_volcanos_plugin(),
    ),
    Case(Reason.NUMA, "fewer than 2 cards with room on one NUMA node", (ON_ONE_NUMA_NODE,), two_numa_nodes()),
    Case(Reason.TOO_FEW_CARDS, "fewer than 2 GPUs on the node", (whole(2),), a_ledger(ONE)),
    Case(Reason.CARD_TOO_SMALL, "no card as large as 16001 MiB", (mib(16_001),), a_ledger(ONE)),
    Case(
        Reason.CARD_TOO_SMALL,
        "fewer than 2 cards as large as 12000 MiB",
        (mib(12_000, cards=2),),
        a_ledger(ONE, a_card(1, memory_mib=8_000)),
    ),
    Case(Reason.CARD_TOO_SMALL, "no card with 60 percent cores", (mib(1_000, cores=60),), a_ledger(a_card(cores=50))),
    Case(Reason.UNHEALTHY, "no card in working order", (mib(1),), a_ledger(a_card(healthy=False))),
    Case(
        Reason.UNHEALTHY,
        "fewer than 2 cards in working order",
        (mib(1, cards=2),),
        a_ledger(ONE, a_card(1, healthy=False)),
    ),
    Case(Reason.UNACCOUNTED, "no card without pods that are not in the ledger", (mib(1),), unaccounted()),
    Case(Reason.CORDONED, "no card that is not cordoned", (mib(1),), cordoned()),
    Case(Reason.NO_WHOLE_CARD, "no card entirely free", (whole(),), used((1, 0, 1))),
    Case(Reason.NO_WHOLE_CARD, "no card entirely free", (mib(1_000, cores=100),), used((1, 0, 1))),
    Case(Reason.NO_MEMORY, "no card with 4000 MiB free", (mib(4_000),), used((12_001, 0, 1))),
    Case(Reason.NO_MEMORY, "no card with 50 percent memory free", (percent(50),), used((8_001, 0, 1))),
    Case(Reason.NO_CORES, "no card with 30 percent cores free", (mib(1, cores=30),), used((1, 71, 1))),
    Case(Reason.NO_CORES, "no card with any percent cores free", (mib(1),), used((1, 100, 1), alone=True)),
    Case(Reason.NO_SLOT, "no card with a free slot", (mib(1),), used((1, 0, 10))),
    Case(
        Reason.NO_COMBINATION,
        "no card with 4000 MiB, cores and a slot free together",
        (mib(4_000, cores=50),),
        used((15_000, 0, 1), (0, 80, 1)),
    ),
    Case(
        Reason.CONTAINERS_TOGETHER,
        "no cards that hold all containers of the pod at once",
        (mib(10_000), mib(10_000)),
        a_ledger(ONE),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.reason.value)
def test_the_first_true_reason_is_given_in_words(case: Case) -> None:
    found = choose_cards(case.pod, case.ledger.node_room("node-a"), Preference.BINPACK)
    assert found == Refusal(case.reason, case.text)


MISSING = {
    Reason.NO_INVENTORY: ["needs GPUs that its node agent reports: it reports none"] * 3,
    Reason.AGENT_NOT_READY: ["needs its GPU node agent to be ready: check the agent's pod on the node, and its log"],
    Reason.NODE_NOT_STARTING: ["needs a kubelet and a GPU node agent that start the pods it has: check their logs"],
    Reason.NODE_ARRIVING: [
        "needs a moment: its stand-in, by which an autoscaler was asked for it, is being deleted",
    ],
    Reason.ONLY_WHOLE_GPUS: ["needs a node whose GPUs are in the ledger: here a pod gets GPUs only by their number"],
    Reason.NO_GPU_LEFT: ["would fit once pods that have 1 of the node's GPUs have ended: 2 of 3 are left"],
    Reason.OTHER_RESOURCE: [
        "needs a device plugin that serves volcano.sh/vgpu-number; here it serves nvidia.com/gpu (setting "
        "agent_also_serves)"
    ],
    Reason.PLUGIN_LIMIT: ["needs a pod with one container and no init container, or a node with another device plugin"],
    Reason.TOO_FEW_CARDS: ["needs 1 more card: it has 1 of 2"],
    Reason.NOT_WANTED: [
        "has no card of the kind that the pod asks for",
        f"has no 2 cards of the kind that have the same {PCIE_ROOT}",
        "has no card of the kind that the pod asks for",
    ],
    Reason.CARD_TOO_SMALL: [
        "has no card that large: its largest, GPU-node-a-0 (index 0), has 1 MiB too little",
        "needs 1 more card of the kind: it has 1 of 2; the largest other one, GPU-node-a-1 (index 1), has 4,000 MiB "
        "too little",
        "has no card that large: its largest, GPU-node-a-0 (index 0), has 10 % of cores too little",
    ],
    Reason.UNHEALTHY: [f"would fit once GPU-node-a-{index} (index {index}) works again" for index in (1, 0, 1)],
    Reason.UNACCOUNTED: [
        "would fit once the pods on GPU-node-a-0 (index 0) that are not in the ledger are entered (`gpuledger audit`) "
        "or have ended"
    ],
    Reason.CORDONED: ["would fit once GPU-node-a-0 (index 0) is uncordoned"],
    Reason.NO_WHOLE_CARD: ["would fit once 1 pod has left GPU-node-a-0 (index 0)"] * 3,
    Reason.NO_MEMORY: ["would fit if 1 MiB more were free on GPU-node-a-0 (index 0)"] * 2,
    Reason.NO_CORES: [
        "would fit if 1 % of cores more were free on GPU-node-a-0 (index 0)",
        "would fit once 1 pod has left GPU-node-a-0 (index 0)",
    ],
    Reason.NO_SLOT: ["would fit if 1 slot more were free on GPU-node-a-0 (index 0)"],
    Reason.NO_COMBINATION: ["would fit if 30 % of cores more were free on GPU-node-a-1 (index 1)"],
    Reason.NUMA: ["would fit if 1 more card had room on the NUMA node of GPU-node-a-0 (index 0)"],
    Reason.CONSTRAINT: [
        "would fit if 1 more card had room with GPU-node-a-1 (index 1), so that all have the same "
        "resource.kubernetes.io/pcieRoot",
        "would fit if 1 more card had room with GPU-node-a-0 (index 0), so that all differ in "
        "resource.kubernetes.io/pcieRoot",
    ],
    Reason.CONTAINERS_TOGETHER: [
        f"each container fits alone, but no cards for all of them have the same {PCIE_ROOT}",
        "each container fits alone, but not all together: they ask for 2 shares with 20,000 MiB, and the cards here "
        "have 16,000 MiB, 100 % of cores, 10 slots free in all",
    ],
}
"""What explain says is missing, in the order of the cases."""


def test_explain_gives_the_reason_of_placement_and_says_what_is_missing() -> None:
    found: dict[Reason, list[str]] = {}
    for case in CASES:
        ledger = case.ledger
        closed = ledger.strangers.closed("node-a")
        verdict = explain_node(case.pod, ledger.node_room("node-a"), ledger.entries_of_node("node-a"), closed=closed)
        assert verdict.refusal == Refusal(case.reason, case.text)
        found.setdefault(case.reason, []).append(verdict.remedy)
    assert found == MISSING


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.reason.value)
def test_a_card_that_takes_the_container_says_so_and_no_other(case: Case) -> None:
    node = case.ledger.node_room("node-a")
    closed = case.ledger.strangers.closed("node-a")
    verdict = explain_node(case.pod, node, case.ledger.entries_of_node("node-a"), closed=closed)
    demand, rooms = case.pod[verdict.container], {room.card.uuid: room for room in node.rooms}
    for each in verdict.cards:
        room = rooms.get(each.card.uuid)
        takes = room is not None and demand.admits(each.card) and fits(demand, room)
        assert (each.reason is None) == (takes and case.reason not in OF_SEVERAL_CARDS), each
        assert each.text


def test_every_reason_of_placement_has_a_case() -> None:
    assert {case.reason for case in CASES} == set(Reason) - NOT_PLACEMENT


def test_a_whole_card_beside_a_share_is_refused_and_a_share_beside_a_whole_card() -> None:
    ledger = a_ledger(ONE)
    occupy(ledger, "share", a_share(ONE))
    whole_beside_share = choose_cards((whole(),), ledger.node_room("node-a"), Preference.BINPACK)
    ledger.seats.give_up("share")
    occupy(ledger, "whole", whole_share(ONE))
    share_beside_whole = choose_cards((mib(1),), ledger.node_room("node-a"), Preference.BINPACK)
    assert isinstance(whole_beside_share, Refusal)
    assert isinstance(share_beside_whole, Refusal)
    assert (whole_beside_share.reason, share_beside_whole.reason) == (Reason.NO_WHOLE_CARD, Reason.NO_MEMORY)


def test_any_container_of_a_pod_can_be_the_one_that_does_not_fit() -> None:
    pod = (mib(1), mib(16_001, lifetime=Lifetime.INIT))
    found = choose_cards(pod, a_ledger(ONE).node_room("node-a"), Preference.BINPACK)
    assert found == Refusal(Reason.CARD_TOO_SMALL, "no card as large as 16001 MiB")
