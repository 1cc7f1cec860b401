"""Whose questions have cost much gives way to others that were not asked about yet, and goes on all the same."""

from collections.abc import Generator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from builders import a_card
from fakes.api_server import ApiServer
from fakes.objects import GPU, MEMORY, a_pod_object
from fakes.operator_parts import an_operator
from fakes.virtual_time import LoopClock
from gpuledger.formats.scheduler import FilterArguments
from gpuledger.model.errors import WorkLimitExceeded
from gpuledger.workflows.namespace_allowances import AT_ONCE_S, CHEAP_S, SHARE, CostlyQuestions
from gpuledger.workflows.tasks import Step, run_to_end

Json = dict[str, Any]


class Time:
    """Moves when a test says so."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now_s(self) -> float:
        return self.time_s

    def work_s(self) -> float:
        return self.time_s

    def wall(self) -> datetime:
        return datetime.fromtimestamp(self.time_s, UTC)


class Questions:
    """An operator whose answers take as long as a test says."""

    def __init__(self) -> None:
        self.time = Time()
        self.costly = CostlyQuestions(self.time)
        self.binding: set[str] = set()
        self._number = 0

    def come(self, namespace: str, priority: int = 0, conditions: Sequence[Json] = ()) -> Json:
        """Show a pod to the operator's watch; return it."""
        self._number += 1
        pod = a_pod_object(f"pod-{self._number}", {GPU: "1"})
        pod["metadata"]["namespace"] = namespace
        pod["spec"]["priority"] = priority
        pod["status"] = {"phase": "Pending", "conditions": list(conditions)}
        self.costly.observe_pending(pod)
        return pod

    def ask(self, pod: Json, takes_s: float = 0.0) -> bool:
        """Ask about a pod; return whether it was looked for, or had to give way."""

        def steps() -> Generator[Step, None, bool]:
            self.time.time_s += takes_s / 2
            yield None
            self.time.time_s += takes_s / 2
            return True

        try:
            return run_to_end(self.costly.answered(pod, self.binding.__contains__, steps()))
        except WorkLimitExceeded:
            return False

    def spend(self, namespace: str) -> None:
        """Ask until the namespace has had what it may have at once."""
        for _ in range(round(AT_ONCE_S / 0.1) + 4):
            assert self.ask(self.come(namespace), 0.1)


def not_scheduled(reason: str) -> Json:
    return {"type": "PodScheduled", "status": "False", "reason": reason}


@pytest.fixture
def questions() -> Questions:
    return Questions()


def test_a_namespace_whose_questions_cost_much_gives_way_to_another_that_was_not_asked_about(
    questions: Questions,
) -> None:
    questions.spend("costly")
    mine, other = questions.come("costly"), questions.come("other")
    assert not questions.ask(mine, 0.1)
    assert questions.ask(other, 0.001)
    assert questions.ask(mine, 0.1), "nobody waits for it any more"


def test_it_gives_way_to_nobody_while_others_do_not_wait_or_were_looked_at(questions: Questions) -> None:
    tried = questions.come("other", conditions=[not_scheduled("Unschedulable")])
    gone, gated = questions.come("other"), questions.come("other")
    questions.costly.forget_pending(gone["metadata"]["uid"])
    gated["status"]["conditions"] = [not_scheduled("SchedulingGated")]
    for pod in (tried, gated):
        questions.costly.observe_pending(pod)
    questions.come("costly")
    questions.spend("costly")
    assert questions.ask(questions.come("costly"), 0.1)
    known = questions.costly.known_pending()
    assert not known & {each["metadata"]["uid"] for each in (tried, gone, gated)}


def test_however_many_plain_questions_there_are_they_give_way_to_nobody(questions: Questions) -> None:
    questions.come("other")
    for _ in range(5_000):
        assert questions.ask(questions.come("plain"), CHEAP_S)


def test_however_many_others_come_it_goes_on_for_a_part_of_the_time(questions: Questions) -> None:
    """Else pods that come and are never asked about, which anybody can create, would stop others for good."""
    questions.spend("costly")
    took_s = 0.1
    begin_s, answered_s = questions.time.time_s, 0.0
    while questions.time.time_s < begin_s + 60:
        questions.come("others")
        if questions.ask(questions.come("costly"), took_s):
            answered_s += took_s
        else:
            questions.time.time_s += 0.01
    assert answered_s == pytest.approx(60 * SHARE, rel=0.1)


def test_two_that_cost_much_do_not_wait_for_each_other(questions: Questions) -> None:
    for namespace in ("one", "two"):
        questions.spend(namespace)
    one, two = questions.come("one"), questions.come("two")
    assert questions.ask(one, 0.1)
    assert questions.ask(two, 0.1)


def test_it_does_not_give_way_to_pods_that_come_after_it(questions: Questions) -> None:
    questions.spend("costly")
    urgent, other = questions.come("costly", priority=10), questions.come("other", priority=9)
    assert questions.ask(urgent, 0.1)
    questions.ask(other)
    questions.come("other", priority=10)
    assert not questions.ask(questions.come("costly", priority=10), 0.1)


def test_a_pod_that_is_being_bound_gets_its_answer(questions: Questions) -> None:
    questions.spend("costly")
    questions.come("other")
    pod = questions.come("costly")
    questions.binding.add(pod["metadata"]["uid"])
    assert questions.ask(pod)


def test_what_was_taken_is_forgotten_with_time(questions: Questions) -> None:
    questions.spend("costly")
    questions.come("other")
    assert not questions.ask(questions.come("costly"), 0.1)
    questions.time.time_s += 2 * AT_ONCE_S / SHARE
    assert questions.ask(questions.come("costly"), 0.1)
    for number in range(100):
        questions.ask(questions.come(f"brief-{number}"), 0.1)
        questions.time.time_s += 1
    assert len(questions.costly._ends_s) <= 3


class SlowClock(LoopClock):
    """By which each look at what work has taken finds two seconds more."""

    def __init__(self) -> None:
        super().__init__()
        self._looks = 0.0

    def work_s(self) -> float:
        self._looks += 2
        return self._looks


async def test_kube_scheduler_is_told_to_ask_again_and_comes_to_the_others_first(api: ApiServer) -> None:
    """As the parts are connected: pods are seen by the watch, and asked for by kube-scheduler."""
    api.put_card(a_card(0))
    parts = an_operator(api, clock=SlowClock())
    for name, namespace in (("first", "costly"), ("second", "costly"), ("other", "default")):
        pod = a_pod_object(name, {GPU: "1", MEMORY: "100"})
        pod["metadata"]["namespace"] = namespace
        api.put_pod(pod)

    async def ask(name: str, namespace: str) -> list[str]:
        question = FilterArguments(api.pods[namespace, name], ["node-a"])
        return list((await parts.placer.answer(question)).node_names)

    parts.watch()
    assert await ask("first", "costly") == ["node-a"]
    with pytest.raises(WorkLimitExceeded, match="namespace costly have taken long"):
        await ask("second", "costly")
    assert await ask("other", "default") == ["node-a"]
    assert await ask("second", "costly") == ["node-a"]
