"""What becomes of claims when a pod's shares end."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from builders import a_card, a_ledger, a_pod, stored
from fakes.api_server import ApiServer, Operation, hold_request
from fakes.claims import a_claiming_pod, a_resource_claim
from gpuledger.ledger.book import Ledger
from gpuledger.model.card import Amounts
from gpuledger.model.share import ClaimRef, ContainerShare, Holder, HolderState, Pod, Share
from gpuledger.workflows.resource_claims.writes import ClaimEnds, ClaimStatusWriter, Heir, claims_of

Json = dict[str, Any]

CARD = a_card()
OWN, SHARED = ClaimRef("ours", "claim-ours", False), ClaimRef("ours", "claim-ours", True)
LEAVING = Pod("uid-a", "default", "a")


def holder_of(claim: ClaimRef | None, uid: str = "uid-a") -> Holder:
    share = Share(CARD.uuid, Amounts(4_000, 0, 1), False, (ContainerShare("gpu/gpu", 4_000, 0, claim),))
    return Holder(a_pod(uid) if uid != "uid-a" else LEAVING, share, attempt="x")


class Scene:
    """One claim that is allocated to a card."""

    def __init__(self, api: ApiServer) -> None:
        self.api, self.ledger = api, a_ledger(CARD)
        self.status_writer = ClaimStatusWriter(api.store)
        self.ends = ClaimEnds(api.store, self.ledger, self.status_writer)

    def used_by(self, *names: str) -> None:
        self.api.put_claim(a_resource_claim("ours", "node-a", [CARD.uuid], names))

    def pod(self, name: str, node_name: str = "node-a", phase: str = "Running") -> None:
        self.api.put_pod(a_claiming_pod(name, named="ours", node_name=node_name, phase=phase))

    def users(self) -> list[str]:
        return [each["uid"] for each in self.status().get("reservedFor", [])]

    def status(self) -> Json:
        found: Json = self.api.claims["default", "ours"].get("status") or {}
        return found

    async def left(self, claim: ClaimRef = SHARED, was_bound: bool = True) -> dict[str, Heir]:
        return await self.ends.left_by(LEAVING, [holder_of(claim)], was_bound)


@pytest.fixture
async def scene(api: ApiServer) -> Scene:
    return Scene(api)


async def test_a_claim_of_a_pods_own_is_taken_back_only_if_the_pod_was_not_bound(scene: Scene) -> None:
    scene.used_by("a")
    assert await scene.left(OWN) == {}
    assert (scene.users(), scene.api.calls) == (["uid-a"], [])
    assert await scene.left(OWN, was_bound=False) == {}
    assert scene.status() == {}
    await scene.left(OWN, was_bound=False)
    assert len(scene.api.called(Operation.WRITE_CLAIM)) == 1


@pytest.mark.parametrize("claim", [OWN, SHARED])
async def test_what_another_attempt_to_bind_the_pod_has_written_stays(scene: Scene, claim: ClaimRef) -> None:
    """Two operators have entered the pod on two cards, and the other one's Binding may have been accepted."""
    scene.api.put_claim(a_resource_claim("ours", "node-a", ["GPU-of-the-other"], ["a"]))
    assert await scene.left(claim, was_bound=False) == {}
    assert scene.users() == ["uid-a"]
    assert scene.api.called(Operation.WRITE_CLAIM) == []


async def test_another_pod_that_runs_inherits(scene: Scene) -> None:
    scene.used_by("a", "heir")
    scene.pod("heir")
    (heir,) = (await scene.left()).values()
    assert (heir.pod.uid, heir.claim, heir.claim_name) == ("uid-heir", SHARED, "gpu")
    assert heir.inherits(CARD.uuid, [])
    assert not heir.inherits("GPU-of-another-claim", [])
    assert not heir.inherits(CARD.uuid, [holder_of(SHARED, "uid-heir")])
    assert scene.users() == ["uid-a", "uid-heir"]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_who_has_ended_does_not_inherit(scene: Scene, phase: str) -> None:
    scene.used_by("a", "ended", "heir")
    scene.pod("ended", phase=phase)
    scene.pod("heir")
    (heir,) = (await scene.left()).values()
    assert heir.pod.uid == "uid-heir"


async def test_who_is_not_bound_is_kept_from_being_bound_and_does_not_inherit(scene: Scene) -> None:
    scene.used_by("a", "late")
    scene.pod("late", node_name="", phase="Pending")
    before = scene.api.pods["default", "late"]["metadata"]["resourceVersion"]
    assert await scene.left() == {}
    assert scene.api.pods["default", "late"]["metadata"]["resourceVersion"] != before
    assert scene.status() == {}


