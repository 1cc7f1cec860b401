"""What Bind writes into claims, against an API server that refuses what the real one refuses."""

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from builders import a_card, a_ledger, a_pod, stored
from fakes.api_server import ApiServer, Operation, hold_request, refuse
from fakes.claims import OUR_CLASS, a_claiming_pod, a_resource_claim, a_template
from fakes.virtual_time import LoopClock
from gpuledger.formats.resource_claims.claims import PROTECTION, read_claim, read_template
from gpuledger.formats.resource_claims.slices import MOST_CONSUMERS
from gpuledger.model.card import Amounts
from gpuledger.model.errors import BindFailed, Conflict, NotFound, ShareRefused
from gpuledger.model.request import Demand, JoinedClaim, PodClaim, PodRequest
from gpuledger.model.share import ClaimRef, ContainerShare, Holder, HolderState, Placement, Share
from gpuledger.workflows.journal.journal import CardReader
from gpuledger.workflows.reporting import Counts
from gpuledger.workflows.resource_claims.claims import ClaimBook, Kind
from gpuledger.workflows.resource_claims.writes import ATTEMPTS, ClaimStatusWriter, ClaimWriter

Json = dict[str, Any]

CARD, OTHER = a_card(0), a_card(1)
POD = a_pod("uid-a")
WISHES = read_claim(a_resource_claim()).spec
SHARE = Share(CARD.uuid, Amounts(4_000, 0, 1), False, (ContainerShare("gpu/gpu", 4_000, 0),))
PLACEMENT = Placement("node-a", (SHARE,))


class Scene:
    """An API server, what the watches have shown of it, and the writer."""

    def __init__(self, api: ApiServer) -> None:
        self.api, self.ledger = api, a_ledger(CARD, OTHER)
        self.book = ClaimBook(self.ledger, Counts(), api.store)
        self.book.observe(Kind.CLASSES, {**OUR_CLASS, "metadata": {**OUR_CLASS["metadata"], "uid": "c"}}, False)
        self.status_writer = ClaimStatusWriter(api.store, self.book)
        self.writer = ClaimWriter(
            self.book, self.ledger, self.status_writer, CardReader(self.ledger, api.store, LoopClock()), LoopClock()
        )

    def put(self, claim: Json, seen: bool = True) -> None:
        stored = self.api.put_claim(claim)
        if seen:
            self.book.observe(Kind.CLAIMS, stored, gone=False)

    def status(self) -> Json:
        found: Json = self.api.claims["default", "ours"].get("status") or {}
        return found

    def users(self) -> list[str]:
        return [each["uid"] for each in self.status().get("reservedFor", [])]

    def device(self) -> str:
        (result,) = self.status()["allocation"]["devices"]["results"]
        return str(result["device"])


@pytest.fixture
async def scene(api: ApiServer) -> Scene:
    return Scene(api)


def request(*, shared: bool = False, uid: str = "claim-ours", joined: bool = False) -> PodRequest:
    if joined:
        return PodRequest((), (), joined=(JoinedClaim("gpu", "ours", uid, "node-a"),))
    claim = PodClaim("gpu", "ours" if uid else "", uid, shared, WISHES)
    return PodRequest(("gpu/gpu",), (Demand(1, 4_000),), claims=(claim,))


async def test_a_claim_gets_its_cards_and_its_user_in_one_write(scene: Scene) -> None:
    scene.put(a_resource_claim())
    await scene.writer.allocate(POD, request(), PLACEMENT)
    assert (scene.device(), scene.users()) == (CARD.uuid.lower(), ["uid-a"])
    assert [call.operation for call in scene.api.calls] == [Operation.WRITE_CLAIM]
    assert scene.book.claim("default", "ours") == read_claim(scene.api.claims["default", "ours"])


async def test_to_write_it_again_changes_nothing(scene: Scene) -> None:
    scene.put(a_resource_claim())
    await scene.writer.allocate(POD, request(), PLACEMENT)
    await scene.writer.allocate(POD, request(), PLACEMENT)
    assert len(scene.api.called(Operation.WRITE_CLAIM)) == 1


@pytest.mark.parametrize("shared", [False, True])
async def test_only_a_claim_that_pods_share_is_protected_before_it_is_allocated(scene: Scene, shared: bool) -> None:
    scene.put(a_resource_claim())
    await scene.writer.allocate(POD, request(shared=shared), PLACEMENT)
    finalizers = scene.api.claims["default", "ours"]["metadata"].get("finalizers", [])
    assert finalizers == ([PROTECTION] if shared else [])
    expected = [Operation.PROTECT_CLAIM] * shared + [Operation.WRITE_CLAIM]
    assert [call.operation for call in scene.api.calls] == expected


