"""The kubelet's own record is read in the forms it has had, and in no other."""

import base64
import contextlib
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuledger.formats.runtime.cdi import CheckpointEntry, read_checkpoint
from gpuledger.model.errors import BadInput

SINCE_1_20 = (
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"uid-a","ContainerName":"main","ResourceName":"nvidia.com/gpu",'
    b'"DeviceIDs":{"-1":["slot-3","slot-1"],"0":["slot-2"]},"AllocResp":"Cgg="}],'
    b'"RegisteredDevices":{"nvidia.com/gpu":["slot-1"]}},"Checksum":1234567890}'
)
"""As checkpoint.Data of k8s.io/kubernetes marshals it: slots by their NUMA node, -1 where the plugin names none."""


def a_record(**changes: Any) -> bytes:
    record = orjson.loads(SINCE_1_20)
    record["Data"]["PodDeviceEntries"][0] |= changes
    return orjson.dumps(record)


def test_slots_of_all_numa_nodes_belong_to_the_container() -> None:
    slots = frozenset({"slot-1", "slot-2", "slot-3"})
    assert read_checkpoint(SINCE_1_20) == (CheckpointEntry("uid-a", "main", "nvidia.com/gpu", slots, b"\n\x08"),)


def test_the_form_before_1_20_with_a_plain_list_is_read() -> None:
    (entry,) = read_checkpoint(a_record(DeviceIDs=["slot-1"]))
    assert entry.slots == {"slot-1"}


@pytest.mark.parametrize("nothing", [None, []])
def test_a_kubelet_that_has_given_out_nothing_has_no_entries(nothing: object) -> None:
    assert read_checkpoint(orjson.dumps({"Data": {"PodDeviceEntries": nothing}, "Checksum": 0})) == ()


def test_an_entry_without_an_answer_or_slots_is_an_entry() -> None:
    (entry,) = read_checkpoint(a_record(AllocResp=None, DeviceIDs={"-1": None}))
    assert (entry.answer, entry.slots) == (b"", frozenset())


@given(st.binary())
@example(b"")
@example(b"{}")
@example(SINCE_1_20[:-7])
@example(a_record(AllocResp="\u00e4"))
@example(a_record(AllocResp="not base64"))
@example(a_record(AllocResp=7))
@example(a_record(DeviceIDs=7))
@example(b'{"Data": {"PodDeviceEntries": 7}}')
@example(b'{"Data": {"PodDeviceEntries": [7]}}')
@example(b'{"Data": {"PodDeviceEntries": [{}]}}')
@example(b'{"Data": []}')
def test_any_other_text_raises_bad_input(text: bytes) -> None:
    with pytest.raises(BadInput, match="kubelet_internal_checkpoint"):
        read_checkpoint(text)


@given(st.binary(), st.integers(0, 300), st.binary(min_size=1, max_size=3))
def test_a_damaged_record_raises_bad_input_at_most(answer: bytes, position: int, damage: bytes) -> None:
    text = a_record(AllocResp=base64.b64encode(answer).decode())
    assert read_checkpoint(text)[0].answer == answer
    with contextlib.suppress(BadInput):
        assert len(read_checkpoint(text[:position] + damage + text[position + len(damage) :])) <= 1
