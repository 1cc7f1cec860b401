"""Many pods of both kinds that come, end, are deleted and preempt each other: the sums agree at every rest."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from cluster.claims import (
    CLAIMS,
    TEMPLATES,
    allocated,
    check_claims,
    claim,
    claiming,
    claims,
    claims_of,
    create_class,
    has_ended,
    request,
    results,
    share,
    template,
)
from cluster.cluster import CORES, COUNT, MEMORY, PODS, RequestFailed, devices, pod
from cluster.preempting import HIGH, LOW, PreemptingCluster, preempting_cluster
from cluster.shared import SharedPlane
from effort import seeds_for, times

Json = dict[str, Any]

NODE_COUNT, GPUS = 3, 4
AT_ONCE = 15
PODS_IN_ALL = times(80, 1000)
REST_S = 90.0

LIMITS = [
    {COUNT: 1},
    {COUNT: 2},
    {COUNT: 1, MEMORY: 9000},
    {COUNT: 2, MEMORY: 12000, CORES: 25},
    {COUNT: 1, MEMORY: 20000, CORES: 50},
]
TEMPLATE_REQUESTS: dict[str, list[Json]] = {
    "whole": [request()],
    "two-whole": [request(count=2)],
    "share": [share("9000Mi", 20)],
    "two-shares": [share("12000Mi", 25, count=2)],
    "two-requests": [share("5Gi", name="a"), share("6Gi", 10, name="b")],
    "choice": [
        {
            "name": "gpu",
            "firstAvailable": [
                {"name": "many", **request(count=4)["exactly"]},
                {"name": "few", **share("3000Mi", 5)["exactly"]},
            ],
        }
    ],
}
COMMON = [share("4000Mi", 10), share("8000Mi", 10, count=2)]
"""Of claims that pods share."""


@pytest.fixture(scope="module")
def running(shared: SharedPlane) -> Iterator[PreemptingCluster]:
    with preempting_cluster(shared.lent()) as running:
        create_class(running)
        for name, requests in TEMPLATE_REQUESTS.items():
            running.request("POST", TEMPLATES, template(name, *requests))
        for number, each in enumerate(COMMON):
            running.request("POST", CLAIMS, claim(f"common-{number}", each))
        yield running


class Churn:
    """Pods in an order that a seed decides."""

    def __init__(self, cluster: PreemptingCluster, seed: int) -> None:
        self.cluster, self.created = cluster, 0
        self.random = random.Random(seed)  # noqa: S311 - no secret
        self.rests = 0

    def create(self) -> None:
        """Create a pod of any kind."""
        name, kind = f"pod-{self.created}", self.random.choice(["limits", "claim", "claim", "both", "shared"])
        limits = self.random.choice(LIMITS) if kind in ("limits", "both") else {}
        more: Json = {"priorityClassName": self.random.choice([LOW, LOW, HIGH])}
        if kind == "limits":
            body = pod(name, limits, **more)
        elif kind == "shared":
            body = claiming(name, named=[f"common-{self.random.randrange(len(COMMON))}"], **more)
        else:
            body = claiming(name, [self.random.choice([*TEMPLATE_REQUESTS])], limits=limits, **more)
        self.cluster.create(body)
        self.created += 1

    def end_some(self) -> None:
        """Let some pods finish, delete some in good order, and some by force."""
        for name, found in self.cluster.pods().items():
            what = self.random.random()
            with suppress(RequestFailed):  # preempted just now
                if what < 0.12 and found["spec"].get("nodeName"):
                    self.cluster.finish(name)
                elif what < 0.3:
                    self.cluster.request("DELETE", f"{PODS}/{name}")
                elif what < 0.34:
                    self.cluster.delete(name)

    def rest(self) -> None:
        """Wait until all agree."""
        deadline_s = time.monotonic() + REST_S
        while True:
            try:
                check(self.cluster)
            except (AssertionError, KeyError, RequestFailed):
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.3)
            else:
                self.rests += 1
                return


def check(cluster: PreemptingCluster) -> None:
    """Compare ledger, claims and annotations with each other."""
    pods = {each["metadata"]["uid"]: each for each in cluster.pods().values()}
    leaving = [each for each in pods.values() if each["metadata"].get("deletionTimestamp")]
    assert not leaving, "pods are leaving"
    ledger, held = cluster.cards(), defaultdict(set)
    stated: dict[str, int] = defaultdict(int)  # device -> MiB that claims and classic annotations say
    for each in claims(cluster).values():
        for (_, device), (memory_mib, _, _) in allocated(each, ledger).items():
            stated[device] += memory_mib
    told: dict[str, set[str]] = defaultdict(set)  # UID of a pod -> devices that it was told of without claims
    living = [each for each in pods.values() if each["spec"].get("nodeName") and not has_ended(each)]
    for each in living:
        for name, cards in devices(each).items():
            for card in cards if "/" not in name else ():
                told[each["metadata"]["uid"]].add(card["uuid"].lower())
                stated[card["uuid"].lower()] += card["memoryMiB"]
    for uuid, found in ledger.items():
        used, capacity = found["status"]["used"], found["spec"]["capacity"]
        assert all(used[each] <= capacity[each] for each in capacity), uuid
        assert all(used[each] == sum(h[each] for h in found["status"]["holders"]) for each in capacity), uuid
        there = [f"{holder['pod']} {holder['state']} {holder['memoryMiB']}" for holder in found["status"]["holders"]]
        assert used["memoryMiB"] == stated[uuid.lower()], f"{uuid}: {there}, and {stated[uuid.lower()]} MiB are stated"
        for holder in found["status"]["holders"]:
            assert holder["podUID"] in pods, f"{holder['pod']} is gone"
            held[holder["podUID"]].add(uuid.lower())
    for each in living:
        uid, name = each["metadata"]["uid"], each["metadata"]["name"]
        by_claims = {
            result["device"]: found["metadata"]["name"]
            for found in (claims_of(cluster, name) if each["spec"].get("resourceClaims") else ())
            for result in results(found)
        }
        shared = {device for device, claim_name in by_claims.items() if claim_name.startswith("common-")}
        assert held[uid] | shared == told[uid] | by_claims.keys(), name
    assert held.keys() <= {each["metadata"]["uid"] for each in living} | {""}
    check_claims(cluster)


@pytest.mark.timeout(times(300, 3000))
@pytest.mark.parametrize("seed", seeds_for("claims that come and go", 1))
def test_ledger_claims_and_annotations_agree_at_every_rest(running: PreemptingCluster, seed: int) -> None:
    running.add_nodes(NODE_COUNT, gpus=GPUS)
    since, churn = running.plane.audit_offset(), Churn(running, seed)
    while churn.created < PODS_IN_ALL:
        for _ in range(AT_ONCE):
            churn.create()
        churn.rest()
        churn.end_some()
    churn.rest()
    assert churn.rests > PODS_IN_ALL // AT_ONCE
    evicted = set(running.evictions(since))
    assert evicted, "nobody was preempted"
    running.request("DELETE", PODS)
    running.wait(lambda: not any(running.holders().values()), "the ledger is empty")
    running.wait(lambda: not any(map(results, claims(running).values())), "no claim is allocated")
    running.wait(lambda: claims(running).keys() == {f"common-{n}" for n in range(len(COMMON))}, "made claims are gone")
