"""Bound pods that the ledger does not know: counted, told once, and entered only where that is switched on."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from builders import a_card, a_holder, a_share, first_attempts
from fakes.api_server import ApiServer, Operation, lose_request
from fakes.objects import GPU, MEMORY, a_pod_object
from fakes.operator_parts import OperatorParts
from gpuledger.formats.annotations import DEVICES_ANNOTATION, devices_annotation
from gpuledger.model.card import Card
from gpuledger.model.share import Holder, Misfit, Pod, Share
from gpuledger.workflows.leadership import Leadership
from gpuledger.workflows.repair import SETTLE_S

CARDS = [a_card(0), a_card(1)]
FIRST, SECOND = CARDS
WANTED = a_share(FIRST, 4_000)
Json = dict[str, Any]


def bound(name: str = "a", shares: Sequence[Share] = (WANTED,), cards: int = 1, text: str = "", **fields: Any) -> Json:
    """Return a bound pod that asks for 4000 MiB of its cards, and was told of these shares, or this text."""
    pod = a_pod_object(name, {GPU: str(cards), MEMORY: "4k"}, node_name="node-a", **{"started": True, **fields})
    pod["metadata"]["annotations"] = {DEVICES_ANNOTATION: text or devices_annotation(shares)}
    return pod


def holder(card: Card, memory_mib: int = 4_000, name: str = "a") -> Holder:
    return replace(a_holder(name, a_share(card, memory_mib)), pod=Pod(f"uid-{name}", "default", name))


class Resyncs:
    """An operator that has an Adopter, and compares with full lists."""

    def __init__(self, api: ApiServer, adopt_pods: bool = True, active: bool = True) -> None:
        self.api, self.active = api, active
        self.parts = OperatorParts(api, adopt_pods=adopt_pods, leadership=cast(Leadership, self))
        self.parts.read_cards()
        self.adopter = self.parts.adopter

    def is_active(self) -> bool:
        """Return whether this operator may write."""
        return self.active

    async def resync(self) -> None:
        """List the bound pods, and wait until the Adopter has nothing left to do."""
        self.parts.watch()
        async for page in self.api.store.bound_pods(("gpuledger",)):
            for pod in page:
                self.adopter.observe(pod)
        self.adopter.listed()
        await asyncio.sleep(SETTLE_S + 0.1)
        await self.adopter.worker.idle()


@pytest.fixture(autouse=True)
def cards(api: ApiServer) -> None:
    for card in CARDS:
        api.put_card(card)


async def test_a_pod_of_the_ledger_costs_no_request(api: ApiServer) -> None:
    api.put_card(FIRST, holder(FIRST))
    api.put_pod(bound())
    resyncs = Resyncs(api)
    await resyncs.resync()
    assert len(resyncs.adopter) == 0
    assert [call.operation for call in api.calls] == [Operation.LIST_PODS]


@pytest.mark.parametrize(
    "pod",
    [
        bound(phase="Succeeded"),
        a_pod_object("a", {}, node_name="node-a"),
        a_pod_object("a", {GPU: "nonsense"}, node_name="node-a"),
    ],
    ids=["finished", "asks for no card", "can't be read"],
)
async def test_a_pod_that_needs_no_card_is_not_counted(api: ApiServer, pod: Json) -> None:
    api.put_pod(pod)
    resyncs = Resyncs(api)
    await resyncs.resync()
    assert len(resyncs.adopter) == 0
    assert api.writes() == []


async def test_without_the_setting_a_pod_is_counted_and_told_once_and_not_entered(
    api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    api.put_pod(bound())
    resyncs = Resyncs(api, adopt_pods=False)
    for _ in range(3):
        await resyncs.resync()
    assert len(resyncs.adopter) == 1
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [
        "pod default/a is bound to node node-a, but its shares are not in the ledger: adopt_pods is off; "
        "see `gpuledger audit`"
    ]
    assert [(uid, reason, sentence) for uid, reason, sentence, _ in resyncs.parts.told_once] == [
        (
            "uid-a",
            "GPUNotInLedger",
            "the ledger has no GPUs for this pod (adopt_pods is off): create it anew, or have an administrator run "
            "`gpuledger audit`",
        )
    ]
    assert api.writes() == []


async def test_with_the_setting_a_pod_is_entered_and_counted_no_more(api: ApiServer) -> None:
    api.put_pod(bound())
    resyncs = Resyncs(api)
    await resyncs.resync()
    assert first_attempts(api.card(FIRST).holders) == (holder(FIRST),)
    assert len(resyncs.adopter) == 0
    await resyncs.resync()
    assert len(api.writes()) == 1


async def test_a_pod_of_our_own_nodes_that_leaves_the_number_of_cards_to_us_is_entered(api: ApiServer) -> None:
    pod = bound()
    del pod["spec"]["containers"][0]["resources"]["limits"][GPU]
    del pod["spec"]["containers"][0]["resources"]["requests"][GPU]
    api.put_pod(pod)
    await Resyncs(api).resync()
    assert api.holders_of(FIRST) == ["uid-a"]


async def test_a_pod_that_only_names_its_node_is_not_entered(api: ApiServer) -> None:
    """Anybody who may create pods can do that; no kubelet has taken it up, and no scheduler has bound it."""
    api.put_pod(bound(started=False))
    resyncs = Resyncs(api)
    await resyncs.resync()
    assert len(resyncs.adopter) == 1
    assert api.writes() == []


async def test_only_what_is_missing_is_entered(api: ApiServer) -> None:
    api.put_card(FIRST, holder(FIRST))
    api.put_pod(bound(shares=[WANTED, a_share(SECOND, 4_000)], cards=2))
    await Resyncs(api).resync()
    assert [api.holders_of(card) for card in CARDS] == [["uid-a"], ["uid-a"]]
    assert len(api.writes()) == 1


async def test_a_share_that_does_not_fit_is_shown_and_not_counted(api: ApiServer) -> None:
    api.put_card(FIRST, holder(FIRST, 14_000, "b"))
    api.put_pod(bound())
    resyncs = Resyncs(api)
    for _ in range(2):
        await resyncs.resync()
    card = api.card(FIRST)
    why = "the card has no room for the pod any more"
    assert card.misfits == (Misfit(Pod("uid-a", "default", "a"), WANTED.amounts, why),)
    assert api.holders_of(FIRST) == ["uid-b"]
    assert len(resyncs.adopter) == 1
    assert len(api.writes()) == 1


async def test_a_conflict_ends_when_its_share_is_entered(api: ApiServer) -> None:
    api.put_card(FIRST, holder(FIRST, 14_000, "b"))
    api.put_pod(bound())
    resyncs = Resyncs(api)
    await resyncs.resync()
    await resyncs.parts.journal.remove(FIRST.uuid, "uid-b")
    await resyncs.resync()
    assert (api.holders_of(FIRST), api.card(FIRST).misfits) == (["uid-a"], ())


@pytest.mark.parametrize("adopt_pods", [True, False])
async def test_a_conflict_ends_with_its_pod(api: ApiServer, adopt_pods: bool) -> None:
    api.put_card(FIRST, holder(FIRST, 14_000, "b"))
    api.put_pod(bound())
    await Resyncs(api).resync()
    assert api.card(FIRST).misfits
    api.delete_pod("a")
    resyncs = Resyncs(api, adopt_pods)
    await resyncs.resync()
    assert api.card(FIRST).misfits == ()
    assert len(resyncs.adopter) == 0


async def test_a_pod_that_is_gone_is_not_counted_any_more(api: ApiServer) -> None:
    api.put_pod(bound())
    resyncs = Resyncs(api, adopt_pods=False)
    await resyncs.resync()
    api.delete_pod("a")
    await resyncs.resync()
    assert len(resyncs.adopter) == 0


async def test_a_pod_whose_holders_are_shown_a_moment_later_is_not_counted(api: ApiServer) -> None:
    """Another operator has bound it: the list has the pod before the watch shows its holder."""
    resyncs = Resyncs(api)
    api.put_card(FIRST, holder(FIRST))
    resyncs.adopter.observe(api.put_pod(bound()))
    resyncs.parts.watch()
    await asyncio.sleep(SETTLE_S + 0.1)
    await resyncs.adopter.worker.idle()
    assert len(resyncs.adopter) == 0
    assert api.writes() == []


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "{}",
        '{"main": [{"uuid": "GPU-node-a-0", "memoryMiB": -4000, "cores": 0}]}',
        '{"main": [{"uuid": "GPU-node-b-0", "memoryMiB": 4000, "cores": 0}]}',
        '{"other": [{"uuid": "GPU-node-a-0", "memoryMiB": 4000, "cores": 0}]}',
    ],
)
async def test_an_annotation_that_can_not_be_used_enters_nothing(api: ApiServer, text: str) -> None:
    api.put_pod(bound(text=text))
    resyncs = Resyncs(api)
    await resyncs.resync()
    assert len(resyncs.adopter) == 1
    assert api.writes() == []


async def test_who_is_not_active_writes_nothing_and_catches_up_when_it_is(api: ApiServer) -> None:
    api.put_pod(bound())
    resyncs = Resyncs(api, active=False)
    await resyncs.resync()
    assert api.writes() == []
    resyncs.active = True
    await resyncs.resync()
    assert api.holders_of(FIRST) == ["uid-a"]


async def test_an_error_of_the_api_server_is_survived(api: ApiServer) -> None:
    api.put_pod(bound())
    api.queue(Operation.READ_POD, lose_request(), lose_request())
    resyncs = Resyncs(api)
    await resyncs.resync()
    assert api.holders_of(FIRST) == ["uid-a"]


@pytest.mark.parametrize("opened", [True, False], ids=["there is no card yet", "the card takes no pods yet"])
async def test_a_pod_whose_card_comes_after_it_is_entered_as_soon_as_the_card_opens(
    api: ApiServer, opened: bool
) -> None:
    """As when the ledger is made anew for pods that run; no full list is needed, which may be minutes away."""
    api.cards.clear()
    if not opened:
        api.put_card(FIRST, opened=False)
    api.put_pod(bound())
    resyncs = Resyncs(api)
    await resyncs.resync()
    assert len(resyncs.adopter) == 1
    api.put_card(FIRST)
    resyncs.parts.watch()
    await asyncio.sleep(SETTLE_S + 0.1)
    await resyncs.adopter.worker.idle()
    assert api.holders_of(FIRST) == ["uid-a"]
    assert len(resyncs.adopter) == 0


async def test_a_card_that_opens_on_another_node_costs_no_request(api: ApiServer) -> None:
    api.put_pod(bound(text="nonsense"))
    resyncs = Resyncs(api)
    await resyncs.resync()
    before = len(api.calls)
    api.put_card(a_card(0, node_name="node-b"))
    resyncs.parts.watch()
    await asyncio.sleep(SETTLE_S + 0.1)
    await resyncs.adopter.worker.idle()
    assert len(api.calls) == before
