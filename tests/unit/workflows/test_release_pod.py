"""The end of a pod's shares: finished or gone is released, all else is kept, and nothing is judged on hearsay."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from builders import a_card, a_holder, a_share
from fakes.api_server import ApiServer, Operation, hold_answer, hold_request, lose_request
from fakes.objects import a_pod_object
from fakes.operator_parts import RELEASE_DELAY_S, OperatorParts, an_operator
from fakes.virtual_time import settle
from gpuledger.formats.pod import DEVICES_ANNOTATION, devices_annotation
from gpuledger.model.card import Card
from gpuledger.model.errors import BindFailed
from gpuledger.model.share import Holder, HolderState, Pod

CARDS = [a_card(0), a_card(1)]
CARD, SECOND = CARDS
TWO_CARDS = {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "1k"}
Json = dict[str, Any]


def held(card: Card = CARD, **fields: Any) -> Holder:
    """Return what pod `a` holds."""
    return replace(a_holder("a", a_share(card)), pod=Pod("uid-a", "default", "a"), **fields)


def running(name: str = "a") -> Json:
    return annotated(a_pod_object(name, node_name="node-a", phase="Running", started=True))


def not_started(name: str = "a") -> Json:
    return annotated(a_pod_object(name, node_name="node-a"))


def annotated(pod: Json, *cards: Card) -> Json:
    """Return the pod as bound with shares of these cards; without any, of the first."""
    text = devices_annotation([held(card).share for card in cards or (CARD,)])
    return {**pod, "metadata": {**pod["metadata"], "annotations": {DEVICES_ANNOTATION: text}}}


def finished(phase: str) -> Json:
    return a_pod_object("a", node_name="node-a", phase=phase, started=True)


@pytest.fixture
async def parts(api: ApiServer) -> OperatorParts:
    """Return an operator over a node whose first card pod `a` holds."""
    api.put_card(CARD, held())
    api.put_card(SECOND)
    return an_operator(api)


async def show(parts: OperatorParts, pod: Json) -> None:
    """Let a pod be like this, and the watch show it."""
    parts.api.put_pod(pod)
    await parts.idle()


def states(api: ApiServer, card: Card = CARD) -> list[HolderState]:
    return [holder.state for holder in api.card(card).holders or ()]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_finished_pod_is_released(api: ApiServer, parts: OperatorParts, phase: str) -> None:
    await show(parts, running())
    assert api.holders_of(CARD) == ["uid-a"]
    await show(parts, finished(phase))
    assert api.holders_of(CARD) == []
    assert parts.counts.releases == 1


@pytest.mark.parametrize("pod", [running(), not_started(), a_pod_object("a", node_name="node-a", phase="Unknown")])
async def test_a_pod_that_is_bound_keeps_its_shares(api: ApiServer, parts: OperatorParts, pod: Json) -> None:
    await show(parts, pod)
    parts.releaser.recheck("uid-a")
    await parts.idle()
    assert api.holders_of(CARD) == ["uid-a"]
    assert api.writes() == []


async def test_a_finished_pod_on_several_cards_is_released_on_all(api: ApiServer) -> None:
    for card in CARDS:
        api.put_card(card, held(card))
    parts = an_operator(api)
    await show(parts, finished("Succeeded"))
    assert [api.holders_of(card) for card in CARDS] == [[], []]


async def test_pods_that_hold_nothing_cost_no_request(api: ApiServer, parts: OperatorParts) -> None:
    await show(parts, a_pod_object("plain", node_name="node-a", phase="Succeeded"))
    api.delete_pod("plain")
    await parts.idle()
    assert api.calls == []
    assert parts.counts.pods_examined == 2


async def test_leaving_the_watch_alone_releases_nothing(api: ApiServer, parts: OperatorParts) -> None:
    await show(parts, running())
    parts.observer.pod(running(), gone=True)
    await parts.releaser.worker.idle()
    assert len(api.called(Operation.READ_POD)) == 1
    assert api.holders_of(CARD) == ["uid-a"]


def is_gone(api: ApiServer) -> None:
    api.delete_pod("a")


def is_another_one(api: ApiServer) -> None:
    api.put_pod(a_pod_object("a", uid="another", node_name="node-a"))


@pytest.mark.parametrize("what_happened", [is_gone, is_another_one])
async def test_a_pod_that_never_started_and_is_gone_is_released(
    api: ApiServer, parts: OperatorParts, what_happened: Callable[[ApiServer], None]
) -> None:
    await show(parts, not_started())
    what_happened(api)
    parts.observer.pod(not_started(), gone=True)
    await parts.idle()
    assert api.holders_of(CARD) == []


async def test_entries_without_a_bound_pod_are_swept(api: ApiServer, parts: OperatorParts) -> None:
    api.put_pod(a_pod_object("a"))
    parts.releaser.recheck("uid-a")
    await parts.idle()
    assert api.holders_of(CARD) == []


async def force_delete(api: ApiServer, parts: OperatorParts, pod: Json | None = None) -> None:
    """Let the pod be gone while it ran; return when that is taken in."""
    await show(parts, pod or running())
    api.delete_pod("a")
    await parts.idle()


async def test_a_pod_deleted_by_force_while_it_ran_is_shown_as_releasing(api: ApiServer, parts: OperatorParts) -> None:
    await force_delete(api, parts)
    (holder,) = api.card(CARD).holders or ()
    assert holder.state is HolderState.RELEASING
    assert holder.deadline == "2030-01-01T00:17:10Z"  # the clock began at 1000 s, and 30 s were given
    assert parts.entry(CARD).used() == held().share.amounts


async def test_a_pod_deleted_by_force_is_released_after_its_deadline(api: ApiServer, parts: OperatorParts) -> None:
    await force_delete(api, parts)
    await asyncio.sleep(RELEASE_DELAY_S - 1)
    assert states(api) == [HolderState.RELEASING]
    await asyncio.sleep(3)
    assert states(api) == []


async def test_a_restart_keeps_the_deadline_of_what_is_releasing(api: ApiServer, parts: OperatorParts) -> None:
    await force_delete(api, parts)
    await parts.releaser.worker.stop()
    restarted = an_operator(api)
    restarted.releaser.recheck("uid-a")
    await restarted.idle()
    assert states(api) == [HolderState.RELEASING]
    await asyncio.sleep(RELEASE_DELAY_S + 3)
    assert states(api) == []


async def test_all_cards_of_a_pod_deleted_by_force_are_released(api: ApiServer) -> None:
    for card in CARDS:
        api.put_card(card, held(card))
    parts = an_operator(api)
    pod = a_pod_object("a", TWO_CARDS, node_name="node-a", phase="Running", started=True)
    await force_delete(api, parts, annotated(pod, *CARDS))
    assert [states(api, card) for card in CARDS] == [[HolderState.RELEASING]] * 2
    await asyncio.sleep(RELEASE_DELAY_S + 3)
    assert [states(api, card) for card in CARDS] == [[], []]


async def test_nothing_is_judged_while_a_bind_is_in_progress(api: ApiServer, parts: OperatorParts) -> None:
    """The entries are there and the Binding is not: a sweep would take them for left-overs of a crash."""
    api.put_pod(a_pod_object("b"))
    gate = asyncio.Event()
    api.queue(Operation.BIND, hold_request(gate))
    binding = asyncio.create_task(parts.bind("b", "node-a"))
    await settle()
    reads = len(api.called(Operation.READ_POD))
    parts.releaser.recheck("uid-b")
    await parts.releaser.worker.idle()
    assert len(api.called(Operation.READ_POD)) == reads
    gate.set()
    await binding
    assert "uid-b" in api.holders_of(CARD)


async def test_a_judgement_that_a_bind_has_overtaken_is_dropped(api: ApiServer, parts: OperatorParts) -> None:
    """The pod was read as unbound; when the answer comes, its Bind has begun."""
    api.put_pod(a_pod_object("a"))
    answer, gate = asyncio.Event(), asyncio.Event()
    api.queue(Operation.READ_POD, hold_answer(answer))
    parts.releaser.recheck("uid-a")
    await settle()
    api.queue(Operation.BIND, hold_request(gate))
    binding = asyncio.create_task(parts.bind("a", "node-a"))
    await settle()
    answer.set()
    await parts.releaser.worker.idle()
    gate.set()
    await binding
    assert "uid-a" in api.holders_of(CARD)


async def test_a_release_goes_on_after_errors(api: ApiServer, parts: OperatorParts) -> None:
    api.queue(Operation.READ_POD, *[lose_request()] * 3)
    api.queue(Operation.WRITE_STATUS, *[lose_request()] * 3)
    parts.releaser.recheck("uid-a")
    await parts.idle()
    await asyncio.sleep(RELEASE_DELAY_S + 2)
    await parts.idle()
    assert api.holders_of(CARD) == []


async def test_a_bind_that_comes_during_a_release_ends_with_its_shares_in_the_ledger(
    api: ApiServer, parts: OperatorParts
) -> None:
    """Left-overs of a crash are being swept when the scheduler binds the pod to the same card."""
    api.put_pod(a_pod_object("a", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1k"}))
    gate = asyncio.Event()
    api.queue(Operation.WRITE_STATUS, lose_request(), hold_request(gate))
    parts.releaser.recheck("uid-a")
    await settle()
    binding = asyncio.create_task(parts.bind("a", "node-a"))
    await settle()
    gate.set()
    with pytest.raises(BindFailed, match="is being given back"):
        await binding
    await parts.releaser.worker.idle()
    await parts.bind("a", "node-a")
    assert api.pods["default", "a"]["spec"]["nodeName"] == "node-a"
    assert "uid-a" in api.holders_of(CARD) + api.holders_of(SECOND)
