"""Where pods would go, on nodes from files or of a running cluster, and on more nodes than there are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.formats.dialects.unsupported import pod_warnings
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.kubernetes.gang import PODGROUPS, pod_groups_named
from gpuledger.formats.kubernetes.pod import bound_node, created_at, is_being_deleted, pod_facts, scheduler_of
from gpuledger.formats.resource_claims.claims import ListedClaims, has_claims
from gpuledger.model.errors import Denied
from gpuledger.model.gang import GangName, PodGroup
from gpuledger.model.json_object import Json
from gpuledger.model.share import StoredCard
from gpuledger.placement.policy import Policy
from gpuledger.reports.tables import (
    NARROW_GAP,
    Cell,
    Column,
    Terminal,
    gathered,
    listed,
    nodes_named,
    spans,
    table,
    title_of,
)
from gpuledger.simulation.object_cluster import ObjectCluster
from gpuledger.simulation.object_gangs import GangOutcome, GangStatus
from gpuledger.simulation.objects import Given, InputObjects, PodOutcome, PodStatus, Remark, take_group, take_quota
from gpuledger.workflows.resource_claims.claims import read_claims


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


NO_GPU = "asks for no GPU: kube-scheduler places it"
NO_GPUS = "ask for no GPU: kube-scheduler places them"

Alike = Sequence[Placed]
"""Pods of one maker with the same outcome, wherever they are placed: at least one."""


def as_json(answer: Answer) -> Json:
    """Return the answer for scripts: fields may be added, and none goes."""
    return {
        "pods": [_pod(placed) for placed in answer.pods],
        "gangs": [_gang(gang) for gang in answer.gangs],
        "fit": answer.fit,
        "noRoom": answer.waiting,
        "addedNodes": list(answer.added),
        **({} if answer.fit_before is None else {"fitWithoutAddedNodes": answer.fit_before}),
        "problems": [{"file": each.file, "object": each.object, "problem": each.text} for each in answer.problems],
        "notes": [str(note) for note in answer.notes],
    }


def as_lines(answer: Answer, terminal: Terminal, wide: bool = False) -> Iterator[str]:
    """Yield the table, the reasons of those that found no room, and a line that sums up.

    Pods that are alike are one row; with `wide`, each has its own.
    """
    groups = [[placed] for placed in answer.pods] if wide else gathered(answer.pods, _name, _shown)
    if groups:
        yield from _table(groups, terminal)
    waiting: dict[tuple[tuple[tuple[str, str], int], ...], list[Alike]] = {}  # reasons -> who has them
    for alike in groups:
        if alike[0].outcome.status is PodStatus.NO_ROOM:
            waiting.setdefault(tuple(_ranked(alike[0].outcome.reasons)), []).append(alike)
    for reasons, who in waiting.items():
        finds = "finds" if sum(map(len, who)) == 1 else "find"
        yield ""
        yield from terminal.folded(f"{listed(list(map(_title, who)))} {finds} no room:")
        for (reason, text), count in reasons:
            yield from terminal.folded(f"  {count} node{'s' * (count != 1)}: {text} ({reason})")
    for gang in answer.gangs:
        yield from _waiting_gang(gang, terminal)
    yield ""
    yield from terminal.folded(" ".join(filter(None, (_summary(answer), _summary_of_gangs(answer)))))


def _gang(gang: GangOutcome) -> Json:
    return {
        "gang": gang.name,
        "status": gang.status.value,
        "minimum": gang.minimum,
        "members": gang.members,
        "membersWithRoom": gang.found,
        "reasons": _reasons(gang.reasons),
    }


def _waiting_gang(gang: GangOutcome, terminal: Terminal) -> Iterator[str]:
    """Yield what a gang lacks, beside what is said of its pods."""
    needed = f"the {gang.minimum} members that it needs"
    if gang.status is GangStatus.INCOMPLETE:
        yield ""
        yield from terminal.folded(f"Gang {gang.name} waits: {gang.members} of {needed} are there.")
    elif gang.status is GangStatus.NO_ROOM:
        yield ""
        yield from terminal.folded(
            f"Gang {gang.name} waits: {gang.found} of {needed} find cards at once. Another one finds no room:"
        )
        for (reason, text), count in _ranked(gang.reasons):
            yield from terminal.folded(f"  {count} node{'s' * (count != 1)}: {text} ({reason})")


def _name(placed: Placed) -> str:
    return placed.outcome.pod


def _title(alike: Alike) -> str:
    return title_of([each.outcome.pod for each in alike])


def _shown(placed: Placed) -> Hashable:
    """Return what has to be equal in one row: all but the node, and which of its cards these are."""
    outcome = placed.outcome
    amounts = tuple(
        (name, tuple((memory_mib, cores) for _, memory_mib, cores in cards))
        for name, cards in _devices(outcome).items()
    )
    return outcome.status, amounts, tuple(_ranked(outcome.reasons))


def _pod(placed: Placed) -> Json:
    outcome = placed.outcome
    return {
        "pod": outcome.pod,
        "status": outcome.status.value,
        "node": outcome.node_name or None,
        "onAddedNode": placed.on_added_node,
        "containers": {
            name: [
                {"uuid": uuid, "index": placed.indexes[uuid], "memoryMiB": memory_mib, "cores": cores}
                for uuid, memory_mib, cores in cards
            ]
            for name, cards in _devices(outcome).items()
        },
        "reasons": _reasons(outcome.reasons),
    }


def _reasons(reasons: Mapping[tuple[str, str], int]) -> list[Json]:
    return [{"reason": reason, "text": text, "nodes": count} for (reason, text), count in _ranked(reasons)]


def _devices(outcome: PodOutcome) -> dict[str, list[tuple[str, int, int]]]:
    """Return the cards of each container: UUID, memory and cores, in the order of the cards' index."""
    devices: dict[str, list[tuple[str, int, int]]] = {}
    for share in outcome.shares:
        for container in share.containers:
            devices.setdefault(container.name, []).append((share.uuid, container.memory_mib, container.cores))
    return devices


