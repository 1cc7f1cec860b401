"""What a namespace's selectors may cost: others are served meanwhile, and it is told why it waits, and served later."""

import asyncio
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from builders import cards_of, stored
from fakes.api_server import ApiServer
from fakes.claims import OUR_CLASS, a_claim_spec, a_claiming_pod
from fakes.operator_parts import OperatorParts, an_operator
from gpuledger.formats.resource_claims import selectors
from gpuledger.formats.resource_claims.cel.evaluation import check_cost
from gpuledger.formats.resource_claims.cel.functions import MOST_STEPS
from gpuledger.formats.resource_claims.claims import DEVICE_CLASS, DRIVER
from gpuledger.formats.scheduler import FilterArguments
from gpuledger.model.errors import WorkLimitExceeded
from gpuledger.model.node import NodeOffer
from gpuledger.placement.choose import PAID_STEPS
from gpuledger.workflows.events import Bus
from gpuledger.workflows.namespace_allowances import (
    ACCOUNTS_KEPT,
    STEPS_PER_S,
    TURN_STEPS,
    SelectorAccounts,
)
from gpuledger.workflows.namespace_allowances import MOST_STEPS as MOST_OF_ALL
from gpuledger.workflows.placing.place_pod import FilterResult
from gpuledger.workflows.resource_claims.claims import Kind

Json = dict[str, Any]
NODES = ["node-a", "node-b", "node-c"]
OWN = f'device.attributes["{DRIVER}"]'
ORDINARY = f"{OWN}.vendor == 'nvidia'"
TOLD = "the selectors of namespace greedy take long to evaluate, and wait for their turn"


def expensive(number: int) -> str:
    """Return a selector of some 7,000 steps for each card, unlike any other one."""
    return f"{OWN}.uuid != '{number}' && lists.range(600).all(n, n >= 0)"


def know(parts: OperatorParts, kind: Kind, found: Json) -> None:
    metadata = {"uid": f"{kind} {found['metadata']['name']}", **found["metadata"]}
    parts.workflows.claims.book.observe(kind, {**found, "metadata": metadata}, gone=False)


def a_pod(parts: OperatorParts, name: str, *expressions: str, namespace: str = "greedy") -> Json:
    """Return a pod with a claim that has these selectors."""
    chosen = [{"cel": {"expression": each}} for each in expressions]
    metadata = {"name": name, "namespace": namespace}
    know(parts, Kind.TEMPLATES, {"metadata": metadata, "spec": {"spec": a_claim_spec(selectors=chosen)}})
    pod = deepcopy(a_claiming_pod(name, template=name))
    pod["metadata"] |= {"namespace": namespace, "resourceVersion": "1"}
    return pod