@pytest.mark.parametrize("pods", [[], ["a"]])
async def test_an_allocation_that_an_earlier_attempt_has_left_is_cleared_first(scene: Scene, pods: list[str]) -> None:
    scene.put(a_resource_claim("ours", "node-a", [OTHER.uuid], pods))
    scene.api.put_card(OTHER, Holder(a_pod("uid-b"), replace(SHARE, uuid=OTHER.uuid)))
    await scene.writer.allocate(POD, request(), PLACEMENT)
    assert (scene.device(), scene.users()) == (CARD.uuid.lower(), ["uid-a"])
    assert len(scene.api.called(Operation.WRITE_CLAIM)) == 2


@pytest.mark.parametrize("state", [HolderState.ALLOCATED, HolderState.RELEASING])
async def test_what_another_operator_gives_the_same_pod_is_left_as_it_is(scene: Scene, state: HolderState) -> None:
    """It may have bound the pod by now, and our Binding will be refused. Its watch may not have shown us the share."""
    scene.put(a_resource_claim("ours", "node-a", [OTHER.uuid], ["a"]))
    claim = ClaimRef("ours", "claim-ours")
    share = Share(OTHER.uuid, Amounts(4_000, 0, 1), False, (ContainerShare("gpu/gpu", 4_000, 0, claim),))
    scene.api.put_card(OTHER, Holder(POD, share, state=state))
    with pytest.raises(BindFailed, match="claim gpu: another operator gives ResourceClaim ours other cards"):
        await scene.writer.allocate(POD, request(), PLACEMENT)
    assert (scene.device(), scene.users()) == (OTHER.uuid.lower(), ["uid-a"])


async def test_only_the_allocation_is_cleared_whose_cards_were_looked_at(scene: Scene) -> None:
    """What is written in between is another operator's, or a user's: the next attempt looks at that."""
    third = a_card(2)
    scene.put(a_resource_claim("ours", "node-a", [OTHER.uuid], ["a"]))
    scene.api.put_card(OTHER)
    looked = asyncio.Event()
    scene.api.queue(Operation.READ_CARD, hold_request(looked))
    asking = asyncio.create_task(scene.writer.allocate(POD, request(), PLACEMENT))
    for _ in range(20):
        await asyncio.sleep(0)
    assert scene.api.called(Operation.READ_CARD)
    scene.put(a_resource_claim("ours", "node-a", [third.uuid], ["a"]), seen=False)
    looked.set()
    with pytest.raises(BindFailed, match="other cards"):
        await asking
    assert (scene.device(), scene.users()) == (third.uuid.lower(), ["uid-a"])


async def test_a_claim_that_another_pod_uses_is_left_as_it_is(scene: Scene) -> None:
    scene.put(a_resource_claim("ours", "node-a", [OTHER.uuid], ["b"]))
    with pytest.raises(BindFailed, match="claim gpu: ResourceClaim ours is in use by another pod"):
        await scene.writer.allocate(POD, request(), PLACEMENT)
    assert (scene.device(), scene.users()) == (OTHER.uuid.lower(), ["uid-b"])


async def test_a_claim_that_memory_knows_too_old_is_read_and_decided_anew(scene: Scene) -> None:
    scene.put(a_resource_claim())
    scene.put(a_resource_claim("ours", "node-a", [OTHER.uuid], ["b"]), seen=False)
    with pytest.raises(BindFailed, match="in use by another pod"):
        await scene.writer.allocate(POD, request(), PLACEMENT)


async def test_a_write_that_another_was_quicker_than_is_tried_again(scene: Scene) -> None:
    scene.put(a_resource_claim())
    scene.api.queue(Operation.WRITE_CLAIM, refuse(Conflict("changed", 409)), refuse(Conflict("changed", 409)))
    await scene.writer.allocate(POD, request(), PLACEMENT)
    assert scene.users() == ["uid-a"]


async def test_a_claim_that_is_deleted_before_it_is_written_is_named(scene: Scene) -> None:
    scene.put(a_resource_claim())
    del scene.api.claims["default", "ours"]
    with pytest.raises(NotFound, match="ResourceClaim default/ours has been deleted"):
        await scene.writer.allocate(POD, request(), PLACEMENT)


