"""Lists are noticed: what a watch has missed is in none of its events."""

from gpuledger.controller.lists_read import CARDS, NODES, PODS, ListsRead


def test_the_first_lists_are_complete_when_each_kind_was_listed() -> None:
    lists = ListsRead()
    for kind in (NODES, PODS, PODS, "namespaces"):
        lists.read(kind)
    assert not lists.first.is_set()
    lists.read(CARDS)
    assert lists.first.is_set()
    assert not lists.again.is_set()


def test_a_later_list_is_noticed() -> None:
    lists = ListsRead()
    for kind in (NODES, PODS, CARDS):
        lists.read(kind)
    lists.read(NODES)
    assert lists.again.is_set()


def test_the_list_of_a_plain_watch_counts_when_it_was_read_and_not_before() -> None:
    lists = ListsRead()
    lists.read(NODES)
    lists.read(PODS)
    listed = lists.listing(CARDS)
    assert not lists.first.is_set()
    listed(set())
    assert lists.first.is_set()
