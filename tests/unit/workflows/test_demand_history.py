"""What placement learns of the past: each pod comes once and goes once, whatever the watches show and how often."""

from builders import a_card, a_holder, a_share, stored
from fakes.api_server import ApiServer
from fakes.objects import GPU, a_pod_object
from fakes.operator_parts import OperatorParts
from gpuledger.placement.fragmentation.mix import Mix
from gpuledger.workflows.observe_cluster import PODS_REMEMBERED, DemandHistory

CARD = a_card()


class Pupil:
    """A learner whose chooser writes down what it is told."""

    def __init__(self) -> None:
        self.parts = OperatorParts(ApiServer())
        self.parts.ledger.load(stored(CARD))
        self.mix: Mix = self.parts.chooser._mix
        self.learner: DemandHistory = self.parts.learner

    def hold(self, uid: str, memory_mib: int) -> None:
        entry = self.parts.ledger.entry(CARD.uuid)
        assert entry is not None
        holders = (*entry.holders.values(), a_holder(uid, a_share(CARD, memory_mib)))
        self.parts.ledger.load(stored(CARD, *holders, version=entry.resource_version + 1))


def a_pod(name: str) -> dict[str, object]:
    return a_pod_object(name, {GPU: "1"})


def uid_of(pod: dict[str, object]) -> str:
    metadata = pod["metadata"]
    assert isinstance(metadata, dict)
    return str(metadata["uid"])


async def test_a_pod_that_waits_counts_once_however_often_it_is_shown() -> None:
    pupil, pod = Pupil(), a_pod("a")
    for _ in range(3):
        pupil.learner.observe_pending(pod)
    assert pupil.mix.arrivals == 1


async def test_a_pod_that_asks_for_no_card_or_can_not_be_read_counts_for_nothing() -> None:
    pupil = Pupil()
    pupil.learner.observe_pending(a_pod_object("a", {}))
    pupil.learner.observe_pending(a_pod_object("b", {GPU: "half"}))
    assert pupil.mix.arrivals == 0


async def test_a_pod_that_another_operator_has_placed_counts_when_it_is_bound() -> None:
    pupil, pod = Pupil(), a_pod("a")
    pupil.hold(uid_of(pod), 4_000)
    for _ in range(2):
        pupil.learner.observe_bound(pod, bound_before=False)
    assert pupil.mix.arrivals == 1
    assert pupil.learner.known_bound() == {uid_of(pod)}


async def test_cards_are_given_out_and_back_once() -> None:
    pupil, one, other = Pupil(), a_pod("a"), a_pod("b")
    for pod in (one, other):
        pupil.hold(uid_of(pod), 4_000)
        pupil.learner.observe_pending(pod)
    for pod in (one, other):
        pupil.learner.observe_bound(pod, bound_before=False)
        pupil.learner.observe_bound(pod, bound_before=False)
    assert pupil.mix.turnover == 0
    pupil.learner.forget_bound(uid_of(one), None)
    pupil.learner.forget_bound(uid_of(one), None)
    assert pupil.mix.turnover == 0.5
    assert pupil.learner.known_bound() == {uid_of(other)}


async def test_pods_that_ran_before_the_start_say_that_pods_come_and_go() -> None:
    pupil, pod = Pupil(), a_pod("a")
    pupil.hold(uid_of(pod), 4_000)
    pupil.learner.observe_bound(pod, bound_before=True)
    assert pupil.mix.turnover == 1
    assert pupil.mix.arrivals == 1


async def test_a_bound_pod_without_shares_is_looked_at_again_when_it_has_some() -> None:
    pupil, pod = Pupil(), a_pod("a")
    pupil.learner.observe_bound(pod, bound_before=False)
    assert pupil.learner.known_bound() == set()
    pupil.hold(uid_of(pod), 4_000)
    pupil.learner.observe_bound(pod, bound_before=False)
    assert pupil.learner.known_bound() == {uid_of(pod)}


async def test_pods_of_long_ago_are_forgotten() -> None:
    pupil = Pupil()
    for number in range(PODS_REMEMBERED + 10):
        pupil.learner.observe_pending({"metadata": {"uid": f"pod-{number}"}, "spec": {}})
    assert len(pupil.learner._came) == PODS_REMEMBERED
