"""The operator, the kube-schedulers beside it, and their settings."""

import copy
from dataclasses import asdict
from typing import Any

import pytest

from fakes.doctor_facts import HOST, a_daemon_set, a_deployment, a_lease, healthy, our_pod
from fakes.objects import a_pod_object, with_conditions
from gpuledger.configuration.settings import Settings
from gpuledger.doctor.examination import examine
from gpuledger.doctor.reading import release_for
from unit.doctor.conftest import Found

Json = dict[str, Any]

DEPLOYMENT = "Deployment gpuledger-system/gpuledger"
LEASE = "Lease gpuledger-system/gpuledger-scheduler"


def agents() -> list[Json]:
    pods = healthy().our_pods
    assert isinstance(pods, list)
    return pods[1:]


def test_settings_that_differ_name_the_options() -> None:
    other = asdict(Settings(resource_count="example.com/gpu", scheduler_name="mine"))
    (finding,) = examine(healthy(settings={"A": asdict(Settings()), "B": other})).findings
    assert (finding.kind.value, finding.where) == ("settings-differ", "B")
    assert finding.text == (
        "not as in A: resource_count is 'example.com/gpu' and 'nvidia.com/gpu', "
        "scheduler_name is 'mine' and 'gpuledger'"
    )


def test_no_pod_of_the_operator_is_an_error(found: Found) -> None:
    assert ("operator-absent", DEPLOYMENT) in found(our_pods=agents())
    finished = our_pod(HOST, "gpuledger", phase="Failed")
    assert ("operator-absent", DEPLOYMENT) in found(our_pods=[finished, *agents()])


def test_an_operator_that_answers_elsewhere_needs_no_pod_and_no_lease(found: Found) -> None:
    here = found(our_pods=agents(), lease=None, deployment=a_deployment(replicas=0))
    assert [kind for kind, _ in here] == ["operator-absent", "lease-not-held"]
    where = "http://127.0.0.1:8891"
    assert not found(our_pods=agents(), lease=None, deployment=a_deployment(replicas=0), operator_elsewhere=where)


@pytest.mark.parametrize(
    ("kind", "state", "words"),
    [
        ("initContainerStatuses", {"terminated": {"exitCode": 1}}, "container main: ended with 1"),
        ("containerStatuses", {"waiting": {"reason": "ImagePullBackOff"}}, "container main: ImagePullBackOff"),
        ("containerStatuses", {"running": {}}, "container main runs, but reports that it is not ready"),
    ],
)
def test_a_pod_that_is_not_ready_says_why(kind: str, state: Json, words: str) -> None:
    status: Json = {kind: [{"name": "main", "ready": False, "state": state}]}
    pods = [our_pod(HOST, "gpuledger", ready=False, **status), *agents()]
    findings = {each.kind.value: each.text for each in examine(healthy(our_pods=pods)).findings}
    assert findings.keys() == {"operator-not-ready", "leader-not-ready"}
    assert all(words in text for text in findings.values())


def test_a_second_pod_that_is_not_ready_is_a_warning(found: Found) -> None:
    second = our_pod("gpuledger-1", "gpuledger", ready=False)
    assert found(our_pods=[our_pod(HOST, "gpuledger"), second, *agents()]) == [("operator-degraded", DEPLOYMENT)]


def test_a_second_pod_that_is_missing_is_a_warning(found: Found) -> None:
    deployment = a_deployment()
    deployment["spec"]["replicas"] = 2
    assert found(deployment=deployment) == [("operator-degraded", DEPLOYMENT)]


def test_images_of_another_release_are_told_and_those_without_one_are_not(found: Found) -> None:
    agents_image = a_daemon_set("registry.example:5000/gpuledger:0.0.9@sha256:1234")
    assert found(daemon_set=agents_image) == [("release-differs", "DaemonSet gpuledger-system/gpuledger-agent")]
    assert found(daemon_set=a_daemon_set("gpuledger:latest")) == []
    assert found(daemon_set=None, deployment=None) == []


def test_a_pod_without_a_node_says_what_its_scheduler_says() -> None:
    waiting = our_pod(HOST, "gpuledger", ready=False, node="")
    waiting = with_conditions(waiting, [{"type": "PodScheduled", "status": "False", "message": "no room"}])
    findings = examine(healthy(our_pods=[waiting, *agents()])).findings
    assert "it has no node: no room" in findings[0].text


