"""Show queues at work: Kueue's real manager, two teams, four cards, and what cards need where sums say less.

`make demo-queues` takes everything down again; `make demo-queues KEEP=1` leaves it running until Ctrl-C.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from build_control_plane import ensure_binaries, ensure_kueue
from control_plane import ControlPlane, free_port
from demo import PROGRAMS, DemoError, Screen, run_demo
from installation import REPOSITORY, Installation
from kueue import Kueue

EXAMPLES = REPOSITORY / "examples" / "queues"
MODEL, MEMORY_MIB = "A100-40GB", 40_960
TIMEOUT_S = 60.0
LOW, HIGH = [f"render-{number}" for number in range(1, 5)], "train"

WORKLOADS = (
    "custom-columns=JOB:.metadata.ownerReferences[0].name,QUEUE:.spec.queueName,"
    'QUOTA:.status.conditions[?(@.type=="QuotaReserved")].status,CARDS:.status.admissionChecks[0].state,'
    'ADMITTED:.status.conditions[?(@.type=="Admitted")].status'
)
PODS = "custom-columns=POD:.metadata.name,TEAM:.metadata.namespace,NODE:.spec.nodeName,STATUS:.status.phase"

Json = dict[str, Any]


class QueuesDemo:
    """The story, in the order in which it is told."""

    def __init__(self, plane: ControlPlane, screen: Screen) -> None:
        self._plane = plane
        self._screen = screen
        self._kueue = Kueue(plane)
        self._product = Installation(
            plane, {"kueue": True, "sum_models": [f"{MODEL}={MEMORY_MIB}"], "view_port": free_port()}
        )

    @property
    def view_url(self) -> str:
        """Where the operator answers commands."""
        return self._product.view_url

    def set_up(self) -> None:
        """Install Kueue and gpuledger, and register a node."""
        with self._screen.step("Kueue 0.19.2, by its release's own manifests"):
            self._kueue.start()
        with self._screen.step("gpuledger, with the setting `kueue`; sums on containers by a policy"):
            self._product.start()
            policies = [sys.executable, "-m", "gpuledger", "admission-policies"]
            rendered = subprocess.check_output([*policies, "--settings", str(self._product.settings_file)], text=True)
            self._plane.kubectl("apply", "-f", "-", stdin=rendered)
        with self._screen.step(f"a simulated node with four cards ({MODEL})"):
            self._product.fake_nodes("--count", "1", "--gpus", "4", "--model", MODEL, stay=True)
            self._wait_for("the cards are ready", lambda: self._ready_cards() == 4)
        with self._screen.step("kubectl apply -f examples/queues/queues.yaml: two teams, one cohort"):
            self._plane.kubectl("apply", "-f", str(EXAMPLES / "queues.yaml"))
            self._wait_for("the queues are active", self._queues_are_active)
            self._wait_for("sums are written", self._sums_are_written)

    def tell(self) -> None:
        """Tell the report's story, on cards."""
        show, run = self._screen.section, self._run
        show("All four cards are research's own. Nobody uses them, so batch borrows: a card for each of four jobs.")
        run(f"kubectl apply -f {self._file('batch-jobs.yaml')}")
        self._wait_for("batch's jobs run", lambda: self._running() == {*LOW})
        run(f"kubectl get pods -A -l kueue.x-k8s.io/local-queue-name -o {PODS}")
        show(
            "Research comes for 60 % of each card. In sums that is 240 % of 400 %, so Kueue takes back three of the",
            "four. The job needs a part of all four: the check finds no room, and the fourth job is evicted, too.",
        )
        run(f"kubectl apply -f {self._file('research-job.yaml')}")
        begin_s = time.monotonic()
        self._wait_for("research's job runs, alone", lambda: self._running() == {HIGH})
        took_s = time.monotonic() - begin_s
        self._wait_for("nothing else is admitted", lambda: self._admitted() == {HIGH})
        run(f"kubectl get workloads -A -o '{WORKLOADS}'")
        reasons = "custom-columns=JOB:.involvedObject.name,REASON:.reason,MESSAGE:.message"
        run(f"kubectl get events -n team-batch --field-selector reason=EvictedDueToAdmissionCheck -o {reasons}")
        self._screen.line(f"Research's job runs {took_s:.1f} s after it was created.")
        show("Who has quota again waits for cards, without a pod. The check says why, in the words of `explain`.")
        path = '{range .items[*]}{.metadata.ownerReferences[0].name}: {.status.admissionChecks[0].message}{"\\n"}{end}'
        self._wait_for("the check says why", lambda: "take it" in self._kubectl("get workloads -n team-batch -o json"))
        run(f"kubectl get workloads -n team-batch -o jsonpath='{path}'")
        show("Research's job has ended. All four come back.")
        run(f"kubectl delete job {HIGH} -n team-research")
        self._wait_for("batch's jobs run again", lambda: self._running() == self._admitted() == {*LOW})
        run(f"kubectl get workloads -A -o '{WORKLOADS}'")
        show("No card was given twice: the ledger, card by card.")
        run("kubectl get gpuallocations --sort-by=.spec.index")

    def stay(self) -> None:
        """Tell how to look around, and stay until interrupted."""
        self._screen.section("All of it runs until Ctrl-C. In another terminal:")
        for line in (
            f"export KUBECONFIG={shlex.quote(str(self._plane.kubeconfig))}",
            f'export PATH={shlex.quote(str(ensure_binaries()))}:{shlex.quote(PROGRAMS)}:"$PATH"',
            f"export GPULEDGER_URL={self.view_url}",
            "kubectl gpuledger top --by queue",
            "kubectl get workloads -A",
            f"kubectl apply -f {EXAMPLES / 'research-job.yaml'}",
        ):
            self._screen.line(f"  {line}", "cyan")
        while True:
            time.sleep(1)
            self._ensure_alive()

    def _ensure_alive(self) -> None:
        self._plane.ensure_alive()
        self._product.ensure_alive()

    def _file(self, name: str) -> str:
        return str((EXAMPLES / name).relative_to(REPOSITORY))

    def _run(self, command: str) -> None:
        """Print a command and what it prints."""
        self._screen.command(command)
        self._screen.table(
            self._kubectl(command.removeprefix("kubectl ").replace("-f examples", f"-f {REPOSITORY}/examples"))
        )

    def _kubectl(self, arguments: str) -> str:
        return self._plane.kubectl(*shlex.split(arguments))

    def _items(self, arguments: str) -> list[Json]:
        return list(json.loads(self._kubectl(f"get {arguments} -o json"))["items"])

    def _ready_cards(self) -> int:
        return [card.get("status", {}).get("phase") for card in self._items("gpuallocations")].count("Ready")

    def _queues_are_active(self) -> bool:
        return all(
            any(each["type"] == "Active" and each["status"] == "True" for each in queue["status"].get("conditions", []))
            for queue in self._items("clusterqueues")
            if "status" in queue
        )

    def _sums_are_written(self) -> bool:
        """Return whether the policy is in force by now."""
        job = ("create", "--dry-run=server", "-o", "json", "-f", str(EXAMPLES / "research-job.yaml"))
        return "gpuledger.dev/memory-mib" in self._plane.kubectl(*job)

    def _admitted(self) -> set[str]:
        conditions = {
            each["metadata"]["ownerReferences"][0]["name"]: each.get("status", {}).get("conditions", [])
            for each in self._items("workloads -A")
        }
        is_admitted = {"type": "Admitted", "status": "True"}
        return {job for job, found in conditions.items() if any(is_admitted.items() <= each.items() for each in found)}

    def _running(self) -> set[str]:
        pods = self._items("pods -A -l kueue.x-k8s.io/local-queue-name")
        running = (pod for pod in pods if pod["status"]["phase"] == "Running")
        return {pod["metadata"]["labels"]["job-name"] for pod in running if "deletionTimestamp" not in pod["metadata"]}

    def _wait_for(self, what: str, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not holds():
            self._ensure_alive()
            if time.monotonic() > deadline:
                operator = self._product.operator
                words = operator.log_text().splitlines()[-15:] if operator else []
                raise DemoError("\n".join([f"After {TIMEOUT_S:.0f} s it is not so that {what}.", *words]))
            time.sleep(0.1)


def tell(screen: Screen, stack: contextlib.ExitStack) -> Callable[[], None]:
    """Tell the story of `QueuesDemo`; see `run_demo`."""
    ensure_binaries()  # their progress is their own
    ensure_kueue()
    with screen.step("a control plane: etcd, API server, controllers"):
        plane = stack.enter_context(ControlPlane.run(every_controller=True))
    demo = QueuesDemo(plane, screen)
    demo.set_up()
    demo.tell()
    return demo.stay


if __name__ == "__main__":
    sys.exit(run_demo("Two teams, one cohort, four cards, and Kueue's own manager.", "demo-queues", tell))
