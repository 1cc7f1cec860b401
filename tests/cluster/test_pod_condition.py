"""What a pod that waits is told on a real control plane, and a person who takes a card out of use."""

import time

import pytest

from cluster.cluster import ALLOCATIONS, COUNT, MEMORY, PERCENT, Cluster, phase, pod
from gpuledger.formats.custom_resource.stored_card import CORDON_ANNOTATION
from installation import USER

FILTERS = "gpuledger_filters_total"


@pytest.mark.promise("reasons")
def test_a_condition_says_why_a_pod_waits_and_later_that_it_does_not(cluster: Cluster) -> None:
    cluster.add_nodes(1, gpus=1)
    cluster.create(pod("base", {COUNT: 1, PERCENT: 50}))
    cluster.wait_bound("base")
    cluster.create(pod("stuck", {COUNT: 1, MEMORY: 30000}))
    cluster.wait_refused("stuck", "no card with 30000 MiB free")
    cluster.settle()
    filters, offset = cluster.metric(FILTERS), cluster.plane.audit_offset()
    cluster.wait(lambda: bool(cluster.condition("stuck")), "it is told why it waits")
    status, reason, message = cluster.condition("stuck") or ("", "", "")
    assert (status, reason) == ("False", "NoMemory")
    assert "would fit if 9,520 MiB more were free on GPU-" in message
    cluster.wait(lambda: message in cluster.messages("stuck"), "an Event says the same")
    cluster.settle()
    time.sleep(2)
    assert cluster.metric(FILTERS) - filters <= 2, "each change of a pod has kube-scheduler try it once more, no more"
    cluster.delete("base")
    cluster.wait_bound("stuck")
    cluster.wait(lambda: (cluster.condition("stuck") or ("",))[0] == "True", "it is told that it has its card")
    written = [event for event in cluster.plane.api_writes(offset) if event.user == USER and event.name == "stuck"]
    ours = [event for event in written if not event.agent.startswith("kube-scheduler")]
    assert [event.subresource for event in ours if event.subresource == "status"] == ["status"] * 2


def test_a_cordoned_card_takes_no_pod_until_it_is_uncordoned(cluster: Cluster) -> None:
    cluster.add_nodes(1, gpus=1)
    cluster.create(pod("before", {COUNT: 1, PERCENT: 50}))
    cluster.wait_bound("before")
    (uuid,) = cluster.cards()
    path = f"{ALLOCATIONS}/{uuid.lower()}"
    cluster.patch(path, {"metadata": {"annotations": {CORDON_ANNOTATION: "fans are to be changed"}}})
    cluster.wait(lambda: phase(cluster.cards()[uuid]) == "Cordoned", "the card is cordoned")
    assert cluster.cards()[uuid]["status"]["reason"] == "fans are to be changed"
    cluster.create(pod("after", {COUNT: 1, PERCENT: 25}))
    cluster.wait_refused("after", "no card that is not cordoned")
    assert [holder["pod"] for holder in cluster.holders()[uuid]] == ["before"]
    cluster.patch(path, {"metadata": {"annotations": {CORDON_ANNOTATION: None}}})
    cluster.wait_bound("after")
    cluster.wait(lambda: phase(cluster.cards()[uuid]) == "Ready", "the card is ready again")
