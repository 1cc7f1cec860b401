"""Lists are noticed: what a watch has missed is in none of its events."""

from gpuledger.controller.kopf_session import NODES, ListsRead


def test_the_first_list_is_that_of_nodes() -> None:
    lists = ListsRead()
    lists.read("namespaces")
    assert not lists.first.is_set()
    lists.read(NODES)
    assert lists.first.is_set()
    assert not lists.again.is_set()


def test_a_later_list_is_noticed() -> None:
    lists = ListsRead()
    lists.read(NODES)
    lists.read(NODES)
    assert lists.again.is_set()


def test_the_list_of_a_plain_watch_is_a_later_one_and_counts_when_it_was_read_and_not_before() -> None:
    lists = ListsRead()
    lists.read(NODES)
    listed = lists.listing()
    assert not lists.again.is_set()
    listed(set())
    assert lists.again.is_set()
