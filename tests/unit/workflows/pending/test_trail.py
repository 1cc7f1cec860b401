"""What has happened to pods' cards is remembered, the latest of it, with the reasons."""

import json
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from builders import a_card, a_holder, a_pod, a_share, cards_of, whole_share
from effort import times
from fakes.api_server import ApiServer
from fakes.objects import GPU, a_pod_object
from fakes.operator_parts import OperatorParts, an_operator
from fakes.virtual_time import StoppedClock
from gpuledger.model.errors import BadInput, Reason, Refusal
from gpuledger.model.gang import GangName
from gpuledger.model.share import Placement
from gpuledger.reports.record_reader import record_of
from gpuledger.reports.records import RankedNode, Record, RecordKind
from gpuledger.workflows.trail import REFUSALS_KEPT, RecordFilter, Trail, refusals_text

CARDS = cards_of("node-a", 2)
NOW_S = 100.0
RANKED = (RankedNode("node-a", (-250, 0.1)), RankedNode("node-b", (float("inf"),)))


class Ticking(StoppedClock):
    """Shows one time after the other, in Unix seconds."""

    def __init__(self, *times_s: float) -> None:
        super().__init__()
        self._times_s = list(times_s)

    def wall(self) -> datetime:
        return datetime.fromtimestamp(self._times_s.pop(0), UTC)


FULL = Refusal(Reason.NO_WHOLE_CARD, "no card entirely free")
AWAY = Refusal(Reason.AGENT_NOT_READY, "GPU node agent is not ready")


@pytest.fixture
async def parts(api: ApiServer) -> OperatorParts:
    """Return an operator over a node with two free cards."""
    for card in CARDS:
        api.put_card(card)
    return an_operator(api)


def happened(parts: OperatorParts) -> list[tuple[str, str]]:
    return [(record.kind.value, record.pod.name) for record in parts.trail]


async def test_a_pods_life_is_told_with_cards_node_and_why_it_was_chosen(parts: OperatorParts) -> None:
    parts.api.put_pod(a_pod_object("a", {GPU: "2"}))
    parts.filter("a", "node-a", "node-x")
    await parts.bind("a", "node-a")
    parts.api.put_pod(a_pod_object("late", {GPU: "1"}))
    parts.filter("late", "node-a", "node-x")
    parts.api.put_pod(a_pod_object("a", {GPU: "2"}, node_name="node-a", phase="Succeeded"))
    await parts.idle()
    assert happened(parts) == [("assigned", "a"), ("refused", "late"), ("released", "a")]
    assigned, refused, released = (record.json() for record in parts.trail)
    assert (assigned["node"], assigned["text"]) == ("node-a", "by policy binpack, of 1 node that fits")
    assert [node["node"] for node in assigned["alternatives"]] == ["node-a"]
    assert [card["uuid"] for card in assigned["cards"]] == ["GPU-node-a-0", "GPU-node-a-1"]
    assert refused["text"] == "no card entirely free (1 node), no GPUs in the ledger (1 node)"
    assert (released["node"], released["text"]) == ("node-a", "the pod has ended, or is gone")
    assert [card["uuid"] for card in released["cards"]] == ["GPU-node-a-0", "GPU-node-a-1"]


def test_a_refusal_is_noted_once_until_its_reason_is_another() -> None:
    trail, pod = Trail(clock=StoppedClock()), a_pod("a")
    for refusals in ({"n": FULL}, {"n": FULL}, {"n": AWAY}, {"n": AWAY}, {"n": FULL}, {}):
        trail.refused(pod, refusals)
    assert [record.text for record in trail] == [
        "no card entirely free (1 node)",
        "GPU node agent is not ready (1 node)",
        "no card entirely free (1 node)",
    ]


def test_equal_reasons_are_counted_together_and_the_most_frequent_comes_first() -> None:
    again = Refusal(Reason.AGENT_NOT_READY, "GPU node agent is not ready")
    assert refusals_text([FULL, AWAY, again]) == "GPU node agent is not ready (2 nodes), no card entirely free (1 node)"


