"""What a node's agent answers: read as it is meant, and refused in one sentence whatever else it is."""

import copy
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.formats.node_usage import read_node_usage
from gpuledger.model.errors import BadInput
from gpuledger.model.node import CardUsage, ContainerUsage

Json = dict[str, Any]

ANSWER: Json = {
    "node": "gpu-1",
    "at": "2026-11-26T19:00:00Z",
    "cards": [
        {"uuid": "GPU-1", "index": 0, "memoryUsedMiB": 1200, "utilizationPercent": 37},
        {"uuid": "GPU-2", "index": 1, "memoryUsedMiB": None, "utilizationPercent": None},
    ],
    "containers": [
        {
            "namespace": "a",
            "pod": "p",
            "podUID": "uid-p",
            "container": "main",
            "uuid": "GPU-1",
            "memoryHeldMiB": 3000,
            "memoryUsedMiB": 1200,
            "memoryLimitMiB": None,
            "coresHeld": 30,
            "utilizationPercent": 112,
            "lastKernelSecondsAgo": 4.4,
            "paused": False,
            "source": "region",
        }
    ],
}


def test_it_is_read_as_it_is_meant() -> None:
    found = read_node_usage(ANSWER, "gpu-1")
    assert (found.node_name, found.at) == ("gpu-1", "2026-11-26T19:00:00Z")
    assert found.cards == (CardUsage("GPU-1", 1200, 37), CardUsage("GPU-2", None, None))
    assert found.containers == (ContainerUsage("uid-p", "main", "GPU-1", 1200, None, 100, 4, False, "region"),)


def test_of_another_node_it_is_refused() -> None:
    with pytest.raises(BadInput, match="answers for node 'gpu-1', not for 'gpu-2'"):
        read_node_usage(ANSWER, "gpu-2")


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("node", None, "the answer: node is no text"),
        ("node", "x" * 254, "the answer: node is no text"),
        ("at", "today", "at is no time"),
        ("at", "2026-11-26T19:00:00", "at is no time with a zone"),
        ("cards", {}, "cards is no list"),
        ("cards.0", [], r"cards\[0\] is no object"),
        ("cards.1.uuid", 7, r"cards\[1\]: uuid is no text"),
        ("cards.0.memoryUsedMiB", -1, "memoryUsedMiB is no number"),
        ("cards.0.memoryUsedMiB", 2**60, "memoryUsedMiB is no number"),
        ("cards.0.utilizationPercent", True, "utilizationPercent is no number"),
        ("containers", None, "containers is no list"),
        ("containers.0.podUID", "", r"containers\[0\]: podUID is no text"),
        ("containers.0.lastKernelSecondsAgo", "4", "lastKernelSecondsAgo is no number"),
        ("containers.0.paused", None, "paused is neither true nor false"),
        ("containers.0.source", "a guess", "source is none of region, nvml"),
    ],
)
def test_what_can_not_be_read_is_said_with_its_place(path: str, value: object, text: str) -> None:
    with pytest.raises(BadInput, match=text):
        read_node_usage(changed(path, value), "gpu-1")


def changed(path: str, value: object) -> Json:
    """Return the answer with another value in one place."""
    answer: Any = copy.deepcopy(ANSWER)
    inner, (*way, last) = answer, path.split(".")
    for step in way:
        inner = inner[int(step)] if isinstance(inner, list) else inner[step]
    inner[int(last) if isinstance(inner, list) else last] = value
    return dict(answer)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
PATHS = [
    *ANSWER,
    "cards.0",
    "containers.0",
    *(f"cards.1.{key}" for key in ANSWER["cards"][1]),
    *(f"containers.0.{key}" for key in ANSWER["containers"][0]),
]


@given(json_values)
def test_nothing_but_bad_input_comes_of_anything(answer: object) -> None:
    with pytest.raises(BadInput):
        read_node_usage(answer, "gpu-1")


@given(st.sampled_from(PATHS), json_values)
def test_of_an_answer_with_anything_in_one_place_only_what_is_in_bounds_is_taken(path: str, value: object) -> None:
    try:
        found = read_node_usage(changed(path, value), "gpu-1")
    except BadInput:
        return
    for card in found.cards:
        assert card.utilization_percent is None or 0 <= card.utilization_percent <= 100
    for container in found.containers:
        amounts = (container.memory_used_mib, container.memory_limit_mib, container.last_kernel_s)
        assert all(amount is None or (isinstance(amount, int) and 0 <= amount <= 2**40) for amount in amounts)
        assert max(len(text) for text in (container.pod_uid, container.container, container.uuid)) <= 253


@given(st.binary(max_size=60))
def test_bytes_that_are_json_by_chance_are_no_answer(text: bytes) -> None:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return
    with pytest.raises(BadInput):
        read_node_usage(found, "gpu-1")
