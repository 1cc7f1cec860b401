"""Claims whose selectors take long: an ordinary pod of another namespace is bound meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from cluster.claims import API, claim_spec, claiming, create_class, serve_claims, share
from cluster.cluster import COUNT, MEMORY, Cluster, pod
from gpuledger.formats.resource_claims.claims import DRIVER
from hostile.machine import Machine, memory_mib
from hostile.others import BOUND_WITHIN_S, LATE_BY_S, TIMEOUT_S, Say, lags, worst_lag_s

Json = dict[str, Any]

NAMESPACE = "greedy"
TEMPLATES = f"{API}/namespaces/{NAMESPACE}/resourceclaimtemplates"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"
OWN = f'device.attributes["{DRIVER}"]'

MOST_MORE_MIB = 100
"""By which the operator's memory grows."""


@pytest.fixture
def attacked(cluster: Cluster) -> Iterator[Cluster]:
    """Yield a cluster with three nodes that serve claims, and a namespace for what others get nothing of."""
    create_class(cluster)
    serve_claims(cluster, *cluster.add_nodes(3))
    if not any(each["metadata"]["name"] == NAMESPACE for each in cluster.request("GET", "/api/v1/namespaces")["items"]):
        cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    cluster.create(pod("first", {COUNT: 1, MEMORY: 1_000}))
    cluster.wait_bound("first")
    yield cluster
    for path in (PODS, TEMPLATES, f"{API}/namespaces/{NAMESPACE}/resourceclaims", EVENTS):
        cluster.request("DELETE", path, {"gracePeriodSeconds": 0})
    cluster.wait(lambda: not cluster.request("GET", PODS)["items"], "the greedy pods are gone")


def create(cluster: Cluster, name: str, *claims: Sequence[str]) -> None:
    """Create a pod of the greedy namespace with so many claims, each with these selectors."""
    templates = []
    for number, expressions in enumerate(claims):
        requests = [
            share("1Gi", name=f"r{first}", selectors=[{"cel": {"expression": each}} for each in part])
            for first in range(0, len(expressions), 32)
            if (part := expressions[first : first + 32])
        ]
        templates.append(f"{name}-{number}")
        made: Json = {"metadata": {"name": templates[-1]}, "spec": {"spec": claim_spec(*requests)}}
        cluster.request("POST", TEMPLATES, made)
    body: Json = claiming(name, templates)
    body["metadata"] |= {"namespace": NAMESPACE}
    cluster.request("POST", PODS, body)


def told(cluster: Cluster, text: str) -> bool:
    """Return whether an event of the greedy namespace says so."""
    return any(text in (each.get("message") or "") for each in cluster.request("GET", EVENTS)["items"])


class Before:
    """The operator before a user of the greedy namespace did what he could."""

    def __init__(self, cluster: Cluster) -> None:
        operator = cluster.installation.operator
        assert operator is not None
        self.cluster, self.pid, self.mib, self.lags = cluster, operator.pid, memory_mib(operator.pid), lags(cluster)
        self.machine = Machine()

    def check_others(self, say: Say) -> None:
        """Create ordinary pods of another namespace, one after the other: each is bound promptly."""
        slowest_s = 0.0
        for name in (f"ordinary-{number}" for number in range(4)):
            begin_s = time.monotonic()
            self.cluster.create(pod(name, {COUNT: 1, MEMORY: 1_000}))
            self.cluster.wait_bound(name, timeout_s=TIMEOUT_S)
            slowest_s = max(slowest_s, time.monotonic() - begin_s)
        late_s, mib, share = worst_lag_s(self.cluster, self.lags), memory_mib(self.pid), self.machine.share()
        say(
            f"ordinary pods were bound within {slowest_s:.1f} s with {share:.0%} of the machine; the operator was late "
            f"by less than {late_s:g} s, and has {mib} MiB, {self.mib} before"
        )
        assert slowest_s < BOUND_WITHIN_S / share
        assert late_s <= LATE_BY_S
        assert mib < self.mib + MOST_MORE_MIB


def shared(levels: int, way: str) -> str:
    """Return a selector of a value that has another one twice, for so many levels: 2**levels ways through it."""
    names = [f"v{number}" for number in range(levels)]
    text = f"{names[-1]} == {names[-1]}"
    for number, name in reversed(list(enumerate(names))):
        value = f"[{names[number - 1]}, {names[number - 1]}]" if number else "[1, 1]"
        text = f"[{value}].exists({name}, {text})" if way == "exists" else f"cel.bind({name}, {value}, {text})"
    return text


def test_a_selector_of_values_that_share_their_parts_keeps_nobody_else_waiting(attacked: Cluster, say: Say) -> None:
    before = Before(attacked)
    for levels in (20, 24, 28):
        for way in ("exists", "bind"):
            create(attacked, f"{way}-{levels}", [shared(levels, way)])
    before.check_others(say)
    attacked.wait(lambda: told(attacked, "no card of the kind that the pod asks for"), "its author is told")


def test_a_pod_with_very_many_long_selectors_is_refused_before_any_is_compiled(attacked: Cluster, say: Say) -> None:
    before = Before(attacked)

    def long(number: int) -> str:
        return f"{OWN}.index != {number + 8} && " + " && ".join(f"{OWN}.index != {n + 9}" for n in range(40))

    create(attacked, "compiling", *([long(1_000 * which + number) for number in range(25)] for which in range(16)))
    before.check_others(say)
    attacked.wait(lambda: told(attacked, "and may have 64 of 32768: write fewer"), "its author is told")


@pytest.mark.promise("hostile objects")
def test_many_pods_with_an_expensive_selector_each_keep_nobody_else_waiting(attacked: Cluster, say: Say) -> None:
    before = Before(attacked)
    for number in range(200):
        create(attacked, f"dear-{number}", [f"{OWN}.uuid != '{number}' && lists.range(350).all(n, n >= 0)"])
    before.check_others(say)
    attacked.wait(
        lambda: told(attacked, f"the selectors of namespace {NAMESPACE} take long to evaluate"), "its author is told"
    )
