"""What a policy knows of the pods that will come."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from gpuledger.model.request import PodRequest
from gpuledger.placement.decide import Footprint
from gpuledger.placement.fragmentation.mix import Mix


class History(StrEnum):
    """What is known when the first pod arrives."""

    KNOWN = "known"
    """How often each kind of pod comes, as in the published comparisons."""
    NONE = "none"
    """Nothing: it is learned from the arrivals, as an operator does that starts on a new cluster."""


def expected_mix(counts: Mapping[PodRequest, int], history: History) -> Mix:
    """Return what is known of the pods: request -> how many of them the trace has."""
    mix = Mix()
    if history is History.KNOWN:
        mix.fix((Footprint(request.shape, request.host), count) for request, count in counts.items())
    return mix
