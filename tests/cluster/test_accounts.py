"""What pods held, on a real control plane: in their namespace's record, exactly once, and in reports."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from cluster.cluster import COUNT, PERCENT, Cluster, RequestFailed, pod
from cluster.gangs import held
from cluster.shared import SharedPlane
from effort import times
from gpuledger.formats.custom_resource.usage import RecordName, new_record, record, record_patch
from gpuledger.ledger.usage import add_up
from gpuledger.model.usage import Held, Line, total_of
from installation import NOTHING_RUNS

Json = dict[str, Any]

USAGES = "/apis/gpuledger.dev/v1alpha1/gpuusages"
HALF = {COUNT: 1, PERCENT: 50}
ENTERED_WITHIN_S = 60.0

LARGEST_S = 5.0
"""However busy the machine is."""

PODS_COUNTED = times(40, 1000)
AT_ONCE = 20


@pytest.fixture(scope="module")
def started(shared: SharedPlane) -> Iterator[Cluster]:
    with shared.cluster(NOTHING_RUNS) as cluster:
        yield cluster


@pytest.fixture
def cluster(started: Cluster) -> Iterator[Cluster]:
    """Yield a cluster with one node of two cards, and no records."""
    started.request("DELETE", USAGES)
    started.add_nodes(1, gpus=2)
    yield started
    started.clear()


def records(cluster: Cluster) -> list[Json]:
    return list(cluster.request("GET", USAGES)["items"])


def shares(cluster: Cluster) -> int:
    return sum(int((each.get("status") or {}).get("shares", 0)) for each in records(cluster))


def wait_for_shares(cluster: Cluster, count: int) -> None:
    cluster.wait(lambda: shares(cluster) == count, f"{count} shares are in the record", ENTERED_WITHIN_S)


def listed(cluster: Cluster) -> int:
    return sum(len(card["status"]["ended"]) for card in cluster.cards().values())


def report(cluster: Cluster, *options: str) -> Json:
    found: Json = json.loads(cluster.plane.kubectl("gpuledger", "report", "-o", "json", *options))
    return found


@pytest.mark.promise("accounts")
def test_shares_that_end_are_in_their_namespaces_record_and_those_that_run_in_the_report(cluster: Cluster) -> None:
    began_s = time.monotonic()
    for name in ("a", "b", "c"):
        cluster.create(pod(name, HALF))
    for name in ("a", "b", "c"):
        cluster.wait_bound(name)
    time.sleep(2)
    for name in ("a", "b"):
        cluster.finish(name)
    wait_for_shares(cluster, 2)
    (found,) = records(cluster)
    owners = json.dumps(found["metadata"]["managedFields"])
    assert len(owners) < 1_000, "it does not grow with what is entered"
    held_s = total_of(record(found).lines).card_ms / 1000
    assert 2 <= held_s <= time.monotonic() - began_s  # two halves
    told = report(cluster, "--by", "owner")
    assert told["total"]["shares"] == 3
    assert told["rows"][0]["name"] == "default: (no owner)"
    assert told["total"]["cardHours"] * 3600 > held_s
    assert told["cluster"]["cards"] == 2


def test_an_operator_that_is_killed_between_any_two_writes_leaves_nothing_out_and_enters_nothing_twice(
    cluster: Cluster,
) -> None:
    for round_number in range(3):
        name = f"p{round_number}"
        cluster.create(pod(name, HALF))
        cluster.wait_bound(name)
        cluster.finish(name)
        cluster.wait(lambda: listed(cluster) > 0, "its card lists it")
        if round_number:  # the first time before the record is written, then between it and the card's list
            wait_for_shares(cluster, round_number + 1)
        cluster.restart_operator()
    cluster.wait(lambda: (shares(cluster), listed(cluster)) == (3, 0), "each is entered once", 3 * ENTERED_WITHIN_S)


def test_the_api_server_keeps_a_record_as_what_it_is(cluster: Cluster) -> None:
    body = {
        "apiVersion": "gpuledger.dev/v1alpha1",
        "kind": "GPUUsage",
        "metadata": {"name": "default.2026-11-30"},
        "spec": {"namespace": "default", "date": "2026-11-30"},
    }
    cluster.request("POST", USAGES, body)
    moved = {"spec": {"namespace": "default", "date": "2026-11-29"}}
    with pytest.raises(RequestFailed, match="namespace and date stay as they are"):
        cluster.patch(f"{USAGES}/default.2026-11-30", moved)


@pytest.mark.parametrize("verb", ["get", "create", "patch", "delete"])
def test_accounts_of_namespaces_may_neither_read_nor_write_records(cluster: Cluster, verb: str) -> None:
    asked = ("auth", "can-i", verb, "gpuusages.gpuledger.dev", "--as=system:serviceaccount:default:default")
    assert cluster.plane.kubectl(*asked, check=False).strip() == "no"


def made_by(name: str, owner: str, queue: str) -> Json:
    """Return a pod that says of itself who has made it, and from which queue it came.

    Of a kind that nobody knows: else the garbage collector deletes the pod, since there is no such object.
    """
    made = pod(name, {COUNT: 1, PERCENT: 10})
    reference = {
        "apiVersion": "example.com/v1",
        "kind": "Made",
        "name": owner,
        "uid": f"uid-of-{name}",
        "controller": True,
    }
    labels = {"kueue.x-k8s.io/queue-name": queue}
    return {**made, "metadata": {**made["metadata"], "ownerReferences": [reference], "labels": labels}}


def test_what_users_write_as_owners_and_queues_is_on_one_line_each_and_never_in_the_way(cluster: Cluster) -> None:
    owners = ['Job/a"\n2026-11-30,,,,,,999', "\u2028" * 200, "x" * 2_000, ",,,,\t\x00", "=1+1"]
    pods = [made_by(f"p{number}", owner, f"q{number}") for number, owner in enumerate(owners)]
    cluster.create(*pods)
    names = [each["metadata"]["name"] for each in pods]
    cluster.wait_bound(*names)
    for name in names:
        cluster.finish(name)
    wait_for_shares(cluster, len(owners))
    (found,) = records(cluster)
    lines = record(found).lines
    assert len(lines) == len({line.owner for line in lines}) == len(owners)
    assert all(line.owner.isprintable() and len(line.owner) <= 128 for line in lines)
    assert [held.shares for held in lines.values()] == [1] * len(owners)
    assert report(cluster, "--by", "owner")["total"]["shares"] == len(owners)


def test_the_largest_record_that_names_can_make_is_written_in_a_moment(cluster: Cluster) -> None:
    lines: dict[Line, Held] = {}
    for number in range(3_000):
        name = f"{number:05}" + '"' * 123
        line = Line("2026-11-30", "m" * 64, "n" * 253, name, name, name)
        add_up(lines, [(line, Held(*[10**14] * 7))])
    created = record(cluster.request("POST", USAGES, new_record(RecordName("default", "2026-11-30"))))
    patch = record_patch(created, lines, {f"{number:016}.{uuid4()}": f"GPU-{uuid4()}" for number in range(3_000)})
    began_s = time.monotonic()
    cluster.patch(f"{USAGES}/{created.name}/status", patch)
    took_s = time.monotonic() - began_s
    logging.getLogger(__name__).info("a record of %d bytes took %.2f s", len(json.dumps(patch)), took_s)
    assert took_s < LARGEST_S
    (found,) = records(cluster)
    assert record(found).lines == lines
    wrong = {"metadata": {}, "status": {**patch["status"], "lines": patch["status"]["lines"] + "2026-11-30,-1\n"}}
    with pytest.raises(RequestFailed, match=r"status\.lines"):
        cluster.patch(f"{USAGES}/{created.name}/status", wrong)


def writes_for_pods(cluster: Cluster, prefix: str, *, are_charged: bool) -> dict[str, int]:
    """Run pods, twenty at a time, until all of them have ended; return how many writes there were of each kind."""
    since = cluster.plane.audit_offset()
    for first in range(0, PODS_COUNTED, AT_ONCE):
        batch = [f"{prefix}-{number}" for number in range(first, first + AT_ONCE)]
        cluster.create(*(pod(name, {COUNT: 1, PERCENT: 10}) for name in batch))
        cluster.wait_bound(*batch)
        for name in batch:
            cluster.finish(name)
        cluster.wait(lambda: not held(cluster), "all of them are released")
    cluster.settle()
    if are_charged:
        cluster.wait(lambda: listed(cluster) == 0, "all lists are in records", 3 * ENTERED_WITHIN_S)
    return dict(Counter(event.resource for event in cluster.our_writes(since, ("gpuallocations", "gpuusages"))))


@pytest.mark.timeout(1800)
def test_accounts_cost_few_writes_for_many_pods_and_none_where_nothing_ends(cluster: Cluster) -> None:
    """A write of a card takes off its list what the records have: only the last one is its own."""
    with cluster.other_settings(usage_kept_days=0):
        without = writes_for_pods(cluster, "without", are_charged=False)
    with_accounts = writes_for_pods(cluster, "with", are_charged=True)
    logging.getLogger(__name__).info(
        "writes for %d pods: %s without accounts, %s with", PODS_COUNTED, without, with_accounts
    )
    assert "gpuusages" not in without
    cards = 2
    more = sum(with_accounts.values()) - sum(without.values())
    assert more <= 0.3 * sum(without.values()) + 2 * cards + with_accounts["gpuusages"]
    assert with_accounts["gpuusages"] <= PODS_COUNTED / 10 + 2
    since = cluster.plane.audit_offset()
    time.sleep(times(5, 600))
    assert cluster.our_writes(since, ("gpuallocations", "gpuusages", "nodes", "resourcequotas")) == []
