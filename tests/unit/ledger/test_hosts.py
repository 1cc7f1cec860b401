"""CPU and memory of nodes: each pod counts once, where it is or is going to be."""

import pytest

from gpuledger.ledger.hosts import Hosts
from gpuledger.model.request import HostAmounts

ALL, POD = HostAmounts(8_000, 32_000), HostAmounts(2_000, 8_000)
ON_A, ON_B = (ALL - POD, ALL), (ALL, ALL - POD)
NOWHERE = (ALL, ALL)


@pytest.fixture
def hosts() -> Hosts:
    """Return two empty nodes."""
    hosts = Hosts(lambda _: None)
    for name in "ab":
        hosts.set_capacity(name, ALL)
    return hosts


def free(hosts: Hosts) -> tuple[HostAmounts | None, HostAmounts | None]:
    return hosts.free("a"), hosts.free("b")


def test_a_pod_for_which_others_leave_counts_there_whatever_was_on_hold_for_it_meanwhile(hosts: Hosts) -> None:
    """Otherwise the next preemption would count on the CPU that was freed for it, and both would wait for the other."""
    hosts.promise("uid", "a", POD)
    assert free(hosts) == ON_A
    hosts.take("uid", "b", POD)
    assert free(hosts) == ON_B
    hosts.give_up("uid")
    assert free(hosts) == ON_A
    hosts.give_up("uid")
    assert free(hosts) == ON_A


def test_a_preemption_that_ends_frees_what_was_counted_for_it(hosts: Hosts) -> None:
    hosts.promise("uid", "a", POD)
    hosts.withdraw("uid")
    hosts.withdraw("uid")
    assert free(hosts) == NOWHERE


def test_a_preemption_that_ends_leaves_what_is_on_hold_for_the_pod(hosts: Hosts) -> None:
    hosts.promise("uid", "a", POD)
    hosts.take("uid", "a", POD)
    hosts.withdraw("uid")
    assert free(hosts) == ON_A
    hosts.give_up("uid")
    assert free(hosts) == NOWHERE


def test_a_pod_that_is_bound_elsewhere_counts_there_alone(hosts: Hosts) -> None:
    hosts.promise("uid", "a", POD)
    hosts.bound("uid", "b", POD)
    hosts.give_up("uid")
    hosts.withdraw("uid")
    assert free(hosts) == ON_B
    hosts.forget("uid")
    assert free(hosts) == NOWHERE


def test_a_pod_that_is_gone_is_forgotten(hosts: Hosts) -> None:
    hosts.promise("uid", "a", POD)
    hosts.forget("uid")
    hosts.take("uid", "b", POD)
    hosts.give_up("uid")
    assert free(hosts) == NOWHERE
