"""The extender protocol: kube-scheduler decodes Go structs without JSON tags, so each key counts."""

from typing import Any

import orjson
import pytest

from gpuledger.formats.scheduler import (
    SEARCHES,
    BindArguments,
    bind_answer,
    bind_arguments,
    filter_answer,
    filter_arguments,
    filter_error,
    priorities,
)
from gpuledger.model.errors import BadInput

BIND: dict[str, Any] = {"PodName": "a", "PodNamespace": "default", "PodUID": "u", "Node": "node-a"}


def test_a_filter_request_has_a_pod_and_node_names() -> None:
    body: dict[str, Any] = {"Pod": {"metadata": {}}, "Nodes": None, "NodeNames": ["n"]}
    arguments = filter_arguments(orjson.dumps(body))
    assert (arguments.pod, list(arguments.node_names)) == ({"metadata": {}}, ["n"])


def test_it_is_known_how_long_the_pod_is_whatever_names_come_with_it() -> None:
    pod = {"metadata": {"name": "a", "annotations": {"note": "x" * 1_000}}}
    length = len(orjson.dumps(pod))
    names = [f"node-{number}" for number in range(500)]
    from_scheduler = filter_arguments(orjson.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}))
    from_elsewhere = filter_arguments(orjson.dumps({"NodeNames": names, "Pod": pod}))
    assert from_elsewhere.pod_bytes == length
    assert length <= from_scheduler.pod_bytes < length + 30


def test_other_spellings_of_the_same_are_understood() -> None:
    for text in (b'{"NodeNames":["n"], "Nodes": null, "Pod": {"a": 1}}', b' {"Pod": {"a": 1}, "NodeNames": [ "n" ] } '):
        arguments = filter_arguments(text)
        assert (arguments.pod, list(arguments.node_names)) == ({"a": 1}, ["n"])


def test_names_are_found_in_the_text_and_after_it_was_decoded() -> None:
    names = [f"node-{number}" for number in range(30)]
    found = filter_arguments(orjson.dumps({"Pod": {}, "Nodes": None, "NodeNames": names})).node_names
    for name in names + names[: SEARCHES + 1]:
        assert name in found
        assert name + "-" not in found
        assert name[1:] not in found
    assert (list(found), len(found)) == (names, 30)


def test_names_in_the_pod_are_no_names_of_nodes() -> None:
    annotations = {"a": ',"NodeNames":["x"]', "NodeNames": "x", '"x"': "x"}
    body = {"Pod": {"annotations": annotations}, "Nodes": None, "NodeNames": ["n"]}
    arguments = filter_arguments(orjson.dumps(body))
    assert arguments.pod == {"annotations": annotations}
    assert "x" not in arguments.node_names
    inside = filter_arguments(orjson.dumps({"Pod": {"a": 1, "NodeNames": ["x"]}, "NodeNames": ["n"]}))
    assert (inside.pod, list(inside.node_names)) == ({"a": 1, "NodeNames": ["x"]}, ["n"])


def test_a_list_of_names_that_is_none_is_refused_when_it_is_read() -> None:
    arguments = filter_arguments(b'{"Pod":{},"NodeNames":["n",]}')
    with pytest.raises(BadInput, match="not JSON"):
        list(arguments.node_names)


@pytest.mark.parametrize(
    "body", [None, [], "x", {}, {"Pod": {}}, {"NodeNames": []}, {"Pod": {}, "NodeNames": None, "Nodes": {"items": []}}]
)
def test_a_filter_request_without_them_is_refused_with_a_hint(body: Any) -> None:
    with pytest.raises(BadInput, match="set nodeCacheCapable: true"):
        filter_arguments(orjson.dumps(body))


@pytest.mark.parametrize("text", [b"", b"{", b'{"Pod":{,"NodeNames":["n"]}', b"\xff"])
def test_a_request_that_is_no_json_is_refused(text: bytes) -> None:
    for read in (filter_arguments, bind_arguments):
        with pytest.raises(BadInput, match="the request is not JSON"):
            read(text)


def test_a_bind_request_names_pod_and_node() -> None:
    assert bind_arguments(orjson.dumps(BIND)) == BindArguments("u", "default", "a", "node-a")


@pytest.mark.parametrize("key", BIND)
def test_a_bind_request_that_lacks_something_is_refused_with_its_name(key: str) -> None:
    with pytest.raises(BadInput, match=key):
        bind_arguments(orjson.dumps({name: value for name, value in BIND.items() if name != key}))


@pytest.mark.parametrize("body", [None, [], 3])
def test_a_bind_request_that_is_no_object_is_refused(body: Any) -> None:
    with pytest.raises(BadInput):
        bind_arguments(orjson.dumps(body))


def test_a_filter_answer_refuses_nodes_for_good() -> None:
    assert filter_answer(("a",), {"b": "no card"}) == {
        "Nodes": None,
        "NodeNames": ["a"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {"b": "no card"},
        "Error": "",
    }


def test_a_filter_error_names_no_nodes() -> None:
    assert filter_error("later") == {
        "Nodes": None,
        "NodeNames": None,
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "later",
    }


def test_scores_go_from_ten_to_nought() -> None:
    scores = priorities([f"n{number}" for number in range(13)])
    assert scores[0] == {"Host": "n0", "Score": 10}
    assert [score["Score"] for score in scores] == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0]


def test_a_bind_answer_is_an_error_or_none() -> None:
    assert (bind_answer(), bind_answer("no")) == ({"Error": ""}, {"Error": "no"})


def test_no_refusal_has_a_percent_sign() -> None:
    """kube-scheduler takes the text of an event for a format, and a sign in it for a verb."""
    answer = filter_answer([], {"node-a": "container main, nvidia.com/gpu: '5%' is not a whole number"})
    (text,) = answer["FailedAndUnresolvableNodes"].values()
    assert text == "container main, nvidia.com/gpu: '5 percent' is not a whole number"
