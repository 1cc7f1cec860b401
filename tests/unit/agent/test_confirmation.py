"""An agent tells the operator, when it is asked and only then, what it has given out on its node."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, cast

import pytest

from fakes.grants import a_grant
from fakes.objects import GPU, a_node_object, a_pod_object
from fakes.virtual_time import settle
from gpuledger.agent.confirmation import Confirmation, holders_of
from gpuledger.agent.ended_pods import EndedPods, Sight
from gpuledger.agent.node_entry import NodeAnnotation
from gpuledger.formats.annotations import ENDS_ANNOTATION, read_ends
from gpuledger.formats.confirmation import (
    CONFIRM_ANNOTATION,
    GRANTED_ANNOTATION,
    LONGEST_ANSWER,
    Answer,
    answer_text,
    read_answer,
)
from gpuledger.formats.runtime.cdi import Grant, GrantedClaim, GrantedPart, grant_file, read_grant
from gpuledger.model.errors import BadInput
from gpuledger.model.share import ClaimRef

PART = GrantedPart("GPU-1", 4_000, 20)


def of(pod: str, *parts: GrantedPart, **changes: Any) -> Grant:
    return a_grant(f"slot-{pod}-{changes.get('container', 'main')}", pod, parts=parts or (PART,), **changes)


def an_agents_pod(token: str = "") -> dict[str, Any]:
    pod = a_pod_object("agent", uid="agent")
    pod["metadata"]["annotations"] = {CONFIRM_ANNOTATION: token} if token else {}
    return pod


class Node:
    """A node with grants, and an agent that answers."""

    def __init__(self) -> None:
        self.grants: list[Grant] = []
        self.said: list[str] = []
        self.ends = ""
        self.left: set[str] = set()
        self.ended = EndedPods([GPU], self._look, self._note_ends)
        self.confirmation = Confirmation(cast(NodeAnnotation, self), lambda: self.grants, self.ended)

    def want(self, text: str) -> None:
        """Have the node show this."""
        self.said.append(text)

    async def _look(self, containers: Mapping[str, Collection[str]]) -> Sight:
        return Sight(frozenset(self.left & containers.keys()), True)

    def _note_ends(self, text: str) -> None:
        self.ends = text

    def begin(self, granted: str | None = None, *pods: str) -> None:
        """Let the agent start: what its Node says, and the pods that the API server lists."""
        node = a_node_object("node-a")
        if granted is not None:
            node["metadata"]["annotations"][GRANTED_ANNOTATION] = granted
        self.confirmation.begin(node)
        listed = self.ended.listing()
        for name in pods:
            self.ended.observe(a_pod_object(name, started=True), False)
        listed({f"uid-{name}" for name in pods})
        self.tasks = [asyncio.create_task(self.confirmation.run()), asyncio.create_task(self.ended.run())]

    async def ask(self, token: str) -> Answer:
        """Ask; return what is said then."""
        self.confirmation.observe(an_agents_pod(token), False)
        await settle()
        return read_answer(self.said[-1])


async def test_it_says_that_it_answers_before_it_is_asked_anything(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.begin()
    assert [read_answer(text) for text in node.said] == [Answer("")]


async def test_each_question_is_answered_once_with_what_there_is_then() -> None:
    node = Node()
    node.begin(None, "a", "b")
    node.grants.append(of("a"))
    first = await node.ask("one")
    assert (first.token, [holder.pod.name for holder in first.holders]) == ("one", ["a"])
    node.grants.append(of("b"))
    await node.ask("one")
    assert len(node.said) == 2
    second = await node.ask("two")
    assert (second.token, [holder.pod.name for holder in second.holders]) == ("two", ["a", "b"])


async def test_an_answer_of_before_stays_when_the_agent_starts_anew() -> None:
    node, before = Node(), answer_text("one")
    node.begin(before)
    await node.ask("one")
    assert node.said == [before]
    assert (await node.ask("two")).token == "two"


async def test_an_answer_that_can_not_be_read_is_replaced() -> None:
    node = Node()
    node.begin("{")
    assert read_answer(node.said[-1]) == Answer("")


async def test_nothing_is_answered_before_it_is_known_which_pods_have_ended() -> None:
    node = Node()
    node.confirmation.begin(a_node_object("node-a"))
    tasks = [asyncio.create_task(node.confirmation.run()), asyncio.create_task(node.ended.run())]
    assert (await node.ask("one")).token == ""
    node.ended.listing()(set())
    await settle()
    assert (read_answer(node.said[-1]).token, len(tasks)) == ("one", 2)


async def test_a_pod_of_which_nothing_is_left_has_nothing() -> None:
    node = Node()
    node.begin()
    node.ended.look_for("uid-gone")
    await settle()
    node.left.add("uid-other")
    assert read_ends({"metadata": {"annotations": {ENDS_ANNOTATION: node.ends}}}) == {"uid-gone": False}
    node.grants += [of("gone"), of("a")]
    assert [holder.pod.name for holder in (await node.ask("one")).holders] == ["a"]


async def test_one_that_the_api_server_does_not_know_is_named_and_looked_for() -> None:
    node = Node()
    node.begin(None, "a")
    node.left.add("uid-lost")
    node.grants += [of("lost"), of("a")]
    answer = await node.ask("one")
    assert {holder.pod.name for holder in answer.holders} == {"a", "lost"}
    assert node.ended.may_run() == {"uid-lost"}


async def test_an_answer_that_is_too_long_is_not_given(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.begin()
    node.grants += [of(f"pod-{number}") for number in range(2_000)]
    assert (await node.ask("one")).token == ""
    assert f"may have {LONGEST_ANSWER:,}" in caplog.text


def test_containers_of_one_pod_are_one_holder_of_a_card() -> None:
    side = GrantedPart("GPU-1", 1_000, 5, exclusive=True)
    (holder,) = holders_of([of("a"), of("a", side, container="side")])
    share = holder.share
    assert (share.uuid, share.exclusive, share.amounts.memory_mib, share.amounts.cores) == ("GPU-1", True, 5_000, 25)
    assert [container.name for container in share.containers] == ["main", "side"]


def test_a_share_by_a_claim_names_it_and_what_pods_have_together_is_left_out() -> None:
    own, shared = GrantedClaim("mine", "uid-claim", "gpu"), GrantedClaim("ours", "uid-a", "gpu")
    (holder,) = holders_of([of("b", claim=own), of("a", claim=shared)])
    assert [(part.name, part.claim) for part in holder.share.containers] == [
        ("mine/gpu", ClaimRef("mine", "uid-claim"))
    ]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"answers": "a", "cards": {"GPU-1": [{}]}}', '{"answers": "a"}'])
def test_other_texts_are_no_answers(text: str) -> None:
    with pytest.raises(BadInput, match=GRANTED_ANNOTATION):
        read_answer(text)


# The parts are in the files of grants.


def test_a_file_has_the_parts_of_its_cards() -> None:
    grant = of("a", PART, GrantedPart("GPU-2", 1, 0, exclusive=True), uuids=("GPU-1", "GPU-2"))
    assert read_grant(grant_file(grant)) == grant


def test_the_file_of_an_earlier_release_says_them_by_the_container_s_environment() -> None:
    env = {"env": ["GPULEDGER_UUIDS=GPU-1,GPU-2", "GPULEDGER_MEMORY_MIB=4000,5000", "GPULEDGER_CORES=20,0"]}
    found = read_grant(grant_file(a_grant(uuids=("GPU-1", "GPU-2"), edits=env)))
    assert found.parts == (PART, GrantedPart("GPU-2", 5_000, 0))
