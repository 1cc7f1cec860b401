"""A card with its holders as people are shown it: the facts of its GPUAllocation, spelled as there.

Every view is made from these reports: those of the operator from its memory, those of a command from what the API
server stores. What is only on its way there, a hold, is in none of them.

Beside the shares is what the nodes' agents have measured of them. Of an agent's answer only that counts which is about
cards of its own node and about pods that hold a share of them there: an agent is as trustworthy as its node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import attrgetter

from gpuledger.formats.custom_resource.stored_card import amounts_json, cordoned_at_s, seat_json
from gpuledger.formats.node_usage import LONGEST_ANSWER_BYTES
from gpuledger.ledger.entry import CardEntry
from gpuledger.model.card import NOTHING, Amounts, Card, total
from gpuledger.model.json_object import Json, JsonMapping
from gpuledger.model.node import CardUsage, ContainerUsage, NodeUsage
from gpuledger.model.share import ContainerShare, Holder, Pod, StoredCard
from gpuledger.model.usage import EndedShare


@dataclass(frozen=True, slots=True)
class CardReport:
    """One card. Memory is in MiB, cores are in percent of the card, the number counts slots."""

    card: Card
    phase: str
    """Why it takes pods or not, in a word; empty before its first status."""
    reason: str
    """The same in a sentence; empty if it takes pods."""
    holders: tuple[Holder, ...]
    claims: int
    """How many pods wait until others have left the card."""
    conflicts: int
    """Shares that were found on the card, and that it has no room for."""
    gangs: Mapping[str, str] = field(default_factory=dict)
    """UID of each holder that is of a gang -> the name of that in the pod's namespace, as far as it is known."""
    ended: tuple[EndedShare, ...] = ()
    """Shares whose time is over, and may be in no record yet."""
    cordoned_s: float | None = None
    """When a person has cordoned the card, in Unix seconds; None if none has, or the mark does not say when."""

    @property
    def used(self) -> Amounts:
        """Return the sum of the holders' amounts."""
        return total(holder.share.amounts for holder in self.holders)

    @property
    def alone(self) -> bool:
        """Return whether a pod has the card alone."""
        return any(holder.share.exclusive for holder in self.holders)

    def json(self) -> Json:
        """Return the report as it goes over the wire."""
        card = self.card
        return {
            "uuid": card.uuid,
            "node": card.node_name,
            "index": card.index,
            "vendor": card.vendor,
            "model": card.model,
            "mode": card.mode,
            "numaNode": card.numa_node,
            "phase": self.phase,
            "reason": self.reason,
            "capacity": amounts_json(card.capacity),
            "used": amounts_json(self.used),
            "claims": self.claims,
            "conflicts": self.conflicts,
            "holders": [_holder_json(holder, self.gangs.get(holder.pod.uid, "")) for holder in self.holders],
        }


@dataclass(frozen=True, slots=True)
class NodeCards:
    """A node's cards, by index, and their sums."""

    name: str
    cards: tuple[CardReport, ...]

    @property
    def capacity(self) -> Amounts:
        """Return the sum of the cards' capacities."""
        return total(report.card.capacity for report in self.cards)

    @property
    def used(self) -> Amounts:
        """Return the sum of the holders' amounts."""
        return total(report.used for report in self.cards)

    def json(self) -> Json:
        """Return the report as it goes over the wire."""
        return {
            "node": self.name,
            "capacity": amounts_json(self.capacity),
            "used": amounts_json(self.used),
            "cards": [report.json() for report in self.cards],
        }


def report_of(entry: CardEntry, gang_of: Callable[[str], str] = lambda uid: "") -> CardReport:
    """Return the report of a line of the ledger in memory. `gang_of` tells a pod's gang by its UID."""
    holders = tuple(entry.listed.values())
    gangs = {uid: gang for uid in entry.holders if (gang := gang_of(uid))}
    counted = len(entry.claims), len(entry.misfits)
    ended, cordoned_s = entry.ended or (), cordoned_at_s(entry.cordoned)
    return CardReport(entry.card, entry.phase, entry.reason, holders, *counted, gangs, ended, cordoned_s)


def report_of_stored(stored: StoredCard, gangs: Mapping[str, str] | None = None) -> CardReport:
    """Return the report of a card that was read from the API server; `gangs` are those that are known by pods' UIDs."""
    holders, known = stored.holders or (), gangs or {}
    here = {holder.pod.uid: known[holder.pod.uid] for holder in holders if holder.pod.uid in known}
    return CardReport(stored.card, stored.phase, stored.reason, holders, len(stored.claims), len(stored.misfits), here)


