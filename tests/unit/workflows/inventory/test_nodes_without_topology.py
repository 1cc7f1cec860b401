"""Nodes on which topology falls back are found and told of once, if anybody asks for topology."""

import logging
from dataclasses import replace

import pytest

from builders import a_ledger, cards_of, linked_cards, stored
from gpuledger.ledger.book import Ledger
from gpuledger.placement.policy import Policy, Preference
from gpuledger.workflows.inventory import NodesWithoutTopology

TOPOLOGY = Policy(cards=Preference.TOPOLOGY)


def a_cluster() -> Ledger:
    return a_ledger(
        *linked_cards([[0, 10], [10, 0]], node_name="linked"),
        *cards_of("unlinked", 2),
        *(replace(card, numa_node=card.index) for card in cards_of("numa-alone", 2)),
        *cards_of("single", 1),
    )


@pytest.mark.parametrize("policy", [TOPOLOGY, Policy(nodes=Preference.TOPOLOGY)])
def test_they_have_several_cards_and_no_links(policy: Policy) -> None:
    assert sorted(NodesWithoutTopology(a_cluster(), policy)) == ["numa-alone", "unlinked"]


def test_under_another_policy_nobody_minds() -> None:
    assert list(NodesWithoutTopology(a_cluster(), Policy())) == []


def test_each_is_told_once_and_again_if_it_has_lost_its_links_later(caplog: pytest.LogCaptureFixture) -> None:
    ledger = a_cluster()
    unlinked = NodesWithoutTopology(ledger, TOPOLOGY)
    with caplog.at_level(logging.WARNING):
        unlinked.log_new()
        assert len(caplog.messages) == 2
        assert caplog.messages[1] == (
            "node unlinked: its cards report no links; the policy topology chooses as binpack there"
        )
        unlinked.log_new()
        assert len(caplog.messages) == 2
        for card in cards_of("linked", 2):
            ledger.load(stored(card, version=2))
        unlinked.log_new()
        assert caplog.messages[2].startswith("node linked: ")
