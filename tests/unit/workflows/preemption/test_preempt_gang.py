"""Others leave for a gang: all that it takes, once each, or nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import combinations
from typing import Any

import pytest

from builders import cards_of, whole_share
from fakes.api_server import ApiServer, Operation, hold_request, refuse
from fakes.objects import GPU, a_node_object, a_pod_object
from fakes.operator_parts import PREEMPTION_TIMEOUT_S, OperatorParts
from fakes.virtual_time import settle
from gpuledger.controller import startup
from gpuledger.formats.annotations import WOKEN_ANNOTATION
from gpuledger.formats.kubernetes.pod import pod_identity
from gpuledger.formats.scheduler import PreemptArguments
from gpuledger.model.card import Card
from gpuledger.model.errors import ShareRefused, Unreachable
from gpuledger.model.share import Claim, Holder
from gpuledger.workflows.gangs.plans import TRY_PAUSE_S
from gpuledger.workflows.journal.journal import Journal
from gpuledger.workflows.preemption.execute import SUSPECT_DELAY_S
from gpuledger.workflows.preemption.preempt import CLAIM_PAUSE_S, FRESH_S, SETTLE_S

Json = dict[str, Any]
LOW, HIGH = 1, 100
NODES = {name: cards_of(name, 4) for name in ("node-a", "node-b")}
CARDS = [card for cards in NODES.values() for card in cards]


@pytest.fixture
def full(api: ApiServer) -> ApiServer:
    """Return an API server with two nodes of four cards, each of which a pod of low priority has for itself."""
    for number, card in enumerate(CARDS):
        runs_on(api, f"low-{number}", card)
    for name, cards in NODES.items():
        api.put_node(a_node_object(name, cards))
    return api


def runs_on(api: ApiServer, name: str, card: Card, *, gang: tuple[str, int] | None = None, priority: int = LOW) -> None:
    pod = a_pod_object(name, {GPU: "1"}, node_name=card.node_name, priority=priority, phase="Running", started=True)
    pod["metadata"]["annotations"] = {"gpuledger.dev/devices": f'{{"main": [{{"uuid": "{card.uuid}"}}]}}'}
    if gang:
        pod["metadata"]["labels"] = labels(*gang)
    api.put_pod(pod)
    api.put_card(card, Holder(pod_identity(pod), whole_share(card), attempt="first"))


def labels(gang: str, minimum: int) -> dict[str, str]:
    return {"gpuledger.dev/gang": gang, "gpuledger.dev/gang-minimum": str(minimum)}


def member(name: str, minimum: int, priority: int = HIGH, gang: str = "train", **spec: Any) -> Json:
    """Return a member as kube-scheduler leaves one that it found no node for."""
    pod = a_pod_object(name, {GPU: "1"}, priority=priority)
    pod["metadata"]["labels"] = labels(gang, minimum)
    pod["spec"] |= spec
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    return pod


async def run(api: ApiServer, **fields: Any) -> AsyncIterator[OperatorParts]:
    """Yield an operator with its loops."""
    parts = OperatorParts(api, **fields)
    parts.read_cards()
    await parts.observer.take_over()
    operator = parts.as_operator()
    loops = [asyncio.create_task(startup._give_room(operator)), asyncio.create_task(startup._preempt(operator))]
    await parts.idle()
    yield parts
    for loop in loops:
        loop.cancel()
    await parts.workflows.context.tasks.stop()
    await parts.preemption.executor.worker.stop()


async def pass_time(parts: OperatorParts, seconds: float) -> None:
    """Let time pass; what is asked of threads takes real time, which a few turns more allow for."""
    for _ in range(3):
        await parts.idle()
        await asyncio.sleep(seconds / 3)
        task = parts.workflows.preemption.gang_search.task
        if task is not None:
            await asyncio.wait({task})
        await settle()
    await parts.idle()
    await settle()


async def come(parts: OperatorParts, names: Iterable[str], minimum: int, **fields: Any) -> None:
    """Have a gang's members come, and kube-scheduler ask for each."""
    for name in names:
        parts.api.put_pod(member(name, minimum, **fields))
    parts.watch()
    await ask(parts, names)
    await pass_time(parts, 4 * SETTLE_S)


async def ask(parts: OperatorParts, names: Iterable[str]) -> list[list[str]]:
    found = []
    for name in names:
        found.append(list(parts.filter(name, "node-a", "node-b").node_names))
        await parts.idle()
    return found


