"""`make test` stays short enough to be run before each merge: by the seconds that were written down last."""

from lanes import BUDGET_S, LONGEST_S, recorded

BY_THE_CLOCK = "it watches for so long that nothing happens, or waits for time-outs of other programs"
MANY_PODS = "dozens of pods are bound on a real control plane"
ALL_OF_IT = "it computes all of what is shown by a document, generated, or explored"

LONGER = {
    "tests/cluster/test_quiet.py": BY_THE_CLOCK,
    "tests/cluster/test_replicas.py": MANY_PODS,
    "tests/cluster/test_restored_etcd.py": BY_THE_CLOCK,
    "tests/documents/test_commands.py": ALL_OF_IT,
    "tests/hostile/test_hostile_gangs.py": BY_THE_CLOCK,
    "tests/house_rules/test_chart.py": ALL_OF_IT,
    "tests/node/test_delivery.py": MANY_PODS,
}
"""File with tests that may take longer -> why. It may only become shorter."""


def too_long() -> dict[str, float]:
    """Return test -> seconds, of those that take longer than one may."""
    return recorded().too_long()


def file_of(test: str) -> str:
    return test.partition("::")[0]


def test_no_test_of_the_lane_takes_longer_than_one_may() -> None:
    assert {name: took_s for name, took_s in too_long().items() if file_of(name) not in LONGER} == {}, LONGEST_S


def test_the_exceptions_are_needed() -> None:
    assert LONGER.keys() - set(map(file_of, too_long())) == set()


def test_the_lane_keeps_within_its_budget() -> None:
    assert recorded().over_budget_s() == 0.0, BUDGET_S
