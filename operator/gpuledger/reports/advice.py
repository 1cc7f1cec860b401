"""What a pod could ask for instead: for people who can change their manifest, and not the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuledger.formats.dialects.pod_reader import ResourceNames
from gpuledger.model.card import why_not_chosen
from gpuledger.model.refusal import Reason
from gpuledger.model.request import Demand, PodRequest
from gpuledger.reports.explanation import CardReason, NodeReason

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
