"""What the API server fills in and refuses by itself, with the policies of manifests/admission as they stand.

They hold for a whole cluster, so this one is not shared with other tests. Most requests here are dry runs: all of the
admission happens, and nothing is left behind.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.cluster import (
    CORES,
    COUNT,
    DEADLINE_S,
    DEVICES,
    MEMORY,
    MERGE_PATCH,
    NODES,
    PODS,
    Cluster,
    Connection,
    RequestFailed,
    container,
    devices,
    pod,
)
from cluster.dry_runs import DRY, as_user, bare, change, create
from cluster.kubernetes import FILLS_IN, apply_policies, needs_filling_in
from control_plane import ControlPlane, ControlPlaneError
from fakes.admission_cases import (
    ACCEPTED,
    COUNTED,
    COUNTED_BY_SUM,
    FOREIGN,
    HAMI_TOLD,
    HYGON_COUNT,
    PAST_THE_LEDGER,
    REFUSED,
    SHARED,
    VOLCANO_COUNT,
    VOLCANO_MEMORY,
    VOLCANO_TOLD,
    WITHIN_THE_LEDGER,
)
from fakes.objects import DIALECTS
from gpuledger.configuration.dialects import OWN_ANNOTATIONS, policies
from gpuledger.configuration.settings import Settings
from gpuledger.formats.dialects.request import pod_request, too_many_containers
from gpuledger.formats.kubernetes.stand_in import stand_in
from gpuledger.model.errors import BadInput
from installation import NAMESPACE, NO_KUBELET, NOTHING_RUNS, REPOSITORY, USER, Installation

pytestmark = pytest.mark.promise("admission")

Json = dict[str, Any]

PRIORITY = "nvidia.com/priority"

AGENT = f"system:serviceaccount:{NAMESPACE}:gpuledger-agent"
LABEL = "gpuledger.dev/managed"
QUOTAS = "/api/v1/namespaces/default/resourcequotas"
KINDS = frozenset(("validating", "mutating"))
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.yaml"))
RESEARCH = "research"
"""A namespace that opts in."""
FORGED = json.dumps({"main": [{"uuid": "GPU-0", "memoryMiB": 1, "cores": 1}]})


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Yield a cluster with gpuledger and the policies, once each of them is in force."""
    with ControlPlane.run() as plane:  # policies are in force for some time after they are deleted
        installation = Installation(plane, {**NO_KUBELET, **NOTHING_RUNS})
        installation.start()
        apply_policies(plane, Settings(hide_from_autoscalers=False))  # of which test_hiding.py is
        for name in ("ignored", "claims-not", RESEARCH):
            plane.kubectl("create", "namespace", name)
        plane.kubectl("label", "namespace", RESEARCH, "gpuledger.dev/admission=true")
        for name in ("nvidia", "nvidia-cdi", "gvisor"):
            running_class = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}}
            plane.kubectl("apply", "-f", "-", stdin=json.dumps({**running_class, "handler": "any"}))
        plane.kubectl("label", "namespace", "ignored", "gpuledger.dev/ignore=true")
        plane.kubectl("label", "namespace", "claims-not", "gpuledger.dev/ignore=false")
        running = Cluster(plane, installation)
        wait_until_in_force(running)
        yield running
        running.close()


def wait_until_in_force(cluster: Cluster) -> None:
    """Try what each policy changes or refuses, until it does."""
    user, ours = as_user(cluster.plane, "user"), as_user(cluster.plane, USER)
    agent = as_user(cluster.plane, AGENT)
    cluster.request("POST", PODS, pod("probe", {}, schedulerName="nobody"))
    cluster.request("POST", NODES, a_node("probe"))
    cluster.request("POST", QUOTAS, {"metadata": {"name": "probe"}, "spec": {"hard": {"pods": "900"}}})
    attempts: list[Callable[[], object]] = [
        lambda: create(user, pod("p", {COUNT: 1}, schedulerName="nobody")),
        lambda: create(user, pod("p", {}, annotations={DEVICES: FORGED})),
        lambda: create(user, pod("p", {}, annotations={HAMI_TOLD: ""})),
        lambda: create(user, of_spec(PAST_THE_LEDGER["all cards"][0]), RESEARCH),
        lambda: change(ours, f"{PODS}/probe", {"metadata": {"labels": {"a": "b"}}}),
        lambda: change(ours, f"{QUOTAS}/probe", {"metadata": {"labels": {"a": "b"}}}),
        lambda: change(agent, f"{NODES}/probe", {"metadata": {"labels": {"a": "b"}}}),
    ]
    for attempt in attempts:
        cluster.wait(lambda attempt=attempt: is_refused(attempt), "a policy refuses")  # type: ignore[misc]
    if FILLS_IN:
        cluster.wait(lambda: not is_refused(lambda: create(user, bare({COUNT: 1}))), "the scheduler is filled in")
        cluster.wait(lambda: LABEL in labels_of(create(user, bare({COUNT: 1}))), "pods are filled in")
    cluster.delete("probe")
    cluster.request("DELETE", f"{NODES}/probe")
    cluster.request("DELETE", f"{QUOTAS}/probe")
    for connection in (user, ours, agent):
        connection.close()


