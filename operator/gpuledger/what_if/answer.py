"""Where pods would go, on nodes from files or of a running cluster, and on more nodes than there are."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuledger.formats.dialects.unsupported import pod_warnings
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.model.json_object import Json
from gpuledger.placement.growth import Why
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
from gpuledger.what_if.cluster import ObjectCluster
from gpuledger.what_if.gangs import GangStatus, SceneGang
from gpuledger.what_if.scene import Given, PodOutcome, PodStatus, Remark, Scene


@dataclass(frozen=True, slots=True)
class Unhelped:
    """Pods that no number of more nodes gives room: all of a gang, or one."""

    pods: tuple[str, ...]
    why: Why


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of each pod."""

    pods: tuple[PodOutcome, ...]
    added: tuple[str, ...]
    """Nodes that were thought up."""
    like: str
    before: Answer | None
    """The answer without these; None if no nodes were added."""
    notes: tuple[Remark, ...]
    problems: tuple[Remark, ...]
    has_nodes: bool = True
    """Else there is no answer."""
    gangs: tuple[SceneGang, ...] = ()
    unhelped: tuple[Unhelped, ...] | None = None
    """Of whoever waits still, why such nodes are no help; None unless as many were added as are needed."""

    @property
    def fit(self) -> int:
        """Return how many pods were placed."""
        return sum(pod.status is PodStatus.PLACED for pod in self.pods)

    @property
    def waiting(self) -> int:
        """Return how many found no room."""
        return sum(pod.status is PodStatus.NO_ROOM for pod in self.pods)

    @property
    def whole_gangs(self) -> int:
        """Return how many gangs were placed whole."""
        return sum(gang.status is GangStatus.PLACED for gang in self.gangs)


def answer(scene: Scene, dialects: Dialects, policy: Policy, add_nodes: int = 0, like: str = "") -> Answer:
    """Place the pods of a scene in turn, with more nodes if asked. Raises BadInput if there is no node to copy."""
    cluster, before, added = ObjectCluster(scene, dialects, policy), None, list[str]()
    warnings = _warnings(scene.pods, dialects)
    if not cluster.has_nodes:
        problems = (*scene.problems, *cluster.problems)
        return Answer((), (), like, None, (*scene.notes, *warnings), problems, has_nodes=False)
    if add_nodes:
        before = answer(scene, dialects, policy)
        added = cluster.add_like(like, add_nodes)
    return Answer(
        pods=tuple(outcome for outcome in map(cluster.take, scene.pods) if outcome is not None),
        added=tuple(added),
        like=like,
        before=before,
        notes=(*scene.notes, *cluster.notes, *warnings),
        problems=(*scene.problems, *cluster.problems),
        gangs=tuple(cluster.gangs.placed()),
    )


def _warnings(pods: Sequence[Given], dialects: Dialects) -> list[Remark]:
    """Return what the pods of each file say that has no effect; what several say alike, once."""
    said: dict[tuple[str, str], str] = {}  # (file, sentence) -> the first pod of which it holds
    for pod in pods:
        for warning in pod_warnings(pod.content, dialects):
            said.setdefault((pod.file, warning.text), pod.name)
    return [Remark(file, name, text) for (file, text), name in said.items()]


NO_GPU = "asks for no GPU: kube-scheduler places it"
NO_GPUS = "ask for no GPU: kube-scheduler places them"

Alike = Sequence[PodOutcome]
"""Pods of one maker with the same outcome, wherever they are placed: at least one."""


def as_json(answer: Answer) -> Json:
    """Return the answer for scripts: fields may be added, and none goes."""
    return {
        "pods": [_pod(placed) for placed in answer.pods],
        "gangs": [_gang(gang) for gang in answer.gangs],
        "fit": answer.fit,
        "noRoom": answer.waiting,
        "addedNodes": list(answer.added),
        **({} if answer.before is None else {"fitWithoutAddedNodes": answer.before.fit}),
        **({} if answer.unhelped is None else _needed(answer, answer.unhelped)),
        "problems": [{"file": each.file, "object": each.object, "problem": each.text} for each in answer.problems],
        "notes": [str(note) for note in answer.notes],
    }


def as_lines(answer: Answer, terminal: Terminal, wide: bool = False) -> Iterator[str]:
    """Yield the table, the reasons of those that found no room, and a line that sums up.

    Pods that are alike are one row; with `wide`, each has its own.
    """
    groups = [[placed] for placed in answer.pods] if wide else gathered(answer.pods, _name, _shown)
    if groups or terminal.csv:
        yield from _table(groups, terminal)
    if terminal.csv:
        return
    waiting: dict[tuple[tuple[tuple[str, str], int], ...], list[Alike]] = {}  # reasons -> who has them
    for alike in groups:
        if alike[0].status is PodStatus.NO_ROOM:
            waiting.setdefault(tuple(_ranked(alike[0].reasons)), []).append(alike)
    for reasons, who in waiting.items():
        finds = "finds" if sum(map(len, who)) == 1 else "find"
        yield ""
        yield from terminal.folded(f"{listed(list(map(_title, who)))} {finds} no room:")
        for (reason, text), count in reasons:
            yield from terminal.folded(f"  {count} node{'s' * (count != 1)}: {text} ({reason})")
    for gang in answer.gangs:
        yield from _waiting_gang(gang, terminal)
    yield from _unhelped(answer, terminal)
    yield ""
    yield from terminal.folded(" ".join(filter(None, (_summary(answer), _summary_of_gangs(answer)))))


def _needed(answer: Answer, unhelped: Sequence[Unhelped]) -> Json:
    return {
        "neededNodes": len(answer.added),
        "notHelped": [{"pods": [*each.pods], "reason": each.why[0], "text": each.why[1]} for each in unhelped],
    }


