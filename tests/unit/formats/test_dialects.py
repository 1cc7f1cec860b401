"""Requests in HAMi's, Volcano's and the classic words: what they mean, and where they differ."""

from collections.abc import Mapping

import pytest
import yaml

from builders import a_card
from fakes.dialects import (
    CLASSIC_COUNT,
    CLASSIC_MEMORY,
    HAMI,
    VOLCANO,
    VOLCANO_CORES,
    VOLCANO_COUNT,
    VOLCANO_MEMORY,
    VOLCANO_PERCENTAGE,
    a_foreign_node,
    an_annotated_pod,
    demand_of,
    dialects_with,
    placed,
    request_of,
    warnings_of,
)
from fakes.objects import CORES, DIALECTS, GPU, MEMORY, PERCENTAGE, a_container, a_node_object, a_pod_object
from gpuledger.formats.dialects.request import container_requests, pod_request
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.model.card import Amounts
from gpuledger.model.errors import BadInput, Reason, Refusal
from gpuledger.model.request import Demand, Lifetime

CARD_MIB = 24_564
CARD = Amounts(CARD_MIB, 100, 10)
COMPATIBLE = dialects_with(volcano_count=GPU)
"""The compatible set-up of Volcano's guide."""

HAMI_NODE = a_foreign_node({HAMI: f"GPU-0,10,{CARD_MIB},100,NVIDIA-4090,0,true,0,hami-core:"}, {GPU: "10"})
VOLCANO_NODE = a_foreign_node({VOLCANO: f"GPU-0,10,{CARD_MIB},NVIDIA-4090,true,hami-core:"}, {VOLCANO_COUNT: "10"})
COMPATIBLE_NODE = a_foreign_node(
    {VOLCANO: f"GPU-0,10,{CARD_MIB},NVIDIA-4090,true,hami-core:GPU-1,10,{CARD_MIB},NVIDIA-4090,true,hami-core:"},
    {GPU: "20", "volcano.sh/vgpu-memory": "49128", VOLCANO_COUNT: "0"},
)


def reason(limits: Mapping[str, object], node: dict[str, object], dialects: Dialects = DIALECTS) -> Reason:
    found = placed(limits, node, dialects)
    assert isinstance(found, Refusal)
    return found.reason


# The guide's pods, as it prints them.

TEST_VGPU = """
apiVersion: v1
kind: Pod
metadata:
  name: test-vgpu
  namespace: default
spec:
  schedulerName: volcano
  tolerations:
  - key: volcano.sh/vgpu
    operator: Exists
    effect: NoSchedule
  containers:
  - name: cuda-container
    image: aiharbor.msxf.local/test/nvidia/cuda:12.2.0-base-ubuntu22.04
    command: ["sleep"]
    args: ["100000"]
    resources:
      requests:
        volcano.sh/vgpu-number: 2 # (必须)请求 2 张 GPU 卡
        volcano.sh/vgpu-memory: 3000 # (可选)每个 vGPU 使用 3G 显存,超过单卡显存则用最大单卡显存
        volcano.sh/vgpu-cores: 50 # (可选)每个 vGPU 使用 50% 核心
      limits:
        volcano.sh/vgpu-number: 2
        volcano.sh/vgpu-memory: 3000
        volcano.sh/vgpu-cores: 50
"""

TEST_VGPU_COMPATIBLE = """
apiVersion: v1
kind: Pod
metadata:
  name: test-vgpu-compatible
spec:
  schedulerName: volcano
  nodeSelector:
    name: dev-app-2-150-master-1
  containers:
  - name: cuda-container
    image: aiharbor.msxf.local/test/nvidia/cuda:12.2.0-base-ubuntu22.04
    resources:
      requests:
        nvidia.com/gpu: 2 # 请求 2 张 GPU 卡
      limits:
        nvidia.com/gpu: 2
"""


def test_the_guides_pod_gets_3000_mib_and_half_the_cores_of_each_of_two_cards() -> None:
    (demand,) = request_of(yaml.safe_load(TEST_VGPU)).shape
    assert demand == Demand(2, memory_mib=3_000, cores=50, resource=VOLCANO_COUNT, at_most_card=True)
    assert demand.amounts_on(CARD) == Amounts(3_000, 50, 1)


@pytest.mark.parametrize("dialects", [DIALECTS, COMPATIBLE])
def test_the_guides_compatible_pod_gets_two_whole_cards(dialects: Dialects) -> None:
    (demand,) = request_of(yaml.safe_load(TEST_VGPU_COMPATIBLE), dialects).shape
    assert demand == Demand(2, exclusive=True, resource=GPU)
    assert demand.whole


