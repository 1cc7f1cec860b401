"""What HAMi's and Volcano's annotations say of a pod's cards: written for their plugins, and read from old pods."""

from typing import Any

import pytest

from builders import a_card
from fakes.dialects import an_annotated_pod
from fakes.objects import DIALECTS, a_container, a_pod_object
from gpuledger.formats.annotations import DEVICES_ANNOTATION
from gpuledger.formats.dialects.assignments import (
    CLASSIC_INDEX,
    HAMI_ALLOCATED,
    HAMI_TO_ALLOCATE,
    MAX_LENGTH,
    VOLCANO_ALLOCATED,
    VOLCANO_PHASE,
    VOLCANO_TO_ALLOCATE,
    hami_assignment,
    old_devices,
    unmatched,
    volcano_assignment,
)
from gpuledger.formats.dialects.vocabulary import HAMI_PHASE, AssignmentAnnotations
from gpuledger.formats.kubernetes.pod import pod_facts
from gpuledger.model.card import Amounts
from gpuledger.model.errors import BadInput
from gpuledger.model.node import AnnotatedCard, Dialect, OldDevices
from gpuledger.model.share import ContainerShare, Share

Json = dict[str, Any]


def nvidias(_uuid: str) -> AssignmentAnnotations:
    """Tell HAMi's words for a card: all are NVIDIA's."""
    return AssignmentAnnotations()


def share(uuid: str, *containers: ContainerShare) -> Share:
    return Share(uuid, Amounts(), False, containers)


def two_containers(*annotations: tuple[str, str], init: bool = False) -> Json:
    """Return a pod of the containers a and b, of which a may be an init container."""
    first, second = a_container("a"), a_container("b")
    if init:
        return an_annotated_pod(dict(annotations), second, initContainers=[first])
    return an_annotated_pod(dict(annotations), first, second)


# Writing. The texts are those of HAMi's and Volcano's own documents.


@pytest.mark.parametrize(
    ("containers", "shares", "text"),
    [
        (
            ["a", "b"],
            [share("GPU-a", ContainerShare("a", 3_000, 0), ContainerShare("b", 5_000, 0))],
            "GPU-a,NVIDIA,3000,0:;GPU-a,NVIDIA,5000,0:;",
        ),
        (["proxy", "main"], [share("GPU-a", ContainerShare("main", 3_000, 30))], ";GPU-a,NVIDIA,3000,30:;"),
        (
            ["main", "proxy"],
            [share("GPU-a", ContainerShare("main", 1, 2)), share("GPU-b", ContainerShare("main", 3, 4))],
            "GPU-a,NVIDIA,1,2:GPU-b,NVIDIA,3,4:;;",
        ),
    ],
)
def test_hamis_text_closes_every_container_the_ones_without_cards_too(
    containers: list[str], shares: list[Share], text: str
) -> None:
    assert hami_assignment(containers, shares, nvidias, "node-a", 1_700_000_000) == {
        "hami.io/vgpu-node": "node-a",
        "hami.io/vgpu-time": "1700000000",
        "hami.io/vgpu-devices-to-allocate": text,
        "hami.io/vgpu-devices-allocated": text,
        "hami.io/bind-time": "1700000000",
        "hami.io/bind-phase": "allocating",
    }


@pytest.mark.parametrize(
    ("containers", "text"),
    [
        (["main"], "GPU-68e5,NVIDIA,2875,100:"),
        (["main", "web"], "GPU-68e5,NVIDIA,2875,100:;"),
        (["web", "main"], ";GPU-68e5,NVIDIA,2875,100:"),
    ],
)
def test_volcanos_text_joins_the_containers(containers: list[str], text: str) -> None:
    shares = [share("GPU-68e5", ContainerShare("main", 2_875, 100))]
    assert volcano_assignment(containers, shares, "node-a", 1_700_000_000, 1) == {
        "volcano.sh/vgpu-node": "node-a",
        "volcano.sh/vgpu-time": "1700000000",
        "volcano.sh/vgpu-ids-new": text,
        "volcano.sh/devices-to-allocate": text,
        "volcano.sh/bind-time": "1700000000",
        "volcano.sh/bind-phase": "allocating",
    }


def test_volcanos_memory_is_in_units_and_rounded_up_so_that_no_limit_is_less_than_the_share() -> None:
    shares = [share("GPU-a", ContainerShare("main", 1_025, 0)), share("GPU-b", ContainerShare("main", 2_048, 0))]
    found = volcano_assignment(["main"], shares, "node-a", 0, 1_024)
    assert found[VOLCANO_ALLOCATED] == "GPU-a,NVIDIA,2,0:GPU-b,NVIDIA,2,0:"