def members_of(count: int, prefix: str = "m") -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def evicted(api: ApiServer) -> list[str]:
    return [call.path.split("/")[6] for call in api.called(Operation.EVICT)]


def woken(api: ApiServer, names: Iterable[str]) -> list[str]:
    annotations = {name: api.pods["default", name]["metadata"].get("annotations") or {} for name in names}
    return [name for name, its in annotations.items() if WOKEN_ANNOTATION in its]


def claims(api: ApiServer) -> list[str]:
    return [claim.holder.pod.name for card in CARDS for claim in api.card(card).claims]


def reserved(api: ApiServer) -> list[str]:
    holders = [holder for card in CARDS for holder in api.card(card).holders or ()]
    return [holder.pod.name for holder in holders if holder.state.value == "reserved"]


async def end(parts: OperatorParts, *names: str) -> None:
    for name in names:
        pod = parts.api.pods["default", name]
        parts.api.put_pod({**pod, "status": {**pod["status"], "phase": "Failed"}})
        parts.api.delete_pod(name)
    await pass_time(parts, 0.5)


async def test_eight_leave_once_each_for_a_gang_of_eight_and_it_is_bound(full: ApiServer) -> None:
    async for parts in run(full):
        names = members_of(8)
        await come(parts, names, 8)
        assert sorted(evicted(full)) == [f"low-{number}" for number in range(8)]
        await end(parts, *evicted(full))
        assert sorted(reserved(full)) == names
        assert woken(full, names) == names
        assert all(await ask(parts, names))
        nodes = {name: next(iter(parts.filter(name, "node-a", "node-b").node_names)) for name in names}
        await asyncio.gather(*(parts.bind(name, node_name) for name, node_name in nodes.items()))
        await pass_time(parts, 1)
        assert len(evicted(full)) == 8
        assert (claims(full), reserved(full)) == ([], [])
        assert sorted(call.path.split("/")[6] for call in full.called(Operation.BIND)) == names


async def test_nobody_leaves_for_a_gang_that_does_not_fit_even_then(full: ApiServer) -> None:
    async for parts in run(full):
        await come(parts, members_of(9), 9)
        await pass_time(parts, 60)
        assert (evicted(full), claims(full)) == ([], [])


