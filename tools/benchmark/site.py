"""Where it is measured: a control plane with gpuledger on it, and simulated nodes.

Only what is measured runs: one kube-scheduler at a time, and the operator while it has a part in it. Plain
kube-scheduler has the configuration, the flags and the account of gpuledger's, without the extender.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from benchmark.machine import cpu_s
from benchmark.shapes import CARDS_PER_NODE, NO_CARD, SLIVER, STOCK_CLAIMS, pod, scheduler_of
from benchmark.watching import PODS, PodWatch
from control_plane import ControlPlane, ManagedProcess, free_port
from gpuledger.agent.simulated import FakeNode, fake_nodes, register_node
from gpuledger.formats.annotations import DEVICES_ANNOTATION
from gpuledger.kube_api.client import KubeClient
from gpuledger.model.errors import Unreachable
from installation import NO_KUBELET, NOTHING_RUNS, Installation, scheduler_flags

IN_FLIGHT = 32
"""Requests of the benchmark at once, the floor's too. It is also how many the operator's journal sends."""

REQUEST_S = 120.0
PATIENCE_S = 1800.0
"""How long anything may take. Never how long it should."""

ONE_WATCH = {"kopf_pods_most_nodes": 0}
"""Pods are watched in the same way at each size."""

WARM_UP_PODS = 8
POLL_S = 0.1
QUIET_SHARE = 0.05
"""Of a core: who uses less is at rest."""

QUIET_S, LONGEST_QUIET_S = 0.4, 30.0

Json = dict[str, Any]
T = TypeVar("T")


class Site:
    """A control plane, the nodes on it, and the programs that run."""

    def __init__(self, plane: ControlPlane, installation: Installation, nodes: Sequence[FakeNode]) -> None:
        self.plane, self.installation, self.nodes = plane, installation, nodes
        self.admin: KubeClient
        self.account: KubeClient
        """With the operator's own account."""
        self.scheduler: ManagedProcess | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, node_count: int) -> AsyncIterator[Site]:
        """Start a control plane with this many nodes registered. Neither operator nor scheduler run yet."""
        nodes = fake_nodes("bench", node_count, CARDS_PER_NODE, "A100-40GB")
        with ControlPlane.run() as plane:
            settings = {**NO_KUBELET, **NOTHING_RUNS, **ONE_WATCH, "view_port": free_port()}
            installation = Installation(plane, settings)
            installation.install()
            site = cls(plane, installation, nodes)
            site.admin = await KubeClient.connect(plane.kubeconfig)
            site.account = await KubeClient.connect(installation.kubeconfig)
            try:
                await in_parallel(lambda node: register_node(site.admin, node, ["nvidia.com/gpu"]), nodes)
                yield site
            finally:
                await site.admin.close()
                await site.account.close()

    @property
    def cards(self) -> int:
        """How many cards all nodes have."""
        return len(self.nodes) * CARDS_PER_NODE

    # Programs.

    @property
    def operator(self) -> ManagedProcess | None:
        """The operator, if it runs."""
        return self.installation.operator

    async def start_operator(self, kubeconfig: Path | None = None) -> float:
        """Start the operator; return after how many seconds it was ready."""
        begin_s = time.monotonic()
        self.installation.start_operator(kubeconfig, wait=False)
        await self.until(self.installation.is_ready, "the operator is ready", 0.02)
        return time.monotonic() - begin_s

    async def first_start(self) -> float:
        """Start the operator on an empty ledger; return after how many seconds all cards were in it.

        The audit log tells: to read the metrics of a large cluster every moment costs the operator a third of its CPU.
        """
        begin_s, offset, entered = time.monotonic(), self.plane.audit_offset(), 0
        await self.start_operator()

        def are_all_entered() -> bool:
            nonlocal offset, entered
            events, offset = self.plane.read_audit_log(offset)
            entered += sum((e.resource, e.subresource, e.code) == ("gpuallocations", "status", 200) for e in events)
            return entered >= self.cards

        await self.until(are_all_entered, "all cards are entered")
        await self.quiet()
        return time.monotonic() - begin_s

    def stop_operator(self) -> None:
        """End the operator."""
        if self.installation.operator:
            self.installation.operator.terminate()
            self.installation.operator = None

    async def start_scheduler(self, subject: str, kubeconfig: Path | None = None) -> None:
        """Start a subject's kube-scheduler, with the extender or without, and have it schedule a few pods."""
        self.stop_scheduler()
        name = scheduler_of(subject)
        if name == "plain":
            config = self.plane.directory / "plain.yaml"
            content = self.installation.scheduler_config()
            del content["extenders"]
            profile = content["profiles"][0]
            stock_claims = subject == STOCK_CLAIMS  # needs the plugins that ours does without, and more permissions
            kept = {"percentageOfNodesToScore": profile["percentageOfNodesToScore"]} if stock_claims else profile
            content["profiles"] = [{**kept, "schedulerName": "plain"}]
            config.write_text(yaml.safe_dump(content))
            account = self.plane.kubeconfig if stock_claims else self.installation.kubeconfig
            self.scheduler = self.plane.start_scheduler(config, account, "plain-scheduler", scheduler_flags())
        else:
            self.scheduler = self.installation.start_scheduler(kubeconfig=kubeconfig)
        limits = NO_CARD if name == "plain" else SLIVER
        pods = [pod(f"warm-up-{number}", name, limits, "warm-up") for number in range(WARM_UP_PODS)]
        async with PodWatch(self.admin, pods) as watch:
            await in_parallel(self.create, pods)
            await watch.wait(watch.bound, PATIENCE_S)
        await self.delete_pods("warm-up")

    def stop_scheduler(self) -> None:
        """End the kube-scheduler, if one runs."""
        if self.scheduler:
            self.scheduler.terminate()
            self.scheduler = None

    async def quiet(self) -> None:
        """Wait until operator and scheduler are at rest."""
        deadline_s = time.monotonic() + LONGEST_QUIET_S
        while time.monotonic() < deadline_s:
            before_s = self._cpu_s()
            await asyncio.sleep(QUIET_S)
            if self._cpu_s() - before_s <= QUIET_SHARE * QUIET_S:
                return

    def _cpu_s(self) -> float:
        return sum(cpu_s(program.pid) for program in (self.operator, self.scheduler) if program)

    # Pods.

    async def create(self, body: Json) -> Json:
        """Create a pod, however long it takes; return it as it is then."""
        return await self.admin.request("POST", PODS, body, timeout_s=REQUEST_S)

    async def delete_pods(self, role: str = "") -> None:
        """Delete the pods of a role, or all of them, and wait until their shares are free."""
        selector = {"labelSelector": f"role={role}"} if role else {}
        await self._delete(selector)
        while await self._pods(selector):
            await asyncio.sleep(POLL_S)
            await self._delete(selector)
        shares = sum(_shares(found) for found in await self._pods({}))
        if self.operator:
            holders = "gpuledger_holders"
            await self.until(lambda: self.installation.metrics().get(holders) == shares, "the shares are free")

    async def _delete(self, selector: dict[str, str]) -> None:
        with contextlib.suppress(Unreachable):  # thousands may take longer than the API server has for a request
            await self.admin.request(
                "DELETE", PODS, {"gracePeriodSeconds": 0}, parameters=selector, timeout_s=REQUEST_S
            )

    async def _pods(self, selector: dict[str, str]) -> list[Json]:
        return [found async for page in self.admin.pages(PODS, selector) for found in page]

    async def until(self, done: Callable[[], bool], what: str, poll_s: float = POLL_S) -> None:
        """Wait until something is so. Raises TimeoutError if it never is, or a program has ended."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not await asyncio.to_thread(done):
            for program in (self.operator, self.scheduler):
                if program and not program.alive:
                    raise TimeoutError(f"{program.name} has ended:\n{program.log_text()[-2000:]}")
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"after {PATIENCE_S:g} s it is not so that {what}")
            await asyncio.sleep(poll_s)


def _shares(found: Json) -> int:
    told = found["metadata"].get("annotations", {}).get(DEVICES_ANNOTATION, "{}")
    return sum(len(cards) for cards in json.loads(told).values())


async def in_parallel(step: Callable[[T], Awaitable[object]], items: Iterable[T], at_once: int = IN_FLIGHT) -> None:
    """Take a step with each of the items, in their order, some at a time."""
    left = iter(items)

    async def worker() -> None:
        for item in left:
            await step(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())
