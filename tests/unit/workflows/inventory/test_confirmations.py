"""A card whose object is new takes no pods before its node's agent has told what containers have of it."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from builders import a_holder, a_share, cards_of
from fakes.api_server import ApiServer, Fault, Operation, hold_request, refuse
from fakes.objects import GPU, MEMORY, a_container, a_node_object, a_pod_object
from fakes.operator_parts import OperatorParts, an_operator
from fakes.virtual_time import settle
from gpuledger.formats.annotations import DEVICES_ANNOTATION, ENDS_ANNOTATION, devices_annotation, ends_annotation
from gpuledger.formats.confirmation import GRANTED_ANNOTATION, answer_text, asked
from gpuledger.model.card import Amounts, Card
from gpuledger.model.errors import BindFailed, Unreachable
from gpuledger.model.share import ContainerShare, Holder, HolderState, Share
from gpuledger.workflows.confirmations import ASK_AGAIN_S, AWAITS
from gpuledger.workflows.leadership import Leadership

CARDS = cards_of("node-a", 2)
CARD, SECOND = CARDS
CLOSED, OPEN = ("Pending", AWAITS), ("Ready", "")
AGENT = "gpuledger-agent-x7k2p"


class Agent:
    """A node's agent: its pod, and what it says on its Node."""

    def __init__(self, parts: OperatorParts, uid: str = "agent") -> None:
        self.parts, self.api, self.uid = parts, parts.api, uid
        pod = a_pod_object(AGENT, uid=uid, node_name="node-a", phase="Running")
        pod["metadata"]["namespace"] = "gpuledger-system"
        pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        parts.agents.observe(self.api.put_pod(pod), gone=False)

    @property
    def question(self) -> str:
        """The token on its pod."""
        return asked(self.api.pods["gpuledger-system", AGENT])

    def says(self, token: str, holders: Iterable[Holder] = ()) -> None:
        """Write an answer."""
        put_node(self.api, answer_text(token, holders))

    async def answers(self, *holders: Holder) -> None:
        """Answer the question, and let the operator do what follows."""
        self.says(self.question, holders)
        await rest(self.parts)


def put_node(
    api: ApiServer, granted: str | None = "", cards: Iterable[Card] = CARDS, runs: Mapping[str, bool] | None = None
) -> None:
    """Write node-a; `granted` is what its agent says, None for an agent that answers nothing."""
    node = a_node_object("node-a", tuple(cards))
    node["metadata"]["annotations"][ENDS_ANNOTATION] = ends_annotation(runs or {})
    if granted is not None:
        node["metadata"]["annotations"][GRANTED_ANNOTATION] = granted or answer_text("")
    api.put_node(node)


async def rest(parts: OperatorParts) -> None:
    """Wait until nothing is left to do."""
    for _ in range(3):
        await parts.idle()
        await parts.inventory.confirmations.worker.idle()
    await parts.idle()


def phases(api: ApiServer) -> set[tuple[str, str]]:
    """Return phase and reason of the cards; one without a status yet is closed, too."""
    found = {(api.card(card).phase, api.card(card).reason) for card in CARDS}
    return {CLOSED if each == ("", "") else each for each in found}


def a_bound_pod(name: str, memory_mib: int = 1_000, *annotated: Card) -> dict[str, Any]:
    pod = a_pod_object(name, {GPU: "1", MEMORY: str(memory_mib)}, node_name="node-a", started=True)
    if annotated:
        pod["metadata"]["annotations"] = {
            DEVICES_ANNOTATION: devices_annotation([a_share(card, memory_mib) for card in annotated])
        }
    return pod


def holders(api: ApiServer, card: Card) -> dict[str, tuple[int, HolderState]]:
    return {holder.pod.uid: (holder.share.amounts.memory_mib, holder.state) for holder in api.card(card).holders or ()}


@pytest.fixture
async def parts(api: ApiServer) -> OperatorParts:
    """Return an operator that has taken in node-a, whose agent answers questions, with new cards."""
    put_node(api)
    parts = an_operator(api)
    await rest(parts)
    return parts


