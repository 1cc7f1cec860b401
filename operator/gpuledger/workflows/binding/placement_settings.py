"""The settings of a pod's placement and binding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuledger.formats.dialects.pod_reader import PodReader, ResourceNames, resource_names
from gpuledger.formats.dialects.request import pod_request
from gpuledger.formats.dialects.unsupported import PodWarning
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.kubernetes.pod import pod_facts, stranger
from gpuledger.formats.resource_claims.claims import ClaimObjects, has_claims
from gpuledger.model.node import PodFacts, UnaccountedPod
from gpuledger.model.request import HostAmounts, PodRequest
from gpuledger.workflows.preemption.preemption_mode import PreemptionMode


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """The meaning of a pod's resource names, and timeouts."""

    dialects: Dialects
    hold_ttl_s: float
    bind_timeout_s: float
    """Until Bind sends no more Bindings, and answers when it is known what has become of those that were sent. Less
    than the scheduler's httpTimeout."""
    nodes_offered: int
    """Nodes between which kube-scheduler can choose for a pod."""
    who_preempts: PreemptionMode = field(default_factory=PreemptionMode)
    claims: ClaimObjects | None = None
    """What pods' ResourceClaims ask for; None where they are not served."""
    _words: PodReader = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_words", PodReader(self.dialects))

    def request(self, pod: Mapping[str, Any]) -> PodRequest | None:
        """Return what a pod asks for, None if it asks for no card. Raises BadInput."""
        if self.claims is not None and has_claims(pod):
            return pod_request(pod, self.dialects, self.claims)
        return self._words.request(pod)

    def warnings(self, pod: Mapping[str, Any]) -> tuple[PodWarning, ...]:
        """Return what a pod says that has no effect."""
        return self._words.warnings(pod)

    def words(self, pod: Mapping[str, Any], container_name: str) -> ResourceNames:
        """Return the names of resources that a pod's container has."""
        return resource_names(pod, container_name, self.dialects)

    def facts(self, pod: Mapping[str, Any]) -> PodFacts:
        """Return what concerns the ledger of a pod, readable or not."""
        return pod_facts(pod, self.dialects, self.claims)

    def host(self, pod: Mapping[str, Any]) -> HostAmounts:
        """Return what a pod takes of its node beside the ledger's cards."""
        return self._words.host(pod)

    def stranger(self, pod: Mapping[str, Any]) -> UnaccountedPod | None:
        """Return what a pod may have got from its node's device plugin, None for nothing."""
        return stranger(pod, self._words.counted(pod), self.dialects)
