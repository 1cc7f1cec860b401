"""A node that may be dead is the last choice of all that choose nodes; it is `slow` in the ledger."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_ledger, a_request, a_share, cards_of, mib, occupy, whole, whole_share
from fakes.api_server import ApiServer
from fakes.objects import GPU, a_node_object, a_pod_object
from fakes.operator_parts import an_operator
from gpuledger.formats.kubernetes.pod import pod_identity
from gpuledger.model.share import Holder
from gpuledger.placement.choose import Chooser
from gpuledger.placement.fragmentation.mix import Mix
from gpuledger.placement.policy import Policy, Preference
from gpuledger.workflows.preemption.preempt import SETTLE_S
from unit.workflows.placing.test_nominate_ahead import Queue
from unit.workflows.preemption import test_preempt as single
from unit.workflows.preemption import test_preempt_gang as gang

Json = dict[str, Any]
NODES = {name: cards_of(name, 2) for name in ("node-a", "node-b")}


@pytest.mark.parametrize("policy", Preference)
def test_by_every_policy_others_go_first_also_when_prices_change(policy: Preference) -> None:
    ledger = a_ledger(*(card for cards in NODES.values() for card in cards))
    occupy(ledger, "there", a_share(NODES["node-a"][0], 4_000))
    chooser = Chooser(ledger, Policy(policy, policy), Mix(first_look=1))
    request = a_request(mib(4_000))

    def chosen() -> str:
        chooser.arrived(request)
        return chooser.choose(request, list(NODES), 1).placements[0].node_name

    first = chosen()
    ledger.slow.note(first, True)
    [other] = NODES.keys() - {first}
    assert {chosen() for _ in range(200)} == {other}


async def test_a_member_for_which_room_is_kept_there_goes_elsewhere(api: ApiServer) -> None:
    for cards in NODES.values():
        for card in cards:
            api.put_card(card)
    parts = an_operator(api)
    for name in "ab":
        pod = a_pod_object(name, {GPU: "1"})
        pod["metadata"]["labels"] = {"gpuledger.dev/gang": "train", "gpuledger.dev/gang-minimum": "2"}
        api.put_pod(pod)
    parts.watch()
    [first] = parts.filter("a", *NODES).node_names
    parts.ledger.slow.note(first, True)
    assert parts.filter("b", *NODES).node_names == list(NODES.keys() - {first})


async def test_a_nomination_for_it_is_not_followed(api: ApiServer) -> None:
    """kube-scheduler asks for the nominated node alone, and for all if that one is refused."""
    queue = Queue(api)
    queue.come("asked", "next", "third")
    await queue.ask("asked")
    [(name, node)] = queue.nominated().items()
    queue.parts.ledger.slow.note(node, True)
    assert (await queue.ask(name)).node_names == []
    assert (await queue.ask(name, "node-a", "node-b", "node-c")).node_names != [node]


async def test_pods_are_evicted_on_another_node(api: ApiServer) -> None:
    for node, cards in NODES.items():
        api.put_node(a_node_object(node, cards))
        for card in cards:
            pod = single.low(card)
            pod["metadata"] |= {"name": f"{node}-{card.index}", "uid": f"uid-{node}-{card.index}"}
            api.put_pod(pod)
            api.put_card(card, Holder(pod_identity(pod), whole_share(card), attempt="first"))
    async for parts in single.run(api):
        parts.ledger.slow.note("node-a", True)
        api.put_pod(single.refused("high"))
        parts.filter("high", *NODES)
        await single.pass_time(parts, 2 * SETTLE_S)
        assert [name.rpartition("-")[0] for name in single.evicted(api)] == ["node-b"]


@pytest.mark.parametrize(("size", "expected"), [(4, {"node-b"}), (8, {"node-a", "node-b"})])
async def test_pods_are_evicted_for_a_gang_on_another_node_if_that_is_enough(
    api: ApiServer, size: int, expected: set[str]
) -> None:
    for number, card in enumerate(gang.CARDS):
        gang.runs_on(api, f"low-{number}", card)
    for name, cards in gang.NODES.items():
        api.put_node(a_node_object(name, cards))
    async for parts in gang.run(api):
        parts.ledger.slow.note("node-a", True)
        await gang.come(parts, gang.members_of(size), size)
        numbers = [int(name.removeprefix("low-")) for name in gang.evicted(api)]
        assert {gang.CARDS[number].node_name for number in numbers} == expected


def test_what_if_it_is_the_only_one_with_room() -> None:
    ledger = a_ledger(*NODES["node-a"])
    ledger.slow.note("node-a", True)
    [placement] = Chooser(ledger, Policy()).choose(a_request(whole()), list(NODES), 1).placements
    assert placement.node_name == "node-a"
