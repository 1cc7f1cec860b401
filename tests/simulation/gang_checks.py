"""What must be true of gangs, worked out from the API server's objects alone."""

from typing import TYPE_CHECKING

from simulation.api_server import Change, Json, Kind
from simulation.readings import free_mib, holders_of, lives_bound
from simulation.scenario import Wish

if TYPE_CHECKING:
    from simulation.world import World


class GangChecks:
    """Follows who was bound, and who has gone."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._bound: set[str] = set()  # UIDs of the members that were bound at some time
        self._gone: set[str] = set()  # UIDs of the members that were deleted, or have ended
        self._passed: set[str] = set()  # UIDs of those that had their cards when a Binding was sent, and have them yet
        self._nodes_changed = False
        world.api.listeners.append(self._take)

    def _take(self, change: Change) -> None:
        if change.kind is Kind.NODE and change.old is not None:
            self._nodes_changed = True
        if change.kind is Kind.CARD:
            held = {holder["podUID"] for holder in holders_of(change.new)}
            self._passed -= {holder["podUID"] for holder in holders_of(change.old)} - held
        if change.kind is not Kind.POD:
            return
        pod = change.new or change.object
        uid = pod["metadata"]["uid"]
        if lives_bound(pod):
            self._bound.add(uid)
        has_ended = pod["status"].get("phase") in ("Succeeded", "Failed")
        if change.new is None or has_ended or pod["metadata"].get("deletionTimestamp"):
            self._gone.add(uid)

    def sent_too_early(self, uid: str) -> str:
        """Return what is wrong with a Binding that is about to be sent: too few are there, or have their cards.

        Once that was so, all of them may be bound, though one is deleted meanwhile: as if that came a moment later.
        """
        wish = self._world.wishes[uid]
        if not wish.gang or self._can_not_know():
            return ""
        there = {member for member, other in self._world.wishes.items() if other.gang == wish.gang}
        there = {member for member in there if self._is_bound(member) or self._has_all(member)}
        if len(there) >= wish.minimum:
            self._passed |= there
        if uid in self._passed:
            return ""
        return (
            f"a Binding of {uid} is sent, and {len(there)} of the {wish.minimum} members of its gang have their cards"
        )

    def halves(self) -> list[str]:
        """Return which gangs are bound in part, though they have never been whole and no member has gone.

        Not where the API server refuses the Binding of a member, and the operator is killed that knew its place.
        """
        is_place_lost = self._world.bind_refused and self._world.has_crashed
        if self._can_not_know() or self._nodes_changed or is_place_lost:
            return []
        found = []
        for gang, wish in self._gangs().items():
            members = {uid for uid, other in self._world.wishes.items() if other.gang == gang}
            bound = members & self._bound
            if bound and len(bound) < wish.minimum and not members & self._gone:
                found.append(f"gang {gang} is bound in part: {', '.join(sorted(bound))}")
        return found

    def _can_not_know(self) -> bool:
        """Return whether an operator relies on what is undone behind its back.

        By etcd, or by another operator that is active all the time, which no installation has: it gives back the share
        of a pod that is not bound, as one that it has not entered itself.
        """
        scenario = self._world.scenario
        return bool(self._world.api.starts) or (scenario.replicas > 1 and not scenario.follows_lease)

    def waits_with_others(self, uid: str) -> bool:
        """Return whether a pod is placed together with others, or not at all."""
        wish = self._world.wishes[uid]
        return bool(wish.gang) and self._missing(wish) > 0

    def waiting_with_room(self) -> list[str]:
        """Return the members of gangs that wait though there is room for all that are missing; of alike ones only."""
        found: list[str] = []
        for gang, wish in self._gangs().items():
            waiting = self._waiting(gang)
            wishes = {(self._world.wishes[uid].cards, self._world.wishes[uid].memory_mib) for uid in waiting}
            missing = self._missing(wish)
            if 0 < missing <= len(waiting) and len(wishes) == 1 and self._number_of(wish) >= missing:
                found += waiting
        return found

    def _gangs(self) -> dict[str, Wish]:
        return {wish.gang: wish for wish in self._world.wishes.values() if wish.gang}

    def _waiting(self, gang: str) -> list[str]:
        pods = [pod for pod in self._world.api.pods.values() if not pod["spec"].get("nodeName")]
        uids = [pod["metadata"]["uid"] for pod in pods if not pod["metadata"].get("deletionTimestamp")]
        return [uid for uid in uids if self._world.wishes[uid].gang == gang]

    def _missing(self, wish: Wish) -> int:
        return wish.minimum - sum(map(self._is_bound, self._members_there(wish.gang)))

    def _members_there(self, gang: str) -> list[str]:
        """Return the members that have not ended; those that are being deleted are there until they are gone."""
        pods = self._world.api.pods.values()
        uids = [pod["metadata"]["uid"] for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")]
        return [uid for uid in uids if self._world.wishes[uid].gang == gang]

    def _is_bound(self, uid: str) -> bool:
        pod = self._world.pod_of(uid)
        return pod is not None and lives_bound(pod)

    def _has_all(self, uid: str) -> bool:
        cards = self._world.api.cards.values()
        held = sum(any(holder["podUID"] == uid for holder in holders_of(card)) for card in cards)
        return held == self._world.wishes[uid].cards

    def _number_of(self, wish: Wish) -> int:
        """Return how many pods of a kind there is room for, beside all that hold cards."""
        return sum(self._number_on(name, wish) for name in self._world.node_names)

    def _number_on(self, node_name: str, wish: Wish) -> int:
        cards = [card for card in self._world.api.cards.values() if card["spec"]["nodeName"] == node_name]
        room = [_number_in(card, wish) for card in cards if self._world.nodes.takes_pods(card)]
        number = sum(room) // wish.cards
        while sum(min(each, number) for each in room) < number * wish.cards:  # a pod's cards are different ones
            number -= 1
        return number


def _number_in(card: Json, wish: Wish) -> int:
    """Return how many pods can have what they ask for of one card."""
    if not wish.memory_mib:
        return 0 if holders_of(card) else 1
    slots: int = card["spec"]["capacity"]["number"] - len(holders_of(card))
    return min(free_mib(card) // wish.memory_mib, slots)
