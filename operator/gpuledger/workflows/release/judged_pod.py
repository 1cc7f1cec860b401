"""What matters of a pod whose shares are judged: many are at once, and users choose how long they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gpuledger.formats.kubernetes.pod import annotated_cards, bound_node, has_ended, is_being_deleted, is_finished
from gpuledger.model.card import Card
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import Json
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Holder, fitting_variant


@dataclass(frozen=True, slots=True)
class JudgedPod:
    """A pod as it was read."""

    node_name: str
    is_being_deleted: bool
    has_ended: bool
    is_finished: bool
    cards: frozenset[str]
    """UUIDs in its annotation, which users can write."""
    request: PodRequest | None
    """None if it can't be read."""


def judged(read_request: Callable[[Json], PodRequest | None], pod: Json) -> JudgedPod:
    """Return what matters of a pod."""
    request = None
    with suppress(BadInput):
        request = read_request(pod)
    leaves, cards = is_being_deleted(pod), annotated_cards(pod)
    return JudgedPod(bound_node(pod), leaves, has_ended(pod), is_finished(pod), cards, request)


def rightful(holders: Sequence[tuple[Card, Holder]], pod: JudgedPod) -> set[str]:
    """Return the cards that a bound pod has a right to: those on its node, as many as it asks for.

    Two operators that bind one pod at once can leave it twice what it asks for. Only then does its annotation decide,
    which came with the one Binding that was accepted; so no user can give up a share by editing an annotation.
    """
    here = [holder.share for card, holder in holders if card.node_name == pod.node_name]
    named = [share for share in here if share.uuid in pod.cards]
    if pod.request is not None and not fitting_variant(here, pod.request) and fitting_variant(named, pod.request):
        here = named
    return {share.uuid for share in here}
