"""A claim gets the cards that the ledger gives it, in the containers that name it, or it is said why not."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from builders import a_card
from fakes.agent_node import NODE
from fakes.api_server import Operation, lose_request, refuse
from fakes.virtual_time import now_s
from gpuledger.agent.grants.grants import ISOLATION_ANNOTATION
from gpuledger.agent.grants.starts import PATIENCE_S
from gpuledger.agent.isolation.choice import Isolation
from gpuledger.agent.kubelet.dra import PreparedDevice
from gpuledger.agent.kubelet.slot_owners import ClaimInUse
from gpuledger.formats.resource_claims.slices import device_name
from gpuledger.formats.runtime.cdi import CardLimit, claim_grant_name
from gpuledger.formats.runtime.cdi import device_name as runtime_name
from gpuledger.model.errors import BadInput, Denied, NotKnownYet, StartRefused
from gpuledger.model.share import HolderState
from unit.agent.grants.conftest import ClaimNode, key, part, ref

KUBELET_PATIENCE_S = 45.0
MADE = claim_grant_name("uid-made", "gpu")


def device(node: ClaimNode, index: int, request: str, grant: str = "") -> PreparedDevice:
    names = (runtime_name(grant),) if grant else ()
    return PreparedDevice(request, device_name(node.cards[index].uuid), names)


async def test_a_claim_gets_what_the_ledger_says_and_containers_are_told_of_it(node: ClaimNode) -> None:
    node.claiming("a", {"main": ["c0"], "side": ["c0"]})
    node.give("a", {2: [part("c0/gpu", ref("made"), 3000, 30)], 1: [part("c0/gpu", ref("made"), 2000, 20)]})
    devices = await node.claims.prepare(key("made"))
    assert devices == [device(node, 1, "gpu", MADE), device(node, 2, "gpu")]
    told = node.told(MADE)
    assert told["GPULEDGER_UUIDS"] == ",".join(node.uuids(1, 2))
    assert (told["GPULEDGER_MEMORY_MIB"], told["GPULEDGER_CORES"]) == ("2000,3000", "20,30")
    assert node.claims._outcomes == {"prepared": 1}


async def test_each_request_comes_to_those_that_name_it_and_subrequests_have_their_requests_name(
    node: ClaimNode,
) -> None:
    node.claiming("a", {"main": ["c0/a"], "side": ["c0/b"]})
    node.give("a", {0: [part("c0/a", ref("made")), part("c0/b/large", ref("made"), 700)]})
    a, b = claim_grant_name("uid-made", "a"), claim_grant_name("uid-made", "b")
    assert await node.claims.prepare(key("made")) == [device(node, 0, "a", a), device(node, 0, "b", b)]
    assert (node.told(a)["GPULEDGER_MEMORY_MIB"], node.told(b)["GPULEDGER_MEMORY_MIB"]) == ("100", "700")


async def test_what_the_same_containers_name_is_one_and_of_a_card_that_it_has_twice_they_have_the_sum(
    node: ClaimNode,
) -> None:
    node.claiming("a", {"main": ["c0", "c1"]})
    node.give("a", {0: [part("c0/a", ref("made"), 100), part("c1/b", ref("other"), 200)]})
    node.give(
        "a", {1: [part("c1/b", ref("other"), 300)], 0: [part("c0/a", ref("made")), part("c1/b", ref("other"), 200)]}
    )
    name = claim_grant_name("uid-made", "a")
    assert await node.claims.prepare(key("other")) == [device(node, 0, "b", name), device(node, 1, "b")]
    assert await node.claims.prepare(key("made")) == [device(node, 0, "a", name)]
    assert list(node.granted()) == [name]
    assert node.told(name)["GPULEDGER_MEMORY_MIB"] == "300,300"


@pytest.mark.parametrize(
    ("uses", "why"),
    [
        (
            {"main": ["c0"], "side": ["c0/b"]},
            "container main names c0/a, c0/b, of which other containers name only some",
        ),
        ({"main": ["c0/a", "c1"], "side": ["c0/a"]}, "container main names c0/a, c1/gpu"),
        (
            {"main": ["c0", "shared"]},
            "container main gets GPUs by c0/a\\+c0/b, and by its own resources or a claim that pods share",
        ),
        ({"main": ["c0", "joined"]}, "container main gets GPUs by c0/a\\+c0/b, and by its own resources or a claim"),
        (
            {"own": ["c0"]},
            "container own gets GPUs by c0/a\\+c0/b, and by its own resources or a claim that pods share",
        ),
    ],
    ids=["the whole beside a part", "two claims", "one that pods share", "one of another pod's", "resources"],
)
async def test_a_container_that_would_have_several_limits_is_refused(
    node: ClaimNode, uses: dict[str, list[str]], why: str
) -> None:
    node.claiming("a", uses, shared="shared", joined="joined")
    node.give("b", {1: [part("mine/gpu", ref("joined", shared=True))]})
    of_claims = [part("c0/a", ref("made")), part("c0/b", ref("made")), part("c1/gpu", ref("other"))]
    node.give("a", {0: [*of_claims, part("shared/gpu", ref("shared", shared=True)), part("own", None)]})
    with pytest.raises(StartRefused, match=why):
        await node.claims.prepare(key("made"))
    assert node.grants.all() == ()
    assert node.claims._outcomes == {"refused": 1}


async def test_pods_that_share_a_claim_get_the_whole_of_it_whichever_of_them_the_ledger_names(node: ClaimNode) -> None:
    node.claiming("a", {"main": ["mine/a"]}, mine="shared")
    node.give("a", {0: [part("mine/a", ref("shared", shared=True)), part("mine/b", ref("shared", shared=True), 400)]})
    name = claim_grant_name("uid-shared", "a")
    prepared = [device(node, 0, "a", name), device(node, 0, "b", name)]
    assert await node.claims.prepare(key("shared")) == prepared
    before = node.granted()
    assert (before[name].pod, before[name].of_one_pod) == ("shared", False)
    node.release("uid-a")
    node.claiming("b", {"main": ["ours"]}, ours="shared")
    node.give("b", {0: [part("ours/a", ref("shared", shared=True)), part("ours/b", ref("shared", shared=True), 400)]})
    assert await node.claims.prepare(key("shared")) == prepared
    assert node.granted() == before


async def test_a_claim_that_pods_share_is_prepared_only_while_one_of_them_is_on_the_node(node: ClaimNode) -> None:
    """The kubelet can ask late, when the last of them was deleted by force: what it holds may be another's by then."""
    node.claiming("a", {"main": ["mine"]}, mine="shared")
    node.claiming("b", {"main": ["mine"]}, mine="other")
    node.give("a", {0: [part("mine/gpu", ref("shared", shared=True))]})
    node.api.delete_pod("a")
    with pytest.raises(NotKnownYet, match="no pod of this node that uses claim default/shared"):
        await node.claims.prepare(key("shared"))
    assert node.grants.all() == ()