async def test_new_cards_stay_closed_until_the_agent_has_answered(parts: OperatorParts) -> None:
    agent = Agent(parts)
    await rest(parts)
    assert phases(parts.api) == {CLOSED}
    parts.api.put_pod(a_pod_object("waits"))
    assert parts.filter("waits", "node-a").node_names == []
    await agent.answers()
    assert phases(parts.api) == {OPEN}
    assert parts.filter("waits", "node-a").node_names == ["node-a"]


async def test_it_costs_one_write_of_a_pod_and_none_of_a_node(parts: OperatorParts) -> None:
    agent = Agent(parts)
    await rest(parts)
    await agent.answers()
    writes = parts.api.writes()
    assert [operation for operation in writes if "NODE" in operation.name] == []
    assert writes.count(Operation.ANNOTATE) == 1


async def test_an_agent_that_answers_no_questions_is_asked_none(api: ApiServer) -> None:
    put_node(api, granted=None)
    parts = an_operator(api)
    agent = Agent(parts)
    await rest(parts)
    assert (phases(api), agent.question) == ({OPEN}, "")


async def test_what_the_agent_has_granted_is_entered_before_a_card_opens(parts: OperatorParts) -> None:
    agent = Agent(parts)
    parts.api.put_pod(a_bound_pod("runs", 3_000))
    await rest(parts)
    await agent.answers(a_holder("uid-runs", a_share(CARD, 3_000)))
    assert holders(parts.api, CARD) == {"uid-runs": (3_000, HolderState.ALLOCATED)}
    assert phases(parts.api) == {OPEN}


async def test_a_pod_that_has_no_container_yet_has_its_share_by_its_annotation(parts: OperatorParts) -> None:
    agent = Agent(parts)
    parts.api.put_pod(a_bound_pod("pulls", 2_000, SECOND))
    await rest(parts)
    await agent.answers()
    assert holders(parts.api, SECOND) == {"uid-pulls": (2_000, HolderState.ALLOCATED)}


async def test_a_container_that_has_not_started_yet_has_its_part_by_the_annotation(parts: OperatorParts) -> None:
    agent = Agent(parts)
    limits = {GPU: "1", MEMORY: "2000"}
    pod = a_pod_object(
        "half", node_name="node-a", containers=[a_container("main", limits), a_container("side", limits)]
    )
    both = [
        Share(card.uuid, Amounts(2_000, 0, 1), False, (ContainerShare(name, 2_000, 0),))
        for card, name in ((CARD, "main"), (SECOND, "side"))
    ]
    pod["metadata"]["annotations"] = {DEVICES_ANNOTATION: devices_annotation(both)}
    parts.api.put_pod(pod)
    await rest(parts)
    await agent.answers(a_holder("uid-half", both[0]))
    assert [holders(parts.api, card) for card in CARDS] == [{"uid-half": (2_000, HolderState.ALLOCATED)}] * 2


async def test_what_was_granted_counts_whatever_the_annotation_says(parts: OperatorParts) -> None:
    agent = Agent(parts)
    parts.api.put_pod(a_bound_pod("lies", 2_000, SECOND))
    await rest(parts)
    await agent.answers(a_holder("uid-lies", a_share(CARD, 2_000)))
    assert [holders(parts.api, card).keys() for card in CARDS] == [{"uid-lies"}, set()]


async def test_an_annotation_gains_nothing_where_what_was_granted_leaves_no_room(parts: OperatorParts) -> None:
    agent = Agent(parts)
    most = CARD.capacity.memory_mib
    parts.api.put_pod(a_bound_pod("runs", most))
    parts.api.put_pod(a_bound_pod("hopes", 2_000, CARD))
    await rest(parts)
    await agent.answers(a_holder("uid-runs", a_share(CARD, most)))
    assert holders(parts.api, CARD) == {"uid-runs": (most, HolderState.ALLOCATED)}
    assert [misfit.pod.uid for misfit in parts.api.card(CARD).misfits] == ["uid-hopes"]


async def test_a_container_whose_pod_nobody_knows_counts(parts: OperatorParts) -> None:
    agent = Agent(parts)
    await rest(parts)
    await agent.answers(a_holder("uid-lost", a_share(CARD, 4_000)))
    assert holders(parts.api, CARD).keys() == {"uid-lost"}


