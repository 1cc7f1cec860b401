"""A cluster whose operator and kube-scheduler work through fault proxies."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager

from cluster.cluster import DEADLINE_S, Cluster, Json
from control_plane import ControlPlane
from faults.kinds import Hold
from faults.proxy import Proxy
from faults.requests import of_kind
from installation import NO_KUBELET, Installation

LAST_EXCHANGES = 30

QUIET_S = 0.2
"""How long the operator must be at rest. It has few nodes and pods to look after."""


class FaultyCluster(Cluster):
    """A cluster with `api` between operator and API server, `extender` between kube-scheduler and operator."""

    def __init__(self, plane: ControlPlane, installation: Installation, api: Proxy, extender: Proxy) -> None:
        super().__init__(plane, installation)
        self.api, self.extender = api, extender
        self._kubeconfig = api.kubeconfig_from(installation.kubeconfig)

    def start_operator(self) -> None:
        """Start the operator behind its proxy."""
        self.installation.start_operator(self._kubeconfig)

    def crash_operator(self) -> None:
        """Kill the operator, cut all that is held, and start it again.

        kube-scheduler's questions wait until the operator has looked through what it finds; else they are now and then
        refused, and come again after seconds.
        """
        self.installation.kill_operator()
        questions = [self.extender.arm(of_kind(kind), Hold(), times=None) for kind in ("filter", "bind")]
        self.extender.disarm(*(set(self.extender.armed) - set(questions)), cut=True)
        self.api.disarm(cut=True)
        self.start_operator()
        self.settle(QUIET_S)
        self.extender.disarm(*questions)

    def calm(self) -> None:
        """Take back all faults, and see that the operator runs."""
        self.api.disarm()
        self.extender.disarm()
        if not (self.installation.operator and self.installation.operator.alive):
            self.start_operator()

    def ask(self, verb: str, arguments: Json) -> Json:
        """Ask the operator what kube-scheduler could ask it, past the proxy; return the answer."""
        headers = self.installation.extender_headers()
        url = f"{self.installation.extender_url}/{verb}"
        question = urllib.request.Request(url, json.dumps(arguments).encode(), headers)  # noqa: S310 - our own process
        with urllib.request.urlopen(question, timeout=DEADLINE_S) as answer:  # noqa: S310
            return dict(json.loads(answer.read()))

    def cards_of(self, pod_uid: str) -> set[str]:
        """Return the UUIDs of the cards that have the pod in the ledger."""
        return {uuid for uuid, held in self.holders().items() if any(h["podUID"] == pod_uid for h in held)}

    def _logs(self) -> str:
        lines = [super()._logs()]
        for name, proxy in (("api", self.api), ("extender", self.extender)):
            lines += [f"--- last requests through {name}", *map(str, list(proxy.exchanges)[-LAST_EXCHANGES:])]
        return "\n".join(lines)


@contextmanager
def faulty_cluster(
    plane: AbstractContextManager[ControlPlane],
    settings: Mapping[str, object],
    scheduler_changes: Mapping[str, object] | None = None,
) -> Iterator[FaultyCluster]:
    """Run gpuledger on a control plane, everything through proxies.

    For what changes in kube-scheduler's configuration, see Installation.
    """
    with plane as running, ExitStack() as stack:
        installation = Installation(running, {**NO_KUBELET, **settings}, scheduler_changes=scheduler_changes)
        installation.install()
        api = stack.enter_context(Proxy.before_api_server(installation.kubeconfig))
        extender = stack.enter_context(Proxy(installation.extender_url))
        cluster = FaultyCluster(running, installation, api, extender)
        stack.callback(cluster.close)
        cluster.start_operator()
        stack.callback(installation.kill_operator)
        scheduler = installation.start_scheduler(extender.url)
        stack.callback(scheduler.kill)
        yield cluster