@pytest.fixture
async def parts(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> OperatorParts:
    """Return an operator with three nodes of eight cards, whose agents serve claims. Nothing is compiled yet."""
    monkeypatch.setattr(selectors, "KEPT", selectors.KeptSelectors())
    for name in NODES:
        for card in cards_of(name, 8):
            api.put_card(card)
    found = an_operator(api)
    for name in NODES:
        found.ledger.set_offer(name, NodeOffer(resources=frozenset({DRIVER})))
    know(found, Kind.CLASSES, OUR_CLASS)
    for kind in Kind:
        found.workflows.claims.book.subscriptions[kind].begin_list()({f"{Kind.CLASSES} {DEVICE_CLASS}"})
    return found


async def answer(parts: OperatorParts, pod: Json) -> FilterResult:
    return await parts.placer.answer(FilterArguments(pod, NODES))


async def use_up(parts: OperatorParts) -> int:
    """Ask for pods of the namespace `greedy` until it has to wait; return which one that was."""
    for number in range(100):
        try:
            await answer(parts, a_pod(parts, f"greedy-{number}", expensive(number)))
        except WorkLimitExceeded as told:
            if str(told).startswith(TOLD):
                return number
    raise AssertionError("it may cost what it likes")


async def test_who_has_used_up_what_selectors_may_cost_waits_and_is_told_and_others_do_not_wait(
    parts: OperatorParts,
) -> None:
    number = await use_up(parts)
    steps = parts.workflows.claims.book.payer("greedy")
    assert steps is not None
    assert MOST_OF_ALL < steps.paid < MOST_OF_ALL + 10 * TURN_STEPS
    others = await answer(parts, a_pod(parts, "other", ORDINARY, expensive(-1), namespace="other"))
    assert len(others.node_names) == 1
    with pytest.raises(WorkLimitExceeded, match=TOLD):
        await answer(parts, a_pod(parts, f"greedy-{number}", expensive(number)))
    await asyncio.sleep(2.0)
    assert (await answer(parts, a_pod(parts, f"greedy-{number}", expensive(number)))).node_names


async def test_one_question_costs_so_much_at_most_and_the_next_one_goes_on_where_it_was(parts: OperatorParts) -> None:
    compiling = 20 * check_cost(expensive(10))
    pod = a_pod(parts, "many", *(expensive(number) for number in range(20)))
    account, paid = parts.workflows.claims.book.payer("greedy"), [0]
    assert account is not None
    for _ in range(100):
        try:
            found = await answer(parts, pod)
        except WorkLimitExceeded:
            paid.append(account.paid)
            await asyncio.sleep(10.0)
        else:
            break
    assert found.node_names
    assert len(paid) > 5
    assert max(later - before for before, later in pairwise(paid)) < PAID_STEPS + 2 * MOST_STEPS + compiling


async def test_others_have_their_turn_while_selectors_are_evaluated(parts: OperatorParts) -> None:
    account, paid = parts.workflows.claims.book.payer("greedy"), list[int]()
    assert account is not None

    async def look() -> None:
        while True:
            paid.append(account.paid)
            await asyncio.sleep(0)

    watching = asyncio.create_task(look())
    await answer(parts, a_pod(parts, "greedy", expensive(0)))
    watching.cancel()
    most = TURN_STEPS + max(MOST_STEPS, check_cost(expensive(0))) + 100
    assert max(later - before for before, later in pairwise(paid)) < most
    assert paid[-1] > 10 * TURN_STEPS


async def test_a_passive_replica_reads_pods_and_compiles_none_of_their_selectors(
    parts: OperatorParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selectors.KEPT, "compile", None)
    pod = a_pod(parts, "member", "not compiled", expensive(1), "lists.range(9999).all(n, true) && wrong")
    pod["metadata"]["labels"] = {"gpuledger.dev/gang": "g", "gpuledger.dev/gang-size": "2"}
    pod["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    ]
    parts.observer.any_pod(pod, gone=False)
    parts.observer.any_pod(a_pod(parts, "single", expensive(2)), gone=False)


async def test_a_pod_with_too_many_selectors_is_refused_before_any_is_compiled(
    parts: OperatorParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selectors.KEPT, "compile", None)
    many = await answer(parts, a_pod(parts, "many", *(f"{OWN}.index != {number}" for number in range(65))))
    assert "65 different selectors" in many.refused["node-a"]
    long = await answer(parts, a_pod(parts, "long", *(f"'{'x' * 9_000}{n}' != ''" for n in range(4))))
    assert "and may have 64 of 32768: write fewer and shorter ones" in long.refused["node-a"]


async def test_a_selector_that_can_not_be_compiled_is_a_bad_request_with_its_place(parts: OperatorParts) -> None:
    found = await answer(parts, a_pod(parts, "wrong", "duration('1h') > duration('1m')"))
    said = found.refused["node-a"]
    assert said.startswith("claim gpu, request gpu: selector: 1:")
    assert "gpuledger does not evaluate duration() in selectors" in said


async def test_a_pod_that_waits_gets_a_card_whose_turn_comes_later(parts: OperatorParts) -> None:
    pod = a_pod(parts, "waits", f"{OWN}.uuid == 'GPU-new' && lists.range(600).all(n, n >= 0)")
    assert not (await answer(parts, pod)).node_names
    await use_up(parts)
    new = replace(cards_of("node-a", 1)[0], uuid="GPU-new", index=8)
    parts.ledger.load(stored(new))
    parts.waiting.give_room()
    assert parts.ledger.seats.of("uid-waits") is None
    hold = None
    for _ in range(10):
        parts.workflows.context.room_has_changed.clear()
        await asyncio.sleep(0.3)
        if parts.workflows.context.room_has_changed.is_set():
            parts.waiting.give_room()
        hold = hold or parts.ledger.seats.of("uid-waits")  # which is given up soon, as no such pod comes
    assert hold is not None
    assert [share.uuid for share in hold.placement.shares] == ["GPU-new"]


async def test_looking_for_room_ends_where_the_namespace_has_had_its_turn(parts: OperatorParts) -> None:
    pod = a_pod(parts, "waits", f"{OWN}.uuid == 'GPU-new' && lists.range(600).all(n, n >= 0)")
    assert not (await answer(parts, pod)).node_names
    parts.ledger.load(stored(replace(cards_of("node-a", 1)[0], uuid="GPU-new", index=8)))
    account = parts.workflows.claims.book.payer("greedy")
    assert account is not None
    account.pay(TURN_STEPS)
    assert not parts.waiting.give_room()
    assert parts.ledger.seats.of("uid-waits") is None
    await asyncio.sleep(0.06)
    parts.waiting.give_room()
    assert parts.ledger.seats.of("uid-waits") is not None


async def test_who_asks_why_a_pod_waits_is_told_that_its_selectors_do(parts: OperatorParts) -> None:
    number = await use_up(parts)
    pod = a_pod(parts, f"greedy-{number + 1}", expensive(number + 1))
    parts.api.pods["greedy", pod["metadata"]["name"]] = pod
    found = (await parts.explainer.explain("greedy", pod["metadata"]["name"])).json()
    assert TOLD in str(found)


async def test_accounts_grow_with_time_and_are_dropped_when_nothing_of_them_is_used(parts: OperatorParts) -> None:
    accounts = SelectorAccounts(parts.clock, Bus())
    account = accounts.of("a")
    account.pay(MOST_OF_ALL + 1)
    assert account.is_spent
    assert not account.may_go_on()
    await asyncio.sleep(1.1)
    assert account.may_go_on()
    account.pay(STEPS_PER_S + 10_000)
    assert account.is_spent
    for number in range(2 * ACCOUNTS_KEPT):
        accounts.of(f"unused-{number}")
    assert accounts.of("a") is account
    assert len(accounts._accounts) <= ACCOUNTS_KEPT