async def test_where_one_is_bound_the_others_are_not_kept_from_being_bound(scene: Scene) -> None:
    scene.used_by("a", "late", "heir")
    scene.pod("late", node_name="", phase="Pending")
    scene.pod("heir")
    (heir,) = (await scene.left()).values()
    assert (heir.pod.uid, scene.api.called(Operation.ANNOTATE)) == ("uid-heir", [])
    assert scene.users() == ["uid-a", "uid-late", "uid-heir"]


async def test_all_who_are_not_bound_are_taken_out_in_one_write_and_none_joins_meanwhile(scene: Scene) -> None:
    names = [f"late-{n}" for n in range(20)]
    scene.used_by("a", *names)
    for name in names:
        scene.pod(name, node_name="", phase="Pending")
    released = asyncio.Event()
    scene.api.queue(Operation.WRITE_CLAIM, hold_request(released))
    leaving = asyncio.create_task(scene.left())
    for _ in range(200):
        await asyncio.sleep(0)
    assert scene.api.called(Operation.WRITE_CLAIM)
    assert scene.status_writer.is_closing(SHARED.uid)
    released.set()
    assert await leaving == {}
    assert (scene.status(), len(scene.api.called(Operation.WRITE_CLAIM))) == ({}, 1)
    assert not scene.status_writer.is_closing(SHARED.uid)


async def test_of_two_who_leave_at_once_neither_is_the_others_heir(scene: Scene) -> None:
    """Two operators had entered both as the claim's first pod."""
    scene.used_by("a", "other")
    scene.pod("other", node_name="", phase="Pending")
    ledger = Ledger()
    releasing = replace(holder_of(SHARED, "uid-other"), state=HolderState.RELEASING)
    ledger.load(stored(CARD, releasing, version=2))
    scene.ends = ClaimEnds(scene.api.store, ledger, scene.status_writer)
    assert await scene.left() == {}
    assert scene.status() == {}


async def test_without_an_heir_the_claim_is_allocated_no_longer_before_the_holder_goes(scene: Scene) -> None:
    scene.used_by("a")
    assert await scene.left() == {}
    assert scene.status() == {}


async def test_pods_that_are_gone_are_taken_out(scene: Scene) -> None:
    scene.used_by("a", "gone", "another")
    scene.api.put_pod(a_claiming_pod("another", named="ours") | {})
    scene.api.put_pod({**a_claiming_pod("gone", named="ours", uid="of-the-same-name")})
    scene.api.delete_pod("another")
    assert await scene.left() == {}
    assert scene.status() == {}


async def test_who_joins_in_the_same_moment_inherits(scene: Scene) -> None:
    scene.used_by("a")
    late = asyncio.Event()
    scene.api.queue(Operation.WRITE_CLAIM, hold_request(late))
    leaving = asyncio.create_task(scene.left())
    for _ in range(10):
        await asyncio.sleep(0)
    assert scene.api.called(Operation.WRITE_CLAIM)
    scene.used_by("a", "heir")
    scene.pod("heir")
    late.set()
    (heir,) = (await leaving).values()
    assert heir.pod.uid == "uid-heir"


async def test_who_holds_a_claim_already_is_its_heir_unfenced_and_inherits_only_cards_that_it_has_not(
    scene: Scene,
) -> None:
    """Of several cards some were handed over before a crash; or both pods wanted to be the first."""
    scene.used_by("a", "other")
    scene.pod("other")
    ledger = Ledger()
    ledger.load(stored(CARD, holder_of(SHARED, "uid-other"), version=2))
    scene.ends = ClaimEnds(scene.api.store, ledger, scene.status_writer)
    (heir,) = (await scene.left()).values()
    assert heir.pod.uid == "uid-other"
    assert not heir.inherits(CARD.uuid, [holder_of(SHARED, "uid-other")])
    assert scene.users() == ["uid-a", "uid-other"]


@pytest.mark.parametrize("claim", [None, a_resource_claim("ours")])
async def test_a_claim_that_is_gone_or_has_nothing_has_no_heirs(scene: Scene, claim: Json | None) -> None:
    if claim is not None:
        scene.api.put_claim(claim)
    assert await scene.left() == {}
    assert await scene.left(OWN, was_bound=False) == {}
    assert scene.api.called(Operation.WRITE_CLAIM) == []


def test_each_claim_of_a_pod_is_named_once() -> None:
    other = ClaimRef("x", "claim-x")
    assert claims_of([holder_of(OWN), holder_of(None), holder_of(other), holder_of(OWN)]) == [OWN, other]