def _ranked(reasons: Mapping[tuple[str, str], int]) -> list[tuple[tuple[str, str], int]]:
    return sorted(reasons.items(), key=lambda item: (-item[1], item[0]))


def _table(groups: Sequence[Alike], terminal: Terminal) -> list[str]:
    titles = ("POD", "NODE", "CONTAINER", "GPU", "UUID", "MIB", "CORES")
    columns = [Column(title, right=title in ("GPU", "MIB", "CORES"), fold=True) for title in titles]
    rows: list[tuple[Cell, ...]] = []
    for alike in groups:
        first: tuple[Cell, ...] = (_title(alike), _nodes(alike))
        for row in _cards(alike[0]) if len(alike) == 1 else _cards_of_many(alike):
            rows.append((*first, *row))
            first = ("", "")
        if first[0]:
            there = alike[0].outcome.status in (PodStatus.PLACED, PodStatus.BOUND)
            rows.append((*first, "", "", "chosen by the node's own plugin" if there else "", "", ""))
    return table(terminal, columns, rows, gap=NARROW_GAP)


def _cards(placed: Placed) -> Iterator[tuple[str, ...]]:
    for name, cards in _devices(placed.outcome).items():
        title = name
        for uuid, memory_mib, cores in cards:
            yield title, str(placed.indexes[uuid]), uuid, str(memory_mib), str(cores) if cores else ""
            title = ""


def _cards_of_many(alike: Alike) -> Iterator[tuple[str, ...]]:
    """Yield a row for each container and amount: the cards of all of the pods together, and what each has of one."""
    found: dict[tuple[str, int, int], list[tuple[Placed, str]]] = {}  # container and amounts -> pods and their cards
    for placed in alike:
        for name, cards in _devices(placed.outcome).items():
            for uuid, memory_mib, cores in cards:
                found.setdefault((name, memory_mib, cores), []).append((placed, uuid))
    one_node = len({placed.outcome.node_name for placed in alike}) == 1
    for (name, memory_mib, cores), cards_of in found.items():
        uuids = dict.fromkeys(uuid for _, uuid in cards_of)
        each = len(cards_of) // len(alike)
        some = next(iter(uuids)) if len(uuids) == 1 else f"{len(uuids)} cards" + (f", {each} each" if each > 1 else "")
        indexes = spans(placed.indexes[uuid] for placed, uuid in cards_of) if one_node else ""
        yield name, indexes, some, str(memory_mib), str(cores) if cores else ""


def _nodes(alike: Alike) -> Cell:
    outcome = alike[0].outcome
    match outcome.status:
        case PodStatus.NO_ROOM:
            return (("no room", "red"),)
        case PodStatus.NO_GPU:
            return ((NO_GPU if len(alike) == 1 else NO_GPUS, "dim"),)
    named = nodes_named(each.outcome.node_name for each in alike)
    return f"{named} (bound)" if outcome.status is PodStatus.BOUND else ((named, "green"),)


def _summary(answer: Answer) -> str:
    asked = answer.fit + answer.waiting
    if not asked:
        return "No pod here waits for a GPU."
    if answer.fit_before is None:
        return f"{answer.fit} of {asked} pods fit."
    nodes = "1 more node" if len(answer.added) == 1 else f"{len(answer.added)} more nodes"
    return f"{answer.fit_before} of {asked} pods fit now, {answer.fit} with {nodes} like {answer.like}."


