"""Why a pod, a gang or a workload of Kueue waits, or where it is: one report of all three, and its JSON.

docs/reference/explain.md documents the JSON for programs: a field is added there with a field here. The list of pending
pods, shorter and without nodes, has a report of its own (workflows/pending/pod_condition.py).

An explanation has advice for people who can change their manifest, and not the cluster. People who may see one
namespace read all of it but the names of others' pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple, Self

from gpuledger.formats.custom_resource.stored_card import amounts_json
from gpuledger.formats.kubernetes.gang import gang_of
from gpuledger.formats.kubernetes.pod import ResourceNames, pod_identity, scheduler_of
from gpuledger.formats.kubernetes.workload import why_not_admitted, workload
from gpuledger.ledger.quotas import Excess
from gpuledger.model.card import Card, why_not_chosen
from gpuledger.model.clock import rfc3339
from gpuledger.model.errors import BadInput, CardVerdict, NodeVerdict, Reason, Refusal
from gpuledger.model.gang import Counted, GangName, GangStage, GangWay, QuotaLimit
from gpuledger.model.json_object import Json, JsonMapping
from gpuledger.model.request import Demand, JoinedClaim, PodRequest
from gpuledger.model.share import Holder, Pod


class Kind(StrEnum):
    """What an explanation is about."""

    POD = "pod"
    GANG = "gang"
    WORKLOAD = "workload"


class State(StrEnum):
    """How far a pod or a workload has come on its way to cards; a gang has a GangStage."""

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
    NO_QUOTA = "waiting-for-quota"
    """A workload that Kueue has given no quota. So are all states below of workloads."""
    HAS_QUOTA = "has-quota"
    """It waits for its admission checks, or is about to be admitted."""
    NO_CARDS = "waiting-for-cards"
    """It has quota, and the operator finds no cards for it."""
    ADMITTED = "admitted"
    FINISHED = "finished"


HAS_PLACE = (State.PLACED, State.ADMITTED, State.FINISHED, GangStage.RUNNING)
"""In other states, the answer to the question whether it runs is no."""


class GangTurn(NamedTuple):
    """A time in which one gang goes before others."""

    gang: str
    """Namespace/name."""
    kind: str
    """first: gangs that come after it wait for it; alone: it alone is tried."""
    seconds_left: int


class FitsOn(NamedTuple):
    """How many members that have no cards would find some on a node."""

    node: str
    members: int


class Lacking(NamedTuple):
    """Requests of members that find no cards."""

    request: str
    """That of one of them: "1 card with 40,000 MiB"."""
    members: int
    cards: int


class MemberState(NamedTuple):
    """A member of a gang."""

    pod: str
    pod_uid: str
    state: str
    """running, on-hold, fits, no-cards or waiting, the last for one that is not needed."""
    node: str
    """Where it is, or has cards, or would find some; empty for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangProgress:
    """How far the members of a gang have come."""

    state: GangStage
    minimum: int
    running: int
    waiting: int
    """How many of those that were created wait."""
    needed: int
    """How many more have to be bound that ask for GPUs."""
    not_created: int = 0
    """How many of those that it needs have not been created."""
    without_gpus: int = 0
    """How many members ask for no GPUs: they count once they are created."""
    kept_places: int = 0
    """How many places of members that are gone are kept for those that replace them."""
    on_hold: int | None = None
    """For how many of these cards are kept; None where the operator was not asked."""
    in_bind: int | None = None
    """How many of these stand in Bind."""
    fits: int | None = None
    """How many of these have cards on hold, or would find some at once."""
    more_may_fit: bool = False
    """Whether the search was given up before all nodes were tried."""
    pauses_for_seconds: int = 0
    """For how long it is not tried, as a member could not be bound."""
    turn: GangTurn | None = None
    """Of the gang that is tried alone, or goes first: this one or another."""
    overtaken_by: int = 0
    """How many gangs have started that came after it."""
    fits_on: Sequence[FitsOn] = ()
    missing: Sequence[Lacking] = ()
    pods: Sequence[MemberState] = ()
    """The members, where the explanation is about the gang; not all of a large one."""
    pods_left_out: int = 0


