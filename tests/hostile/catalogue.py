"""What somebody who may create pods in one namespace can write, beyond what anybody would. A new kind is one entry.

test_hostile.py creates all of it in a cluster where nothing else goes wrong, and `make chaos` where everything does.
Kinds of claims are in claim_kinds.py, of reservations in reservation_kinds.py; what is done rather than written is in
acts.py.

Each entry is a name and what it creates; the API server may refuse it, and that is as good. Go's JSON, in which a watch
shows a pod, writes a `<` in six bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from cluster.cluster import CORES, COUNT, MEMORY, NODES, PERCENT, container
from gpuledger.formats.kubernetes.gang import GANG_LABEL, MINIMUM_LABEL
from gpuledger.formats.kubernetes.node import REGISTER_ANNOTATION

Json = dict[str, Any]

NAMESPACE = "hostile"
CLAIM_API = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}"
PATHS = {
    "Job": f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs",
    "GPUReservation": f"/apis/gpuledger.dev/v1alpha1/namespaces/{NAMESPACE}/gpureservations",
    "Pod": f"/api/v1/namespaces/{NAMESPACE}/pods",
    "PodDisruptionBudget": f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets",
    "ResourceClaim": f"{CLAIM_API}/resourceclaims",
    "ResourceClaimTemplate": f"{CLAIM_API}/resourceclaimtemplates",
}
"""What a user of the namespace creates -> where. In the order in which all of it is deleted: a Job makes new pods."""

WORKLOADS = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{NAMESPACE}/workloads"
"""Where the cluster has Kueue."""

EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"
"""What others say of it."""

NODE_PREFIX = "hostile-"
SHARE = {COUNT: 1, MEMORY: 1_000}
FOR_EVER_S = 2**63 - 1
CHOSEN = "nvidia.com/use-gputype"
TOLD = "gpuledger.dev/devices"
UUIDS = "nvidia.com/use-gpuuuid"


def a_pod(name: str, *containers: Json, annotations: Mapping[str, str] | None = None, **spec: object) -> Json:
    """Return a pod of the hostile namespace."""
    metadata = {"name": name, "namespace": NAMESPACE, "annotations": dict(annotations or {})}
    listed = list(containers) or [container(SHARE)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"schedulerName": "gpuledger", "containers": listed, **spec},
    }


def path_of(body: Json) -> str:
    """Return the path to which an object is posted."""
    return {"Node": NODES, "Workload": WORKLOADS, **PATHS}[body["kind"]]


def with_text(name: str, text: str, limits: Mapping[str, object] = SHARE) -> list[Json]:
    return [a_pod(name, container(limits, args=[text]))]


def asking(count: int, base_mib: int = 25_000, cards: int = 1) -> list[Json]:
    """Return containers of which no two ask for the same, so that none can stand for another."""
    return [container({COUNT: cards, MEMORY: base_mib + n}, f"c{n}") for n in range(count)]


def annotated(name: str, value: str, annotation: str = CHOSEN) -> list[Json]:
    return [a_pod(name, annotations={annotation: value})]


def a_budget(name: str, selector: Json) -> Json:
    spec = {"minAvailable": "100%", "selector": selector}
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "kind": "PodDisruptionBudget", "spec": spec}


def a_job(name: str, pods: int, *containers: Json, **spec: object) -> Json:
    """Return a Job that has so many pods at once."""
    template = a_pod("", *containers)["spec"] | {"restartPolicy": "Never"}
    spec = {"parallelism": pods, "completions": pods, "backoffLimit": 0, "template": {"spec": template}} | spec
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def a_node(name: str, register: str, annotation: str = REGISTER_ANNOTATION) -> Json:
    """Return a node whose agent says this."""
    metadata = {"name": f"{NODE_PREFIX}{name}", "annotations": {annotation: register}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def some_cards(count: int) -> list[Json]:
    """Return as much of a register as is said of cards."""
    return [
        {"uuid": f"GPU-hostile-{n}", "index": n, "vendor": "nvidia", "memoryMiB": 1_000, "cores": 100, "number": 1_024}
        for n in range(count)
    ]


def a_gang(
    name: str, count: int, minimum: object, limits: Callable[[int], Json] = lambda n: SHARE, **spec: Any
) -> list[Json]:
    """Return pods of one gang; the n-th asks for `limits(n)`."""
    pods = [a_pod(f"{name}-{n}", container(limits(n)), **spec) for n in range(count)]
    for pod in pods:
        pod["metadata"]["labels"] = {GANG_LABEL: name, MINIMUM_LABEL: str(minimum)}
    return pods


def affinity(terms: int) -> Json:
    expressions = [{"key": f"k{n}", "operator": "NotIn", "values": ["v"] * 10} for n in range(terms)]
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
        }
    }


NOWHERE = {"kubernetes.io/hostname": "none"}
LINKED = [f"GPU-hostile-{n}" for n in range(64)]
EMOJI_TEXT = "\U0001f600" + "x" * 1_380_000
"""One letter beyond the usual ones makes Python keep all of them in four bytes each."""
PLAIN_TEXT, ANGLE_TEXT = "x" * 1_300_000, "<" * 720_000


def with_number(pods: list[Json], number: int) -> list[Json]:
    """Return the only pod of a gang under another name."""
    (pod,) = pods
    pod["metadata"]["name"] = f"{pod['metadata']['name']}-{number}"
    return [pod]


CATALOGUE: dict[str, Callable[[], list[Json]]] = {
    # Long ones.
    "a watch event of 4 MB, and no GPU": lambda: with_text("angles", ANGLE_TEXT, {}),
    "a watch event of 4 MB": lambda: with_text("gpu-angles", ANGLE_TEXT),
    "as long as etcd takes": lambda: with_text("long", PLAIN_TEXT),
    "thirty long ones": lambda: [pod for n in range(30) for pod in with_text(f"long-{n}", "<" * 200_000)],
    "ten thousand variables": lambda: [
        a_pod("variables", container(SHARE, env=[{"name": f"V{n}", "value": "v"} for n in range(10_000)]))
    ],
    "annotations as long as they may be": lambda: annotated("annotated", "a" * 250_000, "example.com/note"),
    "annotations of angles": lambda: annotated("angled", "<" * 250_000, "example.com/note"),
    "thousands of tolerations": lambda: [
        a_pod("tolerant", tolerations=[{"key": f"k{n}", "operator": "Exists"} for n in range(3_000)])
    ],
    "thousands of affinity terms": lambda: [a_pod("particular", affinity=affinity(1_000))],
    "a thousand node labels": lambda: [a_pod("selecting", nodeSelector={f"l{n}": "v" for n in range(1_000)})],
    "many finalizers": lambda: [
        {**pod, "metadata": {**pod["metadata"], "finalizers": [f"example.com/f{n}" for n in range(100)]}}
        for pod in [a_pod("finalized")]
    ],
    # Many containers.
    "64 containers with GPUs": lambda: [a_pod("c64", *asking(64))],
    "250 containers with GPUs": lambda: [a_pod("c250", *asking(250))],
    "900 containers with GPUs": lambda: [a_pod("c900", *asking(900))],
    "2,000 containers, one of them with a GPU": lambda: [
        a_pod("c2000", *asking(1), *(container({}, f"o{n}") for n in range(2_000)))
    ],
    "500 init containers with GPUs": lambda: [a_pod("init", container(SHARE), initContainers=asking(500))],
    "eight that fit alone and never together": lambda: [
        a_pod(f"together-{n}", *asking(8, 13_000 + n, cards=2)) for n in range(10)
    ],
    "eight, a hundred times, each time different": lambda: [
        a_pod(f"eight-{n}", *asking(8, 9_000 + 8 * n)) for n in range(100)
    ],
    # Amounts.
    "more memory than there is": lambda: [a_pod("huge", container({COUNT: 1, MEMORY: "9" * 18}))],
    "more cards than there are": lambda: [a_pod("cards", container({COUNT: 10**9}))],
    "a fraction of a card": lambda: [a_pod("fraction", container({COUNT: "500m"}))],
    "an exponent": lambda: [a_pod("exponent", container({COUNT: 1, MEMORY: "1e300"}))],
    "nothing of everything": lambda: [a_pod("nothing", container({COUNT: 0, MEMORY: 0, CORES: 0, PERCENT: 0}))],
    "1,024 cards": lambda: [a_pod("all", container({COUNT: 1_024, MEMORY: 1}))],
    "two hundred that wait, each for another amount": lambda: [
        a_pod(f"waits-{n}", container({COUNT: 8, MEMORY: 39_000 + n})) for n in range(200)
    ],
    # Words.
    "256 models of a thousand letters": lambda: annotated(
        "models", ",".join(f"{n:03}" + "a" * 970 for n in range(256))
    ),
    "commas": lambda: annotated("commas", "," * 200_000),
    "UUIDs that nobody has": lambda: annotated("uuids", ",".join(f"GPU-{n}" for n in range(20_000)), UUIDS),
    "a policy of a megabyte's name": lambda: annotated("policy", "p" * 200_000, "hami.io/gpu-scheduler-policy"),
    "all of Unicode": lambda: annotated("unicode", "".join(map(chr, range(0x20, 0xD7FF, 7))), CHOSEN),
    "right to left, and marks without end": lambda: annotated("zalgo", "\u202e" + "e" + "\u0301" * 5_000, CHOSEN),
    "cards told by themselves": lambda: annotated(
        "told", '{"main": [{"uuid": "GPU-x", "memoryMiB": -1}]}', "gpuledger.dev/devices"
    ),
    "nested JSON": lambda: annotated("nested", "[" * 100_000, TOLD),
    # Time.
    "a grace of ages": lambda: [a_pod("grace", terminationGracePeriodSeconds=FOR_EVER_S)],
    "a grace that runs over": lambda: [a_pod("overflow", terminationGracePeriodSeconds=300_000_000_000)],
    # Budgets.
    "a budget of 5,000 values": lambda: [
        a_budget(
            "values", {"matchExpressions": [{"key": "k", "operator": "In", "values": [f"v{n}" for n in range(5_000)]}]}
        )
    ],
    "a budget of everything": lambda: [a_budget("everything", {})],
    # Jobs.
    "a Job of 60 pods that wait": lambda: [a_job("wide", 60, container({COUNT: 8, MEMORY: 39_000}))],
    "a Job of 20 pods of eight containers": lambda: [a_job("deep", 20, *asking(8, 9_000))],
    "a Job whose pods are over at once": lambda: [a_job("brief", 10, activeDeadlineSeconds=1)],
    "a Job of long pods": lambda: [a_job("long", 10, container(SHARE, args=["<" * 100_000]))],
    # Gangs.
    "gangs whose second member never comes": lambda: [pod for n in range(20) for pod in a_gang(f"lonely-{n}", 1, 2)],
    "a gang that needs more members than it has": lambda: a_gang("wants", 20, 256),
    "a gang that says another number in each pod": lambda: [
        pod for n in range(10) for pod in with_number(a_gang("numbers", 1, n + 1), n)
    ],
    "a gang of 30": lambda: a_gang("crowd", 30, 25),
    "a gang of 40, each with another amount, for which there is no room": lambda: a_gang(
        "amounts", 40, 40, lambda n: {COUNT: 1, MEMORY: 13_000 + n}
    ),
    "a gang of which kube-scheduler never asks for one member": lambda: [
        *a_gang("all-but-one", 7, 8),
        *with_number(a_gang("all-but-one", 1, 8, nodeSelector=NOWHERE), 7),
    ],
    "40 gangs of which kube-scheduler never asks for the last member": lambda: [
        pod
        for n in range(40)
        for pod in [*a_gang(f"late-{n}", 3, 4), *with_number(a_gang(f"late-{n}", 1, 4, nodeSelector=NOWHERE), 3)]
    ],
    "gangs with numbers that are none": lambda: [
        pod
        for n, said in enumerate(("0", "257", "9" * 63, "1e2", "0x10", "1.5", "007", "many"))
        for pod in a_gang(f"odd-{n}", 2, said)
    ],
    # Elsewhere.
    "on a node by itself": lambda: [a_pod("by-hand", nodeName="node-1-1")],
    "90 long ones on one node, and one that waits for its CPU": lambda: [
        *(
            a_pod(f"neighbour-{n}", container({}, args=[EMOJI_TEXT]), nodeName="node-1-1", schedulerName="none")
            for n in range(90)
        ),
        a_pod("next-door", {**container(SHARE), "resources": {"limits": {**SHARE, "cpu": "1000"}}}),
    ],
    "on no node": lambda: [a_pod("nowhere", nodeSelector=NOWHERE)],
}

REGISTERS: dict[str, Callable[[], list[Json]]] = {
    "a register that is no JSON": lambda: [a_node("brackets", "[" * 250_000)],
    "a register of 300 cards": lambda: [a_node("many", json.dumps(some_cards(300)))],
    "a register whose cards are one": lambda: [a_node("same", json.dumps(some_cards(1) * 900))],
    "a register of numbers beyond all": lambda: [
        a_node("large", json.dumps([{**card, "memoryMiB": 10**40, "number": -(10**40)} for card in some_cards(50)]))
    ],
    "a register in which all cards are linked": lambda: [
        a_node(
            "linked", json.dumps([{**c, "links": {uuid: n for n, uuid in enumerate(LINKED)}} for c in some_cards(64)])
        )
    ],
    "HAMi's register, of colons": lambda: [a_node("colons", ":" * 250_000, "hami.io/node-nvidia-register")],
}
"""The same for who has taken over the agent of one node, and can write what that says."""
