"""What the nodes' agents say is used: asked through the API server, with the caller's account.

Some agents may not answer; the others do. So what is wrong with one is said of its node, and is no error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from gpuledger.command_line.cards import FROM_MEMORY
from gpuledger.command_line.cluster_access import ClusterAccess, Objects, where_asked
from gpuledger.formats.kubernetes.agent_pod import AgentPod, agent_pod, best_by_node
from gpuledger.formats.kubernetes.lease import LEASE_NAMESPACE
from gpuledger.formats.node_usage import LONGEST_ANSWER_BYTES, read_node_usage
from gpuledger.kube_api.client import KubeClient
from gpuledger.model.errors import AnswerTooLong, ApiError, BadInput, Denied, NotFound
from gpuledger.model.json_object import Json
from gpuledger.model.node import NodeUsage
from gpuledger.reports.cards import NO_AGENT, TOO_LONG, TOO_OLD
from gpuledger.workflows.inventory.inventory import AGENT_SELECTOR
from gpuledger.workflows.tasks.pauses import all_within

NAMESPACE = LEASE_NAMESPACE
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"

AT_ONCE = 16
"""Agents that are asked at a time, each by a connection of the API server's."""
AGENT_TIMEOUT_S = 5.0
ALL_TIMEOUT_S = 30.0
"""For all agents: whoever was not asked by then is not asked any more."""

NOT_RUNNING = "its agent does not run yet, or not any more"
NO_TIME = f"not asked: others took {ALL_TIMEOUT_S:g} s"
NOT_ALLOWED = f"your account may not `get` pods/proxy in namespace {NAMESPACE}"
UNREACHED = "the API server does not reach its agent"
NO_ANSWER = f"its agent does not answer within {AGENT_TIMEOUT_S:g} s"

Answers = dict[str, NodeUsage | str]
"""Node name -> what its agent has measured, or why that is not known."""


def begin_agents(cluster: ClusterAccess, node: str | None) -> Objects:
    """Start to read the agents' pods, all or the one of a node."""
    on_node = {"fieldSelector": f"spec.nodeName={node}"} if node else {}
    return cluster.begin(PODS, FROM_MEMORY | {"labelSelector": AGENT_SELECTOR} | on_node)


def agents_asked(cluster: ClusterAccess, pods: Iterable[Json], nodes: Collection[str]) -> Answers:
    """Return the answers of the agents of these nodes. Raises Denied for who may not list their pods, and ApiError."""
    try:
        agents = best_by_node(map(agent_pod, pods))
    except Denied as error:
        raise Denied(
            f"{error}; --usage needs `list` on pods and `get` on pods/proxy in namespace {NAMESPACE}"
        ) from None
    answers: Answers = {name: NOT_RUNNING if name in agents else NO_AGENT for name in nodes}
    to_ask = [agents[name] for name in nodes if name in agents and agents[name].address and agents[name].port]
    if to_ask:
        cluster.open()
        with where_asked():
            asyncio.run(_ask_all(cluster, to_ask, answers))
    return answers


async def _ask_all(cluster: ClusterAccess, agents: Iterable[AgentPod], answers: Answers) -> None:
    turns = asyncio.Semaphore(AT_ONCE)

    async def ask(agent: AgentPod) -> None:
        async with turns:
            answers[agent.node_name] = NO_ANSWER  # until it has answered
            answers[agent.node_name] = await _ask(client, agent)

    async with cluster.client() as client:
        for agent in agents:
            answers[agent.node_name] = NO_TIME
        await all_within(ALL_TIMEOUT_S, map(ask, agents))


async def _ask(client: KubeClient, agent: AgentPod) -> NodeUsage | str:
    path = f"{PODS}/{agent.name}:{agent.port}/proxy/usage"
    try:
        found = await client.request(
            "GET", path, timeout_s=AGENT_TIMEOUT_S, longest_bytes=LONGEST_ANSWER_BYTES, follow=False
        )
        return read_node_usage(found, agent.node_name)
    except NotFound as error:
        return NOT_RUNNING if "pods " in _said(error, path) else TOO_OLD  # the API server's own words, or the agent's
    except Denied:
        return NOT_ALLOWED
    except AnswerTooLong:
        return TOO_LONG
    except ApiError as error:
        return NO_ANSWER if isinstance(error.__cause__, TimeoutError) else f"{UNREACHED}: {_said(error, path)}"
    except BadInput as error:
        return f"its agent's answer can't be read: {error}"


def _said(error: ApiError, path: str) -> str:
    """Return what the API server says of an agent, without what was asked."""
    return " ".join(str(error).split()).removeprefix(f"GET {path}: ").removeprefix(f"{error.status}: ")