def _unhelped(answer: Answer, terminal: Terminal) -> Iterator[str]:
    """Yield why more nodes are no help to whoever waits still."""
    by_reason: dict[Why, list[str]] = {}
    for each in answer.unhelped or ():
        by_reason.setdefault(each.why, []).extend(each.pods)
    for (reason, text), pods in by_reason.items():
        titles = [title_of(alike) for alike in gathered(pods, str, lambda _: None)]
        yield ""
        yield from terminal.folded(f"More nodes like {answer.like} are no help to {listed(titles)}:")
        yield from terminal.folded(f"  {text} ({reason})")


def _gang(gang: SceneGang) -> Json:
    return {
        "gang": str(gang.name),
        "status": gang.status.value,
        "minimum": gang.minimum,
        "members": gang.members,
        "membersWithRoom": gang.found,
        "reasons": _reasons(gang.reasons),
    }


def _waiting_gang(gang: SceneGang, terminal: Terminal) -> Iterator[str]:
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


def _name(placed: PodOutcome) -> str:
    return placed.pod


def _title(alike: Alike) -> str:
    return title_of([each.pod for each in alike])


def _shown(outcome: PodOutcome) -> Hashable:
    """Return what has to be equal in one row: all but the node, and which of its cards these are."""
    amounts = tuple(
        (name, tuple((memory_mib, cores) for _, memory_mib, cores in cards))
        for name, cards in _devices(outcome).items()
    )
    return outcome.status, amounts, tuple(_ranked(outcome.reasons))


def _pod(outcome: PodOutcome) -> Json:
    return {
        "pod": outcome.pod,
        "status": outcome.status.value,
        "node": outcome.node_name or None,
        "onAddedNode": outcome.is_on_added_node,
        "containers": {
            name: [
                {"uuid": uuid, "index": outcome.indexes[uuid], "memoryMiB": memory_mib, "cores": cores}
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
        whose: tuple[Cell, ...] = (_title(alike), _nodes(alike))
        cards = list(_cards(alike[0]) if len(alike) == 1 else _cards_of_many(alike))
        for place, (container, *card) in enumerate(cards):
            is_new = terminal.csv or not place
            title = "" if not terminal.csv and place and cards[place - 1][0] == container else container
            rows.append((*(whose if is_new else ("", "")), title, *card))
        if not cards:
            there = alike[0].status in (PodStatus.PLACED, PodStatus.BOUND)
            rows.append((*whose, "", "", "chosen by the node's own plugin" if there else "", "", ""))
    return table(terminal, columns, rows, gap=NARROW_GAP)


def _cards(placed: PodOutcome) -> Iterator[tuple[str, ...]]:
    for name, cards in _devices(placed).items():
        for uuid, memory_mib, cores in cards:
            yield name, str(placed.indexes[uuid]), uuid, str(memory_mib), str(cores) if cores else ""


def _cards_of_many(alike: Alike) -> Iterator[tuple[str, ...]]:
    """Yield a row for each container and amount: the cards of all of the pods together, and what each has of one."""
    found: dict[tuple[str, int, int], list[tuple[PodOutcome, str]]] = {}  # container, amounts -> pods and their cards
    for placed in alike:
        for name, cards in _devices(placed).items():
            for uuid, memory_mib, cores in cards:
                found.setdefault((name, memory_mib, cores), []).append((placed, uuid))
    one_node = len({placed.node_name for placed in alike}) == 1
    for (name, memory_mib, cores), cards_of in found.items():
        uuids = dict.fromkeys(uuid for _, uuid in cards_of)
        each = len(cards_of) // len(alike)
        some = next(iter(uuids)) if len(uuids) == 1 else f"{len(uuids)} cards" + (f", {each} each" if each > 1 else "")
        indexes = spans(placed.indexes[uuid] for placed, uuid in cards_of) if one_node else ""
        yield name, indexes, some, str(memory_mib), str(cores) if cores else ""


def _nodes(alike: Alike) -> Cell:
    outcome = alike[0]
    match outcome.status:
        case PodStatus.NO_ROOM:
            return (("no room", "red"),)
        case PodStatus.NO_GPU:
            return ((NO_GPU if len(alike) == 1 else NO_GPUS, "dim"),)
    named = nodes_named(each.node_name for each in alike)
    return f"{named} (bound)" if outcome.status is PodStatus.BOUND else ((named, "green"),)


def _summary(answer: Answer) -> str:
    asked = answer.fit + answer.waiting
    if not asked:
        return "No pod here waits for a GPU."
    if answer.before is None:
        return f"{answer.fit} of {asked} pods fit."
    nodes = "1 more node" if len(answer.added) == 1 else f"{len(answer.added)} more nodes"
    if answer.unhelped is not None:
        return _summary_of_needed(answer, answer.before.fit, asked, nodes)
    return f"{answer.before.fit} of {asked} pods fit now, {answer.fit} with {nodes} like {answer.like}."


def _summary_of_needed(answer: Answer, before: int, asked: int, nodes: str) -> str:
    now = f"{before} of {asked} pods fit now"
    if not answer.added:
        return f"{now}: no node is needed." if before == asked else f"{now}, and no more with nodes like {answer.like}."
    return f"{now}, {answer.fit} with {nodes} like {answer.like}, not all of them with fewer."


def _summary_of_gangs(answer: Answer) -> str:
    if not answer.gangs:
        return ""
    of = f"of {len(answer.gangs)}"
    if answer.before is None:
        return f"Gangs placed whole: {answer.whole_gangs} {of}."
    return f"Gangs placed whole: {answer.before.whole_gangs} {of} now, {answer.whole_gangs} then."
