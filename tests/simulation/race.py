"""The bind protocol alone: attempts that race each other for the same pods and cards.

There are no schedulers and no watches. Each attempt is made by an operator of its own, which knows what the API server
had when the attempt began, and learns the rest from answers. A request and its answer are one step: when an operator
hears of something only shows in when its next request is carried out, and that one waits for its own turn. So what is
left to choose is the order in which the API server carries out requests, and what goes wrong: an answer is lost, a
request is lost or refused, time passes so that what is on its way is late, somebody acts. That is little enough to try
all of it, up to a number of wrong steps.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, cast

from builders import OFFER
from fakes.operator_parts import OperatorParts
from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.formats.scheduler import BindArguments, FilterArguments
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.writes import KubeStore
from gpuledger.ledger.book import Ledger
from gpuledger.model.errors import GpuledgerError
from simulation.api_server import Operation
from simulation.checker import Violation
from simulation.item import Item
from simulation.network import Answer, Client, Request
from simulation.nodes import NodesSeen
from simulation.operator_process import OperatorProcess
from simulation.process_loop import new_loop
from simulation.readings import holders_of
from simulation.scenario import Act, Scenario, Wish
from simulation.slot import Slot
from simulation.world import LEAK_S, STEPS_LIMIT, World

CONNECTION_BREAKS, ANSWER_BREAKS = 4, 3
"""Ways of a request and of an answer: the operator hears at once that it will not hear more."""

REFUSED = (7, 8, 9)
"""Ways of a write: 409, 422, 403. Others are repeated like a request whose connection broke."""

MOMENT_S = 0.2
"""Pauses before a repetition are shorter, at first; time-outs are longer."""

NODE = "node-a"


class Errand(Protocol):
    """What an operator is there for."""

    def begin(self, runner: "Runner") -> None:
        """Begin with it, inside the operator's process."""


@dataclass(frozen=True)
class Bind:
    """Place a pod, as Filter and Bind of a scheduler do that has just read it."""

    name: str

    def begin(self, runner: "Runner") -> None:
        pod = runner.world.api.pods.get(f"default/{self.name}")
        if pod is None:
            return
        try:
            node_names = runner.parts.placer.filter(FilterArguments(pod, [NODE])).node_names
        except GpuledgerError:
            return
        if node_names:
            arguments = BindArguments(pod["metadata"]["uid"], "default", self.name, NODE)
            runner.loop.create_task(self._bind(runner, arguments))

    async def _bind(self, runner: "Runner", arguments: BindArguments) -> None:
        runner.binds[arguments.uid] = lambda: True
        try:
            await runner.parts.placer.bind(arguments)
        except GpuledgerError as error:
            runner.binds[arguments.uid] = None
            runner.world.check_bound(arguments, str(error))
        else:
            runner.world.check_bound(arguments, "")


@dataclass(frozen=True)
class Sweep:
    """Judge all pods that hold something, as the comparison at the start does."""

    def begin(self, runner: "Runner") -> None:
        for uid in sorted(runner.ledger.holders.uids()):
            runner.parts.releaser.recheck(uid)


@dataclass(frozen=True)
class Dies:
    """The operator of an errand dies; nobody starts it again."""

    number: int

    def can(self, world: World) -> bool:
        return any(slot.number == self.number and slot.process.alive for slot in world.slots)

    def do(self, world: World) -> None:
        next(slot for slot in world.slots if slot.number == self.number).process.die()


@dataclass(frozen=True)
class Race:
    """A node with some cards, pods, and who does what with them at once. Acts are faults: they need not happen."""

    name: str
    wishes: tuple[Wish, ...]
    errands: tuple[Errand, ...]
    acts: tuple[Act, ...] = ()
    cards: int = 1

    @property
    def scenario(self) -> Scenario:
        """The world in which it takes place: without replicas of its own."""
        return Scenario(self.name, {NODE: self.cards}, self.wishes, self.acts, replicas=0)


class _Api:
    """Stands where the fakes have their API server."""

    def __init__(self, client: Client) -> None:
        self.store = KubeStore(cast(KubeClient, client))


