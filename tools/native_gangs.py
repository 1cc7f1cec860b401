"""What turns Kubernetes' own groups of pods on, by minor version: it is off by default, and has changed in each."""

from __future__ import annotations

import os
from dataclasses import dataclass

from build_control_plane import CHOSEN_KUBERNETES, KUBERNETES


@dataclass(frozen=True)
class NativeGangs:
    """Feature gates of API server and kube-scheduler, and the API that they need."""

    feature_gates: tuple[str, ...]
    version: str

    @property
    def api_version(self) -> str:
        """The apiVersion of a PodGroup."""
        return f"scheduling.k8s.io/{self.version}"

    @property
    def runtime_config(self) -> tuple[str, ...]:
        """What the API server has to serve."""
        return (f"{self.api_version}=true",)


BY_VERSION = {
    "1.36": NativeGangs(("GenericWorkload=true", "GangScheduling=true"), "v1alpha2"),
    "1.37": NativeGangs(("GenericWorkload=true",), "v1beta1"),
}


def native_gangs() -> NativeGangs | None:
    """Return what the Kubernetes that is chosen needs; None if it has no such groups."""
    return BY_VERSION.get(os.environ.get(CHOSEN_KUBERNETES, KUBERNETES))
