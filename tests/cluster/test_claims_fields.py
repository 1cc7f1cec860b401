"""Every field of a claim on a real control plane: it does what it says, or the pod is told that it can't.

Each case has a node of its own with four cards: two for each NUMA node, and two for each PCIe root, in pairs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from cluster.claims import (
    CLASSES,
    TEMPLATES,
    check_claims,
    claiming,
    opaque,
    request,
    share,
    template,
    wait_all_refused,
)
from cluster.cluster import COUNT, MEMORY, Cluster, container, pod
from cluster.kubernetes import CLAIMS_NAME_AMOUNTS
from gpuledger.agent.simulated import FakeNode
from gpuledger.formats.resource_claims.claims import DRIVER

Json = dict[str, Any]
Entry = tuple[int, int, int]
"""Index of a card, MiB and cores."""

ALL_MIB = 40960
NUMA, PCIE = "resource.kubernetes.io/numaNode", "resource.kubernetes.io/pcieRoot"
SMALL_CLASS, FOREIGN_CLASS, LOW_CLASS = "small-share", "nic.example.com", "first-cards"
CLASS_OBJECTS = {
    SMALL_CLASS: {
        "selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}],
        "config": [opaque(memoryMiB=5000, cores=10)],
    },
    LOW_CLASS: {"selectors": [{"cel": {"expression": f'device.attributes["{DRIVER}"].index < 2'}}]},
    FOREIGN_CLASS: {"selectors": [{"cel": {"expression": 'device.driver == "nic.example.com"'}}]},
}
TAKE_0 = {"nvidia.com/use-gpuuuid": 0}
"""Annotation of a pod that was there before -> index of the card that it names."""


def selector(expression: str) -> list[Json]:
    return [{"cel": {"expression": expression.replace("ours", f'device.attributes["{DRIVER}"]')}}]


def on(*indexes: int, memory_mib: int = ALL_MIB, cores: int = 100) -> list[Entry]:
    return [(index, memory_mib, cores) for index in indexes]


def first_of(*alternatives: Json, name: str = "gpu") -> Json:
    """Return a request that leaves a choice; the alternatives are requests."""
    return {"name": name, "firstAvailable": [{"name": each["name"], **each["exactly"]} for each in alternatives]}


@dataclass(frozen=True)
class Case:
    """A pod with a claim `c0`, and what it gets: the entries of each request, or a number of cards, or a sentence."""

    name: str
    requests: Sequence[Json]
    gets: dict[str, list[Entry] | int | Callable[[list[Entry]], bool]] = field(default_factory=dict)
    refused: str = ""
    devices: Json = field(default_factory=dict)
    limits: Json = field(default_factory=dict)
    taken: Sequence[int] = ()
    """Cards that somebody has as a whole before."""
    more: Sequence[Sequence[Json]] = ()
    """Requests of further claims."""
    uuids_of: Callable[[FakeNode], Json] = lambda node: {}
    """More of the claim's devices, which names cards of the node."""