def of_spec(spec: Json) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "any"}, "spec": deepcopy(spec)}


def labels_of(stored: Json) -> Json:
    return dict(stored["metadata"].get("labels", {}))


def is_refused(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except RequestFailed as error:
        return "AdmissionPolicy" in str(error)
    return False


@pytest.fixture
def user(cluster: Cluster) -> Iterator[Connection]:
    connection = as_user(cluster.plane, "user")
    yield connection
    connection.close()


@pytest.fixture
def ours(cluster: Cluster) -> Iterator[Connection]:
    """Yield a connection of the operator's account, with more rights than it has: only the policies limit it."""
    connection = as_user(cluster.plane, USER)
    yield connection
    connection.close()


@pytest.fixture
def waiting(cluster: Cluster) -> Iterator[str]:
    """Yield the path of a pod that nobody schedules."""
    annotations = {HAMI_TOLD.replace("devices-to-allocate", "mode"): "hami-core", "team": "blue"}
    cluster.request("POST", PODS, pod("waiting", {}, annotations=annotations, schedulerName="nobody"))
    yield f"{PODS}/waiting"
    cluster.delete("waiting")


@pytest.fixture
def told(cluster: Cluster, ours: Connection, waiting: str) -> str:
    """Return the path of a pod that has been told its cards by our account."""
    ours.request("PATCH", waiting, {"metadata": {"annotations": {DEVICES: FORGED}}}, MERGE_PATCH)
    return waiting


def a_node(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": {"other": "1"}}}


@contextmanager
def refused(policy: str, sentence: str) -> Iterator[None]:
    """Expect that this policy refuses, and that what the user reads ends like this."""
    with pytest.raises(RequestFailed, match=rf"ValidatingAdmissionPolicy '{policy}'.*{re.escape(sentence)}$"):
        yield


# What is filled in.


@needs_filling_in
def test_a_pod_that_names_only_memory_gets_scheduler_label_and_count(user: Connection) -> None:
    stored = create(user, bare({MEMORY: 4000}))
    assert stored["spec"]["schedulerName"] == "gpuledger"
    assert stored["metadata"]["labels"] == {LABEL: "true"}
    (main,) = stored["spec"]["containers"]
    assert main["resources"] == {
        "limits": {MEMORY: "4k", COUNT: "1"},
        "requests": {MEMORY: "4k", COUNT: "1"},
    }


@needs_filling_in
@pytest.mark.parametrize(
    ("limits", "count"),
    COUNTED,
)
def test_the_count_that_is_added_is_of_the_same_words(user: Connection, limits: Json, count: str) -> None:
    (main,) = create(user, bare(limits))["spec"]["containers"]
    wanted = {name: str(amount) for name, amount in limits.items()} | {count: "1"}
    assert {name: amount.replace("4k", "4000") for name, amount in main["resources"]["limits"].items()} == wanted


@needs_filling_in
@pytest.mark.parametrize(("limits", "cards"), COUNTED_BY_SUM)
def test_sums_over_cards_get_the_number_of_cards_that_they_stand_for(
    user: Connection, limits: Json, cards: str
) -> None:
    (main,) = create(user, bare(limits))["spec"]["containers"]
    assert main["resources"]["limits"][SHARED] == main["resources"]["requests"][SHARED] == cards


@needs_filling_in
def test_hami_core_learns_the_priority_of_each_container_by_its_variable(user: Connection) -> None:
    body = bare({})
    body["spec"]["containers"] = [
        container({COUNT: 1, PRIORITY: 1}, "low"),
        container({COUNT: 1, PRIORITY: 0}, "high") | {"env": [{"name": "A", "value": "a"}]},
        container({COUNT: 1, PRIORITY: 1}, "own") | {"env": [{"name": "CUDA_TASK_PRIORITY", "value": "0"}]},
        container({COUNT: 1}, "none"),
    ]
    body["spec"]["initContainers"] = [container({COUNT: 1, PRIORITY: 1}, "early")]
    spec = create(user, body)["spec"]
    found = {
        each["name"]: [(variable["name"], variable["value"]) for variable in each.get("env", ())]
        for each in (*spec["initContainers"], *spec["containers"])
    }
    assert found == {
        "early": [("CUDA_TASK_PRIORITY", "1")],
        "low": [("CUDA_TASK_PRIORITY", "1")],
        "high": [("A", "a"), ("CUDA_TASK_PRIORITY", "0")],
        "own": [("CUDA_TASK_PRIORITY", "0")],
        "none": [],
    }


@needs_filling_in
def test_each_container_gets_its_own_count_and_init_containers_too(user: Connection) -> None:
    body = bare({})
    body["spec"]["containers"] = [
        container({}, "first"),
        container({MEMORY: 1}, "second"),
        container({MEMORY: 1, COUNT: 2}, "third"),
        container({VOLCANO_MEMORY: 1}, "fourth"),
    ]
    body["spec"]["initContainers"] = [container({}, "early"), container({CORES: 5}, "late", restartPolicy="Always")]
    spec = create(user, body)["spec"]
    found = {c["name"]: c["resources"].get("requests", {}) for c in [*spec["containers"], *spec["initContainers"]]}
    assert found == {
        "first": {},
        "second": {MEMORY: "1", COUNT: "1"},
        "third": {MEMORY: "1", COUNT: "2"},
        "fourth": {VOLCANO_MEMORY: "1", VOLCANO_COUNT: "1"},
        "early": {},
        "late": {CORES: "5", COUNT: "1"},
    }


@needs_filling_in
def test_a_pod_whose_init_container_alone_asks_is_ours(user: Connection) -> None:
    body = bare({})
    body["spec"]["initContainers"] = [container({COUNT: 1}, "early")]
    assert create(user, body)["spec"]["schedulerName"] == "gpuledger"


@needs_filling_in
def test_a_count_of_several_cards_and_other_labels_stay(user: Connection) -> None:
    body = bare({COUNT: 3})
    body["metadata"]["labels"] = {"app": "a"}
    stored = create(user, body)
    assert stored["metadata"]["labels"] == {"app": "a", LABEL: "true"}
    assert stored["spec"]["containers"][0]["resources"]["limits"] == {COUNT: "3"}


@pytest.mark.parametrize("limits", [{}, {"cpu": 1}, {COUNT: 0}, {"nvidia.com/priority": 1}, {"example.com/gpu": 1}])
def test_a_pod_that_asks_for_no_gpu_stays_as_it_is(user: Connection, limits: Json) -> None:
    stored = create(user, bare(limits))
    assert stored["spec"]["schedulerName"] == "default-scheduler"
    assert "labels" not in stored["metadata"]


@needs_filling_in
def test_what_a_pod_lacks_is_added_before_its_scheduler_and_its_cards_are_found(cluster: Cluster) -> None:
    """All of it together, with the rights that the manifests give: placing, waiting, waking, and the next one."""
    (node,) = cluster.add_nodes(1, gpus=1)
    for name in ("first", "second"):
        body = bare({MEMORY: 30_000})
        body["metadata"]["name"] = name
        cluster.create(body)
        if name == "first":
            (placed,) = cluster.wait_bound("first")
    assert devices(placed) == {"main": [{"uuid": node.cards[0].uuid, "memoryMiB": 30_000, "cores": 0}]}
    cluster.wait_refused("second", "no card with 30000 MiB free")
    cluster.delete("first")
    (placed,) = cluster.wait_bound("second")
    assert devices(placed)["main"][0]["uuid"] == node.cards[0].uuid
    cluster.clear()


# Which requests are refused.


@pytest.mark.parametrize(("limits", "sentence"), REFUSED, ids=lambda value: json.dumps(value)[:40])
def test_a_request_that_no_node_can_serve_is_refused_with_what_to_write(
    user: Connection, limits: Json, sentence: str
) -> None:
    with refused("gpuledger-requests", sentence):
        create(user, bare(limits))
    body = bare({})
    body["spec"]["initContainers"] = [container(limits, "early")]
    with refused("gpuledger-requests", sentence):
        create(user, body)


@pytest.mark.parametrize("limits", [limits for limits, _ in REFUSED], ids=json.dumps)
def test_what_the_policies_refuse_the_operator_refuses_too(limits: Json) -> None:
    with pytest.raises(BadInput):
        pod_request(pod("pod", limits), DIALECTS)


@needs_filling_in
@pytest.mark.parametrize("limits", ACCEPTED, ids=json.dumps)
def test_what_the_operator_accepts_the_policies_accept(user: Connection, limits: Json) -> None:
    pod_request(pod("pod", limits), DIALECTS)
    create(user, bare(limits))


def test_every_container_that_is_wrong_is_named(user: Connection) -> None:
    body = bare({})
    body["spec"]["containers"] = [
        container({CORES: 101}, "one"),
        container({}, "two"),
        container({CORES: 102}, "three"),
    ]
    means = "is more than 100; it is a percentage of each card's cores"
    with refused("gpuledger-requests", f"container one, {CORES}: 101 {means}; container three, {CORES}: 102 {means}"):
        create(user, body)


def test_a_pod_with_more_containers_with_gpus_than_a_search_should_take_is_refused(user: Connection) -> None:
    asking = [container({COUNT: 1}, f"c{number}") for number in range(9)]
    others = [container({}, f"other{number}") for number in range(9)]
    none = [container({COUNT: 0}, f"none{number}") for number in range(9)]
    create(user, pod("eight", *asking[:8], *others, *none))
    with refused("gpuledger-requests", too_many_containers(8)):
        create(user, pod("nine", *asking[:8], initContainers=asking[8:]))


def test_another_scheduler_is_refused_for_pods_that_ask_for_gpus(user: Connection) -> None:
    sentence = "its scheduler volcano does not know who has them: write spec.schedulerName: gpuledger"
    with refused("gpuledger-requests", sentence):
        create(user, pod("pod", {COUNT: 1}, schedulerName="volcano"))
    create(user, pod("pod", {COUNT: 0}, schedulerName="volcano"))
    create(user, pod("pod", {"cpu": 1}, schedulerName="volcano"))


@needs_filling_in
def test_a_node_by_hand_is_refused_for_pods_that_ask_for_gpus(user: Connection) -> None:
    with refused("gpuledger-requests", "to say which nodes it may use, write spec.nodeSelector"):
        create(user, bare({COUNT: 1}, nodeName="node"))
    create(user, bare({"cpu": 1}, nodeName="node"))


@pytest.mark.parametrize("namespace", ["ignored", "kube-system", NAMESPACE])
def test_pods_of_an_exempt_namespace_are_left_to_other_schedulers(user: Connection, namespace: str) -> None:
    told = {HAMI_TOLD: "", VOLCANO_TOLD: ""}
    body = bare({COUNT: 1, MEMORY: "4Gi"}, nodeName="node", annotations=told)
    # The operator's namespace allows only pods that could do no harm.
    body["spec"]["securityContext"] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    harmless = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    body["spec"]["containers"][0]["securityContext"] = harmless
    stored = create(user, body, namespace)
    assert stored["spec"]["schedulerName"] == "default-scheduler"
    assert "labels" not in stored["metadata"]
    assert stored["metadata"]["annotations"] == told


@needs_filling_in
def test_a_namespace_is_ignored_only_if_its_label_says_true(user: Connection) -> None:
    assert create(user, bare({COUNT: 1}), "claims-not")["spec"]["schedulerName"] == "gpuledger"


# Ways to cards that the ledger did not give.


@pytest.mark.parametrize("way", PAST_THE_LEDGER)
def test_a_pod_that_reaches_cards_without_a_share_is_refused_where_users_are(user: Connection, way: str) -> None:
    spec, sentence = PAST_THE_LEDGER[way]
    with pytest.raises(
        RequestFailed, match=rf"ValidatingAdmissionPolicy 'gpuledger-card-access'.*{re.escape(sentence)}"
    ):
        create(user, of_spec(spec), RESEARCH)
    create(user, of_spec(spec), "default")


@pytest.mark.parametrize("case", WITHIN_THE_LEDGER)
def test_a_pod_that_reaches_no_cards_but_those_of_its_share_is_created(user: Connection, case: str) -> None:
    create(user, of_spec(WITHIN_THE_LEDGER[case]), RESEARCH)


def test_a_container_that_is_added_to_a_pod_reaches_no_card_either(cluster: Cluster, user: Connection) -> None:
    path = f"/api/v1/namespaces/{RESEARCH}/pods"
    user.request("POST", path, of_spec({**WITHIN_THE_LEDGER["no cards"], "schedulerName": "nobody"}))
    for variables, is_let in (([], True), ([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}], False)):
        added = {"name": "debug", "image": "i", "env": variables}
        patch = {"spec": {"ephemeralContainers": [added]}}
        if is_let:
            change(user, f"{path}/any/ephemeralcontainers", patch)
            continue
        with pytest.raises(
            RequestFailed, match=r"'gpuledger-card-access'.*container debug sets NVIDIA_VISIBLE_DEVICES"
        ):
            change(user, f"{path}/any/ephemeralcontainers", patch)
    cluster.request("DELETE", f"{path}/any?gracePeriodSeconds=0")


# Who may write annotations.

ONLY_GPULEDGER = "leave it out of what you create, and as it is in what you change"


@pytest.mark.parametrize("namespace", ["default", "ignored", "kube-system"])
def test_nobody_else_creates_a_pod_with_our_annotation_anywhere(user: Connection, namespace: str) -> None:
    with refused("gpuledger-devices", ONLY_GPULEDGER):
        create(user, bare({}, annotations={DEVICES: FORGED}), namespace)


def test_our_account_creates_no_pods_but_stand_ins_for_nodes(ours: Connection) -> None:
    with refused("gpuledger-own-pods", "no pods but stand-ins for nodes, which nobody runs"):
        create(ours, bare({}, annotations={DEVICES: FORGED, HAMI_TOLD: ""}))
    create(ours, stand_in("stand-in-a", "a", {"pool": "gpus"}, [], {COUNT: "8"}), NAMESPACE)


@pytest.mark.parametrize("name", FOREIGN)
def test_nobody_else_creates_a_pod_that_steers_device_plugins(user: Connection, name: str) -> None:
    sentence = f"leave out the annotation {name}"
    with refused("gpuledger-foreign-devices", sentence):
        create(user, bare({}, annotations={name: "1", "team": "blue"}))


@needs_filling_in
def test_wishes_for_cards_and_any_other_annotation_may_be_created(user: Connection) -> None:
    wishes = {
        "hami.io/vgpu-mode": "hami-core",
        "volcano.sh/vgpu-use-gpuuuid": "GPU-0",
        "nvidia.com/use-gputype": "A100",
        "gpuledger.dev/use-gpuuuid": "GPU-0",
        "team": "blue",
    }
    assert create(user, bare({COUNT: 1}, annotations=wishes))["metadata"]["annotations"] == wishes


@pytest.mark.parametrize("subresource", ["", "/status"])
@pytest.mark.parametrize("value", [None, "{}"])
def test_nobody_else_changes_or_removes_our_annotation(
    user: Connection, told: str, subresource: str, value: str | None
) -> None:
    with refused("gpuledger-devices", ONLY_GPULEDGER):
        change(user, told + subresource, {"metadata": {"annotations": {DEVICES: value}}})


@pytest.mark.parametrize("subresource", ["", "/status"])
def test_nobody_else_adds_our_annotation(user: Connection, waiting: str, subresource: str) -> None:
    with refused("gpuledger-devices", ONLY_GPULEDGER):
        change(user, waiting + subresource, {"metadata": {"annotations": {DEVICES: FORGED}}})


@pytest.mark.parametrize(
    ("subresource", "patch"),
    [
        ("", {"metadata": {"annotations": {HAMI_TOLD: "", "hami.io/bind-phase": "success"}}}),
        ("", {"metadata": {"labels": {"a": "b"}}}),
        ("/status", {"status": {"phase": "Running"}}),
    ],
    ids=["device plugins", "users", "kubelets"],
)
def test_everything_else_of_a_pod_with_cards_may_change(
    user: Connection, told: str, subresource: str, patch: Json
) -> None:
    assert change(user, told + subresource, patch)["metadata"]["annotations"][DEVICES] == FORGED


def binding(**metadata: Any) -> Json:
    target = {"apiVersion": "v1", "kind": "Node", "name": "node"}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "waiting", **metadata}, "target": target}


