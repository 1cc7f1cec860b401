"""Pods as HAMi's examples have them: each shape of theirs, by the same names, and what gpuledger reads in it.

A shape that gpuledger does not take as it is gets a sentence. Source: the names and amounts in HAMi 2.10's examples/.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from fakes.dialects import a_foreign_node, an_annotated_pod
from fakes.objects import DIALECTS, GPU, MEMORY, a_container
from gpuledger.formats.inspection import inspected

Json = dict[str, Any]
Limits = Mapping[str, object]

PERCENTAGE, CORES = "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"
SGPU, VMEMORY, VCORE = "metax-tech.com/sgpu", "metax-tech.com/vmemory", "metax-tech.com/vcore"
HYGON_SHARE = {"hygon.com/dcunum": 1, "hygon.com/dcucores": 60, "hygon.com/dcumem": 2_000}
HYGON_GETS = (1, 2_000, 60)
WHOLE = (1, "100 %", 100)


@dataclass(frozen=True)
class Shape:
    """Containers' limits, and what each gets: cards, MiB or percent of the memory of each, percent of its cores."""

    folder: str
    containers: tuple[Limits, ...]
    gets: tuple[tuple[int, object, int] | None, ...]
    annotations: Mapping[str, str] = field(default_factory=dict)
    selectors: Mapping[str, object] = field(default_factory=dict)
    says: tuple[str, ...] = ()
    """Parts of the warnings and notes, in their order."""

    def __str__(self) -> str:
        return f"{self.folder}: {[*self.containers]} {[*self.annotations]}"


def one(folder: str, limits: Limits, gets: tuple[int, object, int] | None, **more: Any) -> Shape:
    return Shape(folder, (limits,), (gets,), **more)


def ascend(model: str, *gets: Any, **more: Any) -> Shape:
    memory = 16_384 if model == "Ascend910C" else 2_000
    return one("ascend", {f"huawei.com/{model}": 1, f"huawei.com/{model}-memory": memory}, *gets, **more)


def iluvatar(model: str) -> list[Shape]:
    names = (f"iluvatar.ai/{model}-vgpu", f"iluvatar.ai/{model}.vCore", f"iluvatar.ai/{model}.vMem")
    share, gets = dict(zip(names, (1, 50, 64), strict=True)), (1, 16_384, 50)
    return [
        one("iluvatar", share, gets),
        Shape("iluvatar", (share, share), (gets, gets)),
        one("iluvatar", {names[0]: 2}, (2, "100 %", 100)),
    ]


