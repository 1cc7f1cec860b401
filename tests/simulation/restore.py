"""etcd is put back to what it was: whatever has happened since has never happened, and no program was told.

That is more than any watch can show. The API server is stopped meanwhile, so what is under way to it is lost, and all
watches end. kube-scheduler is started anew, as docs/operations.md has it, and some time later the operators are: until
then, or until they find out by themselves, they must do no harm with what they remember.
Kubelets bring to an end what they have taken up and the API server does not know any more; that takes them a moment in
which nobody counts these containers, and no program can: the checks are about what the API server has.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.world import World

BUMP = 1_000_000
"""By so much `etcdutl snapshot restore --bump-revision` has later revisions differ from all that there were."""

RESTART_S = 30.0
"""How long it takes until somebody starts the operators anew."""

DOWN_S = 5.0
"""How long the API server is stopped: much less than it takes a person, and longer than a request waits for another."""


@dataclass(frozen=True)
class EtcdRestored:
    """The data goes back by so many revisions. Later ones are above all that there were, or, not `bumped`, the same."""

    back: int
    bumped: bool = True

    def can(self, world: "World") -> bool:
        return world.api.version - self.back >= world.first_version

    def do(self, world: "World") -> None:
        world.api.go_back(world.api.version - self.back, BUMP if self.bumped else 0)
        world.down_until_s = world.clock.now_s + DOWN_S
        world.connections += 1
        for slot in world.slots:
            slot.scheduler.end()
            for watch in slot.process.watches:
                watch.queue.clear()
        world.know_pods_again()
        world.checker.forget_ends()
        world.environment.call_later(DOWN_S, self._start, world)

    def _start(self, world: "World") -> None:
        for slot in world.slots:
            slot.scheduler.start_anew()
            for watch in list(slot.process.watches):
                if not watch.closed:
                    watch.break_off()
        for pod in world.api.pods.values():
            world.kubelets.take_up(pod, None)
        for node_name in world.node_names:
            world.nodes.report_soon(node_name)
        world.give_lease(world.lease_holder)
        world.environment.call_later(RESTART_S, self._restart, world)

    def _restart(self, world: "World") -> None:
        for slot in world.slots:
            if slot.process.alive and slot.process.connections < world.connections:
                slot.crash("is started anew")
