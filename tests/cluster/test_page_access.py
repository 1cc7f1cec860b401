"""Who sees the page, by a real API server's word, asked with the operator's own account."""

import asyncio
from collections.abc import Mapping

from aiohttp.test_utils import TestClient, TestServer

from cluster.cluster import Cluster
from fakes.view_cluster import demo
from gpuledger.controller.web.view_server import TokenAccess, ViewServer
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.reads import KubeReviews


def test_who_may_list_cards_sees_the_page_and_nobody_else(cluster: Cluster, namespace: str) -> None:
    kubectl = cluster.plane.kubectl
    for account in ("reader", "stranger"):
        kubectl("create", "serviceaccount", account, "--namespace", namespace)
    kubectl("create", "clusterrole", namespace, "--verb=list", "--resource=gpuallocations.gpuledger.dev")
    kubectl(
        "create", "clusterrolebinding", namespace, f"--clusterrole={namespace}", f"--serviceaccount={namespace}:reader"
    )
    tokens = {name: kubectl("create", "token", name, "-n", namespace).strip() for name in ("reader", "stranger")}
    try:
        found = asyncio.run(statuses(cluster, {**tokens, "nobody": "made-up"}))
    finally:
        kubectl("delete", "clusterrole,clusterrolebinding", namespace)
    assert found == {"reader": 200, "stranger": 403, "nobody": 401}


async def statuses(cluster: Cluster, tokens: Mapping[str, str]) -> dict[str, int]:
    """Ask for the cluster with each token, of a page that asks with the operator's account."""
    client = await KubeClient.connect(cluster.installation.kubeconfig)
    try:
        server = ViewServer(demo().source, TokenAccess(KubeReviews(client)))
        async with TestClient(TestServer(server.application())) as page:
            return {
                name: (await page.get("/v1/cluster", headers={"Authorization": f"Bearer {token}"})).status
                for name, token in tokens.items()
            }
    finally:
        await client.close()
