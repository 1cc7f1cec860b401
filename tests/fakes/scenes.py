"""Scenes for `gpuledger simulate -f` and `--from-cluster`: two nodes, the command on its standard input, a cluster."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import yaml
from click.testing import CliRunner, Result

from builders import a_card, cards_of
from fakes.objects import DIALECTS, a_node_object
from gpuledger.command_line.program import main
from gpuledger.model.errors import Denied, NotFound
from gpuledger.model.share import ContainerShare, Share
from gpuledger.placement.policy import Policy
from gpuledger.what_if.answer import Answer, answer
from gpuledger.what_if.live import read_cluster
from gpuledger.what_if.scene import take_document

Json = dict[str, Any]

NODE_A = a_node_object("node-a", cards_of("node-a", 2))
NODE_B = a_node_object("node-b", cards_of("node-b", 2))


def simulate(*documents: object, arguments: Sequence[str] = ("-o", "json"), text: str = "") -> Result:
    """Give documents to the command on its standard input."""
    given = text or yaml.safe_dump_all(documents)
    return CliRunner().invoke(main, ["simulate", "-f", "-", *arguments], input=given)


def shown(*documents: object, arguments: Sequence[str] = ()) -> Any:
    """Return what the command prints for scripts."""
    result = simulate(*documents, arguments=("-o", "json", *arguments))
    assert result.exit_code in (0, 1), result.output
    return json.loads(result.stdout)


def share(uuid: str) -> Share:
    """Return all of a card."""
    card = a_card(uuid=uuid)
    return Share(uuid, card.capacity, True, (ContainerShare("main", card.capacity.memory_mib, 100),))


class FakeReads:
    """The lists of a cluster, each in one page."""

    def __init__(
        self,
        nodes: list[Json],
        cards: list[Json],
        running: list[Json],
        pending: list[Json],
        groups: Mapping[str, list[Json]] | None = None,
        quotas: Sequence[Json] | None = (),
        claims: Mapping[str, list[Json]] | None = None,
    ) -> None:
        self._claims = claims
        self._lists = {"nodes": nodes, "cards": cards, "running": running, "pending": pending, **(groups or {})}
        self._quotas = quotas

    async def _page(self, name: str) -> AsyncIterator[list[Json]]:
        # As the API server does: objects of a list do not say their kind.
        yield [{key: value for key, value in each.items() if key != "kind"} for each in self._lists[name]]

    def nodes(self) -> AsyncIterator[list[Json]]:
        return self._page("nodes")

    def allocations(self) -> AsyncIterator[list[Json]]:
        return self._page("cards")

    def running_pods(self) -> AsyncIterator[list[Json]]:
        return self._page("running")

    def pending_pods(self, scheduler_names: Sequence[str]) -> AsyncIterator[list[Json]]:
        return self._page("pending")

    async def resource_quotas(self) -> AsyncIterator[list[Json]]:
        if self._quotas is None:
            raise Denied("not allowed", 403)
        yield [{key: value for key, value in each.items() if key != "kind"} for each in self._quotas]

    async def claim_objects(self, kind: str) -> AsyncIterator[list[Json]]:
        if self._claims is None:
            raise NotFound("no resource.k8s.io/v1", 404)
        yield self._claims.get(kind, [])

    def groups(self, api_group: str, versions: Sequence[str], plural: str) -> AsyncIterator[list[Json]]:
        return self._page(api_group)


async def answered(reads: FakeReads, *documents: object, add_nodes: int = 0, like: str = "") -> Answer:
    scene = await read_cluster(reads, ["gpuledger"], DIALECTS)
    for document in documents:
        take_document(document, "file", scene)
    return answer(scene, DIALECTS, Policy(), add_nodes, like)
