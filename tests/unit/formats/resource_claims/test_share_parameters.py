"""A claim's opaque configuration: each field, and each refusal's sentence."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.formats.custom_resource.stored_card import API_VERSION, MAX_MEMORY_MIB
from gpuledger.formats.resource_claims.demands import KEYS, LONGEST_ENTRY, ShareParameters, share_parameters
from gpuledger.model.errors import BadInput
from gpuledger.model.request import MAX_ENTRIES


def text(**parameters: Any) -> str:
    return json.dumps({"apiVersion": API_VERSION, "kind": "Share", **parameters})


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("memoryMiB", 1, ShareParameters(memory_mib=1)),
        ("memoryMiB", MAX_MEMORY_MIB, ShareParameters(memory_mib=MAX_MEMORY_MIB)),
        ("memoryPercent", 100, ShareParameters(memory_percent=100)),
        ("cores", 0, ShareParameters(cores=0)),
        ("cores", 100, ShareParameters(cores=100)),
        ("exclusive", False, ShareParameters(exclusive=False)),
        ("oneNUMANode", True, ShareParameters(one_numa_node=True)),
        ("models", ["A100", "H100"], ShareParameters(models=("A100", "H100"))),
        ("avoidModels", ["T4"], ShareParameters(avoid_models=("T4",))),
        ("uuids", ["GPU-1"], ShareParameters(uuids=("GPU-1",))),
        ("avoidUUIDs", ["GPU-2"], ShareParameters(avoid_uuids=("GPU-2",))),
        ("isolation", ["mps"], ShareParameters(isolation=("mps",))),
        ("isolation", [], ShareParameters()),
    ],
)
def test_each_field_is_read(field: str, value: Any, expected: ShareParameters) -> None:
    assert field in KEYS
    assert share_parameters([text(**{field: value})]) == expected


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ("null", "the parameters of the configuration are no object of kind Share"),
        ("[]", "the parameters of the configuration are no object of kind Share"),
        (
            '{"kind": "Share"}',
            "the configuration has apiVersion None and kind 'Share': write gpuledger.dev/v1alpha1 and Share",
        ),
        (
            '{"apiVersion": "gpuledger.dev/v1alpha1", "kind": ["Share"]}',
            "the configuration has apiVersion 'gpuledger.dev/v1alpha1' and kind ['Share']: "
            "write gpuledger.dev/v1alpha1 and Share",
        ),
        (text(memoryMiB=0), f"memoryMiB of the configuration is 0: write a whole number from 1 to {MAX_MEMORY_MIB}"),
        (
            text(memoryMiB="1"),
            f"memoryMiB of the configuration is '1': write a whole number from 1 to {MAX_MEMORY_MIB}",
        ),
        (text(memoryPercent=101), "memoryPercent of the configuration is 101: write a whole number from 1 to 100"),
        (text(cores=True), "cores of the configuration is True: write a whole number from 0 to 100"),
        (text(cores=1.5), "cores of the configuration is 1.5: write a whole number from 0 to 100"),
        (text(exclusive=1), "exclusive of the configuration is 1: write true or false"),
        (text(models="A100"), "models of the configuration is no list of words"),
        (text(models=[""]), "models of the configuration is no list of words"),
        (text(uuids=[1]), "uuids of the configuration is no list of words"),
        (
            text(models=["x"] * (MAX_ENTRIES + 1)),
            f"models of the configuration has more than {MAX_ENTRIES} words, or one that is too long",
        ),
        (
            text(models=["x" * (LONGEST_ENTRY + 1)]),
            f"models of the configuration has more than {MAX_ENTRIES} words, or one that is too long",
        ),
        (text(memory=1), f"the configuration has no field 'memory': there are {', '.join(KEYS)}"),
        (
            text(memoryMiB=1, memoryPercent=1),
            "memoryMiB and memoryPercent are two ways to say one amount: keep one of them",
        ),
    ],
)
def test_what_is_wrong_is_refused_with_what_to_write_instead(parameters: str, sentence: str) -> None:
    with pytest.raises(BadInput) as refused:
        share_parameters([parameters])
    assert str(refused.value) == sentence


def test_a_later_configuration_counts_before_an_earlier_one_field_by_field() -> None:
    found = share_parameters([text(cores=10, memoryMiB=1000, models=["a"]), text(cores=30), text(models=["b"])])
    assert found == ShareParameters(cores=30, memory_mib=1000, models=("b",))


def test_an_amount_of_the_claim_takes_the_place_of_one_of_its_class_that_is_said_otherwise() -> None:
    assert share_parameters([text(memoryPercent=50), text(memoryMiB=1000)]) == ShareParameters(memory_mib=1000)
    assert share_parameters([text(memoryMiB=1000), text(memoryPercent=50)]) == ShareParameters(memory_percent=50)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


SHARES = st.dictionaries(st.sampled_from([*KEYS, "kind", "x"]), JSON_VALUES).map(
    lambda fields: {"apiVersion": API_VERSION, "kind": "Share", **fields}
)


@given(JSON_VALUES | SHARES)
def test_whatever_is_written_is_read_or_refused_in_a_short_sentence(parameters: Any) -> None:
    said = ""
    try:
        share_parameters([json.dumps(parameters)])
    except BadInput as error:
        said = str(error)
    assert len(said) < 500
