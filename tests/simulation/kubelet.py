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
        pod = change.new
        if change.kind is not Kind.POD or pod is None or not pod["spec"].get("nodeName"):
            return
        uid = pod["metadata"]["uid"]
        was_bound = change.old is not None and bool(change.old["spec"].get("nodeName"))
        was_ending = change.old is not None and bool(change.old["metadata"].get("deletionTimestamp"))
        if not was_bound:
            self._world.pend(PodStarts(self._world, uid))
        if pod["metadata"].get("deletionTimestamp") and not was_ending:
            self._world.pend(PodEnds(self._world, uid))


class _OfPod(Item):
    __slots__ = ("uid",)

    def __init__(self, world: "World", uid: str) -> None:
        super().__init__(world)
        self.uid = uid

    def is_void(self) -> bool:
        return self.world.pod_of(self.uid) is None


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

    def what(self) -> str:
        return f"kubelet: removes {self.uid}"

    def do(self) -> None:
        pod = self.world.pod_of(self.uid)
        if pod is not None:
            self.world.drop_pod(pod)
