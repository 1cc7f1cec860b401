"""What must hold at every moment: each container has the cards of its share, and nobody else's, and is kept to it.

Two witnesses are compared: the containers themselves (sight.py), and etcd's history of the ledger. The checker does its
own arithmetic, and asks none of the programs that it judges.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chaos.arithmetic import Ask, asks_of, holders_of
from chaos.checker import FINDINGS_LIMIT, Finding
from chaos.history import Change
from node_chaos.claims import ENTRY, Use, use_of
from node_chaos.sight import Container, Look
from node_chaos.steps import Isolation

Json = dict[str, Any]

LAG_S = 5.0
"""How late we may see a share. It was in etcd before the agent had read it, and its container started."""


@dataclass(frozen=True)
class Ledger:
    """The ledger and the pods at one moment, or somewhat earlier."""

    shares: dict[tuple[str, str], Json]
    """Pod UID and card UUID -> holder."""
    cards: dict[str, Json]
    pods: dict[str, Json]
    """UID -> pod as it was last, also of those that are gone."""


class NodeChecker:
    """Takes every change of the ledger, and looks at the node."""

    def __init__(self, may_forget: bool = False, isolation: Isolation = "none") -> None:
        """Make one; `isolation` keeps containers to their shares; `may_forget`: the kubelet loses its record of slots.

        Such a kubelet does not know either, until the agent has registered, that there are such slots at all, and
        starts containers without what they ask for, as it does with any resource that is not its own.
        """
        self.findings: list[Finding] = []
        self.checks = 0
        self.without: set[str] = set()
        """Ids of such containers."""
        self.may_forget, self._isolation = may_forget, isolation
        self._gone: set[str] = set()  # UIDs of pods
        self.seen: dict[str, tuple[float, float, Container]] = {}
        """Container's id -> when it was seen first and last, and what it had."""
        self._turn = threading.Lock()
        self._shares: dict[tuple[str, str], Json] = {}
        self._ever: set[tuple[str, str]] = set()  # pod UID and card UUID of all shares there were
        self._cards: dict[str, Json] = {}
        self._pods: dict[str, Json] = {}
        self._found: set[tuple[str, str]] = set()  # rule and container's id of the findings: each is told once

    # The ledger.

    def take(self, change: Change) -> None:
        """Take in a change. Called by the history's thread."""
        with self._turn:
            if change.kind == "card":
                self._take_card((change.now or change.before or {})["spec"]["uuid"], change.now)
            elif change.now is not None and change.kind == "pod":
                self._pods[change.now["metadata"]["uid"]] = change.now
            elif change.before is not None and change.kind == "pod":
                self._gone.add(change.before["metadata"]["uid"])

    def _take_card(self, uuid: str, card: Json | None) -> None:
        self._shares = {key: holder for key, holder in self._shares.items() if key[1] != uuid}
        self._cards.pop(uuid, None)
        if card is not None:
            self._cards[uuid] = card
            self._shares |= {(holder["podUID"], uuid): holder for holder in holders_of(card)}
        self._ever |= self._shares.keys()
        for holder in holders_of(card or {}):
            self._ever |= {(each["claim"]["name"], uuid) for each in holder["containers"] if "claim" in each}

    def ledger(self) -> Ledger:
        """Return what was so at this moment or before. To be called before a look: what it shows has happened then."""
        with self._turn:
            return Ledger(dict(self._shares), dict(self._cards), dict(self._pods))

    # The containers.

    def judge(self, ledger: Ledger, look: Look) -> None:
        """Compare what ran at a moment with the ledger of some moment before."""
        for container in look.containers:
            first_s, _, _ = self.seen.get(container.identity, (look.at_s, look.at_s, container))
            self.seen[container.identity] = first_s, look.at_s, container
            pod = ledger.pods.get(container.pod_uid)
            if pod is None:
                old = look.at_s - first_s > LAG_S
                self._check(not old, "a container runs whose pod was never there", container, look, "")
                continue
            self._judge_witnesses(container, pod, look)
            for uuid, memory_mib, cores in container.cards:
                self._judge_share(container, uuid, (memory_mib, cores), ledger, look, first_s)
        self._judge_cards(ledger, look)
        self._judge_places(look)

    def _judge_places(self, look: Look) -> None:
        """Check that what is a container's own is nobody else's, and that it can harm none of its neighbours there."""
        owners = Counter(container.directory for container in look.containers if container.directory)
        places = Counter(place for container in look.containers for place in container.places if place[1])
        for container in look.containers:
            alone = owners[container.directory] < 2
            self._check(alone, "a container's directory is another one's, too", container, look, container.directory)
            shared = [place for place in container.places if places[place] > 1]
            rule = "a container's place for HAMi-core is another one's, too"
            self._check(not shared, rule, container, look, str(shared))
            where, options = container.pipes
            locked = not where or (options.startswith("ro") and where.endswith("/clients"))
            rule = "a container has more of its MPS daemon than its socket to read"
            self._check(locked, rule, container, look, f"{where} {options}")

    def _judge_witnesses(self, container: Container, pod: Json, look: Look) -> None:
        """Check that a container has what it asks for, and that all witnesses say the same."""
        uuids = [uuid for uuid, _, _ in container.cards]
        same = container.mounted == container.devices == frozenset(uuids) and len(set(uuids)) == len(uuids)
        text = f"told {uuids}, mounted {sorted(container.mounted)}, devices {sorted(container.devices)}"
        self._check(same, "a container has other cards than it was told", container, look, text)
        ask = next((ask for ask in asks_of(pod) if ask.container == container.name), None)
        use = use_of(pod, container.name)
        wanted = use.cards if use else 0 if ask is None else ask.cards
        # A kubelet that hears of a pod's end while it starts a container may have dropped the pod's devices by then:
        # it starts the container without them, and kills it at once. Our own watch may show that end a moment later.
        is_forgotten = self.may_forget or container.pod_uid in self._gone
        is_new = look.at_s - self.seen[container.identity][0] <= LAG_S
        if wanted and (is_forgotten or is_new) and not (uuids or container.directory):
            if is_forgotten:
                self.without.add(container.identity)
            return
        text = f"it asks for {wanted} cards and has {uuids}"
        self._check(len(uuids) == wanted, "a container has more or fewer cards than it asks for", container, look, text)

    def _judge_share(
        self, container: Container, uuid: str, had: tuple[int, int], ledger: Ledger, look: Look, first_s: float
    ) -> None:
        use = use_of(ledger.pods[container.pod_uid], container.name)
        key = (use.joint if use and use.joint else container.pod_uid, uuid)
        holders = [held for (uid, card), held in ledger.shares.items() if card == uuid and _has(held, uid, key[0])]
        if not holders:
            given_up = key in self._ever
            if given_up or look.at_s - first_s > LAG_S:
                rule = "a container runs whose share was given up" if given_up else "a container runs without a share"
                self._check(False, rule, container, look, f"card {uuid}")
            return
        entered = {each["name"]: (each["memoryMiB"], each["cores"]) for held in holders for each in held["containers"]}
        text = f"card {uuid}: it has {had}, the ledger says {entered}"
        entry = ENTRY if use else container.name
        self._check(entered.get(entry) == had, "a container has another share than its own", container, look, text)
        if use:
            wanted = (use.memory_mib, use.cores)
        else:
            ask = next(ask for ask in asks_of(ledger.pods[container.pod_uid]) if ask.container == container.name)
            wanted = _wanted(ask, ledger.cards[uuid])
        self._check(
            had == wanted, "a container has another amount than it asks for", container, look, f"{had}, {wanted}"
        )

    def _judge_cards(self, ledger: Ledger, look: Look) -> None:
        """Check that those who run at the same time do not have more of a card than it has, nor than they hold.

        What several containers have by one claim is one amount.
        """
        for uuid, card in ledger.cards.items():
            there = [(container, had) for container in look.containers for had in container.cards if had[0] == uuid]
            capacity = card["spec"]["capacity"]
            for what, position in (("memoryMiB", 1), ("cores", 2)):
                held = {_amount_of(container, ledger): int(had[position]) for container, had in there}
                total = sum(held.values())
                if what == "memoryMiB" and self._isolation != "none":
                    self._judge_limits(uuid, [container for container, _ in there], ledger, look)
                text = f"card {uuid}: {what} {total} of {capacity[what]}"
                for container, _ in there[:1]:
                    self._check(total <= capacity[what], "a card is used beyond what it has", container, look, text)
            owners = {container.pod_uid for container, _ in there}
            for container, _ in there:
                holder = ledger.shares.get((container.pod_uid, uuid))
                alone = holder is None or not holder["exclusive"] or len(owners) == 1
                text = f"card {uuid} is used by pods {sorted(owners)}"
                self._check(alone, "a pod that has a card for itself is not alone", container, look, text)

    def _judge_limits(self, uuid: str, there: Sequence[Container], ledger: Ledger, look: Look) -> None:
        """Check what keeps containers to their parts of a card: each to its own, and all together to what is counted.

        The ledger counts a pod's containers as long as there is the pod, also one that has ended.
        """
        of_pods: dict[str, int] = Counter()
        for container in there:
            had = next(memory_mib for card, memory_mib, _ in container.cards if card == uuid)
            most = {
                "driver": look.limits.get((container.identity, uuid)),
            }.get(self._isolation, dict(container.told_most).get(uuid))
            holder = ledger.shares.get((container.pod_uid, uuid))
            if most is None and holder is not None and holder["exclusive"]:
                most = had
            text = f"card {uuid}: it has {had} MiB, and is held to {most}"
            self._check(most == had, "a container is not held to its share", container, look, text)
            of_pods[container.pod_uid] += had if most is None else most
        most_mib = sum(min(most, look.limits.get((uid, uuid), most)) for uid, most in of_pods.items())
        whose = {*of_pods, *(use.joint for container in there if (use := _use_of(container, ledger)))}
        holders = [
            holder
            for (uid, card), holder in ledger.shares.items()
            if card == uuid and any(_has(holder, uid, each) for each in whose if each)
        ]
        held_mib = sum(int(holder["memoryMiB"]) for holder in holders)
        text = f"card {uuid}: containers can take {most_mib} MiB, and the ledger counts {held_mib} for them"
        for container in there[:1]:
            rule = "containers can take more than the ledger counts"
            self._check(most_mib <= held_mib, rule, container, look, text)

    def _check(self, holds: bool, rule: str, container: Container, look: Look, text: str) -> None:
        self.checks += 1
        key = (rule, container.identity)
        if holds or key in self._found or len(self.findings) == FINDINGS_LIMIT:
            return
        self._found.add(key)
        uuids = tuple(uuid for uuid, _, _ in container.cards)
        said = f"{self.name_of(container)}: {text}"
        self.findings.append(Finding(rule, said, 1, look.at_s, (container.pod_uid,), uuids))

    def name_of(self, container: Container) -> str:
        """Return what to call a container, for people."""
        pod = self._pods.get(container.pod_uid)
        return f"{pod['metadata']['name'] if pod else container.pod_uid}/{container.name} {container.identity[:8]}"

    def sightings(self) -> Iterator[tuple[float, str, str]]:
        """Yield when each container was seen first and last, for a trace."""
        for first_s, last_s, container in self.seen.values():
            pod = self._pods.get(container.pod_uid)
            subject = pod["metadata"]["name"] if pod else container.pod_uid
            cards = ", ".join(f"{uuid} {memory} MiB {cores} %" for uuid, memory, cores in container.cards)
            yield first_s, "node", f"seen {subject}: {container.name} {container.identity[:8]} runs with {cards}"
            yield last_s, "node", f"seen {subject}: {container.name} {container.identity[:8]} for the last time"


def _has(holder: Json, uid: str, whose: str) -> bool:
    """Return whether a share is that of a pod, by its UID, or of a claim that pods share, by its name."""
    return uid == whose or any(each.get("claim", {}).get("name") == whose for each in holder["containers"])


def _amount_of(container: Container, ledger: Ledger) -> object:
    """Return what stands for the amount that a container has of a card, perhaps together with others."""
    use = _use_of(container, ledger)
    return use.key if use else container.identity


def _use_of(container: Container, ledger: Ledger) -> Use | None:
    pod = ledger.pods.get(container.pod_uid)
    return use_of(pod, container.name) if pod else None


def _wanted(ask: Ask, card: Json) -> tuple[int, int]:
    capacity = card["spec"]["capacity"]
    return ask.memory_on(capacity), ask.cores_on(capacity)


def running(containers: Iterable[Container]) -> dict[tuple[str, str], Container]:
    """Return pod UID and container's name -> the container."""
    return {(container.pod_uid, container.name): container for container in containers}
