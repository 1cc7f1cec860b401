"""What is seen of an MPS daemon becomes its state: it takes programs only while it certainly serves them."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.agent.isolation.mps_daemons import (
    LONGEST_PAUSE_S,
    SAME_FAULT_S,
    SILENCE_S,
    START_S,
    STEADY_S,
    DaemonState,
)
from gpuledger.formats.runtime.mps import FatalFault, FaultKind, LogEntry, Phase, ServerEnded, ServerStatus

ACTIVE, FAULT, INITIALIZING = ServerStatus.ACTIVE, ServerStatus.FAULT, ServerStatus.INITIALIZING


def running() -> DaemonState:
    state = DaemonState("GPU-0", ("GPU-0",))
    state.started(7, 0.0)
    assert state.answered({}, 1.0) == []
    assert (state.phase, state.why) == (Phase.RUNNING, "")
    return state


def test_before_its_first_answer_it_takes_no_programs_and_says_why() -> None:
    state = DaemonState("GPU-0", ("GPU-0",))
    assert (state.phase, state.pid) == (Phase.WAITING, 0)
    state.started(7, 0.0)
    state.unanswered("no socket", 1.0)
    assert (state.phase, state.why) == (Phase.STARTING, "it is being started; no socket")


def test_only_one_that_has_never_answered_may_be_ended() -> None:
    state = DaemonState("GPU-0", ("GPU-0",))
    state.started(7, 0.0)
    assert not state.never_answered(START_S - 1)
    assert state.never_answered(START_S)
    state.answered({}, START_S)
    state.unanswered("hangs", START_S + 10 * SILENCE_S)
    assert state.phase is Phase.SILENT
    assert not state.never_answered(100 * START_S)


def test_a_question_that_is_lost_changes_nothing_and_silence_does() -> None:
    state = running()
    state.unanswered("late", 1.0 + SILENCE_S - 1)
    assert state.phase is Phase.RUNNING
    state.unanswered("late", 1.0 + SILENCE_S)
    assert (state.phase, state.why) == (Phase.SILENT, "it has not answered for 30 s: late")
    state.answered({}, 100.0)
    assert state.phase is Phase.RUNNING


@pytest.mark.parametrize("order", ["log first", "status first", "log alone", "status alone"])
def test_a_fault_that_shows_twice_is_one(order: str) -> None:
    state, found = running(), []
    state.answered({30: ACTIVE}, 2.0)
    log = [FatalFault(30, (101, 102))]
    if order.startswith("log"):
        found += state.logged(log, 3.0)
        assert state.phase is Phase.FAULT
    if "alone" not in order or order.startswith("status"):
        found += state.answered({30: FAULT}, 4.0)
        assert state.phase is Phase.FAULT
    if order == "status first":
        found += state.logged(log, 5.0)
    found += state.answered({30: ACTIVE}, 6.0)
    assert state.phase is Phase.RUNNING
    assert [kind for kind, _ in found] == [FaultKind.FATAL]
    assert state.faults == Counter({FaultKind.FATAL: 1})
    if order.startswith("log"):
        assert "101, 102" in found[0][1]


def test_a_server_that_is_active_for_a_moment_between_log_and_status_has_one_fault_and_a_later_one_is_another() -> None:
    state = running()
    assert len(state.logged([FatalFault(30)], 3.0)) == 1
    assert state.answered({30: ACTIVE}, 3.1) == []
    assert state.answered({30: FAULT}, 4.0) == []
    assert state.phase is Phase.FAULT
    assert state.answered({30: ACTIVE}, 5.0) == []
    assert len(state.answered({30: FAULT}, 5.0 + SAME_FAULT_S)) == 1


def test_a_server_that_starts_takes_programs_which_wait_at_the_daemon() -> None:
    state = running()
    state.answered({30: INITIALIZING}, 2.0)
    assert state.phase is Phase.RUNNING


@pytest.mark.parametrize(
    ("status", "logged_after", "faults"),
    [(0, 0, 0), (0, 1, 0), (1, 0, 1), (1, 1, 1), (-9, 0, 1), (None, 0, 1)],
)
def test_the_end_of_a_server_is_told_once_whoever_tells_it_first(
    status: int | None, logged_after: int, faults: int
) -> None:
    state, found = running(), []
    state.answered({30: ACTIVE}, 2.0)
    entries: list[LogEntry] = [] if status is None else [ServerEnded(30, status)]
    for look in range(3):
        if look == logged_after:
            found += state.logged(entries, 3.0 + look)
        found += state.answered({}, 3.5 + look)
    assert [kind for kind, _ in found] == [FaultKind.SERVER_ENDED] * faults


def test_a_daemon_whose_server_is_gone_with_it_has_lost_programs_and_one_without_has_not() -> None:
    state = running()
    _, found = state.ended("killed", 5.0)
    assert found == []
    state.started(8, 6.0)
    state.answered({30: ACTIVE}, 7.0)
    pause_s, found = state.ended("it has ended with signal 9", 8.0)
    assert [kind for kind, _ in found] == [FaultKind.DAEMON_ENDED]
    assert state.why == f"it has ended with signal 9; it is started again in {pause_s:g} s"
    assert (state.phase, state.pid, state.servers) == (Phase.WAITING, 0, {})


def test_pauses_grow_and_start_over_after_a_steady_time() -> None:
    state, pauses = DaemonState("GPU-0", ("GPU-0",)), []
    for _ in range(9):
        state.started(7, 0.0)
        pauses.append(state.ended("no", 1.0)[0])
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (1.0, LONGEST_PAUSE_S)
    state.started(7, 0.0)
    assert state.ended("no", STEADY_S)[0] == 1.0


STEPS = st.one_of(
    st.tuples(st.just("started"), st.integers(1, 99)),
    st.tuples(st.just("answered"), st.dictionaries(st.integers(1, 4), st.sampled_from(list(ServerStatus)), max_size=3)),
    st.tuples(st.just("unanswered"), st.text(max_size=400)),
    st.tuples(
        st.just("logged"),
        st.lists(
            st.builds(FatalFault, st.integers(1, 4)) | st.builds(ServerEnded, st.integers(1, 4), st.integers(-9, 2)),
            max_size=3,
        ),
    ),
    st.tuples(st.just("ended"), st.text(max_size=400)),
)


@given(st.lists(st.tuples(STEPS, st.floats(0.1, 100.0)), max_size=40))
def test_whatever_is_seen_counts_only_grow_and_who_takes_programs_has_answered(
    steps: list[tuple[tuple[str, object], float]],
) -> None:
    state, now_s, told = DaemonState("GPU-0", ("GPU-0",)), 0.0, 0
    for (step, what), passed_s in steps:
        now_s += passed_s
        if step != "started" and not state.pid:
            continue  # nothing is seen of a process that does not run
        if step == "ended":
            pause_s, found = state.ended(str(what), now_s)
            assert 1.0 <= pause_s <= LONGEST_PAUSE_S
        elif step == "started":
            if state.pid:
                continue
            state.started(what, now_s)  # type: ignore[arg-type]
            found = []
        else:
            found = getattr(state, step)(what, now_s) or []
        told += len(found)
        assert state.faults.total() == told
        assert (state.phase is Phase.RUNNING) == (not state.why)
        if state.phase is Phase.RUNNING:
            assert state.pid
            assert ServerStatus.FAULT not in state.servers.values()
        if step == "answered" and ServerStatus.FAULT in what.values():  # type: ignore[attr-defined]
            assert state.phase is Phase.FAULT
        assert len(state.status.why) <= 300
