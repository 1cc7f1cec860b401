"""Gangs among the pods of files and of a cluster: `gpuledger simulate` places all members that are needed, or none."""

from pathlib import Path
from typing import Any

import pytest

from builders import a_holder, cards_of, whole_share
from fakes.api_server import ApiServer
from fakes.objects import GPU, a_node_object, a_pod_object
from fakes.scenes import NODE_A, NODE_B, FakeReads, answered, share, shown, simulate
from gpuledger.formats.annotations import DEVICES_ANNOTATION, devices_annotation
from gpuledger.formats.kubernetes.gang import GANG_LABEL, MINIMUM_LABEL
from gpuledger.what_if.gangs import GangStatus

Json = dict[str, Any]

WHOLE, BOTH = {GPU: "1"}, {GPU: "2"}


def a_member(name: str, minimum: int | str = 3, limits: Json | None = None, **others: Any) -> Json:
    pod = a_pod_object(name, limits or WHOLE, **others)
    pod["metadata"]["labels"] = {GANG_LABEL: "train", MINIMUM_LABEL: str(minimum)}
    return pod


def test_a_gang_that_fits_is_placed_whole_and_a_further_member_like_any_other_pod() -> None:
    found = shown(NODE_A, NODE_B, *[a_member(name) for name in "abcde"])
    assert [pod["status"] for pod in found["pods"]] == ["placed"] * 4 + ["no-room"]
    assert found["pods"][4]["reasons"][0]["reason"] == "no-whole-card"
    assert found["gangs"] == [
        {
            "gang": "default/train",
            "status": "placed",
            "minimum": 3,
            "members": 5,
            "membersWithRoom": 3,
            "reasons": [],
        }
    ]


def test_of_a_gang_that_does_not_fit_nobody_is_placed_and_others_get_the_cards() -> None:
    members = [a_member(name, minimum=5) for name in "abcde"]
    found = shown(NODE_A, NODE_B, *members, a_pod_object("single", WHOLE))
    assert [pod["status"] for pod in found["pods"]] == ["no-room"] * 5 + ["placed"]
    assert {pod["reasons"][0]["reason"] for pod in found["pods"][:5]} == {"gang"}
    [gang] = found["gangs"]
    assert (gang["status"], gang["membersWithRoom"], gang["members"]) == ("no-room", 4, 5)
    assert gang["reasons"] == [{"reason": "no-whole-card", "text": "no card entirely free", "nodes": 2}]


def test_a_gang_whose_members_are_not_all_there_waits() -> None:
    found = shown(NODE_A, NODE_B, *[a_member(name) for name in "ab"])
    assert [pod["status"] for pod in found["pods"]] == ["no-room"] * 2
    assert "created" in found["pods"][0]["reasons"][0]["text"]
    assert found["gangs"][0]["status"] == "incomplete"


def test_members_that_are_bound_count() -> None:
    bound = a_member("bound", node_name="node-a")
    bound["metadata"]["annotations"] = {DEVICES_ANNOTATION: devices_annotation([share("GPU-node-a-0")])}
    found = shown(NODE_A, NODE_B, *[a_member(name) for name in "ab"], bound)
    assert [pod["status"] for pod in found["pods"]] == ["bound", "placed", "placed"]
    assert found["gangs"][0]["membersWithRoom"] == 3


def test_a_launcher_without_gpus_counts_if_the_operator_sees_it() -> None:
    launcher = a_member("launcher", limits={"cpu": "1"})
    found = shown(NODE_A, launcher, *[a_member(name) for name in "ab"])
    assert (found["fit"], found["gangs"][0]["status"], found["gangs"][0]["members"]) == (2, "placed", 3)
    launcher["spec"]["schedulerName"] = "default-scheduler"
    found = shown(NODE_A, launcher, *[a_member(name) for name in "ab"])
    assert (found["fit"], found["gangs"][0]["status"]) == (0, "incomplete")


