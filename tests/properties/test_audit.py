"""Whatever state a cluster is in: an audit ends, mends what it says it mends, and takes no card from who needs it."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from hypothesis import event, given
from hypothesis import strategies as st

from builders import a_card, a_ledger
from fakes.api_server import ApiServer
from fakes.objects import CORES, DIALECTS, GPU, MEMORY, PERCENTAGE, a_container, a_node_object, a_pod_object
from fakes.virtual_time import LoopClock, VirtualTimeLoop
from gpuledger.command_line.commands.audit import audit_settings
from gpuledger.configuration.settings import Settings
from gpuledger.formats.annotations import DEVICES_ANNOTATION, devices_annotation
from gpuledger.formats.custom_resource.stored_card import misfit_json
from gpuledger.formats.dialects.request import pod_request
from gpuledger.formats.kubernetes.pod import pod_facts, pod_identity
from gpuledger.ledger.seats import Seat
from gpuledger.model.card import Amounts
from gpuledger.model.errors import BadInput, Invalid
from gpuledger.model.share import ContainerShare, Holder, HolderState, Misfit, Pod, Share, shares_of
from gpuledger.placement.choose import Chooser
from gpuledger.placement.policy import Policy
from gpuledger.workflows.repair import Auditor, Report

NODES = ["node-a", "node-b"]
CARDS = [a_card(index, node, memory_mib=8_000, number=3) for node in NODES for index in range(2)]
BY_UUID = {card.uuid: card for card in CARDS}
PODS = ["a", "b", "c", "d"]
Json = dict[str, Any]
T = TypeVar("T")
SOME = Amounts(1, 0, 1)

limits = st.sampled_from(
    [
        {GPU: "1", MEMORY: "2k"},
        {GPU: "2", MEMORY: "3k", CORES: "40"},
        {GPU: "1", PERCENTAGE: "50"},
        {GPU: "1"},
        {GPU: "2"},
        {GPU: "1", MEMORY: "4Gi"},
        {},
    ]
)
amounts_mib = st.sampled_from([0, 1, 2_000, 4_000, 8_000, 9_000, 2**24, 2**24 + 1, -1])
told_cards = st.fixed_dictionaries(
    {
        "uuid": st.sampled_from([*BY_UUID, "GPU-nowhere"]),
        "memoryMiB": amounts_mib,
        "cores": st.sampled_from([0, 40, 100, 101]),
    }
)


@dataclass(frozen=True)
class Scene:
    """A cluster in some state."""

    pods: list[Json]
    holders: list[Holder]
    """Who is entered, if the API server takes it."""
    misfits: list[tuple[str, str]]
    """Card UUID and pod name of the conflicts that are listed."""
    nodes: list[Json]


@st.composite
def pods(draw: st.DrawFn, name: str) -> Json:
    containers = [a_container(f"c{i}", draw(limits)) for i in range(draw(st.integers(1, 2)))]
    return a_pod_object(
        name,
        node_name=draw(st.sampled_from(["", *NODES, *NODES, *NODES])),
        phase=draw(st.sampled_from(["Pending", "Running", "Running", "Succeeded"])),
        containers=containers,
        scheduler_name=draw(st.sampled_from(["gpuledger", "gpuledger", "gpuledger", "another"])),
    )


@st.composite
def shares(draw: st.DrawFn, pod: Json) -> tuple[Share, ...]:
    """Return what the pod could have been given on some node, mostly its own."""
    node_name = draw(st.just(pod["spec"].get("nodeName", "node-a")) | st.sampled_from(NODES))
    cards = [card for card in CARDS if card.node_name == node_name]
    try:
        request = pod_request(pod, DIALECTS)
    except BadInput:
        return ()
    if request is None:
        return ()
    uuids = [card.uuid for card in cards]
    assignment = [tuple(draw(st.permutations(uuids))[: demand.cards]) for demand in request.shape]
    return shares_of(request, tuple(assignment), cards)


@st.composite
def annotations(draw: st.DrawFn, given_shares: tuple[Share, ...]) -> str | None:
    """Return what the pod could have been told, or what its user could have written."""
    told = st.dictionaries(st.sampled_from(["c0", "c1", "c9"]), st.lists(told_cards, max_size=2), max_size=2)
    right = st.just(devices_annotation(given_shares))
    return draw(right | right | st.sampled_from([None, "", "nonsense"]) | told.map(json.dumps))


@st.composite
def strangers(draw: st.DrawFn, pod: Json) -> Holder:
    """Return a holder that somebody has entered by hand."""
    uuid, memory_mib = draw(st.sampled_from([*BY_UUID])), draw(st.sampled_from([0, 2_000, 8_000]))
    names = draw(st.sampled_from([("c0",), ("c1",), ("c0", "c1"), ("c9",)]))
    containers = tuple(ContainerShare(each, memory_mib, 40) for each in names)
    share = Share(uuid, Amounts(memory_mib, 40, 1), draw(st.booleans()), containers)
    return Holder(identity(pod), share, attempt="first")


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Return pods, of which some are gone, what they hold and were told, and nodes that report some cards."""
    existing, entered = [], []
    for name in PODS:
        pod = draw(pods(name))
        has = draw(shares(pod))
        text = draw(annotations(has))
        if text is not None:
            pod["metadata"]["annotations"] = {DEVICES_ANNOTATION: text}
        entered += [Holder(identity(pod), share) for share in has if draw(st.integers(0, 3))]
        if draw(st.integers(0, 3)) == 0:
            entered.append(draw(strangers(pod)))
        if draw(st.integers(0, 4)):
            existing.append(pod)
    for place, holder in enumerate(entered):
        state = draw(st.sampled_from([HolderState.ALLOCATED] * 6 + list(HolderState)))
        deadline = draw(st.sampled_from([None, "2029-01-01T00:00:00Z", "2031-01-01T00:00:00Z"]))
        entered[place] = replace(holder, state=state, deadline=None if state is HolderState.ALLOCATED else deadline)
    misfits = draw(st.lists(st.tuples(st.sampled_from([*BY_UUID]), st.sampled_from(PODS)), max_size=2, unique=True))
    return Scene(existing, draw(st.permutations(entered)), misfits, draw(nodes()))


