"""What a runtime is told of a container's cards, and what is understood of other vendors' files."""

import contextlib
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fakes.grants import a_grant
from gpuledger.formats.runtime.cdi import (
    CardLimit,
    Grant,
    GrantedClaim,
    VendorDevices,
    claim_grant_name,
    claim_of_name,
    device_name,
    grant_file,
    is_name,
    joined,
    own_name,
    read_grant,
    vendor_devices,
)
from gpuledger.model.errors import BadInput

WORDS = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**31) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
ENV = st.lists(st.builds("{}={}".format, WORDS, WORDS), max_size=4)
MOUNTS = st.lists(st.fixed_dictionaries({"hostPath": WORDS, "containerPath": WORDS}), max_size=3)
GIDS = st.lists(st.integers(0, 9), max_size=3)
EDITS = st.fixed_dictionaries({}, optional={"env": ENV, "mounts": MOUNTS, "additionalGids": GIDS})


def a_spec(kind: Any = "nvidia.com/gpu", edits: object = None, **devices: object) -> dict[str, object]:
    listed = [{"name": name, "containerEdits": own} for name, own in devices.items()]
    return {"cdiVersion": "0.6.0", "kind": kind, "containerEdits": edits, "devices": listed}


@given(
    st.builds(
        Grant,
        name=WORDS,
        pod_uid=WORDS,
        namespace=WORDS,
        pod=WORDS,
        container=WORDS,
        resource=WORDS,
        slots=st.frozensets(WORDS, max_size=4),
        uuids=st.lists(WORDS, max_size=4).map(tuple),
        edits=EDITS,
        claim=st.none() | st.builds(GrantedClaim, WORDS, WORDS, WORDS),
    )
)
def test_a_grant_reads_back_from_its_file(grant: Grant) -> None:
    assert read_grant(grant_file(grant)) == grant


@given(st.uuids().map(str), st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True))
def test_a_name_tells_the_claim_that_it_was_made_for(uid: str, request: str) -> None:
    name = claim_grant_name(uid, request)
    assert (is_name(name), claim_of_name(name)) == (True, uid)
    assert own_name(device_name(name)) == name


@given(WORDS)
def test_a_name_for_slots_is_of_no_claim(word: str) -> None:
    assert claim_of_name(f"slot-{word}") is None


def test_the_same_grant_gives_the_same_file() -> None:
    slots = [f"slot-{number}" for number in range(20)]
    forwards, backwards = a_grant(slots=frozenset(slots)), a_grant(slots=frozenset(reversed(slots)))
    assert grant_file(forwards) == grant_file(backwards)


def test_a_file_is_one_device_under_the_name_that_the_kubelet_was_told() -> None:
    spec = orjson.loads(grant_file(a_grant()))
    assert spec["kind"] == "gpuledger.dev/share"
    assert [device["name"] for device in spec["devices"]] == ["slot-1-0a1b"]
    assert device_name("slot-1-0a1b") == "gpuledger.dev/share=slot-1-0a1b"
    assert own_name(device_name("slot-1-0a1b")) == "slot-1-0a1b"


@pytest.mark.parametrize(
    ("edits", "version"),
    [
        ({"env": ["A=1"]}, "0.6.0"),
        ({"additionalGids": [44]}, "0.7.0"),
        ({"intelRdt": {"closID": "a"}}, "0.7.0"),
        ({"netDevices": [{"hostInterfaceName": "a", "name": "b"}], "additionalGids": [44]}, "1.1.0"),
    ],
)
def test_a_file_says_a_version_that_has_all_its_words(edits: dict[str, Any], version: str) -> None:
    """A runtime refuses the whole file otherwise: the container would never start."""
    assert orjson.loads(grant_file(a_grant(edits=edits)))["cdiVersion"] == version


@pytest.mark.parametrize(
    "name",
    ["nvidia.com/gpu=slot-1", "gpuledger.dev/share=", "gpuledger.dev/share=../a", "gpuledger.dev/share=a\n", "", "a"],
)
def test_a_device_of_somebody_else_is_not_ours(name: str) -> None:
    assert own_name(name) is None


@given(st.text())
@example("a/b")
@example("..")
@example("a\n")
def test_a_name_never_leads_out_of_its_directory(name: str) -> None:
    assert not is_name(name) or not {"/", "\0", "\n"} & set(name)
    assert not is_name(name) or name.strip(".") == name


