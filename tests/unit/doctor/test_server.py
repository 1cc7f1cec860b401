"""The API server's version, the CRD, the accounts, the clocks."""

import copy
from datetime import timedelta

import pytest

from fakes.doctor_facts import EARLY, LATE, NODE, NOW, a_crd, a_deployment, a_gpu_node, healthy
from gpuledger.configuration.settings import Settings
from gpuledger.doctor.examination import examine
from gpuledger.doctor.facts import BESIDE, OPERATOR, OVER_HAMI, AccountAccess
from unit.doctor.conftest import Found

CRD = "CustomResourceDefinition gpuallocations.gpuledger.dev"


def test_a_server_without_policies_is_too_old(found: Found) -> None:
    assert ("server-too-old", "API server") in found(version=(1, 29))
    assert ("server-too-old", "API server") not in found(version=(1, 30), deployment=a_deployment("v1.30.1"))


def test_evicting_left_to_a_scheduler_that_does_not_is_an_error() -> None:
    native = Settings(preemption="native")
    assert [each.kind.value for each in examine(healthy(native)).findings] == ["nobody-preempts"]
    later = healthy(native, version=(1, 38), deployment=a_deployment("v1.38.0"))
    assert examine(later).findings == ()


@pytest.mark.parametrize(("scheduler", "fits"), [("v1.34.9", False), ("v1.35.0", True), ("v1.37.0", False)])
def test_the_scheduler_is_of_the_servers_version_or_of_the_one_before(found: Found, scheduler: str, fits: bool) -> None:
    where = [("scheduler-version", "Deployment gpuledger-system/gpuledger")]
    assert found(deployment=a_deployment(scheduler)) == ([] if fits else where)


def test_an_image_without_a_version_says_nothing(found: Found) -> None:
    assert found(deployment=a_deployment("latest")) == []


def test_without_the_crd_there_is_no_ledger(found: Found) -> None:
    assert found(crd=None) == [("crd-missing", CRD)]


def test_a_crd_of_another_release_names_what_differs() -> None:
    crd = copy.deepcopy(a_crd())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["status"]["properties"]["claims"]
    schema["properties"]["spec"]["properties"]["invented"] = {"type": "string"}
    (finding,) = examine(healthy(crd=crd)).findings
    assert finding.kind.value == "crd-differs"
    assert finding.text == "not as in this release: spec.invented, status.claims"


def test_other_columns_of_kubectl_are_no_other_crd(found: Found) -> None:
    crd = copy.deepcopy(a_crd())
    del crd["spec"]["versions"][0]["additionalPrinterColumns"]
    assert found(crd=crd) == []


@pytest.mark.parametrize("conditions", [{"Established": "False"}, {"NamesAccepted": "False"}, {"Terminating": "True"}])
def test_a_crd_that_is_not_served_is_an_error(found: Found, conditions: dict[str, str]) -> None:
    assert found(crd=a_crd(**conditions)) == [("crd-not-served", CRD)]


def test_what_an_account_may_not_do_is_one_finding_for_each_role() -> None:
    denied = AccountAccess("operator", (*OPERATOR[:2], BESIDE[0]))
    own, beside = examine(healthy(operator_access=denied)).findings
    assert (own.kind.value, own.text) == ("operator-permission", "it may not get pods, list pods")
    assert beside.remedy == "kubectl apply -k manifests/, which binds the role system:kube-scheduler"


def test_what_the_agents_may_not_do_is_told(found: Found) -> None:
    assert found(agent_access=AccountAccess("agents", OPERATOR[:1])) == [("agent-permission", "agents")]


def test_the_lock_of_nodes_is_asked_about_only_over_hami(found: Found) -> None:
    denied = AccountAccess("operator", (OVER_HAMI,))
    assert found(operator_access=denied) == []
    node = a_gpu_node()
    del node["metadata"]["annotations"]["gpuledger.dev/gpus"]
    cards = '[{"id": "GPU-1", "count": 10, "devmem": 4096, "devcore": 100, "health": true}]'
    node["metadata"]["annotations"]["hami.io/node-nvidia-register"] = cards
    over = {"nodes": [node], "cards": {"gpu-1": "Ready"}, "our_pods": healthy().our_pods[:1]}  # type: ignore[index]
    assert found(operator_access=denied, **over) == [("over-hami-permission", "operator")]
    assert found(**over) == []


def test_a_clock_that_differs_from_the_servers_is_told(found: Found) -> None:
    assert found(local_time=NOW + timedelta(seconds=4)) == []
    for skew_s in (-60, 60):
        assert found(local_time=NOW + timedelta(seconds=skew_s)) == [("clock-skew-here", "this machine")]


@pytest.mark.parametrize(("renewed", "words"), [(LATE, "3600 s behind"), (EARLY, "3600 s ahead of")])
def test_a_living_node_that_writes_of_another_time_has_another_clock(renewed: str, words: str) -> None:
    leases = [{"metadata": {"name": NODE.name}, "spec": {"renewTime": renewed}}]
    (finding,) = examine(healthy(node_leases=leases)).findings
    assert (finding.kind.value, words in finding.text) == ("clock-skew-node", True)


def test_a_dead_node_has_no_clock(found: Found) -> None:
    node = a_gpu_node()
    node["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    leases = [{"metadata": {"name": NODE.name}, "spec": {"renewTime": LATE}}]
    assert found(nodes=[node], node_leases=leases) == []
