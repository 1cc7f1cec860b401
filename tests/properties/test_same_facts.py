"""Whoever looks at the ledger, and in whichever way, sees the same: kubectl, a report as JSON, and the metrics."""

from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from fakes.metrics import ALL, Shown, samples
from gpuledger.formats.custom_resource.stored_card import (
    holder_json,
    new_allocation,
    pods_column,
    stored_card,
    used_json,
)
from gpuledger.ledger.book import Ledger
from gpuledger.model.card import Amounts, Card, CardPhase
from gpuledger.model.share import ContainerShare, Holder, HolderState, Pod, Share
from gpuledger.reports.cards import by_namespace, report_of, report_of_stored

Json = dict[str, Any]
MIB = 2**20

names = st.sampled_from(["a", "b", "web-0"])
words = st.sampled_from(["", "A100", 'of "many" words', "back\\new", "NVIDIA H100 80GB HBM3"])


@st.composite
def cards(draw: st.DrawFn, number: int) -> Card:
    capacity = Amounts(draw(st.integers(1, 200_000)), draw(st.sampled_from([100, 200])), draw(st.integers(1, 100)))
    node_name, numa_node = draw(st.sampled_from(["node-a", "node-b"])), draw(st.none() | st.integers(0, 1))
    return Card(
        f"GPU-{number}", node_name, number, capacity, model=draw(words), mode=draw(st.sampled_from(["", "mig"])),
        numa_node=numa_node,
    )  # fmt: skip


@st.composite
def holders(draw: st.DrawFn, card: Card, uid: str) -> Holder:
    amounts = Amounts(draw(st.integers(0, 90_000)), draw(st.integers(0, 100)), draw(st.integers(1, 3)))
    share = Share(card.uuid, amounts, draw(st.booleans()), (ContainerShare("main", amounts.memory_mib, amounts.cores),))
    pod = Pod(uid, draw(names), draw(names), draw(st.integers(-5, 5)))
    return Holder(pod, share, draw(st.sampled_from(HolderState)), attempt=uid)


@st.composite
def allocations(draw: st.DrawFn) -> list[Json]:
    """Return cards as the API server stores them."""
    found = []
    for number in range(draw(st.integers(0, 4))):
        card = draw(cards(number))
        count = draw(st.integers(0, 4))
        held = [draw(holders(card, f"uid-{number}-{place}")) for place in range(count)]
        allocation = new_allocation(card)
        allocation["metadata"]["resourceVersion"] = "7"
        if draw(st.booleans()) or held:  # else its first status is not written yet
            allocation["status"] = {
                "phase": draw(st.sampled_from(CardPhase)).value,
                "reason": "",
                "used": used_json(held),
                "pods": pods_column(held),
                "holders": [holder_json(holder) for holder in held],
            }
        found.append(allocation)
    return found


@given(allocations())
def test_kubectl_reports_and_metrics_show_the_same(stored: list[Json]) -> None:
    ledger = Ledger()
    for allocation in stored:
        ledger.load(stored_card(allocation))
    text = samples(Shown(ledger).metrics(ALL).text())
    expected: dict[object, float] = {}
    for allocation in stored:
        spec, status = allocation["spec"], allocation.get("status") or {}
        entry = ledger.entry(spec["uuid"])
        assert entry is not None
        report = report_of(entry).json()
        assert report == report_of_stored(stored_card(allocation)).json()
        used = status.get("used", {"memoryMiB": 0, "cores": 0, "number": 0})
        assert (report["used"], report["capacity"]) == (used, spec["capacity"])
        assert (report["phase"], report["node"], report["index"]) == (
            status.get("phase", ""),
            spec["nodeName"],
            spec["index"],
        )
        labels = {"node": spec["nodeName"], "uuid": spec["uuid"], "index": str(spec["index"]), "model": spec["model"]}
        expected |= of_card(labels, report, used) | of_pods(labels, status.get("holders", []))
    shown = {key: each for key, each in text.items() if "uuid" in dict(key[1])}
    assert shown == expected
    event(f"{len(stored)} cards")


def of_card(labels: dict[str, str], report: Json, used: Json) -> dict[object, float]:
    """Return the samples of a card, from what its object says."""
    capacity = report["capacity"]
    numbers = {
        "memory_capacity_bytes": capacity["memoryMiB"] * MIB,
        "memory_used_bytes": used["memoryMiB"] * MIB,
        "cores_capacity_ratio": capacity["cores"] / 100,
        "cores_used_ratio": used["cores"] / 100,
        "slots_capacity": capacity["number"],
        "slots_used": used["number"],
        "holders": len(report["holders"]),
        "exclusive": any(holder["exclusive"] for holder in report["holders"]),
        "claims": report["claims"],
        "conflicts": report["conflicts"],
    }
    numa_node = "" if report["numaNode"] is None else str(report["numaNode"])
    info = {**labels, "vendor": report["vendor"], "mode": report["mode"], "numa_node": numa_node}
    return {
        **{key(f"gpuledger_card_{name}", labels): number for name, number in numbers.items()},
        key("gpuledger_card_phase", {**labels, "phase": report["phase"]}): 1,
        key("gpuledger_card_info", info): 1,
    }


def of_pods(labels: dict[str, str], held: list[Json]) -> dict[object, float]:
    found: dict[object, float] = {}
    for holder in held:
        where = {"node": labels["node"], "uuid": labels["uuid"], "namespace": holder["namespace"]}
        where |= {"pod": holder["pod"], "pod_uid": holder["podUID"]}
        found[key("gpuledger_pod_memory_bytes", where)] = holder["memoryMiB"] * MIB
        found[key("gpuledger_pod_cores_ratio", where)] = holder["cores"] / 100
        found[key("gpuledger_pod_slots", where)] = holder["number"]
    return found


def key(name: str, labels: dict[str, str]) -> object:
    return name, tuple(sorted(labels.items()))


@given(allocations())
def test_sums_are_those_of_the_cards(stored: list[Json]) -> None:
    ledger = Ledger()
    for allocation in stored:
        ledger.load(stored_card(allocation))
    text = samples(Shown(ledger).metrics().text())
    reports = [report_of(entry) for entry in ledger.entries()]
    held = {
        dict(labels)["namespace"]: number
        for (name, labels), number in text.items()
        if name == "gpuledger_namespace_memory_used_bytes"
    }
    assert held == {name: amounts.memory_mib * MIB for name, amounts in by_namespace(reports).items()}
    for kind, total in (("used", [r.used for r in reports]), ("capacity", [r.card.capacity for r in reports])):
        of_models = sum(each for (name, _), each in text.items() if name == f"gpuledger_model_memory_{kind}_bytes")
        assert of_models == sum(amounts.memory_mib for amounts in total) * MIB
    over = sum(not r.used.fits_in(r.card.capacity) for r in reports)
    assert text["gpuledger_cards_over_capacity", ()] == over
    assert sum(each for (name, _), each in text.items() if name == "gpuledger_cards_in_phase") == len(reports)