@pytest.mark.parametrize("path", ["pods/waiting/binding", "bindings"])
@pytest.mark.parametrize(("name", "policy"), [(DEVICES, "gpuledger-devices"), (HAMI_TOLD, "gpuledger-foreign-devices")])
@pytest.mark.usefixtures("waiting")
def test_nobody_else_binds_a_pod_and_tells_it_its_cards(user: Connection, path: str, name: str, policy: str) -> None:
    with refused(policy, ""):
        user.request("POST", f"/api/v1/namespaces/default/{path}{DRY}", binding(annotations={name: FORGED}))


@pytest.mark.usefixtures("waiting")
def test_our_account_binds_with_annotations_and_others_without(user: Connection, ours: Connection) -> None:
    path = f"/api/v1/namespaces/default/pods/waiting/binding{DRY}"
    ours.request("POST", path, binding(annotations={DEVICES: FORGED, HAMI_TOLD: ""}))
    user.request("POST", path, binding(annotations={"team": "blue"}))
    user.request("POST", path, binding())


# What our own account may change.


@pytest.mark.parametrize("name", OWN_ANNOTATIONS)
@pytest.mark.parametrize("value", ["new", None])
def test_our_account_changes_the_annotations_that_it_has_to(
    ours: Connection, told: str, name: str, value: str | None
) -> None:
    stored = change(ours, told, {"metadata": {"annotations": {name: value}}})
    assert stored["metadata"]["annotations"].get(name) == value


