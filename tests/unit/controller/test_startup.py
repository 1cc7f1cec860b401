"""The watches of cards and pods, as start-up connects them."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from builders import a_card, a_holder, a_share
from fakes.api_server import ApiServer, Operation
from fakes.counters import by_label
from fakes.objects import GPU, a_pod_object
from fakes.operator_parts import OperatorParts
from fakes.virtual_time import settle
from gpuledger.controller import startup
from gpuledger.controller.startup import Operator
from gpuledger.formats.custom_resource.stored_card import new_allocation
from gpuledger.kube_api.reads import ALLOCATIONS, PODS
from gpuledger.model.errors import ApiError, Conflict, Unreachable
from gpuledger.reports.records import RecordKind
from gpuledger.workflows import kinds
from gpuledger.workflows.kinds import Subscription, Watcher, follow_kind


def subscription_of(operator: Operator, path: str) -> Subscription:
    """Return who follows what is at a path."""
    (found,) = (each for each in operator.subscriptions if each.kind.paths == (path,))
    return found


def test_a_card_that_cannot_be_read_is_counted_and_stops_nothing() -> None:
    api = ApiServer()
    parts, card = OperatorParts(api), a_card()
    api.put_card(card, a_holder("a", a_share(card)))
    subscription = subscription_of(parts.as_operator(), ALLOCATIONS)
    assert subscription.kind.parameters == {}
    subscription.observe(new_allocation(a_card(1)), False)
    subscription.observe(api.cards[card.object_name], False)
    assert by_label(parts.counts.bad_input) == {"allocation": 1}
    assert list(parts.entry(card).holders) == ["a"]


async def test_a_watch_begins_where_the_first_list_has_ended_and_not_before_it_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api, begun = ApiServer(), dict[str, str]()
    parts = OperatorParts(api)

    async def follow(_: object, path: str, *rest: object) -> None:
        begun[path.rpartition("/")[2]] = str(rest[-1])
        await asyncio.Event().wait()

    monkeypatch.setattr(kinds, "follow", follow)
    api.put_card(a_card())
    api.put_pod(a_pod_object("bound", limits={GPU: 1}))
    read_by = {"gpuallocations": Operation.LIST_CARDS, "pods": Operation.LIST_PODS}
    operator = parts.as_operator()
    watching = [
        asyncio.create_task(follow_kind(cast(Any, api), subscription_of(operator, path)))
        for path in (ALLOCATIONS, PODS)
    ]
    await settle()
    assert begun == {}
    version = str(api._version)
    await parts.observer.take_over()
    await settle()
    assert begun == dict.fromkeys(read_by, version)
    assert [len(api.called(operation)) for operation in read_by.values()] == [1, 2], "bound and pending pods are two"
    for task in watching:
        task.cancel()


@pytest.mark.parametrize("error", [Unreachable("away"), Conflict("the list has expired between two pages", 410)])
async def test_the_first_comparison_is_tried_until_all_pages_of_all_lists_were_read(
    error: ApiError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "START_PAUSE_S", 0.0)
    outcomes: list[ApiError | None] = [error, error, None]

    async def compare() -> None:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    await startup._until_it_works(compare)
    assert outcomes == []


def test_each_kind_is_followed_even_where_several_have_one_path() -> None:
    """Agents' pods, the operator's and stand-ins are pods of one namespace, told apart by their labels."""
    operator = OperatorParts(ApiServer()).as_operator()
    operator = replace(operator, history=cast(Any, SimpleNamespace(run=settle)))
    names = [name for name, _ in startup.parts_of(operator, startup.RunOptions(settings=operator.settings))]
    followed = [each.kind for each in operator.subscriptions if each.kind.watcher is not Watcher.KOPF]
    assert len(set(names)) == len(names)
    assert [name for name in names if name.startswith("follow ")] == [f"follow {kind}" for kind in followed]
    assert {kinds.AGENT_PODS, kinds.STAND_INS} <= set(followed)


async def test_pods_have_one_watch_that_selects_on_a_field_that_nobody_can_edit() -> None:
    """A pod that left a label selector would look deleted. Other schedulers' pods may use cards without the ledger."""
    subscription = subscription_of(OperatorParts(ApiServer()).as_operator(), PODS)
    assert subscription.kind.parameters == {"fieldSelector": "spec.schedulerName!=default-scheduler"}


async def test_a_pod_that_waits_is_forgotten_when_it_is_in_no_list_any_more_and_the_list_counts() -> None:
    parts = OperatorParts(ApiServer())
    operator = parts.as_operator()
    subscription = subscription_of(operator, PODS)
    pods = [a_pod_object(name, limits={GPU: 1}) for name in ("stays", "leaves")]
    for pod in pods:
        subscription.observe(pod, False)
    known = {tracker: set(tracker.known_pending()) for tracker in parts.observer._of_pending}
    assert any("uid-leaves" in uids for uids in known.values())
    subscription.begin_list()({"uid-stays"})
    assert operator.lists.again.is_set()  # for bound pods, a comparison finds out
    for tracker, before in known.items():
        assert set(tracker.known_pending()) == before - {"uid-leaves"}


def test_pods_say_nothing_before_the_cards_are_read() -> None:
    """Kopf may show them by then; the lists of all pods come after."""
    parts = OperatorParts(ApiServer())
    parts.observer.cards_read = False
    subscription_of(parts.as_operator(), PODS).observe(a_pod_object("early", limits={GPU: 1}), False)
    assert not any(tracker.known_pending() for tracker in parts.observer._of_pending)


@pytest.mark.parametrize("active", [True, False])
async def test_a_cordon_is_recorded_by_the_active_replica_alone(active: bool) -> None:
    """Every replica sees it: recorded by each, at its own time, it would be in the history twice."""
    parts = OperatorParts(ApiServer())
    context = parts.workflows.context
    context.leadership._set(active)
    parts.api.put_card(a_card())
    parts.read_cards()
    startup._cordoned(context, replace(parts.entry(a_card()), cordoned="fan is loud"), "")
    assert [record.kind for record in context.trail] == [RecordKind.CORDONED] * active
