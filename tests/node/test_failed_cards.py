"""Faults of cards on the real kubelet: the driver's event, the eviction, the replacement's container, and the reset."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from cluster.cluster import NODES, RequestFailed, phase
from fakes.nvml.fake_nvml import GONE, NvmlState
from gpuledger.model.clock import rfc3339
from node.gpu_node import GpuNode, gpu_container, one_card

Json = dict[str, Any]
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
REPLICA_SETS = "/apis/apps/v1/namespaces/default/replicasets"
MOST_MIB = 60_000
"""Of a card: two such shares do not fit."""

CONTAINED, FALLEN_OFF = 94, 79

WATCHED_S = 12.0
"""Longer than pods stay on a card that is lost."""


@pytest.fixture
def whole(gpu: GpuNode) -> Iterator[GpuNode]:
    """Yield the node; afterwards its driver is as it was, loaded anew, and there is no Deployment."""
    before = gpu.state
    yield gpu
    with suppress(RequestFailed):  # the test has made none
        gpu.cluster.request("DELETE", f"{DEPLOYMENTS}/web", {"propagationPolicy": "Background"})
    gpu.cluster.wait(lambda: not gpu.cluster.request("GET", REPLICA_SETS)["items"], "no Deployment makes pods")
    gpu.remove_all()
    load_driver_anew(gpu, before)


def load_driver_anew(gpu: GpuNode, state: NvmlState) -> None:
    gpu.show(replace(state, driver_error=GONE))
    gpu.cluster.wait(lambda: not gpu.ready() or not gpu.open_cards(), "the agent has noticed that the driver is gone")
    gpu.show(state)
    gpu.wait_ready()


def deploy(gpu: GpuNode, replicas: int) -> list[Json]:
    """Run so many pods, each alone on its card."""
    labels = {"app": "web"}
    spec = {
        "schedulerName": "gpuledger",
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 1,
        "containers": [gpu_container("main", one_card(MOST_MIB))],
    }
    template = {"metadata": {"labels": labels}, "spec": spec}
    body = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    gpu.cluster.request("POST", DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": body})
    gpu.cluster.wait(lambda: len(gpu.cluster.pods()) == replicas, "the pods are there")
    gpu.wait_running(*gpu.cluster.pods())
    return list(gpu.cluster.pods().values())


def card_of(gpu: GpuNode, name: str) -> str:
    ((uuid, _, _),) = gpu.told(name)
    return uuid


@pytest.mark.promise("failed cards")
@pytest.mark.timeout(300)
def test_a_pod_leaves_a_card_that_has_fallen_off_though_the_agent_died_and_the_card_waits_for_a_reset(
    whole: GpuNode,
) -> None:
    gpu = whole
    first, second = (pod["metadata"]["name"] for pod in deploy(gpu, 2))
    kept = gpu.identities(second)
    lost = card_of(gpu, first)
    gpu.show(gpu.state.with_event(lost, FALLEN_OFF))
    gpu.cluster.wait(lambda: lost not in gpu.open_cards(), "the card is closed")
    gpu.kill_agent()
    gpu.start_agent()
    gpu.cluster.wait(lambda: first not in gpu.cluster.pods(), "its pod is evicted", 60)
    gpu.cluster.wait(lambda: len(gpu.cluster.pods()) == 2, "the Deployment has made another one")
    (third,) = set(gpu.cluster.pods()) - {second}
    gpu.wait_running(third)
    assert card_of(gpu, third) not in {lost, card_of(gpu, second)}
    assert gpu.identities(second) == kept
    found = gpu.cluster.cards()[lost]
    assert (phase(found), found["spec"]["failure"]["faultClass"]) == ("Unhealthy", "lost")
    gpu.check(second, third)
    gpu.cluster.check_consistent()
    load_driver_anew(gpu, replace(gpu.state, events=()))
    assert lost in gpu.open_cards()


@pytest.mark.timeout(300)
def test_pods_stay_on_a_card_with_a_contained_fault(whole: GpuNode) -> None:
    gpu = whole
    (name,) = (pod["metadata"]["name"] for pod in deploy(gpu, 1))
    kept, card = gpu.identities(name), card_of(gpu, name)
    gpu.show(gpu.state.with_event(card, CONTAINED))
    gpu.cluster.wait(lambda: card not in gpu.open_cards(), "the card is closed")
    end_s = time.monotonic() + WATCHED_S
    while time.monotonic() < end_s:
        assert gpu.identities(name) == kept
        time.sleep(0.5)


@pytest.mark.timeout(300)
def test_a_person_says_that_cards_were_repaired(whole: GpuNode) -> None:
    gpu = whole
    card = gpu.state.cards[0].uuid
    gpu.show(gpu.state.with_event(card, FALLEN_OFF))
    gpu.cluster.wait(lambda: card not in gpu.open_cards(), "the card is closed")
    annotation = {"gpuledger.dev/cards-repaired": rfc3339(datetime.now(UTC))}
    gpu.cluster.patch(f"{NODES}/{gpu.node.name}", {"metadata": {"annotations": annotation}})
    gpu.cluster.wait(lambda: card in gpu.open_cards(), "the card takes pods", 60)