def test_somebody_has_to_hold_the_lease(found: Found) -> None:
    assert found(lease=None) == [("lease-not-held", LEASE)]
    assert found(lease=a_lease(holder="")) == [("lease-not-held", LEASE)]


def test_a_lease_has_to_be_renewed(found: Found) -> None:
    assert found(lease=a_lease("2030-01-01T11:59:41Z")) == []  # 19 s: it is due after 15, and clocks tell seconds
    assert found(lease=a_lease("2030-01-01T11:59:39Z")) == [("lease-expired", LEASE)]


def test_a_leader_without_a_pod_is_told(found: Found) -> None:
    assert found(lease=a_lease(holder="laptop_1")) == [("leader-unknown", LEASE)]


def test_what_the_scheduler_could_not_ask_is_told_with_its_pods() -> None:
    def failed(name: str) -> Json:
        said = {"type": "PodScheduled", "status": "False", "reason": "SchedulerError", "message": "connection refused"}
        return with_conditions(a_pod_object(name), [said])

    others = with_conditions(a_pod_object("waits"), [{"type": "PodScheduled", "reason": "Unschedulable"}])
    (finding,) = examine(healthy(pods=[failed("a"), failed("b"), others])).findings
    assert (finding.kind.value, finding.text) == (
        "scheduler-error",
        "connection refused (for default/a, default/b)",
    )


def config(**settings: Any) -> Json:
    return copy.deepcopy(release_for(Settings(**settings)).scheduler_config)


def problems(found: Json, settings: Settings | None = None) -> list[str]:
    findings = examine(healthy(settings, scheduler_configs={"a file": found})).findings
    assert {(each.kind.value, each.where) for each in findings} <= {("scheduler-config", "a file")}
    return [each.text for each in findings]


def test_a_configuration_that_goes_with_the_settings_may_have_more() -> None:
    own = config()
    own["profiles"].append({"schedulerName": "mine"})
    own["extenders"].insert(0, {"urlPrefix": "http://other", "filterVerb": "choose"})
    own["clientConnection"] = {"qps": 50}
    assert problems(own) == []


def test_a_configuration_has_to_name_the_same_resources() -> None:
    without = Settings(resource_claims=False)
    (missing, others) = problems(config(resource_count="example.com/gpu", resource_claims=False), without)
    assert missing == "its extender does not manage nvidia.com/gpu, which the settings have"
    assert others == "its extender manages example.com/gpu, which the settings do not have"


def test_a_configuration_has_to_leave_claims_and_resources_to_the_extender() -> None:
    (others,) = problems(config(resource_count="example.com/gpu"))
    assert others == "its profile gpuledger does not leave nvidia.com/gpu to the extender (ignoredResources)"
    managed, itself, resources = problems(config(resource_claims=False))
    assert managed == "its extender has managedResources, so it is not asked about pods that bring ResourceClaims"
    assert itself.startswith("its profile gpuledger does not disable DynamicResources")
    assert resources.startswith("its profile gpuledger does not leave ")


def test_the_secret_in_a_configuration_is_neither_compared_nor_shown() -> None:
    own = config()
    own["extenders"][0]["urlPrefix"] = "http://kube-scheduler:s3cret@127.0.0.1:8888"
    assert problems(own) == []
    (url,) = problems(own, Settings(listen_port=1))
    assert url == "no extender at http://127.0.0.1:1, where the operator listens; there is http://127.0.0.1:8888"


def test_a_configuration_has_to_name_extender_profiles_and_verbs() -> None:
    (url,) = problems(config(listen_port=1))
    assert url == "no extender at http://127.0.0.1:8888, where the operator listens; there is http://127.0.0.1:1"
    (profile,) = problems(config(), Settings(extra_scheduler_names=("volcano",)))
    assert profile.startswith("it has no profile named volcano")
    without_bind = config()
    del without_bind["extenders"][0]["bindVerb"]
    assert problems(without_bind) == ["its extender differs in bindVerb"]
    assert problems({"profiles": config()["profiles"]}) == [
        "no extender at http://127.0.0.1:8888, where the operator listens; there is none"
    ]


def test_the_deployments_scheduler_has_its_settings_from_the_same_file(found: Found) -> None:
    assert found(deployment=a_deployment(), scheduler_configs={}) == []
