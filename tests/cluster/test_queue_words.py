"""Queues in Volcano's and KAI's words, with Kueue's own manager: taken for LocalQueues by a setting, else warned of."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest

from cluster.cluster import COUNT, Cluster, Connection
from cluster.dry_runs import as_user
from cluster.kubernetes import FILLS_IN, MINOR
from cluster.queues import CORES, JOBS, WORKLOADS, Queues
from cluster.training_jobs import TRAINING, TRAINING_JOBS, create_kind, sent, tried
from control_plane import ControlPlane, free_port
from fakes.queue_cases import BY_KAI, BY_VOLCANO, KEPT, KUEUE, QUEUED, a_job, a_pod
from installation import NO_KUBELET, NOTHING_RUNS, Installation
from kueue import Kueue

Json = dict[str, Any]

PODS = "/api/v1/namespaces/default/pods"
QUEUE = "team"
CARD = {COUNT: "1", CORES: "100"}
"""A whole card, and what it takes of the queue's quota."""


@dataclass(frozen=True)
class Scene:
    """A cluster with a queue for one card."""

    queues: Queues
    user: Connection

    @property
    def cluster(self) -> Cluster:
        """Return the cluster."""
        return self.queues.cluster

    def workloads(self) -> list[Json]:
        """Return what Kueue sees."""
        return list(self.cluster.request("GET", WORKLOADS)["items"])


