"""GPUAllocation objects: what is written is what the CRD allows, and what is read is what was written."""

from typing import Any

import pytest

from builders import a_card, a_holder, a_share
from gpuledger.formats.custom_resource.stored_card import (
    NODE_LABEL,
    new_allocation,
    pods_column,
    stored_card,
    used_json,
)
from gpuledger.model.errors import BadInput
from gpuledger.model.share import Holder, Pod, StoredCard

CARD = a_card()


def allocation(**fields: Any) -> dict[str, Any]:
    found = new_allocation(CARD)
    found["metadata"]["resourceVersion"] = "7"
    return {**found, **fields}


def holders(*names: str) -> list[Holder]:
    return [Holder(Pod(name, "default", name), a_share(CARD), attempt="first") for name in names]


def test_a_new_card_is_named_after_its_uuid_and_labelled_with_its_node() -> None:
    found = new_allocation(a_card(uuid="GPU-0A", node_name="node-a"))
    assert found["metadata"] == {"name": "gpu-0a", "labels": {NODE_LABEL: "node-a"}}
    assert "status" not in found


def test_a_node_whose_name_is_too_long_for_a_label_has_none() -> None:
    assert new_allocation(a_card(node_name="n" * 63))["metadata"]["labels"] == {NODE_LABEL: "n" * 63}
    assert new_allocation(a_card(node_name="n" * 64))["metadata"]["labels"] == {}


def test_a_card_without_a_status_has_no_holders_yet() -> None:
    assert stored_card(allocation()) == StoredCard(CARD, 7, None)


def test_a_card_with_an_empty_status_has_no_holders() -> None:
    status = {"phase": "Ready", "holders": [], "used": used_json([])}
    assert stored_card(allocation(status=status)) == StoredCard(CARD, 7, (), "Ready")


@pytest.mark.parametrize(
    "broken",
    [
        {"spec": {}},
        {"spec": None},
        {"metadata": {}},
        {"metadata": {"resourceVersion": "x"}},
        {"status": {}},
        {"status": {"phase": "Ready", "holders": [{}]}},
        {"status": {"phase": "Ready", "holders": None}},
    ],
)
def test_an_object_of_another_crd_is_refused_with_a_hint(broken: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="is the CRD of this release installed"):
        stored_card(allocation(**broken))


def test_the_totals_are_the_sums() -> None:
    shares = [a_share(CARD, 4_000, 30), a_share(CARD, 1_000, 5, 2)]
    assert used_json(a_holder("p", share) for share in shares) == {"memoryMiB": 5_000, "cores": 35, "number": 3}


@pytest.mark.parametrize(
    ("names", "column"),
    [
        ([], ""),
        (["a"], "default/a"),
        (["a", "b"], "default/a, default/b"),
        (["a", "b", "c"], "default/a, default/b +1"),
        (["a", "b", "c", "d", "e"], "default/a, default/b +3"),
    ],
)
def test_the_pods_column_names_two_and_counts_the_rest(names: list[str], column: str) -> None:
    assert pods_column(holders(*names)) == column


def test_the_pods_column_is_cut_where_it_gets_too_long() -> None:
    column = pods_column(holders("a" * 200, "b" * 200, "c"))
    assert len(column) == 256
    assert column.startswith("default/" + "a" * 200 + ", default/b")
    assert column.endswith("b… +1")
