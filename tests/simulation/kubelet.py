"""All kubelets: a bound pod is started, one that is being deleted is ended and then gone."""

from typing import TYPE_CHECKING

from simulation.api_server import Change, Kind
from simulation.item import Item

if TYPE_CHECKING:
    from simulation.world import World


class Kubelets:
    """Follow the pods without delay; what they do about it takes its time."""

    def __init__(self, world: "World") -> None:
        self._world = world
        world.api.listeners.append(self._take)

    def _take(self, change: Change) -> None:
        pod, before = change.new, change.old
        if change.kind is not Kind.POD or pod is None or not pod["spec"].get("nodeName"):
            return
        uid = pod["metadata"]["uid"]
        was_bound = before is not None and bool(before["spec"].get("nodeName"))
        was_ending = before is not None and bool(before["metadata"].get("deletionTimestamp"))
        if not was_bound:
            self._world.pend(PodStarts(self._world, uid))
        if pod["metadata"].get("deletionTimestamp") and not was_ending:
            self._world.pend(PodEnds(self._world, uid))

    def list_again(self) -> None:
        """Look at all bound pods anew: etcd was restored. Whoever is not among them is ended, and nobody sees that."""
        for pod in self._world.api.pods.values():
            uid = pod["metadata"]["uid"]
            if pod["spec"].get("nodeName") and pod["metadata"].get("deletionTimestamp"):
                self._world.pend(PodEnds(self._world, uid))
            elif pod["spec"].get("nodeName"):
                self._world.pend(PodStarts(self._world, uid))


class _OfPod(Item):
    __slots__ = ("uid",)

    def __init__(self, world: "World", uid: str) -> None:
        super().__init__(world)
        self.uid = uid

    def is_void(self) -> bool:
        pod = self.world.pod_of(self.uid)
        return pod is None or not pod["spec"].get("nodeName")  # its Binding can be undone


class PodStarts(_OfPod):
    """A kubelet takes a pod up."""

    __slots__ = ()

    def what(self) -> str:
        return f"kubelet: starts {self.uid}"

    def do(self) -> None:
        pod = self.world.pod_of(self.uid)
        if pod is not None and pod["status"].get("phase") == "Pending":
            status = {**pod["status"], "phase": "Running", "startTime": "2030-01-01T00:00:00Z"}
            self.world.api.put_pod({**pod, "status": status})


class PodEnds(_OfPod):
    """A pod that is being deleted has ended; after that its object goes."""

    __slots__ = ()

    def what(self) -> str:
        return f"kubelet: ends {self.uid}"

    def do(self) -> None:
        pod = self.world.pod_of(self.uid)
        if pod is not None:
            self.world.api.put_pod({**pod, "status": {**pod["status"], "phase": "Failed"}})
            self.world.pend(PodGoes(self.world, self.uid))


class PodGoes(_OfPod):
    """The object of a pod goes, after the pod has ended."""

    __slots__ = ()

    def is_void(self) -> bool:
        pod = self.world.pod_of(self.uid)
        return pod is None or not pod["metadata"].get("deletionTimestamp")  # that, too, can be undone

    def what(self) -> str:
        return f"kubelet: removes {self.uid}"

    def do(self) -> None:
        pod = self.world.pod_of(self.uid)
        if pod is not None:
            self.world.drop_pod(pod)