class Runner:
    """An operator with an errand."""

    def __init__(self, world: "RaceWorld", name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.binds: dict[str, Callable[[], bool] | None] = {}
        """As of an operator's process."""
        self.view = NodesSeen()
        self.restores = world.api.starts
        self.loop = new_loop(world.clock)
        self.loop.call(self._read)

    def _read(self) -> None:
        """Know what the API server has."""
        client = Client(self.world, cast(OperatorProcess, self))
        self.parts = OperatorParts(cast(Any, _Api(client)))
        for card in self.world.api.cards.values():
            self.ledger.load(stored_card(card))
        self.ledger.set_offer(NODE, OFFER)

    @property
    def ledger(self) -> Ledger:
        """What it takes for the truth."""
        return self.parts.ledger

    def is_binding(self, uid: str) -> bool:
        """Return whether it is binding a pod."""
        return self.parts.placer._binder.is_binding(uid)

    def die(self) -> None:
        """Stop at once."""
        self.alive = False


@dataclass
class Lane:
    """Where a runner runs: what a world takes for a replica."""

    number: int
    process: Runner
    dead: tuple[Runner, ...] = ()


class Begins(Item):
    """An operator begins with its errand."""

    __slots__ = ("errand", "runner_number")

    def __init__(self, world: "RaceWorld", number: int, errand: Errand) -> None:
        super().__init__(world)
        self.runner_number = number
        self.errand = errand

    def what(self) -> str:
        return f"operator {self.runner_number}: begins: {self.errand}"

    def do(self) -> None:
        world = cast(RaceWorld, self.world)
        runner = Runner(world, f"operator {self.runner_number}")
        world.slots.append(cast(Slot, Lane(self.runner_number, runner)))
        runner.loop.call(self.errand.begin, runner)


@dataclass(frozen=True, slots=True)
class Step:
    """Something that can happen next."""

    what: str
    do: Callable[[], None]
    who: str
    """Whose step it is. Those of one operator have to stay in their order."""
    touches: frozenset[str] | None
    """Keys of the objects that it reads or writes at the API server; None if it may have to do with anything."""
    writes: bool = True
    is_wrong: bool = False
    """Whether it is one of those of which a life may have only so many."""

    def can_swap(self, other: "Step") -> bool:
        """Return whether it makes no difference which of the two comes first."""
        if self.touches is None or other.touches is None or self.who == other.who:
            return False
        return not (self.writes or other.writes) or self.touches.isdisjoint(other.touches)


Outcome = tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str, str], ...]]
"""Pods with their nodes, and cards with their holders and the state of each."""

READS = frozenset({Operation.READ_POD, Operation.READ_CARD})
TOUCHES_ONE = READS | {Operation.WRITE_STATUS, Operation.ANNOTATE, Operation.BIND}


