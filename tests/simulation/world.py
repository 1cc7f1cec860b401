"""A simulated cluster: everything that is on its way, the time, and one thing after the other.

At each step there is an *offer*: what can happen now. Its first choice is how things go when nothing is wrong: the
oldest thing on its way happens, or, if there is none, time passes until the next timer. The others: the oldest thing
lets all others go first; it goes wrong, in one of its ways; somebody does something, which is an act of the scenario.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from fakes.virtual_time import EPOCH
from gpuledger.formats.kubernetes.other import LEASE_NAME, LEASE_NAMESPACE
from gpuledger.formats.kubernetes.pod import LONGEST_GRACE_S
from gpuledger.formats.scheduler import BindArguments
from simulation import quota_checks
from simulation.api_server import ApiServer, Json, Kind
from simulation.checker import Checker, Violation
from simulation.item import Item
from simulation.kubelet import Kubelets
from simulation.lists import Lists
from simulation.nodes import Nodes, NodesSeen
from simulation.operator_process import OperatorProcess
from simulation.process_loop import Clock, ProcessLoop, new_loop
from simulation.readings import devices
from simulation.scenario import Act, Scenario, Wish
from simulation.slot import Slot

SETTLE_S = 75.0
"""How long a world is watched after the last choice, at least: longer than the delays of the releases."""

LEAK_S = 90.0
"""After so long no share is left over: a suspect is looked at, its pod may still run, and that ends."""

PATIENCE_S = 1_500.0
"""How long a world has to come to order after the last choice: several comparisons with full lists, and flushes.

Where a clock was set back, room can be kept for as much longer as the slowest pod may take to end.
"""

LOOK_S = 5.0
"""The clock goes no further at once: nothing may happen for minutes, and who waits meanwhile has to be noticed."""

STEPS_LIMIT = 20_000
"""More steps than any world needs: whoever takes them goes round in circles."""

TO_THE_BACK = 1
"""The choice that lets all others go first."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The choices of one step: 0 is the normal course, the others follow in the order of the fields."""

    things: Sequence[Item]
    """What is on its way, oldest first. If there are several, the oldest can go to the back: choice 1."""
    wrong_ways: int
    """Ways in which the oldest thing can go wrong."""
    acts: int
    """Acts of the scenario that are possible."""

    @property
    def first_wrong(self) -> int:
        """The choice that is the first of the wrong ways."""
        return 2 if len(self.things) > 1 else 1

    @property
    def first_act(self) -> int:
        """The choice that is the first of the acts."""
        return self.first_wrong + self.wrong_ways

    @property
    def size(self) -> int:
        """Number of choices."""
        return self.first_act + self.acts


Choose = Callable[[Offer], int]


