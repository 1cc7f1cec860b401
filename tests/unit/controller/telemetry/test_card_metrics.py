"""Metrics of cards and shares: base units, bounded series, names that need escaping."""

from dataclasses import replace

from builders import a_card, a_holder, a_ledger, a_pod, a_share, stored, whole_share
from fakes.metrics import ALL, Shown, samples, value
from gpuledger.ledger.book import Ledger
from gpuledger.model.card import Amounts
from gpuledger.model.share import Holder, HolderState, Misfit, Pod, StoredCard

LABELS = {"node": "node-a", "uuid": "GPU-node-a-0", "index": "0", "model": "A100"}
CARD = replace(a_card(memory_mib=40_960, cores=200), model="A100", vendor="nvidia", mode="hami-core", numa_node=0)


def one_card(*holders: Holder) -> Ledger:
    ledger = a_ledger()
    ledger.load(stored(CARD, *holders))
    return ledger


def test_a_card_is_shown_in_base_units() -> None:
    shares = a_holder("a", a_share(CARD, 1_024, 30)), a_holder("b", a_share(CARD, 2_048, 25, 2))
    text = Shown(one_card(*shares)).metrics().text()
    shown = {
        name.removeprefix("gpuledger_card_"): v for (name, labels), v in samples(text).items() if "uuid" in dict(labels)
    }
    assert shown["memory_capacity_bytes"] == 40_960 * 2**20
    assert shown["memory_used_bytes"] == 3 * 2**30
    assert (shown["cores_capacity_ratio"], shown["cores_used_ratio"]) == (2.0, 0.55)
    assert (shown["slots_capacity"], shown["slots_used"]) == (10, 3)
    assert (shown["holders"], shown["exclusive"]) == (2, 0)
    assert value(text, "gpuledger_card_phase", **LABELS, phase="Ready") == 1
    assert value(text, "gpuledger_card_info", **LABELS, vendor="nvidia", mode="hami-core", numa_node="0") == 1


def test_who_has_a_card_alone_claims_and_conflicts_are_shown() -> None:
    misfit = Misfit(a_pod("m"), Amounts(1, 1, 1), "no room")
    ledger = a_ledger()
    ledger.load(StoredCard(CARD, 1, (a_holder("a", whole_share(CARD)),), "Unavailable", "gone", (misfit,)))
    text = Shown(ledger).metrics().text()
    assert value(text, "gpuledger_card_exclusive", **LABELS) == 1
    assert value(text, "gpuledger_card_conflicts", **LABELS) == 1
    assert value(text, "gpuledger_conflicts") == 1
    assert value(text, "gpuledger_card_claims", **LABELS) == 0
    assert value(text, "gpuledger_cards_in_phase", phase="Unavailable") == 1
    assert value(text, "gpuledger_cards_in_phase", phase="Ready") == 0


def test_sums_are_by_model_and_by_namespace() -> None:
    ledger = a_ledger()
    for index, model in enumerate(("A100", "A100", "H100")):
        card = replace(a_card(index, memory_mib=1_000), model=model)
        ledger.load(stored(card, Holder(Pod(f"u{index}", f"team-{index % 2}", "p"), a_share(card, 100 + index, 10))))
    text = Shown(ledger).metrics().text()
    assert value(text, "gpuledger_model_memory_capacity_bytes", model="A100") == 2_000 * 2**20
    assert value(text, "gpuledger_model_memory_used_bytes", model="A100") == 201 * 2**20
    assert value(text, "gpuledger_model_slots_used", model="H100") == 1
    assert value(text, "gpuledger_namespace_memory_used_bytes", namespace="team-0") == 202 * 2**20
    assert value(text, "gpuledger_namespace_cores_used_ratio", namespace="team-0") == 0.2


def test_a_shrunken_card_is_over_capacity() -> None:
    ledger = one_card(a_holder("a", a_share(CARD, 40_960)))
    assert value(Shown(ledger).metrics().text(), "gpuledger_cards_over_capacity") == 0
    smaller = replace(CARD, capacity=replace(CARD.capacity, memory_mib=40_959))
    ledger.load(stored(smaller, a_holder("a", a_share(CARD, 40_960)), version=2))
    assert value(Shown(ledger).metrics().text(), "gpuledger_cards_over_capacity") == 1


def test_a_pod_that_is_released_and_its_successor_are_two_series_and_one_under_other_names() -> None:
    first = replace(Holder(Pod("old", "team", "web-0"), a_share(CARD, 1_000, 10)), state=HolderState.RELEASING)
    second = Holder(Pod("new", "team", "web-0"), a_share(CARD, 2_000, 20))
    elsewhere = Holder(Pod("other", "staging", "web-0"), a_share(CARD, 4_000, 30))
    text = Shown(one_card(first, second, elsewhere)).metrics(ALL).text()
    where = {"node": "node-a", "uuid": CARD.uuid, "namespace": "team", "pod": "web-0"}
    assert value(text, "gpuledger_pod_memory_bytes", **where, pod_uid="old") == 1_000 * 2**20
    assert value(text, "gpuledger_pod_cores_ratio", **where, pod_uid="new") == 0.2
    hami = {"zone": "vGPU", "namespace": "team", "node": "node-a", "pod": "web-0", "container_index": "0"}
    assert value(text, "hami_vgpu_memory_allocated_bytes", **hami, device_uuid=CARD.uuid) == 3_000 * 2**20
    pod = {"devID": CARD.uuid, "NodeName": "node-a", "podName": "web-0"}  # Volcano's has no namespace
    assert value(text, "volcano_vgpu_device_memory_allocation_for_a_certain_pod", **pod) == 7_000


def test_each_share_adds_three_series_and_each_card_twelve() -> None:
    def count(*holders: Holder) -> int:
        text = Shown(one_card(*holders)).metrics().text()
        return sum(1 for name, labels in samples(text) if "uuid" in dict(labels))

    assert count() == 12
    assert count(*(a_holder(str(n), a_share(CARD, 1)) for n in range(5))) == 12 + 5 * 3


def test_what_a_driver_calls_its_card_cannot_break_the_text() -> None:
    model = 'odd "name" \\ with\nlines'
    ledger = a_ledger()
    ledger.load(stored(replace(CARD, model=model)))
    text = Shown(ledger).metrics(ALL).text()
    assert value(text, "gpuledger_card_holders", **{**LABELS, "model": model}) == 0
    assert value(text, "gpuledger_model_slots_capacity", model=model) == 10