# Whose plugin has still to find a pod.


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({HAMI_PHASE: "allocating", HAMI_TO_ALLOCATE: "GPU-a,NVIDIA,1,0:GPU-b,NVIDIA,1,0:;"}, (Dialect.HAMI, 0)),
        ({HAMI_PHASE: "success", HAMI_TO_ALLOCATE: "GPU-a,NVIDIA,1,0:;"}, None),
        ({HAMI_PHASE: "allocating", HAMI_TO_ALLOCATE: ";"}, (Dialect.HAMI, 0)),
        ({HAMI_TO_ALLOCATE: "GPU-a,NVIDIA,1,0:;"}, None),
        ({VOLCANO_PHASE: "allocating", VOLCANO_TO_ALLOCATE: "GPU-a,NVIDIA,1,0:;"}, (Dialect.VOLCANO, 1)),
        ({VOLCANO_PHASE: "failed", VOLCANO_TO_ALLOCATE: "GPU-a,NVIDIA,1,0:;"}, None),
        ({HAMI_PHASE: "failed", VOLCANO_TO_ALLOCATE: "GPU-a,NVIDIA,1,0:;"}, None),
        ({VOLCANO_PHASE: "allocating", VOLCANO_TO_ALLOCATE: 7}, None),
        ({}, None),
    ],
)
def test_a_pod_is_unmatched_while_its_plugin_has_cards_to_give_it(
    annotations: Json, expected: tuple[Dialect, int] | None
) -> None:
    assert unmatched(an_annotated_pod(annotations, a_container())) == expected


def test_what_is_written_is_unmatched_with_as_many_cards_as_the_containers_get() -> None:
    shares = [
        share("GPU-a", ContainerShare("a", 1, 0), ContainerShare("b", 1, 0)),
        share("GPU-b", ContainerShare("b", 1, 0)),
    ]
    written = hami_assignment(["a", "b"], shares, nvidias, "node-a", 0)
    assert unmatched(two_containers(*written.items())) == (Dialect.HAMI, 0)
    written = volcano_assignment(["b"], shares, "node-a", 0, 1)
    assert unmatched(two_containers(*written.items(), init=True)) == (Dialect.VOLCANO, 2)


# Reading what other systems have written.


def test_hamis_annotation_tells_the_cards_of_init_containers_first() -> None:
    text = "GPU-a,NVIDIA,3000,30:;GPU-a,NVIDIA,5000,0:GPU-b,NVIDIA,1,0:;"
    for init in (False, True):
        assert old_devices(two_containers((HAMI_ALLOCATED, text), init=init), 1) == OldDevices(
            HAMI_ALLOCATED,
            (
                AnnotatedCard("a", "GPU-a", 3_000, 30),
                AnnotatedCard("b", "GPU-a", 5_000, 0),
                AnnotatedCard("b", "GPU-b", 1, 0),
            ),
        )


@pytest.mark.parametrize("text", [";GPU-a,NVIDIA,3000,30:;", ";GPU-a,NVIDIA,3000,30", ";GPU-a,NVIDIA,3000,30,extra:;"])
def test_a_container_without_cards_is_an_empty_segment(text: str) -> None:
    found = old_devices(two_containers((HAMI_ALLOCATED, text)), 1)
    assert found == OldDevices(HAMI_ALLOCATED, (AnnotatedCard("b", "GPU-a", 3_000, 30),))


def test_volcanos_annotation_leaves_init_containers_out_and_counts_memory_in_units() -> None:
    text = "GPU-68e5,NVIDIA,2875,100:"
    assert old_devices(two_containers((VOLCANO_ALLOCATED, text), init=True), 10) == OldDevices(
        VOLCANO_ALLOCATED, (AnnotatedCard("b", "GPU-68e5", 28_750, 100),)
    )
    assert old_devices(two_containers((VOLCANO_ALLOCATED, f";{text}")), 1) == OldDevices(
        VOLCANO_ALLOCATED, (AnnotatedCard("b", "GPU-68e5", 2_875, 100),)
    )


def test_what_is_still_to_be_allocated_says_nothing_of_an_old_pods_cards() -> None:
    assert old_devices(two_containers((HAMI_TO_ALLOCATE, "GPU-a,NVIDIA,1,0:;")), 1) is None


def test_the_first_plugin_of_volcano_tells_numbers() -> None:
    pod = two_containers((CLASSIC_INDEX, "3, 1"))
    assert old_devices(pod, 1) == OldDevices(CLASSIC_INDEX, indexes=(3, 1))


