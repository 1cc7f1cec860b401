"""A namespace whose card hours are spent gets no more cards, wherever it asks for them, until it has some again."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from builders import a_card
from fakes.api_server import ApiServer, Operation, refuse
from fakes.objects import GPU, MEMORY, a_node_object, a_pod_object
from fakes.operator_parts import OperatorParts
from fakes.virtual_time import LoopClock, settle, wall
from gpuledger.formats.annotations import WOKEN_ANNOTATION
from gpuledger.model.errors import BindFailed, EventReason, Unreachable
from gpuledger.workflows.budgets import GATHER_S
from gpuledger.workflows.pending.waiting_pods import GRACE_S

Json = dict[str, Any]
CARDS = [a_card(0), a_card(1)]
QUARTER = {GPU: "1", MEMORY: str(CARDS[0].capacity.memory_mib // 4)}
WHOLE = {GPU: "1", MEMORY: str(CARDS[0].capacity.memory_mib)}
HOUR_S = 3600.0
A_DAY, A_MONTH = "gpuledger.dev/card-hours-per-day", "gpuledger.dev/card-hours-per-month"


@pytest.fixture
def api(api: ApiServer) -> ApiServer:
    """Return an API server with a node of two cards, whose definition knows accounts."""
    api.keep_accounts()
    api.put_node(a_node_object("node-a", CARDS))
    for card in CARDS:
        api.put_card(card)
    return api


async def an_operator(api: ApiServer, **settings: object) -> OperatorParts:
    parts = OperatorParts(api, clock=LoopClock(), more=settings)
    await parts.observer.resync()
    await pass_by(parts)
    return parts


def allow(api: ApiServer, hours: object, key: str = A_DAY, when_spent: str = "", namespace: str = "default") -> None:
    """Give a namespace a budget, or change it."""
    metadata: Json = {"uid": f"uid-{namespace}", "name": "gpus", "namespace": namespace}
    if when_spent:
        metadata["annotations"] = {"gpuledger.dev/budget-spent": when_spent}
    known = api.quotas.get((namespace, "gpus"), {})
    api.put_quota({"metadata": metadata, "spec": {"hard": {key: str(hours)}}, "status": known.get("status", {})})


async def pass_by(parts: OperatorParts, seconds: float = 2 * GATHER_S + 1) -> None:
    """Let time pass, while the watches show what is written."""
    until_s = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < until_s:
        await parts.idle()
        left_s = until_s - asyncio.get_running_loop().time()
        await asyncio.sleep(min(max(1.0, seconds / 100), max(left_s, 0.0)))
    await parts.workflows.accounting.quota_status.worker.idle()
    await parts.idle()


async def to_morning(parts: OperatorParts, hour: int = 1) -> None:
    """Let time pass until an hour of the next day."""
    now = wall()
    at = now.replace(hour=hour, minute=0, second=0, microsecond=0) + timedelta(days=1)
    await pass_by(parts, (at - now).total_seconds())


async def begin(parts: OperatorParts, name: str, limits: Json | None = None) -> None:
    parts.api.put_pod(a_pod_object(name, limits or QUARTER))
    parts.watch()
    await parts.bind(name, "node-a")
    await parts.idle()


async def end(parts: OperatorParts, name: str) -> None:
    pod = parts.api.pods["default", name]
    parts.api.put_pod({**pod, "status": {**pod["status"], "phase": "Succeeded"}})
    await parts.idle()


def refusal(parts: OperatorParts, name: str, limits: Json | None = None) -> str:
    """Return why a new pod gets no card; nothing if it would get one."""
    parts.api.put_pod(a_pod_object(name, limits or QUARTER))
    parts.watch()
    found = parts.filter(name, "node-a")
    return "" if found.node_names else " ".join(found.refused.values())


async def woken(parts: OperatorParts) -> list[str]:
    """Let room be given to those that wait; return who is called for it."""
    while await parts.workflows.queue.give_room():
        pass
    await asyncio.sleep(2 * GRACE_S)
    await settle()
    pods = {name: pod["metadata"].get("annotations") or {} for (_, name), pod in parts.api.pods.items()}
    return [name for name, annotations in pods.items() if WOKEN_ANNOTATION in annotations]


def shown(api: ApiServer, key: str = A_DAY) -> str | None:
    used: Json = (api.quotas["default", "gpus"].get("status") or {}).get("used") or {}
    return used.get(key)


async def test_new_pods_are_refused_from_the_moment_at_which_the_budget_is_spent(api: ApiServer) -> None:
    parts = await an_operator(api)
    await to_morning(parts)
    allow(api, 2)
    for number in range(4):
        await begin(parts, f"running-{number}")  # together one card
    await pass_by(parts, 2 * HOUR_S - 60)
    assert refusal(parts, "early") == ""
    await pass_by(parts, 60 + 10)
    why = refusal(parts, "late")
    assert "its 2 card hours of this day are spent" in why
    assert f"{A_DAY} of ResourceQuota gpus" in why
    with pytest.raises(BindFailed):
        await parts.bind("late", "node-a")
    assert sum(len(api.holders_of(card)) for card in CARDS) == 4, "those that have cards keep them"


async def test_a_budget_of_no_hours_refuses_a_pod_that_comes_with_it(api: ApiServer) -> None:
    """One file may have both, and nothing has to be read for it."""
    parts = await an_operator(api)
    await to_morning(parts)
    allow(api, 0)
    assert "its 0 card hours of this day are spent" in refusal(parts, "homework")


async def test_a_new_day_brings_new_hours_and_wakes_who_has_waited(api: ApiServer) -> None:
    parts = await an_operator(api)
    await to_morning(parts, hour=20)
    allow(api, 1)
    await begin(parts, "first", WHOLE)
    await pass_by(parts, HOUR_S + 10)
    await end(parts, "first")
    assert refusal(parts, "second") != ""
    await to_morning(parts, hour=0)
    await pass_by(parts, 60)
    assert await woken(parts) == ["second"]
    assert refusal(parts, "second") == ""


async def test_what_was_held_before_a_restart_counts(api: ApiServer) -> None:
    parts = await an_operator(api)
    await to_morning(parts)
    allow(api, 2)
    await begin(parts, "first", WHOLE)
    await pass_by(parts, HOUR_S)
    await end(parts, "first")
    await pass_by(parts, 120)
    await begin(parts, "second", WHOLE)
    await pass_by(parts, HOUR_S / 2)
    again = await an_operator(api)
    assert refusal(again, "soon") == ""
    await pass_by(again, HOUR_S / 2)
    assert "spent" in refusal(again, "late")


async def test_a_share_over_midnight_pays_each_day_its_part(api: ApiServer) -> None:
    parts = await an_operator(api)
    await to_morning(parts, hour=22)
    allow(api, 3)
    await begin(parts, "long", WHOLE)
    await pass_by(parts, 4 * HOUR_S)  # two hours of each day
    await end(parts, "long")
    await pass_by(parts, 120)
    assert refusal(parts, "next") == ""
    assert shown(api) == "2"


async def test_other_namespaces_and_other_models_are_not_refused(api: ApiServer) -> None:
    parts = await an_operator(api)
    await to_morning(parts)
    allow(api, 0, f"{A_DAY}.no-such-model")
    await pass_by(parts)
    assert refusal(parts, "of-another-model") == ""
    allow(api, 0, namespace="others")
    await pass_by(parts)
    assert refusal(parts, "of-another-namespace") == ""
    allow(api, 0, f"{A_DAY}.{CARDS[0].model.replace(' ', '-')}")
    await pass_by(parts)
    assert "of this day are spent" in refusal(parts, "of-that-model")


async def test_a_higher_budget_wakes_at_once(api: ApiServer) -> None:
    parts = await an_operator(api)
    allow(api, 0)
    await pass_by(parts)
    assert refusal(parts, "a") != ""
    allow(api, 10)
    await pass_by(parts)
    assert await woken(parts) == ["a"]
    assert refusal(parts, "a") == ""


async def test_the_status_shows_steps_of_a_twentieth_and_nothing_is_written_between(api: ApiServer) -> None:
    parts = await an_operator(api)
    await to_morning(parts, hour=0)
    allow(api, 100, A_MONTH)
    await begin(parts, "a", WHOLE)
    await pass_by(parts, 5 * HOUR_S - 60)
    assert shown(api, A_MONTH) == "0"
    await pass_by(parts, 120)
    assert shown(api, A_MONTH) == "5"
    before = len(api.writes())
    await pass_by(parts, 4.5 * HOUR_S)
    assert len(api.writes()) == before


async def test_its_namespace_is_told_once_at_four_fifths_and_once_at_the_end(api: ApiServer) -> None:
    parts = await an_operator(api)
    await to_morning(parts, hour=0)
    allow(api, 10)
    await begin(parts, "a", WHOLE)
    await pass_by(parts, 8 * HOUR_S - 60)
    assert told(parts) == []
    await pass_by(parts, 120)
    assert told(parts) == [EventReason.BUDGET_LOW]
    await pass_by(parts, 4 * HOUR_S)
    assert told(parts) == [EventReason.BUDGET_LOW, EventReason.BUDGET_SPENT]


def told(parts: OperatorParts) -> list[str]:
    return [reason for uid, reason, *_ in parts.told_once if uid == "default/gpus"]


@pytest.mark.parametrize(("when_spent", "leave"), [("", 0), ("stay", 0), ("evict", 1)])
async def test_running_pods_leave_if_the_quota_says_so(api: ApiServer, when_spent: str, leave: int) -> None:
    parts = await an_operator(api)
    await to_morning(parts)
    allow(api, 1, when_spent=when_spent)
    await begin(parts, "a", WHOLE)
    await pass_by(parts, HOUR_S + 60)
    assert len(api.called(Operation.EVICT)) == leave


@pytest.mark.parametrize(
    ("key", "hours", "settings", "problem"),
    [
        (
            "gpuledger.dev/card-hours-per-moth",
            1,
            {},
            "did you mean gpuledger.dev/card-hours-per-month?",
        ),
        (A_DAY, "-1", {}, "-1 is negative"),
        (A_DAY, "1500m", {}, "1500m is not a whole number"),
        (A_MONTH, 1, {"usage_kept_days": 7}, "kept for 7 days"),
        (A_DAY, 1, {"usage_kept_days": 0}, "kept for 0 days"),
    ],
)
async def test_what_can_not_be_kept_limits_nothing_and_is_told(
    api: ApiServer, caplog: pytest.LogCaptureFixture, key: str, hours: object, settings: Json, problem: str
) -> None:
    parts = await an_operator(api, **settings)
    allow(api, hours, key)
    await pass_by(parts)
    assert problem in caplog.text
    assert refusal(parts, "a") == ""


async def test_records_that_can_not_be_read_limit_nothing_until_they_can(api: ApiServer) -> None:
    parts = await an_operator(api)
    await begin(parts, "earlier")
    await pass_by(parts, 5 * HOUR_S)
    await end(parts, "earlier")
    await pass_by(parts, 60)
    api.queue(Operation.LIST_USAGES, refuse(Unreachable("not now")), refuse(Unreachable("not now")))
    allow(api, 1)
    await pass_by(parts, 1)
    assert refusal(parts, "a") == ""
    await pass_by(parts, 60)
    assert refusal(parts, "a") != ""