class RaceWorld(World):
    """A world with a race in it."""

    def __init__(self, race: Race, trace: list[str] | None = None) -> None:
        super().__init__(race.scenario, trace)
        self.outcome: Outcome = ((), ())
        """What the race has left behind, before the sweep."""
        for number, errand in enumerate(race.errands, start=1):
            self.pend(Begins(self, number, errand))

    def race(self, choose: Callable[["RaceWorld"], Step | None]) -> None:
        """Take steps until nothing is left to do, then sweep once; or only until there is none to take.

        Raises Violation.
        """
        self._settle()
        while self.items or self._is_busy():
            if not self.items and not self._has_timers():
                raise Violation("an operator waits for something that will never happen")
            step = choose(self)
            if step is None:
                return
            step.do()
            self._after_a_step()
        self.outcome = self._state()
        self._acts.clear()
        self.note("from here on nothing goes wrong any more")
        self.pend(Begins(self, len(self.slots) + 1, Sweep()))
        until_s = self.clock.now_s + LEAK_S
        self._settle()
        while (self.items or self._has_timers()) and self.clock.now_s < until_s:
            if self.items:
                self._happen(self.items.pop(0), 0)
            else:
                self._let_time_pass()
            self._after_a_step()
        self.checker.check_leaks()
        self.checker.check_tasks()

    def right_steps(self) -> list[Step]:
        """Return what can come next when nothing is wrong: at least one step."""
        right = [self._round_trip(item) for item in self.items]
        return right if right and not self._is_pausing() else [*right, self._time(is_wrong=False)]

    def wrong_steps(self) -> list[Step]:
        """Return what can go wrong next."""
        if not self.items:
            return []
        wrong = [step for item in self.items if isinstance(item, Request) for step in self._faults(item)]
        wrong += [self._act_step(act) for act in self._possible_acts()]
        is_late = self._has_timers() and not self._is_pausing()
        return [*wrong, self._time(is_wrong=True)] if is_late else wrong

    def _state(self) -> Outcome:
        bound = [(pod["metadata"]["uid"], pod["spec"].get("nodeName", "")) for pod in self.api.pods.values()]
        held = [(key, h["podUID"], h["state"]) for key, card in self.api.cards.items() for h in holders_of(card)]
        return tuple(bound), tuple(held)

    def _after_a_step(self) -> None:
        self.steps += 1
        if self.steps > STEPS_LIMIT:
            raise Violation(f"still busy after {STEPS_LIMIT} steps")
        self._settle()
        self.checker.check_memory()
        if self._lie:
            raise Violation(self._lie)

    def _is_busy(self) -> bool:
        return any(slot.process.alive and slot.process.loop.open_tasks() for slot in self.slots)

    def _has_timers(self) -> bool:
        return self._next_s() < float("inf")

    def _is_pausing(self) -> bool:
        """Return whether somebody only pauses before a repetition: others need not be late for it to end."""
        return self._next_s() <= self.clock.now_s + MOMENT_S

    def _next_s(self) -> float:
        return min(loop.next_timer_s() for loop in self._loops())

    def _time(self, is_wrong: bool) -> Step:
        def pass_by() -> None:
            self.note("time passes")
            self._let_time_pass()

        return Step("time passes", pass_by, "time", None, is_wrong=is_wrong)

    def _act_step(self, act: Act) -> Step:
        def do() -> None:
            self._act(self._possible_acts().index(act))

        return Step(str(act), do, f"act {act}", None, is_wrong=True)

    def _round_trip(self, item: Item) -> Step:
        """Return the step in which something happens, and is answered."""
        step = partial(self._happen_and_answer, item)
        if isinstance(item, Request):
            touches = frozenset({item.key}) if item.operation in TOUCHES_ONE else None
            return Step(item.what(), step, item.process.name, touches, item.operation not in READS)
        if isinstance(item, Begins):
            return Step(item.what(), step, item.what(), frozenset({*self.api.cards, *self.api.pods}), writes=False)
        return Step(item.what(), step, item.what(), frozenset(self.api.pods))

    def _faults(self, request: Request) -> list[Step]:
        """Return the steps in which a request goes wrong."""
        if not request.is_awaited():
            return []
        well = self._round_trip(request)
        do = partial(self._happen_and_answer, request, answer_way=ANSWER_BREAKS)
        unheard = replace(well, what=f"{well.what} -- and the answer is lost", do=do, is_wrong=True)
        ways = [CONNECTION_BREAKS, *(way for way in REFUSED if way < request.ways())]
        return [unheard, *(self._refusal(request, way) for way in ways)]

    def _refusal(self, request: Request, way: int) -> Step:
        """Return the step in which a request goes wrong before it has reached any object."""
        what, do = f"{request.what()} -- {request.way(way)}", partial(self._happen_and_answer, request, way)
        return Step(what, do, request.process.name, frozenset(), is_wrong=True)

    def _happen_and_answer(self, item: Item, way: int = 0, answer_way: int = 0) -> None:
        self.items.remove(item)
        self._happen(item, way)
        self._settle()
        for answer in [other for other in self.items if isinstance(other, Answer) and other.request is item]:
            self.items.remove(answer)
            self._happen(answer, answer_way)