def started(how: str, queue_words: bool) -> Iterator[Scene]:
    """Start it all; admission by policies or by the webhook."""
    if how == "policies" and not FILLS_IN:
        pytest.skip(f"policies of Kubernetes {MINOR} fill in no pods")
    with ControlPlane.run() as plane:  # with Kueue
        kueue = Kueue(plane)
        kueue.start()
        certificate, key = map(str, plane.serving_files)
        port = free_port()
        settings: Json = {"kueue": True, "queue_words": queue_words}
        if how == "webhook":
            settings |= {"webhook_host": "127.0.0.1", "webhook_port": port}
            settings |= {"webhook_cert_file": certificate, "webhook_key_file": key}
        installation = Installation(plane, {**NO_KUBELET, **NOTHING_RUNS, **settings})
        installation.start()
        arguments = ["admission-policies"]
        if how == "webhook":
            arguments = ["webhook-config", "--url", f"https://127.0.0.1:{port}", "--ca-file", certificate]
        command = [sys.executable, "-m", "gpuledger", *arguments, "--settings", str(installation.settings_file)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        plane.kubectl("apply", "-f", "-", stdin=printed)
        scene = Scene(Queues(Cluster(plane, installation), kueue), as_user(plane, "user"))
        scene.queues.add(QUEUE, 100, cohort="")
        for group in TRAINING:
            create_kind(scene.cluster, group)
        scene.cluster.wait(lambda: '"gpuledger"' in tried(scene.user, a_pod({})), "pods are filled in")
        if queue_words:
            for body in (a_pod(BY_KAI), a_job(BY_KAI, {}), *named(TRAINING_JOBS)):
                scene.cluster.wait(lambda body=body: KUEUE in tried(scene.user, body), "words count")  # type: ignore[misc]
        yield scene
        scene.user.close()
        scene.cluster.close()


@pytest.fixture(
    scope="module",
    params=["policies", pytest.param("webhook", marks=[pytest.mark.long] if FILLS_IN else [])],
)
def taken(request: pytest.FixtureRequest) -> Iterator[Scene]:
    yield from started(request.param, queue_words=True)


@pytest.fixture
def queueing(taken: Scene) -> Iterator[Scene]:
    """Yield it with two free cards, and clear it."""
    taken.cluster.add_nodes(1, gpus=2)
    yield taken
    taken.queues.clear()


@pytest.fixture(scope="module")
def ignored() -> Iterator[Scene]:
    yield from started("policies" if FILLS_IN else "webhook", queue_words=False)


def named(bodies: list[Json]) -> list[Json]:
    """Return objects which themselves name the queue."""
    return [{**body, "metadata": {**body["metadata"], **BY_VOLCANO}} for body in bodies]


def queue_of(user: Connection, body: Json) -> str:
    """Return the LocalQueue of an object as it would be stored."""
    return str((sent(user, deepcopy(body))["metadata"].get("labels") or {}).get(KUEUE, ""))


def jobs_of_both(scene: Scene) -> None:
    """Create a Job for each system's word, whose pods ask for a card each."""
    for name, words in (("by-volcano", BY_VOLCANO), ("by-kai", BY_KAI)):
        scene.user.request("POST", JOBS, a_job({"name": name}, words, CARD))


def queue_warnings(scene: Scene) -> list[str]:
    """Return what the owners of all pods were told about queues."""
    texts = [text for name in scene.cluster.pods() for text in scene.cluster.messages(name)]
    return [text for text in texts if "has no effect" in text and "queue" in text]


def test_jobs_wait_in_the_queue_that_they_name_in_other_words_and_run(queueing: Scene) -> None:
    cluster, queues = queueing.cluster, queueing.queues
    jobs_of_both(queueing)
    cluster.wait(lambda: len(queues.running("by-volcano", "by-kai")) == 1, "one of them runs")
    (first,) = queues.running("by-volcano", "by-kai")
    (second,) = {"by-volcano", "by-kai"} - {first}
    cluster.wait(lambda: "insufficient unused quota" in str(queues.workload(second)), "the other waits for quota")
    assert {queues.workload(name)["spec"]["queueName"] for name in (first, second)} == {QUEUE}
    assert not [name for name in cluster.pods() if name.startswith(second)]
    assert queues.check(first)[0] == "Ready"
    queues.delete(first)
    queues.wait_running(second)
    cluster.settle()
    cluster.wait(lambda: len(queueing.workloads()) == 1, "one workload is left: a pod of a Job is none of its own")
    assert queue_warnings(queueing) == []


def test_a_single_pod_waits_in_the_queue_that_it_names_and_runs(queueing: Scene) -> None:
    cluster = queueing.cluster
    for name, words in (("pod-1", BY_VOLCANO), ("pod-2", BY_KAI)):
        queueing.user.request("POST", PODS, a_pod({"name": name, **words}, CARD))
        cluster.wait(lambda: len(queueing.workloads()) == len(cluster.pods()), "it is Kueue's")
    cluster.wait_bound("pod-1")
    cluster.wait(lambda: "insufficient unused quota" in str(queueing.queues.workload("pod-2")), "the other waits")
    cluster.delete("pod-1")
    cluster.wait_bound("pod-2")
    assert queue_warnings(queueing) == []
    cluster.delete("pod-2")


@pytest.mark.parametrize("name", QUEUED)
def test_what_names_a_queue_gets_its_label_and_all_else_gets_none(taken: Scene, name: str) -> None:
    body, queue = QUEUED[name]
    assert queue_of(taken.user, body) == queue


@pytest.mark.parametrize("body", KEPT)
def test_the_label_that_a_user_wrote_stays(taken: Scene, body: Json) -> None:
    assert queue_of(taken.user, body) == (body["metadata"].get("labels") or {}).get(KUEUE, "")


@pytest.mark.parametrize("body", named(TRAINING_JOBS), ids=lambda body: body["kind"])
def test_training_jobs_get_the_label_too(taken: Scene, body: Json) -> None:
    assert queue_of(taken.user, body) == QUEUE


def test_without_the_setting_the_pods_are_warned_and_kueue_does_not_see_them(ignored: Scene) -> None:
    cluster = ignored.cluster
    cluster.add_nodes(1, gpus=2)
    jobs_of_both(ignored)
    ignored.queues.wait_running("by-volcano", "by-kai")  # two cards, of a quota for one
    cluster.wait(lambda: len(queue_warnings(ignored)) == 2, "both pods are told")
    assert any("scheduling.volcano.sh/queue-name has no effect" in text for text in queue_warnings(ignored))
    assert any("kai.scheduler/queue has no effect" in text for text in queue_warnings(ignored))
    assert ignored.workloads() == []
