"""The simulated API server is only worth something if it refuses what a real one refuses."""

from typing import Any

import jsonpatch
import jsonpointer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_card
from fakes.card_rules import check_card
from fakes.objects import a_pod_object
from gpuledger.formats.custom_resource.stored_card import new_allocation
from gpuledger.model.errors import Conflict, Invalid, NotFound
from simulation.api_server import ApiServer, Change, Kind, Operation, is_bound, is_pending
from simulation.card_checks import AMOUNTS, broken_rule
from simulation.changes import watch_event
from simulation.json_patch import PatchFailed, apply_patch

Json = dict[str, Any]

amounts = st.sampled_from([0, 1, 2, 4])
names = st.sampled_from(["main", "side"])
containers = st.lists(st.fixed_dictionaries({"name": names, "memoryMiB": amounts, "cores": amounts}), max_size=2)
holders = st.lists(
    st.fixed_dictionaries(
        {
            "podUID": st.sampled_from(["u", "v", "w"]),
            "namespace": st.just("default"),
            "pod": st.just("p"),
            "memoryMiB": amounts,
            "cores": amounts,
            "number": st.sampled_from([1, 2]),
            "exclusive": st.sampled_from([False, False, True]),
            "priority": st.just(0),
            "containers": containers,
            "state": st.sampled_from(["allocated", "releasing"]),
            "attempt": st.sampled_from(["first", "second"]),
        }
    ),
    max_size=3,
)


@st.composite
def cards(draw: st.DrawFn) -> Json:
    """Draw a card that the schema allows, and that breaks a rule every now and then."""
    card = new_allocation(a_card(uuid="GPU-1", memory_mib=draw(st.sampled_from([2, 4, 8])), number=3, cores=4))
    card["metadata"]["name"] = draw(st.sampled_from(["gpu-1", "gpu-1", "gpu-1", "gpu-2"]))
    card["spec"]["nodeName"] = draw(st.sampled_from(["node-a", "node-a", "node-b"]))
    if draw(st.booleans()) or draw(st.booleans()):
        held = draw(holders)
        wrong = draw(st.sampled_from([0, 0, 0, 1]))
        used = {name: sum(int(str(holder[name])) for holder in held) + wrong for name in AMOUNTS}
        card["status"] = {"phase": "Ready", "reason": "", "used": used, "pods": "", "holders": held}
    return card


@given(new=cards(), old=st.none() | cards())
def test_the_fast_rules_refuse_what_the_rules_of_the_crd_refuse(new: Json, old: Json | None) -> None:
    try:
        check_card(new, old)
    except Invalid:
        assert broken_rule(new, old) is not None
    else:
        assert broken_rule(new, old) is None


values = st.recursive(
    st.integers(0, 2) | st.sampled_from(["a", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "0"]), inner, max_size=3),
    max_leaves=8,
)
paths = st.lists(st.sampled_from(["a", "b", "0", "1", "2", "-"]), min_size=1, max_size=3).map(
    lambda p: "/" + "/".join(p)
)
operations = st.lists(
    st.fixed_dictionaries(
        {"op": st.sampled_from(["add", "remove", "replace", "test"]), "path": paths, "value": values}
    ),
    max_size=4,
)


@given(document=st.dictionaries(st.sampled_from(["a", "b", "0"]), values, min_size=1), patch=operations)
def test_patches_do_what_the_library_does_and_change_nothing_in_place(document: Json, patch: list[Json]) -> None:
    before = repr(document)
    try:
        expected = jsonpatch.apply_patch(document, patch)
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError):
        with pytest.raises(PatchFailed):
            apply_patch(document, patch)
    else:
        assert apply_patch(document, patch) == expected
    assert repr(document) == before


@pytest.fixture
def api() -> ApiServer:
    """Return an API server with a card and a pod `a` that waits."""
    api = ApiServer()
    api.put_card(a_card())
    api.put_pod(a_pod_object("a"))
    return api


def bind(api: ApiServer, **metadata: object) -> Json:
    pod = api.pods["default/a"]["metadata"]
    found = {"uid": pod["uid"], "resourceVersion": pod["resourceVersion"], "annotations": {"x": "y"}, **metadata}
    binding = {"metadata": found, "target": {"name": "node-a"}}
    api.carry_out(Operation.BIND, "default/a", binding, None)
    return api.pods["default/a"]


def test_a_binding_sets_node_and_annotations_at_once(api: ApiServer) -> None:
    pod = bind(api)
    assert pod["spec"]["nodeName"] == "node-a"
    assert pod["metadata"]["annotations"] == {"x": "y"}


@pytest.mark.parametrize("metadata", [{"uid": "another"}, {"resourceVersion": "1"}])
def test_a_binding_for_another_state_of_the_pod_is_refused(api: ApiServer, metadata: Json) -> None:
    with pytest.raises(Conflict):
        bind(api, **metadata)


def test_a_pod_is_bound_once_and_not_while_it_is_being_deleted(api: ApiServer) -> None:
    bind(api)
    with pytest.raises(Conflict, match="assigned"):
        bind(api)
    pod = a_pod_object("a")
    pod["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    api.put_pod(pod)
    with pytest.raises(Conflict, match="deleted"):
        bind(api)


def test_a_stale_writer_is_refused_and_a_repeated_write_changes_no_version(api: ApiServer) -> None:
    (name,) = api.cards
    version = api.cards[name]["metadata"]["resourceVersion"]
    stale = [{"op": "add", "path": "/status/used", "value": {"memoryMiB": 1, "cores": 0, "number": 0}}]
    with pytest.raises(Invalid):
        api.carry_out(Operation.WRITE_STATUS, name, stale, None)
    same = [{"op": "add", "path": "/status/phase", "value": "Ready"}]
    assert api.carry_out(Operation.WRITE_STATUS, name, same, None)["metadata"]["resourceVersion"] == version


def test_an_annotation_needs_the_same_pod(api: ApiServer) -> None:
    with pytest.raises(Invalid):
        api.carry_out(Operation.ANNOTATE, "default/a", {"metadata": {"uid": "b", "annotations": {"x": "y"}}}, None)
    with pytest.raises(NotFound):
        api.carry_out(Operation.ANNOTATE, "default/b", {"metadata": {"uid": "b", "annotations": {"x": "y"}}}, None)


def test_a_watch_shows_a_pod_that_leaves_its_selector_as_deleted(api: ApiServer) -> None:
    changes: list[Change] = []
    api.listeners.append(changes.append)
    bind(api)
    api.drop(Kind.POD, "default/a")
    assert [event and event[0] for event in (watch_event(c, is_pending) for c in changes)] == ["DELETED", None]
    assert [event and event[0] for event in (watch_event(c, is_bound) for c in changes)] == ["ADDED", "DELETED"]
