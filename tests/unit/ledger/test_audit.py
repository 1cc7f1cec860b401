"""Each kind of difference is found, by itself, and nothing is found where there is none."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from builders import a_card, a_holder, a_pod, a_request, a_share, mib, stored
from gpuledger.ledger.adoption import Adopt
from gpuledger.ledger.audit import (
    DETAIL_LENGTH,
    OVERDUE_AFTER,
    Annotate,
    AuditFinding,
    AuditFindingKind,
    ClearConflict,
    DeleteCard,
    Judge,
    findings,
    readable,
)
from gpuledger.model.card import NOTHING, Amounts, Card
from gpuledger.model.node import AnnotatedCard, ClusterSnapshot, NodeReport, OldDevices, PodFacts, SeenCard
from gpuledger.model.share import ContainerShare, Holder, HolderState, Misfit, Share, StoredCard

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HERE, SECOND, THERE = a_card(0), a_card(1), a_card(0, "node-b")
REQUEST = replace(a_request(mib(1_000)), names=("main",))
TWO = replace(a_request(mib(1_000, cards=2)), names=("main",))


def annotated(*shares: Share) -> tuple[AnnotatedCard, ...]:
    return tuple(AnnotatedCard(c.name, share.uuid, c.memory_mib, c.cores) for share in shares for c in share.containers)


def bound(uid: str = "a", *shares: Share, node_name: str = "node-a", **fields: object) -> PodFacts:
    """Return a bound pod that asks for 1000 MiB of a card, and was told of these shares."""
    facts = PodFacts(a_pod(uid), node_name, finished=False, request=REQUEST, annotated=annotated(*shares))
    return replace(facts, **fields)  # type: ignore[arg-type]


def a_world(
    *cards: StoredCard, pods: Iterable[PodFacts] = (), nodes: dict[str, NodeReport] | None = None
) -> ClusterSnapshot:
    """Return a world in which nodes report the cards that the ledger has, unless others are given."""
    reported: dict[str, list[Card]] = {}
    for card in cards:
        reported.setdefault(card.card.node_name, []).append(card.card)
    seen = [
        SeenCard(card, None if card.holders is None else sum((h.share.amounts for h in card.holders), NOTHING))
        for card in cards
    ]
    reports = {name: NodeReport(tuple(found)) for name, found in reported.items()}
    return ClusterSnapshot(tuple(seen), reports if nodes is None else nodes, {pod.pod.uid: pod for pod in pods}, NOW)


def kinds(snapshot: ClusterSnapshot) -> list[AuditFindingKind]:
    return [finding.kind for finding in findings(snapshot)]


def the_finding(snapshot: ClusterSnapshot) -> AuditFinding:
    (finding,) = findings(snapshot)
    return finding


SHARE = a_share(HERE)
HOLDER = a_holder("a", SHARE)


def test_a_consistent_world_has_no_finding() -> None:
    second = a_holder("b", a_share(HERE, 4_000))
    pods = [bound("a", SHARE), bound("b", a_share(HERE, 4_000))]
    assert findings(a_world(stored(HERE, HOLDER, second), stored(SECOND), stored(THERE), pods=pods)) == ()


def test_an_empty_world_has_no_finding() -> None:
    assert findings(a_world()) == ()


def test_a_pod_that_has_got_an_alternative_of_what_it_asks_for_is_no_finding() -> None:
    large = replace(a_request(mib(16_000, cards=2)), names=("gpu/large",), alternatives=(REQUEST,))
    world = a_world(stored(HERE, HOLDER), stored(SECOND), pods=[bound("a", SHARE, request=large)])
    assert findings(world) == ()
    both = replace(a_request(mib(1_000), mib(1_000)), names=("main", "other"), alternatives=(REQUEST,))
    assert findings(a_world(stored(HERE, HOLDER), pods=[bound("a", SHARE, request=both)])) == ()
    neither = replace(large, alternatives=(TWO,))
    assert kinds(a_world(stored(HERE, HOLDER), pods=[bound("a", SHARE, request=neither)])) == [
        AuditFindingKind.NOT_ADOPTABLE
    ]


def test_a_pod_with_cards_of_two_alternatives_holds_more_than_it_asks_for() -> None:
    request = replace(REQUEST, names=("gpu/large",), alternatives=(REQUEST,))
    share = replace(SHARE, containers=(*SHARE.containers, ContainerShare("gpu/large", 1_000, 0)))
    pod = bound("a", share, request=request)
    assert kinds(a_world(stored(HERE, a_holder("a", share)), pods=[pod])) == [AuditFindingKind.HOLDS_MORE]


def test_every_card_of_a_node_is_whatever_cards_a_bound_pod_has() -> None:
    request = replace(REQUEST, shape=(replace(mib(1_000), every_card=True),))
    shares = [replace(a_share(card), containers=SHARE.containers) for card in (HERE, SECOND)]
    cards = [stored(card, a_holder("a", share)) for card, share in zip((HERE, SECOND), shares, strict=True)]
    assert findings(a_world(*cards, pods=[bound("a", *shares, request=request)])) == ()


# Holders.


def test_a_holder_of_a_pod_that_is_gone_is_to_be_judged() -> None:
    found = the_finding(a_world(stored(HERE, HOLDER)))
    assert found == AuditFinding(
        AuditFindingKind.POD_GONE, "node-a", HERE.uuid, a_pod("a"), "1000 MiB, 0 % cores, 1 slot", action=Judge("a")
    )


@pytest.mark.parametrize(
    ("pod", "kind"),
    [
        (bound("a", SHARE, finished=True), AuditFindingKind.POD_FINISHED),
        (bound("a", SHARE, node_name=""), AuditFindingKind.POD_NOT_BOUND),
        (bound("a", SHARE, node_name="", finished=True), AuditFindingKind.POD_NOT_BOUND),
    ],
)
def test_a_holder_of_a_pod_without_a_right_to_it_is_to_be_judged(pod: PodFacts, kind: AuditFindingKind) -> None:
    found = the_finding(a_world(stored(HERE, HOLDER), pods=[pod]))
    assert (found.kind, found.action) == (kind, Judge("a"))


@pytest.mark.parametrize("state", [HolderState.RELEASING, HolderState.RESERVED])
@pytest.mark.parametrize("pods", [[], [bound("a", SHARE, node_name="")]], ids=["pod is gone", "pod is not bound"])
def test_what_ends_at_a_deadline_is_no_finding_until_a_while_after_it(state: HolderState, pods: list[PodFacts]) -> None:
    def snapshot(late_by: timedelta) -> ClusterSnapshot:
        deadline = (NOW - late_by).strftime("%Y-%m-%dT%H:%M:%SZ")
        return a_world(stored(HERE, replace(HOLDER, state=state, deadline=deadline)), pods=pods)

    assert findings(snapshot(-timedelta(seconds=30))) == ()
    assert findings(snapshot(OVERDUE_AFTER)) == ()
    overdue = the_finding(snapshot(OVERDUE_AFTER + timedelta(seconds=1)))
    assert (overdue.kind, overdue.action) == (AuditFindingKind.OVERDUE, Judge("a"))


@pytest.mark.parametrize("deadline", [None, "soon", "2030-01-01T00:00:00"])
def test_a_deadline_that_can_not_be_read_has_passed(deadline: str | None) -> None:
    snapshot = a_world(stored(HERE, replace(HOLDER, state=HolderState.RELEASING, deadline=deadline)))
    assert kinds(snapshot) == [AuditFindingKind.OVERDUE]


def test_a_holder_on_another_node_is_spare_when_the_pod_has_all_its_cards_on_its_own() -> None:
    away = a_holder("a", a_share(THERE))
    found = the_finding(a_world(stored(HERE, HOLDER), stored(THERE, away), pods=[bound("a", SHARE)]))
    assert (found.kind, found.node, found.card, found.action) == (
        AuditFindingKind.SPARE_HOLDER,
        "node-b",
        THERE.uuid,
        Judge("a"),
    )


def test_a_holder_on_another_node_is_kept_when_the_pod_lacks_cards_on_its_own() -> None:
    away = a_holder("a", a_share(THERE))
    found = findings(a_world(stored(HERE), stored(THERE, away), pods=[bound("a", SHARE)]))
    assert [(f.kind, f.action is None) for f in found] == [
        (AuditFindingKind.OTHER_NODE, True),
        (AuditFindingKind.NOT_ENTERED, False),
    ]


def test_one_holder_too_many_is_spare_when_the_annotation_names_the_others() -> None:
    more = a_holder("a", a_share(SECOND))
    found = the_finding(a_world(stored(HERE, HOLDER), stored(SECOND, more), pods=[bound("a", SHARE)]))
    assert (found.kind, found.card, found.action) == (AuditFindingKind.SPARE_HOLDER, SECOND.uuid, Judge("a"))


@pytest.mark.parametrize(
    "pod",
    [
        bound("a", SHARE, a_share(SECOND)),
        bound("a"),
        bound("a", request=None, annotated=None),
    ],
    ids=["annotation names both", "annotation names none", "asks for none"],
)
def test_holders_too_many_are_shown_and_left_when_nothing_says_which(pod: PodFacts) -> None:
    more = a_holder("a", a_share(SECOND))
    found = the_finding(a_world(stored(HERE, HOLDER), stored(SECOND, more), pods=[pod]))
    assert (found.kind, found.action) == (AuditFindingKind.HOLDS_MORE, None)
    assert found.detail == f"it holds cards {HERE.uuid}, {SECOND.uuid}"


def test_a_share_of_a_container_that_asks_for_none_is_shown() -> None:
    strange = replace(a_share(SECOND), containers=(ContainerShare("other", 1_000, 0),))
    snapshot = a_world(stored(HERE, HOLDER), stored(SECOND, a_holder("a", strange)), pods=[bound("a", SHARE)])
    assert kinds(snapshot) == [AuditFindingKind.HOLDS_MORE]


# Pods.


def test_a_bound_pod_without_holders_can_be_adopted_from_its_annotation() -> None:
    found = the_finding(a_world(stored(HERE), pods=[bound("a", SHARE)]))
    assert (found.kind, found.action) == (AuditFindingKind.NOT_ENTERED, Adopt(a_pod("a"), "node-a", (SHARE,)))
    assert found.detail == (
        f"it asks for 1 card and holds 0; its annotation names {HERE.uuid} (1000 MiB, 0 % cores, 1 slot)"
    )


def test_a_bound_pod_with_too_few_holders_lacks_the_others() -> None:
    pod = bound("a", SHARE, a_share(SECOND), request=TWO)
    found = the_finding(a_world(stored(HERE, HOLDER), stored(SECOND), pods=[pod]))
    assert (found.kind, found.action) == (
        AuditFindingKind.PARTLY_ENTERED,
        Adopt(a_pod("a"), "node-a", (a_share(SECOND),)),
    )


@pytest.mark.parametrize(
    ("pod", "detail"),
    [
        (bound("a", annotated=None), "no annotation says which cards it has"),
        (bound("a", annotated=None, bad_annotation="is not JSON"), "is not JSON"),
        (bound("a", a_share(SECOND)), f"names card {SECOND.uuid}, which is not in the ledger"),
    ],
)
def test_a_bound_pod_whose_annotation_is_of_no_use_is_shown(pod: PodFacts, detail: str) -> None:
    found = the_finding(a_world(stored(HERE), pods=[pod]))
    assert (found.kind, found.action) == (AuditFindingKind.NOT_ADOPTABLE, None)
    assert detail in found.detail


def test_a_card_in_no_phase_yet_takes_no_adopted_pod() -> None:
    found = the_finding(a_world(StoredCard(HERE, 1, None), pods=[bound("a", SHARE)]))
    assert (found.kind, found.action) == (AuditFindingKind.NOT_ADOPTABLE, None)


@pytest.mark.parametrize(
    "pod",
    [
        bound("a", finished=True),
        bound("a", node_name=""),
        bound("a", request=None),
        bound("a", request=None, annotated=None),
    ],
    ids=["finished", "not bound", "asks for no card, and is told so", "asks for no card"],
)
def test_pods_that_need_no_card_are_no_finding(pod: PodFacts) -> None:
    assert findings(a_world(stored(HERE), pods=[pod])) == ()


def test_a_bound_pod_that_reaches_cards_without_a_share_is_shown_until_it_has_ended() -> None:
    pod = bound("a", SHARE, past_ledger="container main sets NVIDIA_VISIBLE_DEVICES")
    found = the_finding(a_world(stored(HERE, HOLDER), pods=[pod]))
    assert (found.kind, found.detail, found.action) == (AuditFindingKind.PAST_LEDGER, pod.past_ledger, None)
    assert kinds(a_world(stored(HERE), pods=[replace(pod, finished=True)])) == []
    assert kinds(a_world(stored(HERE), pods=[replace(pod, node_name="")])) == []


def test_a_bound_pod_whose_request_can_not_be_read_is_shown() -> None:
    pod = bound("a", request=None, bad_request="container main: 4Gi has a unit of bytes")
    found = the_finding(a_world(stored(HERE, HOLDER), pods=[pod]))
    assert (found.kind, found.detail, found.action) == (AuditFindingKind.UNREADABLE_POD, pod.bad_request, None)


@pytest.mark.parametrize(
    ("pod", "detail"),
    [
        (bound("a", annotated=None), "it has no annotation"),
        (bound("a", annotated=None, bad_annotation="is not JSON"), "is not JSON"),
        (bound("a"), f"container 'main', card {HERE.uuid}: in the ledger alone"),
        (bound("a", SHARE, a_share(SECOND)), f"container 'main', card {SECOND.uuid}: in the annotation alone"),
        (
            bound("a", a_share(HERE, 16_000, 50)),
            f"container 'main', card {HERE.uuid}: annotation 16000 MiB, 50 %, ledger 1000 MiB, 0 %",
        ),
    ],
)
def test_an_annotation_that_differs_is_written_from_the_ledger(pod: PodFacts, detail: str) -> None:
    found = the_finding(a_world(stored(HERE, HOLDER), stored(SECOND), pods=[pod]))
    assert (found.kind, found.detail) == (AuditFindingKind.ANNOTATION_DIFFERS, detail)
    assert found.action == Annotate(a_pod("a"), (SHARE,))


@pytest.mark.parametrize(("card", "expected"), [(HERE, []), (SECOND, [AuditFindingKind.ANNOTATION_DIFFERS])])
def test_a_pod_of_another_system_needs_no_annotation_of_ours_while_its_own_names_its_cards(
    card: Card, expected: list[AuditFindingKind]
) -> None:
    """Else an audit right after a migration would find every pod that was migrated."""
    told = OldDevices("hami.io/vgpu-devices-allocated", (AnnotatedCard("main", card.uuid, 1_000, 0),))
    pod = replace(bound("a"), annotated=None, old=told)
    found = findings(a_world(stored(HERE, HOLDER), stored(SECOND), pods=[pod]))
    assert [each.kind for each in found] == expected


def test_an_annotation_on_a_pod_that_asks_for_no_card_is_emptied() -> None:
    found = the_finding(a_world(stored(HERE), pods=[bound("a", SHARE, request=None)]))
    assert (found.kind, found.action) == (AuditFindingKind.ANNOTATION_DIFFERS, Annotate(a_pod("a"), ()))


def test_the_order_of_an_annotations_cards_is_no_finding() -> None:
    """The index of a card can change at a reboot; the annotation was written before."""
    pod = bound("a", a_share(SECOND), SHARE, request=TWO)
    holders = [a_holder("a", a_share(SECOND))]
    assert findings(a_world(stored(HERE, HOLDER), stored(SECOND, *holders), pods=[pod])) == ()


# Cards.


@pytest.mark.parametrize(
    ("capacity", "kind", "detail"),
    [
        (Amounts(900, 100, 10), AuditFindingKind.OVER_CAPACITY, "1000 MiB of 900; pods default/a"),
        (Amounts(900, 20, 10), AuditFindingKind.OVER_CAPACITY, "1000 MiB of 900, 30 % cores of 20; pods default/a"),
        (Amounts(1_000, 100, 0), AuditFindingKind.TOO_MANY_SLOTS, "1 slot of 0; pods default/a"),
    ],
)
def test_a_card_that_has_shrunk_below_its_holders_is_shown(
    capacity: Amounts, kind: AuditFindingKind, detail: str
) -> None:
    card, share = replace(HERE, capacity=capacity), a_share(HERE, cores=30)
    found = the_finding(a_world(stored(card, a_holder("a", share)), pods=[bound("a", share)]))
    assert (found.kind, found.detail, found.action) == (kind, detail, None)


def test_a_total_that_lies_is_shown() -> None:
    snapshot = a_world(stored(HERE, HOLDER), pods=[bound("a", SHARE)])
    lying = replace(snapshot, cards=(replace(snapshot.cards[0], total=Amounts(1, 2, 3)),))
    found = the_finding(lying)
    assert (found.kind, found.action) == (AuditFindingKind.WRONG_TOTAL, None)
    assert found.detail.startswith("the total says 1 MiB, 2 % cores, 3 slots, the holders add up to 1000 MiB")


def test_an_exclusive_holder_beside_another_is_shown() -> None:
    alone = a_holder("b", a_share(HERE, exclusive=True))
    snapshot = a_world(stored(HERE, HOLDER, alone), pods=[bound("a", SHARE), bound("b", SHARE)])
    found = the_finding(snapshot)
    assert (found.kind, found.detail) == (
        AuditFindingKind.NOT_ALONE,
        "for default/b alone, but: pods default/a, default/b",
    )


def with_conflict(*holders: Holder) -> StoredCard:
    return replace(stored(HERE, *holders), misfits=(Misfit(a_pod("a"), SHARE.amounts, "it has no room"),))


FULL = a_holder("b", a_share(HERE, 16_000))
FULL_POD = bound("b", a_share(HERE, 16_000))


def test_a_share_that_does_not_fit_is_a_finding_of_its_card_alone() -> None:
    found = the_finding(a_world(with_conflict(FULL), pods=[bound("a", SHARE), FULL_POD]))
    assert (found.kind, found.card, found.pod, found.action) == (AuditFindingKind.CONFLICT, HERE.uuid, a_pod("a"), None)
    assert "it has no room" in found.detail


def test_a_conflict_whose_share_fits_by_now_can_be_entered() -> None:
    found = findings(a_world(with_conflict(), pods=[bound("a", SHARE)]))
    assert [f.kind for f in found] == [AuditFindingKind.NOT_ENTERED, AuditFindingKind.CONFLICT]
    assert found[0].action == Adopt(a_pod("a"), "node-a", (SHARE,))


@pytest.mark.parametrize(
    ("card", "pods"),
    [
        (with_conflict(), []),
        (with_conflict(), [bound("a", finished=True)]),
        (with_conflict(), [bound("a", node_name="")]),
        (with_conflict(HOLDER), [bound("a", SHARE)]),
    ],
    ids=["gone", "finished", "not bound", "entered"],
)
def test_a_conflict_that_is_over_is_cleared(card: StoredCard, pods: list[PodFacts]) -> None:
    found = the_finding(a_world(card, pods=pods))
    assert (found.kind, found.action) == (AuditFindingKind.CONFLICT_OVER, ClearConflict(HERE.uuid, "a"))


@pytest.mark.parametrize(
    ("nodes", "detail"),
    [({}, "its node is gone"), ({"node-a": NodeReport(())}, "its node does not report it")],
)
def test_a_card_that_its_node_does_not_have_goes_when_nobody_holds_it(
    nodes: dict[str, NodeReport], detail: str
) -> None:
    card = stored(HERE)
    found = the_finding(a_world(card, nodes=nodes))
    assert (found.kind, found.detail, found.action) == (AuditFindingKind.ABANDONED_CARD, detail, DeleteCard(card))
    held = the_finding(a_world(stored(HERE, HOLDER), nodes=nodes, pods=[bound("a", SHARE)]))
    assert (held.kind, held.detail, held.action) == (
        AuditFindingKind.ABANDONED_HOLDERS,
        f"{detail}; pods default/a",
        None,
    )


def test_a_card_with_a_conflict_is_not_deleted() -> None:
    found = findings(a_world(with_conflict(), nodes={}, pods=[bound("a", SHARE)]))
    assert [f.kind for f in found] == [
        AuditFindingKind.NOT_ENTERED,
        AuditFindingKind.CONFLICT,
        AuditFindingKind.ABANDONED_HOLDERS,
    ]


def test_the_cards_of_a_node_whose_register_can_not_be_read_are_left_alone() -> None:
    found = the_finding(a_world(stored(HERE), nodes={"node-a": NodeReport(None, ("is not JSON",))}))
    assert (found.kind, found.node, found.detail) == (AuditFindingKind.UNREADABLE_REGISTER, "node-a", "is not JSON")


def test_an_unreadable_card_of_a_register_is_shown_with_the_number_of_others() -> None:
    found = the_finding(a_world(nodes={"node-a": NodeReport((), ("first", "second", "third"))}))
    assert (found.kind, found.detail) == (AuditFindingKind.UNREADABLE_REGISTER, "first (and 2 more)")


def test_a_card_that_has_moved_is_left_to_the_operator() -> None:
    moved = replace(HERE, node_name="node-b")
    nodes = {"node-a": NodeReport(()), "node-b": NodeReport((moved,))}
    found = the_finding(a_world(stored(HERE), nodes=nodes))
    assert (found.kind, found.action) == (AuditFindingKind.MOVED_CARD, None)
    assert found.detail == "its node does not report it; node node-b does"
    held = the_finding(a_world(stored(HERE, HOLDER), nodes=nodes, pods=[bound("a", SHARE)]))
    assert held.kind is AuditFindingKind.ABANDONED_HOLDERS


# Nodes.


def test_a_card_that_two_nodes_report_is_shown_with_both() -> None:
    """UUIDs are one card's whatever their case: they are the object's name."""
    twin = replace(HERE, node_name="node-b", uuid=HERE.uuid.lower())
    nodes = {"node-a": NodeReport((HERE,)), "node-b": NodeReport((twin,))}
    found = the_finding(a_world(stored(HERE), nodes=nodes))
    assert (found.kind, found.action) == (AuditFindingKind.TWO_NODES, None)
    assert found.detail == "nodes node-a and node-b report it; the ledger has it on node node-a"
    assert kinds(a_world(nodes=nodes)) == [AuditFindingKind.TWO_NODES, AuditFindingKind.NOT_IN_LEDGER]


def test_a_card_that_the_ledger_lacks_is_shown() -> None:
    found = the_finding(a_world(nodes={"node-a": NodeReport((HERE,))}))
    assert (found.kind, found.node, found.card) == (AuditFindingKind.NOT_IN_LEDGER, "node-a", HERE.uuid)


# All of them.


def test_every_kind_has_a_remedy_of_its_own() -> None:
    remedies = [kind.remedy for kind in AuditFindingKind]
    assert all(remedy.endswith((".", "?")) or "?" in remedy for remedy in remedies)
    assert len(set(remedies)) == len(remedies)


def test_what_an_annotation_says_can_not_reach_the_terminal_as_it_is() -> None:
    assert readable("\x1b[31mred\n\u202e") == "?[31mred??"
    assert len(readable("x" * 10_000)) == DETAIL_LENGTH


def test_two_reads_of_one_difference_have_one_key() -> None:
    first = the_finding(a_world(stored(HERE, HOLDER)))
    larger = replace(HOLDER, share=a_share(HERE, 2_000))
    second = the_finding(a_world(stored(HERE, larger)))
    assert first.key == second.key
    assert first != second
