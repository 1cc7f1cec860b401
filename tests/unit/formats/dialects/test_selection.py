"""Annotations on pods by which they choose cards: every name, every prefix, and words that mean nothing."""

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from builders import a_card
from fakes.dialects import an_annotated_pod, request_of
from fakes.objects import DIALECTS, GPU, a_container, a_pod_object
from gpuledger.formats.dialects.request import pod_request
from gpuledger.formats.dialects.selection import MAX_CHARACTERS, NOTHING_CHOSEN, PREFIXES, Selection, selection
from gpuledger.formats.kubernetes.pod import pod_facts
from gpuledger.model.card import CardFilter
from gpuledger.model.errors import BadInput
from gpuledger.model.request import MAX_ENTRIES


def chosen(**annotations: object) -> Selection:
    """Return what is chosen by annotations under `nvidia.com/`; `_` stands for `-`."""
    return selecting({f"nvidia.com/{name.replace('_', '-')}": value for name, value in annotations.items()})


def selecting(annotations: Mapping[str, object]) -> Selection:
    return selection(an_annotated_pod(annotations))


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("use-gputype", "A100,V100", Selection(CardFilter(use_models=("A100", "V100")))),
        ("nouse-gputype", "1080", Selection(CardFilter(avoid_models=("1080",)))),
        ("use-gpuuuid", "GPU-1,GPU-2", Selection(CardFilter(use_uuids=("GPU-1", "GPU-2")))),
        ("nouse-gpuuuid", "GPU-3", Selection(CardFilter(avoid_uuids=("GPU-3",)))),
        ("vgpu-mode", "hami-core", Selection(CardFilter(modes=("hami-core",)))),
        ("numa-bind", "true", Selection(one_numa_node=True)),
        ("node-scheduler-policy", "spread", Selection(node_policy="spread")),
        ("gpu-scheduler-policy", "binpack", Selection(card_policy="binpack")),
    ],
)
def test_every_annotation_is_read_under_every_prefix(prefix: str, name: str, value: str, expected: Selection) -> None:
    assert selecting({f"{prefix}/{name}": value}) == expected


def test_the_prefixes_are_ours_hamis_and_volcanos() -> None:
    assert set(PREFIXES) == {"gpuledger.dev", "nvidia.com", "hami.io", "volcano.sh"}


def test_volcanos_own_names_of_uuids_are_read() -> None:
    found = selecting({"volcano.sh/vgpu-use-gpuuuid": "GPU-1", "volcano.sh/vgpu-nouse-gpuuuid": "GPU-2"})
    assert found.cards == CardFilter(use_uuids=("GPU-1",), avoid_uuids=("GPU-2",))


@pytest.mark.parametrize(
    ("name", "is_meant"),
    [
        ("NVIDIA A100-SXM4-80GB", True),
        ("NVIDIA H100 80GB HBM3", True),
        ("Tesla T4", False),
    ],
)
def test_volcanos_names_of_cards_are_models_as_labels_of_nodes_have_them(name: str, is_meant: bool) -> None:
    chosen = selecting({"volcano.sh/card.name": "NVIDIA-A100-SXM4-80GB|NVIDIA-H100"}).cards
    assert chosen.admits(replace(a_card(0), model=name)) is is_meant


def test_a_part_of_a_card_is_no_name_of_one() -> None:
    sentence = "'NVIDIA-H100/mps-10g*1/8' names a part of a card; write NVIDIA-H100, and ask for memory"
    with pytest.raises(BadInput, match=re.escape(sentence)):
        selecting({"volcano.sh/card.name": "A100|NVIDIA-H100/mps-10g*1/8"})


def test_who_says_nothing_chooses_nothing() -> None:
    assert selection(a_pod_object()) == NOTHING_CHOSEN
    assert selection({"metadata": None}) == selection({}) == NOTHING_CHOSEN
    assert selecting({"example.com/use-gputype": "A100"}) == NOTHING_CHOSEN


@pytest.mark.parametrize("value", ["", " ", ",", " , ,"])
def test_an_empty_list_is_no_condition(value: str) -> None:
    assert chosen(use_gputype=value, nouse_gpuuuid=value, gpu_scheduler_policy=value) == NOTHING_CHOSEN


def test_of_lists_under_several_prefixes_all_entries_count_once() -> None:
    found = selecting({"gpuledger.dev/use-gpuuuid": "GPU-2, GPU-1", "nvidia.com/use-gpuuuid": "GPU-1 ,GPU-3"})
    assert found.cards.use_uuids == ("GPU-2", "GPU-1", "GPU-3")


@pytest.mark.parametrize(("text", "bound"), [("true", True), ("1", True), ("T", True), ("false", False), ("0", False)])
def test_numa_bind_is_read_as_go_reads_it(text: str, bound: bool) -> None:
    assert chosen(numa_bind=text).one_numa_node is bound


def test_numa_bind_under_one_prefix_is_enough() -> None:
    assert selecting({"gpuledger.dev/numa-bind": "false", "nvidia.com/numa-bind": "true"}).one_numa_node


@pytest.mark.parametrize("text", ["yes", "", "2", "tRUE"])
def test_numa_bind_that_is_neither_true_nor_false_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=f"annotation nvidia.com/numa-bind: {text!r} is neither true nor false"):
        chosen(numa_bind=text)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("binpack", "binpack"),
        ("spread", "spread"),
        ("spread,binpack", "spread"),
    ],
)
def test_a_policy_is_the_first_that_is_known(text: str, policy: str) -> None:
    found = chosen(gpu_scheduler_policy=text)
    assert found.card_policy == policy
    assert bool(found.warnings) == ("," in text)
    found = chosen(node_scheduler_policy=text)
    assert found.node_policy == policy
    assert bool(found.warnings) == ("," in text)


