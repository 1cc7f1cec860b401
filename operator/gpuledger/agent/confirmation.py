"""Answers the operator's question what containers of this node have: before a card takes pods whose object is new.

The answer is what this agent has given out: its files, which outlive it. A pod of which nothing is left has nothing;
one that the API server does not know any more is named, and looked for (`ended_pods.py`), so that what it has counts
until its processes have ended. The operator asks when a card's object was made, and at no other time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from gpuledger.agent.ended_pods import EndedPods
from gpuledger.agent.node_entry import NodeAnnotation
from gpuledger.formats.confirmation import answer_of, answer_text, asked, read_answer
from gpuledger.formats.runtime.cdi import Grant
from gpuledger.model.card import Amounts
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import Json
from gpuledger.model.share import ClaimRef, ContainerShare, Holder, Pod, Share

logger = logging.getLogger(__name__)


def holders_of(grants: Iterable[Grant]) -> list[Holder]:
    """Return the holders that follow from grants, one for each pod and card.

    What pods have together by one claim is left out: these pods are known by their annotations alone. A pod counts
    as if all of its containers ran at the same time: that is never less than the ledger had for it.
    """
    parts: dict[tuple[Pod, str], list[tuple[ContainerShare, bool]]] = {}
    for grant in (each for each in grants if each.of_one_pod):
        pod = Pod(grant.pod_uid, grant.namespace, grant.pod)
        for part in grant.parts:
            share = ContainerShare(_part_name(grant), part.memory_mib, part.cores, _claim(grant))
            parts.setdefault((pod, part.uuid), []).append((share, part.exclusive))
    return [Holder(pod, _share(uuid, found)) for (pod, uuid), found in parts.items()]


def _share(uuid: str, parts: Sequence[tuple[ContainerShare, bool]]) -> Share:
    containers = tuple(container for container, _ in parts)
    amounts = Amounts(sum(c.memory_mib for c in containers), sum(c.cores for c in containers), len(containers))
    return Share(uuid, amounts, any(exclusive for _, exclusive in parts), containers)


def _part_name(grant: Grant) -> str:
    return grant.container if grant.claim is None else f"{grant.claim.name}/{grant.claim.request}"


def _claim(grant: Grant) -> ClaimRef | None:
    claim = grant.claim
    return None if claim is None else ClaimRef(claim.name, claim.uid)


class Confirmation:
    """What the node's annotation says of grants: the answer to the last question."""

    def __init__(self, entry: NodeAnnotation, grants: Callable[[], Iterable[Grant]], ended: EndedPods) -> None:
        self.entry, self._grants, self._ended = entry, grants, ended
        self._answered, self._token = "", ""  # the question that was answered last, and the last one
        self._wanted = asyncio.Event()

    def begin(self, node: Json) -> None:
        """Observe what was answered before this agent started; from now on it answers."""
        text = answer_of(node)
        try:
            self._answered = read_answer(text).token if text else ""
        except BadInput:
            text = None
        self.entry.want(text or answer_text(""))

    def decline(self) -> None:
        """Answer nothing, and say so."""
        self.entry.want("")

    def observe(self, pod: Json, gone: bool) -> None:
        """Observe this agent's own pod: it carries the question."""
        token = asked(pod)
        if token and token not in (self._token, self._answered):
            self._token = token
            self._wanted.set()

    async def run(self) -> None:
        """Answer, until cancelled."""
        while True:
            await self._wanted.wait()
            await self._ended.complete.wait()
            self._wanted.clear()
            self._answer(self._token)

    def _answer(self, token: str) -> None:
        over = self._ended.over()
        holders = holders_of(grant for grant in self._grants() if grant.pod_uid not in over)
        for holder in holders:
            self._ended.look_for(holder.pod.uid)
        try:
            self.entry.want(answer_text(token, holders))
        except BadInput as error:
            logger.error("the operator's question can't be answered, so new cards of this node stay closed: %s", error)
            return
        self._answered = token
        logger.info("answered the operator: %d pods have shares of cards here", len({each.pod for each in holders}))
