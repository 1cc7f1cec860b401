"""Somebody who has `edit` in one namespace, on the real API server: what they may ask, and what they learn."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.cluster import COUNT, MEMORY, Cluster, pod
from cluster.test_kubectl_gpuledger import Plugin
from gpuledger.formats.kubernetes.other import AUDIENCE, TOKEN_HEADER

Json = dict[str, Any]


@pytest.fixture
def developer(cluster: Cluster, namespace: str) -> Iterator[Path]:
    """Return the kubeconfig of an account with `edit` in a namespace of its own, where a pod waits."""
    kubectl = cluster.plane.kubectl
    kubectl("create", "serviceaccount", "developer", "-n", namespace)
    kubectl(
        "create",
        "rolebinding",
        "edit",
        "-n",
        namespace,
        "--clusterrole=edit",
        f"--serviceaccount={namespace}:developer",
    )
    cluster.add_nodes(1, gpus=1)
    cluster.create(pod("secret", {COUNT: 1, MEMORY: 30_000}))
    cluster.wait_bound("secret")
    waiting = pod("web", {COUNT: 1, MEMORY: 20_000})
    waiting["metadata"]["namespace"] = namespace
    cluster.request("POST", f"/api/v1/namespaces/{namespace}/pods", waiting)
    yield cluster.plane.kubeconfig_of_service_account(namespace, "developer")
    kubectl("delete", "pod", "web", "-n", namespace, "--force", "--grace-period=0")


def asked(cluster: Cluster, pod_name: str, token: str, kind: str = "pod") -> tuple[int, Json]:
    return answer(cluster, f"explain?{kind}={pod_name}", token)


def answer(cluster: Cluster, question: str, token: str) -> tuple[int, Json]:
    request = urllib.request.Request(f"{cluster.installation.explain_url}/v1/{question}")  # noqa: S310
    request.add_header(TOKEN_HEADER, token)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310 - our own process
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, {}


def test_a_developer_asks_with_a_token_of_the_namespace_and_reads_no_other_names(
    cluster: Cluster, namespace: str, developer: Path
) -> None:
    def token(*more: str) -> str:
        words = ("create", "token", "default", "-n", namespace, *more)
        return cluster.plane.kubectl(*words, kubeconfig=developer).strip()

    cluster.wait(
        lambda: asked(cluster, f"{namespace}/web", token(f"--audience={AUDIENCE}"))[1].get("state") == "waiting",
        "the pod waits",
    )
    own = token(f"--audience={AUDIENCE}")
    _, found = asked(cluster, f"{namespace}/web", own)
    [node] = found["nodes"]
    assert node["cards"][0]["short"] == {"memoryMiB": 20_000 - 10_960}
    assert "secret" not in json.dumps(found)
    assert asked(cluster, "default/secret", own)[0] == 403
    assert asked(cluster, f"{namespace}/web", token())[0] == 401, "a token for the API server is none for this"
    others = cluster.plane.kubectl("create", "token", "default", "-n", "default", f"--audience={AUDIENCE}").strip()
    assert asked(cluster, f"{namespace}/web", others)[0] == 403


def test_a_developer_sees_gangs_of_the_own_namespace(cluster: Cluster, namespace: str, developer: Path) -> None:
    words = ("create", "token", "default", "-n", namespace, f"--audience={AUDIENCE}")
    token = cluster.plane.kubectl(*words, kubeconfig=developer).strip()
    for number in range(2):
        member = pod(f"train-{number}", {COUNT: 1, MEMORY: 6_000})
        member["metadata"]["namespace"] = namespace
        member["metadata"]["labels"] = {"gpuledger.dev/gang": "train", "gpuledger.dev/gang-minimum": "2"}
        cluster.request("POST", f"/api/v1/namespaces/{namespace}/pods", member)
    gang = f"{namespace}/train"
    cluster.wait(lambda: asked(cluster, gang, token, "gang")[1].get("state") == "waiting", "the gang waits")
    _, found = asked(cluster, gang, token, "gang")
    assert (found["members"]["fits"], found["members"]["minimum"]) == (1, 2)
    assert "secret" not in json.dumps(found)
    assert asked(cluster, "default/train", token, "gang")[0] == 403
    cluster.plane.kubectl("delete", "pod", "train-0", "train-1", "-n", namespace, "--force", "--grace-period=0")


def test_a_developer_is_told_what_the_own_namespace_held_and_no_other(
    cluster: Cluster, namespace: str, developer: Path
) -> None:
    words = ("create", "token", "default", "-n", namespace, f"--audience={AUDIENCE}")
    token = cluster.plane.kubectl(*words, kubeconfig=developer).strip()
    code, found = answer(cluster, f"report?namespace={namespace}&by=owner", token)
    assert (code, found["rows"], found["by"]) == (200, [], "owner"), "its pod waits, and that of another runs"
    for others in ("default", "", f"{namespace},default", "*"):
        assert answer(cluster, f"report?namespace={others}", token)[0] == 403
    own = cluster.plane.kubectl("create", "token", "default", "-n", "default", f"--audience={AUDIENCE}").strip()
    cluster.wait(
        lambda: bool(answer(cluster, "report?namespace=default", own)[1].get("rows")), "what runs is counted", 60
    )


def test_without_the_role_explain_says_what_the_pod_says_and_what_is_missing(
    cluster: Cluster, namespace: str, developer: Path, tmp_path: Path
) -> None:
    plugin = Plugin(cluster, tmp_path)
    command = ("explain", "pod/web", "-n", namespace, "--kubeconfig", str(developer), "-o", "json")

    def told() -> Json:
        process = plugin.start(*command)
        output, complaint = process.communicate(timeout=60)
        assert process.returncode == 1, (output, complaint)
        return dict(json.loads(output))

    cluster.wait(lambda: "no card with 20000 MiB free" in told()["summary"], "the pod's own words are shown")
    [warning] = told()["warnings"]
    assert "gpuledger-developer" in warning
    none = plugin.run("explain", "pod/nobody", "-n", namespace, "--kubeconfig", str(developer), status=2)
    assert "not found" in none


@pytest.mark.promise("plugin")
def test_without_any_role_a_developer_sees_the_own_pods_quota_and_events_and_which_role_has_more(
    cluster: Cluster, namespace: str, developer: Path, tmp_path: Path
) -> None:
    hard = {"limits.nvidia.com/gpumem": "20000", "limits.nvidia.com/gpu": "4"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}, "spec": {"hard": hard}}
    cluster.request("POST", f"/api/v1/namespaces/{namespace}/resourcequotas", quota)
    mine = pod("mine", {COUNT: 1, MEMORY: 6_000})
    mine["metadata"]["namespace"] = namespace
    cluster.request("POST", f"/api/v1/namespaces/{namespace}/pods", mine)
    plugin = Plugin(cluster, tmp_path)
    here = ("-n", namespace, "--kubeconfig", str(developer))

    def used() -> Json:
        [row] = plugin.json("top", *here)["namespaces"]
        return {each["key"]: (each["used"], each["limit"]) for each in row["quota"]} | {"row": row}

    cluster.wait(lambda: used()["limits.nvidia.com/gpumem"] == (6_000, 20_000), "the quota's status has what is used")
    row = used()["row"]
    assert (row["namespace"], row["used"]["memoryMiB"], row["cards"], row["waiting"]) == (namespace, 6_000, 1, 1)
    assert used()["limits.nvidia.com/gpu"] == (1, 4)

    [share] = plugin.json("get", "pod/mine", *here)["shares"]
    assert (share["memoryMiB"], share["state"]) == (6_000, "by its annotation")
    process = plugin.start("get", "pods", *here)
    table, note = process.communicate(timeout=60)
    assert process.returncode == 0, note
    assert [line.split()[0] for line in table.splitlines()] == ["POD", "mine", "web"]
    assert "a hint that the ledger may contradict" in note
    assert "gpuledger-viewer" in note
    assert share["card"] in plugin.run("describe", "pod/mine", *here)
    assert share["card"] in plugin.run("explain", "pod/mine", *here)

    def kinds() -> set[tuple[str, str]]:
        return {(each["pod"], each["kind"]) for each in plugin.json("history", "pods", *here)["records"]}

    cluster.wait(lambda: {("mine", "assigned"), ("web", "refused")} <= kinds(), "history has the namespace's Events")
    assert ("secret", "assigned") not in kinds()
    [only] = {each["pod"] for each in plugin.json("history", "pod/mine", *here)["records"]}
    assert only == "mine"

    for refused in (("get", "cards"), ("top", "cards"), ("cordon", f"node/{share['node']}")):
        complaint = plugin.run(*refused, "--kubeconfig", str(developer), status=2)
        assert "gpuledger-viewer" in complaint
    roles = ("clusterrolebinding", "see", "--clusterrole=gpuledger-viewer", f"--serviceaccount={namespace}:developer")
    cluster.plane.kubectl("create", *roles)
    cluster.wait(lambda: not plugin.json("get", "pod/mine", *here)["byAnnotation"], "the Role that was named is enough")
    assert len(plugin.json("get", "cards", "--kubeconfig", str(developer))["items"]) == 1
    cluster.plane.kubectl("delete", "clusterrolebinding", "see")
    cluster.plane.kubectl("delete", "pod", "mine", "-n", namespace, "--force", "--grace-period=0")
    cluster.plane.kubectl("delete", "resourcequota", "gpus", "-n", namespace)
