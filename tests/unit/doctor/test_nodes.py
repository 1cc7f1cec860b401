"""Nodes with GPUs: why they have no inventory, and why containers get no cards."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fakes.doctor_facts import HOST, NODE, a_gpu_node, an_agent, asking_elsewhere, healthy, our_pod
from fakes.objects import COUNTS, a_pod_object
from gpuledger.configuration.settings import Settings
from gpuledger.doctor.examination import examine
from gpuledger.doctor.facts import Unread, last_complaint
from gpuledger.doctor.node_checks import REGISTERS_S
from gpuledger.formats.kubernetes.node import REGISTER_ANNOTATION, register_of
from unit.doctor.conftest import Found

Json = dict[str, Any]

OPERATOR = our_pod(HOST, "gpuledger")
WHERE = f"node {NODE.name}"
SHARED = {"gpuledger.dev/agent": "true"}
HAMI = "hami.io/node-nvidia-register"


def bare(labels: dict[str, str] | None = None) -> Json:
    """Return the node without a register, and with nothing to offer."""
    node = a_gpu_node(labels)
    del node["metadata"]["annotations"][REGISTER_ANNOTATION]
    node["status"]["allocatable"] = {"cpu": "64"}
    return node


def hami(cards: int = 2, scores: str | None = None) -> Json:
    """Return the node as HAMi's device plugin has it."""
    node = bare()
    listed = [{"id": f"GPU-{n}", "index": n, "count": 10, "devmem": 4096, "devcore": 100} for n in range(cards)]
    node["metadata"]["annotations"][HAMI] = json.dumps([{**card, "health": True} for card in listed])
    if scores is not None:
        node["metadata"]["annotations"]["hami.io/node-nvidia-score"] = scores
    node["status"]["allocatable"] |= {"nvidia.com/gpu": "20"}
    return node


IN_LEDGER = dict.fromkeys(("gpu-0", "gpu-1"), "Ready")


def test_a_node_that_should_have_an_agent_and_has_none(found: Found) -> None:
    assert found(nodes=[bare(SHARED)], our_pods=[OPERATOR]) == [("agent-absent", WHERE)]