@st.composite
def nodes(draw: st.DrawFn) -> list[Json]:
    found = []
    for name in NODES:
        own = [card for card in CARDS if card.node_name == name]
        all_cards = [replace(card, node_name=name) for card in CARDS]
        reports: dict[str, Json | None] = {
            "own": a_node_object(name, own),
            "fewer": a_node_object(name, own[:1]),
            "all": a_node_object(name, all_cards),
            "unreadable": a_node_object(name, register="nonsense"),
            "gone": None,
        }
        node = reports[draw(st.sampled_from(["own"] * 5 + list(reports)))]
        found += [node] if node else []
    return found


def identity(pod: Json) -> Pod:
    return replace(pod_identity(pod), priority=0)


def a_server(scene: Scene) -> ApiServer:
    """Return an API server with all of the scene that its rules allow."""
    api = ApiServer()
    for node in scene.nodes:
        api.put_node(node)
    for pod in scene.pods:
        api.put_pod(pod)
    for card in CARDS:
        entered: list[Holder] = []
        api.put_card(card)
        for holder in scene.holders:
            if holder.share.uuid == card.uuid:
                with contextlib.suppress(Invalid):
                    api.put_card(card, *entered, holder)
                    entered.append(holder)
        misfits = [
            Misfit(identity(a_pod_object(name)), SOME, "no room") for uuid, name in scene.misfits if uuid == card.uuid
        ]
        api.cards[card.object_name]["status"]["conflicts"] = [misfit_json(misfit) for misfit in misfits]
    return api


def run(work: Callable[[], Awaitable[T]]) -> T:
    """Run something on a clock of its own."""

    async def go() -> T:
        return await work()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(go())


