"""A platform engineer's second week: two teams, a quota that is too small, a queue, a full cluster, a rolling update.

On what `make demo-queues` sets up, four cards and Kueue's own manager, by the commands that people type.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from build_control_plane import ensure_binaries
from control_plane import ControlPlane
from demo import Screen
from queues_demo import EXAMPLES, QueuesDemo

Json = dict[str, Any]

TEAM, BATCH = "team-research", "team-batch"
PATIENCE_S = 60.0
WAITS = 1
"""The status of `explain` of something that waits."""


class Engineer:
    """Who has a shell with kubectl and the plugin, and looks again until something is so."""

    def __init__(self, plane: ControlPlane, url: str) -> None:
        self._plane = plane
        self._latest = ""  # command, and what it has printed
        programs = (str(Path(sys.executable).parent), str(ensure_binaries()), os.environ["PATH"])
        self._environment = {
            **os.environ,
            "KUBECONFIG": str(plane.kubeconfig),
            "GPULEDGER_URL": url,
            "PATH": os.pathsep.join(programs),
        }

    def types(self, command: str, status: int = 0) -> str:
        """Run a command, and return what it prints."""
        done = subprocess.run(
            command.split(), env=self._environment, capture_output=True, text=True, timeout=120, check=False
        )
        self._latest = f"{command}\n{done.stdout}{done.stderr}"
        assert done.returncode == status, self._latest
        return done.stdout

    def reads(self, command: str) -> Any:
        return json.loads(self.types(f"{command} -o json"))

    def applies(self, *objects: Json) -> None:
        self._plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))

    def sees(self, what: str, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, f"after {PATIENCE_S:.0f} s it is not so that {what}:\n{self._latest}"
            time.sleep(0.2)

    def running(self, namespace: str, selector: str) -> set[str]:
        found = self.reads(f"kubectl get pods -n {namespace} -l {selector}")["items"]
        phases = ((pod, pod["status"]["phase"]) for pod in found if "deletionTimestamp" not in pod["metadata"])
        return {pod["metadata"]["name"] for pod, phase in phases if phase == "Running"}


@pytest.fixture(scope="module")
def engineer() -> Iterator[Engineer]:
    with ControlPlane.run(every_controller=True) as plane:
        demo = QueuesDemo(plane, Screen())
        demo.set_up()
        yield Engineer(plane, demo.view_url)


def quota(cards: int) -> Json:
    hard = {"limits.nvidia.com/gpu": str(cards)}
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": TEAM},
        "spec": {"hard": hard},
    }


def llm(version: str, **strategy: object) -> Json:
    container = {
        "name": "main",
        "image": "registry.k8s.io/pause:3.10",
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "llm", "namespace": TEAM},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "llm"}},
            **({"strategy": strategy} if strategy else {}),
            "template": {
                "metadata": {"labels": {"app": "llm", "version": version}},
                "spec": {"schedulerName": "gpuledger", "containers": [container]},
            },
        },
    }


def test_the_second_week_of_two_teams(engineer: Engineer) -> None:
    # A quota that is too small: one of two replicas runs, and the other one's reason names both amounts.
    engineer.applies(quota(1), llm("first"))
    engineer.sees("one replica runs", lambda: len(engineer.running(TEAM, "app=llm")) == 1)
    listed = f"kubectl gpuledger explain -n {TEAM}"
    engineer.sees("the other one is listed", lambda: " quota " in engineer.types(listed))
    assert "asks for 1" in engineer.types(f"kubectl gpuledger explain deploy/llm -n {TEAM}", WAITS)
    by_team = engineer.types("kubectl gpuledger top --by namespace")
    assert TEAM in by_team

    # It is raised: the replica runs without anybody's doing.
    engineer.applies(quota(2))
    engineer.sees("both replicas run", lambda: len(engineer.running(TEAM, "app=llm")) == 2)

    # A rolling update at the quota stands still and says how not to; changed so, it ends.
    engineer.applies(llm("second"))
    engineer.sees(
        "the update's pod is told of its own Deployment",
        lambda: "maxSurge: 0" in engineer.types(f"kubectl gpuledger explain deploy/llm -n {TEAM}", WAITS),
    )
    engineer.applies(llm("second", type="RollingUpdate", rollingUpdate={"maxSurge": 0, "maxUnavailable": 1}))
    engineer.sees("both replicas are of the new version", lambda: len(engineer.running(TEAM, "version=second")) == 2)

    # A queue on a cluster that gets full: of four jobs of a card each, two find one, and the others say why not.
    engineer.types(f"kubectl apply -f {EXAMPLES / 'batch-jobs.yaml'}")
    engineer.sees("two jobs run", lambda: len(engineer.running(BATCH, "job-name")) == 2)

    def waiting_jobs() -> list[str]:
        listed = engineer.types(f"kubectl gpuledger explain -n {BATCH} -o csv")
        return [line for line in listed.splitlines() if "workload/" in line]

    engineer.sees("two jobs wait for cards, and are listed", lambda: len(waiting_jobs()) == 2)
    cards = engineer.reads("kubectl get gpuallocations")["items"]
    assert [card["status"]["pods"].count("/") for card in cards] == [1] * 4

    # One job ends: the next one comes. And the ledger agrees with the cluster all the time.
    ended = next(iter(engineer.running(BATCH, "job-name")))
    job = engineer.reads(f"kubectl get pod {ended} -n {BATCH}")["metadata"]["labels"]["job-name"]
    engineer.types(f"kubectl delete job {job} -n {BATCH}")
    engineer.sees("another job runs", lambda: len(engineer.running(BATCH, "job-name") - {ended}) == 2)
    assert len(waiting_jobs()) == 1
    rows = engineer.types("kubectl gpuledger history --since 1h -o csv")
    assert {"assigned", "released"} <= {row.split(",")[1] for row in rows.splitlines()}
    engineer.types("kubectl gpuledger audit")
