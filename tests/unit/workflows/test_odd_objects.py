"""No object ends or stalls the process, whatever it holds: one that can't be processed is skipped by itself."""

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from builders import a_holder, a_share, cards_of
from effort import times
from fakes.api_server import ApiServer
from fakes.objects import a_container, a_node_object, a_pod_object
from fakes.operator_parts import OperatorParts

Json = dict[str, Any]
Path = tuple[str | int, ...]
CARDS = cards_of("node-a", 2)
TOLD = f'{{"main": [{{"uuid": "{CARDS[0].uuid}", "memoryMiB": 1000, "cores": 10}}]}}'

FIXED = {
    *(("metadata", key) for key in ("name", "namespace", "uid", "resourceVersion")),
    *(("spec", key) for key in ("schedulerName", "nodeName", "uuid")),
}
"""What the API server vouches for, and what makes an object ours."""


def a_full_pod(name: str, **fields: Any) -> Json:
    """Return a pod with something in every field that is looked at."""
    pod = a_pod_object(
        name, containers=[a_container("main", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"})], **fields
    )
    pod["metadata"] |= {
        "annotations": {
            "gpuledger.dev/devices": TOLD,
            "nvidia.com/use-gputype": "A100",
            "hami.io/node-policy": "spread",
        },
        "labels": {"app": "a"},
        "deletionTimestamp": "2030-01-01T00:10:00Z",
        "deletionGracePeriodSeconds": 30,
        "ownerReferences": [{"kind": "ReplicaSet", "name": "a", "uid": "uid-owner", "controller": True}],
    }
    pod["spec"] |= {
        "terminationGracePeriodSeconds": 30,
        "preemptionPolicy": "PreemptLowerPriority",
        "overhead": {"cpu": "1"},
    }
    pod["spec"]["initContainers"] = [{**a_container("init", {"nvidia.com/gpu": "1"}), "restartPolicy": "Always"}]
    pod["status"] |= {
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}],
        "containerStatuses": [{"name": "main", "state": {"terminated": {"finishedAt": "2030-01-01T00:00:00Z"}}}],
    }
    return pod


def places(value: object, path: Path = ()) -> Iterator[Path]:
    """Yield where an object can hold something else, without taking apart what makes it an object of its kind."""
    if len(path) >= 2 and path not in FIXED:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, found in inner:
        yield from places(found, (*path, key))


def with_other(found: Json, path: Path, value: object) -> Json:
    """Return an object that holds something else in one place."""
    changed = copy.deepcopy(found)
    inside: Any = changed
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return changed


SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=40)
TEXTS = st.sampled_from(
    ["", "<" * 5000, "9" * 5000, "-1", "1e999999", "2030-13-01T00:00:00Z", '{"main": [{}]}', "[" * 5000]
)
VALUES = st.recursive(
    SCALARS | TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner)
)

BOUND = a_full_pod("bound", node_name="node-a", phase="Running", started=True)
PENDING = a_full_pod("pending")
NODE = a_node_object("node-a", CARDS)


def a_stored_card() -> Json:
    api = ApiServer()
    api.put_card(CARDS[0], a_holder("a", a_share(CARDS[0])))
    return api.cards[CARDS[0].object_name]


CARD = a_stored_card()
KINDS = {"pod": BOUND, "pending_pod": PENDING, "node": NODE, "allocation": CARD}


@given(st.data(), st.sampled_from(sorted(KINDS)), st.booleans())
@settings(max_examples=times(150, 5_000, check=60), deadline=None)
async def test_an_object_with_anything_in_it_stops_nothing(data: st.DataObject, kind: str, gone: bool) -> None:
    parts = OperatorParts(ApiServer())
    parts.api.put_node(NODE)
    for card in CARDS:
        parts.api.put_card(card)
    await parts.observer.take_over()
    path = data.draw(st.sampled_from(list(places(KINDS[kind]))))
    odd = with_other(KINDS[kind], path, data.draw(VALUES))
    getattr(parts.observer, kind)(odd, gone=False)
    getattr(parts.observer, kind)(odd, gone=gone)
    parts.observer.pod(a_pod_object("good", node_name="node-a", started=True), gone=False)
    assert parts.lives.is_bound("uid-good")
    parts.waiting.give_room()
    await parts.preemption.decide()
    await parts.idle()
