"""A pod that says something without effect is told once for each set of words, by the active replica only."""

from typing import Any

from fakes.context import a_context
from fakes.virtual_time import StoppedClock
from gpuledger.configuration.dialects import dialects_of
from gpuledger.configuration.settings import Settings
from gpuledger.workflows.leadership import Leadership
from gpuledger.workflows.pending.pod_condition import MOST_EVENTS, PodWarner
from gpuledger.workflows.reporting import Counts

DIALECTS = dialects_of(Settings())


class Recorder:
    def __init__(self) -> None:
        self.posted: list[str] = []

    def post_pod_event_once(self, pod: Any, reason: str, sentence: str, key: str) -> None:
        self.posted.append(sentence)

    def post_pod_event(self, *_: Any) -> None:
        raise AssertionError

    post_node_event = post_pod_event


def a_pod(**annotations: str) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": "1"}
    named = {f"volcano.sh/{name.replace('_', '-')}": value for name, value in annotations.items()}
    metadata = {"name": "p", "namespace": "n", "uid": "u", "annotations": named}
    return {"metadata": metadata, "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]}}


def warner(recorder: Recorder, counts: Counts, active: bool = True) -> PodWarner:
    context = a_context(StoppedClock(), events=recorder)
    context.counts, context.leadership = counts, Leadership(None if active else "other")
    return PodWarner(context)


def test_a_pod_is_told_once_for_each_set_of_words_and_a_metric_counts() -> None:
    recorder, counts = Recorder(), Counts()
    told = warner(recorder, counts)
    for pod in (a_pod(), a_pod(queue_name="a"), a_pod(queue_name="b"), a_pod(queue_name="b", preemptable="true")):
        told.observe_pending(pod)
    assert len(recorder.posted) == 2
    assert counts.registry.get_sample_value("gpuledger_words_without_effect_total", {"kind": "foreign"}) == 3
    assert told.known_pending() == {"u"}
    told.forget_pending("u")
    assert told.known_pending() == set()


def test_a_pod_that_changes_for_ever_gets_few_events() -> None:
    recorder = Recorder()
    told = warner(recorder, Counts())
    for number in range(3 * MOST_EVENTS):
        told.observe_pending(a_pod(**{f"vgpu_memry{number}": "x", f"vgpu_use_gpuuid{number}": "x", "queue_name": "q"}))
    assert 1 <= len(recorder.posted) <= MOST_EVENTS


def test_a_replica_on_standby_tells_nobody() -> None:
    recorder = Recorder()
    warner(recorder, Counts(), active=False).observe_pending(a_pod(queue_name="q"))
    assert recorder.posted == []
