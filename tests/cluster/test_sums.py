"""What containers ask for in sum, written by admission: by the policy and by the webhook, on a real API server.

Both hold for a whole cluster, so these two are not shared with other tests.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest

from cluster.cluster import COUNT, MEMORY, MERGE_PATCH, PERCENT, Cluster, Connection, RequestFailed, container, pod
from cluster.dry_runs import as_user, bare, create
from cluster.kubernetes import FILLS_IN, MINOR
from cluster.training_jobs import TRAINING, TRAINING_JOBS, create_kind, sent, template_of, tried
from control_plane import ControlPlane, free_port
from effort import seeds_for, times
from fakes.sum_cases import LARGE, SMALL, SUM_CORES, SUM_GPUS, SUM_MEMORY, SUM_MODELS, SUMMED, random_pod
from gpuledger.configuration.dialects import admission_rules
from gpuledger.configuration.settings import Settings
from gpuledger.formats.admission.webhook import filled_in
from gpuledger.formats.dialects.request import pod_request
from gpuledger.formats.quantity import whole_number
from gpuledger.model.errors import BadInput, EventReason
from installation import NO_KUBELET, Installation

Json = dict[str, Any]

RULES = admission_rules(Settings().changed({"sum_models": SUM_MODELS}))
SUMS = (SUM_MEMORY, SUM_CORES, SUM_GPUS)
PODS_AT_RANDOM = times(80, 3000)
EVENTS = "/api/v1/namespaces/default/events"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
QUOTAS = "/api/v1/namespaces/default/resourcequotas"


@dataclass(frozen=True)
class Summing:
    """A cluster in which one of the two writes sums."""

    how: str
    cluster: Cluster
    user: Connection


@pytest.fixture(scope="module", params=["policies", "webhook"])
def summing(request: pytest.FixtureRequest) -> Iterator[Summing]:
    if request.param == "policies" and not FILLS_IN:
        pytest.skip(f"policies of Kubernetes {MINOR} fill in no pods")
    with ControlPlane.run(every_controller=True) as plane:  # with policies, and the controller of quotas
        certificate, key = map(str, plane.serving_files)
        port = free_port()
        settings: Json = {**NO_KUBELET, "sum_models": SUM_MODELS}
        if request.param == "webhook":
            settings |= {"webhook_host": "127.0.0.1", "webhook_port": port}
            settings |= {"webhook_cert_file": certificate, "webhook_key_file": key}
        installation = Installation(plane, settings)
        installation.start()
        cluster, user = Cluster(plane, installation), as_user(plane, "user")
        arguments = ["admission-policies"]
        if request.param == "webhook":
            arguments = ["webhook-config", "--url", f"https://127.0.0.1:{port}", "--ca-file", certificate]
        command = [sys.executable, "-m", "gpuledger", *arguments, "--kind", "mutating"]
        command += ["--settings", str(installation.settings_file)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        plane.kubectl("apply", "-f", "-", stdin=printed)
        for group in TRAINING:
            create_kind(cluster, group)
        cluster.wait(lambda: SUM_MEMORY in limits(sent(user, bare({COUNT: 1}))), "pods are filled in")
        for body in (job({COUNT: 1}), *TRAINING_JOBS):
            cluster.wait(lambda body=body: SUM_MEMORY in tried(user, body), "templates are filled in")  # type: ignore[misc]
        yield Summing(request.param, cluster, user)
        user.close()
        cluster.close()


@pytest.fixture
def quota(summing: Summing) -> Iterator[None]:
    """Have the namespace limited to 9000 MiB, until the test ends; nothing of it stays."""
    cluster = summing.cluster
    hard = {f"requests.{SUM_MEMORY}": "9000"}
    cluster.request("POST", QUOTAS, {"metadata": {"name": "gpus"}, "spec": {"hard": hard}})
    cluster.wait(lambda: charged(cluster) == 0, "the quota is counted")
    yield
    cluster.request("DELETE", QUOTAS)
    cluster.request("DELETE", f"{JOBS}?propagationPolicy=Background")
    cluster.clear()


def job(*containers: Json, name: str = "job", **spec: object) -> Json:
    template = {"spec": {**pod("any", *containers)["spec"], "restartPolicy": "Never"}}
    del template["spec"]["schedulerName"]
    body: Json = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}}
    return {**body, "spec": {"template": template, "backoffLimit": 0, **spec}}


def limits(found: Json, index: int = 0) -> Json:
    return dict(found["spec"]["containers"][index]["resources"].get("limits") or {})


def sums_in(part: Json) -> tuple[int, int, int]:
    memory, cores, gpus = (whole_number(part.get(name, 0)) for name in SUMS)
    return memory, cores, gpus


def charged(cluster: Cluster) -> int:
    """Return what the quota counts; less than nothing where it is not looked at yet."""
    (found,) = cluster.request("GET", QUOTAS)["items"]
    used = (found.get("status") or {}).get("used") or {}
    return whole_number(used[f"requests.{SUM_MEMORY}"]) if used else -1


@pytest.mark.parametrize(("asked", "wanted"), SUMMED, ids=lambda value: json.dumps(value)[:60])
def test_a_container_gets_its_cards_times_what_it_asks_for_of_each(
    summing: Summing, asked: Json, wanted: tuple[int, int, int]
) -> None:
    (main,) = create(summing.user, bare(asked))["spec"]["containers"]
    assert sums_in(main["resources"]["limits"]) == sums_in(main["resources"]["requests"]) == wanted


@pytest.mark.parametrize("seed", seeds_for("sums", 2))
def test_any_pod_is_written_as_the_operator_reads_it(summing: Summing, seed: int) -> None:
    """The policy says in CEL what sums.py says in Python."""
    choose, compared = random.Random(seed), 0  # noqa: S311 - no secret
    for number in range(PODS_AT_RANDOM):
        body = random_pod(number, choose)
        try:
            request = pod_request(body, RULES.dialects)
        except BadInput:
            continue
        if request is None and summing.how == "webhook":  # which is not asked about pods without cards
            continue
        wanted = filled_in(body, RULES)["spec"]
        stored = create(summing.user, deepcopy(body))["spec"]
        for field in ("containers", "initContainers"):
            for ours, theirs in zip(wanted.get(field, ()), stored.get(field, ()), strict=True):
                for part in ("limits", "requests"):
                    found, expected = (sums_in(each["resources"].get(part) or {}) for each in (theirs, ours))
                    assert found == expected, json.dumps(body)
        compared += request is not None
    assert compared > PODS_AT_RANDOM // 4


def test_a_user_can_understate_nothing(summing: Summing) -> None:
    little = dict.fromkeys(SUMS, 1)
    body = bare({})
    body["spec"]["containers"] = [container({COUNT: 2, MEMORY: 4000, **little}), container(little, "other")]
    main, other = create(summing.user, body)["spec"]["containers"]
    assert sums_in(main["resources"]["limits"]) == sums_in(main["resources"]["requests"]) == (8000, 0, 2)
    assert not {*SUMS} & {*other["resources"].get("limits", {}), *other["resources"].get("requests", {})}
    for asked, wanted in (({COUNT: 2, MEMORY: 4000}, (8000, 0, 2)), ({"cpu": 1}, (0, 0, 0))):
        stored = sent(summing.user, job(container({**asked, **little})))["spec"]["template"]
        assert sums_in(limits(stored)) == wanted


@pytest.mark.parametrize(
    ("fields", "memory_mib"),
    [
        ({"annotations": {"nvidia.com/use-gputype": "T4"}}, SMALL[1]),
        ({"annotations": {"gpuledger.dev/nouse-gputype": "a100"}}, SMALL[1]),
        ({"nodeSelector": {"nvidia.com/gpu.product": "Tesla-T4"}}, SMALL[1]),
        ({"annotations": {"nvidia.com/use-gputype": "T4,A100"}}, LARGE[1]),
        ({"annotations": {"nvidia.com/use-gputype": "H100"}}, LARGE[1]),
    ],
)
def test_whole_cards_count_as_the_models_that_the_pod_may_get(summing: Summing, fields: Json, memory_mib: int) -> None:
    assert sums_in(limits(create(summing.user, bare({COUNT: 2}, **fields))))[0] == 2 * memory_mib


def test_a_pod_of_another_scheduler_and_one_without_cards_stay_as_they_are(summing: Summing) -> None:
    assert limits(create(summing.user, pod("pod", {COUNT: 1}, schedulerName="another"))) == {COUNT: "1"}
    assert limits(create(summing.user, bare({"cpu": 1}))) == {"cpu": "1"}


@pytest.mark.parametrize("body", TRAINING_JOBS, ids=lambda body: body["kind"])
def test_templates_of_training_jobs_get_sums_and_where_numbers_are_plain_too(summing: Summing, body: Json) -> None:
    plain = json.loads(json.dumps(body).replace('"2"', "2").replace('"4000"', "4000"))
    for each in (body, plain):
        stored = json.dumps(sent(summing.user, each))
        assert stored.count(f'"{SUM_MEMORY}": "8000"') == 2
        assert stored.count(f'"{SUM_GPUS}": "2"') == 2


def test_a_suspended_job_that_is_started_keeps_its_sums(summing: Summing) -> None:
    """What Kueue does: it adds a node selector, too. A Job that then said something else would be refused."""
    stored = summing.user.request("POST", JOBS, job({COUNT: 1}, name="queued", suspend=True))
    selector = {"nvidia.com/gpu.product": "Tesla-T4"}
    change = {"spec": {"suspend": False, "template": {"spec": {"nodeSelector": selector}}}}
    started = summing.user.request("PATCH", f"{JOBS}/queued", change, MERGE_PATCH)
    assert started["spec"]["template"]["spec"]["nodeSelector"] == selector
    of_the_job = limits(started["spec"]["template"])
    assert sums_in(of_the_job) == sums_in(limits(stored["spec"]["template"])) == (LARGE[1], 100, 1)
    summing.user.request("DELETE", f"{JOBS}/queued?propagationPolicy=Background")
    summing.cluster.clear()


def test_a_template_that_changes_gets_new_sums_and_other_changes_leave_it_alone(summing: Summing) -> None:
    path = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
    spec = {"pytorchReplicaSpecs": {"Worker": {"template": template_of({COUNT: 1, MEMORY: 1000})}}}
    body = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "changing"}, "spec": spec}
    stored = summing.user.request("POST", path, body)
    stored["metadata"]["labels"] = {"a": "b"}
    again = summing.user.request("PUT", f"{path}/changing", stored)
    assert again["spec"] == stored["spec"]
    template = again["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    template["spec"]["containers"][0]["resources"]["limits"][MEMORY] = "3000"
    changed = summing.user.request("PUT", f"{path}/changing", again)
    template = changed["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    assert sums_in(limits(template)) == (3000, 0, 1)
    del template["spec"]["containers"][0]["resources"]["limits"][MEMORY]
    template["metadata"] = {"annotations": {"nvidia.com/use-gputype": "A100"}}
    whole = summing.user.request("PUT", f"{path}/changing", changed)
    template = whole["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    assert sums_in(limits(template)) == (LARGE[1], 100, 1)
    template["metadata"]["annotations"]["nvidia.com/use-gputype"] = "T4"
    smaller = summing.user.request("PUT", f"{path}/changing", whole)
    assert sums_in(limits(smaller["spec"]["pytorchReplicaSpecs"]["Worker"]["template"])) == (SMALL[1], 100, 1)
    summing.user.request("DELETE", f"{path}/changing")


@pytest.mark.usefixtures("quota")
def test_a_resource_quota_adds_up_two_containers_rightly_and_refuses_what_is_more(summing: Summing) -> None:
    """9000 MiB are (1 card, 1000) and (2 cards, 4000), where a product of sums would be 3 x 5000."""
    two = [container({COUNT: 1, MEMORY: 1000}, "one"), container({COUNT: 2, MEMORY: 4000}, "two")]
    body = pod("fits", *two)
    with pytest.raises(RequestFailed, match=rf"^403: .*exceeded quota: gpus, requested: requests.{SUM_MEMORY}=9001"):
        create(summing.user, pod("more", {COUNT: 1, MEMORY: 9001}))
    for more in ({COUNT: 1}, {COUNT: 1, PERCENT: 25}):
        with pytest.raises(RequestFailed, match=r"^403: .*exceeded quota"):
            create(summing.user, pod("more", more))
    summing.cluster.create(body)
    summing.cluster.wait(lambda: charged(summing.cluster) == 9000, "both containers are counted")
    with pytest.raises(RequestFailed, match=r"^403: .*exceeded quota"):
        create(summing.user, pod("one-more", {COUNT: 1, MEMORY: 1}))


@pytest.mark.usefixtures("quota")
def test_a_job_and_its_pod_say_the_same_and_the_pod_starts_though_no_node_has_such_resources(
    summing: Summing,
) -> None:
    cluster = summing.cluster
    cluster.add_nodes(1, gpus=3)
    stored = summing.user.request("POST", JOBS, job(container({COUNT: 2, MEMORY: 4000})))
    (of_the_job,) = stored["spec"]["template"]["spec"]["containers"]
    cluster.wait(lambda: len(cluster.pods()) == 1, "the Job has its pod")
    (name,) = cluster.pods()
    (placed,) = cluster.wait_bound(name)
    (of_the_pod,) = placed["spec"]["containers"]
    for part in ("limits", "requests"):
        assert sums_in(of_the_pod["resources"][part]) == sums_in(of_the_job["resources"][part]) == (8000, 0, 2)
    assert EventReason.WORDS_WITHOUT_EFFECT not in {
        event["reason"] for event in cluster.request("GET", EVENTS)["items"]
    }
    for node in cluster.request("GET", "/api/v1/nodes")["items"]:
        assert not {*SUMS} & node["status"]["allocatable"].keys()
