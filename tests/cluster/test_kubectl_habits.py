"""What kubectl itself shows of the cards, with its own words: get, explain, categories, sorting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.cluster import Connection
from cluster.written_cards import Card, a_holder, a_status
from control_plane import ControlPlane
from gpuledger.formats.custom_resource.crd import custom_resource_definition

pytestmark = pytest.mark.promise("readable")

Json = dict[str, Any]


def test_kubectl_get_shows_the_account_of_a_card(card: Card) -> None:
    card.create().write(a_status(a_holder("a", 4096, 25), a_holder("b", 1024, 5), pods="default/a,default/b"))
    header, row = card.table()
    assert " ".join(header) == "NAME NODE INDEX MODEL USED-MIB TOTAL-MIB CORES USED-SLOTS TOTAL-SLOTS PODS PHASE AGE"
    values = [
        card.name,
        f"node-of-{card.name}",
        "3",
        "A100",
        "5120",
        "40960",
        "30",
        "2",
        "10",
        "default/a,default/b",
        "Ready",
    ]
    assert row[:-1] == values


def test_the_slots_are_those_of_now_after_the_capacity_has_changed(card: Card) -> None:
    card.held_by(a_holder("a"))
    card.patch_spec(capacity={"number": 20})
    header, row = card.table()
    columns = dict(zip(header, row, strict=False))
    assert (columns["USED-SLOTS"], columns["TOTAL-SLOTS"]) == ("1", "20")


def test_the_wide_table_adds_all_cores_uuid_isolation_and_numa_node(card: Card) -> None:
    card.create(card.manifest(mode="driver")).write(a_status())
    header, row = card.table("-o", "wide")
    assert header[-5:] == ["AGE", "TOTAL-CORES", "UUID", "ISOLATION", "NUMA"]
    assert row[-4:] == ["100", card.uuid, "driver", "1"]


def test_the_cards_of_a_node_can_be_selected_by_field(card: Card, ledger: ControlPlane) -> None:
    card.create()
    names = ledger.kubectl("get", "gpua", f"--field-selector=spec.nodeName=node-of-{card.name}", "-o", "name")
    assert names.split() == [f"gpuallocation.gpuledger.dev/{card.name}"]


def test_cards_can_be_selected_by_their_phase_and_model(card: Card, ledger: ControlPlane) -> None:
    model, selected = f"model-of-{card.name}", [f"gpuallocation.gpuledger.dev/{card.name}"]
    card.create(card.manifest(model=model)).write(a_status(phase="Unhealthy"))

    def found(selector: str) -> list[str]:
        return ledger.kubectl("get", "gpua", f"--field-selector={selector}", "-o", "name").split()

    assert set(selected) <= set(found("status.phase=Unhealthy"))
    assert found(f"spec.model={model}") == found(f"spec.model={model},status.phase=Unhealthy") == selected
    assert found(f"spec.model={model},status.phase!=Unhealthy") == []


def test_the_cards_of_a_node_can_be_listed_by_index(card: Card, connection: Connection, ledger: ControlPlane) -> None:
    node = f"node-of-{card.name}"
    for index in (10, 2, 0):
        other = Card(ledger, connection, 1000 + index)
        other.create(other.manifest(nodeName=node, index=index))
    by_index = (f"--field-selector=spec.nodeName={node}", "--sort-by=.spec.index")
    lines = ledger.kubectl("get", "gpua", *by_index, "--no-headers").splitlines()
    assert [line.split()[2] for line in lines] == ["0", "2", "10"]


@pytest.mark.parametrize("name", ["gpuallocations", "gpuallocation", "gpua", "gpuledger"])
def test_kubectl_knows_the_cards_by_their_names_and_by_a_category(name: str, card: Card, ledger: ControlPlane) -> None:
    card.create()
    assert f"gpuallocation.gpuledger.dev/{card.name}" in ledger.kubectl("get", name, "-o", "name").split()


def test_cards_are_not_in_what_kubectl_get_all_shows_of_a_namespace(card: Card, ledger: ControlPlane) -> None:
    card.create()
    assert card.name not in ledger.kubectl("get", "all", "--all-namespaces", "-o", "name")


@pytest.mark.parametrize(
    "part", ["", ".spec", ".spec.capacity", ".status", ".status.used", ".status.holders.containers", ".status.claims"]
)
def test_kubectl_explain_says_something_of_every_field(part: str, ledger: ControlPlane) -> None:
    text = ledger.kubectl("explain", f"gpuallocations{part}")
    assert "DESCRIPTION:" in text
    assert "<no description>" not in text


def test_kubectl_explain_recursive_names_every_field(ledger: ControlPlane) -> None:
    lines = ledger.kubectl("explain", "gpuallocations", "--recursive").splitlines()
    named = {line.split()[0] for line in lines if "\t<" in line}
    (version,) = custom_resource_definition()["spec"]["versions"]
    fields = set(_fields(version["schema"]["openAPIV3Schema"]))
    assert {"nodeName", "holders", "containers", "victims"} < fields
    assert fields <= named


def _fields(schema: Json) -> Iterator[str]:
    """Yield the names of all fields, at any depth."""
    for name, field in schema.get("properties", {}).items():
        yield name
        yield from _fields(field)
    if "items" in schema:
        yield from _fields(schema["items"])


def test_kubectl_explain_tells_what_a_holder_is(ledger: ControlPlane) -> None:
    text = " ".join(ledger.kubectl("explain", "gpua.status.holders").split())
    assert "A pod that holds a share of the card. It counts in full, whatever its state." in text
