"""Gangs on a stock kube-scheduler: all members get their cards and are bound, or none of them keeps anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from cluster.cluster import COUNT, MEMORY, Cluster, pod
from cluster.gangs import GATHER_S, bound, gang, gang_cluster, held, looking_for_halves, member, names, set_cpu
from control_plane import ControlPlane


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    own = ControlPlane.run(json_storage=True)  # Bindings are looked for in etcd
    with gang_cluster(own) as cluster, looking_for_halves(cluster.plane.etcd_url):
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    yield running
    running.clear()


@pytest.mark.promise("gangs")
def test_a_gang_that_fits_is_bound_and_no_binding_is_sent_before_all_its_cards_are_entered(cluster: Cluster) -> None:
    cluster.add_nodes(2, gpus=4)
    begin = cluster.plane.audit_offset()
    pods = gang("train", 8)
    cluster.create(*pods)
    cluster.wait_bound(*names(pods))
    assert all(len(holders) == 1 for holders in cluster.holders().values())
    writes = [event for event in cluster.plane.api_writes(begin) if event.code < 300]
    first = next(place for place, event in enumerate(writes) if event.subresource == "binding")
    entered = {e.name for e in writes[:first] if (e.resource, e.subresource) == ("gpuallocations", "status")}
    assert len(entered) == len(cluster.cards()) == 8
    assert sorted(event.name for event in writes if event.subresource == "binding") == names(pods)
    cluster.check_consistent()


@pytest.mark.promise("gangs")
def test_a_gang_that_does_not_fit_keeps_nothing_and_starts_when_a_card_comes(
    cluster: Cluster, say: Callable[[str], None]
) -> None:
    cluster.add_nodes(1, gpus=8)
    pods = gang("nine", 9)
    cluster.create(*pods)
    cluster.wait_refused("nine-0", "fewer than 9 members of the pod's gang find cards at once")
    cluster.settle(1.0)
    assert (bound(cluster), held(cluster)) == (set(), 0)
    cluster.create(pod("single", {COUNT: 1, MEMORY: 1000}))
    cluster.wait_bound("single")
    begin_s = time.monotonic()
    cluster.add_nodes(1, gpus=2)
    ready_s = time.monotonic()
    cluster.wait_bound(*names(pods))
    bound_s = time.monotonic()
    say(f"nine are bound {bound_s - begin_s:.1f} s after a node was created, {bound_s - ready_s:.1f} s after its cards")
    cluster.check_consistent()


def test_cards_for_all_and_cpu_for_five_never_binds_one(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=8)
    set_cpu(cluster, node.name, "5")
    pods = gang("cpu", 8, cpu="1")
    cluster.create(*pods)
    deadline_s = time.monotonic() + 3 * GATHER_S
    while time.monotonic() < deadline_s:
        assert bound(cluster) == set()
        time.sleep(0.2)
    set_cpu(cluster, node.name, "16")
    cluster.wait_bound(*names(pods))
    cluster.check_consistent()


def again(cluster: Cluster, program: str) -> None:
    """Kill a program, and start it again."""
    installation = cluster.installation
    if program == "operator":
        installation.restart_operator()
        return
    assert installation.scheduler
    installation.scheduler.kill()
    installation.start_scheduler()


@pytest.mark.parametrize("program", ["operator", "kube-scheduler"])
def test_a_program_that_is_killed_while_members_stand_in_bind_leaves_nothing_over(
    cluster: Cluster, program: str
) -> None:
    (node,) = cluster.add_nodes(1, gpus=8)
    set_cpu(cluster, node.name, "5")
    pods = gang("killed", 8, cpu="1")
    cluster.create(*pods)
    time.sleep(GATHER_S / 2)  # some stand in Bind: there is CPU for five
    again(cluster, program)
    assert bound(cluster) == set()
    set_cpu(cluster, node.name, "16")
    cluster.wait_bound(*names(pods))
    cluster.check_consistent()


@pytest.mark.promise("gangs")
def test_two_gangs_of_five_on_eight_cards_start_one_after_the_other(cluster: Cluster) -> None:
    cluster.add_nodes(2, gpus=4)
    first, second = gang("first", 5), gang("second", 5)
    mixed = [each for pair in zip(first, second, strict=True) for each in pair]
    cluster.create(*mixed)
    cluster.wait(lambda: len(bound(cluster)) == 5, "one of them is bound")
    cluster.settle(1.0)
    started = bound(cluster)
    assert started in (set(names(first)), set(names(second)))
    assert held(cluster) == 5
    cluster.delete(*started)
    rest = {*names(first), *names(second)} - started
    cluster.wait_bound(*rest)


def test_two_gangs_that_share_cpu_both_start_in_the_end(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=16)
    set_cpu(cluster, node.name, "8")
    first, second = gang("left", 5, cpu="1"), gang("right", 5, cpu="1")
    mixed = [each for pair in zip(first, second, strict=True) for each in pair]
    cluster.create(*mixed)
    cluster.wait(lambda: len(bound(cluster)) >= 5, "one of them is bound")
    started = bound(cluster)
    assert started in (set(names(first)), set(names(second)))
    cluster.delete(*started)
    cluster.wait_bound(*({*names(first), *names(second)} - started))


@pytest.mark.promise("gangs")
def test_a_replacement_of_a_member_is_placed_alone(cluster: Cluster) -> None:
    cluster.add_nodes(1, gpus=4)
    pods = gang("lives", 4)
    cluster.create(*pods)
    cluster.wait_bound(*names(pods))
    cluster.delete("lives-2")
    cluster.wait(lambda: held(cluster) == 3, "its card is free")
    cluster.create(member("lives-new", "lives", 4))
    cluster.wait_bound("lives-new")


def test_a_label_that_cannot_be_read_is_refused_in_words(cluster: Cluster) -> None:
    cluster.add_nodes(1, gpus=1)
    odd = member("odd", "odd", 1)
    odd["metadata"]["labels"]["gpuledger.dev/gang-minimum"] = "many"
    cluster.create(odd)
    cluster.wait_refused("odd", "label gpuledger.dev/gang-minimum: 'many' is not a number")


def test_gangs_that_wait_cost_nothing_while_nothing_happens(cluster: Cluster) -> None:
    """A part of each of them finds a card."""
    cluster.add_nodes(1, gpus=4)
    running = gang("runs", 3)
    cluster.create(*running)
    cluster.wait_bound(*names(running))
    cluster.create(*gang("two", 2), *gang("three", 3), *gang("four", 4))
    cluster.wait_refused("four-3", "fewer than 4 members of the pod's gang find cards at once")
    time.sleep(3)  # all have been tried; what follows would go on for ever
    before = cluster.metric("gpuledger_shape_evaluations_total")
    time.sleep(3)
    assert cluster.metric("gpuledger_shape_evaluations_total") == before
