"""Sets of node names that cost a bit for each node."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.model.node import NodeSets

NAMES = st.sets(st.sampled_from([f"node-{number}" for number in range(40)]))


@given(st.lists(NAMES, min_size=1, max_size=5), NAMES)
def test_it_says_what_a_set_of_the_same_names_says(made_before: list[set[str]], others: set[str]) -> None:
    sets = NodeSets()
    made = [sets.of(names) for names in made_before]
    for found, names in zip(made, made_before, strict=True):
        assert set(found) == names
        assert len(found) == len(names)
        assert found.isdisjoint(others) == names.isdisjoint(others)
        assert found & others == names & others
        assert (found == others) == (names == others)
        assert [found == other for other in made] == [names == other for other in made_before]
        assert len({found, sets.of(others)}) == len({frozenset(names), frozenset(others)})
        assert "never-seen" not in found


@given(NAMES, NAMES)
def test_equal_sets_are_one_object_however_many_nodes_have_come_meanwhile(names: set[str], others: set[str]) -> None:
    sets = NodeSets()
    first = sets.of(names)
    sets.of(others)
    assert sets.of(sorted(names, reverse=True)) is first


@pytest.mark.parametrize("nodes", [1_000, 5_000])
def test_a_set_takes_a_bit_for_each_node_of_the_cluster(nodes: int) -> None:
    names = [f"node-{number}" for number in range(nodes)]
    sets = NodeSets()
    sets.of(names)
    every_second = sets.of(names[::2])
    assert len(every_second) == nodes // 2
    assert sys.getsizeof(every_second) + sys.getsizeof(every_second._bits) < nodes / 8 + 200
