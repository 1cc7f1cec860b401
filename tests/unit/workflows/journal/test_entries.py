"""The patches that entries of the journal become."""

from builders import a_card, a_holder, a_share, stored
from gpuledger.ledger.entry import CardEntry
from gpuledger.model.share import Claim
from gpuledger.workflows.journal.entries import SetClaim, patch_of

CARD = a_card()


async def test_a_claim_is_only_taken_by_the_card_as_it_was_read() -> None:
    entry = CardEntry(CARD)
    entry.describe(stored(CARD, version=7))
    claim = Claim(a_holder("p", a_share(CARD)), cards=1, victims=())
    first, *_ = patch_of(entry, [SetClaim(pod_uid="p", claim=claim)])
    assert first == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
