"""A node whose pods have claims, by the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fakes.agent_node import NODE, AgentNode
from fakes.objects import a_container, a_pod_object
from gpuledger.agent.grants.grants import NodeCapabilities
from gpuledger.agent.isolation.choice import Installed, Isolation
from gpuledger.agent.kubelet.dra import ClaimKey
from gpuledger.formats.runtime.cdi import Grant, VendorDevices
from gpuledger.model.card import Amounts, total
from gpuledger.model.share import ClaimRef, ContainerShare, Holder, HolderState, Pod, Share

Json = dict[str, Any]


def key(name: str, namespace: str = "default", uid: str = "") -> ClaimKey:
    """Return a claim as the kubelet names it; its UID is `uid-NAME`, if nothing else is said."""
    return ClaimKey(namespace, name, uid or f"uid-{name}")


def ref(name: str, shared: bool = False) -> ClaimRef:
    """Return a claim as the ledger names it."""
    return ClaimRef(name, f"uid-{name}", shared)


def part(entry: str, claim: ClaimRef | None, memory_mib: int = 100, cores: int = 10) -> ContainerShare:
    """Return what an entry has of one card."""
    return ContainerShare(entry, memory_mib, cores, claim)


class ClaimNode(AgentNode):
    """The same node, with pods that have claims."""

    def claiming(self, name: str, uses: Mapping[str, Sequence[str]], **named: str) -> Json:
        """Create a pod on the node: container -> the claims that it uses, `claim` or `claim/request`.

        `named` are claims that it names: name in the pod -> name of the ResourceClaim. The others are made for it.
        """
        containers = [a_container(each, {}) for each in uses]
        for container in containers:
            listed = [each.partition("/") for each in uses[container["name"]]]
            claims = [{"name": claim} | ({"request": request} if request else {}) for claim, _, request in listed]
            container["resources"] = {"claims": claims}
        pod = a_pod_object(name, uid=f"uid-{name}", node_name=NODE, containers=containers)
        locals_ = dict.fromkeys(each.partition("/")[0] for listed in uses.values() for each in listed)
        pod["spec"]["resourceClaims"] = [
            {"name": each, "resourceClaimName": named[each]}
            if each in named
            else {"name": each, "resourceClaimTemplateName": "a"}
            for each in locals_
        ]
        return self.api.put_pod(pod)

    def give(
        self,
        pod: str,
        parts: Mapping[int, Sequence[ContainerShare]],
        state: HolderState = HolderState.ALLOCATED,
        exclusive: bool = False,
    ) -> None:
        """Have the ledger say what a pod has: index of a card -> its parts; `exclusive`: it has these cards alone."""
        for index, listed in parts.items():
            card = self.cards[index]
            amounts = total(Amounts(each.memory_mib, each.cores, 1) for each in listed)
            share = Share(card.uuid, amounts, exclusive, tuple(listed))
            holder = Holder(Pod(f"uid-{pod}", "default", pod), share, state)
            self.set_holders(card, *self.holders(card, but=f"uid-{pod}"), holder)

    def granted(self) -> dict[str, Grant]:
        """Return name of the grant -> grant, as their files say."""
        self.start_agent()
        return {grant.name: grant for grant in self.grants.all()}

    def told(self, name: str) -> dict[str, str]:
        """Return the variables of a grant."""
        (grant,) = (each for each in self.grants.all() if each.name == name)
        return dict(line.split("=", 1) for line in grant.edits["env"])

    def isolate(self, isolation: Isolation) -> None:
        """Have the node keep shares apart in this way."""
        installed = Installed(str(self.root / "hami"), mps_directory="/mps", why_no_driver_limits="")
        self.capabilities = NodeCapabilities(isolation, installed, VendorDevices())


@pytest.fixture
def node(tmp_path: Path) -> ClaimNode:
    """Return a node with four cards, and an agent that has just started."""
    (tmp_path / "hami").mkdir()
    return ClaimNode(tmp_path)