@pytest.mark.parametrize("shared", [False, True])
async def test_a_pod_of_which_the_agent_has_said_that_nothing_is_left_gets_nothing_any_more(
    node: ClaimNode, shared: bool
) -> None:
    """Although the API server, asked before that, has said that there is the pod."""
    node.claiming("a", {"main": ["mine"]}, mine="any")
    node.give("a", {0: [part("mine/gpu", ref("any", shared=shared))]})
    node.over = {"uid-a"}
    with pytest.raises((NotKnownYet, StartRefused)):
        await node.claims.prepare(key("any"))
    assert node.grants.all() == ()


@pytest.mark.parametrize("shared", [False, True])
async def test_a_claim_is_the_kubelets_from_its_question_until_it_gives_it_back(node: ClaimNode, shared: bool) -> None:
    node.claiming("a", {"main": ["mine"]}, mine="any")
    node.give("a", {0: [part("mine/gpu", ref("any", shared=shared))]})
    assert node.claims.prepared() == frozenset()
    await node.claims.prepare(key("any"))
    assert node.claims.prepared() == {("default", "any")}
    node.start_agent()
    assert node.claims.prepared() == {("default", "any")}
    node.may_run = {"uid-a"}  # its files stay for now
    await node.claims.unprepare(key("any"))
    assert node.claims.prepared() == frozenset()
    await node.claims.prepare(key("any"))
    assert node.claims.prepared() == {("default", "any")}
    node.claims.give_up({grant.name for grant in node.grants.all()})
    assert node.claims.prepared() == frozenset()


