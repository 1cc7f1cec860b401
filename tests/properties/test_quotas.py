"""Sums of namespaces against a naive model: nobody gets more than a quota says, and nobody is refused below it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from builders import a_card, a_share
from effort import times
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.seats import Seat
from gpuledger.model.card import Amounts
from gpuledger.model.errors import QuotaExceeded, ShareRefused
from gpuledger.model.gang import Counted, QuotaLimit
from gpuledger.model.share import Holder, Placement, Pod, StoredCard
from properties.test_ledger_machine import PODS, LedgerMachine

NAMESPACE, OTHER = "default", "other"
MODELS = ("NVIDIA A100", "NVIDIA T4")


def a_limit(counted: Counted, most: int = 0, model: str = "") -> QuotaLimit:
    return QuotaLimit("gpus", f"limits.{counted}", counted, most, "nvidia", model)


class QuotaMachine(LedgerMachine):
    """All that can happen to a ledger, and what the pods of a namespace have together after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.is_limited = False

    @initialize()
    def all_pods_are_known(self) -> None:
        for pod in PODS:
            self.ledger.quotas.knows(pod, NAMESPACE)

    @rule()
    def another_namespace_gets_a_limit(self) -> None:
        self.ledger.quotas.set_limits(OTHER, [a_limit(Counted.SLOTS, 1)])

    @rule(limited=st.booleans())
    def the_namespace_gets_or_loses_a_limit_that_nobody_reaches(self, limited: bool) -> None:
        self.is_limited = limited
        self.ledger.quotas.set_limits(NAMESPACE, [a_limit(Counted.SLOTS, 10_000)] if limited else [])

    @rule(pod=st.sampled_from(PODS))
    def a_pod_waits_no_more_and_comes_back(self, pod: str) -> None:
        self.ledger.quotas.forget(pod)
        self.ledger.quotas.knows(pod, NAMESPACE)

    @invariant()
    def what_a_namespace_has_is_what_its_pods_have(self) -> None:
        for counted in Counted:
            expected = sum(_most(self.ledger, pod, counted) for pod in PODS) if self.is_limited else 0
            assert self.ledger.quotas.used(NAMESPACE, a_limit(counted)) == expected


TestQuotas = QuotaMachine.TestCase
TestQuotas.settings = settings(max_examples=times(40, 400), stateful_step_count=30)


def _most(ledger: Ledger, pod: str, counted: Counted) -> int:
    """Return what a pod has, by whichever placement of its hold it has most."""
    promised = {entry.card.uuid: entry.promises[pod] for entry in ledger.entries() if pod in entry.promises}
    promised |= {card.uuid: claim.share for card, claim in ledger.promises.claims_of(pod)}
    held = promised | {card.uuid: holder.share for card, holder in ledger.holders.of(pod)}
    hold = ledger.seats.of(pod)
    placements = [[each for each in one.shares if ledger.entry(each.uuid)] for one in hold.placements] if hold else [[]]
    return max(
        sum(counted.of(share.amounts) for share in ({share.uuid: share for share in shares} | held).values())
        for shares in placements
    )


actions = st.tuples(
    st.sampled_from(["hold", "arrive", "leave"]),
    st.sampled_from(PODS),
    st.sampled_from([NAMESPACE, OTHER]),
    st.integers(0, 3),
    st.integers(1, 6),
)


@settings(max_examples=times(100, 2_000))
@given(st.lists(actions, max_size=40), st.sampled_from(["", "a100", "t4"]), st.integers(0, 20))
def test_a_hold_is_refused_exactly_where_a_limit_would_be_exceeded(
    steps: list[tuple[str, str, str, int, int]], model: str, most: int
) -> None:
    ledger, naive = Ledger(), dict[str, tuple[str, int, int]]()  # pod -> namespace, card, MiB
    cards = [replace(a_card(n), capacity=Amounts(100, 100, 50), model=MODELS[n % 2]) for n in range(4)]
    holders: dict[int, list[tuple[str, str, int]]] = {n: [] for n in range(4)}
    for card in cards:
        ledger.load(StoredCard(card, 1, ()))
    ledger.quotas.set_limits(NAMESPACE, [a_limit(Counted.MEMORY, most, model)])
    version = 1
    for action, pod, namespace, number, memory_mib in steps:
        if action == "hold" and pod not in naive:
            ledger.quotas.knows(pod, namespace)
            share = a_share(cards[number], memory_mib, 0)
            there = sum(mib for ns, n, mib in naive.values() if ns == NAMESPACE and model in MODELS[n % 2].lower())
            counts = namespace == NAMESPACE and model in MODELS[number % 2].lower()
            if counts and there + memory_mib > most:
                with pytest.raises(QuotaExceeded):
                    ledger.seats.take(Seat(pod, Placement("node-a", (share,)), 1.0))
            else:
                ledger.seats.take(Seat(pod, Placement("node-a", (share,)), 1.0))
                naive[pod] = namespace, number, memory_mib
        elif pod in naive and action in ("arrive", "leave"):
            namespace, number, memory_mib = naive[pod]
            holders[number] = [each for each in holders[number] if each[0] != pod]
            if action == "arrive":
                holders[number].append((pod, namespace, memory_mib))
            version += 1
            told = [(name, of, a_share(cards[number], mib, 0)) for name, of, mib in holders[number]]
            found = [Holder(Pod(name, of, name), share) for name, of, share in told]
            ledger.load(StoredCard(cards[number], version, tuple(found)))
            ledger.seats.give_up(pod)
            if action == "leave":
                del naive[pod]


def test_a_limit_is_a_share_that_is_refused_like_any_other() -> None:
    """Whoever plans for several pods at once goes on with the next one."""
    assert issubclass(QuotaExceeded, ShareRefused)
