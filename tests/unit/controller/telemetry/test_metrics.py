"""Metrics: what is counted is shown, from 0 on; slices make the same text; a standby shows no cards."""

import asyncio
from dataclasses import replace

import pytest

from builders import a_card, a_holder, a_ledger, a_request, a_share, cards_of, mib, stored
from fakes.metrics import Shown, a_report, everything, families, samples, value
from gpuledger.configuration.settings import METRICS_COMPATIBILITY
from gpuledger.controller.telemetry import metrics as loop_lag
from gpuledger.controller.telemetry.card_metrics import SLICE_CARDS
from gpuledger.controller.telemetry.metrics import JOINED_BYTES
from gpuledger.model.errors import Reason
from gpuledger.model.share import Pod


def without_process(text: bytes) -> dict[str, float]:
    return {f"{name}{labels}": each for (name, labels), each in samples(text).items() if "process_" not in name}


async def test_the_pieces_are_the_whole_text() -> None:
    cards = [card for number in range(3) for card in cards_of(f"node-{number}", SLICE_CARDS - 1)]
    shown = Shown(a_ledger(*cards))
    metrics = shown.metrics(["hami"])
    pieces = [piece async for piece in metrics.chunks()]
    assert without_process(b"".join(pieces)) == without_process(metrics.text())
    assert value(metrics.text(), "gpuledger_cards_in_phase", phase="Ready") == len(cards)


async def test_others_get_their_turn_while_cards_are_read() -> None:
    shown = Shown(a_ledger(*(card for number in range(20) for card in cards_of(f"node-{number}"))))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count_turns())
    first = await anext(shown.metrics().chunks())
    other.cancel()
    assert turns >= 160 / SLICE_CARDS
    assert b"gpuledger_cards 160" in first


def test_what_a_namespace_may_have_and_has_is_shown_by_quota() -> None:
    of_quota = {"namespace": "team", "quota": "gpus", "key": "limits.nvidia.com/gpumem"}
    text = everything().text()
    assert value(text, "gpuledger_namespace_quota_limit", **of_quota) == 40_000
    assert value(text, "gpuledger_namespace_quota_used", **of_quota) == 4_000


def test_what_a_namespace_has_spent_of_its_budget_and_does_not_use_is_shown() -> None:
    of_quota = {"namespace": "team", "quota": "gpus", "key": "gpuledger.dev/card-hours-per-day"}
    text = everything().text()
    assert value(text, "gpuledger_namespace_budget_card_seconds", **of_quota) == 10 * 3600
    assert value(text, "gpuledger_namespace_budget_spent_card_seconds", **of_quota) == 5 * 3600
    assert value(text, "gpuledger_namespace_idle_cards", namespace="team") == pytest.approx(0.25)


async def test_a_large_text_comes_in_pieces() -> None:
    shown = Shown(a_ledger(*(card for number in range(100) for card in cards_of(f"node-{number}"))))
    pieces = [piece async for piece in shown.metrics().chunks()]
    assert len(pieces) > 2
    assert all(len(piece) >= JOINED_BYTES for piece in pieces[:-1])


async def test_a_card_that_changes_between_slices_is_shown_as_it_was_at_one_moment() -> None:
    cards = cards_of("node-a", 3 * SLICE_CARDS)
    shown = Shown(a_ledger(*cards))
    chunks = shown.metrics().chunks()
    look = asyncio.create_task(_all(chunks))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for card in cards:
        smaller = replace(card, capacity=replace(card.capacity, memory_mib=2_000))
        shown.ledger.load(stored(smaller, a_holder("a", a_share(card, 1_000)), version=2))
    found = samples(await look)
    labels = [(("index", str(card.index)), ("model", ""), ("node", "node-a"), ("uuid", card.uuid)) for card in cards]
    names = ("gpuledger_card_memory_capacity_bytes", "gpuledger_card_holders")
    seen = {tuple(found[name, each] for name in names) for each in labels}
    assert seen == {(16_000 * 2**20, 0.0), (2_000 * 2**20, 1.0)}


async def _all(chunks: object) -> bytes:
    return b"".join([piece async for piece in chunks])  # type: ignore[attr-defined]


def test_a_standby_shows_that_it_is_one_and_no_cards() -> None:
    shown = Shown(a_ledger(a_card()), active=False)
    text = shown.metrics(METRICS_COMPATIBILITY).text()
    assert value(text, "gpuledger_leader") == 0
    assert value(text, "gpuledger_cards") == 1
    names = families(text)
    assert not [name for name in names if name.startswith(("gpuledger_card_", "gpuledger_model_", "hami", "GPU"))]
    shown.active = True
    assert value(shown.metrics().text(), "gpuledger_leader") == 1


