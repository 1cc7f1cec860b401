"""From hardware to what the node offers: its configuration, and what a source or a MIG device fixes."""

from dataclasses import replace

from fakes.objects import DIALECTS
from gpuledger.agent.devices.source import Device, Snapshot, node_cards, why_no_limits
from gpuledger.formats.kubernetes.node import REGISTER_ANNOTATION, node_facts, read_registers, register_of
from gpuledger.model.card import Amounts, Card
from gpuledger.model.node import NodeConfig

CARD = Device("GPU-a", 0, "A100", 40_000, numa_node=1, pcie_root="pci0000:16", links={"GPU-b": 100})
SHARE = Device("MIG-a", 64, "1g", 10_000, mode="mig", parent_uuid="GPU-c", number=1)


def cards(config: NodeConfig, *devices: Device) -> list[Card]:
    return list(node_cards(Snapshot(devices), "node-a", config))


def test_a_card_is_offered_as_the_node_is_configured() -> None:
    config = NodeConfig(split_count=4, memory_scaling=1.5, core_scaling=2.0, mode="mps")
    (card,) = cards(config, CARD)
    assert card == Card(
        uuid="GPU-a",
        node_name="node-a",
        index=0,
        capacity=Amounts(60_000, 200, 4),
        model="A100",
        mode="mps",
        numa_node=1,
        pcie_root="pci0000:16",
        links={"GPU-b": 100},
    )


def test_a_card_with_a_fault_is_not_healthy() -> None:
    assert [card.healthy for card in cards(NodeConfig(), CARD, replace(CARD, uuid="GPU-b", fault="lost"))] == [
        True,
        False,
    ]


def test_a_mig_device_is_one_share_whatever_the_node_is_configured_to() -> None:
    config = NodeConfig(split_count=4, memory_scaling=1.5, mode="mps")
    assert [(card.mode, card.capacity) for card in cards(config, SHARE)] == [("mig", Amounts(10_000, 100, 1))]


def test_a_whole_card_is_one_share_where_only_mig_keeps_shares_apart() -> None:
    config = NodeConfig(split_count=4, memory_scaling=1.5, mode="mig")
    assert [(card.mode, card.capacity) for card in cards(config, CARD, SHARE)] == [
        ("none", Amounts(40_000, 100, 1)),
        ("mig", Amounts(10_000, 100, 1)),
    ]


def test_slots_that_the_source_fixes_are_not_configured() -> None:
    (card,) = cards(NodeConfig(split_count=4), replace(CARD, number=2))
    assert card.capacity == Amounts(40_000, 100, 2)


def test_hidden_cards_are_not_offered() -> None:
    assert cards(NodeConfig(hidden_uuids=frozenset({"GPU-a"})), CARD) == []
    assert cards(NodeConfig(hidden_indexes=frozenset({64})), SHARE) == []


def test_the_operator_reads_the_same_cards_from_the_annotation() -> None:
    offered = cards(NodeConfig(mode="mps"), CARD, replace(CARD, uuid="GPU-b", index=1, fault="lost"), SHARE)
    node = {"metadata": {"name": "node-a", "annotations": {REGISTER_ANNOTATION: register_of(offered)}}}
    inventory = read_registers(node_facts(node, DIALECTS))
    assert inventory.problems == ()
    assert list(inventory.cards) == offered


CAN = replace(CARD, why_no_limits="")


def test_where_the_driver_is_to_limit_memory_a_card_on_which_it_can_not_takes_no_pods() -> None:
    config = NodeConfig(mode="driver")
    old = replace(CARD, uuid="GPU-b", why_no_limits="it needs driver 615")
    sick = replace(old, uuid="GPU-c", fault="lost")
    found = {card.uuid: (card.healthy, card.fault) for card in cards(config, CAN, old, sick, SHARE)}
    assert found == {
        "GPU-a": (True, ""),
        "GPU-b": (False, "isolation is driver, and it needs driver 615"),
        "GPU-c": (False, "lost"),
        "MIG-a": (True, ""),
    }
    assert all(card.healthy for card in cards(NodeConfig(mode="mps"), CAN, old, SHARE))
    assert why_no_limits(Snapshot((CAN, SHARE))) == ""
    assert why_no_limits(Snapshot((CAN, old))) == "it needs driver 615"


def test_the_reason_is_in_the_register_and_read_from_there() -> None:
    register = register_of(cards(NodeConfig(mode="driver"), CARD))
    node = {"metadata": {"name": "node-a", "annotations": {REGISTER_ANNOTATION: register}}}
    (card,) = read_registers(node_facts(node, DIALECTS)).cards
    assert (card.healthy, card.mode) == (False, "driver")
    assert card.fault.startswith("isolation is driver, and no driver was asked")


def test_what_the_driver_keeps_of_a_card_is_offered_or_not_as_the_setting_says() -> None:
    device = replace(CAN, reserved_mib=450)
    scaled = NodeConfig(memory_scaling=2.0)
    for config, keep, memory_mib in (
        (NodeConfig(), False, 40_000),
        (NodeConfig(), True, 39_550),
        (scaled, True, 79_100),
    ):
        (card,) = node_cards(Snapshot((device,)), "node-a", config, keep)
        assert card.capacity.memory_mib == memory_mib
    (odd,) = node_cards(Snapshot((replace(device, reserved_mib=40_000),)), "node-a", NodeConfig(), True)
    assert odd.capacity.memory_mib == 40_000, "a driver that says that nothing is left is not believed"