def _summary_of_gangs(answer: Answer) -> str:
    if not answer.gangs:
        return ""
    of = f"of {len(answer.gangs)}"
    if answer.gangs_before is None:
        return f"Gangs placed whole: {answer.whole_gangs} {of}."
    return f"Gangs placed whole: {answer.gangs_before} {of} now, {answer.whole_gangs} then."


WHERE = "cluster"


class ClusterReads(Protocol):
    """What is read of the cluster."""

    def nodes(self) -> AsyncIterator[list[Json]]:
        """Yield all Nodes, page by page."""

    def allocations(self) -> AsyncIterator[list[Json]]:
        """Yield all GPUAllocations, page by page."""

    def running_pods(self) -> AsyncIterator[list[Json]]:
        """Yield all pods that have a node and have not ended, page by page."""

    def pending_pods(self, scheduler_names: Sequence[str]) -> AsyncIterator[list[Json]]:
        """Yield the pods of scheduler profiles that have no node, page by page; others may be among them."""

    def resource_quotas(self) -> AsyncIterator[list[Json]]:
        """Yield all ResourceQuotas, page by page."""

    def pod_groups(self, api_group: str, versions: Sequence[str]) -> AsyncIterator[list[Json]]:
        """Yield the PodGroups of an API, page by page, in the first of these versions that there is; maybe none."""

    def claim_objects(self, kind: str) -> AsyncIterator[list[Json]]:
        """Yield all objects of a kind of resource.k8s.io/v1, page by page."""


async def read_scene(reads: ClusterReads, scheduler_names: Sequence[str], dialects: Dialects) -> Scene:
    """Read the cluster; pods that wait come by priority, then by age. Raises ApiError, BadInput for another CRD."""
    cards: dict[str, list[StoredCard]] = {}  # node name -> its cards
    held: set[str] = set()  # UIDs of pods that the ledger has
    async for page in reads.allocations():
        for stored in map(stored_card, page):
            cards.setdefault(stored.card.node_name, []).append(stored)
            held |= {holder.pod.uid for holder in stored.holders or ()}
    scene = Scene()
    async for page in reads.nodes():
        scene.nodes += [(_given("Node", node), tuple(cards.get(node["metadata"]["name"], ()))) for node in page]
    async for page in reads.running_pods():
        scene.running += [_given("Pod", pod) for pod in page]
    pending = [pod async for page in reads.pending_pods(scheduler_names) for pod in page]
    if any(map(has_claims, (*pending, *(given.content for given in scene.running)))):
        read = await read_claims(reads, list(chain.from_iterable(cards.values())))
        scene.claims, scene.claims_are_read = read[0] if read else ListedClaims(), True
    waiting = []
    for pod in pending:
        facts = pod_facts(pod, dialects, scene.claims)
        ours = scheduler_of(pod) in scheduler_names and not is_being_deleted(pod)
        asks = facts.request is not None or facts.bad_request
        if ours and (facts.pod.uid in held or not asks):
            scene.entered.append(_given("Pod", pod))
        elif ours:
            waiting.append(((-facts.pod.priority, created_at(pod)), pod))
    scene.pods += [_given("Pod", pod) for _, pod in sorted(waiting, key=lambda each: each[0])]
    await _read_groups(reads, scene)
    await _read_quotas(reads, scene)
    return scene


async def _read_quotas(reads: ClusterReads, scene: Scene) -> None:
    """Read what namespaces may have; who may not read that is answered as if there were no limits, and told so."""
    found = InputObjects()
    try:
        async for page in reads.resource_quotas():
            for quota in page:
                take_quota({**quota, "kind": "ResourceQuota"}, WHERE, found)
    except Denied as error:
        scene.notes.append(Remark(WHERE, "", f"quotas are left out, for they can't be read: {error}"))
    scene.quotas += found.quotas
    scene.problems += found.problems


async def _read_groups(reads: ClusterReads, scene: Scene) -> None:
    """Read what says of gangs how many members they need: those kinds of objects that pods name."""
    pods = (*scene.running, *scene.entered, *scene.pods)
    named = {group.way for pod in pods for group in pod_groups_named(pod.content)}
    found = InputObjects()
    for words in PODGROUPS:
        if words.way in named:
            async for page in reads.pod_groups(words.api_group, words.versions):
                for group in page:
                    take_group(group, words, WHERE, found)
    scene.groups |= found.groups
    scene.problems += found.problems


def _given(kind: str, content: Json) -> Given:
    return Given(WHERE, {**content, "kind": kind})