SHAPES = [
    ascend("Ascend310P", (1, 3_072, 12)),
    ascend("Ascend910A", (1, 2_184, 6)),
    ascend("Ascend910B2", (1, 8_192, 12)),
    ascend("Ascend910B3", (1, 16_384, 25)),
    ascend("Ascend910B4", (1, 8_192, 25)),
    ascend("Ascend910C", (2, "100 %", 100), says=("these cards come in modules of 2, so it gets 2", "given whole")),
    one("awsneuron", {"aws.amazon.com/neuroncore": 1}, (1, "100 %", 50)),
    one("awsneuron", {"aws.amazon.com/neuron": 1}, WHOLE),
    Shape("awsneuron", ({"aws.amazon.com/neuroncore": 1},) * 2, ((1, "100 %", 50),) * 2),
    one("biren", {"birentech.com/gpu": 1}, WHOLE),
    one("enflame", {"enflame.com/gcu": 1}, WHOLE),
    one("enflame", {"enflame.com/gcu": 2}, (2, "100 %", 100)),
    one("enflame", {"enflame.com/drs-gcu": 1}, (1, 6_144, 16)),
    one("enflame", {"enflame.com/drs-gcu": 3}, (1, 20_480, 50)),
    one("enflame", {"enflame.com/gcu-memory": 20_480, "enflame.com/gcu-core": 40}, (1, 20_480, 50)),
    one("hygon", HYGON_SHARE, HYGON_GETS),
    *(
        one("hygon", HYGON_SHARE, HYGON_GETS, annotations={f"hygon.com/{name}": "DCU-1,DCU-2"}, selectors=selected)
        for name, selected in {
            "use-dcutype": {"useModels": ["DCU-1", "DCU-2"]},
            "nouse-dcutype": {"avoidModels": ["DCU-1", "DCU-2"]},
            "use-gpuuuid": {"useUUIDs": ["DCU-1", "DCU-2"]},
            "nouse-gpuuuid": {"avoidUUIDs": ["DCU-1", "DCU-2"]},
        }.items()
    ),
    one("hygon", {"hygon.com/dcunum": 2}, (2, "100 %", 100)),
    *(shape for model in ("BI-V100", "BI-V150", "MR-V100") for shape in iluvatar(model)),
    one("kunlun", {"kunlunxin.com/vxpu": 1}, WHOLE),
    one("kunlun", {"kunlunxin.com/vxpu": 1, "kunlunxin.com/vxpu-memory": 24_576}, (1, 24_576, 25)),
    one("metax/gpu", {"metax-tech.com/gpu": 1}, WHOLE),
    *(
        one(
            "metax/gpu",
            {"metax-tech.com/gpu": 1},
            WHOLE,
            annotations={"hami.io/node-scheduler-policy": policy},
            selectors={"nodePolicy": policy},
        )
        for policy in ("binpack", "spread")
    ),
    one("metax/sgpu", {SGPU: 1}, WHOLE),
    one(
        "metax/sgpu",
        {SGPU: 1, VCORE: 60, VMEMORY: 4},
        (1, 4_096, 60),
        annotations={"metax-tech.com/use-gpuuuid": "GPU-1"},
        selectors={"useUUIDs": ["GPU-1"]},
    ),
    one("metax/sgpu", {SGPU: 1, VCORE: 60, VMEMORY: "2048Mi"}, (1, 2_048, 60)),
    one("metax/sgpu", {SGPU: 1, VCORE: 60, VMEMORY: 4}, (1, 4_096, 60)),
    one("metax/sgpu", {SGPU: 4}, (4, "100 %", 100)),
    Shape(
        "metax/sgpu",
        ({SGPU: 1, VCORE: 60, VMEMORY: 4}, {SGPU: 1, VCORE: 30, VMEMORY: 8}),
        ((1, 4_096, 60), (1, 8_192, 30)),
    ),
    one("metax/sgpu", {SGPU: 1, VMEMORY: 4}, (1, 4_096, 100)),
    one("mlu", {"cambricon.com/vmlu": "1"}, WHOLE),
    one(
        "mlu",
        {"cambricon.com/vmlu": "1", "cambricon.com/mlu370.smlu.vmemory": "20", "cambricon.com/mlu370.smlu.vcore": "10"},
        WHOLE,
        says=(
            "mlu370.smlu.vcore is not known: did you mean cambricon.com/mlu.smlu.vcore?",
            "mlu370.smlu.vmemory is not known: did you mean cambricon.com/mlu.smlu.vmemory?",
        ),
    ),
    one(
        "mthreads",
        {"mthreads.com/vgpu": 1, "mthreads.com/sgpu-memory": 32, "mthreads.com/sgpu-core": 8},
        (1, 16_384, 50),
    ),
    one("mthreads", {"mthreads.com/vgpu": 2}, (2, "100 %", 100)),
    one("mthreads", {"mthreads.com/vgpu": 1}, WHOLE),
    one("vastai", {"vastaitech.com/va": 1}, WHOLE),
    one("nvidia", {GPU: 1, MEMORY: 3_000, CORES: 30}, (1, 3_000, 30)),
    one("nvidia", {GPU: 2}, (2, "100 %", 100)),
    one(
        "nvidia",
        {GPU: 2, MEMORY: 8_000},
        (2, 8_000, 0),
        annotations={"nvidia.com/vgpu-mode": "mig", "hami.io/gpu-scheduler-policy": "binpack"},
        selectors={"modes": ["mig"], "cardPolicy": "binpack"},
    ),
    one("nvidia", {GPU: 1, MEMORY: 3_000}, (1, 3_000, 0)),
    one("nvidia", {"nvidia.com/mig-3g.20gb": 1}, None, says=("resource nvidia.com/mig-3g.20gb has no effect",)),
    *(
        one("nvidia", {GPU: 2}, (2, "100 %", 100), annotations={f"nvidia.com/{name}": "A,B"}, selectors=selected)
        for name, selected in {
            "use-gputype": {"useModels": ["A", "B"]},
            "nouse-gputype": {"avoidModels": ["A", "B"]},
            "use-gpuuuid": {"useUUIDs": ["A", "B"]},
            "nouse-gpuuuid": {"avoidUUIDs": ["A", "B"]},
        }.items()
    ),
    one(
        "nvidia",
        {GPU: 1},
        WHOLE,
        annotations={"hami.io/node-scheduler-policy": "spread", "hami.io/gpu-scheduler-policy": "binpack"},
        selectors={"nodePolicy": "spread", "cardPolicy": "binpack"},
    ),
    one("nvidia", {GPU: 2, PERCENTAGE: 100, CORES: 100}, (2, "100 %", 100)),
    one("nvidia", {GPU: 2, PERCENTAGE: 50, CORES: 30}, (2, "50 %", 30)),
    one("nvidia", {GPU: 1, PERCENTAGE: 40, CORES: 60}, (1, "40 %", 60)),
]


