"""What an audit finds of ResourceClaims: each difference by itself, and nothing where there is none."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from builders import a_card, a_holder, a_pod, a_request, a_share, mib, stored
from gpuledger.ledger.adoption import missing_shares
from gpuledger.ledger.audit import AllocateClaim, AuditFinding, AuditFindingKind, DeallocateClaim, findings
from gpuledger.model.card import Card
from gpuledger.model.errors import BadInput
from gpuledger.model.node import AnnotatedCard, ClusterSnapshot, NodeReport, PodFacts, SeenCard
from gpuledger.model.request import JoinedClaim, PodClaim, PodRequest, SeenClaim
from gpuledger.model.share import ClaimRef, Holder, Share

NOW = datetime(2030, 1, 1, tzinfo=UTC)
FIRST, SECOND = a_card(0), a_card(1)
OWN, SHARED = ClaimRef("own", "claim-uid"), ClaimRef("ours", "claim-uid", shared=True)
TOLD = (AnnotatedCard("gpu/gpu", FIRST.uuid, 1_000, 0),)


def by_claim(ref: ClaimRef = OWN, card: Card = FIRST) -> Share:
    """Return 1000 MiB of a card by a claim that the pod calls gpu."""
    share = a_share(card)
    return replace(share, containers=(replace(share.containers[0], name="gpu/gpu", claim=ref),))


def asking(ref: ClaimRef = OWN) -> PodRequest:
    claim = PodClaim("gpu", ref.name, ref.uid, ref.shared)
    return replace(a_request(mib(1_000)), names=("gpu/gpu",), claims=(claim,))


JOINING = PodRequest((), (), joined=(JoinedClaim("gpu", SHARED.name, SHARED.uid, "node-a"),))


def bound(uid: str = "a", request: PodRequest | None = None, **fields: object) -> PodFacts:
    facts = PodFacts(a_pod(uid), "node-a", finished=False, request=request or asking(), annotated=TOLD)
    return replace(facts, **fields)  # type: ignore[arg-type]


def a_claim(
    *uuids: str, consumers: tuple[str, ...] = ("a",), users: tuple[str, ...] | None = None, ref: ClaimRef = OWN
) -> SeenClaim:
    cards = frozenset(("gpu", uuid) for uuid in uuids)
    there = consumers if users is None else users
    return SeenClaim("default", ref.name, ref.uid, "node-a", cards, consumers, consumers, there)


def found(
    holders: Iterable[Holder], pods: Iterable[PodFacts], claims: Iterable[SeenClaim] | None
) -> list[AuditFinding]:
    seen = SeenCard(stored(FIRST, *holders), None)
    snapshot = ClusterSnapshot(
        (seen, SeenCard(stored(SECOND), None)),
        {"node-a": NodeReport((FIRST, SECOND))},
        {pod.pod.uid: pod for pod in pods},
        NOW,
        None if claims is None else {claim.uid: claim for claim in claims},
    )
    return list(findings(snapshot))


def test_a_claim_that_says_what_the_ledger_does_is_in_order() -> None:
    assert found([a_holder("a", by_claim())], [bound()], [a_claim(FIRST.uuid)]) == []


def test_a_claim_that_is_gone_is_found_where_claims_can_be_read() -> None:
    (gone,) = found([a_holder("a", by_claim())], [bound()], [])
    assert (gone.kind, gone.card, gone.action) == (AuditFindingKind.CLAIM_GONE, FIRST.uuid, None)
    assert found([a_holder("a", by_claim())], [bound()], None) == []


@pytest.mark.parametrize(
    ("claim", "detail"),
    [
        (a_claim(), f"ResourceClaim own is not allocated; the ledger has card {FIRST.uuid} for it"),
        (
            a_claim(SECOND.uuid),
            f"ResourceClaim own is allocated to card {SECOND.uuid}; the ledger has card {FIRST.uuid} for it",
        ),
        (
            a_claim(FIRST.uuid, consumers=()),
            "ResourceClaim own does not name the pod as one that may use it",
        ),
    ],
)
def test_a_claim_is_to_say_what_the_ledger_does(claim: SeenClaim, detail: str) -> None:
    (differs,) = found([a_holder("a", by_claim())], [bound()], [claim])
    assert (differs.kind, differs.detail) == (AuditFindingKind.CLAIM_DIFFERS, detail)
    assert differs.action == AllocateClaim(a_pod("a"), OWN)


def test_what_others_use_as_well_is_left_to_a_person() -> None:
    pods = [bound(request=asking(SHARED)), bound("b", JOINING, annotated=())]
    claim = a_claim(SECOND.uuid, consumers=("a", "b"), ref=SHARED)
    (differs,) = found([a_holder("a", by_claim(SHARED))], pods, [claim])
    assert (differs.kind, differs.action) == (AuditFindingKind.CLAIM_DIFFERS, None)


def test_a_pod_that_shares_a_claim_lacks_nothing() -> None:
    pods = [bound(request=asking(SHARED)), bound("b", JOINING, annotated=())]
    claim = a_claim(FIRST.uuid, consumers=("a", "b"), ref=SHARED)
    assert found([a_holder("a", by_claim(SHARED))], pods, [claim]) == []
    (unnamed,) = found([a_holder("a", by_claim(SHARED))], pods, [a_claim(FIRST.uuid, ref=SHARED)])
    assert (unnamed.kind, unnamed.pod) == (AuditFindingKind.CLAIM_DIFFERS, a_pod("b"))


@pytest.mark.parametrize("told", [(), None, (AnnotatedCard("main", SECOND.uuid, 1_000, 0),)])
def test_what_a_pod_has_from_another_one_that_has_ended_is_not_in_its_annotation(
    told: tuple[AnnotatedCard, ...] | None,
) -> None:
    heir = bound("b", asking(SHARED), annotated=told)
    result = found([a_holder("b", by_claim(SHARED))], [heir], [a_claim(FIRST.uuid, consumers=("b",), ref=SHARED)])
    told_too_much = [AuditFindingKind.ANNOTATION_DIFFERS] if told else []
    assert [each.kind for each in result] == told_too_much
    own = found([a_holder("b", by_claim())], [bound("b", annotated=told)], [a_claim(FIRST.uuid, consumers=("b",))])
    assert [each.kind for each in own] == [AuditFindingKind.ANNOTATION_DIFFERS]


def test_cards_that_others_have_given_a_claim_are_found_and_taken_back_if_no_pod_uses_them() -> None:
    used = a_claim(FIRST.uuid, consumers=("theirs",))
    (unknown,) = found([], [], [used])
    assert (unknown.kind, unknown.node, unknown.action) == (AuditFindingKind.CLAIM_UNKNOWN, "node-a", None)
    assert unknown.detail == f"ResourceClaim default/own is allocated to card {FIRST.uuid}; pods that use it: theirs"
    left_over = replace(used, users=())
    (unknown,) = found([], [], [left_over])
    assert unknown.action == DeallocateClaim(left_over)


def test_a_claim_whose_pod_lacks_its_share_is_told_once() -> None:
    (lacking,) = found([], [bound()], [a_claim(FIRST.uuid)])
    assert lacking.kind is AuditFindingKind.NOT_ENTERED


class Cards:
    """The ledger's cards."""

    def card(self, uuid: str) -> Card | None:
        return {card.uuid: card for card in (FIRST, SECOND)}.get(uuid)

    def cards_of(self, node_name: str) -> list[Card]:
        return [FIRST, SECOND]


@pytest.mark.parametrize("ref", [OWN, SHARED])
def test_a_share_that_was_lost_is_entered_with_its_claim(ref: ClaimRef) -> None:
    (share,) = missing_shares(bound(request=asking(ref)), (), Cards())
    assert share == by_claim(ref)


def test_what_a_claim_gave_that_is_gone_is_not_entered() -> None:
    gone = replace(asking(), claims=(PodClaim("gpu"),))
    with pytest.raises(BadInput, match="claim gpu: its ResourceClaim is gone"):
        missing_shares(bound(request=gone), (), Cards())
