"""What a pod's words mean, and what it is told when they mean nothing."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest

from builders import a_card, a_share
from fakes.objects import CORES, DIALECTS, GPU, MEMORY, PERCENTAGE, a_container, a_pod_object
from gpuledger.configuration.dialects import dialects_of
from gpuledger.configuration.settings import Settings
from gpuledger.formats.annotations import DEVICES_ANNOTATION, devices_annotation
from gpuledger.formats.dialects import request as request_format
from gpuledger.formats.dialects.request import MOST_CONTAINERS, pod_request
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.kubernetes.pod import (
    annotated_cards,
    bound_node,
    created_at,
    has_started,
    is_being_deleted,
    is_finished,
    is_unschedulable,
    pod_identity,
    resource_version,
    was_tried,
)
from gpuledger.formats.quantity import whole_number
from gpuledger.model.errors import BadInput
from gpuledger.model.request import Demand, Lifetime, PodRequest
from gpuledger.model.share import ContainerShare, Pod, Share

Json = dict[str, Any]


def dialects_with(**settings: Any) -> Dialects:
    """Return the words as these settings have them."""
    return dialects_of(Settings().changed(settings))


def request_of(*containers: Json, dialects: Dialects = DIALECTS, **spec: Any) -> PodRequest | None:
    pod = a_pod_object(containers=containers)
    pod["spec"] |= spec
    return pod_request(pod, dialects)


def demand(limits: Mapping[str, object], dialects: Dialects = DIALECTS) -> Demand:
    request = request_of(a_container("main", limits), dialects=dialects)
    assert request is not None
    (found,) = request.shape
    return replace(found, resource="")


@pytest.mark.parametrize(
    ("limits", "asked", "whole"),
    [
        pytest.param({GPU: "2"}, Demand(cards=2, exclusive=True), True, id="a number alone: whole cards"),
        pytest.param({GPU: "1", MEMORY: "4000"}, Demand(cards=1, memory_mib=4_000), False, id="memory: MiB of each"),
        pytest.param({GPU: "1", PERCENTAGE: "50"}, Demand(cards=1, memory_percent=50), False, id="or percent"),
        pytest.param({GPU: "1", PERCENTAGE: "100"}, Demand(cards=1, exclusive=True), True, id="all memory: whole"),
        pytest.param(
            {GPU: "1", PERCENTAGE: "100", CORES: "50"}, Demand(cards=1, cores=50), False, id="but not beside cores"
        ),
        pytest.param(
            {GPU: "1", MEMORY: "4k", CORES: "100"},
            Demand(cards=1, memory_mib=4_000, cores=100, exclusive=True),
            False,
            id="all cores: alone on the card",
        ),
        pytest.param({GPU: "1", CORES: "30"}, Demand(cards=1, cores=30), False, id="cores alone: all memory, shared"),
        pytest.param({GPU: "1", CORES: "0"}, Demand(cards=1), False, id="who writes 0 cores shares all memory"),
        pytest.param(
            {GPU: "1", MEMORY: "4k", PERCENTAGE: "50"}, Demand(1, 4_000), False, id="MiB go before a percentage"
        ),
        pytest.param(
            {GPU: "1", MEMORY: "1k", "nvidia.com/priority": "1"}, Demand(1, 1_000), False, id="a priority says nothing"
        ),
    ],
)
def test_what_a_containers_words_ask_for(limits: Json, asked: Demand, whole: bool) -> None:
    assert demand(limits) == asked
    assert demand(limits).whole == whole


@pytest.mark.parametrize("text", ["4k", "4000", 4000, "4e3", "4000000m"])
def test_amounts_are_read_as_the_api_server_spells_them(text: object) -> None:
    assert demand({GPU: "1", MEMORY: text}).memory_mib == 4_000


@pytest.mark.parametrize("limits", [{MEMORY: "1k"}, {PERCENTAGE: "10"}, {CORES: "10"}])
def test_who_names_no_number_gets_one_card_or_the_default(limits: dict[str, str]) -> None:
    assert demand(limits).cards == 1
    assert demand(limits, dialects_with(default_gpus=3)).cards == 3


def test_the_default_memory_is_for_those_that_name_none() -> None:
    dialects = dialects_with(default_memory_mib=5_000)
    assert demand({GPU: "1"}, dialects) == Demand(cards=1, memory_mib=5_000)
    assert demand({GPU: "1", MEMORY: "1k"}, dialects).memory_mib == 1_000
    assert demand({GPU: "1", PERCENTAGE: "50"}, dialects) == Demand(cards=1, memory_percent=50)


def test_the_default_cores_are_for_those_that_name_none() -> None:
    dialects = dialects_with(default_cores=20)
    assert demand({GPU: "1"}, dialects) == Demand(cards=1, cores=20)
    assert demand({GPU: "1", CORES: "0"}, dialects).cores == 0


@pytest.mark.parametrize("limits", [{}, {"cpu": "4"}, {GPU: "0"}, {"nvidia.com/priority": "1"}])
def test_who_asks_for_no_card_is_not_our_business(limits: dict[str, str]) -> None:
    assert request_of(a_container("main", limits)) is None


def test_limits_count_and_requests_where_there_is_no_limit() -> None:
    both = {"name": "main", "resources": {"limits": {GPU: "2"}, "requests": {GPU: "1", MEMORY: "1k"}}}
    assert request_of(both) == PodRequest(("main",), (Demand(cards=2, memory_mib=1_000, resource=GPU),))


@pytest.mark.parametrize("resources", [{}, {"resources": None}, {"resources": {"limits": None, "requests": None}}])
def test_a_container_without_resources_asks_for_nothing(resources: Json) -> None:
    assert request_of({"name": "main", **resources}) is None


def test_init_containers_and_sidecars_keep_their_lifetimes_and_order() -> None:
    init = [a_container("prepare"), a_container("proxy", restartPolicy="Always"), a_container("no-gpu", {})]
    found = request_of(a_container("main"), initContainers=init)
    assert found is not None
    assert found.names == ("prepare", "proxy", "main")
    assert [each.lifetime for each in found.shape] == [Lifetime.INIT, Lifetime.SIDECAR, Lifetime.MAIN]


def test_own_resource_names_are_read_and_others_are_not() -> None:
    dialects = dialects_with(resource_count="example.com/gpu", resource_memory="example.com/mib")
    pod = a_pod_object(limits={"example.com/gpu": "1", "example.com/mib": "10", GPU: "7"})
    asked = Demand(cards=1, memory_mib=10, resource="example.com/gpu")
    assert pod_request(pod, dialects) == PodRequest(("main",), (asked,))


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (
            {GPU: "1", MEMORY: "4Gi"},
            "container main, nvidia.com/gpumem: 4Gi has a unit of bytes; write a plain whole number "
            "(a number of MiB per card)",
        ),
        (
            {GPU: "1", PERCENTAGE: "101"},
            "container main, nvidia.com/gpumem-percentage: 101 is more than 100; "
            "it is a percentage of each card's memory",
        ),
        (
            {GPU: "1", CORES: "1k"},
            "container main, nvidia.com/gpucores: 1k is more than 100; it is a percentage of each card's cores",
        ),
        ({GPU: "500m"}, "container main, nvidia.com/gpu: 500m is not a whole number"),
        ({GPU: "-1"}, "container main, nvidia.com/gpu: -1 is negative"),
        ({GPU: "one"}, "container main, nvidia.com/gpu: 'one' is not a number"),
        (
            {GPU: "0", MEMORY: "4k"},
            "container main asks for GPU memory or cores on 0 GPUs: set nvidia.com/gpu to 1 or more, or drop the rest",
        ),
    ],
)
def test_what_makes_no_sense_is_answered_with_what_to_write(limits: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        demand(limits)
    assert str(caught.value) == sentence


def test_memory_beyond_any_card_is_refused() -> None:
    with pytest.raises(BadInput, match="1T is more than 16777216"):
        demand({GPU: "1", MEMORY: "1T"})


def test_a_pod_is_who_its_metadata_says() -> None:
    pod = a_pod_object("a", uid="u")
    pod["spec"]["priority"] = -7
    assert pod_identity(pod) == Pod("u", "default", "a", -7)


@pytest.mark.parametrize("pod", [{}, {"metadata": {}}, {"metadata": None}, {"metadata": []}, {"metadata": {"uid": 1}}])
def test_something_else_is_no_pod(pod: Json) -> None:
    with pytest.raises(BadInput, match="not a pod"):
        pod_identity(pod)


def test_the_annotation_lists_each_containers_cards_in_order() -> None:
    cards = [a_card(0), a_card(1)]
    shares = [
        Share(cards[0].uuid, a_share(cards[0]).amounts, False, (ContainerShare("a", 1, 2), ContainerShare("b", 3, 4))),
        Share(cards[1].uuid, a_share(cards[1]).amounts, False, (ContainerShare("a", 5, 6),)),
    ]
    assert orjson.loads(devices_annotation(shares)) == {
        "a": [
            {"uuid": cards[0].uuid, "memoryMiB": 1, "cores": 2},
            {"uuid": cards[1].uuid, "memoryMiB": 5, "cores": 6},
        ],
        "b": [{"uuid": cards[0].uuid, "memoryMiB": 3, "cores": 4}],
    }


@pytest.mark.parametrize(
    ("phase", "finished"),
    [("Pending", False), ("Running", False), ("Unknown", False), ("Succeeded", True), ("Failed", True)],
)
def test_a_pod_is_finished_in_its_last_phases(phase: str, finished: bool) -> None:
    assert is_finished(a_pod_object(phase=phase)) is finished


@pytest.mark.parametrize("pod", [{}, {"metadata": None, "status": None, "spec": None}])
def test_of_a_pod_that_says_nothing_nothing_is_known(pod: Json) -> None:
    assert (is_finished(pod), has_started(pod), is_being_deleted(pod), is_unschedulable(pod)) == (False,) * 4
    assert (bound_node(pod), resource_version(pod), created_at(pod)) == ("", "", "")


def test_a_pod_says_which_state_of_it_this_is_when_it_was_created_and_whether_it_is_being_deleted() -> None:
    pod = a_pod_object(created="2030-01-01T00:00:07Z")
    pod["metadata"] |= {"resourceVersion": "17", "deletionTimestamp": "2030-01-01T00:00:09Z"}
    assert (resource_version(pod), created_at(pod), is_being_deleted(pod)) == ("17", "2030-01-01T00:00:07Z", True)
    assert not is_being_deleted(a_pod_object())


@pytest.mark.parametrize(
    ("kind", "reason", "unschedulable", "tried"),
    [
        ("PodScheduled", "Unschedulable", True, True),
        ("PodScheduled", "SchedulerError", False, True),
        ("PodScheduled", "SchedulingGated", False, False),
        ("Ready", "Unschedulable", False, False),
        ("PodScheduled", None, False, False),
    ],
)
def test_a_pod_is_unschedulable_when_a_scheduler_has_found_no_node(
    kind: str, reason: str | None, unschedulable: bool, tried: bool
) -> None:
    pod = a_pod_object()
    pod["status"]["conditions"] = [{"type": "Initialized", "status": "True"}, {"type": kind, "reason": reason}]
    assert (is_unschedulable(pod), was_tried(pod)) == (unschedulable, tried)


def test_the_annotated_cards_are_those_of_all_containers() -> None:
    first, second = a_card(0), a_card(1)
    shares = [a_share(first), replace(a_share(second), containers=(ContainerShare("other", 1, 0),))]
    pod = a_pod_object()
    pod["metadata"]["annotations"] = {DEVICES_ANNOTATION: devices_annotation(shares)}
    assert annotated_cards(pod) == {first.uuid, second.uuid}


@pytest.mark.parametrize("text", [None, "", "{", "[]", "null", '{"main": 1}', '{"main": [1]}', '{"main": [{}]}'])
def test_an_annotation_that_makes_no_sense_names_no_cards(text: str | None) -> None:
    pod = a_pod_object()
    pod["metadata"]["annotations"] = None if text is None else {DEVICES_ANNOTATION: text}
    assert annotated_cards(pod) == frozenset()


def test_a_pod_has_started_when_a_kubelet_took_it_up() -> None:
    assert has_started(a_pod_object(started=True, node_name="node-a"))
    assert not has_started(a_pod_object(node_name="node-a"))


def test_so_many_containers_of_a_pod_may_ask_for_cards_and_no_more() -> None:
    asking = [a_container(f"c{number}", {GPU: "1"}) for number in range(9)]
    others = [a_container(f"other{number}", {}) for number in range(20)]
    found = request_of(*others, *asking[:8])
    assert found is not None
    assert len(found.shape) == 8
    with pytest.raises(BadInput, match="more than 8 containers of this pod ask for GPUs: spread them"):
        request_of(*others, *asking[1:], initContainers=[asking[0]])
    assert request_of(*asking, dialects=dialects_with(most_containers=9))


def test_a_pod_with_more_containers_than_a_node_could_start_is_refused() -> None:
    """The names of all of them stay in memory for as long as it waits."""
    others = [a_container(f"c{number}", {}) for number in range(MOST_CONTAINERS)]
    asking = a_container("gpu", {GPU: "1"})
    assert request_of(*others[1:], asking)
    with pytest.raises(BadInput, match="the pod has more than 256 containers: spread them over several pods"):
        request_of(*others, asking)


def test_of_a_pod_with_thousands_of_containers_no_more_are_read_than_it_takes_to_refuse_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []

    def counting(text: object) -> int:
        read.append(str(text))
        return whole_number(text)

    monkeypatch.setattr(request_format, "whole_number", counting)
    with pytest.raises(BadInput):
        request_of(*(a_container(f"c{number}", {GPU: "1"}) for number in range(2_000)))
    assert len(read) == 9
