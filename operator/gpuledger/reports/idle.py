"""Shares that are idle now, by the words of the agents of their nodes: who holds what, and since when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from gpuledger.formats.idle import Idleness, ShareKey
from gpuledger.model.card import Card
from gpuledger.model.clock import rfc3339
from gpuledger.model.json_object import Json
from gpuledger.model.share import Holder, part_of_card


def idle_shares(
    holders: Iterable[tuple[Card, Holder]], said: Mapping[str, Mapping[ShareKey, Idleness]], now: datetime
) -> list[Json]:
    """Return the shares that are idle, those first that waste the most; `said`: name of a node -> its agent's word."""
    found: list[Json] = []
    for card, holder in holders:
        idle = said.get(card.node_name, {}).get((holder.pod.uid, card.uuid))
        if idle is None or idle.since is None:
            continue
        found.append(
            {
                "namespace": holder.pod.namespace,
                "pod": holder.pod.name,
                "owner": holder.pod.charge.owner or None,
                "node": card.node_name,
                "card": card.uuid,
                "index": card.index,
                "cards": round(part_of_card(holder.share, card), 3),
                "memoryMiB": holder.share.amounts.memory_mib,
                "idleSince": rfc3339(idle.since),
                "idleSeconds": idle.now_s(now),
            }
        )
    return sorted(found, key=lambda each: (-each["cards"] * each["idleSeconds"], each["namespace"], each["pod"]))