async def test_nobody_leaves_before_all_claims_are_listed(full: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, gate = Journal.claim, asyncio.Event()

    async def late(self: Journal, wanted: Claim) -> None:
        if wanted.holder.pod.uid == "uid-m1":
            await gate.wait()
        await claim(self, wanted)

    monkeypatch.setattr(Journal, "claim", late)
    async for parts in run(full):
        await come(parts, members_of(2), 2)
        await pass_time(parts, 2 * SUSPECT_DELAY_S)
        assert (evicted(full), claims(full)) == ([], ["m0"])
        gate.set()
        await pass_time(parts, 1)
        assert len(evicted(full)) == 2


async def test_if_one_claim_is_refused_all_are_withdrawn(full: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = Journal.claim
    refused = ["uid-m1"]

    async def refusing(self: Journal, wanted: Claim) -> None:
        if wanted.holder.pod.uid in refused:
            raise ShareRefused("the card lists as many claims as it can")
        await claim(self, wanted)

    monkeypatch.setattr(Journal, "claim", refusing)
    async for parts in run(full):
        await come(parts, members_of(3), 3)
        assert len(full.called(Operation.WRITE_STATUS)) == 4, "two claims are listed, and withdrawn"
        assert (evicted(full), claims(full)) == ([], [])
        refused.clear()
        await pass_time(parts, FRESH_S / 2)  # it is tried again
        assert len(evicted(full)) == 3


async def test_a_gang_whose_victims_could_not_be_read_is_looked_at_again_and_keeps_no_cards_until_then(
    full: ApiServer,
) -> None:
    async for parts in run(full):
        full.queue(Operation.READ_POD, refuse(Unreachable("away")))
        await come(parts, members_of(8), 8)
        assert evicted(full) == []
        assert not any(parts.ledger.promises.is_made(f"uid-{name}") for name in members_of(8))
        await pass_time(parts, 2 * CLAIM_PAUSE_S)
        assert len(evicted(full)) == 8


async def test_victims_are_of_strictly_lower_priority_than_every_member(api: ApiServer) -> None:
    """One card could be freed for the less important member, two for the other one."""
    for number, card in enumerate(CARDS):
        runs_on(api, f"other-{number}", card, priority=LOW if number == 0 else 2 * LOW if number == 1 else HIGH)
    for name, cards in NODES.items():
        api.put_node(a_node_object(name, cards))
    async for parts in run(api):
        api.put_pod(member("m0", 2, priority=HIGH))
        await come(parts, ["m1"], 2, priority=2 * LOW)
        await ask(parts, ["m0", "m1"])
        await pass_time(parts, 3)
        assert evicted(api) == []


async def test_nobody_leaves_for_a_gang_one_of_whose_members_never_preempts(full: ApiServer) -> None:
    async for parts in run(full):
        full.put_pod(member("m0", 2))
        await come(parts, ["m1"], 2, preemptionPolicy="Never")
        await ask(parts, ["m0", "m1"])
        await pass_time(parts, 5)
        assert evicted(full) == []


async def test_a_gang_takes_what_is_free_and_only_the_rest_from_others(full: ApiServer) -> None:
    async for parts in run(full):
        await end(parts, "low-0", "low-5", "low-6")
        await come(parts, members_of(5), 5)
        assert len(evicted(full)) == 2


async def test_gangs_of_equal_priority_never_chase_each_other(api: ApiServer) -> None:
    for number, card in enumerate(CARDS):
        runs_on(api, f"other-{number}", card, gang=("other", 8), priority=HIGH)
    for name, cards in NODES.items():
        api.put_node(a_node_object(name, cards))
    async for parts in run(api):
        await come(parts, members_of(4), 4)
        await pass_time(parts, 30)
        assert evicted(api) == []


async def test_a_gang_of_lower_priority_leaves_whole_for_another(api: ApiServer) -> None:
    for number, card in enumerate(CARDS):
        runs_on(api, f"old-{number}", card, gang=("old", 8) if number < 6 else None, priority=LOW if number < 6 else 2)
    for name, cards in NODES.items():
        api.put_node(a_node_object(name, cards))
    for number in range(6):
        pod = api.pods["default", f"old-{number}"]
        pod["metadata"]["labels"] = labels("old", 6)
        api.put_pod(pod)
    async for parts in run(api):
        await come(parts, members_of(4), 4)
        assert sorted(evicted(api)) == [f"old-{number}" for number in range(6)]


async def test_a_member_that_is_deleted_meanwhile_ends_it_for_the_others(full: ApiServer) -> None:
    gate = asyncio.Event()
    async for parts in run(full):
        full.queue(Operation.WRITE_STATUS, hold_request(gate))
        await come(parts, members_of(3), 3)
        full.delete_pod("m2")
        parts.watch()
        gate.set()
        await pass_time(parts, 2)
        assert (evicted(full), claims(full)) == ([], [])


async def test_if_a_victim_does_not_leave_all_that_is_kept_for_the_gang_is_given_up(full: ApiServer) -> None:
    async for parts in run(full):
        await come(parts, members_of(2), 2)
        first, second = evicted(full)
        await end(parts, first)
        assert len(reserved(full)) == 1
        pod = full.pods["default", second]
        full.put_pod({**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "2030-01-01T00:00:00Z"}})
        await pass_time(parts, PREEMPTION_TIMEOUT_S + 60)
        given_up = {uid for uid, _, reason, _ in parts.told_pods if reason == "PreemptionGivenUp"}
        assert given_up == {"uid-m0", "uid-m1"}
        assert len(evicted(full)) == len(set(evicted(full)))


async def test_an_operator_that_takes_over_evicts_those_that_are_claimed_once(full: ApiServer) -> None:
    gate = asyncio.Event()
    async for parts in run(full):
        full.queue(Operation.CHANGE_STATUS, *[hold_request(gate)] * 3)  # nominations, after the claims
        await come(parts, members_of(3), 3)
        assert (len(claims(full)), evicted(full)) == (3, [])
    async for parts in run(full):
        await pass_time(parts, 2)
        assert len(evicted(full)) == len(set(evicted(full))) == 3
        await end(parts, *evicted(full))
        assert sorted(reserved(full)) == members_of(3)
        assert all(await ask(parts, members_of(3)))
    gate.set()


async def test_an_operator_that_takes_over_half_of_the_claims_withdraws_them(full: ApiServer) -> None:
    gate = asyncio.Event()
    async for parts in run(full):
        full.queue(Operation.WRITE_STATUS, hold_request(gate))
        await come(parts, members_of(3), 3)
        assert (len(claims(full)), evicted(full)) == (2, [])
    async for parts in run(full):
        await pass_time(parts, 0.2)
        assert (claims(full), evicted(full)) == ([], [])
    gate.set()


async def test_kube_scheduler_is_asked_again_if_its_word_is_old_once_for_equal_members(api: ApiServer) -> None:
    for number, card in enumerate(CARDS):
        runs_on(api, f"high-{number}", card, priority=HIGH)
    for name, cards in NODES.items():
        api.put_node(a_node_object(name, cards))
    async for parts in run(api):
        names = members_of(2)
        await come(parts, names, 2)
        await pass_time(parts, 2 * FRESH_S)
        for number in (0, 1):
            api.delete_pod(f"high-{number}")
            runs_on(api, f"low-{number}", CARDS[number])
        await pass_time(parts, 2)
        assert evicted(api) == []
        asked_for = woken(api, names)
        assert len(asked_for) == 1
        await ask(parts, asked_for)
        await pass_time(parts, TRY_PAUSE_S + 1)
        assert sorted(evicted(api)) == ["low-0", "low-1"]


async def test_kube_scheduler_gets_no_victims_for_one_member(full: ApiServer) -> None:
    async for parts in run(full, evicts=False):
        full.put_pod(member("m0", 9))
        parts.watch()
        await ask(parts, ["m0"])
        asked = PreemptArguments(full.pods["default", "m0"], {"node-a": ("uid-low-0",)}, {"node-a": 0})
        assert await parts.preemption.for_scheduler.preempt(asked) == {}


async def test_where_kube_scheduler_preempts_the_operator_still_does_for_gangs(full: ApiServer) -> None:
    async for parts in run(full, evicts=False):
        await come(parts, members_of(3), 3)
        assert len(evicted(full)) == 3


def protect(api: ApiServer, allowed: int, *names: str) -> None:
    """Cover some pods by one budget."""
    for name in names:
        pod = api.pods["default", name]
        pod["metadata"]["labels"] = {"app": "guarded"}
        api.put_pod(pod)
    spec = {"selector": {"matchLabels": {"app": "guarded"}}}
    metadata = {"namespace": "default", "name": "guard"}
    api.budgets.append({"metadata": metadata, "spec": spec, "status": {"disruptionsAllowed": allowed}})


async def test_where_budgets_allow_too_few_evictions_nobody_leaves_and_the_gang_is_told(full: ApiServer) -> None:
    protect(full, 1, *(f"low-{number}" for number in range(8)))
    async for parts in run(full):
        await come(parts, members_of(2), 2)
        assert evicted(full) == []
        told = [(uid, reason, text) for uid, _, reason, text in parts.told_pods]
        [(_, reason, text)] = told
        assert reason == "PreemptionForbidden"
        assert "default/guard" in text


async def test_what_one_budget_allows_is_used_once_for_the_whole_gang(full: ApiServer) -> None:
    protect(full, 1, *(f"low-{number}" for number in range(6)))
    async for parts in run(full):
        await come(parts, members_of(3), 3)
        assert {"low-6", "low-7"} < set(evicted(full))
        assert len(evicted(full)) == 3


async def test_the_place_that_is_kept_for_a_replacement_is_used_and_only_the_rest_taken_from_others(
    api: ApiServer,
) -> None:
    for number, card in enumerate(CARDS):
        its_gang = ("train", 4) if number < 3 else None
        runs_on(api, f"p{number}", card, gang=its_gang, priority=LOW if number == 3 else HIGH)
    for name, cards in NODES.items():
        api.put_node(a_node_object(name, cards))
    async for parts in run(api):
        await end(parts, "p2")
        assert parts.workflows.gangs.kept_places
        await come(parts, ["r0", "r1"], 4)
        await pass_time(parts, TRY_PAUSE_S + 1)
        assert evicted(api) == ["p3"]
        await end(parts, "p3")
        assert sorted(reserved(api)) == ["r0", "r1"]


@pytest.mark.parametrize("held", [*combinations(range(8), 5)], ids=str)
async def test_a_gang_that_leaves_for_another_leaves_whole_wherever_cards_are_free_already(
    api: ApiServer, held: tuple[int, ...]
) -> None:
    for number in held:
        runs_on(api, f"old-{number}", CARDS[number], gang=("old", 5))
    for number in set(range(8)) - set(held):
        api.put_card(CARDS[number])
    for name, cards in NODES.items():
        api.put_node(a_node_object(name, cards))
    async for parts in run(api):
        await come(parts, members_of(6), 6)
        assert sorted(evicted(api)) == [f"old-{number}" for number in held]
