"""What must never happen, and what must be true in the end; worked out from the API server's objects alone.

Nothing here asks the program how it counts: sums, the annotation and who fits are done by hand.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from fakes.virtual_time import EPOCH
from simulation.api_server import Change, Json, Kind
from simulation.gang_checks import GangChecks
from simulation.kube_scheduler import FLUSH_S
from simulation.operator_process import OperatorProcess
from simulation.quota_checks import allows
from simulation.readings import (
    amount_asked,
    amounts_of,
    claims_of,
    containers_of,
    devices,
    has_room,
    holders_of,
    lives_bound,
)
from simulation.scenario import CARD_MIB, SETTINGS, Wish

if TYPE_CHECKING:
    from simulation.world import World

AMOUNTS = ("memoryMiB", "cores", "number")

KEPT_AFTER_FORCE_S = 60.0 - 0.001
"""How long the share of a pod stays that was deleted by force while it may have run: 30 s to end, and the delay.

Less a millisecond: the simulation's time is a sum of floats, and 61.1 less 1.1 may be the last bit short of 60.
"""

PROMPT_S = 60.0
"""How long a pod may wait where there is room for it, once nothing goes wrong: back-off, and the time to be woken."""

UNWOKEN_S = PROMPT_S + FLUSH_S
"""The same where the API server has refused to let a pod be woken: then kube-scheduler's own rhythm is what is left."""

UNASKED_S = PROMPT_S + 2 * FLUSH_S
"""The same where kube-scheduler preempts, and what it has asked for, or was told, is lost: that is given up after its
next question, and the one after that leads on."""

GANG_S = 2.5 * PROMPT_S
"""The same where there are gangs: what is kept for one may have to end, and another one may have a turn alone."""

MANY_EVICTIONS = 4
"""So many are enough for any pod."""


class Violation(Exception):  # noqa: N818 - reads as what it is
    """Something that must not happen has happened."""


