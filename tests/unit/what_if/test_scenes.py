"""Where pods of files and of a cluster would go: `gpuledger simulate -f`, and with more nodes than there are."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from builders import a_holder, a_share, cards_of, whole_share
from fakes.api_server import ApiServer
from fakes.dialects import HAMI, VOLCANO, VOLCANO_COUNT, a_foreign_node
from fakes.objects import DIALECTS, GPU, MEMORY, a_container, a_node_object, a_pod_object
from fakes.operator_parts import OperatorParts
from fakes.scenes import NODE_A, NODE_B, FakeReads, answered, share, shown, simulate
from gpuledger.command_line.program import main
from gpuledger.formats.annotations import DEVICES_ANNOTATION, devices_annotation
from gpuledger.formats.inspection import words_of_group
from gpuledger.formats.kubernetes.gang import gang_of
from gpuledger.formats.quantity import LARGEST, MIB, host_capacity
from gpuledger.model.request import HostAmounts, PodRequest
from gpuledger.placement import choose as fitting_nodes
from gpuledger.placement.choose import Chooser
from gpuledger.placement.policy import Policy
from gpuledger.what_if.answer import answer, as_json
from gpuledger.what_if.gangs import GangStatus
from gpuledger.what_if.scene import Given, Scene, read_files, take_document

Json = dict[str, Any]

ROOT = Path(__file__).parents[3]
WHOLE, BOTH = {GPU: "1"}, {GPU: "2"}


def nodes_of(found: Json) -> list[str | None]:
    return [pod["node"] for pod in found["pods"]]


# Files.


def test_a_pod_is_shown_with_its_devices() -> None:
    result = simulate(NODE_A, a_pod_object("a"))
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "pods": [
            {
                "pod": "default/a",
                "status": "placed",
                "node": "node-a",
                "onAddedNode": False,
                "containers": {"main": [{"uuid": "GPU-node-a-0", "index": 0, "memoryMiB": 4000, "cores": 0}]},
                "reasons": [],
            }
        ],
        "gangs": [],
        "fit": 1,
        "noRoom": 0,
        "addedNodes": [],
        "problems": [],
        "notes": [],
    }


def test_pods_are_placed_in_their_order_and_see_each_other() -> None:
    found = shown(NODE_A, NODE_B, *[a_pod_object(name, BOTH) for name in "abc"])
    assert sorted(map(str, nodes_of(found))) == ["None", "node-a", "node-b"]
    assert found["pods"][2]["reasons"] == [
        {"reason": "no-whole-card", "text": "fewer than 2 cards entirely free", "nodes": 2}
    ]


def test_a_bound_pod_has_its_cards_before_the_others_whatever_the_order() -> None:
    bound = a_pod_object("bound", WHOLE, node_name="node-a")
    bound["metadata"]["annotations"] = {DEVICES_ANNOTATION: devices_annotation([share("GPU-node-a-0")])}
    found = shown(NODE_A, a_pod_object("new", WHOLE), bound)
    assert [(pod["pod"], pod["status"]) for pod in found["pods"]] == [
        ("default/bound", "bound"),
        ("default/new", "placed"),
    ]
    assert [pod["containers"]["main"][0]["index"] for pod in found["pods"]] == [0, 1]
    assert (found["fit"], found["noRoom"]) == (1, 0)


@pytest.mark.parametrize("place", [0, 2])
def test_the_cluster_word_topology_aware_chooses_the_smallest_node_as_the_pods_annotation_does(
    place: int, tmp_path: Path
) -> None:
    nodes = [a_node_object(f"n{number}", cards_of(f"n{number}", 1 + (number != place))) for number in range(3)]
    settings = tmp_path / "settings.yaml"
    settings.write_text("card_policy: topology-aware\n")
    pod = a_pod_object("a", WHOLE)
    pod["metadata"]["annotations"] = {"hami.io/gpu-scheduler-policy": "topology-aware"}
    of_cluster = shown(*nodes, a_pod_object("a", WHOLE), arguments=("--settings", str(settings)))
    by_flag = shown(*nodes, a_pod_object("a", WHOLE), arguments=("--policy", "topology-aware"))
    assert nodes_of(of_cluster) == nodes_of(by_flag) == nodes_of(shown(*nodes, pod)) == [f"n{place}"]


@pytest.mark.parametrize("place", [0, 3, 6])
def test_all_nodes_are_looked_at_before_one_is_chosen(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting_nodes, "ALL_LOOKED_AT", 6)
    monkeypatch.setattr(fitting_nodes, "LOOKED_AT", 2)
    nodes = [a_node_object(f"n{number}", cards_of(f"n{number}", 1 + (number != place))) for number in range(7)]
    found = shown(*nodes, a_pod_object("a", WHOLE), arguments=("--policy", "topology"))
    assert nodes_of(found) == [f"n{place}"]


async def test_policies_learn_of_bound_pods_too(monkeypatch: pytest.MonkeyPatch) -> None:
    arrived: list[PodRequest] = []
    taken_over: list[str] = []
    monkeypatch.setattr(Chooser, "arrived", lambda _, request: arrived.append(request))
    monkeypatch.setattr(Chooser, "taken_over", lambda _: taken_over.append("a bound pod"))
    bound = a_pod_object("bound", BOTH, node_name="node-a")
    bound["metadata"]["annotations"] = {
        DEVICES_ANNOTATION: devices_annotation(map(share, ("GPU-node-a-0", "GPU-node-a-1")))
    }
    web = a_pod_object("web", {"cpu": "1"}, node_name="node-a")
    bad = a_pod_object("bad", {GPU: "1.5"}, node_name="node-a")
    shown(NODE_A, a_pod_object("new", WHOLE), bound, web, bad)
    assert [request.shape[0].cards for request in arrived] == [2, 1]
    assert taken_over, "for those who come after it, the cluster is in a steady state"
    arrived.clear()
    taken_over.clear()
    await answered(FakeReads([NODE_A], [], [bound, web, bad], [a_pod_object("new", WHOLE)]))
    assert [request.shape[0].cards for request in arrived] == [2, 1]
    assert taken_over


@pytest.mark.parametrize(
    ("annotations", "node", "message"),
    [
        ({}, "node-a", "no annotation says which cards it has"),
        ({DEVICES_ANNOTATION: "{"}, "node-a", "is not JSON"),
        ({DEVICES_ANNOTATION: devices_annotation([share("GPU-x")])}, "node-a", "names card GPU-x, which is not"),
        ({}, "node-c", "it is bound to node node-c, which was not given"),
    ],
)
def test_a_bound_pod_whose_cards_are_not_known(annotations: Json, node: str, message: str) -> None:
    bound = a_pod_object("bound", WHOLE, node_name=node)
    bound["metadata"]["annotations"] = annotations
    result = simulate(NODE_A, bound, a_pod_object("new"))
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert nodes_of(found) == ["node-a"]
    [problem] = found["problems"]
    assert (problem["file"], problem["object"]) == ("standard input", "Pod default/bound")
    assert message in problem["problem"]
    assert f"error: standard input: Pod default/bound: {problem['problem']}" in result.stderr


def test_two_bound_pods_on_one_card() -> None:
    pods = [a_pod_object(name, WHOLE, node_name="node-a") for name in "ab"]
    for pod in pods:
        pod["metadata"]["annotations"] = {DEVICES_ANNOTATION: devices_annotation([share("GPU-node-a-0")])}
    found = shown(NODE_A, *pods)
    assert [problem["object"] for problem in found["problems"]] == ["Pod default/b"]
    assert "its cards are taken by others" in found["problems"][0]["problem"]


def test_registers_of_other_systems() -> None:
    hami = a_foreign_node({HAMI: "GPU-h,10,32768,100,NVIDIA-V100,0,true:"}, {GPU: 10}, "hami")
    volcano = a_foreign_node({VOLCANO: "GPU-v,10,8192,NVIDIA-T4,true,hami-core"}, {VOLCANO_COUNT: 10}, "volcano")
    pods = [a_pod_object("a", {GPU: 1, MEMORY: 20_000}), a_pod_object("b", {VOLCANO_COUNT: 1})]
    found = shown(hami, volcano, *pods)
    assert nodes_of(found) == ["hami", "volcano"]
    assert found["pods"][0]["containers"]["main"][0]["uuid"] == "GPU-h"


def test_a_node_that_does_not_say_what_its_plugin_serves_is_taken_as_if_it_answered() -> None:
    bare = a_node_object("node-a", cards_of("node-a", 1))
    bare["status"] = {}
    dead = a_node_object("node-b", cards_of("node-b", 1), slots=0)
    found = shown(bare, dead, a_pod_object("a", WHOLE), a_pod_object("b", WHOLE))
    assert nodes_of(found) == ["node-a", None]
    assert {each["reason"] for each in found["pods"][1]["reasons"]} == {"agent-not-ready", "no-whole-card"}
    assert found["notes"] == [
        "standard input: Node node-a: its status does not say what its device plugin serves; taken as if that answered"
    ]


def test_many_such_nodes_are_one_note() -> None:
    bare = [{**a_node_object(f"n{number}", cards_of(f"n{number}", 1)), "status": {}} for number in range(3)]
    assumed = "their status does not say what a device plugin serves; taken as if that answered"
    assert shown(*bare)["notes"] == [f"standard input: Node n0, and 2 more nodes: {assumed}"]
    assert shown(*bare[:2])["notes"] == [f"standard input: Node n0, and 1 more node: {assumed}"]


def test_cpu_of_the_node_and_conditions_of_kube_scheduler() -> None:
    node = a_node_object("node-a", cards_of("node-a", 2))
    node["status"]["allocatable"] |= {"cpu": "4", "memory": "8Gi"}
    tainted = a_node_object("node-b", cards_of("node-b", 2))
    tainted["spec"] = {"taints": [{"key": "team", "effect": "NoSchedule"}]}
    pods = [a_pod_object(name, {**WHOLE, "cpu": "3"}) for name in "ab"]
    found = shown(node, tainted, *pods)
    assert nodes_of(found) == ["node-a", None]
    assert [(each["reason"], each["nodes"]) for each in found["pods"][1]["reasons"]] == [("host-cpu", 1), ("taint", 1)]


def test_an_amount_that_nobody_has_is_no_trap_for_the_prices() -> None:
    node = a_node_object("node-a", cards_of("node-a", 2))
    node["status"]["allocatable"] |= {"cpu": "1e60", "memory": "1E"}
    pods = [a_pod_object("a", {**WHOLE, "cpu": "1"}), a_pod_object("b", {**WHOLE, "cpu": 1e60, "memory": "9e30"})]
    found = shown(node, *pods, arguments=("--policy", "fragmentation"))
    assert [pod["status"] for pod in found["pods"]] == ["placed", "no-room"]
    assert host_capacity(node) == HostAmounts(LARGEST, LARGEST // MIB)


@pytest.mark.parametrize("odd", ["x", ["x"], 3, True, {"limits": ["x"], "requests": 1, "cpu": ["x"]}])
def test_amounts_of_the_pod_that_are_no_mapping_count_as_nothing(odd: object) -> None:
    pod = a_pod_object("a", WHOLE)
    pod["spec"] |= {"resources": odd, "overhead": odd}
    assert nodes_of(shown(NODE_A, pod)) == ["node-a"]


def test_pods_without_gpus_and_those_that_have_ended() -> None:
    node = a_node_object("node-a", cards_of("node-a", 1))
    node["status"]["allocatable"] |= {"cpu": "4", "memory": "8Gi"}
    neighbour = a_pod_object("neighbour", {"cpu": "3"}, node_name="node-a")
    pods = [a_pod_object("done", phase="Succeeded"), neighbour, a_pod_object("new", {**WHOLE, "cpu": "2"})]
    found = shown(node, *pods)
    assert [(pod["pod"], pod["status"]) for pod in found["pods"]] == [("default/new", "no-room")]
    assert [each["reason"] for each in found["pods"][0]["reasons"]] == ["host-cpu"]


def test_makers_of_pods_count_as_often_as_they_make_them() -> None:
    template = {"spec": a_pod_object("x", WHOLE)["spec"]}
    job = {"kind": "Job", "metadata": {"name": "train", "namespace": "ml"}, "spec": {"parallelism": 3}}
    job["spec"]["template"] = template  # type: ignore[index]
    found = shown(NODE_A, job)
    assert [pod["pod"] for pod in found["pods"]] == ["ml/train-0", "ml/train-1", "ml/train-2"]
    assert (found["fit"], found["noRoom"]) == (2, 1)
    job["spec"]["parallelism"] = "many"  # type: ignore[index]
    [problem] = shown(NODE_A, job)["problems"]
    assert problem["problem"] == "spec.parallelism: 'many' is no number from 0 to 10000"


@pytest.mark.parametrize(
    ("document", "object_", "message"),
    [
        ("just text", "", "this is no Kubernetes object"),
        ({"kind": "Pod", "metadata": {"name": "p"}, "spec": {}}, "Pod p", "spec.containers: Field required"),
        ({"kind": "Pod", "spec": {"containers": []}}, "Pod", "metadata.name: it is missing"),
        ({**a_pod_object("p"), "status": "x"}, "Pod p", "status: Input should be a valid dictionary"),
        ({"kind": "Pod", "metadata": {"name": "p", "uid": []}, "spec": {"containers": []}}, "Pod p", "metadata.uid"),
        ({"kind": "Node", "metadata": {"name": "n", "annotations": 3}}, "Node n", "metadata.annotations"),
        (
            {"kind": "Deployment", "spec": {"template": {"spec": {"containers": []}}}},
            "Deployment",
            "metadata.name: it is missing",
        ),
        (a_pod_object("p", {GPU: "1.5"}), "Pod default/p", f"container main, {GPU}"),
        (a_pod_object("new"), "Pod default/new", "a pod of this name was given before"),
        (NODE_A, "Node node-a", "there is a node of this name already"),
        (a_node_object("node-c", register="["), "Node node-c", "node node-c, annotation gpuledger.dev/gpus"),
        (a_node_object("node-c", cards_of("node-a", 1)), "Node node-c", "card GPU-node-a-0 is on node node-a already"),
    ],
)
def test_a_bad_object_is_named_and_the_others_go_on(document: object, object_: str, message: str) -> None:
    result = simulate(NODE_A, a_pod_object("new"), document)
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert nodes_of(found) == ["node-a"]
    [problem] = found["problems"]
    assert (problem["file"], problem["object"]) == ("standard input", object_)
    assert message in problem["problem"]


def test_files_that_cannot_be_read_and_folders(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "node.yml").write_text(yaml.safe_dump(NODE_A))
    (tmp_path / "list.json").write_text(json.dumps({"kind": "List", "items": [a_pod_object("a"), a_pod_object("b")]}))
    (tmp_path / "bad.yaml").write_text("a: [")
    (tmp_path / "empty.yaml").write_text("---\n")
    (tmp_path / "notes.txt").write_text("a: [")
    (tmp_path / "service.yaml").write_text("kind: Service\nmetadata: {name: web}")
    (tmp_path / "binary.json").write_bytes(b"\xff")
    read_files([str(tmp_path), str(tmp_path / "missing")], found := Scene())
    assert [given.name for given in (*found.nodes, *found.pods)] == ["Node node-a", "Pod default/a", "Pod default/b"]
    assert [Path(problem.file).name for problem in found.problems] == [
        "bad.yaml",
        "binary.json",
        "empty.yaml",
        "missing",
    ]
    assert [(Path(note.file).name, note.object) for note in found.notes] == [("service.yaml", "Service web")]


@pytest.mark.parametrize("kinds", [("NodeList", "PodList"), ("List", "List")])
def test_lists_as_the_api_server_gives_them(kinds: tuple[str, str]) -> None:
    lists: list[Json] = [
        {"kind": kind, "items": [each]} for kind, each in zip(kinds, (NODE_A, a_pod_object("a")), strict=True)
    ]
    for each in lists:
        if each["kind"] != "List":
            each["items"] = [{key: value for key, value in item.items() if key != "kind"} for item in each["items"]]
    assert nodes_of(shown(*lists)) == ["node-a"]


def test_an_item_of_a_list_of_anything_needs_a_kind() -> None:
    for kind in ("List", None, 3):
        [problem] = read({"kind": kind, "items": [{"metadata": {"name": "a"}}]}).problems
        assert "an object without a kind" in problem.text


def test_pods_whose_name_the_api_server_makes() -> None:
    pod = a_pod_object("x", WHOLE)
    pod["metadata"] = {"generateName": "run-"}
    job = {"kind": "Job", "metadata": {"generateName": "job-"}, "spec": {"template": {"spec": pod["spec"]}}}
    found = shown(NODE_A, pod, pod, job)
    assert [each["pod"] for each in found["pods"]] == ["default/run-00000", "default/run-00001", "default/job-00002-0"]
    assert (found["fit"], found["noRoom"], found["problems"]) == (2, 1, [])


def test_a_folder_without_files(tmp_path: Path) -> None:
    read_files([str(tmp_path)], found := Scene())
    [problem] = found.problems
    assert problem.text == "the folder has no file that ends with .yaml, .yml, .json"


def test_the_table() -> None:
    result = simulate(NODE_A, a_pod_object("a", BOTH), a_pod_object("b", WHOLE), a_pod_object("c", {}), arguments=())
    assert result.stdout.splitlines() == [
        "POD        NODE                                       CONTAINER  GPU  UUID            MIB  CORES",
        "default/a  node-a                                     main         0  GPU-node-a-0  16000    100",
        "                                                                   1  GPU-node-a-1  16000    100",
        "default/b  no room",
        "default/c  asks for no GPU: kube-scheduler places it",
        "",
        "default/b finds no room:",
        "  1 node: no card entirely free (no-whole-card)",
        "",
        "1 of 2 pods fit.",
    ]


# More nodes.


def test_added_nodes_have_the_cards_of_another_and_are_idle() -> None:
    pods = [a_pod_object(name, BOTH) for name in "abc"]
    found = shown(NODE_A, *pods, arguments=("--add-nodes", "1", "--like", "node-a"))
    assert (found["fitWithoutAddedNodes"], found["fit"], found["addedNodes"]) == (1, 2, ["node-a-new-1"])
    assert sorted(pod["onAddedNode"] for pod in found["pods"]) == [False, False, True]
    uuids = [card["uuid"] for pod in found["pods"] for card in pod["containers"].get("main", ())]
    assert len(set(uuids)) == 4
    table = simulate(NODE_A, *pods, arguments=("--add-nodes", "4", "--like", "node-a")).stdout
    assert table.splitlines()[-1] == "1 of 3 pods fit now, 3 with 4 more nodes like node-a."


@pytest.mark.parametrize(
    "down",
    [
        a_node_object("down", cards_of("down", 2), slots=0),
        a_foreign_node({HAMI: "GPU-h,10,32768,100,NVIDIA-V100,0,true:"}, {GPU: 0}, "down"),
    ],
)
def test_added_nodes_work_even_if_the_device_plugin_of_the_one_they_are_like_does_not(down: Json) -> None:
    found = shown(down, a_pod_object("a", WHOLE), arguments=("--add-nodes", "1", "--like", "down"))
    assert (nodes_of(found), found["fitWithoutAddedNodes"], found["notes"]) == (["down-new-1"], 0, [])


def test_an_added_node_that_copies_none() -> None:
    result = simulate(NODE_A, a_pod_object("a"), arguments=("--add-nodes", "1", "--like", "node-x"))
    assert result.exit_code == 2
    assert "there is no node 'node-x' to copy; nodes are node-a" in result.stderr


# A cluster.


async def test_the_ledger_of_a_cluster_counts_and_its_waiting_pods_are_placed_by_priority_and_age() -> None:
    api = ApiServer()
    first, second = cards_of("node-a", 2)
    api.put_card(first, a_holder("holder", whole_share(first)))
    api.put_card(second)
    running = [a_pod_object("holder", WHOLE, node_name="node-a")]
    pending = [
        a_pod_object("old", WHOLE, created="2030-01-01T00:00:00Z"),
        a_pod_object("important", WHOLE, created="2030-01-02T00:00:00Z", priority=5),
        a_pod_object("other", WHOLE, scheduler_name="default-scheduler"),
        a_pod_object("binding", WHOLE, uid="holder"),
        a_pod_object("web", {"cpu": "1"}),
    ]
    reads = FakeReads([NODE_A], list(api.cards.values()), running, pending)
    found = await answered(reads)
    assert [(each.pod, each.node_name) for each in found.pods] == [
        ("default/important", "node-a"),
        ("default/old", ""),
    ]
    more = await answered(reads, add_nodes=1, like="node-a")
    assert (more.before and more.before.fit, more.fit) == (1, 2)


async def test_a_cluster_and_files_together() -> None:
    api = ApiServer()
    for card in cards_of("node-a", 2):
        api.put_card(card, a_holder("holder", a_share(card, 10_000)))
    neighbour = a_pod_object("neighbour", {"cpu": "63"}, node_name="node-a")
    node = a_node_object("node-a", cards_of("node-a", 2))
    node["status"]["allocatable"]["memory"] = "1Gi"
    pods = [a_pod_object("fits", {GPU: 1, MEMORY: 6_000}), a_pod_object("whole", WHOLE)]
    pods.append(a_pod_object("cpu", {GPU: 1, MEMORY: 1, "cpu": 70}))
    found = await answered(FakeReads([node], list(api.cards.values()), [neighbour], []), NODE_B, *pods)
    assert [each.node_name for each in found.pods] == ["node-a", "node-b", "node-b"]
    assert found.problems == ()


def read(*documents: object) -> Scene:
    """Return documents as if they were read from a file."""
    found = Scene()
    for document in documents:
        take_document(document, "file", found)
    return found


async def test_a_card_that_its_node_does_not_list_any_more_takes_nobody() -> None:
    api = ApiServer()
    for card in cards_of("node-a", 3):
        api.put_card(card)
    pending = [a_pod_object("large", {GPU: "3"})]
    found = await answered(FakeReads([NODE_A], list(api.cards.values()), [], pending))
    assert as_json(found)["pods"][0]["reasons"] == [
        {"reason": "too-few-cards", "text": "fewer than 3 GPUs on the node", "nodes": 1}
    ]


# The same as the operator.


async def test_the_examples_get_the_devices_that_the_operator_gives_them(tmp_path: Path) -> None:
    """Each example pod through the operator's Filter and Bind, and through the simulation: the same annotation.

    Those of a gang are there before the first of them is asked for, and their Binds wait for each other.
    """
    api = ApiServer()
    nodes = [a_node_object(f"node-{number}", cards_of(f"node-{number}", 8, memory_mib=40_960)) for number in range(5)]
    names = [node["metadata"]["name"] for node in nodes]
    read_files([str(ROOT / "examples")], examples := Scene())
    others = [pod for pod in examples.pods if pod.content["metadata"].get("namespace", "default") != "default"]
    # They wait for quotas or queues, which are not simulated, or are of a team in production, or a notebook's.
    of_teams = {"quota.yaml", "budget.yaml", "notebook.yaml", "batch-jobs.yaml", "research-job.yaml", "trial.yaml"}
    assert {Path(pod.file).name for pod in others} == of_teams
    # Claims are made by kube-controller-manager, of which tests/cluster/test_examples_in_both_words.py has one; and the
    # pods of autoscaling/ and of recipes/ want nodes of their own.
    elsewhere = {"claims", "autoscaling", "recipes"}
    pods = [pod for pod in examples.pods if pod not in others and Path(pod.file).parent.name not in elsewhere]
    assert len(pods) == 21 + 4 * 4
    for node in nodes:
        api.put_node(node)
        for card in cards_of(node["metadata"]["name"], 8, memory_mib=40_960):
            api.put_card(card)
    parts = OperatorParts(api)
    parts.read_cards()
    observe_groups(parts)
    for pod in pods:
        metadata = pod.content["metadata"]
        api.put_pod({**pod.content, "metadata": {**metadata, "uid": f"uid-{metadata['name']}"}})
    parts.watch()
    given: dict[str, tuple[str, Any]] = {}
    for together in gathered(pods):
        chosen = {name: list(parts.filter(name, *names).node_names) for name in together}
        binds = {name: parts.bind(name, found[0]) for name, found in chosen.items() if found}
        await asyncio.gather(*binds.values())
        for name in binds:
            devices = json.loads(api.pods["default", name]["metadata"]["annotations"][DEVICES_ANNOTATION])
            given[name] = chosen[name][0], devices
    scene = Scene(nodes=read(*nodes).nodes, pods=pods, groups=examples.groups)
    found = answer(scene, DIALECTS, Policy())
    simulated = {
        each.pod.partition("/")[2]: (
            each.node_name,
            json.loads(devices_annotation(each.shares)),
        )
        for each in found.pods
        if each.node_name
    }
    assert simulated == given
    assert len(given) == 14 + 4 * found.whole_gangs
    assert {gang.status for gang in found.gangs} == {GangStatus.PLACED}


def observe_groups(parts: OperatorParts) -> None:
    """Show the operator the PodGroups of the examples."""
    for file in (ROOT / "examples").rglob("*.yaml"):
        for document in yaml.safe_load_all(file.read_text()):
            words = words_of_group(document) if isinstance(document, dict) else None  # Prometheus' files are lists
            if words and document.get("kind") == "PodGroup":
                group = {
                    **document,
                    "metadata": {**document["metadata"], "namespace": "default", "uid": str(words.way)},
                }
                parts.workflows.gangs.pod_groups.observe(words, group, gone=False)


def gathered(pods: Sequence[Given]) -> list[list[str]]:
    """Return the names of pods, those of one gang together."""
    found: dict[object, list[str]] = {}
    for pod in pods:
        name = pod.content["metadata"]["name"]
        gang = gang_of(pod.content)
        found.setdefault(gang.name if gang else name, []).append(name)
    return list(found.values())


# How it is called.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give Nodes and Pods (-f FILE), those of the cluster (--from-cluster), or both"),
        (["-f", "x", "--add-nodes", "2"], "--add-nodes N and --like NODE go together"),
        (["-f", "x", "--policy", "tetris"], "there is no policy 'tetris'; policies are binpack, spread"),
        (["-f", "x", "--policy", "FGD"], "there is no policy 'FGD'; policies are binpack"),
        (["-f", "x", "--policy", "spread/"], "two of these as NODES/CARDS"),
    ],
)
def test_options_that_do_not_go_together(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["simulate", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_policy_can_be_named() -> None:
    pods = [a_pod_object(name) for name in "ab"]
    for policy, cards in (("binpack", 1), ("spread", 2), ("binpack/spread", 2)):
        found = shown(NODE_A, *pods, arguments=("--policy", policy))
        assert len({card["uuid"] for pod in found["pods"] for card in pod["containers"]["main"]}) == cards


def test_a_container_without_a_gpu_has_no_devices() -> None:
    pod = a_pod_object("a", containers=[a_container("gpu"), a_container("web", {"cpu": "1"})])
    assert list(shown(NODE_A, pod)["pods"][0]["containers"]) == ["gpu"]