class NewNodes(NamedTuple):
    """Nodes of a template that can be added, and whether they are of help."""

    template: str
    wanted: int
    """How many are wanted now, for it and for others; 0 if they are of no help to it."""
    since: str | None
    text: str
    """Why they are of no help; empty if they are wanted."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that a person may ask about one of them; its fields, in camel case, are those of the JSON.

    Times are RFC 3339, None where there is none.
    """

    kind: Kind
    namespace: str
    name: str
    state: State | GangStage
    summary: str
    _: KW_ONLY
    uid: str = ""
    """Of the pod; empty for others."""
    reason: str = ""
    """Of a pod that waits, see `main_reason`."""
    priority: int = 0
    since: str | None = None
    """When it was created; of a gang: the oldest member that waits."""
    last_tried: str | None = None
    """When kube-scheduler asked for the pod last."""
    owner: str = ""
    """What a workload stands for: "Job/train"; of a pod that was named by its owner, that."""
    also_waiting: Sequence[str] = ()
    """Of a pod that was named by its owner: the others of that which wait."""
    gang: str = ""
    """The name of the gang in its namespace that it is of, or is; empty if there is none."""
    gang_words: str = ""
    """The source of that name, and how many of the gang's pods start together."""
    queue: str = ""
    """The queue of Kueue's that it is in; empty if it is in none."""
    cluster_queue: str = ""
    """Where a workload has quota; empty if it has none."""
    requests: Sequence[Json] = ()
    """The cards that it asks for, see `asked`: by its containers and claims, or a workload's sets of pods."""
    shared_claims: Sequence[Json] = ()
    """The ResourceClaims that it shares with pods that use them already, see `shared`."""
    holds: Sequence[Json] = ()
    """Its shares of cards, see `held`."""
    members: GangProgress | None = None
    """Of a gang, or of the gang for which a pod waits."""
    scheduler_says: str | None = None
    """kube-scheduler's own words, which count the nodes that it has not even asked about."""
    scheduler_refused_all: bool = False
    """Whether kube-scheduler found no node at its last try that it would have asked the operator about."""
    waits_for: Sequence[str] = ()
    """The pods that leave cards for it, namespace/name, or the UID of one whose name is not known."""
    advice: str = ""
    """A request that would fit, in the pod's own words; part of the summary."""
    quota: Json | None = None
    """The limit of its namespace that keeps it waiting, see `quota_json`."""
    new_nodes: Sequence[NewNodes] = ()
    """The nodes that are wanted for it, or why none of a template is; nothing where nodes are not asked for."""
    warnings: Sequence[str] = ()
    """What is wrong with it otherwise, a sentence each: fields without effect, members that are placed by others."""
    example: str = ""
    """The member, or the set of pods, that the nodes are asked about, beside those that find cards."""
    nodes: Sequence[NodeVerdict] = ()
    """Why nodes do not take it: those that are nearest to taking it first."""

    @classmethod
    def of_pod(cls, pod: Pod, state: State, summary: str, **more: Any) -> Self:
        """Return that of a pod."""
        named: dict[str, Any] = {"uid": pod.uid, "priority": pod.priority, **more}
        return cls(Kind.POD, pod.namespace, pod.name, state, summary, **named)

    def json(self) -> Json:
        """Return it as it goes over the wire."""
        return {**_fields(self), "hasPlace": self.state in HAS_PLACE}


def _fields(report: Any) -> Json:
    names = getattr(report, "_fields", ()) or [each.name for each in fields(report)]
    return {_key(name): _as_json(getattr(report, name)) for name in names}