async def test_an_answer_to_an_earlier_question_opens_nothing(parts: OperatorParts) -> None:
    agent = Agent(parts)
    await rest(parts)
    agent.says("5f2c91d0a3b8e746")
    await rest(parts)
    assert phases(parts.api) == {CLOSED}


async def test_an_answer_that_can_not_be_read_opens_nothing(parts: OperatorParts) -> None:
    agent = Agent(parts)
    await rest(parts)
    put_node(parts.api, '{"answers": "' + agent.question + '", "cards": {"GPU-1": [{}]}}')
    await rest(parts)
    assert phases(parts.api) == {CLOSED}


async def test_a_card_that_comes_after_the_question_is_asked_for_again(api: ApiServer) -> None:
    put_node(api, cards=[CARD])
    parts = an_operator(api)
    agent = Agent(parts)
    await rest(parts)
    first = agent.question
    put_node(api)
    await rest(parts)
    assert agent.question not in ("", first)
    agent.says(first)
    await rest(parts)
    assert phases(api) == {CLOSED}


async def test_an_object_that_is_made_anew_is_confirmed_anew(parts: OperatorParts) -> None:
    agent = Agent(parts)
    await rest(parts)
    await agent.answers()
    first = agent.question
    parts.api.delete_card(CARD)
    await rest(parts)
    assert phases(parts.api) == {CLOSED, OPEN}
    assert parts.api.card(SECOND).phase == "Ready"
    assert agent.question != first
    await agent.answers()
    assert phases(parts.api) == {OPEN}


async def test_an_object_that_is_made_anew_while_an_answer_is_entered_is_asked_for_anew(parts: OperatorParts) -> None:
    agent, entering = Agent(parts), asyncio.Event()
    await rest(parts)
    first = agent.question
    parts.api.queue(Operation.LIST_PODS, hold_request(entering))
    agent.says(first)
    parts.watch()
    await settle()
    parts.api.delete_card(CARD)
    parts.watch()
    await parts.inventory.worker.idle()
    entering.set()
    await rest(parts)
    assert (agent.question != first, CLOSED in phases(parts.api)) == (True, True)
    await agent.answers()
    assert phases(parts.api) == {OPEN}


async def test_a_card_that_memory_still_has_is_stored_with_its_holders_before_the_agent_answers(
    parts: OperatorParts,
) -> None:
    agent = Agent(parts)
    await rest(parts)
    await agent.answers()
    await parts.add("a", a_share(CARD))
    parts.api.delete_card(CARD)
    await rest(parts)
    assert (parts.api.card(CARD).phase, parts.api.holders_of(CARD)) == ("Pending", ["a"])
    await agent.answers(a_holder("a", a_share(CARD)))
    assert (phases(parts.api), parts.api.holders_of(CARD)) == ({OPEN}, ["a"])


async def test_an_operator_that_starts_finds_them_closed_and_asks_anew(parts: OperatorParts) -> None:
    await rest(parts)
    Agent(parts)
    await rest(parts)
    other = an_operator(parts.api)
    agent = Agent(other, "agent")
    await rest(other)
    assert phases(parts.api) == {CLOSED}
    await agent.answers()
    assert phases(parts.api) == {OPEN}


async def test_the_next_agent_is_asked_what_the_one_before_did_not_answer(parts: OperatorParts) -> None:
    agent = Agent(parts)
    await rest(parts)
    first = agent.question
    parts.agents.observe(parts.api.pods["gpuledger-system", AGENT], gone=True)
    agent = Agent(parts, "next")
    await rest(parts)
    assert agent.question not in ("", first)
    await agent.answers()
    assert phases(parts.api) == {OPEN}


async def test_a_question_of_another_operator_in_place_of_ours_is_replaced_after_a_while(parts: OperatorParts) -> None:
    agent = Agent(parts)
    await rest(parts)
    agent.says("of-another-one")
    await asyncio.sleep(ASK_AGAIN_S + 1)
    await rest(parts)
    await agent.answers()
    assert phases(parts.api) == {OPEN}