async def test_a_claim_that_changes_all_the_time_is_given_up(scene: Scene) -> None:
    scene.put(a_resource_claim())
    scene.api.queue(Operation.WRITE_CLAIM, *[refuse(Conflict("changed", 409))] * ATTEMPTS)
    with pytest.raises(ShareRefused, match="ResourceClaim default/ours changes all the time"):
        await scene.writer.allocate(POD, request(), PLACEMENT)
    assert scene.status() == {}


async def test_another_claim_of_the_same_name_is_not_written(scene: Scene) -> None:
    scene.put(a_resource_claim())
    with pytest.raises(NotFound, match="has been replaced by another of the same name"):
        await scene.writer.allocate(POD, request(uid="older"), PLACEMENT)
    assert scene.status() == {}


async def test_who_joins_is_added_to_those_that_use_the_claim(scene: Scene) -> None:
    scene.put(a_resource_claim("ours", "node-a", [CARD.uuid], ["first"]))
    for _ in range(2):
        await scene.writer.allocate(POD, request(joined=True), Placement("node-a", ()))
    assert scene.users() == ["uid-first", "uid-a"]
    assert len(scene.api.called(Operation.WRITE_CLAIM)) == 1


async def test_pods_that_join_at_once_do_not_refuse_each_other(scene: Scene) -> None:
    """Each write is one, from what the one before has left: hundreds would keep the API server busy otherwise."""
    scene.put(a_resource_claim("ours", "node-a", [CARD.uuid], ["first"]))
    pods = [a_pod(f"uid-{number}") for number in range(50)]
    joins = (scene.writer.allocate(pod, request(joined=True), Placement("node-a", ())) for pod in pods)
    await asyncio.gather(*joins)
    assert scene.users() == ["uid-first", *(pod.uid for pod in pods)]
    assert len(scene.api.called(Operation.WRITE_CLAIM)) == len(pods)
    assert len(scene.api.called(Operation.READ_CLAIM)) == 1


async def test_a_change_that_is_made_already_is_read_and_not_taken_from_the_one_before(scene: Scene) -> None:
    """Others may have undone it since: only a write would find that out, and there is none to be made."""
    scene.put(a_resource_claim("ours", "node-a", [CARD.uuid], ["first"]))
    joins = (scene.writer.allocate(POD, request(joined=True), Placement("node-a", ())) for _ in range(2))
    await asyncio.gather(*joins)
    assert scene.users() == ["uid-first", "uid-a"]
    assert len(scene.api.called(Operation.WRITE_CLAIM)) == 1
    assert len(scene.api.called(Operation.READ_CLAIM)) == 2


async def test_nobody_joins_what_is_allocated_no_longer(scene: Scene) -> None:
    scene.put(a_resource_claim())
    with pytest.raises(BindFailed, match="claim gpu: the pods that had ResourceClaim ours have ended"):
        await scene.writer.allocate(POD, request(joined=True), Placement("node-a", ()))


async def test_nobody_joins_a_claim_that_its_last_pods_are_leaving(scene: Scene) -> None:
    """The leaving pod takes out whoever has no node yet: both would go on for ever, each with writes."""
    scene.put(a_resource_claim("ours", "node-a", [CARD.uuid], ["first"]))
    with scene.status_writer.closing("claim-ours"), pytest.raises(BindFailed, match="ResourceClaim ours is ending"):
        await scene.writer.allocate(POD, request(joined=True), Placement("node-a", ()))
    assert scene.users() == ["uid-first"]
    await scene.writer.allocate(POD, request(joined=True), Placement("node-a", ()))
    assert scene.users() == ["uid-first", "uid-a"]


@pytest.mark.parametrize("stays", [False, True])
async def test_nobody_joins_a_claim_all_of_whose_shares_are_being_taken_back(scene: Scene, stays: bool) -> None:
    """By whichever operator: the ledger says so."""
    scene.put(a_resource_claim("ours", "node-a", [CARD.uuid], ["first"]))
    claim = ClaimRef("ours", "claim-ours", True)
    share = Share(CARD.uuid, Amounts(4_000, 0, 1), False, (ContainerShare("gpu/gpu", 4_000, 0, claim),))
    holders = [Holder(a_pod("uid-first"), share, state=HolderState.RELEASING)]
    holders += [Holder(a_pod("uid-heir"), share)] if stays else []
    scene.ledger.load(stored(CARD, *holders, version=2))
    with nullcontext() if stays else pytest.raises(BindFailed, match="is ending"):
        await scene.writer.allocate(POD, request(joined=True), Placement("node-a", ()))
    assert (POD.uid in scene.users()) == stays


