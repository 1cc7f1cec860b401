"""Which pods move, and where they would go: to empty cards, or to make room for one pod that waits.

A scene of the cluster is asked, and nothing is changed. A pod that moves needs its new place while it still has the old
one, so both count. A gang moves as a whole. The search for one pod's room takes a node at a time: it lets all leave who
can, puts back the largest first as long as the pod still fits, and asks whether the rest finds room elsewhere; nodes on
which least has to move come first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuledger.formats.annotations import DEVICES_ANNOTATION
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.kubernetes.gang import gang_name_of
from gpuledger.formats.kubernetes.pod import controller_uid
from gpuledger.formats.resource_claims.claims import has_claims
from gpuledger.model.gang import GangName
from gpuledger.model.json_object import Json
from gpuledger.model.share import Holder, HolderState, StoredCard
from gpuledger.placement.policy import Policy
from gpuledger.what_if.cluster import ObjectCluster
from gpuledger.what_if.scene import Given, PodOutcome, PodStatus, Scene

MOVE_ANNOTATION = "gpuledger.dev/move"
"""On a pod: `never`, if it is not to be moved."""

STAY_WORDS = {
    MOVE_ANNOTATION: "never",
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}
"""Annotation of a pod -> the value by which its owner wants it left where it is."""

MOST_NODES = 64
"""Nodes that are looked at for the room of one pod."""

CLOSED = "its pods are to move"


@dataclass(frozen=True, slots=True)
class Mover:
    """A pod that moves, or all pods of a gang."""

    pods: tuple[Json, ...]
    gang: GangName | None = None
    to: tuple[str, ...] = ()
    """For each pod, the node on which it would have room now; empty if there is none."""
    why_not: str = ""
    """Why there is none."""
    stays: str = ""
    """Why it can't be moved, wherever there is room."""

    @property
    def name(self) -> str:
        """Return how people call it."""
        first = self.pods[0]["metadata"]
        return f"gang {self.gang}" if self.gang is not None else f"{first['namespace']}/{first['name']}"

    @property
    def leaves(self) -> tuple[str, ...]:
        """Return the nodes on which its pods are."""
        return tuple(str(pod["spec"]["nodeName"]) for pod in self.pods)


def plan_to_empty(scene: Scene, dialects: Dialects, policy: Policy, uuids: Collection[str]) -> list[Mover]:
    """Return who has to leave these cards, the most cards first, and where each would go."""
    holders = {holder.pod.uid for stored in _cards(scene) if stored.card.uuid in uuids for holder in _pods_on(stored)}
    movers = sorted(_movers(scene, holders), key=lambda mover: -_held(scene, mover))
    return list(_placed(movers, _closed(scene, uuids), dialects, policy))


@dataclass(frozen=True, slots=True)
class Room:
    """How a pod that waits would get room on a node."""

    node_name: str
    uuids: tuple[str, ...]
    """Its cards."""
    movers: tuple[Mover, ...]


def plan_room_for(scene: Scene, dialects: Dialects, policy: Policy, pod: Given) -> Room | None:
    """Return where least has to move for a pod to fit, and all of that finds room; None if there is no such node."""
    rooms = filter(None, (_on_node(scene, dialects, policy, pod, name) for name in _freest(scene)))
    for room in sorted(rooms, key=lambda room: sum(_held(scene, mover) for mover in room.movers)):
        movers = list(_placed(room.movers, _closed(scene, room.uuids), dialects, policy))
        if not any(mover.why_not for mover in movers):
            return replace(room, movers=tuple(movers))
    return None


def _uid(pod: Json) -> str:
    return str(pod["metadata"]["uid"])


def _cards(scene: Scene) -> Iterator[StoredCard]:
    return (stored for cards in scene.cards.values() for stored in cards)


def _pods_on(stored: StoredCard) -> Iterator[Holder]:
    return (each for each in stored.holders or () if each.state is HolderState.ALLOCATED and not each.is_seat)


def _movers(scene: Scene, uids: Collection[str]) -> Iterator[Mover]:
    """Yield what leaves with these pods: each by itself, or its whole gang."""
    gangs: dict[GangName, list[Json]] = {}
    for given in scene.running:
        name = gang_name_of(given.content)
        if name is not None:
            gangs.setdefault(name, []).append(given.content)
    for given in scene.running:
        name, pod = gang_name_of(given.content), given.content
        if _uid(pod) not in uids or (name is not None and name not in gangs):
            continue
        pods = (pod,) if name is None else tuple(gangs.pop(name))
        yield Mover(pods, name, stays=next(filter(None, map(why_it_stays, pods)), ""))


def why_it_stays(pod: Json) -> str:
    """Return why a pod can't be moved, empty if it can."""
    metadata, words = pod["metadata"], pod["metadata"].get("annotations") or {}
    asked = next((f"{key}: {value}" for key, value in STAY_WORDS.items() if words.get(key) == value), "")
    if not controller_uid(pod):
        return "it has no controller, and nothing would make it anew"
    if any(owner.get("kind") == "DaemonSet" for owner in metadata["ownerReferences"] if owner.get("controller")):
        return "its DaemonSet has it on each node"
    if has_claims(pod):
        return "it has cards by ResourceClaims, which can't be reserved"
    return f"it says {asked}" if asked else ""


