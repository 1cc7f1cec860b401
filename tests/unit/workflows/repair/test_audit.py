"""The audit: what two reads show is told, what a person need not decide is mended, and nothing else is touched."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from builders import a_card, a_holder, a_share, first_attempts
from fakes.api_server import ApiServer, Fault, Operation, hold_answer, hold_request, lose_request, refuse
from fakes.objects import GPU, MEMORY, a_node_object, a_pod_object
from fakes.operator_parts import KEPT_S, RELEASE_DELAY_S, an_operator
from fakes.virtual_time import LoopClock, now_s, settle
from gpuledger.command_line.commands.audit import audit_settings
from gpuledger.configuration.settings import Settings
from gpuledger.formats.annotations import DEVICES_ANNOTATION, devices_annotation
from gpuledger.ledger.audit import AuditFinding, AuditFindingKind
from gpuledger.model.card import Card
from gpuledger.model.errors import BadInput, Denied, Unreachable
from gpuledger.model.share import Holder, HolderState, Misfit, Pod, Share
from gpuledger.workflows.repair import Auditor, Report

SETTLE_S = 2.0
CARDS = [a_card(0), a_card(1)]
FIRST, SECOND = CARDS
THERE = a_card(0, "node-b")
SHARE = a_share(FIRST, 4_000)
Json = dict[str, Any]


@pytest.fixture
def auditor(api: ApiServer) -> Auditor:
    """Return an audit of two nodes, with two cards and one, that nobody holds."""
    for card in (*CARDS, THERE):
        api.put_card(card)
    api.put_node(a_node_object("node-a", CARDS))
    api.put_node(a_node_object("node-b", [THERE]))
    return Auditor(api.store, audit_settings(Settings(release_delay_s=RELEASE_DELAY_S), SETTLE_S), clock=LoopClock())


def bound(name: str = "a", *shares: Share, cards: int = 1, text: str | None = None, **fields: Any) -> Json:
    """Return a pod on node-a that asks for 4000 MiB of its cards, and was told of these shares, or this text."""
    pod = a_pod_object(name, {GPU: str(cards), MEMORY: "4k"}, **{"node_name": "node-a", **fields})
    annotation = devices_annotation(shares or (SHARE,)) if text is None else text
    pod["metadata"]["annotations"] = {DEVICES_ANNOTATION: annotation}
    return pod


def held(card: Card = FIRST, name: str = "a", memory_mib: int = 4_000, **fields: Any) -> Holder:
    """Return what a pod holds."""
    pod = Pod(f"uid-{name}", "default", name)
    return replace(a_holder(name, a_share(card, memory_mib)), pod=pod, **fields)


def kinds(found: Sequence[AuditFinding]) -> list[AuditFindingKind]:
    return [finding.kind for finding in found]


def put_consistent_pod(api: ApiServer) -> None:
    api.put_card(FIRST, held())
    api.put_pod(bound())


# Reading.


async def test_a_consistent_cluster_is_read_once_and_not_written(api: ApiServer, auditor: Auditor) -> None:
    put_consistent_pod(api)
    began_s = now_s()
    assert await auditor.repair(adopt=True) == Report((), ())
    assert [call.operation for call in api.calls] == [Operation.LIST_CARDS, Operation.LIST_NODES, Operation.LIST_PODS]
    assert now_s() - began_s < SETTLE_S


async def test_looking_changes_nothing(api: ApiServer, auditor: Auditor) -> None:
    api.put_card(FIRST, held())
    report = await auditor.look()
    assert (kinds(report.repaired), kinds(report.left)) == ([], [AuditFindingKind.POD_GONE])
    assert api.writes() == []


async def between_reads(api: ApiServer, auditor: Auditor, change: Callable[[], object]) -> Report:
    """Look, and let something happen between the two reads."""
    looking = asyncio.create_task(auditor.look())
    await asyncio.sleep(SETTLE_S / 2)
    assert len(api.called(Operation.LIST_PODS)) == 1
    change()
    return await looking


async def test_what_has_gone_by_the_second_read_is_no_finding(api: ApiServer, auditor: Auditor) -> None:
    """A pod that is being bound: its holder is there, its node is not."""
    api.put_card(FIRST, held())
    api.put_pod(a_pod_object("a"))
    report = await between_reads(api, auditor, lambda: api.put_pod(bound()))
    assert report.left == ()
    assert len(api.called(Operation.LIST_PODS)) == 2


async def test_what_has_come_by_the_second_read_is_no_finding_yet(api: ApiServer, auditor: Auditor) -> None:
    api.put_card(SECOND, held(SECOND, "gone"))
    report = await between_reads(api, auditor, lambda: api.put_card(FIRST, held()))
    assert [finding.card for finding in report.left] == [SECOND.uuid]


async def test_a_pod_that_was_bound_in_one_read_and_ended_in_the_other_is_no_finding(
    api: ApiServer, auditor: Auditor
) -> None:
    """Both reads show a holder without a bound pod, and yet all is as it should be."""
    api.put_card(FIRST, held())
    api.put_pod(a_pod_object("a"))
    assert (await between_reads(api, auditor, lambda: api.delete_pod("a"))).left == ()


async def test_a_pod_that_is_bound_while_the_lists_are_read_is_no_finding(api: ApiServer, auditor: Auditor) -> None:
    """The cards were read before its holder was entered, the pods after it was bound; then it is there again."""
    answer = asyncio.Event()
    api.queue(Operation.LIST_NODES, hold_answer(answer))
    looking = asyncio.create_task(auditor.look())
    await settle()
    put_consistent_pod(api)
    answer.set()
    assert (await looking).left == ()


async def test_the_pod_of_a_holder_is_asked_for_when_the_list_does_not_have_it(
    api: ApiServer, auditor: Auditor
) -> None:
    """It may be of the cluster's own scheduler, whose pods are not listed."""
    api.put_card(FIRST, held())
    api.put_pod(bound(scheduler_name="default-scheduler"))
    assert (await auditor.repair(adopt=False)) == Report((), ())
    assert len(api.called(Operation.READ_POD)) == 1