async def test_a_claim_has_so_many_users_and_no_more(scene: Scene) -> None:
    scene.put(a_resource_claim("ours", "node-a", [CARD.uuid], [f"p{n}" for n in range(MOST_CONSUMERS - 1)]))
    await scene.writer.allocate(POD, request(joined=True), Placement("node-a", ()))
    with pytest.raises(BindFailed, match=f"{MOST_CONSUMERS} pods use ResourceClaim ours"):
        await scene.writer.allocate(a_pod("one-more"), request(joined=True), Placement("node-a", ()))
    assert len(scene.users()) == MOST_CONSUMERS


# Before that: which claims they are.


async def test_bind_waits_until_a_claim_is_made_from_its_template(scene: Scene) -> None:
    scene.book.observe_pending(a_claiming_pod("a", template="quarter"))
    asking = asyncio.create_task(scene.writer.identified(POD, "1", request(uid=""), PLACEMENT))
    await asyncio.sleep(0)
    assert not asking.done()
    scene.put(a_resource_claim(owner="a"))
    made = a_claiming_pod("a", template="quarter", made="ours")
    made["metadata"]["resourceVersion"] = "7"
    scene.book.observe_pending(made)
    version, found, placement = await asking
    assert (version, found.claims[0].uid) == ("7", "claim-ours")
    (part,) = placement.shares[0].containers
    assert part.claim == ClaimRef("ours", "claim-ours", False)


@pytest.mark.parametrize(("asked_with", "shown", "expected"), [("9", "7", "9"), ("9", "10", "10"), ("", "7", "7")])
async def test_a_binding_names_the_pods_latest_version_whichever_watch_has_shown_it(
    scene: Scene, asked_with: str, shown: str, expected: str
) -> None:
    """An older one would be refused, and cost a read and a second Binding."""
    scene.put(a_resource_claim(owner="a"))
    pod = a_claiming_pod("a", template="quarter", made="ours")
    pod["metadata"]["resourceVersion"] = shown
    scene.book.observe_pending(pod)
    version, _, _ = await scene.writer.identified(POD, asked_with, request(uid=""), PLACEMENT)
    assert version == expected


async def test_a_claim_that_is_not_made_in_time_is_waited_for_in_the_next_attempt(scene: Scene) -> None:
    pod = a_claiming_pod("a", template="quarter")
    pod["metadata"]["resourceVersion"] = "1"
    scene.book.observe_pending(pod)
    with pytest.raises(BindFailed, match="claim gpu: its ResourceClaim has not been created yet"):
        await scene.writer.identified(POD, "1", request(uid=""), PLACEMENT)


async def test_a_claim_that_asks_for_something_else_than_its_template_did_is_not_bound(scene: Scene) -> None:
    scene.put(a_resource_claim(owner="a", memory="8000Mi"))
    pod = a_claiming_pod("a", template="quarter", made="ours")
    pod["metadata"]["resourceVersion"] = "1"
    scene.book.observe_pending(pod)
    assert read_template(a_template()) == WISHES
    with pytest.raises(BindFailed, match="asks for something else than its template did before"):
        await scene.writer.identified(POD, "1", request(uid=""), PLACEMENT)


async def test_a_pod_is_not_bound_beside_the_claim_that_it_joins(scene: Scene) -> None:
    with pytest.raises(BindFailed, match="claim gpu is allocated on node node-a"):
        await scene.writer.identified(POD, "1", request(joined=True), Placement("node-b", ()))


async def test_a_claim_that_the_watch_does_not_show_yet_is_read_and_one_that_is_gone_stays_unknown(
    scene: Scene,
) -> None:
    """kube-scheduler's own watch can be ahead of ours, and a pod that names a deleted claim has to be told so."""
    for kind in Kind:
        scene.book.subscriptions[kind].begin_list()(set())
    scene.put(a_resource_claim(owner="uid-a"), seen=False)
    pod = a_claiming_pod("a", template="quarter")
    for name in ("ours", "gone"):
        made = [{"name": pod["spec"]["resourceClaims"][0]["name"], "resourceClaimName": name}]
        await scene.writer.know_claims_of({**pod, "status": {"resourceClaimStatuses": made}})
    assert scene.book.claim("default", "ours") == read_claim(scene.api.claims["default", "ours"])
    assert scene.book.claim("default", "gone") is None