def test_hamis_annotation_goes_before_volcanos_and_both_before_numbers() -> None:
    all_three = [(CLASSIC_INDEX, "0"), (VOLCANO_ALLOCATED, "GPU-b,NVIDIA,1,0:"), (HAMI_ALLOCATED, "GPU-a,NVIDIA,1,0:;")]
    found = [old_devices(two_containers(*all_three[:count]), 1) for count in (0, 1, 2, 3)]
    assert [each and each.annotation for each in found] == [None, CLASSIC_INDEX, VOLCANO_ALLOCATED, HAMI_ALLOCATED]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("GPU-a,NVIDIA,1:;", "container 'a': a card has 3 fields, not 4"),
        ("GPU-a;", "container 'a': a card has 1 fields, not 4"),
        (",NVIDIA,1,0:;", "container 'a': a card has no UUID"),
        ("GPU a,NVIDIA,1,0:;", "container 'a': a card has no UUID"),
        ("GPU-a[group2-3],NVIDIA,1,0:;", "container 'a': a card has no UUID"),
        (";GPU-a,NVIDIA,x,0:;", "container 'b', card GPU-a: its memory is not between 0 and"),
        ("GPU-a,NVIDIA,-1,0:;", "container 'a', card GPU-a: its memory is not between 0 and"),
        ("GPU-a,NVIDIA,1e3,0:;", "container 'a', card GPU-a: its memory is not between 0 and"),
        ("GPU-a,NVIDIA,99999999999,0:;", "container 'a', card GPU-a: its memory is not between 0 and"),
        ("GPU-a,NVIDIA,1,:;", "container 'a', card GPU-a: its cores is not between 0 and"),
        ("GPU-a,NVIDIA,1,0:GPU-a,NVIDIA,2,0:;", "gives a container the same card twice"),
        (";;GPU-a,NVIDIA,1,0:;", "speaks of more containers than the pod has"),
    ],
)
@pytest.mark.parametrize("name", [HAMI_ALLOCATED, VOLCANO_ALLOCATED])
def test_an_assignment_of_another_form_is_refused(name: str, text: str, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        old_devices(two_containers((name, text)), 1)
    assert str(caught.value).startswith(f"annotation {name}")
    assert sentence in str(caught.value)


def test_memory_in_units_is_bounded_in_mib() -> None:
    with pytest.raises(BadInput, match="its memory is not between 0 and 16384"):
        old_devices(two_containers((VOLCANO_ALLOCATED, "GPU-a,NVIDIA,16385,0:")), 1_024)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [(text, ": a number is not between 0 and 1023") for text in ("", "a", "-1", "1.5", "1,,2", "1024", "1,2,")]
    + [("1,2,1", " names a card twice")],
)
def test_numbers_that_are_none_or_are_named_twice_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=f"annotation {CLASSIC_INDEX}{sentence}"):
        old_devices(two_containers((CLASSIC_INDEX, text)), 1)


@pytest.mark.parametrize("value", [7, None, ["GPU-a"], "x" * (MAX_LENGTH + 1)])
def test_what_no_annotation_can_be_is_as_if_it_were_not_there(value: object) -> None:
    assert old_devices(an_annotated_pod({HAMI_ALLOCATED: value}, a_container()), 1) is None


# Into the facts of a pod.


def test_our_own_annotation_goes_before_those_of_others() -> None:
    pod = an_annotated_pod({DEVICES_ANNOTATION: "{}", HAMI_ALLOCATED: "GPU-a,NVIDIA,1,0:;"}, a_container())
    facts = pod_facts(pod, DIALECTS)
    assert (facts.annotated, facts.old, facts.bad_annotation) == ((), None, "")


def test_an_old_annotation_is_a_fact_of_the_pod() -> None:
    pod = an_annotated_pod({HAMI_ALLOCATED: f"{a_card().uuid},NVIDIA,4000,0:;"}, a_container())
    assert pod_facts(pod, DIALECTS).old == OldDevices(HAMI_ALLOCATED, (AnnotatedCard("main", a_card().uuid, 4_000, 0),))
    assert pod_facts(a_pod_object(), DIALECTS).old is None


def test_an_old_annotation_that_can_not_be_read_is_said_and_does_not_cost_the_request() -> None:
    facts = pod_facts(an_annotated_pod({VOLCANO_ALLOCATED: "GPU-a"}, a_container()), DIALECTS)
    assert facts.bad_annotation == f"annotation {VOLCANO_ALLOCATED}, container 'main': a card has 1 fields, not 4"
    assert facts.request is not None
