"""What is written besides what was asked for, and what becomes of it when that fails."""

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes_asyncio.client import Configuration

from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.reads import ALLOCATIONS
from gpuledger.kube_api.writes import NO_MANAGERS, KubeWrites

CARD = {"metadata": {"name": "gpu-0"}}


@pytest.mark.parametrize(("status", "version"), [(200, "2"), (500, "1")])
async def test_a_card_is_created_also_when_the_list_of_its_managers_stays(status: int, version: str) -> None:
    """That list only costs time."""
    asked: list[object] = []

    async def create(request: web.Request) -> web.Response:
        return web.json_response({"metadata": {**(await request.json())["metadata"], "resourceVersion": "1"}})

    async def patch(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return web.json_response({"metadata": {"name": "gpu-0", "resourceVersion": "2"}}, status=status)

    application = web.Application()
    application.router.add_post(ALLOCATIONS, create)
    application.router.add_patch(f"{ALLOCATIONS}/gpu-0", patch)
    async with TestServer(application) as server:
        client = KubeClient(Configuration(host=str(server.make_url("")).rstrip("/")))
        try:
            created = await KubeWrites(client).create_allocation(CARD)
        finally:
            await client.close()
    assert created["metadata"]["resourceVersion"] == version
    assert asked == [[NO_MANAGERS]]