def test_the_compatible_set_up_is_one_setting() -> None:
    """Its node serves nvidia.com/gpu and registers in Volcano's format; memory is asked for in Volcano's words."""
    assert placed({GPU: "2"}, COMPATIBLE_NODE, COMPATIBLE) == (("GPU-0", "GPU-1"),)
    assert placed({GPU: "1", VOLCANO_MEMORY: "3k"}, COMPATIBLE_NODE, COMPATIBLE) == (("GPU-0",),)
    found = demand_of({GPU: "1", VOLCANO_MEMORY: "30k"}, COMPATIBLE)
    assert (found.memory_mib, found.at_most_card) == (30_000, True)


def test_in_the_compatible_set_up_hamis_words_stay_hamis() -> None:
    found = demand_of({GPU: "1", MEMORY: "30k"}, COMPATIBLE)
    assert (found.memory_mib, found.at_most_card) == (30_000, False)


def test_without_the_setting_a_node_of_the_compatible_set_up_gets_no_pods() -> None:
    assert reason({GPU: "2"}, COMPATIBLE_NODE) is Reason.AGENT_NOT_READY


# Words and what they mean.


@pytest.mark.parametrize(
    ("limits", "demand"),
    [
        ({VOLCANO_COUNT: "2"}, Demand(2, exclusive=True)),
        ({VOLCANO_COUNT: "1", VOLCANO_MEMORY: "3k"}, Demand(1, 3_000, at_most_card=True)),
        ({VOLCANO_MEMORY: "3k"}, Demand(1, 3_000, at_most_card=True)),
        ({VOLCANO_COUNT: "1", VOLCANO_PERCENTAGE: "25"}, Demand(1, None, 25)),
        ({VOLCANO_COUNT: "1", VOLCANO_CORES: "30"}, Demand(1, cores=30)),
        ({VOLCANO_COUNT: "1", VOLCANO_PERCENTAGE: "100"}, Demand(1, exclusive=True)),
        (
            {VOLCANO_COUNT: "1", VOLCANO_MEMORY: "3k", VOLCANO_CORES: "100"},
            Demand(1, 3_000, cores=100, exclusive=True, at_most_card=True),
        ),
        ({CLASSIC_COUNT: "2"}, Demand(2, exclusive=True)),
        ({CLASSIC_MEMORY: "3k"}, Demand(1, 3_000)),
        ({CLASSIC_COUNT: "2", CLASSIC_MEMORY: "3k"}, Demand(2, 3_000)),
    ],
)
def test_volcanos_and_the_classic_words_mean_what_hamis_mean(limits: Mapping[str, object], demand: Demand) -> None:
    assert demand_of(limits) == demand


def test_a_container_counts_in_the_name_that_it_wrote_and_in_none_if_it_wrote_none() -> None:
    for limits, name in [({GPU: "1"}, GPU), ({VOLCANO_COUNT: "1"}, VOLCANO_COUNT), ({VOLCANO_MEMORY: "1"}, "")]:
        assert request_of(a_pod_object(limits=limits)).shape[0].resource == name


def test_each_container_of_a_pod_may_use_words_of_its_own() -> None:
    pod = a_pod_object(
        containers=[a_container("a", {GPU: "1", MEMORY: "1k"}), a_container("b", {VOLCANO_MEMORY: "2k"})]
    )
    assert [each.memory_mib for each in request_of(pod).shape] == [1_000, 2_000]


def test_init_containers_ask_in_the_same_words_and_come_first() -> None:
    volcano = {VOLCANO_COUNT: "1", VOLCANO_MEMORY: "1k"}
    pod = an_annotated_pod(
        {},
        a_container("main", {VOLCANO_COUNT: "1", VOLCANO_PERCENTAGE: "50"}),
        initContainers=[a_container("prepare", volcano), a_container("proxy", volcano, restartPolicy="Always")],
    )
    request = request_of(pod)
    assert request.names == ("prepare", "proxy", "main")
    assert [each.lifetime for each in request.shape] == [Lifetime.INIT, Lifetime.SIDECAR, Lifetime.MAIN]
    assert [each.memory_mib for each in request.shape] == [1_000, 1_000, None]