def test_only_the_latest_are_kept_and_it_is_said_how_many_are_not() -> None:
    trail = Trail(clock=StoppedClock(), kept=3)
    for number in range(20_000):
        pod, share = a_pod(f"p{number}"), a_share(CARDS[0])
        trail.assigned(pod, Placement("node-a", (share,)), None)
        trail.refused(pod, {"node-a": FULL})
    assert [record.pod.name for record in trail] == ["p19998", "p19999", "p19999"]
    assert (trail.number, trail.dropped) == (40_000, 39_997)
    assert len(trail._refused) == REFUSALS_KEPT


@pytest.mark.thorough
def test_memory_is_bounded_however_many_assignments_there_are() -> None:
    """What is kept is full after 10,000: twice as many, or ten times, take no more."""
    trail = Trail(clock=StoppedClock(), kept=5_000)
    tracemalloc.start()
    try:
        for number in range(times(20_000, 100_000)):
            pod = a_pod(f"p{number}")
            trail.refused(pod, {"node-a": FULL})
            trail.assigned(pod, Placement("node-a", (a_share(CARDS[0]),)), None)
            if number == 10_000:
                full = tracemalloc.get_traced_memory()[0]
        assert tracemalloc.get_traced_memory()[0] < 1.1 * full
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("record_filter", "names"),
    [
        (RecordFilter(), ["a", "b", "a"]),
        (RecordFilter(pod="a"), ["a", "a"]),
        (RecordFilter(namespace="other"), []),
        (RecordFilter(node="node-b"), ["b"]),
        (RecordFilter(card="gpu-NODE-a"), ["a", "a"]),
        (RecordFilter(kind="released"), ["a"]),
    ],
)
def test_records_are_found_by_what_they_are_about(record_filter: RecordFilter, names: list[str]) -> None:
    trail = Trail(clock=StoppedClock())
    here, there = a_share(CARDS[0]), whole_share(a_card(0, "node-b"))
    trail.assigned(a_pod("a"), Placement("node-a", (here,)), None)
    trail.assigned(a_pod("b"), Placement("node-b", (there,)), None)
    trail.released([(CARDS[0], a_holder("a", here))], [], "gone")
    assert [record.pod.name for record in trail.latest(record_filter, 10)[0]] == names
    assert [record.pod.name for record in trail.latest(record_filter, 1)[0]] == names[-1:]


def test_what_a_pod_still_has_is_not_released() -> None:
    trail = Trail(clock=StoppedClock())
    before = [(card, a_holder("a", a_share(card))) for card in CARDS]
    trail.released(before, before, "nothing has changed")
    trail.released(before, before[1:], "one was too many")
    (record,) = trail
    assert [share.uuid for share in record.shares] == ["GPU-node-a-0"]


def copies(trail: Trail) -> list[Record]:
    """Return the records as another process reads them."""
    return [record_of(orjson.dumps(record.json()), NOW_S) for record in trail]


def test_a_record_is_the_same_after_it_was_written_and_read() -> None:
    trail = Trail(clock=Ticking(9.0014, 9.0016))
    trail.note(
        RecordKind.PREEMPTING, a_pod("a"), "node-a", [a_share(CARDS[0])], "for b\x1b[31m\nand c" + "x" * 9_000, RANKED
    )
    trail.gang(RecordKind.GANG_BOUND, GangName("default", "train"), "4 of 4")
    trail.active("gpuledger-1", {"version": "1", "node_policy": '"spread"'}, NOW_S)
    read = copies(trail)
    assert [record.json() for record in read] == [record.json() for record in trail]
    assert [record.key for record in read] == [record.key for record in trail]
    assert read[0].text.startswith("for b [31m and cxxx"), "no control characters reach a terminal"


def test_records_from_elsewhere_are_put_in_their_places_and_each_is_kept_once() -> None:
    ours, theirs = Trail(clock=Ticking(10)), Trail(clock=Ticking(5, 15, 20))
    for name in ("a", "b", "c"):
        theirs.note(RecordKind.EVICTED, a_pod(name), "node-a", [], "for another")
    ours.note(RecordKind.EVICTED, a_pod("own"), "node-a", [], "for another")
    assert [record.pod.name for record in ours.merge(copies(theirs))] == ["a", "b", "c"]
    assert [record.pod.name for record in ours] == ["a", "own", "b", "c"]
    assert ours.merge(copies(theirs)) == [] == theirs.merge(theirs)
    assert (ours.kept, ours.number, ours.kept_since) == (4, 4, 5.0)


