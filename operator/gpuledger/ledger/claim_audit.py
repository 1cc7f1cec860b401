"""ResourceClaims compared with the ledger: a claim's status is a view of it, as a pod's annotation is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

from gpuledger.ledger.findings import AllocateClaim, AuditFinding, AuditFindingKind, DeallocateClaim, readable
from gpuledger.model.card import Card
from gpuledger.model.cluster_snapshot import ClusterSnapshot, PodFacts
from gpuledger.model.seen_claim import SeenClaim
from gpuledger.model.share import ClaimRef, Holder, HolderState

Cards = frozenset[tuple[str, str]]
"""Request, or `request/alternative`, and UUID of a card."""

PODS_NAMED = 5


def claim_findings(snapshot: ClusterSnapshot, lacking: AbstractSet[str]) -> Iterator[AuditFinding]:
    """Yield what claims and ledger say of each other; nothing where claims were not read.

    `lacking` are the UIDs of pods of which it is known that they lack shares.
    """
    if snapshot.claims is None:
        return
    held = _held(snapshot)
    for (pod_uid, ref), (holder, node_name, cards) in held.items():
        pod = snapshot.pods.get(pod_uid)
        if holder.state is HolderState.ALLOCATED and pod is not None and pod.needs_cards == node_name:
            yield from _holder(pod, ref, cards, snapshot.claims.get(ref.uid))
    for pod in snapshot.pods.values():
        yield from _joined(pod, snapshot.claims)
    known = {ref.uid for _, ref in held}
    for claim in snapshot.claims.values():
        if claim.cards and claim.uid not in known and not lacking & {*claim.users}:
            yield _unknown(claim, snapshot)


def _held(snapshot: ClusterSnapshot) -> dict[tuple[str, ClaimRef], tuple[Holder, str, Cards]]:
    """Return what the ledger gives by claims: pod and claim -> a holder of it, its node, and the cards."""
    found: dict[tuple[str, ClaimRef], tuple[Holder, str, Cards]] = {}
    for seen in snapshot.cards:
        card: Card = seen.stored.card
        for holder in seen.stored.holders or ():
            for part in holder.share.containers:
                if part.claim is not None:
                    key = holder.pod.uid, part.claim
                    _, _, before = found.get(key, (holder, card.node_name, frozenset()))
                    entry = part.name.partition("/")[2], card.uuid
                    found[key] = holder, card.node_name, before | {entry}
    return found


def _holder(pod: PodFacts, ref: ClaimRef, cards: Cards, claim: SeenClaim | None) -> Iterator[AuditFinding]:
    first = min(uuid for _, uuid in cards)
    if claim is None:
        detail = f"ResourceClaim {ref.name} is gone, or another one has its name"
        yield _finding(AuditFindingKind.CLAIM_GONE, pod, first, detail)
        return
    detail = _differs(pod, cards, claim)
    if detail:
        alone = {*claim.consumers} <= {pod.pod.uid}
        action = AllocateClaim(pod.pod, ref) if alone else None
        yield _finding(AuditFindingKind.CLAIM_DIFFERS, pod, first, f"ResourceClaim {ref.name} {detail}", action)


def _differs(pod: PodFacts, cards: Cards, claim: SeenClaim) -> str:
    """Say what a claim does not say of its holder; empty if it says what the ledger does."""
    if not claim.cards:
        return f"is not allocated; the ledger has {_cards(cards)} for it"
    if claim.cards != cards:
        return f"is allocated to {_cards(claim.cards)}; the ledger has {_cards(cards)} for it"
    return "" if pod.pod.uid in claim.consumers else "does not name the pod as one that may use it"


def _joined(pod: PodFacts, claims: Mapping[str, SeenClaim]) -> Iterator[AuditFinding]:
    """Yield claims of which others hold the cards, and that do not name the pod."""
    for each in pod.request.joined if pod.request is not None and pod.needs_cards else ():
        claim = claims.get(each.uid)
        if claim is not None and pod.pod.uid not in claim.consumers:
            detail = f"ResourceClaim {claim.name} does not name the pod as one that may use it"
            yield _finding(AuditFindingKind.CLAIM_DIFFERS, pod, "", detail)


def _unknown(claim: SeenClaim, snapshot: ClusterSnapshot) -> AuditFinding:
    """Return that the ledger has nothing for a claim. What no pod uses is taken back."""
    names = dict(zip(claim.consumers, claim.consumer_names, strict=True))
    users = [names[uid] for uid in claim.users if uid in names]
    more = f" and {len(users) - PODS_NAMED} more" if len(users) > PODS_NAMED else ""
    used = f"pods that use it: {', '.join(users[:PODS_NAMED])}{more}" if users else "no pod uses it"
    detail = f"ResourceClaim {claim} is allocated to {_cards(claim.cards)}; {used}"
    action = None if users else DeallocateClaim(claim)
    first = min(uuid for _, uuid in claim.cards)
    return AuditFinding(
        AuditFindingKind.CLAIM_UNKNOWN, claim.node_name, f"{claim}, {first}", None, readable(detail), action
    )


def _finding(
    kind: AuditFindingKind, pod: PodFacts, card: str, detail: str, action: AllocateClaim | None = None
) -> AuditFinding:
    return AuditFinding(kind, pod.node_name, card, pod.pod, readable(detail), action)


def _cards(cards: Cards) -> str:
    named = sorted({uuid for _, uuid in cards})
    return f"card {named[0]}" if len(named) == 1 else f"cards {', '.join(named)}"
