"""How a cluster is read: what fails is noted, and the rest is read all the same."""

from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes_asyncio.client import Configuration

from fakes.doctor_facts import an_agent
from gpuledger.configuration.settings import Settings
from gpuledger.doctor.facts import AccountAccess, Facts, Unread
from gpuledger.doctor.reading import Reading
from gpuledger.kube_api.client import KubeClient
from gpuledger.model.errors import Denied

Json = dict[str, Any]

NAMESPACE = "/api/v1/namespaces/gpuledger-system"
VERSION = {"major": "1", "minor": "36+"}


async def read(answers: dict[str, Json | str | int]) -> Facts:
    """Read from a server that has these answers: an object, a text, or a status; it has no others."""

    async def answer(request: web.Request) -> web.Response:
        if request.path.endswith("accessreviews") and request.path not in answers:
            resource = (await request.json())["spec"]["resourceAttributes"]["resource"]
            return web.json_response({"status": {"allowed": resource != "events"}})
        found = answers.get(request.path, 404)
        if isinstance(found, int):
            return web.json_response({"message": "no"}, status=found)
        return web.Response(text=found) if isinstance(found, str) else web.json_response(found)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application) as server:
        client = KubeClient(Configuration(host=str(server.make_url("")).rstrip("/")))
        try:
            return await Reading(client, Settings()).all()
        finally:
            await client.close()


async def test_what_is_not_there_is_not_what_could_not_be_read() -> None:
    facts = await read({"/version": VERSION, "/api/v1/nodes": 403, "/api/v1/pods": 500})
    assert facts.version == (1, 36)
    assert (facts.crd, facts.lease, facts.deployment, facts.webhooks, facts.policies) == (None, None, None, [], {})
    assert isinstance(facts.nodes, Unread)
    assert (facts.nodes.why, facts.nodes.needs) == ("your account may not read the nodes", "`list` on nodes")
    assert isinstance(facts.pods, Unread)
    assert "500: no" in facts.pods.why


async def test_what_the_accounts_may_not_do_is_asked_of_the_api_server() -> None:
    facts = await read({"/version": VERSION})
    assert isinstance(facts.agent_access, AccountAccess)
    assert [str(each) for each in facts.agent_access.denied] == ["create events in namespace default"]


async def test_that_there_is_no_crd_can_be_told_without_rights_to_it() -> None:
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpuallocations.gpuledger.dev"
    assert (await read({"/version": VERSION, crd: 403})).crd is None
    served = await read({"/version": VERSION, crd: 403, "/apis/gpuledger.dev/v1alpha1": {}})
    assert isinstance(served.crd, Unread)


async def test_an_account_that_nobody_knows_can_check_nothing() -> None:
    with pytest.raises(Denied):
        await read({"/version": 401})


async def test_the_logs_of_pods_that_are_not_ready_are_read() -> None:
    agent = an_agent(ready=False, containerStatuses=[{"name": "agent", "ready": False, "state": {"running": {}}}])
    log = f"{NAMESPACE}/pods/agent-0/log"
    pods: dict[str, Json | str | int] = {"/version": VERSION, f"{NAMESPACE}/pods": {"items": [agent]}}
    told = [(await read({**pods, log: answer})).last_words["agent-0"] for answer in ("a ERROR b\n", 403, 500)]
    assert told == ["b", "your account may not read it; needs `get` on pods/log", "it can't be read"]
    ready: dict[str, Json | str | int] = {**pods, f"{NAMESPACE}/pods": {"items": [an_agent()]}}
    assert (await read(ready)).last_words == {}