def test_merged_records_are_bounded_and_the_oldest_go_first() -> None:
    theirs = Trail(clock=Ticking(*range(100)))
    for number in range(100):
        theirs.note(RecordKind.EVICTED, a_pod(f"p{number}"), "node-a", [], "for another")
    ours, nothing = Trail(clock=StoppedClock(), kept=3), Trail(clock=StoppedClock(), kept=0)
    ours.merge(copies(theirs))
    assert [record.pod.name for record in ours] == ["p97", "p98", "p99"]
    assert ours.merge(copies(theirs)) == [], "what is older than all that is kept is not taken again"
    assert (len(ours._keys), ours.dropped) == (3, 97)
    nothing.merge(copies(theirs))
    nothing.note(RecordKind.EVICTED, a_pod("a"), "node-a", [], "for another")
    assert (nothing.kept, nothing.kept_since, len(nothing._keys)) == (0, None, 0)


def test_records_are_found_since_a_time_and_it_is_said_whether_there_are_more() -> None:
    trail = Trail(clock=Ticking(1, 2, 3))
    for name in ("a", "b", "c"):
        trail.note(RecordKind.EVICTED, a_pod(name), "node-a", [], "for another")
    for limit, since, names, more in (
        (5, 2.0, "bc", False),
        (1, 2.0, "c", True),
        (3, 0.0, "abc", False),
        (0, 9, "", 0),
    ):
        found, is_more = trail.latest(RecordFilter(since=since), limit)
        assert ("".join(record.pod.name for record in found), is_more) == (names, more)


def test_who_becomes_active_says_what_differs_from_the_last_one() -> None:
    trail = Trail(clock=StoppedClock())
    settings = {f"setting_{number}": "1" for number in range(7)}
    trail.active("gpuledger-1", {"version": "1"}, 1.0)
    trail.active("gpuledger-2", {"version": "1"}, 2.0)
    trail.active("gpuledger-3", {"version": "2", "node_policy": '"spread"'}, 3.0)
    trail.active("gpuledger-4", {"version": "2", **settings}, 4.0)
    assert [record.text for record in trail] == [
        "gpuledger-1 is the active replica",
        "gpuledger-2 is the active replica",
        'gpuledger-3 is the active replica; changed: node_policy from the default to "spread", version from 1 to 2',
        'gpuledger-4 is the active replica; changed: node_policy from "spread" to the default, '
        "setting_0 from the default to 1, setting_1 from the default to 1, setting_2 from the default to 1, "
        "setting_3 from the default to 1 and 3 more",
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe\x00",
        b'{"time":"2026-01-01T00:00:00Z"}',
        {"kind": "exploded"},
        {"time": "1970-01-01T00:00:00"},
        {"time": "9999-12-31T23:59:59Z"},
        {"time": "1970-01-02T00:00:00Z"},
        {"pod": "a\x1b[2J"},
        {"text": "x" * 5_000},
        {"text": [["x"]]},
        {"priority": 10**400},
        {"cards": [{"uuid": "GPU-1"}]},
        {"cards": [{"uuid": "GPU-1"}] * 100_000},
        {"settings": {"a": "b" * 5_000}},
    ],
    ids=lambda line: str(line)[:30],
)
def test_what_is_no_record_of_this_release_is_refused(line: bytes | dict[str, Any]) -> None:
    trail = Trail(clock=Ticking(9))
    trail.note(RecordKind.EVICTED, a_pod("a"), "node-a", [], "for another")
    (record,) = trail
    whole = line if isinstance(line, bytes) else json.dumps({**record.json(), **line}).encode()
    with pytest.raises(BadInput):
        record_of(whole, NOW_S)


def test_fields_of_a_later_release_do_no_harm() -> None:
    trail = Trail(clock=Ticking(9))
    trail.note(RecordKind.EVICTED, a_pod("a"), "node-a", [], "for another")
    (record,) = trail
    assert record_of(orjson.dumps({**record.json(), "colour": {"is": "red"}}), NOW_S).json() == record.json()
