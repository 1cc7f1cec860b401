"""The ledger as the page sees it: which nodes have changed for people, and how they look now."""

from typing import Any, cast

from builders import a_card, a_holder, a_ledger, a_share, cards_of, occupy, stored
from fakes.api_server import ApiServer
from fakes.operator_parts import an_operator
from gpuledger.controller.web.feed import LedgerSource, operators_source
from gpuledger.ledger.book import Ledger


def a_source(ledger: Ledger) -> LedgerSource:
    return LedgerSource(ledger, list, cast(Any, None), cast(Any, None))


def test_at_first_all_nodes_are_new() -> None:
    source = a_source(a_ledger(*cards_of("node-a", 2), *cards_of("node-b", 2)))
    assert sorted(source.touched_since(-1)) == ["node-a", "node-b"]


def test_a_node_without_cards_is_gone() -> None:
    card = a_card()
    ledger = a_ledger(card)
    source = a_source(ledger)
    seen = source.edition
    ledger.unload(card.uuid, 2)
    assert source.edition > seen
    assert (list(source.touched_since(seen)), source.node("node-a")) == (["node-a"], None)


def test_nothing_has_changed_when_nothing_has() -> None:
    source = a_source(a_ledger(*cards_of()))
    seen = source.edition
    assert (source.edition, list(source.touched_since(seen))) == (seen, [])


def test_what_is_only_on_hold_is_not_shown() -> None:
    card = a_card()
    ledger = a_ledger(card)
    occupy(ledger, "a", a_share(card))
    report = a_source(ledger).node("node-a")
    assert report is not None
    assert report.cards[0].holders == ()


def test_a_holder_that_arrives_is_seen_though_it_changes_no_room() -> None:
    card = a_card()
    ledger = a_ledger(card)
    source = a_source(ledger)
    share = a_share(card)
    occupy(ledger, "a", share)
    seen = source.edition
    ledger.load(stored(card, a_holder("a", share), version=2))
    source.note(card.node_name)
    assert list(source.touched_since(seen)) == [card.node_name]
    report = source.node(card.node_name)
    assert report is not None
    assert [holder.pod.name for holder in report.cards[0].holders] == ["a"]


def test_a_pod_that_is_seen_to_be_of_a_gang_is_shown_so_from_then_on() -> None:
    card = a_card()
    ledger = a_ledger()
    ledger.load(stored(card, a_holder("a", a_share(card))))
    gangs: dict[str, str] = {}
    unused = cast(Any, None)
    source = LedgerSource(ledger, list, unused, unused, gang_of=lambda uid: gangs.get(uid, ""))

    def shown() -> Any:
        report = source.node("node-a")
        assert report is not None
        return [holder.get("gang") for holder in report.json()["cards"][0]["holders"]]

    assert shown() == [None]
    seen = source.edition
    gangs["a"] = "train"
    source.note_pod("a")
    assert list(source.touched_since(seen)) == ["node-a"]
    assert shown() == ["train"]


async def test_the_page_has_each_limit_of_a_namespace() -> None:
    parts = an_operator(ApiServer())
    hard = {"limits.nvidia.com/gpumem": "9000", "limits.nvidia.com/gpu.A100": "2", "pods": "3"}
    metadata = {"uid": "uid-of-gpus", "name": "gpus", "namespace": "default"}
    parts.workflows.quotas.observe({"metadata": metadata, "spec": {"hard": hard}}, gone=False)
    [found] = operators_source(parts.workflows).namespaces()
    assert found["namespace"] == "default"
    assert found["quota"] == [
        {
            "resourceQuota": "gpus",
            "key": "limits.nvidia.com/gpu.A100",
            "counted": "number",
            "vendor": "nvidia",
            "model": "a100",
            "limit": 2,
        },
        {
            "resourceQuota": "gpus",
            "key": "limits.nvidia.com/gpumem",
            "counted": "memoryMiB",
            "vendor": "nvidia",
            "model": None,
            "limit": 9000,
        },
    ]