@pytest.mark.parametrize("text", ["topology", "topology-aware"])
def test_who_wants_cards_by_topology_gets_the_node_so_too_unless_another_policy_is_named(text: str) -> None:
    assert chosen(gpu_scheduler_policy=text) == Selection(node_policy="topology", card_policy="topology")
    assert chosen(node_scheduler_policy=text) == Selection(node_policy="topology")
    named = chosen(gpu_scheduler_policy=text, node_scheduler_policy="spread")
    assert named == Selection(node_policy="spread", card_policy="topology")


@pytest.mark.parametrize("word", ["mutex", "numa", "numa-bind"])
def test_hamis_policies_that_are_something_else_here_are_passed_over_with_a_word(word: str) -> None:
    found = chosen(gpu_scheduler_policy=f"{word},spread")
    assert found.card_policy == "spread"
    (warning,) = found.warnings
    assert warning.startswith(f"annotation nvidia.com/gpu-scheduler-policy: {word} has no effect; ")
    assert chosen(gpu_scheduler_policy=word).card_policy == ""


def test_our_own_annotation_goes_before_those_of_others() -> None:
    found = selecting({"gpuledger.dev/node-scheduler-policy": "spread", "hami.io/node-scheduler-policy": "binpack"})
    assert found.node_policy == "spread"


@pytest.mark.parametrize("word", ["bin-pack", "Spread", "best fit", "x" * 200])
def test_a_policy_that_nobody_knows_is_refused_with_those_that_there_are(word: str) -> None:
    with pytest.raises(BadInput) as caught:
        chosen(gpu_scheduler_policy=f"binpacked,{word}")
    assert "'binpacked' is not a policy; policies are binpack, spread, topology-aware, topology" in str(caught.value)
    with pytest.raises(BadInput) as caught:
        chosen(node_scheduler_policy=word)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", ["use-gputype", "nouse-gputype", "use-gpuuuid", "nouse-gpuuuid", "vgpu-mode"])
def test_more_entries_than_anybody_means_are_refused(name: str) -> None:
    entries = [f"GPU-{number}" for number in range(MAX_ENTRIES)]
    selecting({f"nvidia.com/{name}": ",".join([*entries, *entries])})
    with pytest.raises(BadInput, match=f"annotation nvidia.com/{name} has more than {MAX_ENTRIES} entries"):
        selecting({f"nvidia.com/{name}": ",".join([*entries, "GPU-x"])})


def test_a_longer_annotation_than_anybody_means_is_refused() -> None:
    with pytest.raises(BadInput, match=r"annotation nvidia\.com/use-gputype is longer than 16,384 characters"):
        selecting({"nvidia.com/use-gputype": "A" * (MAX_CHARACTERS + 1)})


def test_all_that_a_pod_chooses_cards_by_has_a_limit_together() -> None:
    """It stays in memory for as long as the pod waits, and there are twenty such annotations."""
    half = MAX_CHARACTERS // 2
    selecting({"nvidia.com/use-gputype": "A" * half, "nvidia.com/nouse-gputype": "B" * half})
    with pytest.raises(BadInput, match="annotations that choose cards have more than 16,384 characters together"):
        selecting(
            {"nvidia.com/use-gputype": "A" * half, "hami.io/use-gputype": "B" * half, "nvidia.com/vgpu-mode": "x"}
        )


def test_what_is_chosen_holds_for_every_container_and_each_keeps_its_kind() -> None:
    """What is said of models is about NVIDIA's cards."""
    pod = an_annotated_pod(
        {
            "gpuledger.dev/use-gputype": "A100",
            "nvidia.com/numa-bind": "true",
            "hami.io/gpu-scheduler-policy": "topology-aware",
        },
        a_container("a"),
        a_container("b", {"hygon.com/dcunum": "1"}),
    )
    request = request_of(pod)
    assert [each.wanted for each in request.shape] == [
        CardFilter(use_models=("A100",)),
        CardFilter(vendor="hygon"),
    ]
    assert all(each.one_numa_node for each in request.shape)
    assert (request.node_policy, request.card_policy) == ("topology", "topology")


def test_warnings_of_annotations_and_of_containers_are_told_together() -> None:
    pod = an_annotated_pod(
        {"hami.io/gpu-scheduler-policy": "mutex"},
        a_container("a", {GPU: "1", "nvidia.com/gpumem": "1", "nvidia.com/gpumem-percentage": "1"}),
    )
    assert [warning.split()[0] for warning in request_of(pod).warnings] == ["annotation", "container"]


def test_a_bad_word_is_why_the_request_can_not_be_read() -> None:
    pod = an_annotated_pod({"nvidia.com/numa-bind": "yes"}, a_container())
    facts = pod_facts(pod, DIALECTS)
    assert facts.request is None
    assert facts.bad_request == "annotation nvidia.com/numa-bind: 'yes' is neither true nor false"


def test_a_pod_that_asks_for_no_card_may_write_what_it_likes() -> None:
    pod = an_annotated_pod({"nvidia.com/numa-bind": "yes"}, a_container("web", {"cpu": "1"}))
    assert pod_request(pod, DIALECTS) is None
