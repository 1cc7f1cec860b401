"""Why a pod waits, and what becomes of it, is told in words with the numbers of now."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from builders import a_card, a_holder, a_share, cards_of, whole_share
from fakes.api_server import ApiServer, Json
from fakes.objects import GPU, MEMORY, a_node_object, a_pod_object, with_conditions
from fakes.operator_parts import OperatorParts, an_operator
from gpuledger.command_line.commands.explain import explain_lines
from gpuledger.formats.kubernetes.pod import pod_identity
from gpuledger.model.errors import NotFound
from gpuledger.model.share import Claim, Holder, HolderState
from gpuledger.reports.explanation import State
from gpuledger.reports.tables import Terminal
from gpuledger.workflows.explain.nodes import NODES_IN_DETAIL, REUSED_S

CARDS = cards_of("node-a", 2)
SMALL = replace(a_card(0, "node-b", memory_mib=8_000), model="Tesla-T4")
TEN = {GPU: "1", MEMORY: "10k"}


@pytest.fixture
async def parts(api: ApiServer) -> OperatorParts:
    """Return two nodes: on one both cards are taken in part, on the other the only card is small."""
    for card in CARDS:
        api.put_card(card, a_holder(f"tenant-{card.index}", a_share(card, 7_000 + card.index)))
    api.put_card(SMALL)
    return an_operator(api)


def put(parts: OperatorParts, name: str, limits: Json = TEN, **fields: object) -> None:
    parts.api.put_pod(a_pod_object(name, limits, **fields))  # type: ignore[arg-type]


async def explained(parts: OperatorParts, name: str) -> Json:
    return (await parts.explainer.explain("default", name)).json()


async def test_a_pod_that_waits_is_told_per_card_what_is_missing_and_who_has_it(parts: OperatorParts) -> None:
    put(parts, "late", {GPU: "1", MEMORY: "12k"})
    assert not parts.filter("late", "node-a", "node-b").node_names
    found = await explained(parts, "late")
    assert found["state"] == "waiting"
    for words in ("0 of 2 GPU nodes", "12000 MiB free (1)", "as large as 12000 MiB (1)"):
        assert words in found["summary"]
    assert found["summary"].endswith("node-a would fit if 3,000 MiB more were free on GPU-node-a-0 (index 0)")
    nearest, small = found["nodes"]
    assert nearest["wouldHaveToLeave"] == ["default/tenant-0"]
    assert [(card["short"], card["by"], card["reason"]) for card in nearest["cards"]] == [
        ({"memoryMiB": 3_000}, ["default/tenant-0"], "no-memory"),
        ({"memoryMiB": 3_001}, ["default/tenant-1"], "no-memory"),
    ]
    assert (small["reason"], small["cards"][0]["short"]) == ("card-too-small", {"memoryMiB": 4_000})
    assert (found["since"], found["lastTried"] is None) == ("2030-01-01T00:00:00Z", False)


def of_deployment(pod: Json, name: str, template: str) -> Json:
    """Return a pod as a Deployment has it."""
    owner = {"kind": "ReplicaSet", "name": f"{name}-{template}", "uid": template, "controller": True}
    more = {"labels": {"pod-template-hash": template}, "ownerReferences": [owner]}
    return {**pod, "metadata": {**pod["metadata"], **more}}


@pytest.mark.parametrize(
    ("older", "is_told"),
    [("llm-5f6", True), ("llm-7d9", False), ("other-5f6", False)],
    ids=["another version", "the same version", "another Deployment"],
)
async def test_an_update_that_waits_for_its_own_older_pods_is_told_how_not_to(
    parts: OperatorParts, older: str, is_told: bool
) -> None:
    name, _, template = older.partition("-")
    for place in (0, 1):
        tenant = a_pod_object(f"{older}-x{place}", TEN, node_name="node-a")
        parts.api.put_pod(of_deployment(tenant, name, template))
        parts.api.put_card(CARDS[place], a_holder(tenant["metadata"]["name"], a_share(CARDS[place], 7_000)))
    again = an_operator(parts.api)
    again.api.put_pod(of_deployment(a_pod_object("llm-7d9-new", {GPU: "1", MEMORY: "12k"}), "llm", "7d9"))
    again.filter("llm-7d9-new", "node-a", "node-b")
    summary = (await explained(again, "llm-7d9-new"))["summary"]
    assert ("its own Deployment llm hold cards" in summary and "maxSurge: 0" in summary) == is_told, summary


async def test_nodes_that_kube_scheduler_does_not_offer_are_told_apart(parts: OperatorParts) -> None:
    put(parts, "late", {GPU: "1", MEMORY: "12k"})
    parts.filter("late", "node-b")
    found = await explained(parts, "late")
    assert [(node["node"], node["offered"]) for node in found["nodes"]] == [("node-b", True), ("node-a", False)]
    assert found["summary"].startswith(
        "0 of 2 GPU nodes take it: no card as large as 12000 MiB (1), not offered by kube-scheduler (1)"
    )


async def test_kube_schedulers_own_words_are_shown_beside_ours(parts: OperatorParts) -> None:
    put(parts, "late")
    words = "0/2 nodes are available: 2 node(s) had untolerated taint"
    pod = parts.api.pods["default", "late"]
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
    parts.api.put_pod({**pod, "status": {**pod["status"], "conditions": [condition]}})
    assert (await explained(parts, "late"))["schedulerSays"] == words


@pytest.mark.parametrize(
    ("limits", "annotations", "advice"),
    [
        ({GPU: "1", MEMORY: "60k"}, {}, "ask for at most 16,000 MiB (nvidia.com/gpumem)"),
        ({GPU: "2", MEMORY: "60k"}, {}, "ask for at most 16,000 MiB of each card (nvidia.com/gpumem)"),
        ({GPU: "1", MEMORY: "9500"}, {}, "ask for at most 9,000 MiB (nvidia.com/gpumem), which would fit now"),
        ({GPU: "3"}, {}, "No node has more than 2 such cards: ask for at most 2 (nvidia.com/gpu)"),
        ({GPU: "1"}, {"nvidia.com/use-gputype": "V100"}, "No node has model V100: there are Tesla-T4"),
        ({GPU: "2"}, {}, None),
    ],
)
async def test_who_waits_is_told_what_to_ask_for_instead_in_the_words_of_the_pod(
    parts: OperatorParts, limits: Json, annotations: dict[str, str], advice: str | None
) -> None:
    pod = a_pod_object("late", limits)
    parts.api.put_pod({**pod, "metadata": {**pod["metadata"], "annotations": annotations}})
    parts.filter("late", "node-a", "node-b")
    found = await explained(parts, "late")
    assert found["state"] == "waiting"
    assert (advice or "") in (found["advice"] or "")
    assert bool(found["advice"]) == (advice is not None)
    assert (found["advice"] or "") in found["summary"]


def refuse_by_scheduler(parts: OperatorParts, name: str, message: str, **spec: object) -> None:
    """Write what kube-scheduler writes of a pod for which it has no node; the watch shows it."""
    pod = parts.api.pods["default", name]
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    pod = with_conditions({**pod, "spec": {**pod["spec"], **spec}}, [condition])
    parts.observer.pending_pod(parts.api.put_pod(pod), gone=False)


@pytest.mark.parametrize("asked_before", [False, True])
async def test_where_kube_scheduler_refuses_every_node_its_reason_is_the_headline(
    parts: OperatorParts, asked_before: bool
) -> None:
    put(parts, "late", {GPU: "1", MEMORY: "9k", "cpu": "500"})
    if asked_before:
        parts.filter("late", "node-b")
    for name in ("node-a", "node-b"):
        parts.api.put_node({**a_node_object(name), "status": {"allocatable": {"cpu": "64", "memory": "64Gi"}}})
    refuse_by_scheduler(parts, "late", "0/2 nodes are available: 2 Insufficient cpu. preemption: not helpful")
    found = await explained(parts, "late")
    assert (found["state"], found["reason"], found["schedulerRefusedAll"]) == ("waiting", "kube-scheduler", True)
    for words in ("kube-scheduler refuses every node", "Insufficient cpu (2)", "500 CPUs", "64 of 64", "1 of 2 GPU"):
        assert words in found["summary"]
    assert [(node["offered"], node["kubeScheduler"]["reason"]) for node in found["nodes"]] == [(False, "host-cpu")] * 2
    text = "\n".join(explain_lines(found, Terminal(), datetime(2030, 1, 1, tzinfo=UTC)))
    assert "not tried" not in text
    assert "asks for 500 CPUs" in text


async def test_a_node_with_the_cards_that_kube_scheduler_does_not_offer_is_named(parts: OperatorParts) -> None:
    put(parts, "late", {GPU: "1", MEMORY: "9k"})
    parts.filter("late", "node-b")
    parts.api.put_node({**a_node_object("node-a"), "spec": {"unschedulable": True}})
    refuse_by_scheduler(parts, "late", "0/2 nodes are available: 1 node(s) were unschedulable, 1 no card as large.")
    found = await explained(parts, "late")
    assert found["state"] == "waiting"
    assert "node-a has the cards" in found["summary"]
    assert "cordoned" in found["summary"]


async def test_what_kube_scheduler_alone_refuses_is_among_those_that_wait(parts: OperatorParts) -> None:
    put(parts, "late", {GPU: "1", MEMORY: "9k"})
    before = parts.why_waiting.edition
    refuse_by_scheduler(parts, "late", "0/2 nodes are available: 2 Insufficient cpu.")
    [report] = parts.why_waiting.reports()
    assert report.json()["reasons"] == [{"reason": "kube-scheduler", "text": "Insufficient cpu", "nodes": 2}]
    assert parts.why_waiting.edition != before
    refuse_by_scheduler(parts, "late", "0/2 nodes are available: 2 no card with 9000 MiB free.")
    assert not list(parts.why_waiting.reports())


async def test_a_pod_behind_a_scheduling_gate_is_not_said_to_be_tried_soon(parts: OperatorParts) -> None:
    put(parts, "late", {GPU: "1", MEMORY: "9k"})
    pod = parts.api.pods["default", "late"]
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "blocked"}
    spec = {**pod["spec"], "schedulingGates": [{"name": "example.com/queue"}]}
    parts.api.put_pod(with_conditions({**pod, "spec": spec}, [gated]))
    found = await explained(parts, "late")
    assert (found["state"], "example.com/queue" in found["summary"]) == ("waiting", True)


async def test_a_node_that_takes_the_pod_now_comes_first(parts: OperatorParts) -> None:
    put(parts, "late", {GPU: "1", MEMORY: "9k"})
    found = await explained(parts, "late")
    assert (found["state"], found["lastTried"]) == ("room-found", None)
    assert found["summary"] == "fits on node-a now: kube-scheduler retries it in its turn"
    assert [node["fits"] for node in found["nodes"]] == [True, False]


async def test_what_is_on_hold_for_the_pod_itself_does_not_stand_in_its_way(parts: OperatorParts) -> None:
    put(parts, "soon", {GPU: "1", MEMORY: "9k"})
    assert parts.filter("soon", "node-a").node_names
    found = await explained(parts, "soon")
    assert (found["state"], found["nodes"][0]["fits"]) == ("room-found", True)
    put(parts, "late", {GPU: "2", MEMORY: "8k"})
    late = await explained(parts, "late")
    assert ["default/soon" in card["by"] for card in late["nodes"][0]["cards"]].count(True) == 1


async def test_room_that_is_being_made_is_told_with_those_who_have_to_leave(parts: OperatorParts) -> None:
    put(parts, "urgent", {GPU: "1"}, priority=10)
    urgent = pod_identity(parts.api.pods["default", "urgent"])
    promised = Holder(urgent, whole_share(CARDS[0]), HolderState.RESERVED, "2030-01-01T00:05:00Z")
    await parts.journal.claim(Claim(promised, 1, ("tenant-0",)))
    found = await explained(parts, "urgent")
    assert found["state"] == "being-freed"
    assert found["summary"] == (
        "waits for default/tenant-0 to leave 1 card of node-a, until 2030-01-01T00:05:00Z at the latest"
    )


@pytest.mark.parametrize(
    ("change", "state", "words"),
    [
        (lambda parts: put(parts, "p", {GPU: "0.5"}), State.BAD_REQUEST, "nvidia.com/gpu"),
        (lambda parts: put(parts, "p", {"cpu": "1"}), State.NO_GPU, "asks for no GPU"),
        (lambda parts: put(parts, "p", scheduler_name="other"), State.NOT_OURS, "other, not gpuledger"),
        (lambda parts: put(parts, "p", node_name="node-a", phase="Succeeded"), State.ENDED, "has ended"),
        (lambda parts: put(parts, "p", node_name="node-a"), State.UNCOUNTED, "gpuledger audit"),
        (lambda parts: put(parts, "p", uid="tenant-0", node_name="node-a"), State.PLACED, "has 1 card of node-a"),
    ],
)
async def test_every_other_state_of_a_pod_has_a_sentence(
    parts: OperatorParts, change: Callable[[OperatorParts], None], state: State, words: str
) -> None:
    change(parts)
    found = await explained(parts, "p")
    assert found["state"] == state.value
    assert words in found["summary"]


async def test_a_pod_that_does_not_exist_is_no_pod(parts: OperatorParts) -> None:
    with pytest.raises(NotFound):
        await explained(parts, "nobody")


async def test_of_many_nodes_only_the_nearest_are_shown_card_by_card(api: ApiServer) -> None:
    for number in range(NODES_IN_DETAIL + 10):
        card = a_card(0, f"node-{number:03}")
        api.put_card(card, a_holder(f"tenant-{number}", a_share(card, 10_000 + number)))
    parts = an_operator(api)
    put(parts, "late")
    found = await explained(parts, "late")
    assert [bool(node["cards"]) for node in found["nodes"]] == [True] * NODES_IN_DETAIL + [False] * 10
    assert [node["node"] for node in found["nodes"]][:2] == ["node-000", "node-001"]


async def test_it_writes_nothing(parts: OperatorParts) -> None:
    put(parts, "late", {GPU: "1", MEMORY: "12k"})
    parts.filter("late", "node-a", "node-b")
    before = len(parts.api.changes)
    await explained(parts, "late")
    assert len(parts.api.changes) == before


async def test_who_waits_is_listed_with_the_reasons_that_nodes_give(parts: OperatorParts) -> None:
    for name, limits in (
        ("late", {GPU: "1", MEMORY: "12k"}),
        ("alike", {GPU: "1", MEMORY: "12k"}),
        ("whole", {GPU: "1"}),
    ):
        put(parts, name, limits)
        parts.filter(name, "node-a", "node-b") if name != "whole" else parts.filter(name, "node-a")
    listed = [report.json() for report in parts.why_waiting.reports()]
    assert [(each["pod"], each["request"]) for each in listed] == [
        ("late", "1 card with 12,000 MiB"),
        ("alike", "1 card with 12,000 MiB"),
        ("whole", "1 whole card"),
    ]
    assert listed[0]["reasons"] == listed[1]["reasons"]
    assert sorted((each["reason"], each["nodes"]) for each in listed[0]["reasons"]) == [
        ("card-too-small", 1),
        ("no-memory", 1),
    ]
    assert [report.main_reason for report in parts.why_waiting.reports()].count("no-whole-card") == 1


async def test_what_need_not_be_of_this_moment_is_found_once_for_pods_that_ask_alike(parts: OperatorParts) -> None:
    for name in ("first", "alike"):
        put(parts, name, {GPU: "1", MEMORY: "12k"})
        parts.filter(name, "node-a", "node-b")
    first, alike = (parts.api.pods["default", name] for name in ("first", "alike"))
    before = (await parts.explainer.explain_object(first, of_now=False)).summary
    parts.api.put_card(CARDS[0])
    parts.watch()
    assert (await parts.explainer.explain_object(alike, of_now=False)).summary == before
    assert (
        await parts.explainer.explain_object(alike)
    ).summary == "fits on node-a now: kube-scheduler retries it in its turn"
    await asyncio.sleep(REUSED_S + 1)
    assert (await parts.explainer.explain_object(first, of_now=False)).summary != before


async def test_a_misspelt_resource_is_named_with_the_one_that_was_meant(parts: OperatorParts) -> None:
    put(parts, "p", {GPU: "1", "nvidia.com/gpumen": "5"})
    found = await explained(parts, "p")
    (text,) = found["warnings"]
    assert text == "resource nvidia.com/gpumen is not known: did you mean nvidia.com/gpumem?"
    assert f"  warning: {text}" in explain_lines(found, Terminal(), datetime(2030, 1, 1, tzinfo=UTC))
