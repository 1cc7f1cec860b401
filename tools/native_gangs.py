"""What turns Kubernetes' own groups of pods on, by minor version: it is off by default, and has changed in each."""

from __future__ import annotations

from dataclasses import dataclass

from build_control_plane import kubernetes_minor


@dataclass(frozen=True)
class NativeGangs:
    """Feature gates of API server and kube-scheduler, and the API that they need."""

    feature_gates: tuple[str, ...]
    version: str
    more_of_scheduler: tuple[str, ...] = ()
    """Further gates that the chart sets for kube-scheduler."""

    @property
    def scheduler_gates(self) -> str:
        """What the chart gives kube-scheduler where the setting native_gangs is on."""
        return ",".join((*self.feature_gates, *self.more_of_scheduler))

    @property
    def api_version(self) -> str:
        """The apiVersion of a PodGroup."""
        return f"scheduling.k8s.io/{self.version}"

    @property
    def runtime_config(self) -> tuple[str, ...]:
        """What the API server has to serve."""
        return (f"{self.api_version}=true",)


BY_VERSION = {
    "1.36": NativeGangs(
        ("GenericWorkload=true", "GangScheduling=true"), "v1alpha2", ("SchedulerPopFromBackoffQ=false",)
    ),
    "1.37": NativeGangs(("GenericWorkload=true",), "v1beta1"),
}


def native_gangs() -> NativeGangs | None:
    """Return what the Kubernetes that is chosen needs; None if it has no such groups."""
    return BY_VERSION.get(kubernetes_minor())