@pytest.mark.parametrize("subresource", ["", "/status"])
@pytest.mark.parametrize(
    "annotations", [{"team": "red"}, {"team": None}, {"new": "1"}, {"gpuledger.dev/woken": "1", "new": "1"}]
)
def test_our_account_changes_no_other_annotation(
    ours: Connection, waiting: str, subresource: str, annotations: Json
) -> None:
    sentence = f"gpuledger changes only {', '.join(OWN_ANNOTATIONS)}"
    with refused("gpuledger-own-account", sentence):
        change(ours, waiting + subresource, {"metadata": {"annotations": annotations}})


def test_our_account_changes_neither_spec_nor_labels(ours: Connection, waiting: str) -> None:
    with refused("gpuledger-own-account", "spec is the user's"):
        change(ours, waiting, {"spec": {"activeDeadlineSeconds": 1}})
    with refused("gpuledger-own-account", "of pods"):
        change(ours, waiting, {"metadata": {"labels": {"a": "b"}}})
    with refused("gpuledger-own-account", "of pods"):
        change(ours, waiting, {"metadata": {"finalizers": ["example.com/a"]}})


def test_our_account_writes_the_status_as_a_scheduler_does(ours: Connection, waiting: str) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    assert change(ours, f"{waiting}/status", {"status": {"conditions": [condition]}})["status"]["conditions"]


