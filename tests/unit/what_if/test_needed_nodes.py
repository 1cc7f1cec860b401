"""How many more nodes the pods of files need: `gpuledger simulate --add-nodes needed`."""

from typing import Any

import pytest
from click.testing import CliRunner

from builders import cards_of
from fakes.objects import GPU, MEMORY, a_node_object, a_pod_object
from fakes.scenes import NODE_A, shown, simulate
from gpuledger.command_line.program import main
from gpuledger.formats.kubernetes.gang import GANG_LABEL, MINIMUM_LABEL

Json = dict[str, Any]

BOTH, WHOLE = {GPU: "2"}, {GPU: "1"}
NEEDED = ("--add-nodes", "needed", "--like", "node-a")


def a_member(name: str, minimum: int, limits: Json, gang: str = "train") -> Json:
    pod = a_pod_object(name, limits)
    pod["metadata"]["labels"] = {GANG_LABEL: gang, MINIMUM_LABEL: str(minimum)}
    return pod


def last_lines(*documents: object, policy: str = "binpack", lines: int = 1) -> list[str]:
    result = simulate(*documents, arguments=(*NEEDED, "--policy", policy))
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()[-lines:]


@pytest.mark.parametrize("policy", ["binpack", "spread", "topology", "fragmentation"])
def test_as_many_nodes_are_added_as_all_pods_need(policy: str) -> None:
    pods = [a_pod_object(name, BOTH) for name in "abcd"]
    found = shown(NODE_A, *pods, arguments=(*NEEDED, "--policy", policy))
    assert (found["neededNodes"], found["notHelped"]) == (3, [])
    assert found["addedNodes"] == ["node-a-new-1", "node-a-new-2", "node-a-new-3"]
    assert (found["fitWithoutAddedNodes"], found["fit"], found["noRoom"]) == (1, 4, 0)
    [line] = last_lines(NODE_A, *pods, policy=policy)
    assert line == "1 of 4 pods fit now, 4 with 3 more nodes like node-a, not all of them with fewer."


def test_the_same_number_by_hand_gives_the_same_and_one_less_does_not() -> None:
    pods = [a_pod_object(f"p{number}", {GPU: 1, MEMORY: 3_000 + 650 * number}) for number in range(20)]
    found = shown(NODE_A, *pods, arguments=NEEDED)
    needed = found["neededNodes"]
    assert needed > 1
    by_hand = shown(NODE_A, *pods, arguments=("--add-nodes", str(needed), "--like", "node-a"))
    assert by_hand["pods"] == found["pods"]
    assert "neededNodes" not in by_hand
    fewer = shown(NODE_A, *pods, arguments=("--add-nodes", str(needed - 1), "--like", "node-a"))
    assert (found["noRoom"], fewer["noRoom"] > 0) == (0, True)


def test_nothing_is_needed_where_everything_fits_or_nothing_waits() -> None:
    found = shown(NODE_A, a_pod_object("a", BOTH), arguments=NEEDED)
    assert (found["neededNodes"], found["addedNodes"], found["fit"]) == (0, [], 1)
    assert last_lines(NODE_A, a_pod_object("a", BOTH)) == ["1 of 1 pods fit now: no node is needed."]
    assert shown(NODE_A, arguments=NEEDED)["neededNodes"] == 0
    assert last_lines(NODE_A) == ["No pod here waits for a GPU."]


def test_it_is_said_why_more_nodes_are_no_help() -> None:
    tainted = a_node_object("node-a", cards_of("node-a", 2))
    selecting = a_pod_object("far", WHOLE)
    selecting["spec"]["nodeSelector"] = {"zone": "x"}
    pods = [a_pod_object("a", BOTH), a_pod_object("b", BOTH), a_pod_object("large", {GPU: 3}), selecting]
    found = shown(tainted, *pods, arguments=NEEDED)
    assert (found["neededNodes"], found["fit"]) == (1, 2)
    assert found["notHelped"] == [
        {"pods": ["default/large"], "reason": "too-few-cards", "text": "fewer than 3 GPUs on the node"},
        {
            "pods": ["default/far"],
            "reason": "node-selector",
            "text": "the node lacks the label zone=x of the pod's nodeSelector",
        },
    ]
    lines = last_lines(tainted, *pods, lines=7)
    assert lines == [
        "More nodes like node-a are no help to default/large:",
        "  fewer than 3 GPUs on the node (too-few-cards)",
        "",
        "More nodes like node-a are no help to default/far:",
        "  the node lacks the label zone=x of the pod's nodeSelector (node-selector)",
        "",
        "1 of 4 pods fit now, 2 with 1 more node like node-a, not all of them with fewer.",
    ]
    assert last_lines(NODE_A, a_pod_object("large", {GPU: 3})) == [
        "0 of 1 pods fit now, and no more with nodes like node-a."
    ]


def test_options_of_the_needed_number() -> None:
    result = CliRunner().invoke(main, ["simulate", "-f", "x", "--add-nodes", "needed"])
    assert (result.exit_code, "--add-nodes N and --like NODE go together" in result.stderr) == (2, True)
    result = CliRunner().invoke(main, ["simulate", "-f", "x", "--add-nodes", "many", "--like", "n"])
    assert (result.exit_code, "'many' is not a valid integer" in result.stderr) == (2, True)
    result = simulate(NODE_A, a_pod_object("a"), arguments=("--add-nodes", "needed", "--like", "node-x"))
    assert (result.exit_code, "there is no node 'node-x' to copy" in result.stderr) == (2, True)


def test_a_gang_gets_nodes_for_all_of_its_members_or_none() -> None:
    members = [a_member(name, 3, BOTH) for name in "abcd"]
    found = shown(NODE_A, *members, arguments=NEEDED)
    assert (found["neededNodes"], found["fit"], found["gangs"][0]["status"]) == (3, 4, "placed")
    large = a_member("large", 4, {GPU: 3})
    members = [a_member(name, 4, BOTH) for name in "abc"]
    found = shown(NODE_A, *members, large, arguments=NEEDED)
    assert (found["neededNodes"], found["fit"]) == (0, 0)
    [unhelped] = found["notHelped"]
    assert unhelped["pods"] == [f"default/{name}" for name in ("a", "b", "c", "large")]
    assert unhelped["reason"] == "too-few-cards"
    found = shown(NODE_A, *members, arguments=NEEDED)
    assert (found["neededNodes"], found["notHelped"]) == (0, []), "a member is missing: nodes are not what it waits for"


def test_pods_over_their_quota_need_no_node() -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}}
    quota["spec"] = {"hard": {"limits.nvidia.com/gpu": "4"}}
    pods = [a_pod_object(name, BOTH) for name in "abcd"]
    found = shown(NODE_A, quota, *pods, arguments=NEEDED)
    assert (found["neededNodes"], found["fit"]) == (1, 2)
    assert {each["reason"] for each in found["notHelped"]} == {"quota"}
    assert [each["pods"] for each in found["notHelped"]] == [["default/c"], ["default/d"]]
