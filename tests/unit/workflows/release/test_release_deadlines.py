"""A share ends when its processes have: the kubelet says so, or the node's agent, or nobody for a long time."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from builders import a_card, a_holder, a_share
from fakes.api_server import ApiServer, Operation
from fakes.objects import GPU, MEMORY, a_node_object, a_pod_object
from fakes.operator_parts import KEPT_S, LONGEST_RELEASE_S, RELEASE_DELAY_S, OperatorParts, an_operator
from gpuledger.formats.annotations import (
    DEVICES_ANNOTATION,
    ENDS_ANNOTATION,
    devices_annotation,
    ends_annotation,
)
from gpuledger.formats.kubernetes.pod import pod_identity
from gpuledger.model.share import Holder, HolderState
from gpuledger.reports.records import RecordKind
from gpuledger.workflows.release import SPOKEN_WITHIN_S

CARD, ELSEWHERE = a_card(0), a_card(0, "node-b")
Json = dict[str, Any]

RELEASING = [HolderState.RELEASING]


def running(**fields: Any) -> Json:
    pod = a_pod_object("a", node_name="node-a", phase="Running", started=True, **fields)
    text = devices_annotation([a_share(CARD)])
    return {**pod, "metadata": {**pod["metadata"], "annotations": {DEVICES_ANNOTATION: text}}}


def failed(*states: Json, by_the_collector: bool = False) -> Json:
    """Return a pod that is called failed, with these states of its containers."""
    pod = running()
    conditions = [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}]
    statuses = [{"name": f"c{number}", "state": state} for number, state in enumerate(states)]
    status = {"phase": "Failed", "startTime": "2030-01-01T00:00:00Z", "containerStatuses": statuses}
    return {**pod, "status": {**status, "conditions": conditions if by_the_collector else []}}


def node(said: dict[str, bool] | None, text: str | None = None, name: str = "node-a") -> Json:
    """Return a node whose agent has said this of pods; None: it says no such things."""
    found = a_node_object(name, [CARD if name == "node-a" else ELSEWHERE])
    if text is None and said is not None:
        text = ends_annotation(said)
    if text is not None:
        found["metadata"]["annotations"][ENDS_ANNOTATION] = text
    return found


def an_agent(ready: bool) -> Json:
    pod = a_pod_object("agent", uid="agent", node_name="node-a", phase="Running")
    pod["status"]["conditions"] = [{"type": "Ready", "status": str(ready)}]
    return pod


@pytest.fixture
async def parts(api: ApiServer) -> OperatorParts:
    """Return an operator over a node whose card pod `a` holds, and whose agent answers."""
    api.put_node(node({}))
    api.put_card(CARD, a_holder_of(running()))
    parts = an_operator(api)
    parts.agents.observe(an_agent(ready=True), gone=False)
    await show(parts, running())
    return parts


def a_holder_of(pod: Json) -> Holder:
    return replace(a_holder("a", a_share(CARD)), pod=pod_identity(pod))


async def show(parts: OperatorParts, pod: Json) -> None:
    parts.api.put_pod(pod)
    await parts.idle()


async def say(parts: OperatorParts, said: dict[str, bool] | None, **fields: Any) -> None:
    """Let the node's agent say this, and the operator see it."""
    parts.api.put_node(node(said, **fields))
    await parts.idle()


async def delete_by_force(parts: OperatorParts) -> None:
    parts.api.delete_pod("a")
    await parts.idle()


def states(parts: OperatorParts) -> list[HolderState]:
    return [holder.state for holder in parts.api.card(CARD).holders or ()]


# What the API server says.

RUNS, ENDED = {"running": {"startedAt": "2030-01-01T00:00:00Z"}}, {"terminated": {"exitCode": 1}}


@pytest.mark.parametrize("pod", [failed(), failed(ENDED), failed(ENDED, {"waiting": {"reason": "CrashLoopBackOff"}})])
async def test_a_pod_of_which_the_kubelet_says_that_it_has_failed_is_released_at_once(
    parts: OperatorParts, pod: Json
) -> None:
    await show(parts, pod)
    assert states(parts) == []


async def test_a_pod_that_its_restarted_kubelet_does_not_admit_says_so_in_its_history_and_an_event(
    parts: OperatorParts,
) -> None:
    said = "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices"
    pod = failed()
    pod["status"] |= {"reason": "UnexpectedAdmissionError", "message": f"Pod {said}\n, which is unexpected"}
    await show(parts, pod)
    assert states(parts) == []
    [(_, warning, reason, sentence)] = parts.told_pods
    assert (warning, reason) == (True, "GPUPodNotAdmitted")
    assert sentence.startswith(f"its kubelet did not admit it: Pod {said}")
    assert "pods with ResourceClaims start again on their cards" in sentence
    [text] = [record.text for record in parts.trail if record.kind is RecordKind.RELEASED]
    assert text.startswith("its kubelet did not admit it")


@pytest.mark.parametrize("pod", [failed(ENDED, RUNS), failed(by_the_collector=True)])
async def test_a_pod_that_others_call_failed_keeps_its_share_while_it_may_run(parts: OperatorParts, pod: Json) -> None:
    """PodGC does, for pods of a node that is gone or out of service, and then deletes them."""
    await show(parts, pod)
    assert states(parts) == RELEASING
    await delete_by_force(parts)
    await asyncio.sleep(KEPT_S - 1)
    assert states(parts) == RELEASING
    await asyncio.sleep(3)
    assert states(parts) == []


async def test_a_kubelet_that_comes_back_and_says_that_all_has_ended_releases_the_share(parts: OperatorParts) -> None:
    await show(parts, failed(RUNS, by_the_collector=False))
    assert states(parts) == RELEASING
    await show(parts, failed(ENDED))
    assert states(parts) == []