def test_outcomes_that_have_not_happened_are_0() -> None:
    shown = Shown()
    shown.counts.preemptions.labels("done").inc(2)
    shown.journal.failures.labels("unreachable").inc(3)
    text = shown.metrics().text()
    assert value(text, "gpuledger_preemptions_total", outcome="forbidden") == 0
    assert value(text, "gpuledger_preemptions_total", outcome="done") == 2
    assert value(text, "gpuledger_ledger_write_failures_total", kind="unreachable") == 3
    assert value(text, "gpuledger_bad_input_total", kind="node") == 0
    reasons = {dict(labels)["reason"] for name, labels in samples(text) if name == "gpuledger_refusals_total"}
    assert reasons == {reason.value for reason in Reason}


def test_a_counter_is_one_series_and_not_a_second_one_for_when_it_was_made() -> None:
    made = {name for name, _ in samples(Shown().metrics().text()) if name.endswith("_created")}
    assert "gpuledger_filters_created" not in made
    assert "gpuledger_binds_created" not in made


def test_who_waits_is_shown_with_the_reason_and_since_when() -> None:
    shown = Shown()
    name = "gpuledger_oldest_waiting_pod_created_timestamp_seconds"
    assert name not in {key for key, _ in samples(shown.metrics().text())}
    for uid, created in (("a", "2030-01-01T00:00:10Z"), ("b", "2030-01-01T00:00:05Z"), ("c", "")):
        shown.waiting.refused(Pod(uid, "default", uid), a_request(mib(1)), created, [])
        shown.reports.append(a_report(uid, created, {Reason.NO_MEMORY: 1}))
    text = shown.metrics().text()
    assert value(text, "gpuledger_waiting_pods") == 3
    assert value(text, "gpuledger_waiting_pods_by_reason", reason="no-memory") == 3
    assert value(text, "gpuledger_waiting_pods_by_reason", reason="no-cores") == 0
    assert value(text, name, reason="no-memory") == 1893456005


@pytest.mark.parametrize(
    ("reasons", "reason"),
    [
        ({Reason.NOT_WANTED: 40, Reason.NO_WHOLE_CARD: 2}, "no-whole-card"),  # all cards of the model are taken
        ({Reason.NO_INVENTORY: 40, Reason.CARD_TOO_SMALL: 2}, "card-too-small"),  # nodes without cards say nothing
        ({Reason.NO_INVENTORY: 40, Reason.NO_CORES: 1, Reason.NO_MEMORY: 2}, "no-memory"),
        ({Reason.NO_INVENTORY: 40}, "no-inventory"),
        ({}, "room-found"),
    ],
)
def test_since_when_a_pod_waits_is_shown_with_the_reason_of_the_nodes_that_could_take_it(
    reasons: dict[Reason, int], reason: str
) -> None:
    shown = Shown(reports=[a_report("a", "2030-01-01T00:00:05Z", reasons)])
    name = "gpuledger_oldest_waiting_pod_created_timestamp_seconds"
    assert [labels for key, labels in samples(shown.metrics().text()) if key == name] == [(("reason", reason),)]


@pytest.mark.parametrize(
    ("phase", "why", "cause"),
    [
        ("Unavailable", "its node is gone", "node-gone"),
        ("Unavailable", "its node no longer reports it", "not-reported"),
        ("Unavailable", "the node's GPU agent is not ready", "agent-not-ready"),
        ("Unavailable", "its kubelet has not started pod default/a for 60 s", "kubelet"),
        ("Unhealthy", "its node reports a fault: Xid 79", ""),
        ("Unaccounted", "a pod may use it", ""),
    ],
)
def test_cards_that_take_no_pods_are_shown_by_their_node_and_the_cause(phase: str, why: str, cause: str) -> None:
    ready, *closed = cards_of("node-a", 3)
    shown = Shown(a_ledger(ready))
    for card in closed:
        shown.ledger.load(replace(stored(card), phase=phase, reason=why))
    text = shown.metrics().text()
    name = "gpuledger_node_cards_in_phase"
    assert value(text, name, node="node-a", phase=phase, cause=cause) == 2
    assert len([key for key, _ in samples(text) if key == name]) == 1


def test_since_when_a_node_has_a_cordoned_card_is_what_the_oldest_mark_says() -> None:
    by_hand, both, later = cards_of("node-a", 3)
    shown = Shown()
    name = "gpuledger_node_cordoned_timestamp_seconds"
    shown.ledger.load(replace(stored(by_hand), cordoned="because (in 2029)"))
    assert name not in {key for key, _ in samples(shown.metrics().text())}
    shown.ledger.load(replace(stored(later), cordoned="b (2030-01-01 00:02 UTC)"))
    mark = "x (y, 2030-13-01 00:00 UTC); a (bob, 2030-01-01 00:01 UTC); kernel (alice, 2030-01-01 00:03 UTC)"
    shown.ledger.load(replace(stored(both), phase="Unavailable", cordoned=mark))
    assert value(shown.metrics().text(), name, node="node-a") == 1893456060


