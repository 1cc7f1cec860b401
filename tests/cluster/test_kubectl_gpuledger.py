"""`kubectl gpuledger` as kubectl runs it, on the real API server: what it reads, and the one thing that it writes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from build_control_plane import ensure_binaries
from cluster.cluster import ALLOCATIONS, MEMORY, Cluster, phase, pod
from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.reports.cards import by_node, report_of_stored

Json = dict[str, Any]

PLUGIN = """#!{python}
from gpuledger.command_line.program import kubectl_main
kubectl_main()
"""


class Plugin:
    """kubectl with our program beside it on the PATH."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        program = directory / "kubectl-gpuledger"
        program.write_text(PLUGIN.format(python=sys.executable))
        program.chmod(0o755)
        self._kubectl = ensure_binaries() / "kubectl"
        path = f"{directory}:{self._kubectl.parent}:/usr/bin:/bin"
        self._environment = {**os.environ, "PATH": path, "KUBECONFIG": str(cluster.plane.kubeconfig)}
        self._environment |= {"KUBECACHEDIR": str(directory / "cache"), "KUBERC": "off"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `kubectl gpuledger`; its output is a pipe."""
        argv = [str(self._kubectl), "gpuledger", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, env=self._environment, stdout=pipe, stderr=pipe, text=True)

    def run(self, *arguments: str, status: int = 0, told: str = "", timeout_s: float = 60) -> str:
        """Run it to its end and return what it printed, its errors if it is to fail and not `told` is "output"."""
        process = self.start(*arguments)
        try:
            output, complaint = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise AssertionError(f"it has not ended after {timeout_s:g} s: {process.communicate()}") from None
        assert process.returncode == status, (output, complaint)
        return complaint if status and told != "output" else output

    def json(self, *arguments: str) -> Json:
        """Return what it prints as JSON."""
        return dict(json.loads(self.run(*arguments, "-o", "json")))


@pytest.fixture
def plugin(cluster: Cluster, tmp_path: Path) -> Plugin:
    return Plugin(cluster, tmp_path)


@pytest.mark.promise("plugin")
def test_top_shows_what_the_ledger_has(cluster: Cluster, plugin: Plugin) -> None:
    node, other = cluster.add_nodes(2, gpus=2)
    cluster.create(pod("web", {"nvidia.com/gpu": 1, MEMORY: 4000}))
    cluster.wait_bound("web")
    stored = [stored_card(item) for item in cluster.objects("gpuallocations")]
    assert plugin.json("top") == {"nodes": [n.json() for n in by_node(map(report_of_stored, stored))]}
    rows = [line.split() for line in plugin.run("top").splitlines()]
    assert sorted((row[0], row[1], row[-2], row[-1]) for row in rows[1:]) == sorted(
        (n.name, "2", str(int(n.name == cluster.pod("web")["spec"]["nodeName"])), "Ready") for n in (node, other)
    )
    assert len(plugin.json("top", "cards", "--node", node.name)["cards"]) == 2
    cluster.patch(f"/api/v1/nodes/{other.name}", {"metadata": {"labels": {"pool": "lab"}}})
    assert [each["node"] for each in plugin.json("top", "-l", "pool=lab")["nodes"]] == [other.name]


def test_watching_shows_a_pod_come(cluster: Cluster, plugin: Plugin) -> None:
    cluster.add_nodes(1, gpus=1)
    process = plugin.start("top", "--watch", "-o", "json")
    assert process.stdout
    try:
        pods = [holder["pod"] for holder in _one_card(process.stdout.readline())["holders"]]
        assert pods == []
        cluster.create(pod("web", {"nvidia.com/gpu": 1, MEMORY: 4000}))
        while not pods:
            pods = [holder["pod"] for holder in _one_card(process.stdout.readline())["holders"]]
    finally:
        process.terminate()
        process.communicate()
    assert pods == ["web"]


def test_top_says_which_nodes_are_cordoned_and_watches_that(cluster: Cluster, plugin: Plugin) -> None:
    node, other = cluster.add_nodes(2, gpus=1)
    cluster.plane.kubectl("cordon", node.name)
    rows = {row.split()[0]: row for row in plugin.run("top").splitlines()}
    assert ("cordoned" in rows[node.name], "cordoned" in rows[other.name]) == (True, False)
    assert [row.split()[0] for row in plugin.run("top", "cards").splitlines() if "cordoned" in row] == [node.name]
    assert [row.split()[0] for row in plugin.run("top", "--node", other.name).splitlines() if "cordoned" in row] == []
    process = plugin.start("top", "--watch", "-o", "json")
    assert process.stdout
    try:
        assert _cordoned(process.stdout.readline()) == {node.name: True, other.name: False}
        cluster.plane.kubectl("uncordon", node.name)
        assert _cordoned(process.stdout.readline()) == {node.name: False}
        cluster.plane.kubectl("cordon", other.name)
        assert _cordoned(process.stdout.readline()) == {other.name: True}
    finally:
        process.terminate()
        process.communicate()


def _cordoned(line: str) -> dict[str, bool]:
    return {node["node"]: node.get("unschedulable", False) for node in json.loads(line)["nodes"]}


def _one_card(line: str) -> Json:
    (node,) = json.loads(line)["nodes"]
    return dict(node["cards"][0])


@pytest.mark.promise("plugin")
def test_get_shows_a_pod_and_a_card_from_both_sides(cluster: Cluster, plugin: Plugin) -> None:
    cluster.add_nodes(1, gpus=2)
    cluster.create(pod("web", {"nvidia.com/gpu": 1, MEMORY: 4000}))
    cluster.wait_bound("web")
    found = plugin.json("get", "pod/web", "--namespace", "default")
    (share,), (told,) = found["shares"], found["told"]
    assert (share["memoryMiB"], share["state"]) == (4000, "allocated")
    assert (told["container"], told["uuid"], told["memoryMiB"]) == ("main", share["card"], 4000)
    card = plugin.json("get", f"card/{share['card'][:20]}")
    assert [holder["pod"] for holder in card["holders"]] == ["web"]
    assert "there is no pod 'web' in namespace 'kube-system'" in plugin.run(
        "get", "pod/web", "-n", "kube-system", status=2
    )


@pytest.mark.promise("plugin")
def test_cordon_annotates_all_cards_of_a_node_and_uncordon_takes_it_back(cluster: Cluster, plugin: Plugin) -> None:
    (node,) = cluster.add_nodes(1, gpus=2)
    assert plugin.run("cordon", f"node/{node.name}", "--reason", "fan is loud").count("takes no new pods") == 2
    (why,) = set(_cordons(cluster, "cordoned-node"))
    assert re.fullmatch(r"fan is loud \(admin, \S+ \S+ UTC\)", str(why))
    cluster.wait(lambda: set(map(phase, cluster.cards().values())) == {"Cordoned"}, "the operator has written it, too")
    versions = _versions(cluster)
    assert plugin.run("cordon", f"node/{node.name}", "--reason", "fan is loud").count("is cordoned already") == 2
    assert _versions(cluster) == versions
    first = f"card/{node.cards[0].uuid}"
    plugin.run("cordon", first, "--reason", "ticket 812")
    said = plugin.run("uncordon", f"node/{node.name}")
    assert (said.count("takes new pods again"), said.count("stays cordoned by itself: ticket 812")) == (1, 1)
    cluster.wait(lambda: sorted(map(phase, cluster.cards().values())) == ["Cordoned", "Ready"], "one takes pods again")
    assert plugin.run("uncordon", first).count("takes new pods again") == 1
    cluster.wait(lambda: set(map(phase, cluster.cards().values())) == {"Ready"}, "both do")
    where = ("--operator-url", cluster.installation.view_url)
    records = json.loads(plugin.run("history", f"node/{node.name}", *where, "-o", "json"))["records"]
    kinds = [(each["kind"], re.sub(r" \(.*?\)", "", each["text"])) for each in records if "cordoned" in each["kind"]]
    assert sorted(kinds) == [
        ("cordoned", "card 0: fan is loud"),
        ("cordoned", "card 0: ticket 812"),
        ("cordoned", "card 0: ticket 812; fan is loud"),
        ("cordoned", "card 1: fan is loud"),
        ("uncordoned", "card 0: ticket 812"),
        ("uncordoned", "card 1: fan is loud"),
    ]


def _cordons(cluster: Cluster, mark: str) -> list[str | None]:
    items = cluster.request("GET", ALLOCATIONS)["items"]
    return [item["metadata"].get("annotations", {}).get(f"gpuledger.dev/{mark}") for item in items]


def _versions(cluster: Cluster) -> list[str]:
    return [item["metadata"]["resourceVersion"] for item in cluster.request("GET", ALLOCATIONS)["items"]]


def test_an_account_that_may_not_read_cards_is_told_so(cluster: Cluster, plugin: Plugin, namespace: str) -> None:
    cluster.plane.kubectl("create", "serviceaccount", "nobody", "-n", namespace)
    kubeconfig = cluster.plane.kubeconfig_of_service_account(namespace, "nobody")
    complaint = plugin.run("top", "--kubeconfig", str(kubeconfig), status=2)
    assert "gpuallocations.gpuledger.dev is forbidden" in complaint
    assert "Traceback" not in complaint


def test_without_kubectl_a_client_in_python_reads_and_writes(cluster: Cluster, tmp_path: Path) -> None:
    (node,) = cluster.add_nodes(1, gpus=1)
    environment = {**os.environ, "PATH": str(tmp_path), "KUBECONFIG": str(cluster.plane.kubeconfig)}

    def run(*arguments: str) -> str:
        argv = [sys.executable, "-m", "gpuledger", *arguments]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=True).stdout

    assert json.loads(run("top", "-o", "json"))["nodes"][0]["node"] == node.name
    assert "takes no new pods: new fan" in run("cordon", f"node/{node.name}", "--reason", "new fan")
    assert str(*_cordons(cluster, "cordoned-node")).startswith("new fan (")


VOLCANO_JOBS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "jobs.batch.volcano.sh"},
    "spec": {
        "group": "batch.volcano.sh",
        "scope": "Namespaced",
        "names": {"kind": "Job", "plural": "jobs"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


def test_explain_says_why_a_volcano_job_has_no_pods(cluster: Cluster, plugin: Plugin) -> None:
    """Its pods come into being only with Volcano's scheduler, so there is nothing else that could say it."""
    where = ("--operator-url", cluster.installation.view_url)
    assert "PodGroup" not in plugin.run("explain", "train-worker-0", *where, status=2)
    crd = cluster.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", VOLCANO_JOBS)
    try:
        cluster.plane.wait_established(crd["metadata"]["name"])
        job = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "train"}}
        cluster.request("POST", "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs", job)
        for name in ("train", "train-worker-0"):
            said = plugin.run("explain", name, *where, status=2)
            assert "Volcano's scheduler has let its PodGroup in" in said
        assert "PodGroup" not in plugin.run("explain", "other", *where, status=2)
    finally:
        cluster.request("DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}")
