"""What must hold at every moment, checked on every change of a pod or a card, in etcd's order.

The checker believes what pods and cards say of themselves, and does its own arithmetic. It knows nothing of the
operator: not who wrote, nor why. What is allowed only for a while is checked at rest, in rest.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from chaos.account_rule import AccountRule
from chaos.arithmetic import (
    AMOUNTS,
    asks_of,
    grace_s,
    has_ended,
    holders_of,
    is_bound,
    is_evicted,
    leaves_failed_card,
    may_be_moved,
    peaks,
    priority_of,
    told,
    told_cards,
    totals,
)
from chaos.claim_rule import ClaimRule
from chaos.claims import claim_asks_of, has_claims, shares_claims, without_shared
from chaos.gang_rule import GangRule
from chaos.history import Change
from chaos.hostile_user import is_hostile
from chaos.quotas import QuotaRule
from chaos.workload_rule import WorkloadRule

Json = dict[str, Any]

EARLY_S = 2.0
"""How much too early a share may be given up: deadlines are whole seconds, and changes are seen some time later."""

LATE_EVICTION_S = 20.0
"""How long after its reason an eviction may arrive: requests are held up, and programs stopped, for less."""

FINDINGS_LIMIT = 50


@dataclass(frozen=True)
class Finding:
    """Something that must not be. `pods` are UIDs, `cards` UUIDs."""

    rule: str
    text: str
    revision: int = 0
    at_s: float = 0.0
    pods: tuple[str, ...] = ()
    cards: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Ended:
    """A pod that is gone; `cards` are the UUIDs of those on which its processes may still run."""

    at_s: float
    cards: frozenset[str]
    grace_s: int


class Checker:
    """Takes all changes since the cluster was empty."""

    def __init__(self, release_delay_s: float, longest_release_s: float) -> None:
        self.findings: list[Finding] = []
        self.checks = 0
        self.cards: dict[str, Json] = {}  # card UUID -> card
        self.pods: dict[str, Json] = {}  # pod UID -> pod
        self._release_delay_s, self._longest_release_s = release_delay_s, longest_release_s
        self._put_there: set[str] = set()  # UIDs of pods that the hostile user has put on a node himself
        self._ended: dict[str, _Ended] = {}  # pod UID -> its end
        self._capacities: dict[str, list[Json]] = {}  # card UUID -> every capacity that it had
        self._failed: set[str] = set()  # UUIDs of cards that had a fault by which pods leave
        self._waited: list[tuple[float, int]] = []  # when a pod ceased to wait, and its priority
        self.gangs, self.quotas, self.claims, self.workloads = GangRule(), QuotaRule(), ClaimRule(), WorkloadRule()
        self.accounts = AccountRule()
        self._change: Change | None = None
        self._found: set[tuple[object, ...]] = set()  # rule, pods and cards of the findings: each is told once

    def take(self, change: Change) -> None:
        """Check a change."""
        self._change = change
        if change.kind == "card":
            self._take_card(change)
        elif change.kind == "pod":
            self._take_pod(change)
        for rule, found in (
            ("a member of a gang is bound before the others have their shares", self.gangs.take(change)),
            ("a pod is bound beyond its namespace's quota", self.quotas.take(change)),
            ("a claim is not what the ledger has", self.claims.take(change)),
            ("a workload is ready, and there were no cards", self.workloads.take(change)),
        ):
            uids = [change.now["metadata"]["uid"]] if found and change.kind == "pod" and change.now else []
            self._check(not found, rule, found, uids)
        wrong = self.accounts.take(change)
        cards = [_uuid(change)] if change.kind == "card" else []
        self._check(not wrong, "an account is not what pods have had", wrong, sorted(self.accounts.pods), cards)

    def _take_card(self, change: Change) -> None:
        before = {holder["podUID"]: holder for holder in holders_of(change.before or {})}
        if change.now is None:
            self._check(not before, "a card is deleted while pods hold it", change.key, before, [_uuid(change)])
        else:
            self._capacities.setdefault(_uuid(change), []).append(change.now["spec"]["capacity"])
            if (change.now["spec"].get("failure") or {}).get("faultClass") in ("lost", "reset"):
                self._failed.add(_uuid(change))
            self._check_card(change, change.now)
        held = {holder["podUID"] for holder in holders_of(change.now or {})}
        if change.now is None:
            self.cards.pop(_uuid(change), None)
        else:
            self.cards[_uuid(change)] = change.now
        for uid, holder in before.items():
            if uid not in held:
                self._check_leaving(change, uid, holder)
        for uid in before.keys() | held:
            self._check_pod(uid)

    def _take_pod(self, change: Change) -> None:
        before, now = change.before, change.now
        for pod in (before, now):
            if pod is not None:
                self.pods[pod["metadata"]["uid"]] = pod
        if now is None and before is not None:
            uid = before["metadata"]["uid"]
            del self.pods[uid]
            may_run = is_bound(before) and not has_ended(before)
            self._ended[uid] = _Ended(change.at_s, told_cards(before) if may_run else frozenset(), grace_s(before))
        elif now is not None:
            uid = now["metadata"]["uid"]
            if before is None and is_bound(now) and is_hostile(now):
                self._put_there.add(uid)
            if before is not None and is_bound(before):
                same = before["spec"]["nodeName"] == now["spec"].get("nodeName")
                self._check(same, "a pod changes its node", change.key, [uid])
            self._check_pod(uid)
        if before is not None and not is_bound(before) and (now is None or is_bound(now)):
            self._waited.append((change.at_s, priority_of(before)))
        if now is not None and is_evicted(now) and not (before and is_evicted(before)):
            self._check_eviction(change.at_s, now)

    def _check_eviction(self, at_s: float, pod: Json) -> None:
        """Check that a pod is evicted only for a more important one, which waits or did a while ago.

        Or because a card of it has failed, and it asks to leave then; or for maintenance, if it comes back elsewhere.
        """
        if may_be_moved(pod) or (leaves_failed_card(pod) and told_cards(pod) & self._failed):
            return
        lately = [priority for ended_s, priority in self._waited if ended_s > at_s - LATE_EVICTION_S]
        waiting = [priority_of(each) for each in self.pods.values() if not is_bound(each)]
        text = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}, priority {priority_of(pod)}"
        more_important = max([*lately, *waiting], default=None)
        holds = more_important is not None and more_important > priority_of(pod)
        self._check(holds, "a pod is evicted, and none that is more important waits", text, [pod["metadata"]["uid"]])

    # Cards.

    def _check_card(self, change: Change, card: Json) -> None:
        uuid, holders = _uuid(change), holders_of(card)
        status, old_status = card.get("status"), (change.before or {}).get("status")
        uids = [holder["podUID"] for holder in holders]
        self._check(change.key == uuid.lower(), "a card's object is not named after its UUID", uuid, uids, [uuid])
        self._check(bool(status) or not old_status, "a card's status is removed", uuid, uids, [uuid])
        self._check(len(set(uids)) == len(uids), "a pod is on a card twice", f"{uuid}: {uids}", uids, [uuid])
        alone = len(holders) == 1 or not any(holder["exclusive"] for holder in holders)
        self._check(alone, "a pod that has a card for itself is not alone", uuid, uids, [uuid])
        if status:
            used, sums = status["used"], totals(holders)
            self._check(used == sums, "a total is not the sum", f"{uuid}: {used}, not {sums}", uids, [uuid])
            for amount in AMOUNTS:
                capacity = card["spec"]["capacity"][amount]
                fits = sums[amount] <= max(capacity, totals(holders_of(change.before or {}))[amount])
                text = f"{uuid}: {amount} {sums[amount]} of {capacity}"
                self._check(fits, "a card is over-allocated", text, uids, [uuid])
        if change.before is not None and holders_of(change.before):
            same = change.before["spec"]["nodeName"] == card["spec"]["nodeName"]
            self._check(same, "a card moves while pods hold it", uuid, uids, [uuid])

    def _check_leaving(self, change: Change, uid: str, holder: Json) -> None:
        """Check that a pod that was deleted while it may have run has kept its share for long enough."""
        ended = self._ended.get(uid)
        if ended is not None and _uuid(change) in ended.cards:
            kept_s = change.at_s - ended.at_s
            text = f"{holder['namespace']}/{holder['pod']} left after {kept_s:.1f} s, {holder['state']}"
            enough = kept_s >= min(ended.grace_s + self._release_delay_s, self._longest_release_s) - EARLY_S
            self._check(enough, "a share is given up while its pod may still run", text, [uid], [_uuid(change)])

    # Pods.

    def _check_pod(self, uid: str) -> None:
        """Check that a pod that is bound and alive holds what it was told, and was told what it asks for.

        Nobody was asked about one that its user has put on a node: it has no shares, and the node's agent refuses it.
        """
        pod = self.pods.get(uid)
        if uid in self._put_there or pod is None or not is_bound(pod) or has_ended(pod):
            return
        asks = asks_of(pod)
        if not asks and not (pod["metadata"].get("annotations") or {}).get("gpuledger.dev/devices"):
            return
        name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        try:
            cards = told(pod)
        except ValueError as error:
            self._check(False, "a bound pod was not told its cards", f"{name}: {error}", [uid])
            return
        problems = [*self._problems_of_shares(pod, cards), *self._problems_of_asks(pod, cards)]
        text = f"{name}: {'; '.join(problems)}"
        self._check(not problems, "a bound pod lacks its shares", text, [uid], cards)

    def _problems_of_shares(self, pod: Json, cards: dict[str, dict[str, tuple[int, int]]]) -> Iterator[str]:
        """Compare what a pod was told with what the ledger has."""
        uid, node_name = pod["metadata"]["uid"], pod["spec"]["nodeName"]
        for uuid, containers in cards.items():
            if shares_claims(pod) and not without_shared(pod, containers):
                continue  # it may have left that to another pod of the claim
            card = self.cards.get(uuid)
            holder = next((h for h in holders_of(card or {}) if h["podUID"] == uid), None)
            if card is None or holder is None:
                yield f"it is not in the ledger of card {uuid}"
                continue
            if card["spec"]["nodeName"] != node_name:
                yield f"card {uuid} is not on its node {node_name}"
            written = {c["name"]: (c["memoryMiB"], c["cores"]) for c in holder["containers"]}
            if without_shared(pod, written) != without_shared(pod, containers):
                yield f"card {uuid}: it was told {containers}, the ledger says {written}"
            if has_claims(pod):
                yield from _problems_of_sums(uuid, holder)
                continue
            expected = peaks(pod, containers)
            if any(holder[amount] != expected[amount] for amount in AMOUNTS):
                yield f"card {uuid}: its peak is {expected}, the ledger says { {a: holder[a] for a in AMOUNTS} }"
            if holder["exclusive"] != any(ask.exclusive for ask in asks_of(pod) if ask.container in containers):
                yield f"card {uuid}: exclusive is {holder['exclusive']}"

    def _problems_of_asks(self, pod: Json, cards: dict[str, dict[str, tuple[int, int]]]) -> Iterator[str]:
        """Compare what a pod was told with what it asks for. A card may have shrunk or grown meanwhile."""
        asks = {ask.container: ask for ask in asks_of(pod)} | claim_asks_of(pod)
        if {name for containers in cards.values() for name in without_shared(pod, containers)} - asks.keys():
            yield "a container has cards and asks for none"
        for name, ask in asks.items():
            given = {uuid: containers[name] for uuid, containers in cards.items() if name in containers}
            if len(given) != ask.cards:
                yield f"container {name} asks for {ask.cards} cards and has {len(given)}"
            for uuid, amounts in given.items():
                right = {(ask.memory_on(c), ask.cores_on(c)) for c in self._capacities.get(uuid, ())}
                if amounts not in right:
                    yield f"container {name} has {amounts} of card {uuid}, and asks for {right}"

    def _check(self, holds: bool, rule: str, text: str, pods: Iterable[str] = (), cards: Iterable[str] = ()) -> None:
        self.checks += 1
        if holds or self._change is None or len(self.findings) == FINDINGS_LIMIT:
            return
        key = (rule, *pods, *cards)
        if key not in self._found:
            self._found.add(key)
            change = self._change
            self.findings.append(Finding(rule, text, change.revision, change.at_s, tuple(pods), tuple(cards)))


def _problems_of_sums(uuid: str, holder: Json) -> Iterator[str]:
    """Compare what a pod holds by claims with their sum: claims are there together. A card of its own is one part."""
    for amount, field in (("memoryMiB", "memoryMiB"), ("cores", "cores")):
        expected = sum(part[field] for part in holder["containers"])
        if not holder["exclusive"] and holder[amount] != expected:
            yield f"card {uuid}: {amount} is {holder[amount]}, and its parts are {expected}"


def _uuid(change: Change) -> str:
    return str((change.now or change.before or {})["spec"]["uuid"])
