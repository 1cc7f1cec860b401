"""What the doctor says of ResourceClaims."""

from typing import Any

import pytest

from fakes.doctor_facts import NODE, a_gpu_node, healthy
from fakes.objects import a_pod_object
from gpuledger.configuration.settings import Settings
from gpuledger.doctor.examination import examine
from gpuledger.doctor.facts import claims_held
from unit.doctor.conftest import Found

Json = dict[str, Any]

SERVING = a_gpu_node({"gpuledger.dev/agent": "true"}, {"gpuledger.dev/serves-claims": "true"})
NODE_OF_CARDS = f"node {NODE.name}"


def claiming(name: str = "waits", **fields: Any) -> Json:
    """Return a pod that brings a claim from a template, older than the server's clock by an hour and more."""
    pod = a_pod_object(name, {}, created="2030-01-01T10:00:00Z", **fields)
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "quarter"}]
    return pod


def made(pod: Json) -> Json:
    """Return the pod with its claim made."""
    statuses = [{"name": "gpu", "resourceClaimName": f"{pod['metadata']['name']}-gpu"}]
    return {**pod, "status": {**pod["status"], "resourceClaimStatuses": statuses}}


def a_claim(driver: str = "gpu.gpuledger.dev", uid: str = "c") -> Json:
    result = {"request": "gpu", "driver": driver, "pool": NODE.name, "device": "gpu-0"}
    metadata = {"name": "theirs", "namespace": "default", "uid": uid}
    return {"metadata": metadata, "status": {"allocation": {"devices": {"results": [result]}}}}


def test_a_class_is_missed_where_pods_wait_with_claims(found: Found) -> None:
    missing = [("claim-class-missing", "DeviceClass gpu.gpuledger.dev")]
    assert found(device_class=None, nodes=[SERVING]) == []
    assert found(device_class=None, nodes=[SERVING], pods=[made(claiming())]) == missing


def test_nothing_is_said_of_claims_that_the_server_does_not_have_or_the_settings_do_not_want(found: Found) -> None:
    assert found(claims=None, device_class=None, pods=[made(claiming())], nodes=[SERVING]) == []
    off = Settings(resource_claims=False)
    assert examine(healthy(off, device_class=None, pods=[made(claiming())])).findings == ()


def test_a_node_whose_agent_serves_no_claims_is_named_while_pods_wait_with_some(found: Found) -> None:
    assert found(pods=[made(claiming())]) == [("claims-not-served", NODE_OF_CARDS)]
    assert found(pods=[made(claiming())], nodes=[SERVING]) == []
    assert found(pods=[made(claiming(node_name=NODE.name))]) == []


def test_pods_wait_for_claims_that_nobody_makes(found: Found) -> None:
    where = [("claims-not-made", "ResourceClaims")]
    assert found(pods=[claiming()], nodes=[SERVING]) == where
    young = claiming()
    young["metadata"]["creationTimestamp"] = "2030-01-01T11:59:45Z"
    assert found(pods=[young], nodes=[SERVING]) == []


@pytest.mark.parametrize(
    ("claim", "held", "kinds"),
    [
        (a_claim(), frozenset[str](), [("claims-unaccounted", NODE_OF_CARDS)]),
        (a_claim(), frozenset({"c"}), []),
        (a_claim("nic.example.com"), frozenset[str](), []),
    ],
)
def test_claims_that_have_our_cards_without_the_ledger_are_found(
    found: Found, claim: Json, held: frozenset[str], kinds: list[tuple[str, str]]
) -> None:
    assert found(claims=[claim], claims_held=held) == kinds


def test_the_ledger_names_its_claims() -> None:
    parts = [{"name": "gpu/gpu", "claim": {"name": "theirs", "uid": "c"}}, {"name": "main"}]
    assert claims_held([{"holders": [{"containers": parts}]}, {}]) == {"c"}
