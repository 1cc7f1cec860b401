"""The cluster's books compared with each other: facts in, findings out. Nothing is read, nothing is written.

The ledger is the authority on who holds what; pods and nodes say who should. An annotation is only a view of the
ledger, and is compared with it last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import cached_property

from gpuledger.ledger.adoption import (
    Action,
    Adopt,
    Annotate,
    AuditFinding,
    AuditFindingKind,
    ClearConflict,
    DeleteCard,
    Judge,
    claim_findings,
    lacks_cards,
    missing_shares,
    readable,
)
from gpuledger.ledger.entry import why_not
from gpuledger.model.card import NOTHING, Amounts, Card
from gpuledger.model.errors import BadInput
from gpuledger.model.node import ClusterSnapshot, PodFacts, SeenCard
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Holder, HolderState, Misfit, Share, StoredCard, fitting_variant

OVERDUE_AFTER = timedelta(minutes=1)
"""How long after its deadline a holder may still be there: the operator looks again soon after, not at once."""


def findings(snapshot: ClusterSnapshot) -> tuple[AuditFinding, ...]:
    """Return every difference in the world, in the order of their kinds."""
    audit = _Audit(snapshot)
    pods = list(audit.pods())
    lacking = {finding.pod.uid for finding in pods if finding.pod}
    found = [*audit.holders(), *pods, *claim_findings(snapshot, lacking), *audit.cards(), *audit.nodes()]
    return tuple(sorted(found, key=lambda finding: finding.place))


class _Audit:
    """One comparison, with what it looks things up in."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot
        self._stored = [seen.stored for seen in snapshot.cards]

    @cached_property
    def _by_uuid(self) -> dict[str, StoredCard]:
        return {stored.card.uuid: stored for stored in self._stored}

    @cached_property
    def _held(self) -> dict[str, list[tuple[Card, Holder]]]:
        """Pod UID -> what it holds, by node and index."""
        held: dict[str, list[tuple[Card, Holder]]] = {}
        for stored in sorted(self._stored, key=lambda stored: (stored.card.node_name, stored.card.place)):
            for holder in stored.holders or ():
                held.setdefault(holder.pod.uid, []).append((stored.card, holder))
        return held

    @cached_property
    def _reports(self) -> dict[str, dict[str, Card]]:
        """Name of a card's object -> node that reports the card -> the card."""
        reports: dict[str, dict[str, Card]] = {}
        for name, report in sorted(self._snapshot.nodes.items()):
            for card in report.cards or ():
                reports.setdefault(card.object_name, {})[name] = card
        return reports

    # Holders.

    def holders(self) -> Iterator[AuditFinding]:
        """Find holders whose pod has no right to them."""
        for held in self._held.values():
            for card, holder in held:
                kind, detail = self._holder(card, holder)
                if kind is not None:
                    action = None if kind is AuditFindingKind.OTHER_NODE else Judge(holder.pod.uid)
                    yield _finding(kind, card.node_name, card.uuid, holder, detail, action)

    def _holder(self, card: Card, holder: Holder) -> tuple[AuditFindingKind | None, str]:
        pod, amounts = self._snapshot.pods.get(holder.pod.uid), _words(holder.share.amounts)
        if holder.state is not HolderState.ALLOCATED:
            report = self._snapshot.nodes.get(card.node_name)
            runs = report is not None and report.runs(holder.pod.uid)
            late = not runs and _is_overdue(holder.deadline, self._snapshot.read_at)
            return (
                AuditFindingKind.OVERDUE if late else None
            ), f"{amounts}, {holder.state} until {holder.deadline or 'now'}"
        if pod is None:
            return AuditFindingKind.POD_GONE, amounts
        if not pod.node_name:
            return AuditFindingKind.POD_NOT_BOUND, amounts
        if pod.finished:
            return AuditFindingKind.POD_FINISHED, amounts
        rightful = self._rightful(pod)
        if card.node_name != pod.node_name:
            kind = AuditFindingKind.OTHER_NODE if rightful is None else AuditFindingKind.SPARE_HOLDER
            return kind, f"{amounts}; the pod is on node {pod.node_name}"
        if rightful is not None and holder.share not in rightful:
            return (
                AuditFindingKind.SPARE_HOLDER,
                f"{amounts}; its annotation names as many cards as it requests, but not this one",
            )
        return None, ""

    def _here(self, pod: PodFacts) -> list[Share]:
        """Return what a bound pod holds on its own node."""
        return [h.share for card, h in self._held.get(pod.pod.uid, ()) if card.node_name == pod.node_name]

    def _rightful(self, pod: PodFacts) -> list[Share] | None:
        """Return what is the pod's of what it holds on its node; None if that is too little, or can't be told."""
        here = self._here(pod)
        if pod.request is None or lacks_cards(here, pod.request):
            return None
        if fitting_variant(here, pod.request):
            return here
        named = [share for share in here if share.uuid in {card.uuid for card in pod.annotated or ()}]
        return named if fitting_variant(named, pod.request) else None

    # Pods.

    def pods(self) -> Iterator[AuditFinding]:
        """Find bound pods that the ledger, or their annotation, does not know as they are."""
        for pod in self._snapshot.pods.values():
            if pod.needs_cards and pod.bad_request:
                yield _finding(AuditFindingKind.UNREADABLE_POD, pod.node_name, "", pod, pod.bad_request)
            elif pod.needs_cards and not self._snapshot.only_counts(pod.node_name):
                yield from self._pod(pod)

    def _pod(self, pod: PodFacts) -> Iterator[AuditFinding]:
        here = self._here(pod)
        if pod.request is not None and lacks_cards(here, pod.request):
            yield from self._lacking(pod, pod.request, here)
            return
        rightful = here if pod.request is None else self._rightful(pod)
        if rightful is None or (here and pod.request is None) or not _names(rightful) <= _asking(pod, rightful):
            cards = ", ".join(share.uuid for share in here)
            yield _finding(AuditFindingKind.HOLDS_MORE, pod.node_name, "", pod, f"it holds cards {cards}")
            return
        detail = _annotation_differs(pod, rightful)
        if detail and not self._others_say_so(pod, rightful):
            action = Annotate(pod.pod, tuple(rightful))
            yield _finding(AuditFindingKind.ANNOTATION_DIFFERS, pod.node_name, "", pod, detail, action)

    def _others_say_so(self, pod: PodFacts, rightful: Sequence[Share]) -> bool:
        """Return whether a pod lacks our annotation, and that of the system which placed it names these cards."""
        if pod.annotated is not None or pod.bad_annotation or pod.old is None:
            return False
        try:
            return not missing_shares(pod, rightful, self)
        except BadInput:
            return False

    def _lacking(self, pod: PodFacts, request: PodRequest, here: Sequence[Share]) -> Iterator[AuditFinding]:
        asked = f"it asks for {_count(request.cards, 'card')} and holds {len(here)}"
        try:
            missing = missing_shares(pod, here, self)
        except BadInput as error:
            yield _finding(AuditFindingKind.NOT_ADOPTABLE, pod.node_name, "", pod, f"{asked}; {error}")
            return
        new = tuple(share for share in missing if not self._is_known_conflict(pod, share))
        if new:  # the others are findings of their cards
            kind = AuditFindingKind.PARTLY_ENTERED if here else AuditFindingKind.NOT_ENTERED
            named = ", ".join(f"{share.uuid} ({_words(share.amounts)})" for share in new)
            action = Adopt(pod.pod, pod.node_name, new)
            yield _finding(kind, pod.node_name, "", pod, f"{asked}; its annotation names {named}", action)

    def card(self, uuid: str) -> Card | None:
        """Return a card that takes pods."""
        stored = self._by_uuid.get(uuid)
        return None if stored is None or stored.holders is None else stored.card

    def cards_of(self, node_name: str) -> Sequence[Card]:
        """Return a node's cards that take pods."""
        here = (seen.stored for seen in self._snapshot.cards if seen.stored.card.node_name == node_name)
        return [stored.card for stored in here if stored.holders is not None]

    def _is_known_conflict(self, pod: PodFacts, share: Share) -> bool:
        stored = self._by_uuid[share.uuid]
        listed = any(misfit.pod.uid == pod.pod.uid for misfit in stored.misfits)
        others = [holder.share for holder in stored.holders or ()]
        return listed and why_not(share, others, stored.card.capacity) is not None

    # Cards.

    def cards(self) -> Iterator[AuditFinding]:
        """Find cards that contradict themselves, their pods or their nodes."""
        for seen in self._snapshot.cards:
            yield from _sums(seen)
            for misfit in seen.stored.misfits:
                yield self._conflict(seen.stored, misfit)
            yield from self._whereabouts(seen.stored)

    def _conflict(self, stored: StoredCard, misfit: Misfit) -> AuditFinding:
        card, pod = stored.card, self._snapshot.pods.get(misfit.pod.uid)
        holds = any(holder.pod.uid == misfit.pod.uid for holder in stored.holders or ())
        if pod is not None and pod.needs_cards == card.node_name and not holds:
            detail = f"{_words(misfit.amounts)} are not counted: {misfit.why}"
            return _finding(AuditFindingKind.CONFLICT, card.node_name, card.uuid, misfit, detail)
        detail = "the share has been entered since" if holds else "the pod is no longer on the card"
        action = ClearConflict(card.uuid, misfit.pod.uid)
        return _finding(AuditFindingKind.CONFLICT_OVER, card.node_name, card.uuid, misfit, detail, action)

    def _whereabouts(self, stored: StoredCard) -> Iterator[AuditFinding]:
        card = stored.card
        report = self._snapshot.nodes.get(card.node_name)
        reporters = self._reports.get(card.object_name, {})
        if (report is not None and report.cards is None) or card.node_name in reporters:
            return
        detail = "its node is gone" if report is None else "its node does not report it"
        if reporters:
            detail += f"; node {' and node '.join(reporters)} does"
        if stored.holders or stored.misfits:
            pods = _pods((*(stored.holders or ()), *stored.misfits))
            yield _finding(AuditFindingKind.ABANDONED_HOLDERS, card.node_name, card.uuid, None, f"{detail}; {pods}")
        elif reporters:
            yield _finding(AuditFindingKind.MOVED_CARD, card.node_name, card.uuid, None, detail)
        else:
            yield _finding(AuditFindingKind.ABANDONED_CARD, card.node_name, card.uuid, None, detail, DeleteCard(stored))

    # Nodes.

    def nodes(self) -> Iterator[AuditFinding]:
        """Find what is wrong with the nodes' registers."""
        for name, report in self._snapshot.nodes.items():
            if report.problems:
                rest = f" (and {len(report.problems) - 1} more)" if len(report.problems) > 1 else ""
                yield _finding(AuditFindingKind.UNREADABLE_REGISTER, name, "", None, report.problems[0] + rest)
        known = {stored.card.object_name: stored.card for stored in self._stored}
        for name, reporters in self._reports.items():
            first, card = next(iter(reporters.items()))
            if len(reporters) > 1:
                owner = f"; the ledger has it on node {known[name].node_name}" if name in known else ""
                detail = f"nodes {' and '.join(reporters)} report it{owner}"
                yield _finding(AuditFindingKind.TWO_NODES, first, card.uuid, None, detail)
            if name not in known:
                yield _finding(AuditFindingKind.NOT_IN_LEDGER, first, card.uuid, None, "its node reports it")