def _key(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join({"gpus": "GPUs", "uid": "UID"}.get(word, word.capitalize()) for word in rest)


def _as_json(value: Any) -> Any:
    """Return a value of a report as JSON. An empty text is null."""
    if isinstance(value, str):
        return str(value) or None
    if isinstance(value, NodeVerdict):
        return _node(value)
    if isinstance(value, GangProgress) or hasattr(value, "_fields"):
        return _fields(value)
    return [_as_json(each) for each in value] if isinstance(value, list | tuple) else value


def asked(name: str, demand: Demand | None, pods: int = 1) -> Json:
    """Return a request of so many pods; a demand of None is one for no card."""
    return {
        "name": name,
        "pods": pods,
        "text": demand_text(demand) if demand else "no GPU",
        "gpus": demand.cards if demand else 0,
        "memoryMiB": demand.memory_mib if demand else None,
        "memoryPercent": demand.memory_percent if demand and demand.memory_mib is None else None,
        "cores": demand.cores if demand else 0,
        "exclusive": demand is not None and demand.exclusive,
        "everyCard": demand is not None and demand.every_card,
    }


def shared(claim: JoinedClaim) -> Json:
    """Return a claim that a pod shares with others."""
    return {"claim": claim.name, "resourceClaim": claim.object_name, "node": claim.node_name}


def held(card: Card, holder: Holder) -> Json:
    """Return a pod's share of a card."""
    return {
        "uuid": card.uuid,
        "node": card.node_name,
        "index": card.index,
        "model": card.model,
        **amounts_json(holder.share.amounts),
        "exclusive": holder.share.exclusive,
        "state": holder.state.value,
    }


def _node(verdict: NodeVerdict) -> Json:
    return {
        "node": verdict.name,
        "fits": verdict.reason is None,
        "offered": verdict.offered,
        "kubeScheduler": verdict.scheduler._asdict() if verdict.scheduler else None,
        "reason": verdict.reason.value if verdict.reason else None,
        "text": verdict.refusal.text if verdict.refusal else "takes it",
        "remedy": verdict.remedy or None,
        "wouldHaveToLeave": list(verdict.would_have_to_leave),
        "cards": [_card(each) for each in verdict.cards],
    }


def _card(verdict: CardVerdict) -> Json:
    return {
        "uuid": verdict.card.uuid,
        "index": verdict.card.index,
        "model": verdict.card.model,
        "fits": verdict.reason is None,
        "reason": verdict.reason.value if verdict.reason else None,
        "text": verdict.text,
        "short": {name: amount for name, amount in amounts_json(verdict.short).items() if amount},
        "by": list(verdict.by),
    }


def main_reason(
    nodes: Sequence[NodeVerdict], refused_by_scheduler: bool, limit: QuotaLimit | None, gang: GangProgress | None
) -> str:
    """Return why a pod waits in a word: the reason that most nodes give, the nearest ones first among equals."""
    if refused_by_scheduler:
        return Reason.KUBE_SCHEDULER.value
    if limit:
        return (Reason.BUDGET if limit.spent else Reason.QUOTA).value
    if gang:
        return Reason.GANG.value
    reasons = Counter(node.reason.value for node in nodes if node.reason and not node.refused_by_scheduler)
    return max(reasons, key=reasons.__getitem__, default=State.WAITING.value)


def in_short(nodes: Sequence[NodeVerdict], advice: str = "") -> str:
    """Return why no node takes a pod: how many for each reason, what it could ask for, what the nearest one lacks."""
    if not nodes:
        return "no node of the cluster has a GPU in the ledger"
    asked = [node for node in nodes if not node.refused_by_scheduler]
    counts = Counter(node.refusal.text for node in asked if node.refusal)
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


def refused_by_scheduler(own_words: str, nodes: Sequence[NodeVerdict]) -> str:
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


def elsewhere(node: NodeVerdict, request: PodRequest) -> NodeVerdict:
    """Return why a node does not take a pod that shares a claim, if the claim's cards are on another one."""
    if request.joined_node in ("", node.name):
        return node
    claim = request.joined[0]
    why = Refusal(Reason.CLAIM_ELSEWHERE, f"claim {claim.name} of the pod is allocated on node {claim.node_name}")
    remedy = f"its cards are on {claim.node_name}, as long as other pods use ResourceClaim {claim.object_name}"
    return replace(node, refusal=why, remedy=remedy, cards=(), would_have_to_leave=())


def nearness(node: NodeVerdict) -> tuple[object, ...]:
    """Sort key: nodes that take the pod first, then those that are nearest to taking it."""
    short = min((card.shortage for card in node.cards if card.reason), default=(0, 0, 0))
    late = -list(Reason).index(node.reason) if node.reason else 0  # the reasons are looked for in this order
    return node.reason is not None, node.refused_by_scheduler, late, short, node.name


MODELS_NAMED = 6

_ROOM = (None, Reason.NO_MEMORY, Reason.CARD_TOO_SMALL)
"""Of cards that less memory would do for."""


def advice(request: PodRequest, nodes: Sequence[NodeVerdict], words: ResourceNames) -> str:
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


def _models(demand: Demand, nodes: Iterable[NodeVerdict]) -> str:
    wanted = demand.wanted
    models = sorted({card.card.model for node in nodes for card in node.cards if card.card.model})
    if not models or demand.rules or not (wanted.model or wanted.use_models):  # rules: cards of it need not do
        return ""
    names = ", ".join(models[:MODELS_NAMED]) + (", ..." if len(models) > MODELS_NAMED else "")
    return f"No node has model {wanted.model or ' or '.join(wanted.use_models)}: there are {names}"


def _selectors(demand: Demand, nodes: Iterable[NodeVerdict]) -> str:
    """Name the first selector that no card meets, with what is wrong with it where that is known."""
    cards = [card.card for node in nodes for card in node.cards if card.card.vendor == demand.wanted.vendor]
    for test in demand.wanted.tests if cards else ():
        if not any(test.admits(card) for card in cards):
            return f"A selector of the claim chooses no card, such as {cards[0].uuid}: {why_not_chosen(test, cards[0])}"
    return ""


def _less_memory(demand: Demand, nodes: Iterable[NodeVerdict], word: str, *, for_good: bool) -> str:
    most_mib = max((_most_mib(demand, node.cards, for_good) for node in nodes), default=0)
    if demand.memory_mib is None or most_mib <= 0:
        return ""
    each = " of each card" if demand.cards > 1 else ""
    name = _by_name(word)
    if for_good:
        return f"No node has larger cards: ask for at most {most_mib:,} MiB{each}{name}"
    return f"Wait, or ask for at most {most_mib:,} MiB{each}{name}, which would fit now"


def _most_mib(demand: Demand, cards: Iterable[CardVerdict], for_good: bool) -> int:
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


NODES_NAMED = 8
"""In a gang's summary, those where most members fit."""


def gang_summary(name: str, gang: GangProgress, problem: str = "") -> str:
    """Return how far a gang has come in a sentence or two, without the names of other gangs."""
    needed, there, stage = gang.needed, gang.waiting, gang.state
    begun = f"; {gang.running} run" if gang.running else ""
    if problem:
        text = problem
    elif not gang.minimum:
        text = "its PodGroup asks for no members at once, so its pods are placed one by one"
    elif stage is GangStage.RUNNING:
        more = f", and {there} more {'waits' if there == 1 else 'wait'}, each for itself" if there else ""
        text = f"{gang.running} members run of the {gang.minimum} that have to start together{more}"
    elif stage is GangStage.GATHERING:
        text = f"{gang.in_bind} of {needed} members stand in Bind{begun}; none is bound before all of them do"
    elif stage is GangStage.ROOM_FOUND:
        text = f"cards are kept for all of {needed} members{begun}: kube-scheduler is placing them"
    elif stage is GangStage.OTHERS_TURN:
        text = "another gang is tried alone for a while, which has found cards and lacked something else"
    elif stage is GangStage.HELD_BACK:
        text = "another gang goes first for a while, which many have overtaken that came after it"
    elif stage is GangStage.INCOMPLETE:
        few = "1 has" if gang.not_created == 1 else f"{gang.not_created} have"
        kept = ", and are kept for a moment" if gang.on_hold else ", and none are kept meanwhile"
        found = f"; {_found(gang, there)}{kept}" if there else ""
        text = f"{few} not been created of {gang.minimum} members{begun}{found}"
    else:
        text = f"{_found(gang, needed)}{begun}{_what_next(gang)}"
    return f"gang {name}: {text}"


def _what_next(gang: GangProgress) -> str:
    if gang.pauses_for_seconds:
        return f"; a member could not be bound, so it is tried again in {gang.pauses_for_seconds} s"
    if not gang.missing:
        return ": kube-scheduler retries them in its turn"
    cards, kinds = sum(each.cards for each in gang.missing), " and ".join(_each(each) for each in gang.missing[:2])
    others = ", and others" if len(gang.missing) > 2 else ""
    return f". Missing: {cards} card{'' if cards == 1 else 's'}, for {kinds}{others}"


def _found(gang: GangProgress, of: int) -> str:
    most = sorted(gang.fits_on, key=lambda each: (-each.members, each.node))
    where = ", ".join(f"{node} {number}" for node, number in most[:NODES_NAMED])
    more = f", and {len(most) - NODES_NAMED} more nodes" if len(most) > NODES_NAMED else ""
    fits = gang.fits or 0
    least = "at least " if gang.more_may_fit and fits < of else ""
    return f"{least}{fits} of {of} members find cards at once" + (f" ({where}{more})" if where else "")


def _each(lacking: Lacking) -> str:
    who = "1 member that asks" if lacking.members == 1 else f"{lacking.members} members that ask"
    return f"{who} for {lacking.request}"


NAMED = 4
"""Schedulers or priorities that a sentence names."""


def gangs_of(pods: Iterable[JsonMapping]) -> dict[GangName, list[JsonMapping]]:
    """Return the pods of each gang. A pod with unreadable labels is left out: its owner gets a warning."""
    gangs: dict[GangName, list[JsonMapping]] = {}
    for pod in pods:
        try:
            gang = gang_of(pod)
        except BadInput:
            continue
        if gang is not None:
            gangs.setdefault(gang.name, []).append(pod)
    return gangs


def placed_by(pod: JsonMapping) -> tuple[str, int]:
    """Return the properties of a pod that `divided` compares: its scheduler, and its priority."""
    return scheduler_of(pod) or "no scheduler", pod_identity(pod).priority


def divided(name: GangName, pods: Collection[tuple[str, int]], ours: Collection[str]) -> Iterator[str]:
    """Yield a sentence if some of a gang's pods are another scheduler's, and if priorities differ that must not.

    `pods` are as `placed_by` returns them, `ours` the names of our scheduler's profiles. Of a gang without any pods of
    ours: nothing.
    """
    schedulers = Counter(scheduler for scheduler, _ in pods)
    if schedulers.keys().isdisjoint(ours):
        return
    if others := [f"{count} by {name}" for name, count in sorted(schedulers.items()) if name not in ours]:
        yield f"of its {len(pods)} pods, some are placed by others: {_some_of(others)}"
    priorities = sorted({priority for _, priority in pods})
    if name.way is GangWay.KUBERNETES and len(priorities) > 1:
        yield f"its pods have different priorities: {_some_of(list(map(str, priorities)))}"


def _some_of(words: list[str]) -> str:
    return ", ".join(words[:NAMED]) + (", ..." if len(words) > NAMED else "")


def workload_explanation(found: JsonMapping) -> Explanation:
    """Return why a workload of Kueue waits, from its own status."""
    now = workload(found)
    state, summary = State.NO_QUOTA, why_not_admitted(found)
    if now.is_finished:
        state, summary = State.FINISHED, "has finished"
    elif now.is_admitted:
        state, summary = State.ADMITTED, f"is admitted from ClusterQueue {now.cluster_queue}: its pods may come"
    elif now.has_quota:
        state = State.HAS_QUOTA
    return Explanation(
        Kind.WORKLOAD,
        now.name.namespace,
        now.name.name,
        state,
        summary,
        owner=next((f"{each.get('kind')}/{each.get('name')}" for each in _owners(found)), ""),
        queue=now.queue,
        cluster_queue=now.cluster_queue,
        priority=now.priority,
        since=now.created,
    )


def is_named(found: JsonMapping, name: str) -> bool:
    """Return whether a workload, or what it stands for, has this name."""
    return name in (found["metadata"]["name"], *(each.get("name") for each in _owners(found)))


def _owners(found: JsonMapping) -> Sequence[JsonMapping]:
    return found["metadata"].get("ownerReferences") or ()


def moment(unix_s: float | None) -> str | None:
    """Return a time in Unix seconds as RFC 3339, in whole seconds of UTC."""
    return None if unix_s is None else rfc3339(datetime.fromtimestamp(unix_s, UTC))


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


def quota_json(excess: Excess) -> Json:
    """Return a limit that is in the way, with its amounts in the unit of what it counts."""
    limit = excess.limit
    return {
        "resourceQuota": limit.quota,
        "key": limit.key,
        "unit": UNITS[limit.counted],
        "model": limit.model or None,
        "limit": limit.most,
        "asked": excess.asked or None,
        "left": excess.left,
        "beingReleased": excess.releasing,
        "never": excess.is_for_ever,
        "spent": limit.spent or None,
        "largest": [{"pod": pod.name, "amount": amount} for pod, amount in excess.largest],
    }


def quota_text(namespace: str, excess: Excess) -> str:
    """Return why a limit is in the way, whether that can change without a higher limit, and of what."""
    limit = excess.limit
    unit = UNITS[limit.counted] + (f" of {limit.model} cards" if limit.model else "")
    where = f"{limit.key} of ResourceQuota {limit.quota}"
    if limit.spent:
        return f"namespace {namespace} has a budget, and {limit.spent} ({where})"
    if excess.is_for_ever:
        return (
            f"asks for {excess.asked:,} {unit}, more than namespace {namespace} may have in all ({where}): "
            f"ask for at most {limit.most:,}"
        )
    asks = f"asks for {excess.asked:,} {unit}" if excess.asked else "asks for more than is left"
    text = f"{asks}, and namespace {namespace} has {excess.left:,} of {limit.most:,} {unit} left ({where})"
    held = ", ".join(f"{pod.name} {amount:,}" for pod, amount in excess.largest)
    text += f"; most is held by {held}" if held else ""
    return text + (f"; {excess.releasing:,} are about to be free: their pods have ended" if excess.releasing else "")


OTHERS = "a pod of another namespace"


def redacted_for(explanation: Json, namespace: str) -> Json:
    """Return an explanation, as its `json` gives it, without other namespaces' names of pods and gangs."""

    def named(pods: list[str]) -> list[str]:
        return [pod if pod.startswith(f"{namespace}/") else OTHERS for pod in pods]

    waits_for = explanation["waitsFor"]
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
    members = explanation["members"]
    if members and members["turn"] and not members["turn"]["gang"].startswith(f"{namespace}/"):
        members = {**members, "turn": {**members["turn"], "gang": None}}
    return {**explanation, "summary": summary, "waitsFor": named(waits_for), "members": members, "nodes": nodes}
