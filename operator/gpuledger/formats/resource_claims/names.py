"""The names under which cards are offered to ResourceClaims."""

from __future__ import annotations

from typing import Final

from gpuledger.model.card_attributes import OWN_DOMAIN

DRIVER: Final = OWN_DOMAIN
"""Our DRA driver: in slices, in results of allocations, and in the node's plugin. As the resource of a demand: it is
asked for by a claim, and only nodes that serve claims have it."""

DEVICE_CLASS: Final = DRIVER
"""The DeviceClass that comes with the installation."""

MEMORY: Final = "memory"
CORES: Final = "cores"
SLOTS: Final = "slots"
"""Capacities of a device: bytes, percent of the card, and how many shares of it there can be."""

SERVES_CLAIMS_ANNOTATION: Final = "gpuledger.dev/serves-claims"
"""On a node: `true` where the kubelet has taken up our agent as a DRA driver."""

ONLY_TAINT: Final = "gpuledger.dev/only"
"""On each of our devices: it is given out by the ledger, and other schedulers have to leave it alone."""

PROTECTION: Final = "resource.kubernetes.io/delete-protection"
"""Finalizer of an allocated claim that pods share: nobody deletes it under them. kube-controller-manager removes it,
with the allocation, when the last of them has ended. Source: resource.k8s.io/v1, Finalizer."""