class Checker:
    """Looks at every change of an object, at the moment of the change."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._since_s: dict[str, float] = {}  # UID of a pod that waits although there is room for it -> since when
        self._versions: dict[tuple[str, str], int] = {}  # operator and card UUID -> version that it has seen
        self._taken: dict[tuple[str, str], float] = {}  # card, UID of a pod deleted by force once bound -> when
        self._kept_s: dict[tuple[str, str], float] = {}  # card, UID of a pod for which room is kept on it -> since when
        self._begun_twice: set[str] = set()  # UIDs of pods to which more was promised than they ask for
        self._disturbed: set[str] = set()  # nodes whose agent was away
        self.gangs = GangChecks(world)
        world.api.listeners.append(self._take)

    def _take(self, change: Change) -> None:
        if change.kind is Kind.CARD:
            self._check_card(change)
        elif change.kind is Kind.POD:
            self._check_pod(change)
        elif change.kind is Kind.NODE and change.old is not None:
            self._disturbed.add(change.key)

    def restored(self) -> None:
        """Take in that etcd has older data: what was undone has never happened."""
        self._taken = {(uuid, uid): at_s for (uuid, uid), at_s in self._taken.items() if not self._world.pod_of(uid)}
        self._disturbed |= set(self._world.node_names)

    # At every change.

    def _check_card(self, change: Change) -> None:
        card = change.new
        if card is None:
            self._check_deleted(change)
            return
        holders, capacity = holders_of(card), card["spec"]["capacity"]
        for amount in AMOUNTS:
            total = sum(holder[amount] for holder in holders)
            before = sum(holder[amount] for holder in holders_of(change.old))
            if total > capacity[amount] and total > before:  # it may have shrunk
                raise Violation(f"card {change.key} is over-allocated: {amount} {total} of {capacity[amount]}")
        if len(holders) > 1 and any(holder["exclusive"] for holder in holders):
            raise Violation(f"card {change.key}: an exclusive holder is not alone")
        self._check_who_left(change, card)

    def _check_deleted(self, change: Change) -> None:
        if holders_of(change.old):
            raise Violation(f"card {change.key} was deleted though pods hold it")
        if change.object["spec"]["uuid"] not in self._world.nodes.unsteady:
            raise Violation(f"card {change.key} was deleted though its node reports it")

    def _check_who_left(self, change: Change, card: Json) -> None:
        for entry in (*claims_of(card), *(holder for holder in holders_of(card) if holder["state"] == "reserved")):
            self._kept_s.setdefault((change.key, entry["podUID"]), self._world.clock.now_s)
        before = {holder["podUID"]: holder for holder in holders_of(change.old)}
        after = {holder["podUID"]: holder for holder in holders_of(card)}
        for uid, holder in before.items():
            if uid not in after:
                self._check_may_leave(uid, card)
            elif amounts_of(holder) != amounts_of(after[uid]):
                raise Violation(f"card {change.key}: the share of {uid} has changed")
            if holder["state"] == "reserved" and after.get(uid, {"state": "releasing"})["state"] == "releasing":
                self._check_may_be_taken_back(uid, card, holder["deadline"])

    def _check_may_be_taken_back(self, uid: str, card: Json, deadline: str) -> None:
        """Check that a waiting pod keeps what others have left for it, unless a more important one needs the place.

        Nor is it kept once something is missing of it, a claim that could not be written, or the node's agent, and once
        the API server forbids a Bind to use it, nor while kube-scheduler leaves out its node, nor once a Bind has
        failed that took it together with cards that the pod had found by itself.
        """
        pod, node_name = self._world.pod_of(uid), card["spec"]["nodeName"]
        others = (each for key, each in self._world.api.cards.items() if key != card["metadata"]["name"])
        if any(holder["podUID"] == uid and holder["state"] != "reserved" for o in others for holder in holders_of(o)):
            return
        is_left_out = node_name not in self._world.offered.get(uid, [node_name])
        disturbed = self._world.write_refused or node_name in self._disturbed or is_left_out
        if pod is None or pod["spec"].get("nodeName") or self._is_over(uid, card, deadline) or disturbed:
            return
        more_important = [other for other in self._waiting() if other["spec"]["priority"] > pod["spec"]["priority"]]
        if self._is_promised_all(uid, card) and not more_important:
            raise Violation(
                f"{uid} waits, and what others have left for it of card {card['spec']['uuid']} is taken back"
            )

    def _is_over(self, uid: str, card: Json, deadline: str) -> bool:
        """Return whether room was kept for long enough; a clock that is not right can only make it longer."""
        if self._world.clocks_agree:
            return self._now() >= deadline
        since_s = self._kept_s.get((card["metadata"]["name"], uid), 0.0)
        return self._world.clock.now_s >= since_s + SETTINGS.preemption_timeout_s - 0.001

    def _is_promised_all(self, uid: str, this: Json) -> bool:
        """Return whether a pod is promised all the cards that it asks for on this card's node, and on no other.

        Two operators that were active at once may each have begun a preemption for it, and one of them is enough. If
        one gives up, it can take back what the other has entered, and the pod begins anew: where both have begun on
        one node, and where two kube-schedulers ask that are active all the time, which no installation has.
        """
        scenario = self._world.scenario
        if scenario.preemption == "native" and scenario.replicas > 1 and not scenario.follows_lease:
            return False
        promised = Counter({this["spec"]["nodeName"]: 1})
        for card in self._world.api.cards.values():
            entries = [*(holder for holder in holders_of(card) if holder["state"] == "reserved"), *claims_of(card)]
            if card["spec"]["uuid"] != this["spec"]["uuid"] and any(entry["podUID"] == uid for entry in entries):
                promised[card["spec"]["nodeName"]] += 1
        wanted, node_name = self._world.wishes[uid].cards, this["spec"]["nodeName"]
        all_on = {name for name, number in promised.items() if number >= wanted}
        if promised[node_name] > wanted:
            self._begun_twice.add(uid)
        return all_on == {node_name} and uid not in self._begun_twice

    def _check_may_leave(self, uid: str, card: Json) -> None:
        uuid, pod = card["spec"]["uuid"], self._world.pod_of(uid)
        if pod is not None and lives_bound(pod) and uuid in devices(pod):
            raise Violation(f"pod {uid} is bound and alive, and has lost its share of card {uuid}")
        since_s = self._world.clock.now_s - self._taken.get((uuid, uid), 0.0)
        if since_s < KEPT_AFTER_FORCE_S:
            raise Violation(f"pod {uid} was deleted by force and may run; its share is gone {since_s:.1f} s later")

    def _check_pod(self, change: Change) -> None:
        old, new = change.old, change.new
        if new is not None and lives_bound(new) and (old is None or not old["spec"].get("nodeName")):
            self._check_bound(new)
        if new is None and old is not None and lives_bound(old):
            uid, now_s = old["metadata"]["uid"], self._world.clock.now_s
            self._taken |= {(uuid, uid): now_s for uuid in devices(old)}

    def _check_bound(self, pod: Json) -> None:
        """Check a pod at the moment at which it becomes bound."""
        uid, named = pod["metadata"]["uid"], devices(pod)
        wish = self._world.wishes[uid]
        if len(named) != wish.cards:
            raise Violation(f"pod {uid} is bound with {len(named)} cards, it asks for {wish.cards}")
        held = self._held(uid)
        for uuid, containers in named.items():
            if uuid not in held:
                raise Violation(f"pod {uid} is bound with card {uuid}, on which it holds nothing")
            card, holder = held[uuid]
            if card["spec"]["nodeName"] != pod["spec"]["nodeName"]:
                raise Violation(f"pod {uid} is bound to a node that is not that of card {uuid}")
            if containers_of(holder) != containers:
                raise Violation(f"pod {uid} is told of other amounts of card {uuid} than it holds")
            if amount_asked(holder) != wish.memory_mib:
                raise Violation(f"pod {uid} holds another amount of card {uuid} than it asks for")
            self._check_given_once(uuid, pod["spec"]["nodeName"])

    def _check_given_once(self, uuid: str, node_name: str) -> None:
        """Check, by what living pods were told, that a card is given away on one node, and not above its memory."""
        told_mib = 0
        for pod in self._world.api.pods.values():
            if lives_bound(pod) and uuid in devices(pod):
                told_mib += sum(memory_mib for memory_mib, _ in devices(pod)[uuid].values())
                if pod["spec"]["nodeName"] != node_name:
                    raise Violation(f"card {uuid} is given away on two nodes")
        if told_mib > CARD_MIB:
            raise Violation(f"card {uuid} is given twice: living pods were told of {told_mib} MiB of it")

    def lie(self, uid: str, node_name: str) -> str:
        """Return what is wrong with a Bind that is answered with success."""
        pod = self._world.pod_of(uid)
        if pod is None or pod["spec"].get("nodeName") == node_name:
            return ""
        return f"Bind of {uid} to {node_name} is answered with success; it is not bound there"

    def evicted_for_nothing(self, uid: str) -> str:
        """Return what is wrong with an eviction at the moment at which it is asked for.

        Of two operators, one can know of a claim that the other has withdrawn.
        """
        if self._world.scenario.replicas > 1:
            return ""
        pod, cards = self._world.pod_of(uid), self._world.api.cards.values()
        claims = [claim for card in cards for claim in claims_of(card) if uid in claim["victims"]]
        if pod is None or any(claim["priority"] > pod["spec"]["priority"] for claim in claims):
            return ""
        return f"{uid} is told to leave, and no more important pod has claimed a place of it"

    def told_before_claimed(self, uid: str, victims: Mapping[str, Sequence[str]]) -> str:
        """Return what is wrong with an answer that has kube-scheduler evict pods for another one.

        Of two operators, one can have withdrawn the claim of the other.
        """
        if self._world.scenario.replicas > 1 or self._world.pod_of(uid) is None:
            return ""
        for node_name in (name for name, uids in victims.items() if uids):
            cards = [card for card in self._world.api.cards.values() if card["spec"]["nodeName"] == node_name]
            kept = [entry for card in cards for entry in (*claims_of(card), *holders_of(card))]
            if all(entry["podUID"] != uid for entry in kept):
                return f"pods are to leave node {node_name} for {uid}, and nothing is kept for it there"
        return ""

    def _held(self, uid: str) -> dict[str, tuple[Json, Json]]:
        """Return what a pod holds: card UUID -> card and holder."""
        return {
            card["spec"]["uuid"]: (card, holder)
            for card in self._world.api.cards.values()
            for holder in holders_of(card)
            if holder["podUID"] == uid
        }

    def check_memory(self) -> None:
        """Check that no operator has gone back to an older state of a card."""
        for slot in self._world.slots:
            for entry in slot.process.ledger.entries():
                key, version = (slot.process.name, entry.card.uuid), entry.resource_version
                if version < self._versions.get(key, 0):
                    raise Violation(f"{slot.process.name} has gone back to an older state of card {entry.card.uuid}")
                self._versions[key] = version

    # In the end.

    def unmet(self) -> list[str]:
        """Return what is not as it should be, once nothing is on its way any more."""
        found = [*self._unmet_holders(), *self._unmet_pods(), *self._world.nodes.unmet()]
        for slot in self._world.slots:
            if slot.process.alive:
                found += self._unmet_memory(slot.process)
            else:
                found.append(f"operator {slot.number} is dead")
        return found

    def check_prompt(self) -> None:
        """Check, now that nothing goes wrong any more, that no pod waits for long where there is room for it."""
        now_s = self._world.clock.now_s
        with_room = [*self._waiting_with_room(), *self._waiting_for_lesser_ones()]
        waiting = {uid for uid in with_room if not self._is_put_off(uid)}
        self._since_s = {uid: self._since_s.get(uid, now_s) for uid in sorted(waiting)}
        limit_s = UNWOKEN_S if self._world.wake_refused else PROMPT_S
        limit_s = max(limit_s, GANG_S) if any(wish.gang for wish in self._world.wishes.values()) else limit_s
        limit_s = UNASKED_S if self._world.scenario.preemption == "native" else limit_s
        for uid, since_s in self._since_s.items():
            if now_s > since_s + limit_s:
                raise Violation(f"pod {uid} has waited for {now_s - since_s:.0f} s, and there is room for it")

    def _waiting_with_room(self) -> list[str]:
        alone = [uid for uid in self._uids_waiting() if not self.gangs.waits_with_others(uid)]
        return [uid for uid in alone if self._fits(self._world.wishes[uid])] + self.gangs.waiting_with_room()

    def _uids_waiting(self) -> list[str]:
        return [pod["metadata"]["uid"] for pod in self._waiting()]

    def _waiting(self) -> list[Json]:
        return [pod for pod in self._world.api.pods.values() if not pod["spec"].get("nodeName")]

    def _now(self) -> str:
        return (EPOCH + timedelta(seconds=self._world.clock.now_s)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _is_put_off(self, uid: str) -> bool:
        return any(slot.process.is_put_off(uid) for slot in self._world.slots)

    def check_leaks(self) -> None:
        """Check, some time after the last thing went wrong, that no share is left over.

        What is kept for a pod for which others have just left is another matter, until its time is over. Where a clock
        was wrong, nothing can be concluded from that time: it is enough that in the end nothing is kept.
        """
        left = self._unmet_holders(kept_until=self._now() if self._world.clocks_agree else "")
        if left:
            raise Violation("a share is left over: " + "; ".join(left))

    def check_tasks(self) -> None:
        """Check that no task has failed without anybody looking at its error."""
        for slot in self._world.slots:
            for task in slot.process.loop.failed_tasks():
                raise Violation(f"{slot.process.name}: {task.get_name()} failed unseen: {task.exception()!r}")

    def _unmet_holders(self, kept_until: str = "9999-12-31T23:59:59Z") -> list[str]:
        found = []
        for card in self._world.api.cards.values():
            uuid = card["spec"]["uuid"]
            claims = [claim for claim in claims_of(card) if claim["deadline"] < kept_until]
            found += [f"{claim['podUID']} claims card {uuid}" for claim in claims]
            for holder in holders_of(card):
                uid = holder["podUID"]
                if holder["state"] == "reserved" and holder["deadline"] > kept_until:
                    continue
                if any(slot.process.alive and slot.process.is_binding(uid) for slot in self._world.slots):
                    continue  # nothing is on its way for a moment; it is another matter that this has to end
                pod = self._world.pod_of(uid)
                if pod is None or not lives_bound(pod):
                    found.append(f"{uid} holds card {uuid}, and is not a living bound pod")
                elif uuid not in devices(pod):
                    found.append(f"{uid} holds card {uuid}, of which its annotation says nothing")
                elif holder["state"] != "allocated":
                    found.append(f"{uid} is bound and alive, and its share of card {uuid} is {holder['state']}")
        return found

    def _unmet_pods(self) -> list[str]:
        found = []
        for pod in self._world.api.pods.values():
            uid = pod["metadata"]["uid"]
            if pod["metadata"].get("deletionTimestamp"):
                found.append(f"pod {uid} does not go")
            elif lives_bound(pod) and self._lacks(pod):
                found.append(f"pod {uid} is bound, and does not hold what its annotation names")
        found += [f"pod {uid} waits, and others could make room for it" for uid in self._waiting_for_lesser_ones()]
        found += [f"pod {uid} waits, and there is room for it" for uid in self._waiting_with_room()]
        return found + self.gangs.halves()

    def _lacks(self, pod: Json) -> bool:
        """Return whether a bound pod does not hold what it was told of, for no reason that there could be."""
        return self._held(pod["metadata"]["uid"]).keys() != devices(pod).keys()

    def _waiting_for_lesser_ones(self) -> list[str]:
        """Return who waits though it would fit if pods of lower priority had left, and no budget protects these."""
        allowed = self._world.api.evictions_allowed()
        if allowed is not None and allowed < MANY_EVICTIONS:
            return []
        alone = [uid for uid in self._uids_waiting() if not self.gangs.waits_with_others(uid)]
        wishes = {uid: self._world.wishes[uid] for uid in alone}
        return [uid for uid, wish in wishes.items() if self._fits(wish, stay_from=wish.priority)]

    def _fits(self, wish: Wish, stay_from: int | None = None) -> bool:
        """Return whether a pod fits beside all holders, or only beside those of at least this priority."""
        has_room = any(self._free_cards(name, wish, stay_from) >= wish.cards for name in self._world.node_names)
        return has_room and allows(self._world, wish, CARD_MIB)

    def _free_cards(self, node_name: str, wish: Wish, stay_from: int | None) -> int:
        cards = [card for card in self._world.api.cards.values() if card["spec"]["nodeName"] == node_name]
        return sum(has_room(card, wish, stay_from) for card in cards if self._world.nodes.takes_pods(card))

    def _unmet_memory(self, process: OperatorProcess) -> list[str]:
        ledger, api, found = process.ledger, self._world.api, []
        for card in api.cards.values():
            entry = ledger.entry(card["spec"]["uuid"])
            known = entry and [(uid, holder.state.value) for uid, holder in entry.holders.items()]
            if known != [(holder["podUID"], holder["state"]) for holder in holders_of(card)]:
                found.append(f"{process.name} knows {known} on card {card['spec']['uuid']}")
        left = process.left_over().items()
        found += [f"{process.name} still has {kind}: {', '.join(names)}" for kind, names in left if names]
        return found + self._unmet_pods_in_memory(process)

    def _unmet_pods_in_memory(self, process: OperatorProcess) -> list[str]:
        """Compare the pods that an operator knows; a passive one, or one whose scheduler lags, may be behind."""
        pods, found = self._world.api.pods.values(), []
        bound = {pod["metadata"]["uid"] for pod in pods if pod["spec"].get("nodeName")}
        living = {pod["metadata"]["uid"] for pod in pods if lives_bound(pod)}
        if len(self._world.slots) == 1 and process.waiting_pods() & bound:
            found.append(f"{process.name} lets {sorted(process.waiting_pods() & bound)} wait, which are bound")
        if process.is_active() and process.known_pods() - living:
            found.append(f"{process.name} takes {sorted(process.known_pods() - living)} for bound and alive")
        return found