async def test_a_pod_of_another_scheduler_on_our_cards_is_found_and_left_to_a_person(
    api: ApiServer, auditor: Auditor
) -> None:
    """Else an audit would agree while a pod uses a card that the ledger takes for empty."""
    api.put_pod(bound(scheduler_name="hami-scheduler"))
    (found,) = (await auditor.repair(adopt=True)).left
    assert (found.kind, found.action) == (AuditFindingKind.NOT_ENTERED, None)
    assert found.detail.endswith("its scheduler is hami-scheduler: name it in the setting extra_scheduler_names")


async def test_a_pod_of_another_scheduler_on_a_node_without_our_cards_is_no_business_of_the_audit(
    api: ApiServer, auditor: Auditor
) -> None:
    api.put_node(a_node_object("theirs", []))
    api.put_pod(bound(scheduler_name="hami-scheduler", node_name="theirs"))
    assert (await auditor.look()) == Report((), ())


async def test_another_pod_of_the_same_name_is_another_pod(api: ApiServer, auditor: Auditor) -> None:
    api.put_card(FIRST, held())
    api.put_pod(a_pod_object("a", uid="another"))
    assert kinds((await auditor.look()).left) == [AuditFindingKind.POD_GONE]


async def test_without_an_answer_there_is_no_verdict(api: ApiServer, auditor: Auditor) -> None:
    api.queue(Operation.LIST_PODS, lose_request())
    with pytest.raises(Unreachable):
        await auditor.look()


async def test_a_ledger_of_another_crd_gives_no_verdict(api: ApiServer, auditor: Auditor) -> None:
    del api.cards[FIRST.object_name]["spec"]["capacity"]
    with pytest.raises(BadInput, match="is the CRD of this release installed"):
        await auditor.look()


# Mending.


async def test_the_share_of_a_pod_that_is_gone_is_released_as_the_operator_does(
    api: ApiServer, auditor: Auditor
) -> None:
    """Nobody knows whether it ran: its share counts for as long as its processes may."""
    api.put_card(FIRST, held())
    report = await auditor.repair(adopt=False)
    assert (kinds(report.repaired), report.left) == ([AuditFindingKind.POD_GONE], ())
    (holder,) = api.card(FIRST).holders or ()
    assert (holder.state, holder.deadline) == (HolderState.RELEASING, "2030-01-01T00:17:42Z")
    assert (await auditor.look()).left == ()


async def test_a_release_that_nobody_has_ended_is_ended(api: ApiServer, auditor: Auditor) -> None:
    """The operator has stopped since; the loop's clock began at 00:16:40."""
    api.put_card(FIRST, held(state=HolderState.RELEASING, deadline="2030-01-01T00:17:10Z"))
    assert (await auditor.look()).left == ()
    await asyncio.sleep(100)
    report = await auditor.repair(adopt=False)
    assert (kinds(report.repaired), report.left, api.holders_of(FIRST)) == ([AuditFindingKind.OVERDUE], (), [])