def _finding(
    kind: AuditFindingKind,
    node: str,
    card: str,
    about: Holder | PodFacts | Misfit | None,
    detail: str,
    action: Action | None = None,
) -> AuditFinding:
    return AuditFinding(kind, node, card, about.pod if about else None, readable(detail), action)


def _sums(seen: SeenCard) -> Iterator[AuditFinding]:
    card, holders = seen.stored.card, seen.stored.holders or ()
    held, capacity = sum((holder.share.amounts for holder in holders), NOTHING), card.capacity
    over = [
        f"{used} {unit} of {there}"
        for used, there, unit in (
            (held.memory_mib, capacity.memory_mib, "MiB"),
            (held.cores, capacity.cores, "% cores"),
        )
        if used > there
    ]
    if over:
        yield _finding(
            AuditFindingKind.OVER_CAPACITY, card.node_name, card.uuid, None, f"{', '.join(over)}; {_pods(holders)}"
        )
    if held.number > capacity.number:
        detail = f"{_count(held.number, 'slot')} of {capacity.number}; {_pods(holders)}"
        yield _finding(AuditFindingKind.TOO_MANY_SLOTS, card.node_name, card.uuid, None, detail)
    if seen.total is not None and seen.total != held:
        detail = f"the total says {_words(seen.total)}, the holders add up to {_words(held)}"
        yield _finding(AuditFindingKind.WRONG_TOTAL, card.node_name, card.uuid, None, detail)
    alone = [str(holder.pod) for holder in holders if holder.share.exclusive]
    if alone and len(holders) > 1:
        yield _finding(
            AuditFindingKind.NOT_ALONE, card.node_name, card.uuid, None, f"for {alone[0]} alone, but: {_pods(holders)}"
        )