def got(container: Json) -> tuple[int, object, int] | None:
    asked = container["request"]
    if asked is None:
        return None
    return asked["gpus"], asked.get("memoryMiB", f"{asked.get('percentage')} %"), asked["cores"]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_hamis_examples_ask_for_is_read_or_a_sentence_says_why_not(shape: Shape) -> None:
    names = "abc"
    containers = [a_container(name, limits) for name, limits in zip(names, shape.containers, strict=False)]
    [shown] = inspected(an_annotated_pod(shape.annotations, *containers), DIALECTS)
    assert tuple(map(got, shown["containers"])) == shape.gets
    assert shown["selectors"] == shape.selectors
    assert shown["problems"] == []
    said = [*shown["warnings"], *shown["notes"]]
    assert len(said) == len(shape.says)
    assert [part in sentence for part, sentence in zip(shape.says, said, strict=True)] == [True] * len(said)


def test_a_deployment_shows_the_same_as_its_pods() -> None:
    pod = an_annotated_pod({}, a_container("a", {"cambricon.com/vmlu": "1"}))
    deployment = {"kind": "Deployment", "metadata": {"name": "d"}, "spec": {"template": {"spec": pod["spec"]}}}
    [shown] = inspected(deployment, DIALECTS)
    assert got(shown["containers"][0]) == WHOLE


# The three ways in which nodes report their cards.


def cards_and_notes(node: Json) -> tuple[list[str], list[str], list[str]]:
    [shown] = inspected(node, DIALECTS)
    assert shown["problems"] == []
    return [gpu["uuid"] for gpu in shown["gpus"]], shown["serves"], shown["notes"]


def test_cards_that_an_annotation_lists_are_read() -> None:
    node = a_foreign_node({"hami.io/node-dcu-register": "DCU-1,4,65536,100,DCU-Z100,0,true:"}, {"hygon.com/dcunum": 4})
    assert cards_and_notes(node) == (["DCU-1"], ["hygon.com/dcunum"], [])


@pytest.mark.parametrize(
    ("amounts", "uuids", "count"),
    [
        ({"metax-tech.com/gpu": "2"}, ["node-a-metax-0", "node-a-metax-1"], "metax-tech.com/gpu"),
        (
            {"mthreads.com/sgpu-core": "16", "mthreads.com/sgpu-memory": "96"},
            ["node-a-mthreads-0"],
            "mthreads.com/vgpu",
        ),
    ],
    ids=["a device plugin's count", "amounts patched into the status"],
)
def test_cards_that_only_a_capacity_tells_of_are_read(amounts: dict[str, str], uuids: list[str], count: str) -> None:
    node = a_foreign_node({}, amounts)
    node["status"]["capacity"] = amounts
    found, serves, notes = cards_and_notes(node)
    assert (found, serves) == (uuids, [count])
    assert [note for note in notes if "links" not in note] == []


@pytest.mark.parametrize("name", [GPU, "volcano.sh/vgpu-number"])
def test_a_count_that_may_be_of_slots_stands_for_no_cards_and_a_sentence_says_so(name: str) -> None:
    """Of NVIDIA's plugin it is a number of cards, of HAMi's and Volcano's of slots: the Node does not tell which."""
    node = a_foreign_node({}, {name: "80"})
    node["status"]["capacity"] = {name: "80", "volcano.sh/vgpu-memory": "640000"}
    found, serves, [note] = cards_and_notes(node)
    assert (found, serves) == ([], [])
    assert note.startswith(f"it offers {name}, and neither an annotation nor its capacity lists the cards behind it")