async def test_the_share_of_a_finished_pod_is_removed(api: ApiServer, auditor: Auditor) -> None:
    api.put_card(FIRST, held())
    api.put_pod(bound(phase="Succeeded"))
    report = await auditor.repair(adopt=False)
    assert (kinds(report.repaired), report.left, api.holders_of(FIRST)) == ([AuditFindingKind.POD_FINISHED], (), [])


async def test_the_share_of_a_pod_without_a_node_is_taken_back_behind_a_fence(api: ApiServer, auditor: Auditor) -> None:
    api.put_card(FIRST, held())
    api.put_pod(a_pod_object("a"))
    report = await auditor.repair(adopt=False)
    assert (kinds(report.repaired), report.left, api.holders_of(FIRST)) == ([AuditFindingKind.POD_NOT_BOUND], (), [])
    assert api.writes() == [Operation.WRITE_STATUS, Operation.ANNOTATE, Operation.WRITE_STATUS]


async def test_a_bind_that_is_on_its_way_for_long_is_either_done_or_fenced_off(
    api: ApiServer, auditor: Auditor
) -> None:
    """An operator's Binding hangs; when it arrives, the audit has taken the share back, so it must be refused."""
    api.put_pod(a_pod_object("a", {GPU: "1", MEMORY: "4k"}))
    operator, gate = an_operator(api), asyncio.Event()
    api.queue(Operation.BIND, hold_request(gate))
    binding = asyncio.create_task(operator.bind("a", "node-a"))
    await settle()
    assert api.holders_of(FIRST) == ["uid-a"]
    report = await auditor.repair(adopt=False)
    assert kinds(report.repaired) == [AuditFindingKind.POD_NOT_BOUND]
    gate.set()
    await asyncio.gather(binding, return_exceptions=True)
    await operator.idle()
    node_name = api.pods["default", "a"]["spec"].get("nodeName")
    entered = [card.uuid for card in CARDS if "uid-a" in api.holders_of(card)]
    assert bool(node_name) == bool(entered)


async def test_an_overdue_release_of_a_pod_that_is_bound_after_all_is_taken_back(
    api: ApiServer, auditor: Auditor
) -> None:
    """An operator died in the middle of a fence, after the Binding had arrived."""
    api.put_card(FIRST, held(state=HolderState.RELEASING, deadline="2030-01-01T00:00:00Z"))
    api.put_pod(bound())
    report = await auditor.repair(adopt=False)
    assert (kinds(report.repaired), report.left) == ([AuditFindingKind.OVERDUE], ())
    assert api.card(FIRST).holders == (held(),)


async def test_a_spare_holder_on_another_node_is_removed(api: ApiServer, auditor: Auditor) -> None:
    put_consistent_pod(api)
    api.put_card(THERE, held(THERE))
    report = await auditor.repair(adopt=False)
    assert (kinds(report.repaired), report.left) == ([AuditFindingKind.SPARE_HOLDER], ())
    assert (api.holders_of(FIRST), api.holders_of(THERE)) == (["uid-a"], [])


async def test_the_only_holder_is_kept_though_it_is_on_another_node(api: ApiServer, auditor: Auditor) -> None:
    api.put_card(THERE, held(THERE))
    api.put_pod(bound())
    report = await auditor.repair(adopt=False)
    assert (report.repaired, kinds(report.left)) == ((), [AuditFindingKind.OTHER_NODE, AuditFindingKind.NOT_ENTERED])
    assert api.holders_of(THERE) == ["uid-a"]
    assert api.writes() == []


async def test_once_its_cards_are_entered_the_holder_on_the_other_node_goes(api: ApiServer, auditor: Auditor) -> None:
    api.put_card(THERE, held(THERE))
    api.put_pod(bound())
    report = await auditor.repair(adopt=True)
    assert (set(kinds(report.repaired)), report.left) == (
        {AuditFindingKind.NOT_ENTERED, AuditFindingKind.SPARE_HOLDER},
        (),
    )
    assert (api.holders_of(FIRST), api.holders_of(THERE)) == (["uid-a"], [])


