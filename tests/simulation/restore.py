"""etcd is restored from an older copy of its data, and everybody has to go on from there.

What Kubernetes does then, and what is simulated of it:

- The API server is stopped meanwhile, for longer than anything that was under way to it lasts; answers that it has sent
  still can arrive. All watches end. Whoever goes on from a version of the time that was undone is shown nothing until
  the API server has reached that version again; after `--bump-revision` and `--mark-compacted`, versions jump, and a
  version of before is too old: everything is listed again.
- Kubelets list their pods. Those whose Binding or creation was undone are ended by that, and until then they run on, on
  cards that the ledger may give to others: nobody can know of it, so it is not looked at here. What such a kubelet says
  of a pod without a node is refused (admission plugin NodeRestriction). Pods that are back are started again; a kubelet
  that was about to end a pod does so.
- Nodes report again what is true of them.
- People start operator and kube-scheduler anew, as docs/operations.md says, sooner or later. An active operator ends by
  itself before, if it finds a card that is older than it was. kube-scheduler does not, and leaves pods alone that it
  has seen bound in the time that was undone.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.formats.kubernetes.other import LEASE_NAME, holder_host_name
from simulation.acts import lease_moves
from simulation.api_server import Kind
from simulation.item import Item

if TYPE_CHECKING:
    from simulation.slot import Slot
    from simulation.world import World

JUMP = 1_000_000
"""As `etcdutl snapshot restore --bump-revision` has it."""

DOWN_S = 5.0
"""How long the API server is stopped: much less than it takes people, and longer than a write waits for its answer."""

PEOPLE_S = 5.0
"""How long people take at least, after that, until they start what has to be started anew."""


@dataclass(frozen=True)
class EtcdRestored:
    """The last so many changes are undone."""

    changes: int
    jumps: bool = False
    """Whether versions go on from a later one than there has ever been, instead of coming a second time."""

    def can(self, world: "World") -> bool:
        return world.api.changes >= world.first_change + self.changes and not world.api.is_down

    def do(self, world: "World") -> None:
        world.api.restore(self.changes, JUMP if self.jumps else 0)
        world.api.is_down = True
        world.restored()
        for slot in world.slots:
            for watch in (*slot.process.watches, slot.scheduler.watch):
                watch.queue.clear()
        world.environment.call_later(DOWN_S, self._start, world)

    def _start(self, world: "World") -> None:
        world.api.is_down = False
        for slot in world.slots:
            for watch in (*slot.process.watches, slot.scheduler.watch):
                if not watch.closed:
                    watch.end()
            world.put_off(StartedAnew(slot), PEOPLE_S)
        _follow_lease(world)
        world.kubelets.list_again()
        for node_name in world.node_names:
            world.nodes.report_soon(node_name)


def _follow_lease(world: "World") -> None:
    """Let the scheduler go on that had the Lease when the copy was made."""
    host_name = holder_host_name(world.api.objects[Kind.LEASE][LEASE_NAME])
    holder = next((slot.number for slot in world.slots if slot.host == host_name), world.lease_holder)
    if world.scenario.follows_lease and holder != world.lease_holder:
        lease_moves(world, holder)
    world.lease_holder = holder


class StartedAnew(Item):
    """Somebody starts operator and kube-scheduler of a replica anew."""

    __slots__ = ("slot",)

    def __init__(self, slot: "Slot") -> None:
        super().__init__(slot.world)
        self.slot = slot

    def what(self) -> str:
        return f"replica {self.slot.number}: is started anew"

    def do(self) -> None:
        self.slot.restart_scheduler()
        if self.slot.process.alive:
            self.slot.crash("is started anew")
