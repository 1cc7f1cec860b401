"""Nodes for a pod whose claims leave a choice."""

from __future__ import annotations

from collections.abc import Collection

from gpuledger.model.refusal import Refusal
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Placement
from gpuledger.placement.choose import Choice, Chooser


def choose_first(
    chooser: Chooser, request: PodRequest, node_names: Collection[str], count: int, avoided: Collection[str] = ()
) -> tuple[PodRequest, Choice]:
    """Return the first of the pod's alternatives for which there is a node, and the nodes.

    If there is none for any of them: the first one, and why.
    """
    choice = chooser.choose(request, node_names, count, avoided)
    for each in () if choice.placements else request.alternatives:
        other = chooser.choose(each, node_names, count, avoided)
        if other.placements:
            return each, other
    return request, choice


def choose_first_on(chooser: Chooser, request: PodRequest, node_name: str) -> Placement | Refusal:
    """Return the cards of the first of the pod's alternatives that the node takes; else why not the first one."""
    refusals: list[Refusal] = []
    for each in request.variants:
        chosen = chooser.choose_on(each, node_name)
        if isinstance(chosen, Placement):
            return chosen
        refusals.append(chosen)
    return refusals[0]