async def test_a_claim_that_holds_nothing_gets_nothing(node: ClaimNode) -> None:
    """Whatever stands in the claim itself: nobody reads it."""
    begin_s = now_s()
    node.claiming("a", {"main": ["c0"]})
    node.give("a", {0: [part("c0/gpu", ref("made"))]})
    for claim in (key("forged"), key("made", namespace="elsewhere"), key("made", uid="uid-of-an-earlier-one")):
        with pytest.raises(StartRefused, match=f"claim {claim} has no GPU of node {NODE} in the ledger"):
            await node.claims.prepare(claim)
    assert node.grants.all() == ()
    assert now_s() == begin_s


async def test_a_claim_on_a_card_of_another_node_holds_nothing_here(node: ClaimNode) -> None:
    node.claiming("a", {"main": ["c0"]})
    node.cards.append(a_card(9, "node-b"))
    node.api.put_card(node.cards[-1])
    node.give("a", {-1: [part("c0/gpu", ref("made"))]})
    with pytest.raises(StartRefused, match="has no GPU of node"):
        await node.claims.prepare(key("made"))


async def test_a_card_that_the_driver_has_lost_is_named(node: ClaimNode) -> None:
    node.claiming("a", {"main": ["c0"]})
    node.give("a", {index: [part("c0/gpu", ref("made"))] for index in (0, 1)})
    del node.shown[node.cards[1].uuid]
    with pytest.raises(StartRefused, match=f"no longer lists {node.cards[1].uuid}"):
        await node.claims.prepare(key("made"))


async def test_a_claim_that_two_pods_hold_is_refused(node: ClaimNode) -> None:
    for index, pod in enumerate("ab"):
        node.claiming(pod, {"main": ["c0"]})
        node.give(pod, {index: [part("c0/gpu", ref("made"))]})
    with pytest.raises(StartRefused, match="2 pods have GPUs by claim default/made"):
        await node.claims.prepare(key("made"))


@pytest.mark.parametrize("uid", ["../../etc/passwd", "uid made", "a=b"])
async def test_a_uid_that_is_no_part_of_a_name_is_refused(node: ClaimNode, uid: str) -> None:
    with pytest.raises(BadInput, match="can't be a part of a file's name"):
        await node.claims.prepare(key("made", uid=uid))


@pytest.mark.parametrize("state", [HolderState.RELEASING, HolderState.RESERVED])
async def test_a_share_that_is_not_allocated_is_waited_for_and_then_the_kubelet_asks_again(
    node: ClaimNode, state: HolderState
) -> None:
    node.claiming("a", {"main": ["c0"]})
    node.give("a", {0: [part("c0/gpu", ref("made"))]}, state)
    begin_s = now_s()
    with pytest.raises(NotKnownYet, match=f"is {state}"):
        await node.claims.prepare(key("made"))
    assert now_s() < begin_s + KUBELET_PATIENCE_S
    preparing = asyncio.create_task(node.claims.prepare(key("made")))
    await asyncio.sleep(PATIENCE_S / 2)
    node.give("a", {0: [part("c0/gpu", ref("made"))]})
    assert await preparing == [device(node, 0, "gpu", MADE)]
    assert node.claims._outcomes == {"not_yet": 1, "prepared": 1}


async def test_an_api_server_that_is_away_is_waited_for_and_one_that_refuses_is_not(node: ClaimNode) -> None:
    node.claiming("a", {"main": ["c0"]})
    node.give("a", {0: [part("c0/gpu", ref("made"))]})
    node.api.queue(Operation.LIST_CARDS, refuse(Denied("no", 403)))
    with pytest.raises(Denied):
        await node.claims.prepare(key("made"))
    node.api.queue(Operation.LIST_CARDS, *[lose_request()] * 50)
    with pytest.raises(NotKnownYet, match=f"tried for {PATIENCE_S:g} s"):
        await node.claims.prepare(key("made"))
    assert node.grants.all() == ()


