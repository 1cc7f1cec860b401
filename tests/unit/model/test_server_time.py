"""The API server's clock, of which answers say whole seconds, runs on without them, whoever sets this machine's."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from gpuledger.model.clock import ServerTime

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


class Ours:
    """A clock that can't be set."""

    now_s = 500.0

    def __call__(self) -> float:
        return self.now_s


def test_before_the_first_answer_nothing_is_known() -> None:
    assert ServerTime(Ours()).now() is None


def test_between_answers_it_runs_on() -> None:
    ours = Ours()
    server = ServerTime(ours)
    server.observe(NOON, ours.now_s)
    ours.now_s += 90.5
    assert server.now() == NOON + timedelta(seconds=90.5)


@given(st.lists(st.tuples(st.floats(0.0, 30.0), st.floats(0.0, 0.2), st.floats(0.0, 0.2)), min_size=1, max_size=50))
def test_it_is_never_ahead_and_less_than_a_second_and_an_answers_way_behind(
    answers: list[tuple[float, float, float]],
) -> None:
    ours, ahead_s = Ours(), NOON.timestamp() + 0.123
    server = ServerTime(ours)
    for pause_s, there_s, back_s in answers:
        ours.now_s += pause_s
        asked_s = ours.now_s
        ours.now_s += there_s
        said = datetime.fromtimestamp(int(ours.now_s + ahead_s), UTC)
        ours.now_s += back_s
        server.observe(said, asked_s)
        now = server.now()
        assert now is not None
        assert -1.21 <= now.timestamp() - (ours.now_s + ahead_s) <= 1e-3


def test_many_answers_say_it_more_exactly_than_to_the_second() -> None:
    ours, server = Ours(), ServerTime(Ours())
    server = ServerTime(ours)
    for _ in range(100):
        ours.now_s += 0.037
        server.observe(datetime.fromtimestamp(int(ours.now_s + NOON.timestamp()), UTC), ours.now_s)
    now = server.now()
    assert now is not None
    assert abs(now.timestamp() - (ours.now_s + NOON.timestamp())) < 0.04


def test_a_server_whose_clock_is_put_back_is_believed() -> None:
    ours = Ours()
    server = ServerTime(ours)
    server.observe(NOON, ours.now_s)
    ours.now_s += 10
    server.observe(NOON - timedelta(hours=1), ours.now_s)
    assert server.now() == NOON - timedelta(hours=1)
