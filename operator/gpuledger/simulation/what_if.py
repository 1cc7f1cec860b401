"""Where pods would go, on nodes from files or from a cluster, and on more nodes than there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuledger.formats.dialects.unsupported import pod_warnings
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.kubernetes.pod import bound_node
from gpuledger.formats.resource_claims.claims import ListedClaims
from gpuledger.model.gang import GangName, PodGroup
from gpuledger.model.stored_card import StoredCard
from gpuledger.placement.policy import Policy
from gpuledger.simulation.object_cluster import ObjectCluster
from gpuledger.simulation.object_gangs import GangOutcome, GangStatus
from gpuledger.simulation.objects import Given, InputObjects, Remark
from gpuledger.simulation.pod_outcome import PodOutcome, PodStatus


@dataclass(slots=True)
class Scene:
    """What a question is about, in the order in which it is taken into account."""

    nodes: list[tuple[Given, tuple[StoredCard, ...] | None]] = field(default_factory=list)
    """Nodes; with the cards that a ledger has of them, or None where their registers alone say it."""
    running: list[Given] = field(default_factory=list)
    """Bound pods whose cards the ledger has, if they have any: they count with CPU and memory."""
    entered: list[Given] = field(default_factory=list)
    """Pods that are not bound yet, and whose cards the ledger has, or that ask for none."""
    pods: list[Given] = field(default_factory=list)
    groups: dict[GangName, PodGroup] = field(default_factory=dict)
    """What says of gangs how many members they need, where these don't."""
    quotas: list[Given] = field(default_factory=list)
    """ResourceQuotas, whatever they limit."""
    claims: ListedClaims = field(default_factory=ListedClaims)
    """ResourceClaims, templates and DeviceClasses."""
    claims_are_read: bool = False
    """They are those of a cluster, and files only add to them."""
    zone_labels: Sequence[str] = ()
    """Labels of nodes that are close to each other, the narrowest first."""
    notes: list[Remark] = field(default_factory=list)
    problems: list[Remark] = field(default_factory=list)

    def add(self, objects: InputObjects) -> None:
        """Add what files hold. Pods that are bound already come first."""
        self.nodes += [(node, None) for node in objects.nodes]
        self.pods += sorted(objects.pods, key=lambda pod: not bound_node(pod.content))
        self.groups |= objects.groups
        self.quotas += objects.quotas
        self.claims = self.claims.merged(objects.claims.listed(with_class=not self.claims_are_read))
        self.notes += objects.notes
        self.problems += objects.problems


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod's outcome; its cards with their places on the node."""

    outcome: PodOutcome
    indexes: dict[str, int]
    on_added_node: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of each pod."""

    pods: tuple[Placed, ...]
    added: tuple[str, ...]
    """Nodes that were thought up."""
    like: str
    fit_before: int | None
    """How many of the pods would be placed without these; None if no nodes were added."""
    notes: tuple[Remark, ...]
    problems: tuple[Remark, ...]
    has_nodes: bool = True
    """Else there is no answer."""
    gangs: tuple[GangOutcome, ...] = ()
    gangs_before: int | None = None
    """How many gangs would be placed whole without the added nodes."""

    @property
    def fit(self) -> int:
        """Return how many pods were placed."""
        return sum(pod.outcome.status is PodStatus.PLACED for pod in self.pods)

    @property
    def waiting(self) -> int:
        """Return how many found no room."""
        return sum(pod.outcome.status is PodStatus.NO_ROOM for pod in self.pods)

    @property
    def whole_gangs(self) -> int:
        """Return how many gangs were placed whole."""
        return _whole(self.gangs)


def answer(scene: Scene, dialects: Dialects, policy: Policy, add_nodes: int = 0, like: str = "") -> Answer:
    """Place the pods of a scene in turn, with more nodes if asked. Raises BadInput if there is no node to copy."""
    before = gangs_before = None
    cluster = _stage(scene, dialects, policy)
    if not cluster.has_nodes:
        notes = (*scene.notes, *_warnings(scene.pods, dialects))
        return Answer((), (), like, None, notes, (*scene.problems, *cluster.problems), has_nodes=False)
    if add_nodes:
        as_it_is = _stage(scene, dialects, policy)
        before = sum(outcome.status is PodStatus.PLACED for outcome in _placed(as_it_is, scene.pods))
        gangs_before = _whole(as_it_is.gangs)
    added = cluster.add_like(like, add_nodes) if add_nodes else []
    outcomes = _placed(cluster, scene.pods)
    placed = tuple(
        Placed(each, {share.uuid: cluster.index_of(share.uuid) for share in each.shares}, each.node_name in added)
        for each in outcomes
    )
    notes = (*scene.notes, *cluster.notes, *_warnings(scene.pods, dialects))
    problems = (*scene.problems, *cluster.problems)
    gangs = tuple(cluster.gangs)
    return Answer(placed, tuple(added), like, before, notes, problems, gangs=gangs, gangs_before=gangs_before)


def _whole(gangs: Sequence[GangOutcome]) -> int:
    return sum(gang.status is GangStatus.PLACED for gang in gangs)


def _warnings(pods: Sequence[Given], dialects: Dialects) -> list[Remark]:
    """Return what the pods of each file say that has no effect; what several say alike, once."""
    said: dict[tuple[str, str], str] = {}  # (file, sentence) -> the first pod of which it holds
    for pod in pods:
        for warning in pod_warnings(pod.content, dialects):
            said.setdefault((pod.file, warning.text), pod.name)
    return [Remark(file, name, text) for (file, text), name in said.items()]


def _stage(scene: Scene, dialects: Dialects, policy: Policy) -> ObjectCluster:
    cluster = ObjectCluster(dialects, policy, scene.groups, scene.zone_labels, scene.claims.merged(ListedClaims()))
    for node, stored in scene.nodes:
        cluster.add_node(node, stored)
    cluster.set_quotas(scene.quotas)
    for pod in scene.running:
        cluster.count_host(pod)
    cluster.expect([*scene.running, *scene.entered], have_cards=True)
    cluster.expect(scene.pods)
    return cluster


def _placed(cluster: ObjectCluster, pods: Sequence[Given]) -> list[PodOutcome]:
    return [outcome for outcome in map(cluster.take, pods) if outcome is not None]