async def test_an_agent_without_an_answer_is_not_asked_again_and_again(parts: OperatorParts) -> None:
    Agent(parts)
    await asyncio.sleep(3_600)
    await rest(parts)
    assert parts.api.writes().count(Operation.ANNOTATE) == 1


@pytest.mark.parametrize("operation", [Operation.ANNOTATE, Operation.WRITE_STATUS])
async def test_a_write_that_fails_is_tried_again(parts: OperatorParts, operation: Operation) -> None:
    fault: Fault = refuse(Unreachable("away"))
    agent = Agent(parts)
    parts.api.queue(operation, fault)
    await rest(parts)
    await agent.answers(a_holder("uid-lost", a_share(CARD, 4_000)))
    assert phases(parts.api) == {OPEN}
    assert holders(parts.api, CARD).keys() == {"uid-lost"}


async def test_a_closed_card_stays_closed_when_its_node_goes_and_comes_back(parts: OperatorParts) -> None:
    agent = Agent(parts)
    await rest(parts)
    await agent.answers(a_holder("uid-lost", a_share(CARD, 4_000)), a_holder("uid-lost", a_share(SECOND, 4_000)))
    for card in CARDS:
        parts.api.delete_card(card)
    await rest(parts)
    parts.api.delete_node("node-a")
    await rest(parts)
    put_node(parts.api, granted=None)
    await rest(parts)
    assert phases(parts.api) == {CLOSED}


async def test_no_card_is_chosen_while_it_is_closed(parts: OperatorParts) -> None:
    Agent(parts)
    await rest(parts)
    parts.api.put_pod(a_pod_object("binds"))
    with pytest.raises(BindFailed):
        await parts.bind("binds", "node-a")


# Something runs that the ledger does not count, as after etcd was put back.


@pytest.fixture
async def agent(parts: OperatorParts) -> Agent:
    """Return an agent that has confirmed its cards."""
    agent = Agent(parts)
    await rest(parts)
    await agent.answers()
    return agent


async def test_a_pod_without_a_share_of_which_something_runs_closes_its_node_and_then_counts(agent: Agent) -> None:
    api, parts = agent.api, agent.parts
    first = agent.question
    put_node(api, answer_text(first), runs={"uid-lost": True})
    await rest(parts)
    assert (phases(api), agent.question != first) == ({CLOSED}, True)
    put_node(api, answer_text(agent.question, [a_holder("uid-lost", a_share(CARD, 4_000))]), runs={"uid-lost": True})
    await rest(parts)
    assert (phases(api), {*holders(api, CARD)}) == ({OPEN}, {"uid-lost"})


async def test_a_pod_whose_share_is_being_released_closes_nothing(agent: Agent) -> None:
    api, parts = agent.api, agent.parts
    api.put_card(CARD, a_holder("uid-forced", a_share(CARD)), phase="Ready")
    await rest(parts)
    question = agent.question
    put_node(api, answer_text(question), runs={"uid-forced": True})
    await rest(parts)
    assert (phases(api), agent.question) == ({OPEN}, question)


async def test_one_that_has_nothing_of_a_card_is_asked_for_once(agent: Agent) -> None:
    api, parts = agent.api, agent.parts
    put_node(api, answer_text(agent.question), runs={"uid-other": True})
    await rest(parts)
    question = agent.question
    put_node(api, answer_text(question), runs={"uid-other": True})
    await rest(parts)
    put_node(api, answer_text(question), runs={"uid-other": True, "uid-ended": False})
    await rest(parts)
    assert (phases(api), agent.question) == ({OPEN}, question)


async def test_a_replica_that_takes_over_closes_nothing_that_the_other_one_has_found_out(agent: Agent) -> None:
    api, parts = agent.api, agent.parts
    passive = OperatorParts(api, leadership=Leadership("host"))
    passive.read_cards()
    await rest(passive)
    put_node(api, answer_text(agent.question), runs={"uid-lost": True})
    await rest(parts)
    put_node(api, answer_text(agent.question, [a_holder("uid-lost", a_share(CARD, 4_000))]), runs={"uid-lost": True})
    await rest(parts)
    await rest(passive)
    assert not any(passive.inventory.confirmations.awaits(passive.entry(card)) for card in CARDS)
