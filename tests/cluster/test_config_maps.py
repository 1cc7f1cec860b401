"""The settings of HAMi and Volcano by the names of their ConfigMaps: read from the API server, and followed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from cluster.cluster import COUNT, Cluster, devices, pod
from control_plane import ControlPlane
from installation import NO_KUBELET, Installation

Json = dict[str, Any]
NAMESPACE, HAMIS, NODES_CONFIG = "kube-system", "hami-scheduler-device", "hami-device-plugin"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
SETTINGS = {
    "hami_config_file": f"configmap:{NAMESPACE}/{HAMIS}",
    "node_config_file": f"configmap:{NAMESPACE}/{NODES_CONFIG}",
}
MEMORY = "nvidia.com/gpumem"
BAD_INPUT = 'gpuledger_bad_input_total{kind="config"}'
ALLOW = (  # as docs/settings.md has it
    f"create role gpuledger-config -n {NAMESPACE} --verb=get,list,watch --resource=configmaps "
    f"--resource-name={HAMIS} --resource-name={NODES_CONFIG}",
    f"create rolebinding gpuledger-config -n {NAMESPACE} --role=gpuledger-config "
    "--serviceaccount=gpuledger-system:gpuledger --serviceaccount=gpuledger-system:gpuledger-agent",
)

FIT = "NodeResourcesFit"
"""The plugin of kube-scheduler that counts resources, but for those that are left to the extender."""


def data_of(**nvidia: object) -> Json:
    """Return the data of HAMi's ConfigMap, a part of it without effect here."""
    block = {"runtimeClassName": "", "deviceSplitCount": 7, **nvidia}
    return {"device-config.yaml": yaml.safe_dump({"nvidia": block, "vnpus": []})}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Yield a cluster with both ConfigMaps; the operator's account may read these, and no others."""
    with ControlPlane.run() as plane:  # the installed ConfigMap is changed
        installation = Installation(plane, {**NO_KUBELET, **SETTINGS})
        installation.install()
        stated = yaml.safe_load(installation.settings_file.read_text())
        left = {
            name: value for name, value in stated.items() if not name.startswith("resource_")
        }  # HAMi's file has them
        installation.settings_file.write_text(yaml.safe_dump(left))
        cluster = Cluster(plane, installation)
        create(cluster, HAMIS, data_of())
        nodes = {"nodeconfig": [{"name": "fake-1", "devicesplitcount": 3}]}
        create(cluster, NODES_CONFIG, {"config.json": json.dumps(nodes)})
        yield cluster
        cluster.close()


def create(cluster: Cluster, name: str, data: Json) -> None:
    cluster.request("POST", CONFIG_MAPS, {"metadata": {"name": name}, "data": data})


def change(cluster: Cluster, **nvidia: object) -> None:
    cluster.patch(f"{CONFIG_MAPS}/{HAMIS}", {"data": data_of(**nvidia)})


def log(cluster: Cluster) -> str:
    assert cluster.installation.operator
    return cluster.installation.operator.log_text()


def begins_again(cluster: Cluster) -> None:
    """Wait for the operator's end, and play the kubelet: it starts the container anew, and kube-scheduler's."""
    operator, scheduler = cluster.installation.operator, cluster.installation.scheduler
    assert operator
    assert scheduler
    cluster.wait(lambda: not operator.alive, "the operator ends")
    assert operator.returncode == 0
    cluster.installation.start_operator()
    scheduler.kill()
    cluster.installation.start_scheduler()


def test_without_permission_the_operator_says_what_it_needs_and_does_not_begin(cluster: Cluster) -> None:
    operator = cluster.installation.start_operator(wait=False)
    cluster.wait(lambda: not operator.alive, "the operator ends")
    assert operator.returncode == 2
    last = operator.log_text().splitlines()[-1]
    assert f"hami_config_file: ConfigMap {NAMESPACE}/{HAMIS} can't be read" in last
    assert "a Role has to allow `get`, `list` and `watch` of it" in last


