"""What is left over on a node at rest is found."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from chaos.examples import CARD, POD, a_pod
from fakes.grants import a_grant
from gpuledger.formats.runtime.cdi import GrantedClaim, grant_file
from node_chaos.rest import (
    FORGOTTEN,
    unsettled_containers,
    unsettled_counters,
    unsettled_files,
    unsettled_slots,
)
from node_chaos.sight import Container

Json = dict[str, Any]
MINE = Container("id", POD, "c0", ((CARD, 4000, 0),), frozenset({CARD}), frozenset({CARD}))


def pods(**status: object) -> dict[str, Json]:
    found = a_pod()
    found["spec"]["restartPolicy"] = "Always"
    return {POD: {**found, "status": {"phase": "Running", **status}}}


def files() -> dict[str, bytes]:
    grant = replace(a_grant(), pod_uid=POD, container="c0", uuids=(CARD,))
    return {grant.file_name: grant_file(grant), "nvidia.json": b"{}"}


def of_containers(found: dict[str, Json], *containers: Container) -> set[str]:
    return {finding.rule for finding in unsettled_containers(found, containers)}


def of_files(found: dict[str, bytes], *containers: Container, **status: object) -> set[str]:
    return {finding.rule for finding in unsettled_files(found, pods(**status), containers)}


def test_a_pod_that_runs_with_its_file_is_in_order() -> None:
    assert of_containers(pods(), MINE) == set()
    assert of_files(files(), MINE) == set()


def test_a_pod_that_does_not_run_is_found_and_one_that_has_ended_is_not() -> None:
    assert of_containers(pods()) == {"a bound pod does not run"}
    assert of_containers(pods(phase="Failed")) == set()


def test_a_pod_whose_slots_the_kubelet_has_forgotten_can_not_run_but_only_where_its_record_was_lost() -> None:
    waiting = {"state": {"waiting": {"message": f"{FORGOTTEN} for pod 1"}}}
    for kind in ("containerStatuses", "initContainerStatuses"):
        assert list(unsettled_containers(pods(**{kind: [waiting]}), []))
        assert not list(unsettled_containers(pods(**{kind: [waiting]}), [], may_forget=True))


def test_a_container_whose_pod_is_gone_or_has_ended_is_found() -> None:
    assert of_containers({}, MINE) == {"a container is left over"}
    assert of_containers(pods(phase="Succeeded"), MINE) == {"a container is left over"}


def test_a_pod_that_does_not_go_is_found() -> None:
    leaving = pods()
    leaving[POD]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert of_containers(leaving, MINE) == {"a pod that was deleted does not go"}


def test_files_that_nobody_needs_or_can_read_are_found() -> None:
    broken = {"gpuledger.dev-share-slot-1-0a1b.unfinished": b"{", "gpuledger.dev-share-slot-2-ff.json": b""}
    assert of_files(broken) == {"a temporary file is left over", "a file of ours can't be read"}
    assert of_files(files(), phase="Failed") == {"a file of a pod that is gone is left over"}


def a_checkpoint(**slots: list[str]) -> bytes:
    """Return a kubelet's record: UID of a pod -> slots of its container `c0`, in the kubelet's words."""
    entries = [
        {"PodUID": uid, "ContainerName": "c0", "ResourceName": "nvidia.com/gpu", "DeviceIDs": {"-1": listed}}
        for uid, listed in slots.items()
    ]
    return json.dumps({"Data": {"PodDeviceEntries": entries}}).encode()


def test_slots_that_do_not_agree_with_the_cards_of_containers_are_found() -> None:
    mine, other = replace(MINE, pod_uid="a"), replace(MINE, pod_uid="b")
    assert not list(unsettled_slots(a_checkpoint(a=["slot-1"], b=["slot-2"], gone=["slot-1"]), [mine, other]))
    too_few = list(unsettled_slots(a_checkpoint(a=["slot-1"]), [mine, other]))
    assert [finding.pods for finding in too_few] == [("b",)]
    assert {finding.rule for finding in too_few} == {"the kubelet has not as many slots as a container has cards"}
    assert [finding.pods for finding in unsettled_slots(b"", [mine])] == [("a",)]
    twice = unsettled_slots(a_checkpoint(a=["slot-1"], b=["slot-1"]), [mine, other])
    assert {finding.rule for finding in twice} == {"the kubelet has given a slot twice"}


def test_a_container_whose_file_is_missing_or_says_something_else_is_found() -> None:
    assert of_files({}, MINE) == {"a container that runs has no file of its own"}
    assert not list(unsettled_files({}, pods(), [MINE], complete=False))
    other = replace(MINE, cards=(("GPU-2", 4000, 0),))
    assert of_files(files(), other) == {"a container that runs has no file of its own"}


# Claims.


def claiming(named: str = "", **status: object) -> dict[str, Json]:
    """Return a pod of two containers that use one claim, by its UID."""
    found = pods(**status)
    given = {"resourceClaimName": named} if named else {"resourceClaimTemplateName": "made-1-4000-0"}
    use = {"resources": {"claims": [{"name": "gpu"}]}}
    containers = [{"name": name, **use} for name in ("c0", "c1")]
    spec = {**found[POD]["spec"], "resourceClaims": [{"name": "gpu", **given}], "containers": containers}
    return {POD: {**found[POD], "spec": spec}}


def claim_files(pod: str, pod_uid: str) -> dict[str, bytes]:
    claim = GrantedClaim(pod, "uid-of-claim", "gpu")
    grant = replace(a_grant("claim.uid.gpu", pod), pod_uid=pod_uid, container="gpu/gpu", uuids=(CARD,), claim=claim)
    return {grant.file_name: grant_file(grant)}


def test_a_pod_that_must_wait_for_its_claim_is_in_order_where_the_node_can_not_keep_it_to_its_amount() -> None:
    for isolation, waits in {"none": False, "driver": False, "hami-core": True, "mps": True}.items():
        found = list(unsettled_containers(claiming(), [], isolation=isolation))  # type: ignore[arg-type]
        assert bool(found) != waits, isolation
    assert not list(unsettled_containers(claiming("joint-1-4000-0"), [], isolation="driver"))
    assert not list(unsettled_containers(claiming(), [], complete=False)), "its file comes again with the next agent"


def test_the_file_of_a_claim_is_that_of_its_pod_or_of_all_that_share_it() -> None:
    for named, files_of in (
        ("", claim_files("a", POD)),
        ("joint-1-4000-0", claim_files("joint-1-4000-0", "uid-of-claim")),
    ):
        there = claiming(named)
        assert not list(unsettled_files(files_of, there, [MINE, replace(MINE, name="c1")]))
        gone = unsettled_files(files_of, {}, [])
        assert {finding.rule for finding in gone} == {"a file of a pod that is gone is left over"}
        missing = unsettled_files({}, there, [MINE])
        assert {finding.rule for finding in missing} == {"a container that runs has no file of its own"}


def test_counters_that_take_more_of_the_disk_than_they_need_are_found() -> None:
    assert not list(unsettled_counters({"a": 2 << 20}))
    found = unsettled_counters({"a": 2 << 20, "b": 20 << 20})
    assert [finding.rule for finding in found] == ["a container fills the node's disk with its counters"]
