"""The CRD's rules as pure tests apply them, held against the real API server's, on random changes of a card."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.cluster import ALLOCATIONS, Connection, RequestFailed
from control_plane import ControlPlane
from effort import seeds_for, times
from fakes.card_rules import check_card
from gpuledger.model.errors import Invalid

pytestmark = pytest.mark.promise("never twice")

Json = dict[str, Any]

CHANGES = times(150, 3_000)
INVALID = 422
AMOUNTS = ("memoryMiB", "cores", "number")
CAPACITY = {"memoryMiB": 8, "cores": 10, "number": 3}
CARD = {"uuid": "GPU-A", "nodeName": "node-1", "index": 0, "vendor": "nvidia", "model": "A100", "mode": "none"}


@pytest.fixture
def server(ledger: ControlPlane) -> Iterator[Connection]:
    connection = Connection(ledger)
    yield connection
    connection.close()


def a_card(rng: random.Random) -> Json:
    holders = [a_holder(rng, str(n)) for n in range(rng.randrange(3))]
    return {
        "apiVersion": "gpuledger.dev/v1alpha1",
        "kind": "GPUAllocation",
        "metadata": {"name": "gpu-a"},
        "spec": {**CARD, "numaNode": 0, "healthy": True, "capacity": dict(CAPACITY)},
        "status": {"phase": "Ready", "holders": holders, "used": total(holders)},
    }


def a_holder(rng: random.Random, uid: str) -> Json:
    memory_mib, cores = rng.randrange(4), rng.randrange(5)
    return {
        "podUID": uid,
        "namespace": "default",
        "pod": f"pod-{uid}",
        "state": "allocated",
        "attempt": "first",
        "memoryMiB": memory_mib,
        "cores": cores,
        "number": 1,
        "exclusive": rng.random() < 0.1,
        "priority": 0,
        "containers": [{"name": "main", "memoryMiB": memory_mib, "cores": cores}],
    }


def total(holders: list[Json]) -> Json:
    return {amount: sum(holder[amount] for holder in holders) for amount in AMOUNTS}


def changed(rng: random.Random, card: Json) -> Json:
    """Return a card after one or two changes, of which about half are against a rule."""
    new = copy.deepcopy(card)
    for _ in range(rng.randint(1, 2)):
        holders = new["status"]["holders"]
        one = rng.choice(holders) if holders else None
        match rng.randrange(9):
            case 0:
                holders.append(a_holder(rng, rng.choice(("0", "1", "2", "3"))))
            case 1 if one:
                holders.remove(one)
            case 2 if one:
                one[rng.choice(AMOUNTS)] = rng.randrange(-1, 12)
            case 3 if one:
                one["exclusive"] = not one["exclusive"]
            case 4 if one:
                one["containers"].append({"name": rng.choice(("main", "side")), "memoryMiB": 1, "cores": 1})
            case 5:
                new["spec"]["capacity"][rng.choice(AMOUNTS)] = rng.randrange(6)
            case 6:
                new["spec"]["nodeName"] = rng.choice(("node-1", "node-2"))
            case 7:
                new["spec"]["uuid"] = rng.choice(("GPU-A", "gpu-a", "GPU-B"))
            case _:
                new["status"]["used"][rng.choice(AMOUNTS)] += rng.choice((-1, 1))
                continue
        if rng.random() < 0.8:
            new["status"]["used"] = total(holders)
    return new


def as_stored(new: Json, old: Json, endpoint: str) -> Json:
    """Return what a write to an endpoint would store: the spec alone changes, or the status alone."""
    parts = {"": {"spec": new["spec"]}, "/status": {"status": new["status"]}}[endpoint]
    return copy.deepcopy({**old, **parts})


def fake_takes(new: Json, old: Json | None) -> bool:
    try:
        check_card(new, old)
    except Invalid:
        return False
    return True


def server_takes(server: Connection, new: Json, endpoint: str) -> bool:
    try:
        server.request("PUT", f"{ALLOCATIONS}/gpu-a{endpoint}?dryRun=All", new)
    except RequestFailed as refused:
        if refused.status != INVALID:
            raise
        return False
    return True


@pytest.mark.parametrize("seed", seeds_for("changes of a card", 1))
def test_the_fake_rules_refuse_what_the_api_server_refuses_and_nothing_else(server: Connection, seed: int) -> None:
    rng, verdicts = random.Random(seed), Counter[bool]()  # noqa: S311 - no secret
    stored = None
    while sum(verdicts.values()) < CHANGES:
        if stored is None or rng.random() < 0.1:  # start from another one
            if stored is not None:
                server.request("DELETE", f"{ALLOCATIONS}/gpu-a")
            stored = a_valid_card(rng)
            for method, path in (("POST", ALLOCATIONS), ("PUT", f"{ALLOCATIONS}/gpu-a/status")):
                version = server.request(method, path, stored)["metadata"]["resourceVersion"]
                stored["metadata"]["resourceVersion"] = version
        endpoint = rng.choice(("", "/status"))
        new = as_stored(changed(rng, stored), stored, endpoint)
        verdict = server_takes(server, new, endpoint)
        assert fake_takes(new, stored) == verdict, (endpoint, new, stored)
        verdicts[verdict] += 1
    assert min(verdicts.values()) > CHANGES / 10, "both answers were tried"


def a_valid_card(rng: random.Random) -> Json:
    while True:
        card = a_card(rng)
        if fake_takes(card, None):
            return card