@pytest.mark.parametrize("change", ["deleted", "recreated"])
async def test_the_pod_that_holds_a_claim_has_to_be_there(node: ClaimNode, change: str) -> None:
    node.claiming("a", {"main": ["c0"]})
    node.give("a", {0: [part("c0/gpu", ref("made"))]})
    node.api.delete_pod("a")
    if change == "recreated":
        pod = node.claiming("a", {"main": ["c0"]})
        node.api.put_pod(pod | {"metadata": pod["metadata"] | {"uid": "uid-of-another"}})
    with pytest.raises(StartRefused, match="is gone"):
        await node.claims.prepare(key("made"))


async def test_many_at_once_cost_few_reads_of_the_ledger(node: ClaimNode) -> None:
    names = [f"p{number}" for number in range(50)]
    for number, name in enumerate(names):
        node.claiming(name, {"main": ["c0"]})
        node.give(name, {number % 4: [part("c0/gpu", ref(name))]})
    await asyncio.gather(*(node.claims.prepare(key(name)) for name in names))
    assert len(list(node.grants.all())) == 50
    assert len(node.api.called(Operation.LIST_CARDS)) <= 2


async def test_it_is_prepared_again_with_the_same_result_and_taken_back_as_often_as_one_likes(node: ClaimNode) -> None:
    node.claiming("a", {"main": ["c0"]})
    node.claiming("b", {"main": ["c0"]})
    node.give("a", {0: [part("c0/gpu", ref("made"))]})
    node.give("b", {0: [part("c0/gpu", ref("other"))]})
    await node.claims.prepare(key("other"))
    first = await node.claims.prepare(key("made"))
    files = node.granted()
    assert await node.claims.prepare(key("made")) == first
    assert node.granted() == files
    for _ in range(2):
        await node.claims.unprepare(key("made"))
        await node.claims.unprepare(key("never-prepared"))
        assert list(node.granted()) == [claim_grant_name("uid-other", "gpu")]


async def test_by_hami_core_counters_begin_with_the_claim_and_go_on_when_the_kubelet_asks_again(
    node: ClaimNode,
) -> None:
    node.isolate(Isolation.HAMI_CORE)
    node.claiming("a", {"main": ["c0"]})
    node.give("a", {0: [part("c0/gpu", ref("made"), 3000, 30)]})
    await node.claims.prepare(key("made"))
    told = node.told(MADE)
    assert (told["CUDA_DEVICE_MEMORY_LIMIT_0"], told["CUDA_DEVICE_SM_LIMIT_0"]) == ("3000m", "30")
    region = node.root / "hami" / "containers" / "uid-made_gpu" / "usage.cache"
    region.write_bytes(b"counted")
    node.start_agent()
    await node.claims.prepare(key("made"))
    assert region.read_bytes() == b"counted"
    await node.claims.unprepare(key("made"))
    assert not region.parent.exists()
    await node.claims.prepare(key("made"))
    assert region.read_bytes() == b""


async def test_by_the_driver_a_claims_request_is_the_limit(node: ClaimNode) -> None:
    node.isolate(Isolation.DRIVER)
    node.claiming("a", {"main": ["c0"]})
    node.give("a", {0: [part("c0/gpu", ref("made"), 3000, 30)]})
    await node.claims.prepare(key("made"))
    (grant,) = node.granted().values()
    assert grant.limits == (CardLimit(node.cards[0].uuid, 0, 3000),)
    assert grant.edits["hooks"][0]["args"][2] == MADE