@pytest.fixture
def quota(cluster: Cluster) -> Iterator[str]:
    """Yield the path of a ResourceQuota with keys of ours and of Kubernetes."""
    hard = {"limits.nvidia.com/gpumem": "9", "limits.cpu": "9", "pods": "900"}
    metadata = {"name": "gpus", "labels": {"a": "b"}}
    cluster.request("POST", QUOTAS, {"metadata": metadata, "spec": {"hard": hard}})
    cluster.patch(f"{QUOTAS}/gpus/status", {"status": {"hard": hard, "used": {"limits.cpu": "0", "pods": "1"}}})
    yield f"{QUOTAS}/gpus"
    cluster.request("DELETE", f"{QUOTAS}/gpus")


@pytest.mark.parametrize(
    "key",
    ["limits.nvidia.com/gpumem", "limits.nvidia.com/gpumem.A100", "gpuledger.dev/card-hours-per-month"],
)
def test_our_account_shows_what_is_used_of_the_keys_that_it_counts(ours: Connection, quota: str, key: str) -> None:
    for value in ("3", "4", None):
        assert change(ours, f"{quota}/status", {"status": {"used": {key: value}}})["status"]["used"].get(key) == value


@pytest.mark.parametrize(
    "used", [{"pods": "0"}, {"limits.cpu": "1"}, {"pods": None}, {"services": "1"}, {"gpuledger.dev/gpus": "1"}, None]
)
def test_our_account_shows_nothing_of_the_keys_of_others(ours: Connection, quota: str, used: Json | None) -> None:
    with refused("gpuledger-own-quotas", "gpuledger shows only what is used of limits.DOMAIN/NAME and of budgets"):
        change(ours, f"{quota}/status", {"status": {"used": used}})