@pytest.mark.parametrize("text", [None, "{}", "nonsense", devices_annotation([a_share(FIRST, 1)])])
async def test_an_annotation_is_written_from_the_ledger(api: ApiServer, auditor: Auditor, text: str | None) -> None:
    api.put_card(FIRST, held())
    pod = bound(text=text or "")
    if text is None:
        del pod["metadata"]["annotations"]
    api.put_pod(pod)
    report = await auditor.repair(adopt=True)
    assert (kinds(report.repaired), report.left) == ([AuditFindingKind.ANNOTATION_DIFFERS], ())
    annotations = api.pods["default", "a"]["metadata"]["annotations"]
    assert annotations[DEVICES_ANNOTATION] == devices_annotation([SHARE])
    assert api.card(FIRST).holders == (held(),)


async def test_a_bound_pod_is_entered_only_where_it_is_asked_for(api: ApiServer, auditor: Auditor) -> None:
    api.put_pod(bound())
    report = await auditor.repair(adopt=False)
    assert (report.repaired, kinds(report.left)) == ((), [AuditFindingKind.NOT_ENTERED])
    assert api.writes() == []
    report = await auditor.repair(adopt=True)
    assert (kinds(report.repaired), report.left) == ([AuditFindingKind.NOT_ENTERED], ())
    assert first_attempts(api.card(FIRST).holders) == (held(),)


async def test_a_pod_that_was_told_less_than_it_asks_for_is_entered_in_full_and_told_so(
    api: ApiServer, auditor: Auditor
) -> None:
    api.put_pod(bound("a", a_share(FIRST, 1)))
    report = await auditor.repair(adopt=True)
    assert (set(kinds(report.repaired)), report.left) == (
        {AuditFindingKind.NOT_ENTERED, AuditFindingKind.ANNOTATION_DIFFERS},
        (),
    )
    assert first_attempts(api.card(FIRST).holders) == (held(),)


async def test_what_does_not_fit_becomes_a_conflict_and_its_pods_end_clears_it(
    api: ApiServer, auditor: Auditor
) -> None:
    api.put_card(FIRST, held(name="b", memory_mib=14_000))
    api.put_pod(bound("b", a_share(FIRST, 14_000)))
    api.put_pod(bound())
    report = await auditor.repair(adopt=True)
    assert (report.repaired, kinds(report.left)) == ((), [AuditFindingKind.CONFLICT])
    assert [misfit.pod.name for misfit in api.card(FIRST).misfits] == ["a"]
    assert api.holders_of(FIRST) == ["uid-b"]
    written = len(api.writes())
    assert kinds((await auditor.repair(adopt=True)).left) == [AuditFindingKind.CONFLICT]
    assert len(api.writes()) == written
    api.delete_pod("a")
    report = await auditor.repair(adopt=False)
    assert (kinds(report.repaired), report.left, api.card(FIRST).misfits) == ([AuditFindingKind.CONFLICT_OVER], (), ())


async def test_a_conflict_that_has_room_by_now_is_entered_and_cleared(api: ApiServer, auditor: Auditor) -> None:
    misfit = Misfit(Pod("uid-a", "default", "a"), SHARE.amounts, "no room")
    await an_operator(api).journal.show_conflict(FIRST.uuid, misfit)
    api.put_pod(bound())
    report = await auditor.repair(adopt=True)
    assert (set(kinds(report.repaired)), report.left) == ({AuditFindingKind.NOT_ENTERED}, ())
    assert (api.holders_of(FIRST), api.card(FIRST).misfits) == (["uid-a"], ())


async def test_a_pod_that_ends_before_it_is_entered_is_left_alone(api: ApiServer, auditor: Auditor) -> None:
    api.put_pod(bound())
    answer = asyncio.Event()
    api.queue(Operation.LIST_PODS, None, hold_answer(answer))
    mending = asyncio.create_task(auditor.repair(adopt=True))
    await asyncio.sleep(SETTLE_S + 0.5)
    api.delete_pod("a")
    answer.set()
    assert await mending == Report((), ())
    assert api.writes() == []


async def test_a_card_without_a_node_is_deleted_after_its_last_holder(api: ApiServer, auditor: Auditor) -> None:
    api.delete_node("node-a")
    api.put_card(FIRST, held())
    api.put_pod(bound(phase="Succeeded"))
    report = await auditor.repair(adopt=False)
    assert set(kinds(report.repaired)) == {AuditFindingKind.POD_FINISHED, AuditFindingKind.ABANDONED_CARD}
    assert report.left == ()
    assert set(api.cards) == {THERE.object_name}


