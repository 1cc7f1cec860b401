"""Selectors beside a stock kube-scheduler: the same expressions and devices, the same answers.

Each expression is a claim for all devices that it means, once for each node. The claims have admin access, so none
takes a device from another. The pod of a claim gets the devices that match, or none if none does, or an error if the
expression fails for one of the node's devices.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import yaml

from claim_expressions import CORNERS, DRIVER, EVERYDAY, NODES, REFUSED, Answered, compile_selector, random_expressions
from cluster.cluster import DEADLINE_S, Connection, Json, RequestFailed
from cluster.kubernetes import MINOR, at_least
from cluster.shared import SharedPlane
from control_plane import ControlPlane
from effort import EFFORT, seeds_for, times
from gpuledger.formats.resource_claims.selectors import Selector, SelectorError, SelectorRefused
from gpuledger.model.errors import BadInput

pytestmark = pytest.mark.timeout(times(180, 1800))

API = "/apis/resource.k8s.io/v1"
CLASS = "any-device"
NAMESPACE = "selectors"
ERROR = "error"
WRITERS = 6
TOO_COMPLEX = "exceeds cost limit"
"""What the API server says of an expression that might be expensive for the largest device that there could be."""

HAS_NEWEST_WORDS = at_least(1, 36)
UNKNOWN = () if HAS_NEWEST_WORDS else ("undefined field", "undeclared reference", "no matching overload")
"""What an API server says of words that came to CEL's environments after it."""


@dataclass(frozen=True)
class Question:
    """One expression for one node."""

    number: int
    expression: str
    node: str

    @property
    def name(self) -> str:
        return f"q{self.number}-{self.node}"


@pytest.fixture(scope="module")
def plane(shared: SharedPlane) -> Iterator[ControlPlane]:
    """Yield a control plane with nodes, devices and a stock kube-scheduler that may ask as often as it likes."""
    with shared.lent() as own:
        connection = Connection(own)
        labels = {"resource.kubernetes.io/admin-access": "true"}
        connection.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}})
        connection.request("POST", f"{API}/deviceclasses", {"metadata": {"name": CLASS}, "spec": {}})
        for node, devices in NODES.items():
            _create_node(connection, node)
            pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": list(devices)}
            connection.request("POST", f"{API}/resourceslices", {"metadata": {"name": node}, "spec": spec})
        config = own.directory / "stock-scheduler.yaml"
        kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
        fast = {"leaderElection": {"leaderElect": False}, "clientConnection": {"qps": 2000, "burst": 4000}}
        config.write_text(
            yaml.safe_dump({**kind, **fast, "podInitialBackoffSeconds": 600, "podMaxBackoffSeconds": 600})
        )
        own.start_scheduler(config, own.kubeconfig, name="stock-scheduler")
        connection.close()
        yield own


def _create_node(connection: Connection, name: str) -> None:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "100000"}
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    connection.request("POST", "/api/v1/nodes", {"metadata": metadata, "status": status})


def _claim(question: Question) -> Json:
    chosen = {
        "deviceClassName": CLASS,
        "allocationMode": "All",
        "adminAccess": True,
        "selectors": [{"cel": {"expression": question.expression}}],
    }
    return {"metadata": {"name": question.name}, "spec": {"devices": {"requests": [{"name": "r", "exactly": chosen}]}}}


def _pod(question: Question) -> Json:
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "c"}]}}
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": question.node},
        "resourceClaims": [{"name": "c", "resourceClaimName": question.name}],
        "containers": [container],
    }
    return {"metadata": {"name": question.name}, "spec": spec}


def _ask(plane: ControlPlane, questions: Sequence[Question]) -> dict[Question, str]:
    """Create the claims with their pods; return why the API server has refused some."""
    own, refused = threading.local(), {}
    opened: list[Connection] = []

    def create(question: Question) -> None:
        if not hasattr(own, "connection"):
            own.connection = Connection(plane)
            opened.append(own.connection)
        try:
            own.connection.request("POST", f"{API}/namespaces/{NAMESPACE}/resourceclaims", _claim(question))
        except RequestFailed as error:
            refused[question] = str(error)
            return
        own.connection.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", _pod(question))

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(create, questions))
    for connection in opened:
        connection.close()
    return refused


