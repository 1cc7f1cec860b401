"""What a policy knows of the pods that will come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from gpuledger.model.request import PodRequest
from gpuledger.placement.decide import Footprint
from gpuledger.placement.fragmentation.mix import Expected, Mix, by_frequency


class History(StrEnum):
    """What is known when the first pod arrives."""

    KNOWN = "known"
    """How often each kind of pod comes, as in the published comparisons."""
    NONE = "none"
    """Nothing: it is learned from the arrivals, as an operator does that starts on a new cluster."""


class KnownMix(Mix):
    """A mix that is known beforehand: arrivals teach nothing."""

    def __init__(self, counts: Iterable[tuple[Footprint, float]]) -> None:
        super().__init__(first_look=0)
        found: dict[Footprint, float] = {}
        for footprint, count in counts:
            found[footprint] = found.get(footprint, 0.0) + count
        self._expected = by_frequency(found)

    def expected(self) -> Sequence[Expected]:
        """Return the kinds of pods that are known to come."""
        return self._expected


def expected_mix(counts: Mapping[PodRequest, int], history: History) -> Mix:
    """Return what is known of the pods: request -> how many of them the trace has."""
    if history is History.NONE:
        return Mix()
    return KnownMix((Footprint(request.shape, request.host), count) for request, count in counts.items())
