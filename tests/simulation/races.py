"""The races: each small enough to try every order in which it can go."""

from simulation.acts import ForceDelete
from simulation.race import Bind, Dies, Race, Sweep
from simulation.scenario import Wish
from simulation.scenarios import HALF_MIB, A, B

WIDE = Wish("a", cards=2)

RACES = (
    Race("bind and bind", (A,), (Bind("a"), Bind("a"))),
    Race("bind and sweep", (A,), (Bind("a"), Sweep()), (ForceDelete("a"), Dies(1))),
    Race("bind, sweep, bind", (A,), (Bind("a"), Sweep(), Bind("a"))),
    Race("bind and bind, and one dies", (A,), (Bind("a"), Bind("a")), (Dies(1),)),
    Race("two pods for one card", (A, B), (Bind("a"), Bind("b"))),
    Race("two pods on one card", (Wish("a", HALF_MIB), Wish("b", HALF_MIB)), (Bind("a"), Bind("b"), Sweep())),
    Race("a pod on two cards", (WIDE,), (Bind("a"), Sweep()), (Dies(1),), cards=2),
    Race("a pod on two cards, twice", (WIDE,), (Bind("a"), Bind("a")), cards=2),
    Race("two pods on two cards", (WIDE, B), (Bind("a"), Bind("b")), cards=2),
)

BY_NAME = {race.name: race for race in RACES}