def test_an_agent_that_is_not_ready_says_why() -> None:
    states = [{"name": "agent", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": 1, "message": "no driver"}}}]  # fmt: skip # noqa: E501
    agent = an_agent(ready=False, containerStatuses=states)
    (finding,) = examine(healthy(nodes=[bare(SHARED)], our_pods=[OPERATOR, agent])).findings
    assert finding.kind.value == "agent-not-ready"
    assert "CrashLoopBackOff, after it exited with 1: no driver; the node has never listed its cards" in finding.text


def test_an_agent_that_runs_and_is_not_ready_says_in_its_log_why() -> None:
    agent = an_agent(ready=False, containerStatuses=[{"name": "agent", "ready": False, "state": {"running": {}}}])
    facts = healthy(our_pods=[OPERATOR, agent], last_words={"agent-0": "no card takes pods: no NVML"})
    (finding,) = examine(facts).findings
    assert finding.text.endswith("reports that it is not ready; its log: no card takes pods: no NVML")


def test_of_a_log_the_last_error_counts_or_else_the_last_warning_or_the_last_line() -> None:
    error = "2030-01-01 12:00:00,000 ERROR   gpuledger.agent: no driver"
    warning = "2030-01-01 12:00:01,000 WARNING gpuledger.agent: slow"
    plain = "2030-01-01 12:00:02,000 INFO    gpuledger.agent: here"
    assert last_complaint([error, warning, plain, ""]) == "gpuledger.agent: no driver"
    assert last_complaint([warning, plain]) == "gpuledger.agent: slow"
    assert last_complaint(["Killed", ""]) == "Killed"
    assert last_complaint([]) == "it is empty"


def test_of_two_agents_during_an_update_one_is_enough(found: Found) -> None:
    assert found(our_pods=[OPERATOR, an_agent(ready=False), an_agent()]) == []


def test_an_agent_that_lists_nothing(found: Found) -> None:
    assert found(nodes=[bare(SHARED)]) == [("node-without-cards", WHERE)]
    assert found(nodes=[a_gpu_node(SHARED, {REGISTER_ANNOTATION: "[]"})]) == [("node-without-cards", WHERE)]


def test_an_agent_need_not_be_a_pod(found: Found) -> None:
    assert found(nodes=[a_gpu_node()], our_pods=[OPERATOR]) == []


@pytest.mark.parametrize("sign", ["nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present"])
def test_gpus_that_nobody_lists_are_told(found: Found, sign: str) -> None:
    assert found(nodes=[bare({sign: "true"})], our_pods=[OPERATOR]) == [("node-not-shared", WHERE)]
    assert found(nodes=[bare({sign: "false"})], our_pods=[OPERATOR]) == []


def test_gpus_of_nodes_that_are_not_ours_are_left_alone() -> None:
    labelled = healthy(Settings(node_label="pool=ours"), nodes=[bare({"nvidia.com/gpu.present": "true"})])
    assert examine(replace(labelled, our_pods=[OPERATOR])).findings == ()


def test_a_register_that_cannot_be_read(found: Found) -> None:
    assert found(nodes=[a_gpu_node(SHARED, {REGISTER_ANNOTATION: "{"})]) == [("register-problem", WHERE)]


def test_one_card_that_cannot_be_read_does_not_hide_the_others() -> None:
    cards = json.loads(register_of(NODE.cards))
    cards[0]["memoryMiB"] = -1
    findings = examine(healthy(nodes=[a_gpu_node(SHARED, {REGISTER_ANNOTATION: json.dumps(cards)})])).findings
    assert [each.kind.value for each in findings] == ["register-problem"]
    assert findings[0].text.startswith(f"annotation {REGISTER_ANNOTATION}, card {NODE.cards[0].uuid}: memoryMiB")


def test_cards_of_which_none_works_say_the_fault() -> None:
    broken = [replace(card, healthy=False, fault="the NVIDIA driver is not available") for card in NODE.cards]
    node = a_gpu_node(SHARED, {REGISTER_ANNOTATION: register_of(broken)})
    (finding,) = examine(healthy(nodes=[node])).findings
    assert (finding.kind.value, finding.text) == (
        "cards-out",
        "none of its 2 cards works: the NVIDIA driver is not available",
    )


@pytest.mark.parametrize(("phase", "kind"), [("Unaccounted", "cards-unaccounted"), ("Pending", "cards-not-confirmed")])
def test_cards_that_somebody_may_use_without_the_ledger(phase: str, kind: str) -> None:
    cards = {NODE.cards[0].object_name: phase, NODE.cards[1].object_name: "Ready"}
    (finding,) = examine(healthy(cards=cards)).findings
    text = f"1 of 2 take no new pods: {NODE.cards[0].object_name}"
    assert (finding.kind.value, finding.where, finding.text) == (kind, "the ledger", text)


def test_cards_that_the_operator_has_not_entered(found: Found) -> None:
    assert found(cards={}) == [("cards-not-entered", WHERE)]


def test_an_agent_with_other_names_than_the_settings(found: Found) -> None:
    node = a_gpu_node(SHARED)
    del node["status"]["allocatable"]["nvidia.com/gpu"]
    assert found(nodes=[node]) == [("node-names", WHERE)]


def test_a_plugin_of_another_system_with_other_names(found: Found) -> None:
    node = hami()
    node["status"]["allocatable"] = {"volcano.sh/vgpu-number": "20"}
    assert found(nodes=[node], our_pods=[OPERATOR], cards=IN_LEDGER) == [("node-names", WHERE)]


def test_a_plugin_that_does_not_answer(found: Found) -> None:
    node = a_gpu_node(SHARED)
    node["status"]["allocatable"] |= dict.fromkeys(COUNTS, "0")
    assert found(nodes=[node]) == [("plugin-silent", WHERE)]


@pytest.mark.parametrize(("age_s", "ids"), [(REGISTERS_S - 1, []), (REGISTERS_S + 1, [("plugin-silent", WHERE)])])
def test_an_agent_that_is_ready_since_a_moment_may_not_be_shown_yet(
    found: Found, age_s: float, ids: list[tuple[str, str]]
) -> None:
    """Just after `helm upgrade --wait`: kubelets write what a plugin serves with their next status, every 10 s."""
    node = a_gpu_node(SHARED)
    node["status"]["allocatable"] |= dict.fromkeys(COUNTS, "0")
    since = healthy().local_time - timedelta(seconds=age_s)
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": since.isoformat()}
    pods = [OPERATOR, an_agent(ready=True, conditions=[ready])]
    assert found(nodes=[node], our_pods=pods) == ids


@pytest.mark.parametrize(
    ("kubelet", "runtime", "ids"),
    [
        ("v1.28.9", "containerd://2.0.1", ["kubelet-too-old"]),
        ("v1.29.0", "containerd://1.7.27", ["runtime-cdi-off"]),
        ("v1.36.0-rc.1+k3s1", "containerd://2.0.5-k3s1", []),
        ("v1.36.0", "containerd://1.6.30", ["runtime-without-cdi"]),
        ("v1.36.0", "docker://27.0.1", ["runtime-without-cdi"]),
        ("v1.36.0", "cri-o://1.36.0", []),
        ("", "", []),
    ],
)
def test_kubelet_and_runtime_have_to_pass_cdi_devices_on(kubelet: str, runtime: str, ids: list[str]) -> None:
    node = a_gpu_node(SHARED)
    node["status"]["nodeInfo"] = {"kubeletVersion": kubelet, "containerRuntimeVersion": runtime}
    assert [each.kind.value for each in examine(healthy(nodes=[node])).findings] == ids
    assert examine(healthy(Settings(delivery="directory"), nodes=[node])).findings == ()


def test_the_runtime_of_others_plugins_is_their_affair(found: Found) -> None:
    node = hami()
    node["status"]["nodeInfo"] = {"containerRuntimeVersion": "docker://27.0.1"}
    assert found(nodes=[node], our_pods=[OPERATOR], cards=IN_LEDGER) == []


def test_topology_without_scores_is_told_where_it_is_asked_for() -> None:
    others: Json = {"our_pods": [OPERATOR], "cards": IN_LEDGER}
    scores = json.dumps([{"uuid": "GPU-0", "score": {"GPU-1": "100"}}])
    asked = Settings(card_policy="topology")
    (finding,) = examine(healthy(asked, nodes=[hami()], **others)).findings
    assert (finding.kind.value, finding.where) == ("no-scores", WHERE)
    assert finding.remedy.startswith("ENABLE_TOPOLOGY_SCORE=true")
    for fine in (
        healthy(asked, nodes=[hami(scores=scores)], **others),
        healthy(asked, nodes=[hami(cards=1)], **others),
        healthy(nodes=[hami()], **others),
        healthy(asked),
    ):
        assert examine(fine).findings == ()


# Who else gives out the cards.

NVIDIAS = "nvcr.example:5000/nvidia/k8s-device-plugin:v0.20.0"
HAMIS = "docker.io/projecthami/hami:v2.10.0"
VOLCANOS = "projecthami/volcano-vgpu-device-plugin:v1.11.0"


def plugin(image: str, name: str = "device-plugin") -> Json:
    container = {"name": name, "image": image}
    return a_pod_object(image.rpartition("/")[2][:8], node_name=NODE.name, containers=[container], scheduler_name="any")


@pytest.mark.parametrize(
    ("images", "ids"),
    [
        ([NVIDIAS], []),
        ([HAMIS], []),
        ([HAMIS, NVIDIAS], ["plugins-clash"]),
        ([HAMIS, VOLCANOS], ["plugins-mixed"]),
        ([NVIDIAS, VOLCANOS], ["plugins-mixed"]),
    ],
)
def test_others_plugins_side_by_side(images: list[str], ids: list[str]) -> None:
    pods = [plugin(image) for image in images]
    findings = examine(healthy(nodes=[hami()], our_pods=[OPERATOR], cards=IN_LEDGER, pods=pods)).findings
    assert [each.kind.value for each in findings] == ids


@pytest.mark.parametrize("image", [NVIDIAS, HAMIS, VOLCANOS])
def test_ours_beside_any_other_one_is_an_error(found: Found, image: str) -> None:
    for our_pods in ([OPERATOR], [OPERATOR, an_agent()]):
        nodes = [a_gpu_node()]
        assert found(nodes=nodes, our_pods=our_pods, pods=[plugin(image)]) == [("plugins-clash", WHERE)]


def test_programs_that_only_look_like_a_plugin_are_none(found: Found) -> None:
    scheduler = plugin(HAMIS, name="vgpu-scheduler-extender")
    other = plugin("example.com/sriov-network-device-plugin:v3")
    assert found(pods=[scheduler, other]) == []


def test_another_scheduler_for_a_name_that_is_ours() -> None:
    pods = [
        plugin(HAMIS, name="vgpu-scheduler-extender"),
        plugin("docker.io/volcanosh/vc-scheduler:v1.15.0", "main"),
        plugin("registry.example.com/koordinator-sh/koord-scheduler:v1.8.0", "main"),
    ]
    assert examine(healthy(pods=pods)).findings == ()
    both = Settings(extra_scheduler_names=("hami-scheduler", "volcano", "koord-scheduler"))
    findings = examine(healthy(both, pods=pods)).findings
    assert [each.kind.value for each in findings] == ["scheduler-twice"] * 3
    assert (
        examine(healthy(both, pods=[plugin(HAMIS)], our_pods=[OPERATOR], nodes=[hami()], cards=IN_LEDGER)).findings
        == ()
    )


def test_pods_with_gpus_that_another_scheduler_has_put_there() -> None:
    pods = [asking_elsewhere("a"), asking_elsewhere("b")]
    (finding,) = examine(healthy(pods=pods)).findings
    assert (finding.kind.value, finding.where) == ("foreign-pods", WHERE)
    assert "default/a (scheduler default-scheduler), default/b" in finding.text


def test_pods_of_a_scheduler_name_that_was_ours_are_in_the_ledger(found: Found) -> None:
    pods = [asking_elsewhere("a"), asking_elsewhere("b")]
    assert found(pods=pods, pods_held=frozenset({"uid-a", "uid-b"})) == []
    (finding,) = examine(healthy(pods=pods, pods_held=frozenset({"uid-a"}))).findings
    assert "default/b (scheduler" in finding.text
    assert "default/a" not in finding.text


def test_nodes_whose_gpus_are_given_out_several_times() -> None:
    labels = {"nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.replicas": "10"}
    node = {"metadata": {"name": "sliced", "labels": labels}, "status": {"allocatable": {"nvidia.com/gpu": "10"}}}
    settings = Settings(node_label="gpu=on")
    (finding,) = examine(healthy(settings, nodes=[node])).findings
    assert (finding.kind.value, finding.where) == ("gpus-replicated", "node sliced")
    assert finding.text == "its labels say nvidia.com/gpu.sharing-strategy=time-slicing, nvidia.com/gpu.replicas=10"


def on_node(name: str, value: str = "all", maker: str = "", namespace: str = "default") -> dict[str, Any]:
    pod = a_pod_object(name, {"cpu": "1"}, node_name=NODE.name)
    pod["metadata"]["namespace"] = namespace
    pod["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]
    if maker:
        pod["metadata"]["ownerReferences"] = [{"kind": maker, "name": "x", "uid": "1", "controller": True}]
    return pod


def test_pods_that_reach_cards_without_a_share(found: Found) -> None:
    (finding,) = examine(healthy(pods=[on_node("a"), on_node("b", maker="ReplicaSet"), on_node("c", "void")])).findings
    assert (finding.kind.value, finding.where) == ("card-access", WHERE)
    assert finding.text == (
        "2 pods reach its cards without a share: default/a (container main sets NVIDIA_VISIBLE_DEVICES, by which it "
        "gets cards), default/b (container main sets NVIDIA_VISIBLE_DEVICES, by which it gets cards)"
    )
    elsewhere = on_node("d")
    elsewhere["spec"]["nodeName"] = "another"
    assert found(pods=[elsewhere, on_node("e", namespace="kube-system"), on_node("f", maker="DaemonSet")]) == []
    opted_in = {"metadata": {"name": "default", "labels": {"gpuledger.dev/admission": "true"}}}
    assert found(pods=[on_node("f", maker="DaemonSet")], namespaces=[opted_in]) == [("card-access", WHERE)]


def test_pods_of_a_scheduler_that_does_not_run(found: Found) -> None:
    """After a change of `scheduler_name`, pods that wait by the old one are tried by no scheduler."""
    pods = [a_pod_object(name, scheduler_name="old", created="2030-01-01T11:00:00Z") for name in ("a", "b")]
    (finding,) = examine(healthy(pods=pods)).findings
    assert (finding.kind.value, finding.where) == ("pods-unserved", "scheduler old")
    assert finding.text == "no scheduler has tried default/a, default/b"
    assert "schedulerName: gpuledger" in finding.remedy
    tried, gated, new = pods[0], pods[1], a_pod_object("c", scheduler_name="old", created="2030-01-01T12:00:00Z")
    for pod, reason in ((tried, "Unschedulable"), (gated, "SchedulingGated")):
        pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": reason}]
    plain = a_pod_object("d", {"cpu": "1"}, scheduler_name="old", created="2030-01-01T11:00:00Z")
    assert found(pods=[tried, gated, new, plain]) == []


def test_pods_that_wait_elsewhere_or_want_no_gpus_are_left_alone(found: Found) -> None:
    waiting, elsewhere = asking_elsewhere("a"), asking_elsewhere("b")
    del waiting["spec"]["nodeName"]
    waiting["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    elsewhere["spec"]["nodeName"] = "another"
    plain = a_pod_object("c", {"cpu": "1"}, node_name=NODE.name, scheduler_name="any")
    assert found(pods=[waiting, elsewhere, plain]) == []


def a_node_with(modes: list[str], name: str) -> Json:
    cards = json.loads(register_of(NODE.cards))
    for card, mode in zip(cards, modes, strict=False):
        card["mode"] = mode
    node = a_gpu_node(SHARED, {REGISTER_ANNOTATION: json.dumps(cards[: len(modes)])})
    node["metadata"]["name"] = name
    return node


def test_how_nodes_keep_shares_apart_is_counted_by_node() -> None:
    nodes = [
        a_node_with(["driver", "driver"], "a"),
        a_node_with(["none", "mig"], "b"),
        a_node_with(["none"], "c"),
        bare(),
        a_gpu_node(SHARED, {REGISTER_ANNOTATION: "{"}),
    ]
    found = examine(healthy(nodes=nodes))
    assert found.isolation == {"driver": 1, "mig": 1, "none": 2}
    assert found.json()["isolation"] == found.isolation


def test_where_nodes_can_not_be_read_nothing_is_said_of_isolation() -> None:
    assert examine(healthy(nodes=Unread("nodes", "list", "forbidden"))).isolation == {}


def unlimited() -> Json:
    """Return the node whose agent enforces nothing."""
    node = a_gpu_node(SHARED)
    cards = [replace(card, mode="none") for card in NODE.cards]
    node["metadata"]["annotations"][REGISTER_ANNOTATION] = register_of(cards)
    return node


def test_a_node_that_enforces_nothing_is_told_unless_somebody_has_written_that_down(tmp_path: Path) -> None:
    (finding,) = examine(healthy(nodes=[unlimited()])).findings
    assert (finding.kind.value, finding.where) == ("isolation-none", WHERE)
    assert finding.text == "containers can use more than their share of 2 of its cards: nothing enforces any"
    assert "isolation: none in the settings" in finding.remedy
    file = tmp_path / "nodes.json"
    file.write_text(json.dumps({"nodeconfig": [{"name": NODE.name, "operatingmode": "none"}]}))
    for chosen in (Settings(isolation="none"), Settings(node_config_file=str(file)), Settings(devices_file="/cards")):
        assert examine(healthy(chosen, nodes=[unlimited()])).findings == ()


def test_a_simulated_node_has_nothing_to_enforce() -> None:
    found = examine(healthy(nodes=[unlimited()], our_pods=[OPERATOR])).findings
    assert "isolation-none" not in {finding.kind.value for finding in found}
