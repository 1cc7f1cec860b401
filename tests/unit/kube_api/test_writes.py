"""What is written besides what was asked for, and what becomes of it when that fails."""

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes_asyncio.client import Configuration

from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.reads import ALLOCATIONS
from gpuledger.kube_api.writes import NO_MANAGERS, KubeWrites


@pytest.mark.parametrize("status", [200, 404, 500])
async def test_the_list_of_a_cards_managers_may_stay(status: int) -> None:
    """That list only costs time."""
    asked: list[object] = []

    async def patch(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return web.json_response({"metadata": {"name": "gpu-0", "resourceVersion": "2"}}, status=status)

    application = web.Application()
    application.router.add_patch(f"{ALLOCATIONS}/gpu-0", patch)
    async with TestServer(application) as server:
        client = KubeClient(Configuration(host=str(server.make_url("")).rstrip("/")))
        try:
            await KubeWrites(client).forget_managers("gpu-0")
        finally:
            await client.close()
    assert asked == [[NO_MANAGERS]]
