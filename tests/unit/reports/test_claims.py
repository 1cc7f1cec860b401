"""What explanations say of ResourceClaims."""

from dataclasses import dataclass, replace

import pytest

from builders import a_card, a_request, mib
from fakes.objects import DIALECTS
from gpuledger.formats.kubernetes.pod import OF_CLAIMS, resource_names
from gpuledger.model.card import NOTHING, Amounts, Card, CardFilter, why_not_chosen
from gpuledger.model.errors import CardVerdict, NodeVerdict, Reason, Refusal
from gpuledger.model.request import JoinedClaim, PodRequest, entry_text
from gpuledger.placement.explain import why_not_wanted
from gpuledger.reports.explanation import advice, elsewhere

CARD = a_card(0)


@dataclass(frozen=True)
class ATest:
    """A selector that chooses no card."""

    text: str = "device.driver ==\n  'x'"
    fails: str = ""
    payer: None = None

    def compile(self) -> bool:
        return True

    def admits(self, card: Card) -> bool:
        return False

    def problem(self, card: Card) -> str:
        return self.fails


def asking(*tests: ATest, memory_mib: int = 1_000) -> PodRequest:
    demand = replace(mib(memory_mib), wanted=CardFilter(tests=tests))
    return replace(a_request(demand), names=("gpu/a",))


def a_node(reason: Reason, short: Amounts = NOTHING, name: str = "node-a") -> NodeVerdict:
    return NodeVerdict(
        name, Refusal(reason, "text"), "remedy", (CardVerdict(CARD, reason, "text", short),), offered=True
    )


def test_a_request_of_a_claim_is_called_by_both_names() -> None:
    assert entry_text("gpu/a") == "claim gpu, request a"
    assert entry_text("gpu/a/first") == "claim gpu, request a/first"
    assert entry_text("main") == "main"


@pytest.mark.parametrize(
    ("test", "text"),
    [
        (ATest(), "the selector device.driver == 'x' does not hold"),
        (ATest(fails="no such key: color"), "the selector device.driver == 'x' fails: no such key: color"),
    ],
)
def test_a_selector_that_chooses_no_card_is_named_with_what_is_wrong_with_it(test: ATest, text: str) -> None:
    assert why_not_chosen(test, CARD) == text
    request = asking(test)
    assert why_not_wanted(request.shape[0], CARD) == text
    assert advice(request, [a_node(Reason.NOT_WANTED)], OF_CLAIMS) == (
        f"A selector of the claim chooses no card, such as {CARD.uuid}: {text}"
    )


def test_a_long_selector_is_cut() -> None:
    assert len(why_not_chosen(ATest("x" * 500), CARD)) < 160


def test_what_a_claim_could_ask_for_is_said_in_its_words() -> None:
    words = resource_names({}, "gpu/a", DIALECTS)
    less = advice(asking(memory_mib=20_000), [a_node(Reason.CARD_TOO_SMALL, Amounts(4_000))], words)
    assert less == "No node has larger cards: ask for at most 16,000 MiB (capacity.requests.memory)"


def test_who_shares_a_claim_goes_where_its_cards_are() -> None:
    request = PodRequest((), (), joined=(JoinedClaim("gpu", "ours", "uid", "node-b"),))
    there, here = (elsewhere(a_node(Reason.NO_MEMORY, name=name), request) for name in ("node-b", "node-a"))
    assert there.reason is Reason.NO_MEMORY
    assert here.refusal == Refusal(
        Reason.CLAIM_ELSEWHERE,
        "claim gpu of the pod is allocated on node node-b",
    )
    assert here.cards == ()