@pytest.mark.parametrize(
    ("subresource", "patch"),
    [
        ("", {"spec": {"hard": {"limits.nvidia.com/gpumem": "10"}}}),
        ("", {"metadata": {"labels": {"a": "c"}}}),
        ("/status", {"status": {"hard": {"pods": "1"}}}),
    ],
    ids=["limits", "labels", "limits in force"],
)
def test_our_account_changes_nothing_else_of_a_quota(
    ours: Connection, quota: str, subresource: str, patch: Json
) -> None:
    with refused("gpuledger-own-quotas", "changes nothing of a ResourceQuota but what is used"):
        change(ours, quota + subresource, patch)


# What a node agent may change.

REPORT = {"metadata": {"annotations": {"gpuledger.dev/gpus": "[]"}}}


@pytest.fixture(scope="module")
def two_nodes(cluster: Cluster) -> Iterator[tuple[str, str]]:
    for name in ("own", "other"):
        cluster.request("POST", NODES, a_node(name))
        cluster.patch(f"{NODES}/{name}/status", {"status": {"capacity": {"cpu": "8", "pods": "110"}}})
    yield "own", "other"
    for name in ("own", "other"):
        cluster.request("DELETE", f"{NODES}/{name}")


@pytest.fixture(scope="module")
def agent(cluster: Cluster, two_nodes: tuple[str, str]) -> Iterator[Connection]:
    """Yield a connection with a real token of the agents' account, made for a pod on the first of the nodes."""
    plane, (own, _) = cluster.plane, two_nodes
    # The manifests' own role does not name nodes/status: here the policy alone stands in the way.
    plane.kubectl("create", "clusterrole", "agent", "--verb=get,patch", "--resource=nodes,nodes/status")
    bound_to = f"--serviceaccount={NAMESPACE}:gpuledger-agent"
    plane.kubectl("create", "clusterrolebinding", "agent", "--clusterrole=agent", bound_to)
    hardened = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    body = bare({}, nodeName=own, serviceAccountName="gpuledger-agent", securityContext=hardened)
    body["metadata"].update(name="agent", namespace=NAMESPACE)
    harmless = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    body["spec"]["containers"][0]["securityContext"] = harmless
    cluster.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body)
    bound = ("--bound-object-kind=Pod", "--bound-object-name=agent")
    token = plane.kubectl("create", "token", "gpuledger-agent", "-n", NAMESPACE, *bound).strip()
    connection = Connection(plane, identity={"Authorization": f"Bearer {token}"})
    yield connection
    connection.close()