async def test_a_card_that_somebody_takes_meanwhile_is_not_deleted(api: ApiServer, auditor: Auditor) -> None:
    api.put_node(a_node_object("node-a", [FIRST]))
    gate = asyncio.Event()
    api.queue(Operation.DELETE_CARD, hold_request(gate))
    mending = asyncio.create_task(auditor.repair(adopt=False))
    await asyncio.sleep(SETTLE_S + 0.5)
    api.put_card(SECOND, held(SECOND))
    api.put_pod(bound("a", a_share(SECOND, 4_000)))
    gate.set()
    report = await mending
    assert (report.repaired, kinds(report.left)) == ((), [AuditFindingKind.ABANDONED_HOLDERS])
    assert api.holders_of(SECOND) == ["uid-a"]


async def test_what_a_person_decides_is_left(api: ApiServer, auditor: Auditor) -> None:
    twin = replace(FIRST, node_name="node-b")
    api.put_node(a_node_object("node-b", [THERE, twin, a_card(5, "node-b")]))
    api.put_node(a_node_object("node-c", register="nonsense"))
    report = await auditor.repair(adopt=True)
    assert (report.repaired, kinds(report.left)) == (
        (),
        [AuditFindingKind.TWO_NODES, AuditFindingKind.NOT_IN_LEDGER, AuditFindingKind.UNREADABLE_REGISTER],
    )
    assert api.writes() == []


@pytest.mark.parametrize(
    "fault", [refuse(Denied("may not", 403)), refuse(Unreachable("no answer"))], ids=["denied", "no answer"]
)
async def test_what_can_not_be_mended_is_left_and_keeps_nothing_else_from_it(
    api: ApiServer, auditor: Auditor, fault: Fault
) -> None:
    put_consistent_pod(api)
    api.put_pod(bound(text="nonsense"))
    api.put_card(SECOND, held(SECOND, "done"))
    api.put_pod(bound("done", a_share(SECOND, 4_000), phase="Failed"))
    api.queue(Operation.ANNOTATE, *[fault] * 10)
    report = await auditor.repair(adopt=False)
    assert (kinds(report.repaired), kinds(report.left)) == (
        [AuditFindingKind.POD_FINISHED],
        [AuditFindingKind.ANNOTATION_DIFFERS],
    )


async def test_an_account_without_rights_gets_an_end(api: ApiServer, auditor: Auditor) -> None:
    """The journal tries again for ever; a command must not."""
    api.put_card(FIRST, held())
    api.put_pod(bound(phase="Succeeded"))
    api.queue(Operation.WRITE_STATUS, *[refuse(Denied("may not", 403))] * 1_000)
    report = await auditor.repair(adopt=False)
    assert (report.repaired, kinds(report.left)) == ((), [AuditFindingKind.POD_FINISHED])


async def test_an_operator_that_works_at_the_same_time_is_no_problem(api: ApiServer, auditor: Auditor) -> None:
    for number in range(4):
        name = f"pod-{number}"
        card = CARDS[number % 2]
        api.put_card(card, *(api.card(card).holders or ()), held(card, name, 1_000))
    operator = an_operator(api)
    auditing = asyncio.create_task(auditor.repair(adopt=False))
    await asyncio.sleep(SETTLE_S)
    for number in range(4):
        operator.releaser.recheck(f"uid-pod-{number}")
    report = await auditing
    await operator.idle()
    await asyncio.sleep(KEPT_S + 5)
    await operator.idle()
    assert report.left == ()
    assert [api.holders_of(card) for card in CARDS] == [[], []]


# Moving over.


async def test_what_could_not_be_entered_is_not_said_to_be(api: ApiServer, auditor: Auditor) -> None:
    api.put_pod(bound())
    api.queue(Operation.WRITE_STATUS, *(refuse(Denied("no", 403)) for _ in range(10)))
    (step,) = await auditor.migrate(["gpuledger"], dry_run=False)
    assert step.why
    (step,) = await auditor.migrate(["gpuledger"], dry_run=True)
    assert not step.why


async def test_a_card_that_is_not_in_the_ledger_yet_is_not_said_to_be_entered(api: ApiServer, auditor: Auditor) -> None:
    api.put_pod(bound())
    api.delete_card(FIRST)
    (step,) = await auditor.migrate(["gpuledger"], dry_run=False)
    assert step.why


async def test_what_was_entered_is_said_to_be(api: ApiServer, auditor: Auditor) -> None:
    api.put_pod(bound())
    (step,) = await auditor.migrate(["gpuledger"], dry_run=False)
    assert not step.why
    assert await auditor.migrate(["gpuledger"], dry_run=False) == ()