def test_what_is_wrong_in_an_init_container_is_said_of_that_container() -> None:
    pod = an_annotated_pod({}, a_container(), initContainers=[a_container("prepare", {VOLCANO_COUNT: "x"})])
    with pytest.raises(BadInput, match=r"container prepare, .*vgpu-number: 'x' is not a number"):
        pod_request(pod, DIALECTS)


def test_containers_without_cards_keep_their_place() -> None:
    pod = a_pod_object(containers=[a_container("web", {"cpu": "1"}), a_container("cuda", {VOLCANO_COUNT: "1"})])
    assert [each and each.vocabulary for each in container_requests(pod, DIALECTS)] == [None, "volcano"]
    assert request_of(pod).all_containers == ("web", "cuda")


@pytest.mark.parametrize("count", [VOLCANO_COUNT, CLASSIC_COUNT])
def test_no_cards_in_volcanos_words_are_no_request(count: str) -> None:
    assert pod_request(a_pod_object(limits={count: "0"}), DIALECTS) is None


# What is mixed.


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (
            {GPU: "1", MEMORY: "1k", VOLCANO_MEMORY: "1k"},
            "container main mixes the words of hami and volcano "
            "(nvidia.com/gpumem, volcano.sh/vgpu-memory): keep one of them",
        ),
        (
            {VOLCANO_MEMORY: "1", CLASSIC_MEMORY: "1"},
            "container main mixes the words of volcano and volcano-classic "
            "(volcano.sh/vgpu-memory, volcano.sh/gpu-memory): keep one of them",
        ),
        (
            {GPU: "1", VOLCANO_COUNT: "1"},
            "container main counts its cards twice, as nvidia.com/gpu and as volcano.sh/vgpu-number: keep one",
        ),
        (
            {GPU: "1", "huawei.com/Ascend310P": "1"},
            "container main asks for cards of several kinds (nvidia.com/gpu, huawei.com/Ascend310P): "
            "a container gets cards of one kind, so give each kind a container of its own",
        ),
    ],
)
def test_one_container_uses_the_words_of_one_system(limits: Mapping[str, object], sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        demand_of(limits)
    assert str(caught.value) == sentence


def test_the_count_of_one_system_goes_with_the_amounts_of_another() -> None:
    """As in Volcano's compatible set-up; placement sees to it that the node's plugin serves the name of the count."""
    found = demand_of({GPU: "2", VOLCANO_MEMORY: "3k"})
    assert (found.cards, found.memory_mib, found.at_most_card) == (2, 3_000, True)
    found = demand_of({VOLCANO_COUNT: "1", CORES: "10"})
    assert (found.cards, found.cores, found.at_most_card) == (1, 10, False)


# Memory and percentage together.


@pytest.mark.parametrize(
    ("limits", "demand", "warned_of"),
    [
        ({GPU: "1", MEMORY: "4k", PERCENTAGE: "50"}, Demand(1, 4_000), [(MEMORY, PERCENTAGE, "hami")]),
        (
            {VOLCANO_COUNT: "1", VOLCANO_MEMORY: "4k", VOLCANO_PERCENTAGE: "50"},
            Demand(1, None, 50),
            [(VOLCANO_PERCENTAGE, VOLCANO_MEMORY, "volcano")],
        ),
        # A zero is not said beside an amount.
        ({VOLCANO_COUNT: "1", VOLCANO_MEMORY: "4k", VOLCANO_PERCENTAGE: "0"}, Demand(1, 4_000, at_most_card=True), []),
        ({GPU: "1", MEMORY: "0", PERCENTAGE: "50"}, Demand(1, None, 50), []),
    ],
)
def test_of_memory_and_percentage_the_one_that_counts_in_its_system_counts_and_this_is_said(
    limits: Mapping[str, object], demand: Demand, warned_of: list[tuple[str, str, str]]
) -> None:
    assert demand_of(limits) == demand
    assert list(warnings_of(limits)) == [
        f"container main says {counts} and {other}: the former counts, as with {system}"
        for counts, other, system in warned_of
    ]


def test_a_request_that_says_one_thing_has_no_warnings() -> None:
    for limits in ({GPU: "1", MEMORY: "4k"}, {VOLCANO_COUNT: "1", VOLCANO_MEMORY: "4k", VOLCANO_CORES: "10"}):
        assert warnings_of(limits) == ()


# More memory than a card has.


def test_volcanos_memory_over_the_card_is_all_memory_of_the_card() -> None:
    assert placed({VOLCANO_COUNT: "1", VOLCANO_MEMORY: "30k"}, VOLCANO_NODE) == (("GPU-0",),)
    demand = demand_of({VOLCANO_COUNT: "1", VOLCANO_MEMORY: "30k"})
    assert demand.amounts_on(CARD) == Amounts(CARD_MIB, 0, 1)
    assert demand.amounts_on(Amounts(40_000, 100, 10)).memory_mib == 30_000


def test_hamis_memory_over_the_card_waits_with_a_reason() -> None:
    assert placed({GPU: "1", MEMORY: "30k"}, HAMI_NODE) == Refusal(
        Reason.CARD_TOO_SMALL, "no card as large as 30000 MiB"
    )


def test_the_classic_memory_over_the_card_waits_too() -> None:
    node = a_node_object("node-a", [a_card(0)])
    assert reason({CLASSIC_MEMORY: "17k"}, node) is Reason.CARD_TOO_SMALL
    assert placed({CLASSIC_MEMORY: "16k"}, node) == (("GPU-node-a-0",),)


# Who serves whom.


def test_a_plugin_gets_only_pods_that_count_in_the_name_that_it_serves() -> None:
    assert reason({VOLCANO_COUNT: "1"}, HAMI_NODE) is Reason.OTHER_RESOURCE
    assert reason({GPU: "1"}, VOLCANO_NODE) is Reason.OTHER_RESOURCE
    assert placed({VOLCANO_COUNT: "1"}, VOLCANO_NODE) == placed({GPU: "1"}, HAMI_NODE) == (("GPU-0",),)


@pytest.mark.parametrize("limits", [{GPU: "1"}, {VOLCANO_COUNT: "1"}, {CLASSIC_COUNT: "1"}, {VOLCANO_MEMORY: "1"}])
def test_our_own_agent_serves_all_names(limits: Mapping[str, object]) -> None:
    assert placed(limits, a_node_object("node-a", [a_card(0)])) == (("GPU-node-a-0",),)


# Units and defaults.


def test_memory_is_in_the_units_of_the_settings() -> None:
    dialects = dialects_with(resource_memory_unit_mib=1_024, volcano_memory_unit_mib=256)
    assert demand_of({GPU: "1", MEMORY: "4"}, dialects).memory_mib == 4_096
    assert demand_of({VOLCANO_COUNT: "1", VOLCANO_MEMORY: "4"}, dialects).memory_mib == 1_024
    assert demand_of({CLASSIC_MEMORY: "4"}, dialects).memory_mib == 1_024


def test_memory_beyond_any_card_is_refused_in_units_too() -> None:
    with pytest.raises(BadInput, match="16385 is more than 16384; it is memory per card in units of 1024 MiB"):
        demand_of({GPU: "1", MEMORY: "16385"}, dialects_with(resource_memory_unit_mib=1_024))


def test_defaults_hold_for_volcanos_words_too_and_the_classic_ones_have_none() -> None:
    dialects = dialects_with(default_gpus=2, default_memory_mib=5_000, default_cores=20)
    assert demand_of({VOLCANO_MEMORY: "3k"}, dialects) == Demand(2, 3_000, cores=20, at_most_card=True)
    assert demand_of({VOLCANO_COUNT: "1"}, dialects) == Demand(1, 5_000, cores=20, at_most_card=True)
    assert demand_of({CLASSIC_COUNT: "1"}, dialects) == Demand(1, exclusive=True)


def test_what_a_container_left_out_is_known() -> None:
    limits = [{VOLCANO_MEMORY: "1"}, {VOLCANO_COUNT: "1"}, {GPU: "1", PERCENTAGE: "10", CORES: "0"}]
    pod = a_pod_object(containers=[a_container(f"c{number}", each) for number, each in enumerate(limits)])
    assert [each and set(each.defaults) for each in container_requests(pod, DIALECTS)] == [
        {"gpus", "cores"},
        {"memory", "cores"},
        set(),
    ]


def test_names_that_are_empty_do_not_exist() -> None:
    dialects = dialects_with(volcano_classic_memory="", volcano_classic_count="")
    assert pod_request(a_pod_object(limits={CLASSIC_COUNT: "1", CLASSIC_MEMORY: "1k"}), dialects) is None
    assert "" not in dialects.resources()


def test_a_number_of_thousands_of_digits_is_refused() -> None:
    """Python refuses to convert those with an error of another kind."""
    for amount in ("1" * 65, "9" * 5_000, 10**5_000):
        with pytest.raises(BadInput, match="vgpu-memory: it is too long for a number"):
            demand_of({VOLCANO_COUNT: "1", VOLCANO_MEMORY: amount})