@pytest.mark.parametrize("subresource", ["", "/status"])
def test_an_agent_reports_the_cards_of_its_own_node_only(
    agent: Connection, two_nodes: tuple[str, str], subresource: str
) -> None:
    own, other = two_nodes
    assert change(agent, f"{NODES}/{own}{subresource}", REPORT)["metadata"]["annotations"]["gpuledger.dev/gpus"] == "[]"
    with refused("gpuledger-agents", "a node agent changes its own node: its token is for node own, not for other"):
        change(agent, f"{NODES}/{other}{subresource}", REPORT)


def test_a_token_that_is_for_no_node_changes_none(cluster: Cluster, two_nodes: tuple[str, str]) -> None:
    unbound = as_user(cluster.plane, AGENT)
    with refused("gpuledger-agents", "its token is for no node, not for own"):
        change(unbound, f"{NODES}/{two_nodes[0]}", REPORT)
    unbound.close()


@pytest.mark.parametrize(
    ("subresource", "patch"),
    [
        ("", {"metadata": {"annotations": {"other": "2"}}}),
        ("", {"metadata": {"annotations": {"other": None}}}),
        ("", {"metadata": {"annotations": {"hami.io/node-nvidia-register": ""}}}),
        ("/status", {"metadata": {"annotations": {"other": "2"}}}),
        ("", {"metadata": {"labels": {"a": "b"}}}),
        ("", {"metadata": {"finalizers": ["example.com/a"]}}),
        ("", {"spec": {"unschedulable": True}}),
        ("/status", {"status": {"capacity": {COUNT: "80"}}}),
    ],
    ids=json.dumps,
)
def test_an_agent_changes_nothing_else_of_its_node(agent: Connection, subresource: str, patch: Json) -> None:
    with refused("gpuledger-agents", ""):
        change(agent, f"{NODES}/own{subresource}", patch)


SHOWN = {"volcano.sh/vgpu-memory": "196512", "volcano.sh/vgpu-cores": "800"}


@pytest.fixture
def may_show(cluster: Cluster, agent: Connection) -> Iterator[None]:
    """Have the policy that goes with `volcano_capacity`, and later the usual one again."""

    def shows() -> bool:
        try:
            change(agent, f"{NODES}/own/status", {"status": {"capacity": SHOWN, "allocatable": SHOWN}})
        except RequestFailed:
            return False
        return True

    def apply(settings: Settings) -> None:
        file = cluster.plane.directory / "agents.yaml"
        file.write_text(policies(settings, frozenset({"agents"})))
        cluster.plane.kubectl("apply", "-f", str(file))
        cluster.wait(lambda: shows() == settings.volcano_capacity, "the policy is in force")

    apply(Settings(volcano_capacity=True))
    yield
    apply(Settings())


NOT_SHOWN: list[Json] = [
    {"capacity": {COUNT: "80"}},
    {"allocatable": {"cpu": "1"}},
    {"capacity": {"pods": None}},
    {"capacity": None},
    {"conditions": [{"type": "Ready", "status": "True"}]},
    {"nodeInfo": {"kernelVersion": "6"}},
]


@pytest.mark.usefixtures("may_show")
def test_an_agent_that_shows_amounts_changes_these_two_of_its_node_and_nothing_else(agent: Connection) -> None:
    for status in NOT_SHOWN:
        with refused("gpuledger-agents", ""):
            change(agent, f"{NODES}/own/status", {"status": status})
    with refused("gpuledger-agents", "its token is for node own, not for other"):
        change(agent, f"{NODES}/other/status", {"status": {"capacity": SHOWN}})


@pytest.mark.usefixtures("two_nodes")
def test_other_accounts_change_nodes_as_before(user: Connection) -> None:
    change(user, f"{NODES}/own", {"metadata": {"labels": {"a": "b"}, "annotations": {"gpuledger.dev/gpus": "[]"}}})


# The files.


@needs_filling_in
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_the_examples_are_accepted_with_their_scheduler_named_or_not(user: Connection, file: Path) -> None:
    for document in yaml.safe_load_all(file.read_text()):
        spec = document["spec"].get("template", document)["spec"]
        for scheduler in ("gpuledger", "default-scheduler"):
            body: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "example"}, "spec": dict(spec)}
            body["spec"]["schedulerName"] = scheduler
            assert create(user, body)["spec"]["schedulerName"] == "gpuledger"