def test_the_words_in_it_are_those_of_pods_from_the_start(cluster: Cluster) -> None:
    for words in ALLOW:
        cluster.plane.kubectl(*words.split())
    cluster.installation.start_operator()
    cluster.installation.start_scheduler()
    cluster.installation.fake_nodes("--count", "2", "--gpus", "1", "--prefix", "fake")
    cluster.wait(lambda: len(cluster.cards()) == 2, "the cards are in the ledger")
    slots = {card["spec"]["nodeName"]: card["spec"]["capacity"]["number"] for card in cluster.cards().values()}
    assert sorted(slots.values()) == [3, 7]  # one node has an entry of its own
    cluster.create(pod("first", {COUNT: 1, MEMORY: 1000}))
    (first,) = cluster.wait_bound("first")
    assert [card["memoryMiB"] for card in devices(first)["main"]] == [1000]


def test_what_a_key_cannot_do_is_said_once(cluster: Cluster) -> None:
    sentences = ("nvidia.runtimeClassName: set it in the pod", "vnpus: resources of other vendors are rows")
    assert [log(cluster).count(sentence) for sentence in sentences] == [1, 1]


def test_a_change_that_cannot_be_used_is_counted_and_changes_nothing(cluster: Cluster) -> None:
    assert cluster.metric(BAD_INPUT) == 0
    change(cluster, memoryFactor=0)
    cluster.wait(lambda: cluster.metric(BAD_INPUT) == 1, "the change is counted")
    assert "memoryFactor" in log(cluster)
    cluster.create(pod("second", {COUNT: 1, MEMORY: 1000}))
    cluster.wait_bound("second")
    cluster.plane.kubectl("delete", "configmap", HAMIS, "-n", NAMESPACE)
    cluster.wait(lambda: cluster.metric(BAD_INPUT) == 2, "so is that it is gone")
    create(cluster, HAMIS, data_of())
    cluster.create(pod("third", {COUNT: 1, MEMORY: 1000}))
    cluster.wait_bound("third")


def test_a_change_without_effect_here_ends_nothing(cluster: Cluster) -> None:
    operator = cluster.installation.operator
    assert operator
    change(cluster, runtimeClassName="nvidia")
    cluster.plane.kubectl("annotate", "configmap", HAMIS, "-n", NAMESPACE, "seen=yes")
    cluster.settle()
    assert operator.alive


def test_a_change_that_matters_counts_for_operator_and_scheduler(cluster: Cluster) -> None:
    change(cluster, resourceMemoryName="example.com/mem", memoryFactor=2)
    begins_again(cluster)
    cluster.create(pod("renamed", {COUNT: 1, "example.com/mem": 1000}))
    (renamed,) = cluster.wait_bound("renamed")
    assert [card["memoryMiB"] for card in devices(renamed)["main"]] == [2000]
    (profile,) = cluster.installation.scheduler_config()["profiles"]
    (ignored,) = (each["args"]["ignoredResources"] for each in profile["pluginConfig"] if each["name"] == FIT)
    assert "example.com/mem" in ignored


def test_commands_read_it_too(cluster: Cluster) -> None:
    """`audit` and the others judge by what the operator in the cluster has."""
    settings = cluster.installation.settings_file
    words = [sys.executable, "-m", "gpuledger", "audit", "--kubeconfig", str(cluster.plane.kubeconfig)]
    done = subprocess.run([*words, "--settings", str(settings)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    spec = {"settings.yaml": settings.read_text()}
    cluster.patch("/api/v1/namespaces/gpuledger-system/configmaps/" + settings_map(cluster), {"data": spec})
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0
    rendered = [sys.executable, "-m", "gpuledger", "admission-policies", "--settings", str(settings)]
    env = {**os.environ, "KUBECONFIG": str(cluster.plane.kubeconfig)}
    text = subprocess.run(rendered, capture_output=True, text=True, check=True, env=env).stdout
    assert "example.com/mem" in text


def settings_map(cluster: Cluster) -> str:
    found = cluster.plane.kubectl("get", "configmaps", "-n", "gpuledger-system", "-o", "name").split()
    return next(name.partition("/")[2] for name in found if "gpuledger-settings" in name)