class World:
    """One cluster, from its first moment to its last."""

    def __init__(self, scenario: Scenario, trace: list[str] | None = None) -> None:
        self.scenario = scenario
        self.trace = trace
        self.clock = Clock()
        self.api = ApiServer()
        self.api.leaves_at = self._in_half_a_minute
        self.environment = new_loop(self.clock)
        self.node_names = tuple(scenario.nodes)
        self.wishes: dict[str, Wish] = {}  # pod UID -> what it asks for, of every pod there has been
        self.items: list[Item] = []  # what is on its way, oldest first
        self._new: list[Item] = []
        self._last_number = 0
        self._last_noted: dict[int, str] = {}  # number of a thing -> what was written down of it last
        self._acts: list[Act] = list(scenario.acts)
        self._uids: dict[str, str] = {}  # pod UID -> key of the pod
        self._has_news = True
        self._rests = False
        self._lie = ""  # what an operator has said that is not so
        self.lease_holder = 1
        self.wake_refused = False
        """Whether the API server has refused to change an annotation."""
        self.write_refused = False
        """Whether it has refused to change a card, in a way that repeating it would not mend."""
        self.bind_refused = False
        """The same of a Binding."""
        self.has_crashed = False
        """Whether an operator was killed."""
        self.offered: dict[str, list[str]] = {}
        """The nodes that kube-scheduler's own plugins left over when it last asked for a pod, by the pod's UID."""
        self.clocks_agree = not any(scenario.skews_s)
        """Whether the wall clocks of all machines have been right all the time."""
        self.steps = 0
        self.lists = Lists(self)
        self.nodes = Nodes(self, scenario.cards)
        self._create_cluster()
        self.checker = Checker(self)
        self.kubelets = Kubelets(self)
        self.slots = [Slot(self, number + 1) for number in range(scenario.replicas)]
        self._start()

    def _create_cluster(self) -> None:
        for node in self.scenario.node_objects:
            self.api.put(Kind.NODE, node["metadata"]["name"], node)
        for card in self.scenario.cards:
            self.api.put_card(card)
        self.give_lease(1)

    def _start(self) -> None:
        """Let the operators come up in peace; then the pods come."""
        trace, self.trace = self.trace, None
        self._settle()
        while self.items:
            self._take(Offer(self.items, 0, 0), 0)
        self.trace = trace
        for slot in self.slots:
            if not self.scenario.follows_lease or slot.number == self.lease_holder:
                slot.scheduler.start()
        self.first_change = self.api.changes
        for wish in self.scenario.wishes:
            self.create(wish)
        self.steps = 0

    # For those who live here.

    def _in_half_a_minute(self) -> str:
        return (EPOCH + timedelta(seconds=self.clock.now_s + 30)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def pend(self, item: Item) -> None:
        """Let something be on its way."""
        self._new.append(item)

    def put_off(self, item: Item, delay_s: float) -> None:
        """Let something be on its way later."""
        self.environment.call_later(delay_s, self.pend, item)

    def note(self, text: str) -> None:
        """Write down what happens, if anybody wants to read it."""
        if self.trace is not None:
            self.trace.append(f"{self.clock.now_s - 1000:9.3f} s  {text}")

    def pod_of(self, uid: str) -> Json | None:
        """Return the pod with a UID, None if it is gone."""
        return self.api.pods.get(self._uids.get(uid, ""))

    def create(self, wish: Wish) -> None:
        """Create a pod; its UID says how often its name was used."""
        count = sum(1 for known in self.wishes.values() if known.name == wish.name)
        uid = f"uid-{wish.name}" + (f"-{count + 1}" if count else "")
        self.wishes[uid] = wish
        self._uids[uid] = f"default/{wish.name}"
        self.api.put_pod(wish.pod(uid, len(self.wishes)))

    def drop_pod(self, pod: Json) -> None:
        """Let a pod be gone."""
        uid = pod["metadata"]["uid"]
        self.api.drop(Kind.POD, self._uids[uid])
        del self._uids[uid]

    def restored(self) -> None:
        """Take in that etcd has older data."""
        self._uids = {pod["metadata"]["uid"]: key for key, pod in self.api.pods.items()}
        self.checker.restored()
        for slot in self.slots:
            slot.process.view = NodesSeen()

    def give_lease(self, number: int) -> None:
        """Let a replica's scheduler hold the Lease."""
        self.lease_holder = number
        metadata = {"name": LEASE_NAME, "namespace": LEASE_NAMESPACE, "uid": "uid-lease"}
        lease = {"metadata": metadata, "spec": {"holderIdentity": f"host-{number}_uuid"}}
        self.api.put(Kind.LEASE, LEASE_NAME, lease)

    def tell_lie(self, what: str) -> None:
        """Take in that something is wrong; it is not for an operator's tasks to fail by that."""
        self._lie = self._lie or what

    def check_bound(self, arguments: BindArguments, error: str) -> None:
        """Check what an operator is about to answer to a Bind; it is not for its tasks to fail by that."""
        if not error:
            self._lie = self._lie or self.checker.lie(arguments.uid, arguments.node_name)

    def check_sent(self, process: OperatorProcess, binding: Json) -> None:
        """Check a Binding that an operator is about to send.

        kube-scheduler has to wait for what becomes of it, and the operator must not have seen a card sick or gone.
        """
        uid = binding["metadata"]["uid"]
        is_connected = process.binds.get(uid)
        if is_connected is None or not is_connected():
            self._lie = self._lie or f"{process.name} sends a Binding of {uid}, for which nobody waits"
        self._lie = self._lie or self.checker.gangs.sent_too_early(uid)
        faults = process.view.faults_in(binding["target"]["name"], devices(binding))
        if faults and process.restores == self.api.starts:  # else what it knows is of two times
            self._lie = (
                self._lie or f"{process.name} sends a Binding of {uid} to {faults[0]}, which it has seen sick or gone"
            )

    def check_accepted(self, process: OperatorProcess, uid: str) -> None:
        """Check a Binding that the API server has accepted: kube-scheduler must not have been told that it failed."""
        if process.binds.get(uid, True) is None:
            self._lie = self._lie or f"{uid} is bound though its Bind was answered with failure"
        self._lie = self._lie or quota_checks.exceeded(self)

    def check_evicted(self, process: OperatorProcess, uid: str) -> None:
        """Check an eviction that an operator is about to ask for; one can know of a claim that was undone with etcd."""
        if process.restores == self.api.starts:
            self._lie = self._lie or self.checker.evicted_for_nothing(uid)

    def check_claimed(self, process: OperatorProcess, uid: str, victims: Mapping[str, Sequence[str]]) -> None:
        """Check that kube-scheduler is told of victims only once what they leave is kept for the pod."""
        if process.restores == self.api.starts:
            self._lie = self._lie or self.checker.told_before_claimed(uid, victims)

    # Steps.

    def explore(self, choose: Choose) -> None:
        """Live through everything that is chosen, then to a peaceful end. Raises Violation."""
        until_s, then = self.clock.now_s + self.scenario.horizon_s, list(self.scenario.then)
        self._settle()
        while self.clock.now_s < until_s:
            offer = self._offer()
            choice = choose(offer) if offer.size > 1 else 0
            if choice == 0 and not offer.things and not self.checker.unmet():
                if not then:
                    break
                self._do(then.pop(0))
                self._settle()
                until_s = self.clock.now_s + self.scenario.horizon_s
                continue
            self._take(offer, choice)
        self._come_to_rest()

    def end(self) -> None:
        """Give everything back that the world needs."""
        for slot in self.slots:
            for process in (slot.process, *slot.dead):
                process.loop.throw_away()

    def _come_to_rest(self) -> None:
        """Let everything happen as it should, until nothing is left to do and all is in order."""
        self._acts.clear()
        self._rests = True
        self.note("from here on nothing goes wrong any more")
        end_s = self.clock.now_s
        while True:
            if not self.items:
                self.checker.check_prompt()
                if self.clock.now_s >= end_s + LEAK_S:
                    self.checker.check_leaks()
                if self.clock.now_s >= end_s + SETTLE_S:
                    unmet = self.checker.unmet()
                    if not unmet:
                        break
                    patience_s = PATIENCE_S if self.clocks_agree else PATIENCE_S + LONGEST_GRACE_S
                    if self.clock.now_s > end_s + patience_s:
                        raise Violation("in the end: " + "; ".join(unmet))
            self._take(Offer(self.items, 0, 0), 0)
        self.checker.check_tasks()

    def _offer(self) -> Offer:
        items = self.items
        acts = len(self._possible_acts()) if self._acts and (items or self._has_news) else 0
        return Offer(items, items[0].ways() - 1 if items else 0, acts)

    def _possible_acts(self) -> list[Act]:
        return [act for act in dict.fromkeys(self._acts) if act.can(self)]

    def _take(self, offer: Offer, choice: int) -> None:
        self.steps += 1
        if self.steps > STEPS_LIMIT:
            raise Violation(f"still busy after {STEPS_LIMIT} steps")
        if choice >= offer.first_act:
            self._act(choice - offer.first_act)
        elif choice >= offer.first_wrong:
            way = choice - offer.first_wrong + 1
            self._happen(self.items.pop(0), way)
        elif choice == TO_THE_BACK:
            self.items.append(self.items.pop(0))
        elif self.items:
            self._happen(self.items.pop(0), 0)
        else:
            self._let_time_pass()
        self._settle()
        if self._lie:
            raise Violation(self._lie)
        self.checker.check_memory()

    def _happen(self, item: Item, way: int) -> None:
        self._has_news = True
        if self.trace is not None and not (self._rests and item.is_routine()):
            wrong = item.way(way)
            text = item.what() + (f" -- {wrong}" if wrong else "")
            if not wrong or text != self._last_noted.get(item.number):  # it may be made to wait many times
                self.note(text)
            self._last_noted[item.number] = text
        item.happen(way)

    def _act(self, number: int) -> None:
        act = self._possible_acts()[number]
        self._acts.remove(act)
        self._do(act)

    def _do(self, act: Act) -> None:
        self._has_news = True
        self.note(f"ACT: {act}")
        act.do(self)

    def _let_time_pass(self) -> None:
        self._has_news = False
        loops = self._loops()
        next_s = min(loop.next_timer_s() for loop in loops)
        if next_s == float("inf"):
            raise Violation("nothing will ever happen any more: " + "; ".join(self.checker.unmet()))
        self.clock.now_s = max(min(next_s, self.clock.now_s + LOOK_S), self.clock.now_s)
        for loop in loops:
            loop.wake()

    def _loops(self) -> list[ProcessLoop]:
        return [self.environment, *(slot.process.loop for slot in self.slots if slot.process.alive)]

    def _settle(self) -> None:
        """Let all processes run until they wait; then what they have set off is on its way."""
        busy = True
        while busy:
            busy = self.environment.run_ready()
            for slot in self.slots:
                if slot.process.alive and slot.process.loop.run_ready():
                    busy = True
        self.items = [item for item in self.items if not item.is_void()]
        if self._new:
            new = [item for item in self._new if not item.is_void()]
            self._new.clear()
            if len(new) > 1:
                new.sort(key=lambda item: item.what())  # so that no order of a set shows
            for item in new:
                if not item.number:
                    self._last_number = item.number = self._last_number + 1
            self.items += new