def an_auditor(api: ApiServer) -> Auditor:
    return Auditor(api.store, audit_settings(Settings(), settle_s=2.0), clock=LoopClock())


def shares_in_use(api: ApiServer) -> dict[tuple[str, str], int]:
    """Return pod UID, card -> memory, for pods that run on the card's node and need all that they hold there."""
    result: dict[tuple[str, str], int] = {}
    for pod in api.pods.values():
        facts = pod_facts(pod, DIALECTS)
        here = [
            holder.share
            for card in CARDS
            if card.node_name == facts.needs_cards and card.object_name in api.cards
            for holder in api.card(card).holders or ()
            if holder.pod.uid == facts.pod.uid
        ]
        names = [container.name for share in here for container in share.containers]
        if facts.request and not any(
            names.count(n) > d.cards for n, d in zip(facts.request.names, facts.request.shape, strict=True)
        ):
            result |= {(facts.pod.uid, share.uuid): share.amounts.memory_mib for share in here}
    return result


@given(scenes(), st.booleans())
def test_after_an_audit_has_mended_a_second_one_finds_nothing_to_mend(scene: Scene, adopt: bool) -> None:
    api = a_server(scene)
    in_use = shares_in_use(api)

    async def twice() -> tuple[Report, Report, int]:
        first = await an_auditor(api).repair(adopt)
        writes = len(api.writes())
        return first, await an_auditor(api).repair(adopt), writes

    first, second, writes = run(twice)
    for finding in first.repaired:
        event(f"mended {finding.kind}")
    for finding in first.left:
        event(f"left {finding.kind}")
    assert second.repaired == ()
    assert len(api.writes()) == writes
    assert [finding.key for finding in second.left] == [finding.key for finding in first.left]
    after = shares_in_use(api)
    assert in_use.items() <= after.items()
    for card in CARDS:
        if card.object_name in api.cards:
            held = api.card(card).holders or ()
            assert sum(holder.share.amounts.memory_mib for holder in held) <= card.capacity.memory_mib


@given(scenes())
def test_looking_never_writes_and_never_fails(scene: Scene) -> None:
    api = a_server(scene)
    run(an_auditor(api).look)
    assert api.writes() == []


@given(scenes())
def test_without_leave_to_adopt_no_holder_is_entered(scene: Scene) -> None:
    api = a_server(scene)

    def entered() -> set[tuple[str, str]]:
        return {(uid, card.uuid) for card in CARDS if card.object_name in api.cards for uid in api.holders_of(card)}

    before = entered()
    run(lambda: an_auditor(api).repair(adopt=False))
    assert entered() <= before


@given(st.lists(limits.filter(lambda asked: bool(asked) and asked.get(MEMORY) != "4Gi"), max_size=6))
def test_pods_that_were_placed_as_they_should_are_no_finding(asked: list[dict[str, str]]) -> None:
    api, ledger = ApiServer(), a_ledger(*CARDS)
    chooser = Chooser(ledger, Policy())
    entered: dict[str, list[Holder]] = {card.uuid: [] for card in CARDS}
    for number, each in enumerate(asked):
        pod = a_pod_object(f"pod-{number}", each)
        request = pod_request(pod, DIALECTS)
        assert request is not None
        for placement in chooser.choose(request, NODES, 1).placements:
            ledger.seats.take(Seat(f"uid-pod-{number}", placement, until_s=1.0))
            pod["spec"]["nodeName"] = placement.node_name
            pod["metadata"]["annotations"] = {DEVICES_ANNOTATION: devices_annotation(placement.shares)}
            for share in placement.shares:
                entered[share.uuid].append(Holder(pod_identity(pod), share, attempt="first"))
        api.put_pod(pod)
    for node in NODES:
        api.put_node(a_node_object(node, [card for card in CARDS if card.node_name == node]))
    for card in CARDS:
        api.put_card(card, *entered[card.uuid])
    assert run(an_auditor(api).look) == Report((), ())
    assert run(lambda: an_auditor(api).repair(adopt=True)) == Report((), ())
    assert api.writes() == []