@pytest.mark.parametrize(("controller", "status"), [("job-1", "placed"), ("job-2", "incomplete")])
def test_members_that_have_succeeded_count_as_long_as_their_job_has_others(controller: str, status: str) -> None:
    done = a_member("done")
    done["status"] = {"phase": "Succeeded"}
    members = [a_member(name) for name in "ab"]
    for pod, uid in ((done, "job-1"), *((member, controller) for member in members)):
        pod["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "job", "uid": uid, "controller": True}]
    assert shown(NODE_A, done, *members)["gangs"][0]["status"] == status


def test_the_most_demanding_member_is_placed_first_whatever_the_order() -> None:
    found = shown(NODE_A, NODE_B, a_member("a"), a_member("b"), a_member("large", limits=BOTH))
    assert [pod["status"] for pod in found["pods"]] == ["placed"] * 3


def test_members_of_a_gang_take_cpu_from_each_other_and_find_none_together() -> None:
    def small(name: str) -> Json:
        node = a_node_object(name, cards_of(name, 2))
        node["status"]["allocatable"] |= {"cpu": "64", "memory": "64Gi"}
        return node

    nodes = [small(f"node-{letter}") for letter in "abc"]
    members = [a_member(name, limits={**WHOLE, "cpu": "40"}) for name in "def"]
    found = shown(*nodes[:2], *members)
    assert [pod["status"] for pod in found["pods"]] == ["no-room"] * 3
    assert found["gangs"][0]["reasons"][0]["reason"] == "host-cpu"
    found = shown(*nodes, *members)
    assert sorted(pod["node"] for pod in found["pods"]) == ["node-a", "node-b", "node-c"]


def test_more_nodes_let_a_gang_in_as_a_whole() -> None:
    members = [a_member(name, minimum=5) for name in "abcde"]
    arguments = ("--add-nodes", "1", "--like", "node-a")
    found = shown(NODE_A, NODE_B, *members, arguments=arguments)
    assert (found["fitWithoutAddedNodes"], found["fit"], found["gangs"][0]["status"]) == (0, 5, "placed")
    lines = simulate(NODE_A, NODE_B, *members, arguments=arguments).stdout.splitlines()
    assert lines[-1].endswith("Gangs placed whole: 0 of 1 now, 1 then.")


def test_a_gang_that_waits_is_said_to_people_with_what_it_lacks() -> None:
    lines = simulate(NODE_A, *[a_member(name) for name in "abc"], arguments=()).stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("Gang default/train"))
    assert "2 of the 3 members" in lines[at]
    assert "no-whole-card" in lines[at + 1]
    assert lines[-1] == "0 of 3 pods fit. Gangs placed whole: 0 of 1."
    too_few = simulate(NODE_A, a_member("a"), arguments=()).stdout
    assert "1 of the 3 members that it needs are there" in too_few


def test_a_minimum_that_cannot_be_had_is_a_problem_of_the_pod() -> None:
    found = shown(NODE_A, a_member("a", minimum="many"))
    assert (found["pods"], found["gangs"]) == ([], [])
    assert MINIMUM_LABEL in found["problems"][0]["problem"]


def by_group(name: str) -> Json:
    pod = a_pod_object(name, WHOLE)
    pod["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "train"}
    return pod


def a_group(minimum: object) -> Json:
    head = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "train"}}
    return {**head, "spec": {"minMember": minimum}}


@pytest.mark.parametrize(
    ("groups", "placed", "status"),
    [
        ([a_group(3)], 0, ["no-room"]),
        ([a_group(2)], 2, ["placed"]),
        ([a_group(None)], 2, []),
        ([a_group("x")], 0, ["no-group"]),
        ([], 0, ["no-group"]),
    ],
)
def test_a_pod_group_says_how_many_start_together(groups: list[Json], placed: int, status: list[str]) -> None:
    found = shown(NODE_A, *map(by_group, "abc"), *groups)
    assert found["fit"] == placed
    assert [gang["status"] for gang in found["gangs"]] == status


async def test_gangs_of_a_cluster_with_its_pod_groups_and_members_that_are_being_bound() -> None:
    api = ApiServer()
    first, second = cards_of("node-a", 2)
    api.put_card(first, a_holder("entered", whole_share(first)))
    api.put_card(second)
    pending = [by_group("entered"), by_group("b"), by_group("launcher")]
    pending[2]["spec"]["containers"][0]["resources"] = {}
    pending[0]["metadata"]["uid"] = "entered"
    group = a_group(3)
    group["metadata"]["namespace"] = "default"
    reads = FakeReads([NODE_A], list(api.cards.values()), [], pending, {"scheduling.x-k8s.io": [group]})
    found = await answered(reads)
    assert [(each.pod, each.node_name) for each in found.pods] == [("default/b", "node-a")]
    assert [gang.status for gang in found.gangs] == [GangStatus.PLACED]


def test_a_gang_goes_to_one_zone_of_the_settings_labels(tmp_path: Path) -> None:
    def racked(name: str, rack: str) -> Json:
        node = a_node_object(name, cards_of(name, 2))
        node["metadata"]["labels"] = {"rack": rack}
        return node

    (tmp_path / "settings.yaml").write_text("gang_zones: [rack]\n")
    nodes = [racked("n1", "1"), racked("n2", "2"), racked("n3", "1"), racked("n4", "2")]
    taken = a_pod_object("taken", WHOLE)
    members = [a_member(name) for name in "abc"]
    found = shown(*nodes, taken, *members, arguments=("--settings", str(tmp_path / "settings.yaml")))
    racks = {"n1": 1, "n2": 2, "n3": 1, "n4": 2}
    assert len({racks[pod["node"]] for pod in found["pods"][1:]}) == 1