def pairwise(entries: list[Entry]) -> bool:
    """Return whether there is one card of each pair."""
    return sorted(index // 2 for index, _, _ in entries) == [0, 1]


def one_pair(entries: list[Entry]) -> bool:
    """Return whether the two cards are a pair."""
    first, second = (index for index, _, _ in entries)
    return first // 2 == second // 2


SHARE = share("10Gi", 30)
SHARE_GETS = {"memory_mib": 10240, "cores": 30}

CASES = [
    Case("a request that says nothing is a whole card", [request()], {"gpu": on(0)}),
    Case("a share of memory and cores", [SHARE], {"gpu": on(0, **SHARE_GETS)}),
    Case("memory alone takes no cores", [share("10Gi")], {"gpu": on(0, memory_mib=10240, cores=0)}),
    Case("cores alone take all memory", [share(cores=30)], {"gpu": on(0, cores=30)}),
    Case("memory is rounded up to MiB", [share("1000000001")], {"gpu": on(0, memory_mib=954, cores=0)}),
    Case("count", [share("10Gi", 30, count=2)], {"gpu": 2}),
    Case("count of all cards", [request(count=4)], {"gpu": on(0, 1, 2, 3)}),
    Case("count of more cards than a node has", [request(count=5)], refused="fewer than 5 GPUs on the node"),
    Case("more memory than a card has", [share("41Gi")], refused="no card as large as 41984 MiB"),
    Case("more cores than a card has", [share(cores=101)], refused="101 is more than 100 percent"),
    Case("two slots", [request(capacity={"requests": {"slots": "2"}})], refused="slots: a share takes one"),
    Case("a capacity that cards have not", [request(capacity={"requests": {"tea": "1"}})], refused="no capacity tea"),
    Case("all cards", [share("10Gi", allocationMode="All")], {"gpu": on(0, 1, 2, 3, memory_mib=10240, cores=0)}),
    Case(
        "all cards of a kind",
        [request(allocationMode="All", selectors=selector("ours.numaNode == 1"))],
        {"gpu": on(2, 3)},
    ),
    Case(
        "all cards, one of them taken",
        [request(allocationMode="All")],
        refused="fewer than 4 cards entirely free",
        taken=[1],
    ),
    Case("the first alternative", [first_of(request("two", count=2), share("1Gi", name="bit"))], {"gpu/two": 2}),
    Case(
        "the second alternative where no node is large enough for the first",
        [first_of(request("many", count=5), share("1Gi", name="bit"))],
        {"gpu/bit": on(0, memory_mib=1024, cores=0)},
    ),
    Case(
        "the second alternative where the first one's cards are taken",
        [first_of(request("all", count=4), share("1Gi", name="bit", count=2))],
        {"gpu/bit": 2},
        taken=[0],
    ),
    Case(
        "configuration of one alternative",
        [first_of(request("all", count=4), request("bit"))],
        {"gpu/bit": on(1, memory_mib=2000, cores=0)},
        devices={"config": [{**opaque(memoryMiB=2000), "requests": ["gpu/bit"]}]},
        taken=[0],
    ),
    Case(
        "cards that match",
        [request(count=2)],
        {"gpu": on(2, 3)},
        devices={"constraints": [{"matchAttribute": NUMA}]},
        taken=[0],
    ),
    Case(
        "requests that match",
        [request("a"), share("10Gi", name="b", selectors=selector("ours.index == 3"))],
        {"a": on(2), "b": on(3, memory_mib=10240, cores=0)},
        devices={"constraints": [{"matchAttribute": PCIE, "requests": ["a", "b"]}]},
    ),
    Case(
        "more cards that match than there are",
        [request(count=3)],
        refused="have the same resource.kubernetes.io/pcieRoot",
        devices={"constraints": [{"matchAttribute": PCIE}]},
    ),
    Case(
        "cards that differ",
        [share("10Gi", count=2)],
        {"gpu": pairwise},
        devices={"constraints": [{"distinctAttribute": PCIE}]},
    ),
    Case(
        "more cards that differ than there are",
        [request(count=3)],
        refused="differ in resource.kubernetes.io/numaNode",
        devices={"constraints": [{"distinctAttribute": NUMA}]},
    ),
    Case(
        "an attribute that cards have not",
        [request(count=2)],
        refused="cards have no attribute example.com/rack",
        devices={"constraints": [{"matchAttribute": "example.com/rack"}]},
    ),
    Case("a selector", [request(selectors=selector("ours.index == 2"))], {"gpu": on(2)}),
    Case(
        "several selectors",
        [request(selectors=[*selector("ours.index > 0"), *selector("ours.numaNode == 0")])],
        {"gpu": on(1)},
    ),
    Case(
        "a selector of capacity",
        [share("1Gi", selectors=selector(f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("80Gi"))'))],
        refused="no card of the kind",
    ),
    Case("a selector that fails", [request(selectors=selector('ours.nothing == "a"'))], refused="no card of the kind"),
    Case(
        "parameters: memoryMiB",
        [request()],
        {"gpu": on(0, memory_mib=3000, cores=0)},
        devices={"config": [opaque(memoryMiB=3000)]},
    ),
    Case(
        "parameters: memoryPercent",
        [request()],
        {"gpu": on(0, memory_mib=10240, cores=0)},
        devices={"config": [opaque(memoryPercent=25)]},
    ),
    Case("parameters: cores", [request()], {"gpu": on(0, cores=40)}, devices={"config": [opaque(cores=40)]}),
    Case(
        "amounts of the request before parameters",
        [SHARE],
        {"gpu": on(0, **SHARE_GETS)},
        devices={"config": [opaque(memoryMiB=1)]},
    ),
    Case("parameters: exclusive", [SHARE], {"gpu": on(0, **SHARE_GETS)}, devices={"config": [opaque(exclusive=True)]}),
    Case(
        "parameters: models", [request()], refused="no card of the kind", devices={"config": [opaque(models=["H100"])]}
    ),
    Case(
        "parameters: avoidModels",
        [request()],
        refused="no card of the kind",
        devices={"config": [opaque(avoidModels=["A100"])]},
    ),
    Case(
        "parameters: isolation, which these cards say nothing of",
        [request()],
        {"gpu": on(0)},
        devices={"config": [opaque(isolation=["mig"])]},
    ),
    Case(
        "parameters: uuids",
        [request()],
        {"gpu": on(3)},
        uuids_of=lambda node: {"config": [opaque(uuids=[node.cards[3].uuid])]},
    ),
    Case(
        "parameters: avoidUUIDs",
        [request()],
        {"gpu": on(3)},
        uuids_of=lambda node: {"config": [opaque(avoidUUIDs=[each.uuid for each in node.cards[:3]])]},
    ),
    Case(
        "parameters: oneNUMANode",
        [request(count=2)],
        {"gpu": on(2, 3)},
        devices={"config": [opaque(oneNUMANode=True)]},
        taken=[0],
    ),
    Case(
        "parameters of one request",
        [request("a"), request("b")],
        {"a": lambda entries: entries[0][1:] == (2000, 0), "b": lambda entries: entries[0][1:] == (ALL_MIB, 100)},
        devices={"config": [{**opaque(memoryMiB=2000), "requests": ["a"]}]},
    ),
    Case(
        "parameters that do not exist", [request()], refused="no field 'memory'", devices={"config": [opaque(memory=1)]}
    ),
    Case(
        "parameters that make no sense",
        [request()],
        refused="two ways to say one amount",
        devices={"config": [opaque(memoryMiB=1, memoryPercent=1)]},
    ),
    Case(
        "parameters of another driver are none of ours",
        [SHARE],
        {"gpu": on(0, **SHARE_GETS)},
        devices={"config": [{"opaque": {"driver": "nic.example.com", "parameters": {"a": 1}}}]},
    ),
    Case("a class with parameters", [request(deviceClassName=SMALL_CLASS)], {"gpu": on(0, memory_mib=5000, cores=10)}),
    Case(
        "a claim's parameters before those of its class",
        [request(deviceClassName=SMALL_CLASS)],
        {"gpu": on(0, memory_mib=6000, cores=10)},
        devices={"config": [opaque(memoryMiB=6000)]},
    ),
    Case("a class with selectors", [request(deviceClassName=LOW_CLASS)], {"gpu": on(1)}, taken=[0]),
    Case("a class of another driver", [request(deviceClassName=FOREIGN_CLASS)], refused="serves no other driver"),
    Case(
        "a class of another driver beside ours",
        [request(), request("nic", deviceClassName=FOREIGN_CLASS)],
        refused="put it into a claim of its own",
    ),
    Case("a class that is not there", [request(deviceClassName="nobody")], refused="there is no DeviceClass nobody"),
    Case("admin access", [request(adminAccess=True)], refused="adminAccess is not given"),
    Case(
        "tolerations are accepted",
        [request(tolerations=[{"key": "gpuledger.dev/only", "operator": "Exists"}])],
        {"gpu": on(0)},
    ),
    Case("two claims", [request()], {"gpu": 1, "c1:gpu": 1}, more=[[request()]]),
    Case(
        "two claims that share a card",
        [SHARE],
        {"gpu": on(0, **SHARE_GETS), "c1:gpu": on(0, **SHARE_GETS)},
        more=[[SHARE]],
    ),
    Case(
        "two claims that are more than a node has",
        [request(count=3)],
        refused="no cards that hold all containers of the pod at once",
        more=[[request(count=2)]],
    ),
    Case(
        "a claim beside limits",
        [SHARE],
        {"gpu": on(0, **SHARE_GETS), "main": on(0, memory_mib=20480, cores=0)},
        limits={COUNT: 1, MEMORY: 20480},
    ),
    Case("a whole card by claim beside one by limits", [request()], {"gpu": 1, "main": 1}, limits={COUNT: 1}),
    Case(
        "whole cards by claim and limits, too many",
        [request(count=3)],
        refused="no cards that hold all containers of the pod at once",
        limits={COUNT: 2},
    ),
]
NEEDS_1_36 = {
    each.name
    for each in CASES
    if any(word in repr((each.requests, each.more, each.devices)) for word in ("capacity", "distinctAttribute"))
}
"""Before, these fields are dropped."""


@pytest.fixture
def cluster(claims_cluster: Cluster) -> Iterator[Cluster]:
    namespace = "/api/v1/namespaces/default"
    claims_cluster.patch(namespace, {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}})
    for name, spec in CLASS_OBJECTS.items():
        claims_cluster.request("POST", CLASSES, {"metadata": {"name": name}, "spec": spec})
    yield claims_cluster
    claims_cluster.patch(namespace, {"metadata": {"labels": {"resource.kubernetes.io/admin-access": None}}})


def entries_of(cluster: Cluster) -> dict[str, dict[str, list[Entry]]]:
    """Return pod name -> entry in the ledger -> cards by index, with amounts."""
    found: dict[str, dict[str, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for card in cluster.cards().values():
        for holder in card["status"]["holders"]:
            for entry in holder["containers"]:
                place = (card["spec"]["index"], entry["memoryMiB"], entry["cores"])
                found[holder["pod"]][entry["name"]].append(place)
    return found


def entry_name(name: str) -> str:
    """Return the ledger's name of what a case calls `gpu`, `c1:gpu` or `main`."""
    return name if name == "main" else name.replace(":", "/") if ":" in name else f"c0/{name}"


def is_as_wanted(found: list[Entry], wanted: list[Entry] | int | Callable[[list[Entry]], bool]) -> bool:
    if isinstance(wanted, int):
        return len({index for index, _, _ in found}) == len(found) == wanted
    return sorted(found) == sorted(wanted) if isinstance(wanted, list) else wanted(found)


def occupy(cluster: Cluster, case: Case, number: int, node: FakeNode) -> list[str]:
    """Have others take whole cards of the case's node; return their names."""
    named = [(f"before-{number}-{index}", node.cards[index].uuid) for index in case.taken]
    for name, uuid in named:
        cluster.create(pod(name, {COUNT: 1}, annotations={"nvidia.com/use-gpuuuid": uuid}, **at(node)))
    return [name for name, _ in named]


def at(node: FakeNode) -> Json:
    return {"nodeSelector": {"kubernetes.io/hostname": node.name}}


def test_every_field_does_what_it_says_or_is_refused_with_a_sentence(cluster: Cluster) -> None:
    cases = [each for each in CASES if CLAIMS_NAME_AMOUNTS or each.name not in NEEDS_1_36]
    nodes = cluster.add_nodes(len(cases), gpus=4)
    before = [occupy(cluster, *each) for each in zip(cases, range(len(cases)), nodes, strict=True)]
    cluster.wait_bound(*(name for names in before for name in names))
    for number, (case, node) in enumerate(zip(cases, nodes, strict=True)):
        for position, requests in enumerate([case.requests, *case.more]):
            devices = {**case.devices, **case.uuids_of(node)} if position == 0 else {}
            cluster.request("POST", TEMPLATES, template(f"t-{number}-{position}", *requests, **devices))
        templates = [f"t-{number}-{position}" for position in range(1 + len(case.more))]
        cluster.create(claiming(f"case-{number}", templates, limits=case.limits, **at(node)))
    served = [number for number, case in enumerate(cases) if case.gets]
    cluster.wait_bound(*(f"case-{number}" for number in served))
    wrong, entries = [], entries_of(cluster)
    for number in served:
        found = entries[f"case-{number}"]
        wanted = {entry_name(name): each for name, each in cases[number].gets.items()}
        if found.keys() != wanted.keys() or not all(is_as_wanted(found[name], each) for name, each in wanted.items()):
            wrong.append(f"{cases[number].name}: {dict(found)}")
    refused = {f"case-{number}": case for number, case in enumerate(cases) if case.refused}
    said = wait_all_refused(cluster, *refused)
    for name, case in refused.items():
        if not any(case.refused in message for message in said[name]):
            wrong.append(f"{case.name}: {said[name]}")
    assert not wrong, "\n".join(wrong)
    cluster.check_consistent()
    check_claims(cluster)


def test_containers_that_use_one_claim_have_one_share(cluster: Cluster) -> None:
    cluster.add_nodes(1, gpus=2)
    cluster.request("POST", TEMPLATES, template("two", share("10Gi", name="a"), request("b")))
    body = claiming("sharing", ["two"])
    (main,) = body["spec"]["containers"]
    parts = {"one": "a", "two": "a", "three": "b"}
    body["spec"]["containers"] = [
        {**main, "name": name, "resources": {"claims": [{"name": "c0", "request": used}]}}
        for name, used in parts.items()
    ]
    cluster.create(body)
    cluster.wait_bound("sharing")
    (a,), (b,) = (entries_of(cluster)["sharing"][f"c0/{name}"] for name in "ab")
    assert (a[0] != b[0], a[1:], b[1:]) == (True, (10240, 0), (ALL_MIB, 100))
    cluster.check_consistent()
    check_claims(cluster)


def test_a_container_that_asks_for_cards_by_its_limits_and_by_a_claim_is_refused(cluster: Cluster) -> None:
    cluster.add_nodes(1, gpus=2)
    cluster.request("POST", TEMPLATES, template("whole", request()))
    body = claiming("twice", ["whole"])
    body["spec"]["containers"][0]["resources"]["limits"] = {COUNT: "1"}
    cluster.create(body)
    cluster.wait_refused("twice", "by its resources and by a claim")


def test_a_claim_counts_beside_init_containers_from_the_first_to_the_last(cluster: Cluster) -> None:
    """Init containers run one after the other, and each beside what the pod has claimed."""
    (node,) = cluster.add_nodes(1, gpus=1)
    cluster.request("POST", TEMPLATES, template("share", share("20Gi")))
    limits = {COUNT: 1, MEMORY: 20480}
    init = [container(limits, "one"), container(limits, "two")]
    cluster.create(claiming("fits", ["share"], limits=limits, initContainers=init))
    cluster.wait_bound("fits")
    ((holder,),) = cluster.holders().values()
    assert holder["memoryMiB"] == node.cards[0].capacity.memory_mib
    check_claims(cluster)
    cluster.finish("fits")
    more = [container({COUNT: 1, MEMORY: 20481}, "one")]
    cluster.create(claiming("too-much", ["share"], limits={}, initContainers=more))
    cluster.wait_refused("too-much", "0/1 nodes are available")


def test_a_claim_that_no_container_uses_counts_all_the_same(cluster: Cluster) -> None:
    """So do kube-scheduler and kubelet: the claim is the pod's."""
    cluster.add_nodes(1, gpus=1)
    cluster.request("POST", TEMPLATES, template("whole", request()))
    body = claiming("unused", ["whole"])
    del body["spec"]["containers"][0]["resources"]["claims"]
    cluster.create(body)
    cluster.wait_bound("unused")
    assert entries_of(cluster)["unused"]["c0/gpu"] == on(0)
    cluster.check_consistent()
    check_claims(cluster)