# What the node's agent says.


async def test_a_pod_of_which_nothing_is_left_is_released_as_soon_as_its_node_says_so(parts: OperatorParts) -> None:
    await delete_by_force(parts)
    assert states(parts) == RELEASING
    await say(parts, {"uid-a": False})
    assert states(parts) == []
    assert parts.remembered("uid-a") == []


async def test_where_the_node_has_spoken_first_one_write_is_enough(parts: OperatorParts) -> None:
    before = len(parts.api.called(Operation.WRITE_STATUS))
    await say(parts, {"uid-a": False})
    assert states(parts) == [HolderState.ALLOCATED]
    await delete_by_force(parts)
    assert states(parts) == []
    assert len(parts.api.called(Operation.WRITE_STATUS)) == before + 1


async def test_a_pod_that_still_runs_keeps_its_share_however_long_that_takes(parts: OperatorParts) -> None:
    """A process that hangs in the driver, or one whose kubelet is gone."""
    await delete_by_force(parts)
    await say(parts, {"uid-a": True})
    calls = len(parts.api.calls)
    await asyncio.sleep(10 * LONGEST_RELEASE_S)
    await parts.idle()
    assert states(parts) == RELEASING
    assert len(parts.api.calls) <= calls + 1, "one look when its time is over"
    await say(parts, {"uid-a": False})
    assert states(parts) == []


async def test_while_the_agent_is_away_its_silence_means_nothing(parts: OperatorParts) -> None:
    parts.agents.observe(an_agent(ready=False), gone=False)
    await delete_by_force(parts)
    await asyncio.sleep(10 * LONGEST_RELEASE_S)
    assert states(parts) == RELEASING
    parts.agents.observe(an_agent(ready=True), gone=False)
    await parts.idle()
    assert states(parts) == [], "it has come back, and does not say that anything is left"


async def test_an_agent_that_comes_back_early_changes_nothing_before_the_time_is_over(parts: OperatorParts) -> None:
    parts.agents.observe(an_agent(ready=False), gone=False)
    await delete_by_force(parts)
    await asyncio.sleep(KEPT_S / 2)
    parts.agents.observe(an_agent(ready=True), gone=False)
    await parts.idle()
    assert states(parts) == RELEASING
    await asyncio.sleep(KEPT_S / 2 + 2)
    assert states(parts) == []


async def test_a_share_of_a_node_that_is_gone_ends_in_time(parts: OperatorParts) -> None:
    await say(parts, {"uid-a": True})
    await delete_by_force(parts)
    await asyncio.sleep(10 * KEPT_S)
    assert states(parts) == RELEASING
    parts.api.delete_node("node-a")
    await parts.idle()
    assert states(parts) == []


async def test_an_agent_speaks_for_its_own_node_only(api: ApiServer, parts: OperatorParts) -> None:
    api.put_node(node({"uid-a": False}, name="node-b"))
    await delete_by_force(parts)
    assert states(parts) == RELEASING


@pytest.mark.parametrize("text", ["{", "[]", '{"uid-a": "gone"}', '{"uid-a": ["ended"]}', "null", '"ended"'])
async def test_a_word_that_cannot_be_read_is_left_out_and_the_one_before_stays(parts: OperatorParts, text: str) -> None:
    await say(parts, {"uid-a": True})
    await delete_by_force(parts)
    await say(parts, None, text=text)
    await asyncio.sleep(10 * KEPT_S)
    assert states(parts) == RELEASING


async def test_an_operator_that_has_just_started_knows_what_nodes_have_said(
    api: ApiServer, parts: OperatorParts
) -> None:
    await say(parts, {"uid-a": True})
    await delete_by_force(parts)
    await parts.releaser.worker.stop()
    restarted = an_operator(api)
    await restarted.observer.resync()
    await asyncio.sleep(10 * KEPT_S)
    assert states(parts) == RELEASING
    await say(restarted, {"uid-a": False})
    assert states(restarted) == []


async def test_an_agent_has_time_to_speak_however_short_the_delay_is(api: ApiServer) -> None:
    api.put_node(node({}))
    pod = running()
    pod["spec"]["terminationGracePeriodSeconds"] = 0
    api.put_card(CARD, a_holder_of(pod))
    parts = an_operator(api, release_delay_s=0.0)
    await show(parts, pod)
    await delete_by_force(parts)
    await asyncio.sleep(SPOKEN_WITHIN_S - 1)
    assert states(parts) == RELEASING
    await asyncio.sleep(2)
    assert states(parts) == []


# How long, where nobody speaks.


@pytest.mark.parametrize(
    ("grace_s", "kept_s"),
    [
        (0, RELEASE_DELAY_S),
        (600, 600 + RELEASE_DELAY_S),
        (2**62, LONGEST_RELEASE_S),
    ],
)
async def test_a_pod_keeps_its_share_for_its_own_time_to_end_and_a_while_longer(
    api: ApiServer, grace_s: int, kept_s: float
) -> None:
    """A kubelet that was cut off gives a missing pod the time that its spec says."""
    api.put_node(node(None))
    api.put_card(CARD)
    parts = an_operator(api)
    pod = a_pod_object("a", {GPU: "1", MEMORY: "1k"})
    pod["spec"]["terminationGracePeriodSeconds"] = grace_s
    await show(parts, pod)
    parts.filter("a", "node-a")
    await parts.bind("a", "node-a")
    await parts.idle()
    await parts.releaser.worker.stop()
    restarted = an_operator(api)  # which has never seen the pod: what counts is in the ledger
    api.delete_pod("a")
    await restarted.observer.resync()
    await restarted.idle()
    await asyncio.sleep(kept_s - 1)
    assert states(restarted) == RELEASING
    await asyncio.sleep(3)
    assert states(restarted) == []