def _held(scene: Scene, mover: Mover) -> int:
    """Return how much memory moves, in MiB."""
    uids = {_uid(pod) for pod in mover.pods}
    return sum(
        each.share.amounts.memory_mib for stored in _cards(scene) for each in _pods_on(stored) if each.pod.uid in uids
    )


def _closed(scene: Scene, uuids: Collection[str]) -> Scene:
    """Return the scene in which no pod comes to these cards, and those that wait are left out."""
    cards = {
        name: [replace(each, cordoned=CLOSED) if each.card.uuid in uuids else each for each in stored]
        for name, stored in scene.cards.items()
    }
    return replace(scene, cards=cards, pods=[], notes=[], problems=[])


def _placed(movers: Sequence[Mover], scene: Scene, dialects: Dialects, policy: Policy) -> Iterator[Mover]:
    """Yield the movers with where their pods find room beside all that is there, one after the other."""
    cluster = ObjectCluster(scene, dialects, policy)
    for mover in movers:
        outcomes = [cluster.take(Given("cluster", _copy(pod))) for pod in mover.pods if not mover.stays]
        found = [each for each in outcomes if each is not None]
        lacking = next((each for each in found if each.status is not PodStatus.PLACED), None)
        to = tuple(each.node_name for each in found)
        yield replace(mover, to=to, why_not=_why(lacking) if lacking is not None else "")


def _why(outcome: PodOutcome) -> str:
    """Return the reason that holds for most nodes."""
    ranked = sorted(outcome.reasons.items(), key=lambda item: (-item[1], item[0]))
    return f"no node has room: {ranked[0][0][1]}" if ranked else "no node has room"


def _copy(pod: Json) -> Json:
    """Return the pod as its controller would make it anew, by itself: its gang is placed member by member."""
    metadata = pod["metadata"]
    words = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != DEVICES_ANNOTATION}
    copied = {"name": metadata["name"], "namespace": metadata["namespace"], "uid": f"move {metadata['uid']}"}
    spec = {key: value for key, value in pod["spec"].items() if key not in ("nodeName", "schedulingGroup")}
    groups = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
    kept = {key: value for key, value in words.items() if key not in groups}
    return {"kind": "Pod", "metadata": {**copied, "annotations": kept}, "spec": spec, "status": {}}


def _freest(scene: Scene) -> list[str]:
    """Return the nodes with most memory that nobody holds, the first of them."""

    def free(stored: Sequence[StoredCard]) -> int:
        held = sum(each.share.amounts.memory_mib for card in stored for each in card.holders or ())
        return sum(card.card.capacity.memory_mib for card in stored) - held

    names = sorted(scene.cards, key=lambda name: (-free(scene.cards[name]), name))
    return [name for name in names if scene.cards[name]][:MOST_NODES]


def _on_node(scene: Scene, dialects: Dialects, policy: Policy, pod: Given, name: str) -> Room | None:
    """Return the pods without which a pod fits on a node, as few as it takes; None if it does not fit all the same."""
    holders = {holder.pod.uid for stored in scene.cards[name] for holder in _pods_on(stored)}
    single = (mover for mover in _movers(scene, holders) if not mover.stays and mover.gang is None)
    movers = {_uid(mover.pods[0]): mover for mover in single}
    largest_first = sorted(movers, key=lambda uid: (-_held(scene, movers[uid]), uid))
    found = _fits_without(scene, dialects, policy, pod, name, set(movers))
    if found is None:
        return None
    leaving = set(movers)
    for uid in largest_first:
        tried = _fits_without(scene, dialects, policy, pod, name, leaving - {uid})
        if tried is not None:
            leaving, found = leaving - {uid}, tried
    uuids = tuple(share.uuid for share in found.shares)
    return Room(name, uuids, tuple(movers[uid] for uid in largest_first if uid in leaving))


def _fits_without(
    scene: Scene, dialects: Dialects, policy: Policy, pod: Given, name: str, leaving: Collection[str]
) -> PodOutcome | None:
    """Return where on a node a pod fits once others have left, None if it does not."""
    nodes = [given for given in scene.nodes if given.content["metadata"]["name"] == name]
    running = [
        given
        for given in scene.running
        if given.content["spec"].get("nodeName") == name and _uid(given.content) not in leaving
    ]
    one = replace(
        scene, nodes=nodes, cards=_without({name: scene.cards[name]}, leaving), running=running, entered=[], pods=[]
    )
    outcome = ObjectCluster(replace(one, notes=[], problems=[]), dialects, policy).take(
        Given("cluster", _copy(pod.content))
    )
    return outcome if outcome is not None and outcome.status is PodStatus.PLACED else None


def _without(cards: Mapping[str, Sequence[StoredCard]], uids: Collection[str]) -> dict[str, list[StoredCard]]:
    return {
        name: [
            replace(each, holders=tuple(holder for holder in each.holders or () if holder.pod.uid not in uids))
            for each in stored
        ]
        for name, stored in cards.items()
    }