@needs_filling_in
def test_a_name_with_characters_that_mean_something_in_cel_stays_a_name(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    settings = Settings().changed({"resource_memory": "example.com/it's~\\memory", "vendors": []})
    file.write_text(policies(settings, KINDS))
    cluster.plane.kubectl("apply", "--dry-run=server", "-f", str(file))


# Other settings.

NOT_HIDDEN = {"hide_from_autoscalers": False}


@pytest.fixture(scope="module")
def renamed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """Yield a user of a cluster with Volcano's compatible set-up, and three names of schedulers."""
    changed: Json = {"volcano_count": COUNT, "scheduler_name": "own"}
    changed |= {"extra_scheduler_names": ["volcano", "hami-scheduler"], "node_taint": "volcano.sh/vgpu=hami:NoSchedule"}
    file = tmp_path_factory.mktemp("policies") / "policies.yaml"
    file.write_text(policies(Settings().changed({**changed, **NOT_HIDDEN, "default_gpus": 2, "vendors": []}), KINDS))
    with ControlPlane.run() as plane:  # beside the other policies, none of these could be told
        plane.kubectl("apply", "-f", str(file))
        connection = as_user(plane, "user")
        deadline = time.monotonic() + DEADLINE_S
        while not (  # the second one is refused as long as its scheduler is not filled in
            is_refused(lambda: create(connection, pod("p", {COUNT: 1}, schedulerName="nobody")))
            and not is_refused(lambda: create(connection, bare({MEMORY: 1})))
        ):
            assert time.monotonic() < deadline, "the policies are not in force"
            time.sleep(0.05)
        yield connection
        connection.close()


@needs_filling_in
@pytest.mark.parametrize("memory", [MEMORY, VOLCANO_MEMORY])
def test_with_one_name_for_both_counts_that_one_is_added(renamed: Connection, memory: str) -> None:
    stored = create(renamed, bare({memory: 1}))
    assert stored["spec"]["containers"][0]["resources"]["limits"] == {memory: "1", COUNT: "2"}


@needs_filling_in
def test_a_word_that_is_not_in_the_settings_is_left_to_others(renamed: Connection) -> None:
    for name in (VOLCANO_COUNT, HYGON_COUNT):
        assert create(renamed, bare({name: 1}))["spec"]["schedulerName"] == "default-scheduler"


TOLERATED = {"key": "volcano.sh/vgpu", "operator": "Equal", "value": "hami", "effect": "NoSchedule"}


@needs_filling_in
def test_pods_with_gpus_tolerate_the_taint_of_our_nodes_and_others_do_not(renamed: Connection) -> None:
    for spec in ({}, {"tolerations": [{"key": "other", "operator": "Exists"}]}):
        assert TOLERATED in create(renamed, bare({COUNT: 1}, **spec))["spec"]["tolerations"]
        assert TOLERATED not in (create(renamed, bare({"cpu": 1}, **spec))["spec"].get("tolerations") or [])


@needs_filling_in
@pytest.mark.parametrize("key", ["volcano.sh/vgpu", None])
def test_a_toleration_of_the_pods_own_is_left_as_it_is(renamed: Connection, key: str | None) -> None:
    """A pod that tolerates the taint in its own way, or every taint, needs nothing."""
    own = {"operator": "Exists"} | ({"key": key} if key else {})
    stored = create(renamed, bare({COUNT: 1}, tolerations=[own]))["spec"]["tolerations"]
    assert own in stored
    assert TOLERATED not in stored


@needs_filling_in
@pytest.mark.parametrize("scheduler", ["own", "volcano", "hami-scheduler"])
def test_a_pod_keeps_the_one_of_our_names_that_it_has(renamed: Connection, scheduler: str) -> None:
    stored = create(renamed, pod("pod", {COUNT: 1}, schedulerName=scheduler))
    assert stored["spec"]["schedulerName"] == scheduler
    with refused("gpuledger-requests", "write spec.schedulerName: own or volcano or hami-scheduler"):
        create(renamed, pod("pod", {COUNT: 1}, schedulerName="gpuledger"))


def test_the_api_server_warns_of_words_without_effect_and_of_typos_and_refuses_none(cluster: Cluster) -> None:
    odd = pod("odd", {COUNT: 1, "nvidia.com/gpumen": 1}, annotations={"volcano.sh/queue-name": "q"})
    cluster.wait(lambda: "is not known" in warnings_of(cluster, odd), "the policy is in force")
    said = warnings_of(cluster, odd)
    assert "resource nvidia.com/gpumen is not known; known are nvidia.com/gpu, nvidia.com/gpumem" in said
    assert "annotation volcano.sh/queue-name has no effect. For Volcano" in said
    assert "docs/limits.md" in warnings_of(cluster, pod("vm", {COUNT: 1}) | {"metadata": VM})
    cluster.create(odd)
    cluster.delete("odd")
    assert warnings_of(cluster, pod("mig", {COUNT: 1, "nvidia.com/mig-1g.5gb": 1, "nvidia.com/gpu.shared": 1})) == ""
    assert warnings_of(cluster, pod("right", {COUNT: 1, MEMORY: 100})) == ""


VM = {"name": "vm", "namespace": "default", "labels": {"kubevirt.io": "virt-launcher"}}


def warnings_of(cluster: Cluster, new: Json) -> str:
    """Return what kubectl would print as warnings if this were created."""
    try:
        cluster.plane.kubectl("create", "--dry-run=server", "--warnings-as-errors", "-f", "-", stdin=json.dumps(new))
    except ControlPlaneError as error:
        return str(error)
    return ""
