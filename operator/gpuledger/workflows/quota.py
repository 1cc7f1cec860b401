"""Quotas of namespaces on GPUs: followed, kept, and shown in the status of the ResourceQuotas.

Kubernetes' own quota controller writes the rest of that status. It leaves alone what is used of keys that it does not
count, and both write so that a write of the other in between is not undone.

Two operators are kept to one quota: the one whose share comes second in the ledger gives it back before its Binding.
What a card may give is the API server's to judge, with each write of that card. A quota is a sum over many cards, and
each operator adds up what it knows. Two of them can both take themselves for active, or a new one can know less than
the last one has written: then each finds that a limit allows what only one of them may have.

So a share counts twice: as it is chosen, and again once it is in the ledger. The watch of cards shows all writes in the
order of etcd. When it has come to an operator's own write, the operator knows every share that was entered before, by
whomever. Of two shares that are too much together, the later one's operator finds that out, and binds nothing. That
takes no write, and as long as an event of the watch takes to arrive; pods of other namespaces do not wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from attrs import define

from gpuledger.formats.kubernetes.budgets import budgets_of, hours_shown
from gpuledger.formats.kubernetes.other import limits_of, used_of
from gpuledger.kube_api.watch import Listed, forgetting
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.quotas import asked_of
from gpuledger.model.clock import Listeners
from gpuledger.model.errors import Denied, NotFound, QuotaExceeded, Refusal, Unreachable
from gpuledger.model.gang import QuotaLimit
from gpuledger.model.json_object import Json
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Placement, Pod
from gpuledger.model.usage import Budget
from gpuledger.placement.choose import Choice, Chooser
from gpuledger.placement.explain import over_quota
from gpuledger.workflows.context import Component
from gpuledger.workflows.tasks import KeyedWorker

logger = logging.getLogger(__name__)


class KnownQuota(NamedTuple):
    """A ResourceQuota that has a key of ours."""

    namespace: str
    name: str
    limits: tuple[QuotaLimit, ...]
    problems: tuple[str, ...]
    used: Mapping[str, int]
    """What its status says is used of these limits and budgets, by their keys."""
    budgets: tuple[Budget, ...] = ()


@define(eq=False, slots=False)
class NamespaceQuotas(Component):
    """What is known of ResourceQuotas that have a key of ours; others cost nothing but their place in the watch."""

    def __attrs_post_init__(self) -> None:
        self._quotas = self._ledger.quotas
        self._known: dict[str, KnownQuota] = {}  # UID -> what it says
        self._of_namespace: dict[str, set[str]] = {}  # namespace -> UIDs of its quotas
        self._spent: dict[str, Collection[QuotaLimit]] = {}  # namespace -> its budgets that are spent, as limits
        self.on_budgets = Listeners[[str]]()
        """Called with a namespace that has other budgets than before."""
        self.on_seen = Listeners[[str]]()
        """Called with the UID of a quota that the API server has in another version than before."""

    def observe(self, quota: Json, gone: bool) -> None:
        """Observe a ResourceQuota. A key that can't be used is counted, and limits nothing."""
        metadata = quota["metadata"]
        uid, namespace, name = str(metadata["uid"]), str(metadata["namespace"]), str(metadata["name"])
        if gone:
            self._forget(uid)
            return
        limits, problems = limits_of(quota, self._formats.dialects)
        budgets, no_budgets = budgets_of(quota, self._settings.usage_kept_days)
        problems += no_budgets
        before = self._known.get(uid)
        used = used_of(quota, limits) | hours_shown(quota, budgets)
        known = KnownQuota(namespace, name, tuple(limits), tuple(problems), used, tuple(budgets))
        if before == known:
            return
        for problem in problems:
            if before is None or problem not in before.problems:
                self._counts.bad_input.labels("resourcequota").inc()
                logger.error("resourcequota %s/%s, spec.hard, %s; it limits nothing", namespace, name, problem)
        if not limits and not budgets and not problems:
            self._forget(uid)
            return
        self._known[uid] = known
        self._of_namespace.setdefault(namespace, set()).add(uid)
        if before is None or before.limits != known.limits:
            self._tell(namespace)
        if known.budgets != (before.budgets if before else ()):
            self.on_budgets(namespace)
        self.on_seen(uid)

    def find(self, uid: str) -> KnownQuota | None:
        """Return a quota, None if there is none with a key of ours."""
        return self._known.get(uid)

    def uids(self) -> Collection[str]:
        """Return the UIDs of all."""
        return self._known.keys()

    def of_namespace(self, namespace: str) -> Collection[str]:
        """Return the UIDs of those of a namespace."""
        return self._of_namespace.get(namespace, ())

    def listing(self) -> Listed:
        """Note what is known; return what forgets those that are not in the list read since."""
        return forgetting(self._known, self._forget)

    def with_budgets(self) -> Collection[str]:
        """Return the namespaces that have a budget."""
        return {each.namespace for each in self._known.values() if each.budgets}

    def budgets(self, namespace: str) -> tuple[Budget, ...]:
        """Return the budgets of a namespace."""
        uids = self._of_namespace.get(namespace)
        return tuple(budget for uid in sorted(uids) for budget in self._known[uid].budgets) if uids else ()

    def spent(self, namespace: str) -> Collection[QuotaLimit]:
        """Return those budgets of a namespace that are spent, as limits."""
        return self._spent.get(namespace, ())

    def set_spent(self, namespace: str, limits: Collection[QuotaLimit]) -> None:
        """Note which budgets of a namespace are spent, as limits, in place of those before."""
        if list(limits) == list(self.spent(namespace)):
            return
        if limits:
            self._spent[namespace] = limits
        else:
            del self._spent[namespace]
        self._tell(namespace)

    def observe_pending(self, pod: Json) -> None:
        """See Follower: what is on hold for a pod counts for its namespace."""
        self._quotas.knows(str(pod["metadata"]["uid"]), str(pod["metadata"]["namespace"]))

    def forget_pending(self, pod_uid: str) -> None:
        """See Follower."""
        self._quotas.forget(pod_uid)

    def known_pending(self) -> set[str]:
        """See Follower."""
        return self._quotas.known()

    def _forget(self, uid: str) -> None:
        known = self._known.pop(uid, None)
        if known is None:
            return
        uids = self._of_namespace[known.namespace]
        uids.remove(uid)
        if not uids:
            del self._of_namespace[known.namespace]
        self._tell(known.namespace)
        if known.budgets:
            self.on_budgets(known.namespace)

    def _tell(self, namespace: str) -> None:
        known = sorted((self._known[uid] for uid in self._of_namespace.get(namespace, ())), key=lambda each: each.name)
        limits = [limit for each in known for limit in each.limits]
        self._quotas.set_limits(namespace, [*limits, *self._spent.get(namespace, ())])


