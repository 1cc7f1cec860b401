"""Plans a migration from another system: the shares to enter, and the obstacles. Facts in, steps out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from gpuledger.ledger.adoption import lacks_cards, missing_shares
from gpuledger.ledger.entry import why_not
from gpuledger.model.card import Card
from gpuledger.model.cluster_snapshot import ClusterSnapshot, PodFacts
from gpuledger.model.errors import BadInput
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Pod, Share

NOT_ALL = "another share of the pod can't be entered"


@dataclass(frozen=True, slots=True)
class Step:
    """A share of a pod that runs already, and why it can't be entered; of a pod without a readable share, only why."""

    pod: Pod
    node_name: str
    source: str
    """The annotation that says which cards the pod has."""
    share: Share | None
    why: str = ""
    """The obstacle; empty if the share can be entered."""


def plan(snapshot: ClusterSnapshot, scheduler_names: Collection[str]) -> tuple[Step, ...]:
    """Return the steps for all pods that lack cards in the ledger, by namespace and name.

    Shares are counted in this order: one that fits in is in the way of the next. Cards that nodes report, and that are
    not in the ledger yet, count as empty.
    """
    cards = _Cards(snapshot)
    counted = (pod for pod in snapshot.pods.values() if not snapshot.only_counts(pod.needs_cards))
    pods = sorted(counted, key=lambda pod: str(pod.pod))
    return tuple(step for pod in pods for step in _together(tuple(_steps(pod, cards, scheduler_names))))


def _together(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return a pod's steps; if something stands in the way of one, none is entered."""
    if all(not step.why for step in steps):
        return steps
    return tuple(step if step.why else replace(step, why=NOT_ALL) for step in steps)


def _steps(pod: PodFacts, cards: _Cards, scheduler_names: Collection[str]) -> Iterator[Step]:
    if not pod.needs_cards:
        return
    source = pod.old.annotation if pod.annotated is None and pod.old is not None else "gpuledger.dev/devices"
    if pod.request is None:
        if pod.bad_request:
            yield Step(pod.pod, pod.node_name, source, None, pod.bad_request)
        return
    held = cards.held(pod)
    if not lacks_cards(held, pod.request):
        return
    yield from _lacking(pod, pod.request, held, cards, source, scheduler_names)


def _lacking(
    pod: PodFacts,
    request: PodRequest,
    held: Sequence[Share],
    cards: _Cards,
    source: str,
    scheduler_names: Collection[str],
) -> Iterator[Step]:
    try:
        missing = missing_shares(pod, held, cards)
    except BadInput as error:
        asked = f"it asks for {request.cards} cards"
        yield Step(pod.pod, pod.node_name, source, None, f"{asked}; {error}")
        return
    for share in missing:
        why = cards.enter(share)
        if not why and pod.scheduler_name not in scheduler_names:
            why = not_served(pod.scheduler_name)
        yield Step(pod.pod, pod.node_name, source, share, why)


def not_served(scheduler_name: str) -> str:
    """Return why a pod of this scheduler is not entered."""
    return f"its scheduler is {scheduler_name}: name it in the setting extra_scheduler_names"


class _Cards:
    """The cards of the world, with the shares on them; what is entered counts from then on."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._cards = {card.uuid: card for node in snapshot.nodes.values() for card in node.cards or ()}
        self._cards |= {seen.stored.card.uuid: seen.stored.card for seen in snapshot.cards}
        self._shares: dict[str, list[Share]] = {uuid: [] for uuid in self._cards}
        self._of_pod: dict[str, list[tuple[str, Share]]] = {}  # pod UID -> node name and share
        for seen in snapshot.cards:
            for holder in seen.stored.holders or ():
                self._shares[seen.stored.card.uuid].append(holder.share)
                mine = self._of_pod.setdefault(holder.pod.uid, [])
                mine.append((seen.stored.card.node_name, holder.share))

    def card(self, uuid: str) -> Card | None:
        """Return a card that is in the ledger, or will be."""
        return self._cards.get(uuid)

    def cards_of(self, node_name: str) -> list[Card]:
        """Return a node's cards."""
        return [card for card in self._cards.values() if card.node_name == node_name]

    def held(self, pod: PodFacts) -> list[Share]:
        """Return what a pod holds on its node."""
        return [share for node_name, share in self._of_pod.get(pod.pod.uid, ()) if node_name == pod.node_name]

    def enter(self, share: Share) -> str:
        """Count a share if it fits; return why not."""
        others = self._shares[share.uuid]
        why = why_not(share, others, self._cards[share.uuid].capacity)
        if why:
            return f"the card {why}: it would be listed as a conflict"
        others.append(share)
        return ""
