"""Who moves where, to empty cards or to make room for a pod: by scenes of a cluster, and nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from builders import a_share, cards_of, whole_share
from fakes.objects import DIALECTS, GPU, a_node_object, a_pod_object
from gpuledger.formats.kubernetes.pod import pod_identity
from gpuledger.model.card import Card
from gpuledger.model.json_object import Json
from gpuledger.model.share import Holder, Share, StoredCard
from gpuledger.placement.policy import policy_of
from gpuledger.what_if.moves import MOVE_ANNOTATION, Mover, plan_room_for, plan_to_empty
from gpuledger.what_if.scene import Given, Scene

POLICY = policy_of("binpack")
CARDS = {name: cards_of(name, 2, memory_mib=40_000) for name in ("node-a", "node-b", "node-c")}
MEMORY = "nvidia.com/gpumem"


def runs(
    name: str, card: Card, share: Share | None = None, words: Mapping[str, str] | None = None
) -> tuple[Json, Card, Holder]:
    """Return a pod of a ReplicaSet with a share of a card; by default of 10,000 MiB."""
    share = share or a_share(card, 10_000)
    limits = {GPU: 1, MEMORY: share.amounts.memory_mib}
    pod = a_pod_object(name, limits, node_name=card.node_name, phase="Running", started=True)
    pod["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": True}]
    pod["metadata"]["annotations"] = dict(words or {})
    return pod, card, Holder(pod_identity(pod), share)


def a_scene(pods: Sequence[tuple[Json, Card, Holder]], waiting: Sequence[Json] = (), nodes: int = 3) -> Scene:
    names = [*CARDS][:nodes]
    held: dict[str, list[Holder]] = {}
    for _, card, holder in pods:
        held.setdefault(card.uuid, []).append(holder)
    return Scene(
        nodes=[Given("cluster", {**a_node_object(name, CARDS[name]), "kind": "Node"}) for name in names],
        cards={
            name: [StoredCard(card, 1, tuple(held.get(card.uuid, ())), "Ready") for card in CARDS[name]]
            for name in names
        },
        running=[Given("cluster", {**pod, "kind": "Pod"}) for pod, _, _ in pods],
        pods=[Given("cluster", {**pod, "kind": "Pod"}) for pod in waiting],
    )


def to_empty(scene: Scene, *cards: Card) -> list[Mover]:
    return plan_to_empty(scene, DIALECTS, POLICY, {card.uuid for card in cards})


def test_the_pods_of_a_card_find_room_on_others_and_not_on_those_that_are_to_be_empty() -> None:
    first, second = CARDS["node-a"]
    scene = a_scene([runs("one", first), runs("two", first), runs("three", second)])
    movers = to_empty(scene, first)
    assert {mover.name for mover in movers} == {"default/one", "default/two"}
    assert all(mover.to and mover.to[0] and not mover.why_not for mover in movers)
    both = to_empty(scene, first, second)
    assert {name for mover in both for name in mover.to} <= {"node-b", "node-c"}


def test_a_pod_that_fits_nowhere_else_is_named_with_the_reason() -> None:
    first = CARDS["node-a"][0]
    others = [runs(f"whole-{card.index}", card, whole_share(card)) for card in CARDS["node-a"][1:]]
    (mover,) = to_empty(a_scene([runs("one", first), *others], nodes=1), first)
    assert mover.to == ("",)
    assert mover.why_not.startswith("no node has room: ")


@pytest.mark.parametrize(
    ("annotations", "why"),
    [
        ({MOVE_ANNOTATION: "never"}, "it says gpuledger.dev/move: never"),
        ({"karpenter.sh/do-not-disrupt": "true"}, "it says karpenter.sh/do-not-disrupt: true"),
        ({MOVE_ANNOTATION: "whenever"}, ""),
    ],
)
def test_a_pods_word_keeps_it_where_it_is(annotations: dict[str, str], why: str) -> None:
    first = CARDS["node-a"][0]
    (mover,) = to_empty(a_scene([runs("one", first, words=annotations)]), first)
    assert mover.stays == why


@pytest.mark.parametrize("kind", ["", "DaemonSet"])
def test_a_pod_that_would_not_come_back_elsewhere_stays(kind: str) -> None:
    pod, card, holder = runs("one", CARDS["node-a"][0])
    pod["metadata"]["ownerReferences"] = [{"kind": kind, "name": "x", "uid": "x", "controller": True}] if kind else []
    (mover,) = to_empty(a_scene([(pod, card, holder)]), card)
    assert mover.stays


def test_a_gang_moves_with_all_its_members_wherever_they_are() -> None:
    pods = [runs("one", CARDS["node-a"][0]), runs("two", CARDS["node-b"][0]), runs("other", CARDS["node-b"][1])]
    for pod, _, _ in pods[:2]:
        pod["metadata"]["labels"] = {"gpuledger.dev/gang": "train", "gpuledger.dev/gang-minimum": "2"}
    (mover,) = to_empty(a_scene(pods), CARDS["node-a"][0])
    assert mover.name == "gang default/train"
    assert [pod["metadata"]["name"] for pod in mover.pods] == ["one", "two"]
    assert len(mover.to) == 2
    assert all(mover.to)


def waits(cards: int) -> Json:
    return a_pod_object("large", {GPU: cards})


def test_as_few_and_as_small_pods_leave_for_one_that_waits_as_it_takes() -> None:
    """Each node has a pod on each card: on node-b, least has to move."""
    pods = [runs(f"{card.node_name}-{card.index}", card, a_share(card, 30_000)) for card in CARDS["node-a"]]
    pods += [runs(f"{card.node_name}-{card.index}", card, a_share(card, 8_000)) for card in CARDS["node-b"]]
    pods += [runs(f"{card.node_name}-{card.index}", card, a_share(card, 20_000)) for card in CARDS["node-c"]]
    scene = a_scene(pods, [waits(1)])
    room = plan_room_for(scene, DIALECTS, POLICY, scene.pods[0])
    assert room is not None
    assert room.node_name == "node-b"
    assert len(room.movers) == len(room.uuids) == 1
    assert room.movers[0].pods[0]["metadata"]["name"].startswith("node-b-")
    assert room.movers[0].to[0]


def test_no_room_is_found_where_those_who_would_leave_have_nowhere_to_go() -> None:
    pods = [runs(f"on-{card.index}", card, a_share(card, 30_000)) for card in CARDS["node-a"]]
    scene = a_scene(pods, [waits(2)], nodes=1)
    assert plan_room_for(scene, DIALECTS, POLICY, scene.pods[0]) is None


def test_no_room_is_found_by_moving_what_has_to_stay() -> None:
    pods = [
        runs(f"on-{card.index}", card, words={MOVE_ANNOTATION: "never"}) for cards in CARDS.values() for card in cards
    ]
    scene = a_scene(pods, [waits(1)])
    assert plan_room_for(scene, DIALECTS, POLICY, scene.pods[0]) is None


def test_a_pod_that_fits_as_it_is_needs_nobody_to_move() -> None:
    scene = a_scene([runs("one", CARDS["node-a"][0])], [waits(1)])
    room = plan_room_for(scene, DIALECTS, POLICY, scene.pods[0])
    assert room is not None
    assert room.movers == ()
    assert replace(room, movers=()) == room