@pytest.mark.parametrize(
    ("isolation", "why"),
    [
        (
            Isolation.HAMI_CORE,
            "HAMi-core counts what each container uses by itself, so its 2 containers could use more",
        ),
        (
            Isolation.MPS,
            "MPS limits each process by itself, so its 2 containers could use more than the claim has: give",
        ),
        (Isolation.DRIVER, ""),
        (Isolation.NONE, ""),
    ],
)
async def test_containers_use_a_claim_together_where_they_are_kept_to_one_amount(
    node: ClaimNode, isolation: Isolation, why: str
) -> None:
    node.isolate(isolation)
    node.claiming("a", {"main": ["c0"], "side": ["c0"]})
    node.give("a", {0: [part("c0/gpu", ref("made"), 3000, 30)]})
    if why:
        with pytest.raises(StartRefused, match=f"claim made of pod default/a, c0/gpu: {why}"):
            await node.claims.prepare(key("made"))
    else:
        await node.claims.prepare(key("made"))
    assert len(list(node.grants.all())) == (not why)


@pytest.mark.parametrize("isolation", [Isolation.HAMI_CORE, Isolation.MPS])
@pytest.mark.parametrize("whole", [False, True])
async def test_pods_share_by_one_claim_what_they_can_be_kept_to_or_whole_cards(
    node: ClaimNode, isolation: Isolation, whole: bool
) -> None:
    node.isolate(isolation)
    node.claiming("a", {"main": ["mine"]}, mine="shared")
    node.give("a", {0: [part("mine/gpu", ref("shared", shared=True))]}, exclusive=whole)
    if whole:
        await node.claims.prepare(key("shared"))
        return
    with pytest.raises(StartRefused, match="pods that share it could use more than the claim has: give each pod a cl"):
        await node.claims.prepare(key("shared"))
    assert node.grants.all() == ()


async def test_by_the_driver_pods_that_share_whole_cards_are_not_limited(node: ClaimNode) -> None:
    node.isolate(Isolation.DRIVER)
    node.claiming("a", {"main": ["mine"]}, mine="shared")
    node.give("a", {0: [part("mine/gpu", ref("shared", shared=True))]}, exclusive=True)
    await node.claims.prepare(key("shared"))
    (grant,) = node.granted().values()
    assert grant.limits == ()


async def test_a_pods_own_wish_counts_for_its_claims(node: ClaimNode) -> None:
    node.isolate(Isolation.NONE)
    pod = node.claiming("a", {"main": ["c0"]})
    node.api.put_pod(pod | {"metadata": pod["metadata"] | {"annotations": {ISOLATION_ANNOTATION: "hami-core"}}})
    node.give("a", {0: [part("c0/gpu", ref("made"))]})
    await node.claims.prepare(key("made"))
    assert node.told(MADE)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "100m"


async def test_an_agent_that_starts_writes_what_is_missing_of_what_the_kubelet_lists(node: ClaimNode) -> None:
    node.claiming("a", {"main": ["c0"]})
    node.give("a", {0: [part("c0/gpu", ref("made"))]})
    await node.claims.prepare(key("made"))
    files = node.granted()
    (node.root / "cdi" / files[MADE].file_name).unlink()
    node.start_agent()
    others = frozenset({"vendor.com/gpu=1", runtime_name("slot-1-0a1b"), runtime_name("claim.gone.gpu")})
    await node.claims.rebuild([ClaimInUse("default", "made", others | {runtime_name(MADE)})])
    assert node.granted() == files


async def test_what_an_earlier_claim_of_the_name_has_left_goes_with_the_next(node: ClaimNode) -> None:
    for uid in ("uid-made", "uid-of-the-next"):
        node.claiming("a", {"main": ["c0"]})
        node.give("a", {0: [part("c0/gpu", replace(ref("made"), uid=uid))]})
        await node.claims.prepare(key("made", uid=uid))
        assert [grant.claim and grant.claim.uid for grant in node.granted().values()] == [uid]


async def test_slots_of_a_pod_of_the_same_name_take_nothing_from_a_claim(node: ClaimNode) -> None:
    node.claiming("a", {"main": ["c0"]})
    node.give("a", {0: [part("c0/gpu", ref("made"))]})
    await node.claims.prepare(key("made"))
    again = node.bind("a", {"main": [1]}, uid="uid-again")
    await node.admit(again)
    await node.start(again, "main")
    assert MADE in node.granted()