def _names(shares: Iterable[Share]) -> set[str]:
    return {container.name for share in shares for container in share.containers}


def _asking(pod: PodFacts, shares: Sequence[Share]) -> set[str]:
    """Return the names of the containers that ask for cards, in the variant of which the pod has these."""
    variant = fitting_variant(shares, pod.request) if pod.request else None
    return set(variant.names) if variant else set()


def _annotation_differs(pod: PodFacts, shares: Sequence[Share]) -> str:
    """Say how the annotation differs from the shares; empty if it does not, apart from the order of the cards."""
    if pod.bad_annotation:
        return pod.bad_annotation
    annotated = {(card.container, card.uuid): (card.memory_mib, card.cores) for card in pod.annotated or ()}
    parts = [(part, share.uuid) for share in shares for part in share.containers]
    held = {(part.name, uuid): (part.memory_mib, part.cores) for part, uuid in parts}
    for part, uuid in parts:  # it may have it from a pod that has ended: its own Binding said nothing of it
        if part.claim is not None and part.claim.shared and (part.name, uuid) not in annotated:
            del held[part.name, uuid]
    if pod.annotated is None and held:
        return "it has no annotation"
    for container, uuid in (*held, *annotated):
        where = f"container {container[:63]!r}, card {uuid}"
        if (container, uuid) not in annotated:
            return f"{where}: in the ledger alone"
        if (container, uuid) not in held:
            return f"{where}: in the annotation alone"
        if annotated[container, uuid] != held[container, uuid]:
            memory_mib, cores = annotated[container, uuid]
            right_mib, right_cores = held[container, uuid]
            return f"{where}: annotation {memory_mib} MiB, {cores} %, ledger {right_mib} MiB, {right_cores} %"
    return ""


def _is_overdue(deadline: str | None, now: datetime) -> bool:
    try:
        return deadline is None or datetime.fromisoformat(deadline) + OVERDUE_AFTER < now
    except (ValueError, TypeError):  # no date, or one without a time zone
        return True


def _words(amounts: Amounts) -> str:
    return f"{amounts.memory_mib} MiB, {amounts.cores} % cores, {_count(amounts.number, 'slot')}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _pods(users: Sequence[Holder | Misfit]) -> str:
    """Name the first pods and count the rest."""
    named = ", ".join(str(user.pod) for user in users[:5])
    return f"pods {named}" + (f" and {len(users) - 5} more" if len(users) > 5 else "")
