"""What matters of a pod, its annotation included: whatever users write there, it is read or refused with a sentence."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_card, a_share
from fakes.objects import DIALECTS, GPU, MEMORY, a_pod_object
from gpuledger.formats.annotations import DEVICES_ANNOTATION, devices_annotation, read_devices
from gpuledger.formats.custom_resource.stored_card import MAX_CORES, MAX_MEMORY_MIB
from gpuledger.formats.kubernetes.pod import pod_facts
from gpuledger.model.errors import BadInput
from gpuledger.model.node import AnnotatedCard, PodFacts
from gpuledger.model.share import Pod

Json = dict[str, Any]
UUID = a_card().uuid


def facts(pod: Json, annotation: str | None = None) -> PodFacts:
    if annotation is not None:
        pod["metadata"]["annotations"] = {DEVICES_ANNOTATION: annotation}
    return pod_facts(pod, DIALECTS)


def device(**fields: Any) -> Json:
    return {"uuid": UUID, "memoryMiB": 1_000, "cores": 0} | fields


def test_the_annotation_reads_back_as_it_was_written() -> None:
    shares = [a_share(a_card(0), 4_000, 20), a_share(a_card(1), 1_000)]
    assert read_devices(devices_annotation(shares)) == (
        AnnotatedCard("main", a_card(0).uuid, 4_000, 20),
        AnnotatedCard("main", a_card(1).uuid, 1_000, 0),
    )


def test_no_cards_are_an_annotation_too() -> None:
    assert read_devices("{}") == ()
    assert facts(a_pod_object(), "{}").annotated == ()
    assert facts(a_pod_object()).annotated is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("null", "does not map containers to lists of cards"),
        ("[]", "does not map containers to lists of cards"),
        ('{"main": {}}', "does not map containers to lists of cards"),
        ('{"main": null}', "does not map containers to lists of cards"),
        ('{"main": [7]}', "container 'main': an entry is no card"),
        ('{"main": [{}]}', "container 'main': a card has no UUID"),
    ],
)
def test_an_annotation_of_another_form_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        read_devices(text)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"uuid": ""}, "a card has no UUID"),
        ({"uuid": None}, "a card has no UUID"),
        ({"uuid": "a" * 254}, "a card has no UUID"),
        ({"uuid": "../../nodes"}, "a card has no UUID"),
        ({"uuid": "\x1b[31m"}, "a card has no UUID"),
        ({"memoryMiB": -1}, f"{UUID}: memoryMiB is not between 0 and 16777216"),
        ({"memoryMiB": MAX_MEMORY_MIB + 1}, "memoryMiB is not between"),
        ({"memoryMiB": 10**30}, "memoryMiB is not between"),
        ({"memoryMiB": 1.5}, "memoryMiB is not between"),
        ({"memoryMiB": True}, "memoryMiB is not between"),
        ({"memoryMiB": "4k"}, "memoryMiB is not between"),
        ({"memoryMiB": None}, "memoryMiB is not between"),
        ({"cores": -1}, f"{UUID}: cores is not between 0 and 10000"),
        ({"cores": MAX_CORES + 1}, "cores is not between"),
        ({"cores": []}, "cores is not between"),
    ],
)
def test_a_card_that_can_not_be_is_refused(fields: Json, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        read_devices(json.dumps({"main": [device(**fields)]}))


def test_a_container_has_a_card_once() -> None:
    with pytest.raises(BadInput, match="the same card twice"):
        read_devices(json.dumps({"main": [device(), device(memoryMiB=1)]}))
    assert len(read_devices(json.dumps({"main": [device()], "other": [device()]}))) == 2


def test_a_sentence_about_an_annotation_is_short() -> None:
    with pytest.raises(BadInput) as caught:
        read_devices(json.dumps({"x" * 10_000: [7]}))
    assert len(str(caught.value)) < 200


def test_what_can_not_be_read_of_a_pod_is_said_in_its_facts() -> None:
    found = facts(a_pod_object("a", {GPU: "1", MEMORY: "4Gi"}, node_name="node-a"), "nonsense")
    assert (found.request, found.annotated) == (None, None)
    assert "4Gi has a unit of bytes" in found.bad_request
    assert "is not JSON" in found.bad_annotation


def test_the_facts_of_a_pod() -> None:
    found = facts(a_pod_object("a", node_name="node-a"), devices_annotation([a_share(a_card())]))
    assert (found.pod, found.node_name, found.finished) == (Pod("uid-a", "default", "a"), "node-a", False)
    assert found.request is not None
    assert found.request.names == ("main",)
    assert found.annotated == (AnnotatedCard("main", UUID, 1_000, 0),)
    assert (found.bad_request, found.bad_annotation) == ("", "")


@pytest.mark.parametrize(
    ("pod", "needs"),
    [
        (a_pod_object(), ""),
        (a_pod_object(node_name="node-a"), "node-a"),
        (a_pod_object(node_name="node-a", phase="Succeeded"), ""),
    ],
)
def test_a_pod_needs_cards_while_it_is_bound_and_has_not_ended(pod: Json, needs: str) -> None:
    assert facts(pod).needs_cards == needs


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
almost_cards = st.fixed_dictionaries(
    {"uuid": st.just(UUID) | anything, "memoryMiB": st.integers(-5, 2**25) | anything, "cores": st.integers(-5, 200)}
)
almost_devices = st.dictionaries(st.text(max_size=8), st.lists(almost_cards | anything, max_size=3), max_size=3)


@given(st.text(max_size=80) | (almost_devices | anything).map(lambda value: json.dumps(value)))
def test_any_annotation_is_cards_within_the_crds_limits_or_bad_input(text: str) -> None:
    found = facts(a_pod_object(node_name="node-a"), text)
    assert (found.annotated is None) == bool(found.bad_annotation)
    for card in found.annotated or ():
        assert 0 < len(card.uuid) <= 253
        assert 0 <= card.memory_mib <= MAX_MEMORY_MIB
        assert 0 <= card.cores <= MAX_CORES
    assert len(found.bad_annotation) < 500