def by_node(reports: Iterable[CardReport]) -> list[NodeCards]:
    """Return the nodes by name, each with its cards by index."""
    found: dict[str, list[CardReport]] = defaultdict(list)
    for report in reports:
        found[report.card.node_name].append(report)
    return [
        NodeCards(name, tuple(sorted(cards, key=lambda report: report.card.place)))
        for name, cards in sorted(found.items())
    ]


def by_namespace(reports: Iterable[CardReport]) -> Mapping[str, Amounts]:
    """Return the amounts that the pods of each namespace hold together."""
    found: dict[str, Amounts] = defaultdict(lambda: NOTHING)
    for report in reports:
        for holder in report.holders:
            found[holder.pod.namespace] += holder.share.amounts
    return dict(sorted(found.items()))


def by_model(reports: Iterable[CardReport]) -> Mapping[str, list[CardReport]]:
    """Return the cards of each model."""
    found: dict[str, list[CardReport]] = defaultdict(list)
    for report in sorted(reports, key=attrgetter("card.model")):
        found[report.card.model].append(report)
    return dict(found)


def pod_json(pod: Pod) -> Json:
    """Return who a pod is, as reports spell it."""
    return {"namespace": pod.namespace, "pod": pod.name, "podUID": pod.uid}


def _holder_json(holder: Holder, gang: str) -> Json:
    pod, share = holder.pod, holder.share
    return {
        **pod_json(pod),
        "priority": pod.priority,
        **amounts_json(share.amounts),
        "exclusive": share.exclusive,
        "state": holder.state.value,
        **({"gang": gang} if gang else {}),
        **({"seat": seat_json(holder.seat)} if holder.seat and holder.is_seat else {}),
    }


def holder_name(found: JsonMapping) -> str:
    """Return the name to show of a holder in that form: of its pod, or of the object that keeps the share for one."""
    kept = f" ({found['seat']['kind']})" if "seat" in found else ""
    return f"{found['namespace']}/{found['pod']}{kept}"


def number_of_pods(cards: Iterable[JsonMapping]) -> int:
    """Return how many pods hold cards that are in this form."""
    return len({each["podUID"] for card in cards for each in card["holders"] if "seat" not in each})


Measured = dict[tuple[str, str, str], ContainerUsage]
"""UUID of a card, UID of a pod, name of its container -> what that uses."""

NO_AGENT = "no agent of gpuledger runs there"
TOO_OLD = "its agent does not say what is used: it is of an older release"
TOO_LONG = f"its agent answers with more than {LONGEST_ANSWER_BYTES:,} bytes"
"""Why the use of a node is unknown, for every reader of its agent."""

IDLE_AFTER_S = 300
"""A container counts as idle that began its last kernel so long ago, unless the viewer says otherwise."""


class UseState(StrEnum):
    """How a container uses its part of a card."""

    IN_USE = "in use"
    IDLE = "idle"
    """It has used nothing, or its last kernel is long ago."""
    PAUSED = "paused"
    """It stands still for a container of higher priority."""
    NOT_STARTED = "not started"
    """Its node's agent knows of no such container."""
    UNKNOWN = "unknown"
    """Its node's agent does not answer."""


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """A container's part of one card, and its use of it."""

    share: ContainerShare
    measured: ContainerUsage | None
    state: UseState

    def json(self) -> Json:
        """Return it as it goes over the wire: measured amounts are null where they are not known."""
        measured = self.measured
        return {
            "container": self.share.name,
            "memoryHeldMiB": self.share.memory_mib,
            "coresHeld": self.share.cores,
            "memoryUsedMiB": measured and measured.memory_used_mib,
            "memoryLimitMiB": measured and measured.memory_limit_mib,
            "utilizationPercent": measured and measured.utilization_percent,
            "lastKernelSecondsAgo": measured and measured.last_kernel_s,
            "source": measured and measured.source,
            "state": self.state.value,
        }


@dataclass(frozen=True, slots=True)
class PodUse:
    """A pod's share of one card, and its containers' use of it."""

    holder: Holder
    containers: tuple[ContainerUse, ...]

    @property
    def idle_mib(self) -> int:
        """Return how much memory is held and idle: what none of its containers that are not idle may use.

        A pod's containers can share room, as an init container does with those that come after it.
        """
        if all(use.state is not UseState.IDLE for use in self.containers):
            return 0
        busy_mib = sum(use.share.memory_mib for use in self.containers if use.state is not UseState.IDLE)
        return max(0, self.holder.share.amounts.memory_mib - busy_mib)

    def json(self) -> Json:
        """Return it as it goes over the wire."""
        pod, held = self.holder.pod, self.holder.share.amounts
        return {
            **pod_json(pod),
            "memoryHeldMiB": held.memory_mib,
            "memoryIdleMiB": self.idle_mib,
            "coresHeld": held.cores,
            "containers": [use.json() for use in self.containers],
        }


