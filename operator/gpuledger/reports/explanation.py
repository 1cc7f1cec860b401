"""Why a pod waits, or which cards it has: everything that a person may ask about one pod, and about all that wait.

An explanation has advice for people who can change their manifest, and not the cluster. People who may see one
namespace read all of it but the names of others' pods.

Pods that are alike, such as the replicas of a Deployment, are one line. The ledger knows no owners, so names tell who
belongs together, as controllers make them. That alone joins nothing: everything that is shown of them is equal, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum

from gpuledger.formats.custom_resource.stored_card import amounts_json
from gpuledger.formats.kubernetes.pod import ResourceNames
from gpuledger.model.card import Amounts, Card, why_not_chosen
from gpuledger.model.errors import Reason, Refusal
from gpuledger.model.gang import Counted, GangStage, QuotaLimit
from gpuledger.model.json_object import Json
from gpuledger.model.request import Demand, PodRequest
from gpuledger.model.share import Holder, Pod
from gpuledger.reports.cards import pod_json


class PodState(StrEnum):
    """How far a pod has come on its way to cards."""

    NOT_OURS = "not-ours"
    """Another scheduler places it."""
    NO_GPU = "no-gpu"
    """It asks for no card."""
    BAD_REQUEST = "bad-request"
    """Its request can't be understood, or contradicts itself."""
    WAITING = "waiting"
    """No node takes it."""
    ROOM_FOUND = "room-found"
    """A node takes it: the scheduler will try it, or is at it."""
    BEING_FREED = "being-freed"
    """Others have to leave cards first."""
    PLACED = "placed"
    """It is bound, with its cards."""
    UNCOUNTED = "uncounted"
    """It is bound, and the ledger has no cards for it."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class CardReason:
    """Whether one card takes a pod."""

    card: Card
    reason: Reason | None
    """None if it does."""
    text: str
    short: Amounts
    by: tuple[str, ...]
    """The pods that have what is missing, namespace/name, or the UID of one whose name is not known."""

    def json(self) -> Json:
        """Return it as it goes over the wire."""
        return {
            "uuid": self.card.uuid,
            "index": self.card.index,
            "model": self.card.model,
            "fits": self.reason is None,
            "reason": self.reason.value if self.reason else None,
            "text": self.text,
            "short": {name: amount for name, amount in amounts_json(self.short).items() if amount},
            "by": list(self.by),
        }


@dataclass(frozen=True, slots=True)
class SchedulerReason:
    """Why kube-scheduler itself does not take a node for a pod, whatever its cards."""

    code: str
    text: str

    def json(self) -> Json:
        """Return it as it goes over the wire."""
        return {"reason": self.code, "text": self.text}


@dataclass(frozen=True, slots=True)
class NodeReason:
    """Whether one node's cards take a pod, and whether kube-scheduler lets it go there."""

    name: str
    offered: bool | None
    """Whether kube-scheduler would let the pod go there, as of its last try; None if it has not said."""
    reason: Reason | None
    """None if its cards do."""
    text: str
    remedy: str
    """The change that would make it fit."""
    cards: tuple[CardReason, ...] = ()
    """None of them, too, where there are many nodes that are nearer to taking the pod."""
    would_have_to_leave: tuple[str, ...] = ()
    """The pods without which it would fit, namespace/name: one way of several. Nothing says that they do leave."""
    scheduler: SchedulerReason | None = None
    """Why it is not offered; None where it is, or where that is not known."""

    @property
    def refused_by_scheduler(self) -> bool:
        """Return whether kube-scheduler does not let the pod go there."""
        return self.offered is False

    def json(self) -> Json:
        """Return it as it goes over the wire."""
        return {
            "node": self.name,
            "fits": self.reason is None,
            "offered": self.offered,
            "kubeScheduler": self.scheduler.json() if self.scheduler else None,
            "reason": self.reason.value if self.reason else None,
            "text": self.text,
            "remedy": self.remedy or None,
            "wouldHaveToLeave": list(self.would_have_to_leave),
            "cards": [card.json() for card in self.cards],
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """All of it. Times are RFC 3339, None where there is none."""

    pod: Pod
    state: PodState
    summary: str
    since: str | None
    tried: str | None = None
    request: PodRequest | None = None
    scheduler_says: str | None = None
    """kube-scheduler's own words, which count the nodes that it has not even asked about."""
    refused_by_scheduler: bool = False
    """Whether kube-scheduler found no node at its last try that it would have asked the operator about."""
    nodes: Sequence[NodeReason] = ()
    """Those that are nearest to taking it first."""
    holders: Sequence[tuple[Card, Holder]] = field(default=())
    advice: str = ""
    """A request that would fit, in the pod's own words; part of the summary."""
    waits_for: Sequence[str] = ()
    """The pods that leave cards for it, namespace/name, or the UID of one whose name is not known."""
    warnings: Sequence[str] = ()
    """Warnings about fields of the pod without effect, a sentence each."""
    gang: str = ""
    """The name of its gang in its namespace; empty if it has none."""
    gang_stage: GangStage | None = None
    """How far the gang has come, if the pod waits for it."""
    over_quota: bool = False
    """Its namespace has what it may have."""
    queue: str = ""
    """The queue of Kueue's that it is in; empty if it is in none."""
    gang_words: str = ""
    """The source of its gang's name, and how many of its pods start together."""

    @property
    def main_reason(self) -> str:
        """Return the reason that most nodes give, the nearest ones first among equals; the state if there is none."""
        if self.refused_by_scheduler and self.state is PodState.WAITING:
            return Reason.KUBE_SCHEDULER.value
        if self.over_quota and self.state is PodState.WAITING:
            return Reason.QUOTA.value
        if self.gang_stage is not None:
            return Reason.GANG.value
        reasons = Counter(node.reason.value for node in self.nodes if node.reason and not node.refused_by_scheduler)
        return max(reasons, key=reasons.__getitem__, default=self.state.value)

    def json(self) -> Json:
        """Return it as it goes over the wire."""
        request = self.request
        return {
            **pod_json(self.pod),
            "priority": self.pod.priority,
            "gang": self.gang or None,
            "queue": self.queue or None,
            "state": self.state.value,
            "summary": self.summary,
            "since": self.since,
            "lastTried": self.tried,
            "containers": [_container(request, position) for position in range(len(request.shape))] if request else [],
            "sharedClaims": [
                {"claim": each.name, "resourceClaim": each.object_name, "node": each.node_name}
                for each in (request.joined if request else ())
            ],
            "advice": self.advice or None,
            "waitsFor": list(self.waits_for),
            "warnings": list(self.warnings),
            "gangWords": self.gang_words or None,
            "schedulerSays": self.scheduler_says,
            "schedulerRefused": sum(node.refused_by_scheduler for node in self.nodes),
            "schedulerRefusedAll": self.refused_by_scheduler,
            "nodes": [node.json() for node in self.nodes],
            "holds": [_hold(card, holder) for card, holder in self.holders],
        }


def in_short(nodes: Sequence[NodeReason], advice: str = "") -> str:
    """Return why no node takes a pod: how many for each reason, what it could ask for, what the nearest one lacks."""
    if not nodes:
        return "no node of the cluster has a GPU in the ledger"
    asked = [node for node in nodes if not node.refused_by_scheduler]
    counts = Counter(node.text for node in asked if node.reason)
    parts = [f"{text} ({number})" for text, number in counts.most_common()]
    if len(asked) < len(nodes):
        parts.append(f"not offered by kube-scheduler ({len(nodes) - len(asked)})")
    text = f"0 of {len(nodes)} GPU nodes take it: {', '.join(parts)}"
    nearest = next((node for node in asked if node.remedy), None)
    hints = [f"{nearest.name} {nearest.remedy}"] if nearest else []
    if not_offered := next((node for node in nodes if node.refused_by_scheduler and node.reason is None), None):
        why = not_offered.scheduler.text if not_offered.scheduler else "see its message"
        hints.append(f"{not_offered.name} has the cards, and kube-scheduler does not offer it: {why}")
    return ". ".join([text, *([advice] if advice else []), *hints])


def refused_by_scheduler(own_words: str, nodes: Sequence[NodeReason]) -> str:
    """Return why a pod waits that kube-scheduler has for no node, in its words and, where they are known, numbers."""
    text = f"kube-scheduler refuses every node, before it asks about cards: {own_words}"
    known = [node for node in nodes if node.scheduler]
    nearest = next((node for node in known if node.reason is None), next(iter(known), None))
    if nearest and nearest.scheduler:
        text += f". {nearest.name}: {nearest.scheduler.text}"
    fitting = sum(node.reason is None for node in nodes)
    if not nodes:
        return f"{text}. No node of the cluster has a GPU in the ledger, either"
    if fitting:
        return f"{text}. The cards of {fitting} of {len(nodes)} GPU nodes would take it"
    return f"{text}. Nor would the cards of any of {len(nodes)} GPU nodes take it as they are"


def elsewhere(node: NodeReason, request: PodRequest) -> NodeReason:
    """Return why a node does not take a pod that shares a claim, if the claim's cards are on another one."""
    if request.joined_node in ("", node.name):
        return node
    claim = request.joined[0]
    text = f"claim {claim.name} of the pod is allocated on node {claim.node_name}"
    remedy = f"its cards are on {claim.node_name}, as long as other pods use ResourceClaim {claim.object_name}"
    return replace(node, reason=Reason.CLAIM_ELSEWHERE, text=text, remedy=remedy, cards=(), would_have_to_leave=())


def nearness(node: NodeReason) -> tuple[object, ...]:
    """Sort key: nodes that take the pod first, then those that are nearest to taking it."""
    short = min((_shortage(card) for card in node.cards if card.reason), default=(0, 0, 0))
    late = -list(Reason).index(node.reason) if node.reason else 0  # the reasons are looked for in this order
    return node.reason is not None, node.refused_by_scheduler, late, short, node.name


def _shortage(card: CardReason) -> tuple[int, int, int]:
    return card.short.memory_mib, card.short.cores, card.short.number


def _container(request: PodRequest, position: int) -> Json:
    demand = request.shape[position]
    return {
        "name": request.names[position],
        **_of_claim(request.names[position]),
        "gpus": demand.cards,
        "memoryMiB": demand.memory_mib,
        "memoryPercent": demand.memory_percent if demand.memory_mib is None else None,
        "cores": demand.cores,
        "exclusive": demand.exclusive,
        **({"everyCard": True} if demand.every_card else {}),
    }


def _of_claim(name: str) -> Json:
    claim, _, request = name.partition("/")
    return {"claim": claim, "request": request} if request else {}


def _hold(card: Card, holder: Holder) -> Json:
    return {
        "uuid": card.uuid,
        "node": card.node_name,
        "index": card.index,
        "model": card.model,
        **amounts_json(holder.share.amounts),
        "exclusive": holder.share.exclusive,
        "state": holder.state.value,
    }


MODELS_NAMED = 6

_ROOM = (None, Reason.NO_MEMORY, Reason.CARD_TOO_SMALL)
"""Of cards that less memory would do for."""


def advice(request: PodRequest, nodes: Sequence[NodeReason], words: ResourceNames) -> str:
    """Return a sentence with what would fit: of all nodes that kube-scheduler offers, nearest first. Empty: nothing."""
    asked = [node for node in nodes if not node.refused_by_scheduler and node.cards]
    if not asked or len(request.shape) != 1:  # of several containers, one's amounts depend on the others'
        return ""
    demand, reason = request.shape[0], asked[0].reason
    if reason is Reason.NOT_WANTED:
        return _models(demand, asked) or _selectors(demand, asked)
    if reason is Reason.TOO_FEW_CARDS:
        most = max(sum(card.reason is not Reason.NOT_WANTED for card in node.cards) for node in asked)
        return f"No node has more than {most} such cards: ask for at most {most}{_by_name(words.count)}" if most else ""
    if reason in (Reason.CARD_TOO_SMALL, Reason.NO_MEMORY):
        return _less_memory(demand, asked, words.memory, for_good=reason is Reason.CARD_TOO_SMALL)
    return ""


def _models(demand: Demand, nodes: Iterable[NodeReason]) -> str:
    wanted = demand.wanted
    models = sorted({card.card.model for node in nodes for card in node.cards if card.card.model})
    if not models or demand.rules or not (wanted.model or wanted.use_models):  # rules: cards of it need not do
        return ""
    names = ", ".join(models[:MODELS_NAMED]) + (", ..." if len(models) > MODELS_NAMED else "")
    return f"No node has model {wanted.model or ' or '.join(wanted.use_models)}: there are {names}"


def _selectors(demand: Demand, nodes: Iterable[NodeReason]) -> str:
    """Name the first selector that no card meets, with what is wrong with it where that is known."""
    cards = [card.card for node in nodes for card in node.cards if card.card.vendor == demand.wanted.vendor]
    for test in demand.wanted.tests if cards else ():
        if not any(test.admits(card) for card in cards):
            return f"A selector of the claim chooses no card, such as {cards[0].uuid}: {why_not_chosen(test, cards[0])}"
    return ""


def _less_memory(demand: Demand, nodes: Iterable[NodeReason], word: str, *, for_good: bool) -> str:
    most_mib = max((_most_mib(demand, node.cards, for_good) for node in nodes), default=0)
    if demand.memory_mib is None or most_mib <= 0:
        return ""
    each = " of each card" if demand.cards > 1 else ""
    name = _by_name(word)
    if for_good:
        return f"No node has larger cards: ask for at most {most_mib:,} MiB{each}{name}"
    return f"Wait, or ask for at most {most_mib:,} MiB{each}{name}, which would fit now"


def _most_mib(demand: Demand, cards: Iterable[CardReason], for_good: bool) -> int:
    """Return how much memory as many cards of a node as are asked for have at least: free, or at all."""
    asked_mib = demand.memory_mib or 0
    amounts = sorted(
        (each.card.capacity.memory_mib if for_good else asked_mib - each.short.memory_mib)
        for each in cards
        if each.reason in _ROOM and not each.short.cores and not each.short.number
    )
    return amounts[-demand.cards] if len(amounts) >= demand.cards else 0


def _by_name(name: str) -> str:
    return f" ({name})" if name else ""


@dataclass(frozen=True, slots=True)
class WaitingReport:
    """A waiting pod, its request, and the reason."""

    pod: Pod
    request: PodRequest
    created: str
    """RFC 3339."""
    tried_s: float | None
    """When kube-scheduler asked for it last, in Unix seconds; None if it has not yet."""
    reasons: Mapping[Refusal, int]
    """Why nodes do not take it, and how many of them for each reason."""
    gang: str = ""
    """The name of its gang in its namespace; empty if it has none."""
    queue: str = ""
    """The queue of Kueue's that it is in; empty if it is in none."""

    @property
    def main_reason(self) -> str:
        """Return the reason that most nodes give; "room-found" if none is known: it is about to be tried again."""
        most = max(self.reasons.items(), key=lambda each: each[1], default=None)
        return most[0].reason.value if most else "room-found"

    def json(self) -> Json:
        """Return the report as it goes over the wire."""
        most_first = Counter(dict(self.reasons)).most_common()
        return {
            **pod_json(self.pod),
            "gang": self.gang or None,
            "queue": self.queue or None,
            "priority": self.pod.priority,
            "since": self.created,
            "lastTried": moment(self.tried_s),
            "request": request_text(self.request),
            "reasons": [
                {"reason": refusal.reason.value, "text": refusal.text, "nodes": nodes} for refusal, nodes in most_first
            ],
        }


def moment(unix_s: float | None) -> str | None:
    """Return a time in Unix seconds as RFC 3339, in whole seconds of UTC."""
    return None if unix_s is None else datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def request_text(request: PodRequest) -> str:
    """Return a pod's request in a line: "2 cards with 8,000 MiB and 30 % of cores each; 1 whole card"."""
    return "; ".join(demand_text(demand) for demand in request.shape)


def demand_text(demand: Demand) -> str:
    """Return one container's request in a few words."""
    cards = "1 card" if demand.cards == 1 else f"{demand.cards} cards"
    cards = "every card" if demand.every_card else cards
    if demand.whole:
        return cards.replace(" ", " whole ")
    memory = f"{demand.memory_percent} % of memory" if demand.memory_mib is None else f"{demand.memory_mib:,} MiB"
    cores = f" and {demand.cores} % of cores" if demand.cores else ""
    alone = ", alone" if demand.exclusive else ""
    return f"{cards} with {memory}{cores}{' each' if demand.cards > 1 else ''}{alone}"


UNITS = {Counted.MEMORY: "MiB", Counted.CORES: "percent of a card's cores", Counted.SLOTS: "cards or parts of cards"}


def quota_text(namespace: str, limit: QuotaLimit, used: int) -> str:
    """Return how far a namespace is with a limit."""
    of = f" of {limit.model} cards" if limit.model else ""
    amounts = f"{used:,} of {limit.most:,} {UNITS[limit.counted]}{of}"
    return f"namespace {namespace} has {amounts}: {limit.key} of ResourceQuota {limit.quota}"


OTHERS = "a pod of another namespace"


def redacted_for(explanation: Json, namespace: str) -> Json:
    """Return an explanation of a pod or a gang, as its `json` gives it, without other namespaces' names of either."""

    def named(pods: list[str]) -> list[str]:
        return [pod if pod.startswith(f"{namespace}/") else OTHERS for pod in pods]

    waits_for = explanation.get("waitsFor") or []
    nodes = [
        {
            **node,
            "wouldHaveToLeave": named(node["wouldHaveToLeave"]),
            "cards": [{**card, "by": named(card["by"])} for card in node["cards"]],
        }
        for node in explanation["nodes"]
    ]
    summary = explanation["summary"]
    for pod in sorted(waits_for, key=len, reverse=True):  # longer names first: one can begin with another
        if not pod.startswith(f"{namespace}/"):
            summary = summary.replace(pod, OTHERS)
    seen = {**explanation, "summary": summary, "nodes": nodes}
    if "waitsFor" in explanation:
        seen["waitsFor"] = named(waits_for)
    turn = explanation.get("turn")
    if turn and not turn["gang"].startswith(f"{namespace}/"):
        seen["turn"] = {**turn, "gang": None}
    return seen
