"""Cards that a pod may use without a share in the ledger: they take no new share until that is cleared up.

There are three kinds. A card is *not confirmed* as long as its object is new, and its node's agent has not told what
containers have of it. A *stranger* is a bound pod that another system's device plugin has given cards, or is about to;
the only source for its cards is the annotation that this plugin reads. On a node of our own agent it gets none: the
agent starts no container without a share. A *misfit* is a share that was found and does not fit; the API server lists
it on the card.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from gpuledger.ledger.entry import CardEntry
from gpuledger.model.card import Card, CardPhase
from gpuledger.model.clock import Listeners
from gpuledger.model.node import Dialect, NodeOffer, UnaccountedPod
from gpuledger.model.share import Holder, Pod

NOT_CONFIRMED = "its object is new, and its holders are not known yet"


class CardLookup(Protocol):
    """The rest of the ledger, as this part needs it."""

    def node_names(self) -> Collection[str]:
        """Return the nodes that have a card in the ledger."""

    def entries_of_node(self, node_name: str) -> list[CardEntry]:
        """Return the lines of one node's cards, by index."""

    def offer(self, node_name: str) -> NodeOffer | None:
        """Return the offer of the node's device plugin, None while it does not answer."""


class UnaccountedPods:
    """All strangers of a ledger. `touch` is called with the name of a node on which one comes, changes, or goes."""

    def __init__(
        self,
        cards: CardLookup,
        holders_of: Callable[[str], list[tuple[Card, Holder]]],
        touch: Callable[[str], None],
    ) -> None:
        self._cards, self._holders_of, self._touch = cards, holders_of, touch
        self._of_node: dict[str, dict[str, UnaccountedPod]] = {}  # node name -> pod UID -> stranger
        self._nodes: dict[str, str] = {}  # pod UID -> name of its node
        self.listed = False
        """Whether all bound pods were looked at once."""
        self.on_change = Listeners[[str]]()
        """Called with the name of a node of which other cards may be closed than before."""

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._nodes)

    def uids(self) -> Collection[str]:
        """Return the UIDs of all strangers."""
        return self._nodes.keys()

    def find(self, pod_uid: str) -> UnaccountedPod | None:
        """Return a stranger, None if the pod is none."""
        return self._of_node.get(self._nodes.get(pod_uid, ""), {}).get(pod_uid)

    def note(self, stranger: UnaccountedPod) -> bool:
        """Observe a pod that may be one; return whether it lacks shares. The cards of its own shares stay open."""
        uid = stranger.pod.uid
        if not self.lacks(stranger):
            self.forget(uid)
            return False
        if self.find(uid) != stranger:
            self.forget(uid)
            self._of_node.setdefault(stranger.node_name, {})[uid] = stranger
            self._nodes[uid] = stranger.node_name
            self._changed(stranger.node_name)
        return True

    def forget(self, pod_uid: str) -> Pod | None:
        """Record that a pod uses no card any more, or has all its shares; return it if it was a stranger."""
        node_name = self._nodes.pop(pod_uid, None)
        if node_name is None:
            return None
        here = self._of_node[node_name]
        pod = here.pop(pod_uid).pod
        if not here:
            del self._of_node[node_name]
        self._changed(node_name)
        return pod

    def all_seen(self) -> None:
        """Record that all bound pods were looked at: a card that was closed before, and is not any more, opens."""
        if not self.listed:
            self.listed = True
            for node_name in list(self._cards.node_names()):
                if any(each.phase == CardPhase.UNACCOUNTED for each in self._cards.entries_of_node(node_name)):
                    self.on_change(node_name)

    def lacks(self, stranger: UnaccountedPod) -> bool:
        """Return whether a container of a pod has fewer cards in the ledger, on the pod's node, than it counts."""
        held = Counter(
            container.name
            for card, holder in self._holders_of(stranger.pod.uid)
            if card.node_name == stranger.node_name
            for container in holder.share.containers
        )
        for each in stranger.counted:
            held[each.container] -= each.cards
        return any(left < 0 for left in held.values())

    def is_closed(self, entry: CardEntry) -> bool:
        """Return whether a card takes no new share for this reason."""
        if entry.misfits or entry.card.node_name not in self._of_node:
            return bool(entry.misfits)
        return entry.card.uuid in self._unaccounted(entry.card.node_name)

    def closed(self, node_name: str) -> dict[str, str]:
        """Return the cards of a node that take no new share for this reason: UUID -> why, for people."""
        entries = self._cards.entries_of_node(node_name)
        found = {each.card.uuid: each.reason or NOT_CONFIRMED for each in entries if each.open and not each.confirmed}
        return self._unaccounted(node_name) | found

    def _unaccounted(self, node_name: str) -> dict[str, str]:
        entries = self._cards.entries_of_node(node_name)
        found = {
            entry.card.uuid: f"a share of pod {entry.misfits[0].pod} does not fit on it: {entry.misfits[0].why}"
            for entry in entries
            if entry.misfits
        }
        here, offer = self._of_node.get(node_name), self._cards.offer(node_name)
        if not here or offer is None or offer.dialect is Dialect.NATIVE:
            return found
        for stranger in here.values():
            if len(found) == len(entries):
                break
            for uuid in self._used_by(stranger, entries, offer):
                found.setdefault(uuid, f"pod {stranger.pod} may be on it, and its share is not in the ledger")
        return found

    def cards_of(self, pod_uid: str, node_name: str) -> Collection[str] | None:
        """Return the cards of its node that a pod may have got without the ledger, by UUID; None if that is unknown.

        It is unknown while the node's plugin does not answer, and on a node of our own agent.
        """
        stranger, offer = self.find(pod_uid), self._cards.offer(node_name)
        if offer is None or offer.dialect is Dialect.NATIVE:
            return None
        if stranger is None or stranger.node_name != node_name:
            return ()
        return self._used_by(stranger, self._cards.entries_of_node(node_name), offer)

    def _used_by(self, stranger: UnaccountedPod, entries: Iterable[CardEntry], offer: NodeOffer) -> Collection[str]:
        """Return the cards of its node that a stranger may use: those that the node's plugin was told of, or all.

        All of the vendor whose cards it counts, that is. A name that no plugin of the node has served gives it none.
        """
        served = offer.resources | offer.once
        vendors = {each.vendor for each in stranger.counted if each.resource in served}
        if not vendors or not self.lacks(stranger):
            return ()
        uid, assigned = stranger.pod.uid, stranger.assigned.get(offer.dialect, frozenset())
        cards: Mapping[str, CardEntry] = {entry.card.uuid: entry for entry in entries}
        known = assigned if assigned and assigned <= cards.keys() else None
        return [
            uuid
            for uuid, entry in cards.items()
            if uid not in entry.holders and (uuid in known if known is not None else entry.card.vendor in vendors)
        ]

    def _changed(self, node_name: str) -> None:
        self._touch(node_name)
        self.on_change(node_name)
