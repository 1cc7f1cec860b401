"""What `gpuledger inspect` shows of files, and how it ends: 1 where something would not be taken as it is."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from builders import cards_of
from fakes.dialects import HAMI, VOLCANO, VOLCANO_COUNT, a_foreign_node, an_annotated_pod
from fakes.objects import CORES, GPU, MEMORY, a_container, a_node_object, a_pod_object
from gpuledger.command_line.commands.inspect import inspect_text
from gpuledger.command_line.program import main
from gpuledger.configuration.settings import Settings
from gpuledger.formats.dialects.registers import SCORES_ANNOTATION
from gpuledger.formats.inspection import NO_LINKS, TOPOLOGY_NEEDS_LINKS
from gpuledger.model.errors import BadInput

Json = dict[str, Any]

REPORT = "GPU-f571c8f8,10,32768,NVIDIA-Tesla V100S-PCIE-32GB,true,hami-core"
VOLCANO_NODE = a_foreign_node({VOLCANO: REPORT}, {VOLCANO_COUNT: 10})
POD = an_annotated_pod(
    {"nvidia.com/use-gputype": "A100,V100", "hami.io/gpu-scheduler-policy": "topology-aware"},
    a_container("cuda", {GPU: 2, MEMORY: 3000}),
    a_container("web", {"cpu": "100m"}),
    initContainers=[a_container("prepare", {VOLCANO_COUNT: 1, "volcano.sh/vgpu-memory": 90_000})],
)


def run(*documents: object, table: bool = False, text: str | None = None, arguments: tuple[str, ...] = ()) -> Result:
    """Give documents to the command on its standard input."""
    given = yaml.safe_dump_all(documents, allow_unicode=True) if text is None else text
    output = () if table else ("-o", "json")
    return CliRunner().invoke(main, ["inspect", "-f", "-", *output, *arguments], input=given)


def shown(*documents: object, text: str | None = None) -> Any:
    """Return the JSON that the command prints for documents."""
    result = run(*documents, text=text)
    assert result.exit_code in (0, 1), result.output
    return json.loads(result.stdout)


def a_maker(kind: str, template: object, name: str = "web") -> Json:
    return {"kind": kind, "metadata": {"name": name}, "spec": {"template": template}}


# What is shown.


def test_a_node_shows_what_it_serves_and_its_cards() -> None:
    result = run(VOLCANO_NODE)
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "kind": "Node",
        "name": "node-a",
        "dialect": "volcano",
        "serves": [VOLCANO_COUNT],
        "offers": {VOLCANO_COUNT: 10},
        "gpus": [
            {
                "uuid": "GPU-f571c8f8",
                "index": 0,
                "vendor": "nvidia",
                "model": "NVIDIA-Tesla V100S-PCIE-32GB",
                "memoryMiB": 32_768,
                "cores": 100,
                "number": 10,
                "numaNode": None,
                "mode": "hami-core",
                "healthy": True,
                "links": {},
            }
        ],
        "notes": [],
        "problems": [],
    }


def test_a_pod_shows_what_each_container_asks_for_what_it_left_out_and_what_it_chooses() -> None:
    result = run(POD)
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "kind": "Pod",
        "namespace": "default",
        "name": "pod",
        "schedulerName": "gpuledger",
        "containers": [
            {
                "name": "prepare",
                "lifetime": "init",
                "readable": True,
                "request": {
                    "gpus": 1,
                    "memoryMiB": 90_000,
                    "atMostCard": True,
                    "cores": 0,
                    "exclusive": False,
                    "resource": VOLCANO_COUNT,
                    "words": "volcano",
                    "vendor": "nvidia",
                    "defaults": ["cores"],
                },
            },
            {
                "name": "cuda",
                "lifetime": "main",
                "readable": True,
                "request": {
                    "gpus": 2,
                    "memoryMiB": 3_000,
                    "cores": 0,
                    "exclusive": False,
                    "resource": GPU,
                    "words": "hami",
                    "vendor": "nvidia",
                    "defaults": ["cores"],
                },
            },
            {"name": "web", "lifetime": "main", "readable": True, "request": None},
        ],
        "selectors": {"useModels": ["A100", "V100"], "nodePolicy": "topology", "cardPolicy": "topology"},
        "notes": [TOPOLOGY_NEEDS_LINKS],
        "warnings": [],
        "problems": [],
    }


def test_a_whole_card_is_shown_with_all_of_its_cores_and_memory() -> None:
    request = shown(a_pod_object(limits={GPU: 1}))["containers"][0]["request"]
    assert (request["percentage"], request["cores"], request["exclusive"]) == (100, 100, True)
    assert request["defaults"] == ["percentage", "cores"]


def test_a_node_without_cards_is_no_problem() -> None:
    found = shown(a_foreign_node({}, {"cpu": "1"}))
    assert (found["dialect"], found["serves"], found["gpus"], found["problems"]) == (None, [], [], [])


def test_a_node_whose_cards_report_no_links_is_told_apart_from_one_whose_cards_do() -> None:
    linked = {"GPU-1": {"GPU-2": "100"}, "GPU-2": {"GPU-1": "100"}}
    scores = json.dumps([{"uuid": uuid, "score": score} for uuid, score in linked.items()])
    report = ":".join(f"GPU-{number},10,32768,100,NVIDIA-A100,0,true" for number in (1, 2))
    without = {HAMI: report}
    assert shown(a_foreign_node(without, {GPU: 10}))["notes"] == [NO_LINKS]
    with_links = shown(a_foreign_node({**without, SCORES_ANNOTATION: scores}, {GPU: 10}))
    assert [gpu["links"] for gpu in with_links["gpus"]] == [{"GPU-2": 100}, {"GPU-1": 100}]
    assert with_links["notes"] == []


def test_cards_are_shown_in_the_order_of_their_index() -> None:
    found = shown(a_node_object("node-a", list(reversed(cards_of("node-a", 3)))))
    assert [gpu["index"] for gpu in found["gpus"]] == [0, 1, 2]


def test_warnings_are_shown_and_are_no_problem() -> None:
    result = run(a_pod_object(limits={GPU: 1, MEMORY: 1, "nvidia.com/gpumem-percentage": 1}))
    assert result.exit_code == 0
    assert "the former counts" in json.loads(result.stdout)["warnings"][0]


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "Job"])
def test_whatever_makes_pods_shows_the_pod_that_it_makes(kind: str) -> None:
    found = shown(a_maker(kind, {"metadata": {"labels": {"app": "web"}}, "spec": POD["spec"]}))
    assert (found["kind"], found["name"], found["of"]) == ("Pod", "web", f"{kind}/web")
    assert [container["name"] for container in found["containers"]] == ["prepare", "cuda", "web"]


def test_a_cron_job_is_looked_into_too_and_a_template_without_metadata_has_its_name() -> None:
    job = {"spec": {"template": {"spec": {"containers": [a_container("main", {GPU: 1})]}}}}
    found = shown({"kind": "CronJob", "metadata": {"name": "nightly"}, "spec": {"jobTemplate": job}})
    assert (found["name"], found["of"], len(found["containers"])) == ("nightly", "CronJob/nightly", 1)


def test_annotations_of_a_template_count_for_its_pods() -> None:
    template = {"metadata": {"annotations": {"nvidia.com/numa-bind": "true"}}, "spec": POD["spec"]}
    assert shown(a_maker("Deployment", template))["selectors"] == {"oneNUMANode": True}


def test_several_documents_and_lists_give_one_list_in_their_order() -> None:
    found = shown(VOLCANO_NODE, {"kind": "List", "items": [POD, a_node_object("node-b")]})
    assert found["kind"] == "List"
    assert [each["name"] for each in found["items"]] == ["node-a", "pod", "node-b"]


def test_empty_documents_between_others_are_skipped() -> None:
    text = f"---\n---\n{json.dumps(VOLCANO_NODE)}\n---\n# nothing\n"
    assert shown(text=text)["name"] == "node-a"


def test_json_is_read_as_well_with_characters_that_it_escapes_in_two_halves() -> None:
    node = a_foreign_node({HAMI: "GPU-0,10,100,100,Modell \N{GRINNING FACE},0,true:"}, {GPU: "10"})
    assert shown(text=json.dumps(node))["gpus"][0]["model"] == "Modell \N{GRINNING FACE}"


def test_several_files_are_read_in_their_order(tmp_path: Path) -> None:
    files = []
    for name, document in [("b.yaml", POD), ("a.json", VOLCANO_NODE)]:
        (tmp_path / name).write_text(json.dumps(document))
        files += ["-f", str(tmp_path / name)]
    result = CliRunner().invoke(main, ["inspect", "-o", "json", *files])
    assert result.exit_code == 0
    assert [each["kind"] for each in json.loads(result.stdout)["items"]] == ["Pod", "Node"]


def test_the_settings_say_which_words_are_understood(tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("resource_count: example.com/gpu\n")
    pod = a_pod_object(limits={"example.com/gpu": 1})
    assert shown(pod)["containers"][0]["request"] is None
    result = run(pod, arguments=("--settings", str(settings)))
    assert json.loads(result.stdout)["containers"][0]["request"]["gpus"] == 1


# Problems.


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (a_pod_object(limits={GPU: "one"}), "container main, nvidia.com/gpu: 'one' is not a number"),
        (a_pod_object(limits={GPU: 1.5}), "container main, nvidia.com/gpu: '1.5' is not a number"),
        (a_pod_object(limits={GPU: "1", CORES: "9" * 5_000}), "it is too long for a number"),
        (an_annotated_pod({"nvidia.com/numa-bind": "yes"}, a_container()), "'yes' is neither true nor false"),
        (
            an_annotated_pod({"nvidia.com/numa-bind": True}, a_container()),
            "metadata.annotations.nvidia.com/numa-bind: ",
        ),
        (a_foreign_node({VOLCANO: "GPU-1,10:" + REPORT}, {VOLCANO_COUNT: "10"}), "it has 2 fields, not 5 or 6"),
        (a_foreign_node({HAMI: "["}, {GPU: "10"}), f"node node-a, annotation {HAMI}: it is not JSON"),
        (a_foreign_node({VOLCANO: REPORT}, {GPU: "10"}), "name there what its device plugin serves"),
        ({"kind": "Node", "metadata": {"annotations": {HAMI: 7}}}, f"metadata.annotations.{HAMI}: "),
        ({"kind": "Node", "metadata": None}, "metadata: "),
        ({"kind": "Pod", "metadata": {"name": "x"}}, "spec: Field required"),
        ({"kind": "Pod", "spec": {"containers": [{"image": "x"}]}}, "spec.containers.0.name: Field required"),
        (
            {"kind": "Pod", "spec": {"containers": [{"name": "a", "resources": {"limits": [GPU]}}]}},
            "resources.limits: ",
        ),
        ({"kind": "Service", "metadata": {"name": "x"}}, "a Service says nothing of GPUs: give a Node, a Pod, or"),
        ({"metadata": {"name": "x"}}, "a None says nothing of GPUs"),
        ({"kind": 7}, "this is no Kubernetes object"),
        ({"kind": b"Pod"}, "this is no Kubernetes object"),
        ({"kind": {7: 8}}, "this is no Kubernetes object"),
        ({"kind": 2**70}, "this is no Kubernetes object"),
        ({"kind": "List", "items": [{"kind": "List", "items": [POD]}]}, "a List says nothing of GPUs"),
        ({"kind": "List", "items": [POD, 7]}, "this is no Kubernetes object"),
        ("just text", "this is no Kubernetes object"),
        ([POD], "this is no Kubernetes object"),
    ],
)
def test_what_would_not_be_taken_is_a_problem_and_the_exit_code_is_1(document: object, problem: str) -> None:
    result = run(document)
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    problems = [text for each in found.get("items", [found]) for text in each["problems"]]
    assert len(problems) == 1
    assert problem in problems[0]


def test_one_bad_container_does_not_hide_the_others() -> None:
    found = shown(a_pod_object(containers=[a_container("bad", {GPU: "x"}), a_container("good", {GPU: "2"})]))
    assert [container["readable"] for container in found["containers"]] == [False, True]
    assert found["containers"][1]["request"]["gpus"] == 2


def test_what_makes_no_pods_is_mentioned_in_one_line_and_is_no_problem() -> None:
    others = [{"kind": kind, "metadata": {"name": "web"}} for kind in ("Service", "ConfigMap", "PersistentVolumeClaim")]
    result = run(*others, POD, table=True)
    assert result.exit_code == 0
    assert (
        result.stdout.splitlines()[-1] == "Without pods or GPUs: Service web, ConfigMap web, PersistentVolumeClaim web"
    )
    found = json.loads(run(*others, POD).stdout)["items"]
    assert [each.get("skipped", False) for each in found] == [True, True, True, False]


def test_of_many_objects_without_pods_some_are_named() -> None:
    others = [{"kind": "Service", "metadata": {"name": f"web-{number}"}} for number in range(20)]
    assert run(POD, *others, table=True).stdout.splitlines()[-1].endswith("Service web-7, and 12 more")


def test_each_template_of_a_workload_is_shown_with_its_place_and_how_many_pods_it_makes() -> None:
    template = {"metadata": {}, "spec": POD["spec"]}
    tasks = [{"replicas": 1, "template": template}, {"replicas": 2, "template": template}]
    job = {"kind": "Job", "metadata": {"name": "train"}, "spec": {"tasks": tasks}}
    lines = run(job, table=True).stdout.splitlines()
    assert "Pod train (spec.tasks[0].template of Job/train)" in lines
    assert "Pod train (spec.tasks[1].template of Job/train, 2 of them)" in lines


def test_an_object_that_asks_for_cards_outside_a_template_is_no_silent_success() -> None:
    service = {
        "kind": "InferenceService",
        "metadata": {"name": "llm"},
        "spec": {"predictor": {"model": {"resources": {"limits": {GPU: 1}}}}},
    }
    result = run(service)
    assert result.exit_code == 0
    (warning,) = json.loads(result.stdout)["warnings"]
    assert warning.startswith(f"spec.predictor.model.resources.limits ({GPU}: 1) is not in a pod template")


def test_all_places_of_an_object_are_listed_and_checked_beside_its_templates() -> None:
    mixed = {
        "kind": "Serving",
        "metadata": {"name": "llm"},
        "spec": {
            "template": {"spec": POD["spec"]},
            "router": {"resources": {"limits": {GPU: 1, MEMORY: "4x"}}},
            "pools": [{"resourceName": GPU, "count": 2}],
        },
    }
    result = run(mixed)
    assert result.exit_code == 1
    pod, elsewhere = json.loads(result.stdout)["items"]
    assert pod["template"] == "spec.template"
    assert sorted(elsewhere["warnings"]) == [
        "spec.pools[0].resourceName (a resource for GPUs) is not in a pod template: "
        "inspect the pods that are made of it",
        f"spec.router.resources.limits ({GPU}: 1, {MEMORY}: 4x) is not in a pod template: "
        "inspect the pods that are made of it",
    ]
    (problem,) = elsewhere["problems"]
    assert problem.startswith(f"spec.router.resources.limits: {MEMORY}: ")
    assert "4x" in problem


def test_a_number_outside_of_templates_that_is_too_long_to_be_written_is_a_problem_and_no_crash() -> None:
    text = f"kind: X\nmetadata: {{name: a}}\nspec: {{r: {{limits: {{{GPU}: 0x{'f' * 6_000}}}}}}}"
    result = run(text=text)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["problems"] == [f"spec.r.limits: {GPU}: it is too long for a number"]


def test_gpus_that_are_asked_for_by_the_pod_as_a_whole_are_a_problem() -> None:
    pod = a_pod_object("a", {})
    pod["spec"]["resources"] = {"limits": {GPU: 1, "cpu": 1}}
    result = run(pod)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["problems"] == [
        f"spec.resources.limits.{GPU}: GPUs can't be asked for by the pod as a whole: ask in a container"
    ]


def test_queues_that_count_gpus_make_no_pods() -> None:
    flavors = [{"name": "a", "resources": [{"name": GPU, "nominalQuota": 8}]}]
    queue = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "q"}}
    assert (
        run({**queue, "spec": {"resourceGroups": [{"coveredResources": [GPU], "flavors": flavors}]}}, POD).exit_code
        == 0
    )


def test_one_problem_among_several_documents_is_enough() -> None:
    assert run(VOLCANO_NODE, POD).exit_code == 0
    assert run(VOLCANO_NODE, a_pod_object(limits={GPU: "x"}), POD).exit_code == 1


# What can't be read at all.


@pytest.mark.parametrize("text", ["", "\n", "---\n", "# nothing\n", "null\n"])
def test_an_empty_file_is_refused(text: str) -> None:
    result = run(text=text)
    assert result.exit_code == 2
    assert result.stderr == "Error: standard input is empty: give the YAML of a Node or a Pod\n"


@pytest.mark.parametrize(
    "text",
    [
        "kind: [",
        "kind: Pod\n\tname: x",
        "a: !!bool x",
        "a: !!int ''",
        "a: !!timestamp x",
        "a: !!python/object:os.system x",
        "a: 190:20:30" + ":00" * 400 + ".5",
        "a: " + "9" * 5_000,
        "[" * 1_000,
        "kind: \x00",
        "&a [*b]",
    ],
)
def test_text_that_is_no_yaml_is_refused(text: str) -> None:
    result = run(text=text)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: standard input can't be read as YAML: ")
    with pytest.raises(BadInput):
        inspect_text(text, "file", Settings())


def test_a_list_that_holds_itself_is_shown_once() -> None:
    assert "a List says nothing" in shown(text="&a {kind: List, items: [*a]}")["problems"][0]


def test_timestamps_stay_text() -> None:
    pod = a_pod_object()
    text = json.dumps(pod).replace('"2030-01-01T00:00:00Z"', "2030-01-01T00:00:00Z")
    assert shown(text=text)["problems"] == []
    assert shown(text="{kind: Pod, metadata: {name: 2030-01-01}, spec: {containers: []}}")["name"] == "2030-01-01"


def test_files_that_are_missing_folders_or_binary_are_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x80\xff\x00")
    for file, sentence in [
        (tmp_path / "missing", "No such file"),
        (tmp_path, "Is a directory"),
        (binary, f"{binary} is not text"),
    ]:
        result = CliRunner().invoke(main, ["inspect", "-f", str(file)])
        assert result.exit_code == 2
        assert result.stderr.startswith("Error: ")
        assert sentence in result.stderr


def test_who_names_nothing_is_told_what_to_name() -> None:
    result = CliRunner().invoke(main, ["inspect"])
    assert result.exit_code == 2
    assert "name something to inspect: -f FILE, -f -, node/NAME, pod/NAME, nodes or pods" in result.stderr


@pytest.mark.parametrize("name", ["service/x", "x", "pod/", "/x"])
def test_names_of_other_kinds_are_refused_before_the_cluster_is_asked(name: str) -> None:
    result = CliRunner().invoke(main, ["inspect", name])
    assert result.exit_code == 2
    assert result.stderr == f"Error: {name!r} is neither node/NAME nor pod/NAME\n"


# Tables.


def test_the_tables_have_whole_values_and_no_colours_where_nobody_sees_them() -> None:
    long = "NVIDIA-" + "x" * 200
    result = run(a_foreign_node({VOLCANO: f"GPU-1,10,100,{long},false"}, {VOLCANO_COUNT: "10"}), table=True)
    lines = result.stdout.splitlines()
    assert lines[0] == "Node node-a: words of volcano, its device plugin serves volcano.sh/vgpu-number"
    assert lines[1].split() == ["UUID", "INDEX", "MODEL", "MIB", "CORES", "SLOTS", "NUMA", "MODE", "HEALTHY", "LINKS"]
    assert lines[2].split() == ["GPU-1", "0", long, "100", "100", "10", "hami-core", "no"]
    assert "\x1b" not in result.stdout


def test_the_table_of_a_pod_marks_defaults_and_shows_choices() -> None:
    lines = run(POD, table=True).stdout.splitlines()
    assert lines[0] == "Pod default/pod"
    shown_lines = [" ".join(line.split()) for line in lines]
    assert shown_lines[2:5] == [
        "prepare 1 90000 MiB, at most the card 0 % (default) no volcano",
        "cuda 2 3000 MiB 0 % (default) no hami",
        "web no GPU",
    ]
    assert lines[5:] == [
        "  useModels: A100, V100",
        "  nodePolicy: topology",
        "  cardPolicy: topology",
        f"  note: {TOPOLOGY_NEEDS_LINKS}",
        "",
    ]


def test_the_table_shows_warnings_and_problems() -> None:
    warned = {GPU: 1, MEMORY: 1, "nvidia.com/gpumem-percentage": 1}
    output = run(a_pod_object(limits=warned), a_pod_object(limits={GPU: "x"}), table=True).stdout
    assert "  warning: container main says nvidia.com/gpumem and " in output
    assert "  problem: container main, nvidia.com/gpu: 'x' is not a number\n" in output
    assert "can't be read" in output


@pytest.mark.parametrize("model", ["NVIDIA [/b]", "[red]NVIDIA", "NVIDIA :100:", "[link=x]y"])
def test_a_model_is_text_and_no_markup(model: str) -> None:
    register = json.dumps([{"uuid": "GPU-1", "index": 0, "memoryMiB": 1, "model": model}])
    result = run(a_node_object("node-a", register=register), table=True)
    assert result.exit_code == 0
    assert model in result.stdout


@pytest.mark.parametrize(("api", "noted"), [("batch.volcano.sh/v1alpha1", True), ("batch/v1", False)])
def test_a_volcano_job_is_told_that_its_pods_need_volcanos_scheduler(api: str, noted: bool) -> None:
    template = {"spec": {"containers": [a_container("main", {VOLCANO_COUNT: 1})]}}
    spec = {"tasks": [{"replicas": 2, "template": template}]} if noted else {"template": template}
    result = run({"apiVersion": api, "kind": "Job", "metadata": {"name": "train"}, "spec": spec})
    assert ("let its PodGroup in (phase Inqueue)" in result.output) is noted
    assert "train" in result.output


def test_a_node_of_nvidias_own_plugin_is_said_to_offer_its_cards_and_how_they_come_into_the_ledger() -> None:
    node = {"kind": "Node", "metadata": {"name": "dgx"}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}
    result = run(node, table=True)
    title, note = result.stdout.splitlines()[:2]
    assert "8 nvidia.com/gpu" in title
    assert all(words in note for words in ("gpuledger's agent", "node_label"))


@pytest.mark.parametrize(
    ("document", "note"),
    [
        (
            {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "spec": {"minMember": 2}},
            "annotation volcano.sh/card.request has no effect: what the pods ask for counts",
        ),
        (
            {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "spec": {"weight": 1}},
            "annotation volcano.sh/card.quota has no effect: limits of a team, also by model, are in a ResourceQuota",
        ),
    ],
)
def test_volcanos_words_about_cards_on_other_objects_are_named(document: dict[str, Any], note: str) -> None:
    word = note.split()[1]
    text = yaml.safe_dump({**document, "metadata": {"name": "any", "annotations": {word: '{"A100": 4}'}}})
    result = CliRunner().invoke(main, ["inspect", "-f", "-"], input=text)
    assert (result.exit_code, note in " ".join(result.output.split())) == (0, True)
