"""Ten gangs on cards for half of them, round after round: never two halves, always somebody starts, nobody starves."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from cluster.cluster import PODS, Cluster
from cluster.gangs import Halves, bound, explained, gang, held, looking_for_halves, member, names
from cluster.shared import cluster_on
from control_plane import ControlPlane
from effort import seeds_for, times
from installation import NOTHING_RUNS

GANGS, SIZES = 10, range(2, 7)
NODES, CARDS_OF_NODE = 3, 8
CARDS = NODES * CARDS_OF_NODE
ROUNDS = times(6, 50)
MOST_ENDING = 3
"""Gangs that end in one round, at most."""

FOUND = {3031825728: "a member that was deleted while kube-scheduler asked for it stayed a member for ever"}
"""Seed -> what was wrong in it."""

MOST_ROUNDS = 20
"""That a gang may wait."""


@pytest.fixture(scope="module")
def started() -> Iterator[tuple[Cluster, Halves]]:
    own = ControlPlane.run(json_storage=True)  # Bindings are looked for in etcd
    with cluster_on(own, NOTHING_RUNS) as cluster, looking_for_halves(cluster.plane.etcd_url) as halves:
        cluster.add_nodes(NODES, gpus=CARDS_OF_NODE)
        yield cluster, halves


@pytest.fixture
def halves_of(started: tuple[Cluster, Halves]) -> Iterator[tuple[Cluster, Halves]]:
    yield started
    cluster, _ = started
    cluster.request("DELETE", PODS, {"gracePeriodSeconds": 0})
    cluster.wait(lambda: not held(cluster), "nothing is left in the ledger")


class Contest:
    """Gangs that come, run and end."""

    def __init__(self, cluster: Cluster, halves: Halves, seed: int) -> None:
        self.waits: list[int] = []
        """How many rounds each gang has waited that has started."""
        self.held_back: set[str] = set()
        """Gangs that would have fitted, and waited for an older one."""
        self._cluster, self._halves = cluster, halves
        self._dice = random.Random(seed)  # noqa: S311 - no secret
        self._members: dict[str, list[str]] = {}  # gang -> names of its pods
        self._since: dict[str, int] = {}  # gang that waits -> round in which it was created
        self._number = 0

    def play(self, number: int) -> None:
        """Play a round: gangs come, those that fit start, some end."""
        cluster, dice = self._cluster, self._dice
        waiting, new = sorted(self._since), []
        while len(self._members) < GANGS:
            self._number += 1
            name = f"g{self._number}"
            pods = gang(name, dice.choice(SIZES))
            self._members[name], self._since[name] = names(pods), number
            new += pods
        if waiting and dice.random() < 0.3:
            new.append(self._replaced(dice.choice(waiting)))
        dice.shuffle(new)
        cluster.create(*new)
        self.settle(f"round {number}")
        self._halves.check()
        for name in self._running():
            if name in self._since:
                self.waits.append(number - self._since.pop(name))
        late = {name: since for name, since in self._since.items() if number - since > MOST_ROUNDS}
        assert not late, f"round {number}: gangs wait since {late}"
        self._end(dice.sample(self._running(), min(len(self._running()), dice.randint(1, MOST_ENDING))))

    def settle(self, what: str) -> None:
        """Wait until those that may start have."""
        try:
            self._cluster.wait(self._is_stable, f"{what}: all gangs that fit have started")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._state()}") from None

    def _replaced(self, name: str) -> dict[str, object]:
        """Delete a member of a gang that waits; return another one in its place."""
        gone = self._dice.choice(self._members[name])
        self._cluster.delete(gone)
        self._number += 1
        new = member(f"{name}-new-{self._number}", name, len(self._members[name]))
        self._members[name] = [*(each for each in self._members[name] if each != gone), *names([new])]
        return new

    def _is_stable(self) -> bool:
        """Return whether gangs are bound as a whole, and none that waits would fit into what is left, and may go."""
        placed = bound(self._cluster)
        running = [name for name, pods in self._members.items() if placed >= set(pods)]
        used = sum(len(self._members[name]) for name in running)
        fitting = [n for n, pods in self._members.items() if n not in running and len(pods) <= CARDS - used]
        return used == len(placed) == held(self._cluster) and all(map(self._is_held_back, fitting))

    def _is_held_back(self, name: str) -> bool:
        """Return whether a gang waits for an older one, for which there is too little."""
        found = explained(self._cluster, name)
        if found["state"] != "held-back":
            return False
        first = found["members"]["turn"]["gang"].partition("/")[2]
        self.held_back.add(name)
        return self._since.get(first, self._number) <= self._since[name]

    def _state(self) -> str:
        """Return who is bound, and what those that wait were told last."""
        placed = bound(self._cluster)
        lines = [f"{held(self._cluster)} shares are in the ledger; bound: {', '.join(sorted(placed))}"]
        for name, since in self._since.items():
            told = {pod: self._cluster.messages(pod)[-1:] for pod in self._members[name]}
            lines.append(f"{name}, since round {since}: {told}")
        return "\n".join(lines)

    def _running(self) -> list[str]:
        placed = bound(self._cluster)
        return sorted(name for name, pods in self._members.items() if placed >= set(pods))

    def _end(self, ending: list[str]) -> None:
        pods = [pod for name in ending for pod in self._members.pop(name)]
        self._dice.shuffle(pods)
        for name in pods:
            self._cluster.finish(name)
        self._cluster.delete(*pods)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "seed", [*seeds_for("gangs contend", 1), *(pytest.param(s, marks=pytest.mark.long) for s in FOUND)]
)
def test_gangs_share_cards_in_turn(halves_of: tuple[Cluster, Halves], seed: int, say: Callable[[str], None]) -> None:
    cluster, halves = halves_of
    contest = Contest(cluster, halves, seed)
    for number in range(ROUNDS):
        contest.play(number)
    assert len(contest.waits) >= ROUNDS
    say(
        f"{ROUNDS} rounds: {len(contest.waits)} gangs have started, after {max(contest.waits)} rounds at most; "
        f"{len(contest.held_back)} of them fitted before, and waited for older ones"
    )
    contest.settle("the end")
    cluster.check_consistent()