def _asked_on(number: int) -> list[str]:
    """Return the nodes for the expression with this number: the cards', and one or all of the odd devices."""
    cards, *odd = NODES
    return [cards, *odd] if EFFORT == "test-all" else [cards, odd[number % len(odd)]]


def _answers(plane: ControlPlane, asked: set[Question]) -> dict[Question, object]:
    """Return for each question the names of the devices that match, or ERROR."""
    by_name = {question.name: question for question in asked}
    found: dict[Question, object] = {}
    pause, connection = threading.Event(), Connection(plane)
    for _ in range(int(DEADLINE_S * times(4, 40))):
        pods = connection.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
        claims = connection.request("GET", f"{API}/namespaces/{NAMESPACE}/resourceclaims")["items"]
        allocated = {
            claim["metadata"]["name"]: frozenset(
                result["device"] for result in claim["status"]["allocation"]["devices"]["results"]
            )
            for claim in claims
            if claim.get("status", {}).get("allocation")
        }
        for pod in pods:
            question = by_name.get(pod["metadata"]["name"])
            if question is None or question in found:
                continue
            answer = _answer(pod, allocated)
            if answer is not None:
                found[question] = answer
        if len(found) == len(by_name):
            connection.close()
            return found
        pause.wait(0.25)
    missing = sorted(question.name for question in asked - found.keys())
    raise AssertionError(f"no answer to {len(missing)} questions, such as {missing[:5]}")


def _answer(pod: Json, allocated: dict[str, frozenset[str]]) -> object:
    name = pod["metadata"]["name"]
    if name in allocated:
        return allocated[name]
    conditions = [each for each in pod["status"].get("conditions", []) if each["type"] == "PodScheduled"]
    if not conditions or conditions[0]["status"] != "False":
        return None
    if conditions[0]["reason"] == "Unschedulable":
        return frozenset()
    assert conditions[0]["reason"] == "SchedulerError", conditions
    return ERROR


def _own_answer(selector: Selector, node: str) -> object:
    """Return what gpuledger says; None if it refuses to evaluate the expression for one of the devices."""
    matched = set()
    failed = False
    for device in NODES[node]:
        try:
            if selector.run({**device, "driver": DRIVER})[0]:
                matched.add(device["name"])
        except SelectorRefused:
            return None
        except SelectorError:
            failed = True
    return ERROR if failed else frozenset(matched)


def test_selectors_are_answered_as_by_a_stock_kube_scheduler(plane: ControlPlane) -> None:
    written = [asked.expression for asked in (*EVERYDAY, *CORNERS)]
    (seed,) = seeds_for("claim selectors", 1)
    made = random_expressions(seed, times(40, 1000))
    questions = [
        Question(number, expression, node)
        for number, expression in enumerate((*written, *made))
        for node in _asked_on(number)
    ]
    refused = _ask(plane, questions)
    assert {why for why in refused.values() if not any(each in why for each in (TOO_COMPLEX, *UNKNOWN))} == set()
    assert len(refused) < len(questions) / 5
    found = _answers(plane, set(questions) - refused.keys())
    differ, compared = [], 0
    for question, answer in found.items():
        own = _own_answer(compile_selector(question.expression, question.name), question.node)
        if own is None:
            assert question.expression in made, question
            continue
        compared += 1
        if own != answer:
            differ.append((question, answer, own))
    assert not differ, differ[:3]
    assert compared > len(found) * 0.9
    kinds = {answer if answer == ERROR else bool(answer) for answer in found.values()}
    assert kinds == {ERROR, True, False}


@pytest.mark.skipif(not HAS_NEWEST_WORDS, reason=f"some of these words are unknown to Kubernetes {MINOR}")
@pytest.mark.parametrize("asked", REFUSED, ids=lambda asked: asked.expression[:40])
def test_what_gpuledger_refuses_is_taken_by_the_api_server(plane: ControlPlane, asked: Answered) -> None:
    expression = asked.expression
    with pytest.raises(BadInput):
        compile_selector(expression, "here")
    connection = Connection(plane)
    path = f"{API}/namespaces/{NAMESPACE}/resourceclaims?dryRun=All"
    connection.request("POST", path, _claim(Question(0, expression, "refused")))
    connection.close()