class QuotaGate:
    """Answers for pods whose namespace has a quota; for all others it costs a look into a table."""

    def __init__(self, ledger: Ledger, chooser: Chooser, nodes_offered: int) -> None:
        self._ledger, self._chooser, self._nodes_offered = ledger, chooser, nodes_offered

    def refuses(self, pod: Pod, request: PodRequest) -> Refusal | None:
        """Return why a pod gets no cards, whichever these are; None if it may get some."""
        self._ledger.quotas.knows(pod.uid, pod.namespace)
        limit = self._ledger.quotas.sure_to_exceed(pod, request.shape)
        return over_quota(limit, asked_of(limit, request.shape)) if limit else None

    def within(self, pod: Pod, request: PodRequest, node_names: Collection[str], choice: Choice) -> Choice:
        """Return of a choice what the pod's namespace may have; others that fit if that is nothing; or why none is."""
        limit = self._ledger.quotas.refusing(pod.uid, choice.placements)
        if limit is None:
            return choice
        found = self._fitting(pod, choice.placements)
        if found:
            return Choice(tuple(found), {})
        every = self._chooser.choose(request, node_names, len(node_names)).placements  # cards elsewhere may be smaller
        found = self._fitting(pod, every)[: self._nodes_offered]
        if found:
            return Choice(tuple(found), {})
        unlike = {tuple(share.amounts for share in each.shares): each for each in every or choice.placements}
        least = min(self._ledger.quotas.besides(pod.uid, pod.namespace, each)[limit] for each in unlike.values())
        return Choice((), dict.fromkeys(node_names, over_quota(limit, least)))

    def _fitting(self, pod: Pod, placements: Collection[Placement]) -> list[Placement]:
        quotas = self._ledger.quotas
        return [each for each in placements if quotas.refusing(pod.uid, (each,)) is None]


