"""What has happened to pods' cards is remembered, the latest of it, with the reasons."""

import json
import tracemalloc
from pathlib import Path

import pytest

from builders import a_card, a_holder, a_pod, a_share, cards_of, whole_share
from effort import times
from fakes.api_server import ApiServer
from fakes.objects import GPU, a_pod_object
from fakes.operator_parts import OperatorParts, an_operator
from fakes.virtual_time import StoppedClock
from gpuledger.controller.scheduler_pipe import trail_written
from gpuledger.model.errors import Reason, Refusal
from gpuledger.model.share import Placement
from gpuledger.reports.records import RecordKind
from gpuledger.workflows.trail import REFUSALS_KEPT, RecordFilter, Trail, refusals_text

CARDS = cards_of("node-a", 2)
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


def test_every_record_is_written_down_as_a_line_of_json(tmp_path: Path) -> None:
    trail, file = Trail(clock=StoppedClock(), kept=1), tmp_path / "trail.jsonl"
    with trail_written(trail, str(file)):
        for name in ("a", "b", "c"):
            trail.note(RecordKind.EVICTED, a_pod(name), "node-a", [a_share(CARDS[0])], "for another")
    trail.note(RecordKind.EVICTED, a_pod("d"), "node-a", [], "not written any more")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["kind"], line["pod"], line["cards"][0]["memoryMiB"]) for line in lines] == [
        ("evicted", "a", 1000),
        ("evicted", "b", 1000),
        ("evicted", "c", 1000),
    ]


def test_without_a_file_nothing_is_written() -> None:
    trail = Trail(clock=StoppedClock())
    with trail_written(trail, ""):
        assert trail.on_record == []
