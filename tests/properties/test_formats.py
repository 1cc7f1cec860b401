"""What is written reads back the same, for every value there can be."""

import contextlib
from decimal import Decimal

from hypothesis import assume, given
from hypothesis import strategies as st

from builders import a_card
from fakes.objects import DIALECTS, a_node_object
from gpuledger.formats.custom_resource import stored_card as crd
from gpuledger.formats.custom_resource.gpu_allocation import GPUAllocation
from gpuledger.formats.custom_resource.stored_card import (
    PODS_LENGTH,
    holder_json,
    new_allocation,
    pods_column,
    stored_card,
    used_json,
)
from gpuledger.formats.kubernetes.node import NodeFacts, node_facts, read_registers, register_of
from gpuledger.formats.quantity import whole_number
from gpuledger.model.card import Amounts, Card
from gpuledger.model.errors import BadInput
from gpuledger.model.share import ContainerShare, Holder, HolderState, Pod, Share


def facts(register: str) -> NodeFacts:
    return node_facts(a_node_object("node-a", register=register), DIALECTS)


SUFFIXES = ("", "k", "M", "G", "T", "P", "E")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"

labels = st.text(LETTERS, min_size=1, max_size=63)
memory = st.integers(0, crd.MAX_MEMORY_MIB)
cores = st.integers(0, crd.MAX_CORES)
uuids = st.from_regex(
    r"\AGPU-[A-Za-z0-9]([-A-Za-z0-9]{0,20}[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]{0,8}[A-Za-z0-9])?){0,2}\Z"
)


def canonical(value: int) -> str:
    """Spell a number as the API server does: the largest suffix that needs no fraction."""
    power = 0
    while value and value % 1_000 == 0 and power < len(SUFFIXES) - 1:
        value, power = value // 1_000, power + 1
    return f"{value}{SUFFIXES[power]}"


@given(st.integers(0, 10**18) | st.builds(lambda n, p: n * 10**p, st.integers(0, 10**4), st.integers(0, 14)))
def test_the_canonical_form_of_a_number_reads_back_as_the_number(value: int) -> None:
    assert whole_number(canonical(value)) == value


@given(st.integers(0, 10**9), st.integers(0, 9), st.sampled_from("eE"))
def test_exponents_shift_the_number(value: int, exponent: int, letter: str) -> None:
    assert whole_number(f"{value}{letter}{exponent}") == value * 10**exponent


@given(st.decimals(0, 10**6, places=3), st.sampled_from([("", 0), ("k", 3), ("M", 6), ("m", -3)]))
def test_a_fraction_is_read_exactly_or_refused(number: Decimal, suffix: tuple[str, int]) -> None:
    exact = number.scaleb(suffix[1])
    try:
        value = whole_number(f"{number:f}{suffix[0]}")
    except BadInput:
        assert exact != exact.to_integral_value()
    else:
        assert value == exact


@given(st.text(max_size=12) | st.from_regex(r"\A[+-]?[0-9.]{0,6}[kKMGTPEmunei]{0,2}[0-9+-]{0,4}\Z"))
def test_any_text_is_a_whole_number_or_bad_input(text: str) -> None:
    with contextlib.suppress(BadInput):
        assert whole_number(text) >= 0


@st.composite
def cards(draw: st.DrawFn) -> Card:
    """Return a card within the CRD's limits."""
    return Card(
        uuid=draw(uuids),
        node_name=draw(labels),
        index=draw(st.integers(0, crd.MAX_INDEX)),
        capacity=Amounts(draw(st.integers(1, crd.MAX_MEMORY_MIB)), draw(cores), draw(st.integers(1, crd.MAX_SLOTS))),
        vendor=draw(st.text(max_size=32)),
        model=draw(st.text(max_size=256)),
        mode=draw(st.text(max_size=32)),
        numa_node=draw(st.none() | st.integers(-1, crd.MAX_INDEX)),
        pcie_root=draw(st.text(max_size=32)),
        healthy=draw(st.booleans()),
        links=draw(st.dictionaries(uuids, st.integers(0, crd.MAX_LINK_SCORE), max_size=4)),
        fault=draw(st.text(max_size=256)),
    )


@st.composite
def holders(draw: st.DrawFn, uuid: str = a_card().uuid, uid: str = "") -> Holder:
    """Return a holder within the CRD's limits."""
    containers = draw(st.lists(st.tuples(labels, memory, cores), max_size=3, unique_by=lambda part: part[0]))
    state = draw(st.sampled_from(HolderState))
    deadline = None if state is HolderState.ALLOCATED else draw(st.none() | st.just("2030-01-01T00:00:00Z"))
    priority = draw(st.integers(-(2**31), 2**31 - 1))
    pod = Pod(uid or draw(st.text(LETTERS, min_size=1, max_size=64)), draw(labels), draw(labels), priority)
    amounts = Amounts(draw(memory), draw(cores), draw(st.integers(1, crd.MAX_SLOTS_OF_ONE_POD)))
    shares = tuple(ContainerShare(*part) for part in containers)
    attempt = draw(st.text(LETTERS, max_size=32))
    return Holder(pod, Share(uuid, amounts, draw(st.booleans()), shares), state, deadline, attempt)


@given(cards(), st.data())
def test_a_card_with_its_holders_is_what_the_crd_allows_and_reads_back_the_same(
    card: Card, data: st.DataObject
) -> None:
    uids = data.draw(st.lists(st.text(LETTERS, min_size=1, max_size=64), max_size=3, unique=True))
    found = tuple(data.draw(holders(card.uuid, uid)) for uid in uids)
    used = used_json(found)
    assume(used["memoryMiB"] <= crd.MAX_MEMORY_MIB and used["cores"] <= crd.MAX_CORES)
    allocation = new_allocation(card)
    allocation["metadata"]["resourceVersion"] = "1"
    allocation["status"] = {
        "phase": "Ready",
        "reason": "",
        "used": used,
        "pods": pods_column(found),
        "holders": [holder_json(holder) for holder in found],
    }
    checked = GPUAllocation.model_validate(allocation)
    dumped = checked.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert dumped["status"] == allocation["status"]
    assert dumped["spec"] == allocation["spec"]
    read = stored_card(allocation)
    assert (read.card, read.holders, read.phase) == (card, found, "Ready")


@given(st.lists(holders(), max_size=6))
def test_the_pods_column_stays_in_its_bounds(found: list[Holder]) -> None:
    column = pods_column(found)
    assert len(column) <= PODS_LENGTH
    assert bool(column) == bool(found)
    assert column.endswith(f" +{len(found) - 2}") == (len(found) > 2)


@given(st.lists(cards(), max_size=4, unique_by=lambda card: card.object_name))
def test_cards_survive_the_way_through_a_nodes_register(found: list[Card]) -> None:
    here = [Card(**{**{name: getattr(card, name) for name in card.__slots__}, "node_name": "node-a"}) for card in found]
    inventory = read_registers(facts(register_of(here)))
    assert (list(inventory.cards), inventory.problems) == (here, ())
    assert [card.fault for card in inventory.cards] == [card.fault for card in here]


@given(st.text(max_size=60) | st.from_regex(r'\A\[(\{"uuid":"[a-z.-]{0,4}","index":-?[0-9]{1,5}\},?){0,3}\]\Z'))
def test_any_register_is_an_inventory_or_bad_input(text: str) -> None:
    with contextlib.suppress(BadInput):
        inventory = read_registers(facts(text))
        assert all(len(problem) < 1024 for problem in inventory.problems)
