"""What the Kubernetes that the tests run on can do: $GPULEDGER_KUBERNETES chooses it."""

from __future__ import annotations

import pytest

from build_control_plane import kubernetes_minor
from control_plane import ControlPlane
from gpuledger.configuration.dialects import policies
from gpuledger.configuration.settings import Settings

MINOR = kubernetes_minor()


def at_least(major: int, minor: int) -> bool:
    """Return whether the tests run on this Kubernetes, or on a newer one."""
    return tuple(map(int, MINOR.split("."))) >= (major, minor)


FILLS_IN = at_least(1, 36)
"""Whether its policies can fill pods in: MutatingAdmissionPolicy is stable from 1.36 on."""

needs_filling_in = pytest.mark.skipif(not FILLS_IN, reason=f"policies of Kubernetes {MINOR} fill in no pods")

CLAIMS_NAME_AMOUNTS = at_least(1, 36)
"""Whether claims can say amounts, and that cards differ: consumable capacity is on by default from 1.36 on. Before, the
API server drops both, and amounts stand in the opaque configuration."""


def apply_policies(plane: ControlPlane, settings: Settings = Settings()) -> None:  # noqa: B008 - it is frozen
    """Apply the policies of these settings; of an older Kubernetes, those that it has."""
    kinds = frozenset({"validating", *(["mutating"] if FILLS_IN else [])})
    plane.kubectl("apply", "-f", "-", stdin=policies(settings, kinds))