def an_audit(uid: str, ended: str, kind: str = "Complete", reason: str = "") -> dict[str, object]:
    begun = {"type": "SuccessCriteriaMet", "status": "True", "lastTransitionTime": "2030-01-01T00:00:00Z"}
    last = {"type": kind, "status": "True", "reason": reason, "lastTransitionTime": ended}
    return {"metadata": {"uid": uid}, "status": {"conditions": [begun, *([last] if ended else [])]}}


def test_what_the_last_audit_found_that_could_compare_is_shown() -> None:
    shown = Shown()
    at, differs = "gpuledger_audit_timestamp_seconds", "gpuledger_audit_differs"

    def found() -> dict[str, float]:
        return {key: each for (key, _), each in samples(shown.metrics().text()).items() if key in (at, differs)}

    shown.audits.observe(an_audit("runs", ""), gone=False)
    assert found() == {}
    shown.audits.observe(an_audit("fails", "2030-01-01T00:00:01Z", "Failed", "BackoffLimitExceeded"), gone=False)
    assert found() == {at: 0}
    shown.audits.observe(an_audit("differs", "2030-01-01T00:00:03Z", "Failed", "PodFailurePolicy"), gone=False)
    shown.audits.observe(an_audit("agrees", "2030-01-01T00:00:02Z"), gone=False)
    shown.audits.observe(an_audit("late", "2030-01-01T00:00:04Z", "Failed", "DeadlineExceeded"), gone=False)
    assert found() == {at: 1893456003, differs: 1}
    listed = shown.audits.listing()
    shown.audits.observe(an_audit("differs", "2030-01-01T00:00:03Z"), gone=True)
    assert found() == {at: 1893456002, differs: 0}
    listed(set())
    assert found() == {}


def test_a_write_of_the_ledger_is_seen_with_its_time_and_size() -> None:
    shown = Shown()
    shown.journal.write_seconds.observe(0.02)
    shown.journal.write_entries.observe(5)
    text = shown.metrics().text()
    assert value(text, "gpuledger_ledger_write_seconds_bucket", le="0.025") == 1
    assert value(text, "gpuledger_ledger_write_seconds_bucket", le="0.01") == 0
    assert value(text, "gpuledger_ledger_write_entries_sum") == 5


async def test_the_lag_of_the_loop_is_measured_while_the_metrics_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_lag, "INTERVAL_S", 0.0)
    metrics, seen = Shown().metrics(), asyncio.Event()
    monkeypatch.setattr(metrics.loop_lag_seconds, "observe", lambda _: seen.set())
    served = metrics.while_served(None)
    await anext(served)
    await seen.wait()
    with pytest.raises(StopAsyncIteration):
        await anext(served)
    seen.clear()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not seen.is_set()


@pytest.mark.parametrize("compatibility", [(), ("hami",), ("hami-legacy",), ("volcano",), METRICS_COMPATIBILITY])
def test_only_names_that_are_asked_for_are_added(compatibility: tuple[str, ...]) -> None:
    beginnings = {"hami": "hami_gpu_", "hami-legacy": "GPUDevice", "volcano": "volcano_vgpu_"}
    names = families(Shown().metrics(compatibility).text())
    found = {system for system, beginning in beginnings.items() if any(name.startswith(beginning) for name in names)}
    assert found == set(compatibility)


def test_cards_and_pods_can_be_left_out_and_sums_stay() -> None:
    card = a_card()
    ledger = a_ledger()
    ledger.load(stored(card, a_holder("a", a_share(card, 20_000))))
    names = families(Shown(ledger).metrics(per_card=False, per_pod=False).text())
    assert not [name for name in names if name.startswith(("gpuledger_card_", "gpuledger_pod_"))]
    text = Shown(ledger).metrics(per_card=False, per_pod=False).text()
    assert value(text, "gpuledger_cards_over_capacity") == 1
    assert value(text, "gpuledger_model_memory_used_bytes", model="") == 20_000 * 2**20


def test_every_metric_has_a_sample_somewhere() -> None:
    text = everything().text()
    shown = {name for name, _ in samples(text)}
    of_family = {"counter": "", "gauge": "", "histogram": "_bucket"}
    assert {name for name, kind in families(text).items() if name + of_family[kind] not in shown} == set()