@given(st.binary() | JSON.map(orjson.dumps))
@example(b'{"devices": [[]]}')
@example(b"[" * 100_000)
def test_a_file_of_another_form_raises_bad_input(text: bytes) -> None:
    with pytest.raises(BadInput):
        read_grant(text)


@given(st.data())
def test_a_file_that_somebody_changed_raises_bad_input_at_most(data: st.DataObject) -> None:
    spec = orjson.loads(grant_file(a_grant()))
    where = data.draw(st.sampled_from([spec, spec["devices"][0], spec["devices"][0]["annotations"]]))
    where[data.draw(st.sampled_from(sorted(where)))] = data.draw(JSON)
    with contextlib.suppress(BadInput):
        assert isinstance(read_grant(orjson.dumps(spec)), Grant)


@given(st.lists(EDITS, max_size=4))
def test_joined_edits_keep_their_order_and_never_repeat(several: list[dict[str, Any]]) -> None:
    result = joined(several)
    for key in ("mounts", "additionalGids"):
        every = [each for edits in several for each in edits.get(key, ())]
        assert result.get(key, []) == [each for position, each in enumerate(every) if each not in every[:position]]
    names = [line.partition("=")[0] for line in result.get("env", ())]
    assert len(names) == len(set(names))
    assert all(result.values()), "no list is empty: CDI takes that for a word it may not know"
    assert joined([result, result]) == result


def test_of_several_values_of_a_variable_the_last_one_counts() -> None:
    assert joined([{"env": ["A=1", "B=1"]}, {"env": ["A=2"]}]) == {"env": ["A=2", "B=1"]}


def test_edits_that_all_devices_of_a_file_need_come_first_as_runtimes_do_it() -> None:
    found = vendor_devices([a_spec(edits={"env": ["A=all", "B=all"]}, one={"env": ["A=own"]})])
    assert found.edits("nvidia.com/gpu", ["one"]) == {"env": ["A=own", "B=all"]}


def test_a_device_is_found_by_the_first_of_its_names_that_there_is() -> None:
    found = vendor_devices([a_spec(**{"0": {"env": ["A=index"]}, "GPU-0": {"env": ["A=uuid"]}})])
    assert found.edits("nvidia.com/gpu", ["GPU-0", "0"]) == {"env": ["A=uuid"]}
    assert found.edits("nvidia.com/gpu", ["GPU-9", "0"]) == {"env": ["A=index"]}
    assert found.edits("nvidia.com/gpu", ["GPU-9"]) is None
    assert found.edits("amd.com/gpu", ["GPU-0"]) is None


def test_of_two_files_with_one_device_the_later_directory_counts() -> None:
    found = vendor_devices([a_spec(one={"env": ["A=etc"]}), a_spec(one={"env": ["A=run"]})])
    assert found.edits("nvidia.com/gpu", ["one"]) == {"env": ["A=run"]}


def test_our_own_files_are_no_vendors() -> None:
    assert vendor_devices([orjson.loads(grant_file(a_grant()))]) == VendorDevices()


@given(st.lists(JSON | st.builds(a_spec, edits=JSON, one=JSON), max_size=3))
@example([a_spec(edits=[], one={"env": "text"})])
@example([{"kind": "nvidia.com/gpu", "devices": 3}])
@example([a_spec(one={1: 2})])
@example([a_spec(one=["env"])])
@example([a_spec(one={"env": [object()]})])
def test_a_vendors_file_of_another_form_hides_nothing_else(specs: list[Any]) -> None:
    found = vendor_devices([a_spec(kind="ours.dev/gpu", good={"env": ["A=1"]}), *specs])
    assert found.edits("ours.dev/gpu", ["good"]) == {"env": ["A=1"]}
    for edits in found.devices.values():
        assert read_grant(grant_file(a_grant(edits=edits))).edits == edits


def test_limits_are_read_as_they_were_written_and_a_file_without_any_has_none() -> None:
    limits = (CardLimit("GPU-1", 0, 4_000), CardLimit("GPU-2", 500, 2_000))
    grant = a_grant(limits=limits)
    assert read_grant(grant_file(grant)).limits == limits
    assert b"gpuledger.dev/limits" not in grant_file(a_grant())
    assert read_grant(grant_file(a_grant())).limits == ()
    for broken in (b"GPU-1=x:1", b"GPU-1", b"GPU-1=1"):
        text = grant_file(grant).replace(b"GPU-1=0:4000", broken)
        with pytest.raises(BadInput):
            read_grant(text)