GATHER_S = 2.0
"""From the first change to the writes: what changes until then is one write for each quota."""

WRITE_PAUSE_S = 0.05
"""There can be a thousand quotas: what has to be done at once goes first."""

DENIED_PAUSE_S = 30.0
"""After a write that we have no permission for, and for which there may be one later."""


@define(eq=False, slots=False)
class QuotaStatusWriter(Component):
    """Writes what differs from what the watch shows, some time after it has begun to differ."""

    _quotas: NamespaceQuotas
    _may_write: Callable[[], bool]
    _hours_shown: Callable[[str], Mapping[Budget, int]]
    """Returns the spent hours of a namespace's budgets, as far as these are known."""

    def __attrs_post_init__(self) -> None:
        self._sums = self._ledger.quotas
        self._changed: set[str] = set()  # UIDs of the quotas that are to be looked at
        self._timer: asyncio.TimerHandle | None = None
        self._was_denied = False
        self.writes = 0
        """How often a status was written so far."""
        self.worker = KeyedWorker(self._bring_up_to_date, 1, self._may_write)
        self._sums.on_change.append(self.look_at)
        self._quotas.on_seen.append(lambda uid: self._look_soon((uid,)))

    def look_again(self) -> None:
        """Compare all quotas with what they should show: others may have written until now."""
        self._look_soon(self._quotas.uids())

    async def stop(self) -> None:
        """Write no more."""
        await self.worker.stop()

    def look_at(self, namespace: str) -> None:
        """Look soon whether something else is used of a namespace's quotas than their status shows."""
        self._look_soon(self._quotas.of_namespace(namespace))

    def _look_soon(self, uids: Iterable[str]) -> None:
        self._changed.update(uids)
        if self._timer is None and self._changed:
            self._timer = self._tasks.after(GATHER_S, self._due)

    def _due(self) -> None:
        changed, self._changed, self._timer = self._changed, set(), None
        for uid in changed:
            known = self._quotas.find(uid)
            if known is not None and self._not_shown(known):
                self.worker.mark(uid)

    def _not_shown(self, known: KnownQuota) -> dict[str, str]:
        """Return what is used of the keys of which the status says something else."""
        used = {each.key: each.as_stated(self._sums.used(known.namespace, each)) for each in known.limits}
        hours = self._hours_shown(known.namespace) if known.budgets else {}
        used |= {each.key: hours[each] for each in known.budgets if each in hours}
        return {key: str(amount) for key, amount in used.items() if known.used.get(key) != amount}

    async def _bring_up_to_date(self, uid: str) -> None:
        known = self._quotas.find(uid)
        change = self._not_shown(known) if known else {}
        if known is None or not change:
            return
        try:
            await self._store.set_quota_used(known.namespace, known.name, uid, change)
        except NotFound:
            return
        except Denied as error:
            if not self._was_denied:
                logger.error("what is used of quotas is not shown in their status: %s", error)
            self._was_denied = True
            await asyncio.sleep(DENIED_PAUSE_S)
            self.worker.mark(uid)
            return
        self.writes += 1
        await asyncio.sleep(WRITE_PAUSE_S)


WATCH_TIMEOUT_S: Final = 15.0
"""How long the watch may be behind. A share that nobody could judge by then is given back."""


@define(eq=False, slots=False)
class QuotaFence(Component):
    """Judges what was entered for a pod, before it is bound."""

    async def check(self, pod: Pod, placement: Placement) -> None:
        """Return when it is certain that the pod's namespace may have what was entered for the pod.

        Raises QuotaExceeded, and Unreachable if the watch of cards does not come that far.
        """
        quotas = self._ledger.quotas
        if not placement.shares or not quotas.limits(pod.namespace):
            return
        entries = [self._ledger.entry(share.uuid) for share in placement.shares]
        version = max((entry.resource_version for entry in entries if entry is not None), default=0)
        try:
            async with asyncio.timeout(WATCH_TIMEOUT_S):
                await self._context.cards_watched.reaches(version)
        except TimeoutError:
            raise Unreachable(f"the watch of cards is more than {WATCH_TIMEOUT_S:.0f} s behind the ledger") from None
        exceeded = quotas.exceeded_by_holders(pod.uid, pod.namespace)
        if exceeded is not None:
            raise QuotaExceeded(exceeded)
