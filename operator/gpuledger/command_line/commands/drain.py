"""`gpuledger drain`: cordons cards, and has the pods that hold them leave, as far as their budgets allow that."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import click

from gpuledger.command_line.cluster_access import ClusterAccess
from gpuledger.command_line.commands.cordon import Kept, cards_argument, change_cordons, described, say
from gpuledger.command_line.options import Common, common_options
from gpuledger.command_line.output import ALLOCATIONS, plural
from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.model.card import CardPhase
from gpuledger.model.errors import ApiError, BadInput, Conflict, NotFound
from gpuledger.model.json_object import Json
from gpuledger.model.share import Pod, StoredCard
from gpuledger.reports.tables import listed

NO_REASON = "drained by hand"

LOOK_AGAIN_S = 1.0
"""How often the ledger is read."""

RETRY_S = 5.0
"""Before an eviction that was refused is tried again: as `kubectl drain`."""

NOTICED_S = 10.0
"""How long the operator may take to notice the cordon: until then, a pod can still come."""

TOO_MANY_REQUESTS = 429


@click.command(short_help="Cordon cards, and evict the pods that hold them.")
@cards_argument
@click.option("--reason", help=f"Reason that the card shows.  [default: its own if it is cordoned, else {NO_REASON}]")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0),
    default=0.0,
    metavar="SECONDS",
    help="How long to wait for the pods to leave.  [default: as long as it takes]",
)
@click.option("--dry-run", is_flag=True, help="Ask which pods may be evicted now, and change nothing.")
@common_options("name")
def drain(names: tuple[str, ...], reason: str | None, timeout_s: float, dry_run: bool, common: Common) -> None:
    """Cordon cards, or all of a node, evict the pods that hold them, and wait until the ledger has none on them.

    Pods are evicted as `kubectl drain` does it, so their PodDisruptionBudgets count: a refused eviction is said with
    its budget, and tried again. The cards stay cordoned: `uncordon` takes that back. Your account needs `patch` on
    gpuallocations, and `create` on pods/eviction. Exit status: 0 if no pod is left, or with --dry-run if all may be
    evicted now; 1 if some are left; 2 after an error.
    """
    with common.cluster() as cluster:
        cards = _cordoned(cluster, names, reason, dry_run, common)
        work = Drain(cluster, cards, common.for_people)
        if dry_run:
            work.try_all()
        else:
            work.until_empty(timeout_s)
        common.show(work.json(dry_run), lambda _: [work.summary(dry_run)], (f"card/{card}" for card in cards))
    sys.exit(1 if work.left(dry_run) else 0)


def _cordoned(
    cluster: ClusterAccess, names: Sequence[str], reason: str | None, dry_run: bool, common: Common
) -> list[str]:
    """Return the names of the cards that are meant, after they were cordoned. Raises BadInput and ApiError."""
    cards, kept = [], Kept.ALL if dry_run else Kept.MARKED if reason is None else Kept.NONE
    for done in change_cordons(cluster, names, reason or NO_REASON, kept):
        if done["error"]:
            raise BadInput(described(done))
        if common.for_people and not dry_run:
            say(described(done))
        cards.append(str(done["name"]))
    return list(dict.fromkeys(cards))


@dataclass(slots=True)
class Leaving:
    """A pod that is to leave."""

    pod: Pod
    state: str = "holds"
    """holds, evicted, refused or failed; with --dry-run also may-leave."""
    text: str = ""
    retry_s: float = 0.0
    """When its eviction is tried again, by the monotonic clock."""


@dataclass(slots=True)
class Drain:
    """Evicts the pods on cards until none is left."""

    cluster: ClusterAccess
    cards: Sequence[str]
    """Names of GPUAllocations."""
    tells: bool
    """Whether each step is printed."""
    pods: dict[str, Leaving] = field(default_factory=dict)
    """UID -> pod that holds one of the cards, or has."""
    there: set[str] = field(default_factory=set)
    """UIDs of those that hold or claim some now."""
    open: bool = False
    """Whether the operator would still give out a part of one of the cards, as far as its status says."""

    def try_all(self) -> None:
        """Ask whether each pod may be evicted now."""
        self._look()
        for leaving in self.pods.values():
            self._evict(leaving, dry_run=True)

    def until_empty(self, timeout_s: float) -> None:
        """Evict until the ledger has no pod on the cards, the time is over, or none of those left may be evicted."""
        began_s = time.monotonic()
        until_s = began_s + timeout_s if timeout_s else float("inf")
        while self._look() or (self.open and time.monotonic() < began_s + NOTICED_S):
            for uid in sorted(self.there):
                leaving = self.pods[uid]
                if leaving.state in ("holds", "refused") and leaving.retry_s <= time.monotonic():
                    self._evict(leaving)
            hopeless = bool(self.there) and all(self.pods[uid].state == "failed" for uid in self.there)
            if hopeless or time.monotonic() + LOOK_AGAIN_S > until_s:
                return
            time.sleep(LOOK_AGAIN_S)

    def _look(self) -> bool:
        """Read the cards; return whether pods hold some, or are to get some."""
        found = [stored_card(self.cluster.read(f"{ALLOCATIONS}/{name}")) for name in self.cards]
        self.open = any(card.phase == CardPhase.READY for card in found)
        now = {pod.uid: pod for card in found for pod in _pods_on(card)}
        for uid in self.there - now.keys():
            self._tell(f"pod {self.pods[uid].pod} has left")
        self.there = set(now)
        for uid, pod in now.items():
            self.pods.setdefault(uid, Leaving(pod))
        return bool(now)

    def _evict(self, leaving: Leaving, dry_run: bool = False) -> None:
        from gpuledger.formats.kubernetes.other import eviction

        pod, before = leaving.pod, (leaving.state, leaving.text)
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction"
        leaving.text = ""
        try:
            self.cluster.create(path, eviction(pod, dry_run))
            leaving.state = "may-leave" if dry_run else "evicted"
        except (NotFound, Conflict):  # it is gone already, and another may have its name: the ledger will know
            leaving.state, leaving.text = "evicted", "it was gone already"
        except ApiError as error:
            leaving.state = "refused" if error.status == TOO_MANY_REQUESTS else "failed"
            leaving.text, leaving.retry_s = " ".join(str(error).split()), time.monotonic() + RETRY_S
        if (leaving.state, leaving.text) != before:
            self._tell(_step(leaving))

    def _tell(self, text: str) -> None:
        if self.tells:
            say(text)

    def left(self, dry_run: bool) -> list[Leaving]:
        """Return the pods that are left, or with a dry run those that would be."""
        if dry_run:
            return [each for each in self.pods.values() if each.state not in ("may-leave", "evicted")]
        return [self.pods[uid] for uid in sorted(self.there)]

    def summary(self, dry_run: bool) -> str:
        """Return how it has ended, in a sentence."""
        cards, left = plural(len(self.cards), "card"), self.left(dry_run)
        if dry_run:
            return f"{cards}, held by {plural(len(self.pods), 'pod')}: {len(left)} may not be evicted now"
        if not left:
            return f"{cards} drained: no pod holds a part of one. `gpuledger uncordon` opens them again"
        return f"not drained: {listed([str(each.pod) for each in left])} still there, and the cards stay cordoned"

    def json(self, dry_run: bool) -> Json:
        """Return how it has ended, for programs."""
        pods = [
            {
                "namespace": each.pod.namespace,
                "pod": each.pod.name,
                "podUID": uid,
                "state": each.state if dry_run or uid in self.there else "left",
                "text": each.text or None,
            }
            for uid, each in self.pods.items()
        ]
        return {"cards": list(self.cards), "drained": not dry_run and not self.there, "dryRun": dry_run, "pods": pods}


def _pods_on(card: StoredCard) -> Iterator[Pod]:
    yield from (holder.pod for holder in card.holders or () if not holder.is_seat)
    yield from (claim.holder.pod for claim in card.claims)


def _step(leaving: Leaving) -> str:
    said = {"evicted": "is evicted", "may-leave": "may be evicted", "refused": "stays for now", "failed": "stays"}
    return f"pod {leaving.pod} {said[leaving.state]}" + (f": {leaving.text}" if leaving.text else "")
