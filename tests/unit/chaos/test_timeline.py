"""Tasks come at their times, in order, those too that are added meanwhile."""

import threading
import time

from chaos.timeline import Timeline


def test_tasks_are_done_in_the_order_of_their_times() -> None:
    timeline, done = Timeline(), list[str]()
    now_s = time.monotonic()
    timeline.at(now_s + 0.02, lambda: done.append("second"))
    timeline.at(now_s + 0.01, lambda: done.append("first"))
    timeline.at(now_s + 0.01, lambda: timeline.at(now_s + 0.03, lambda: done.append("third")))
    timeline.at(now_s + 60, lambda: done.append("too late"))
    timeline.run(until_s=now_s + 0.05)
    assert done == ["first", "second", "third"]
    assert time.monotonic() >= now_s + 0.05


def test_a_task_that_comes_from_another_thread_is_not_overslept() -> None:
    timeline, done = Timeline(), threading.Event()
    thread = threading.Thread(target=timeline.run)
    thread.start()
    timeline.at(time.monotonic() + 60, lambda: None)
    timeline.at(time.monotonic(), done.set)
    assert done.wait(30)
    timeline.close()
    thread.join(30)
    assert not thread.is_alive()