@dataclass(frozen=True, slots=True)
class CardUse:
    """The holders and the use of one card."""

    report: CardReport
    measured: CardUsage | None
    """The use by all processes; None: unknown."""
    pods: tuple[PodUse, ...]

    def json(self) -> Json:
        """Return it as it goes over the wire."""
        card, held = self.report.card, self.report.used
        return {
            "uuid": card.uuid,
            "index": card.index,
            "memoryMiB": card.capacity.memory_mib,
            "memoryHeldMiB": held.memory_mib,
            "memoryUsedMiB": self.measured and self.measured.memory_used_mib,
            "memoryIdleMiB": sum(pod.idle_mib for pod in self.pods),
            "coresHeld": held.cores,
            "utilizationPercent": self.measured and self.measured.utilization_percent,
            "pods": [pod.json() for pod in self.pods],
        }


@dataclass(frozen=True, slots=True)
class NodeUse:
    """A node's cards, by index."""

    name: str
    at: str | None
    """When its agent has measured, RFC 3339; None if that is not known."""
    problem: str
    """Why it is not known, in a sentence; empty if it is."""
    cards: tuple[CardUse, ...]

    def json(self) -> Json:
        """Return it as it goes over the wire."""
        return {
            "node": self.name,
            "at": self.at,
            "problem": self.problem or None,
            "cards": [card.json() for card in self.cards],
        }


def node_use(node: NodeCards, answer: NodeUsage | str, idle_after_s: int) -> NodeUse:
    """Return the use of a node's cards. `answer` is its agent's, or says in a sentence why there is none."""
    if isinstance(answer, str):
        cards = tuple(_card_use(report, None, None, idle_after_s) for report in node.cards)
        return NodeUse(node.name, None, answer, cards)
    measured = {each.uuid: each for each in answer.cards}
    containers = {(each.uuid, each.pod_uid, each.container): each for each in answer.containers}
    cards = tuple(_card_use(report, measured.get(report.card.uuid), containers, idle_after_s) for report in node.cards)
    return NodeUse(node.name, answer.at, "", cards)


def known_part(answer: NodeUsage, node: NodeCards) -> NodeUsage:
    """Return the part of an agent's answer about cards of its node and about their holders, all else left out."""
    held = {
        (report.card.uuid, holder.pod.uid, share.name)
        for report in node.cards
        for holder in report.holders
        for share in holder.share.containers
    }
    uuids = {report.card.uuid for report in node.cards}
    cards = {each.uuid: each for each in answer.cards if each.uuid in uuids}  # each once, whatever it says
    containers = {(each.uuid, each.pod_uid, each.container): each for each in answer.containers}
    known = tuple(each for key, each in containers.items() if key in held)
    return replace(answer, cards=tuple(cards.values()), containers=known)


def _card_use(
    report: CardReport, measured: CardUsage | None, containers: Measured | None, idle_after_s: int
) -> CardUse:
    """Return the use of a card. `containers` is None where its node's agent does not answer."""

    def use(holder: Holder, share: ContainerShare) -> ContainerUse:
        if containers is None:
            return ContainerUse(share, None, UseState.UNKNOWN)
        found = containers.get((report.card.uuid, holder.pod.uid, share.name))
        return ContainerUse(share, found, _state(found, share, idle_after_s))

    pods = (PodUse(holder, tuple(use(holder, share) for share in holder.share.containers)) for holder in report.holders)
    return CardUse(report, measured, tuple(pods))


def _state(measured: ContainerUsage | None, share: ContainerShare, idle_after_s: int) -> UseState:
    """Return the container's state. Only containers that hold memory can be idle."""
    if measured is None:
        return UseState.NOT_STARTED
    if measured.paused:
        return UseState.PAUSED
    if share.memory_mib and _is_idle(measured, idle_after_s):
        return UseState.IDLE
    if measured.memory_used_mib is None and measured.utilization_percent is None:
        return UseState.UNKNOWN
    return UseState.IN_USE


def _is_idle(measured: ContainerUsage, idle_after_s: int) -> bool:
    """Return whether it has used neither memory nor compute, or began its last kernel long ago, which is over."""
    if measured.utilization_percent:
        return False
    if measured.last_kernel_s is not None:
        return measured.last_kernel_s >= idle_after_s
    return measured.memory_used_mib == 0
