"""Show gpuledger at work: a real control plane, simulated nodes, and the examples placed on their cards.

`make demo` takes everything down again; `make demo KEEP=1` leaves it running until Ctrl-C. What stands below a `$` is
what kubectl prints.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.text import Text

from build_control_plane import ensure_binaries
from build_steps import BuildError
from control_plane import ControlPlane, ControlPlaneError, ManagedProcess, free_port
from installation import REPOSITORY, USER, Installation

EXAMPLES = REPOSITORY / "examples"
WAITING_POD = "too-large"
"""The one pod of the examples that no node can take."""

WIDTH = 156
NARROW_PODS = "custom-columns=NAME:.metadata.name,STATUS:.status.phase,NODE:.spec.nodeName"
NARROW_CARDS = "custom-columns=CARD:.spec.index,MIB:.status.used.memoryMiB,CORES:.status.used.cores,PODS:.status.pods"
"""kubectl's own columns of the ledger need 156; on a narrower terminal these are shown instead."""

JOB_COLUMNS = "JOB:.metadata.name,ACTIVE:.status.active,FAILED:.status.failed"

PROGRAMS = str(Path(sys.executable).parent)
"""Where gpuledger is, and its plugin for kubectl."""

NODES, CARDS_PER_NODE, MODEL = 3, 8, "A100-40GB"
TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.1
LOG_TAIL_LINES = 15

Json = dict[str, Any]


class DemoError(Exception):
    """Something did not happen; the text says what, and what is known about it."""


class Screen:
    """Prints for people: colour on a terminal; plain text elsewhere, with NO_COLOR, or with TERM=dumb."""

    def __init__(self) -> None:
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM", "dumb") == "dumb"
        # Tables stay as kubectl prints them: nothing is wrapped, highlighted or read as markup.
        self._console = Console(color_system=None if plain else "auto", highlight=False, markup=False, soft_wrap=True)
        self._live = self._console.is_terminal and not plain
        self._steps = 0

    def line(self, text: str = "", style: str = "") -> None:
        """Print one line."""
        self._console.print(Text(text, style))

    def section(self, title: str, *explanation: str) -> None:
        """Begin a new part."""
        self.line()
        self.line(title, "bold")
        for line in explanation:
            self.line(line)

    def command(self, command: str) -> None:
        """Print a command as if it had been typed."""
        self._console.print(Text("$ ", "dim").append(command, "cyan"))

    def table(self, output: str) -> None:
        """Print what kubectl printed; rows with an empty column are less visible: cards that nobody holds."""
        header, *rows = output.splitlines() or [""]
        self.line(header, "bold" if rows else "")
        for row in rows:
            self.line(row, "dim" if len(row.split()) < len(header.split()) else "")

    @property
    def narrow(self) -> bool:
        """Whether kubectl's own columns would not fit on the terminal."""
        return self._console.is_terminal and self._console.width < WIDTH

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Print what is done, and how long it took."""
        self._steps += 1
        label, begin = f"{self._steps:>2}. {text:<64}", time.monotonic()
        with self._console.status(Text(label)) if self._live else contextlib.nullcontext():
            yield
        self._console.print(Text(label).append(f"{time.monotonic() - begin:5.1f} s", "dim"))


class Demo:
    """The story, in the order in which it is told."""

    def __init__(self, plane: ControlPlane, screen: Screen, default_scheduler: ManagedProcess) -> None:
        self._plane = plane
        self._default_scheduler = default_scheduler
        self._screen = screen
        self._product = Installation(plane, {"view_port": free_port()})
        self._audit_begin = 0

    def set_up(self) -> None:
        """Install the product and start it, and register the nodes."""
        with self._screen.step("kubectl apply -k manifests/: CRD, accounts, Deployment"):
            self._product.install(whole=True)
        with self._screen.step("the operator has read the ledger"):
            self._product.start_operator()
        with self._screen.step("kube-scheduler for GPU pods, with the operator as its extender"):
            self._product.start_scheduler()
        with self._screen.step(f"{NODES} simulated nodes: {NODES * CARDS_PER_NODE} cards in the ledger"):
            arguments = ("--count", NODES, "--gpus", CARDS_PER_NODE, "--model", MODEL)
            self._product.fake_nodes(*map(str, arguments), stay=True)
            self._wait_for(self._missing_cards)

    def apply_examples(self) -> None:
        """Create the pods, and wait until all are where they belong."""
        self._audit_begin = self._plane.audit_offset()
        with self._screen.step(f"kubectl apply -f examples/: {running_pods()} pods run, one waits, as it should"):
            self._plane.kubectl("apply", "-f", str(EXAMPLES))
            self._wait_for(self._misplaced_pods)

    def show(self) -> None:
        """Print what has come of it."""
        self._screen.section("The pods.")
        self._run(f"kubectl get pods -o {NARROW_PODS if self._screen.narrow else 'wide'}")
        self._screen.section(
            "The ledger: one object per card.",
            "PODS hold a share of the card. MIB is memory, CORES are percent of the card.",
        )
        columns = f" -o {NARROW_CARDS}" if self._screen.narrow else ""
        for node in range(1, NODES + 1):
            label = f"gpuledger.dev/node=gpu-node-{node}"
            self._run(f"kubectl get gpuallocations -l {label} --sort-by=.spec.index{columns}")
        self._screen.section("The cards of a pod: an annotation, written in the request that binds it.")
        self._run(r"kubectl get pod video -o jsonpath='{.metadata.annotations.gpuledger\.dev/devices}'")
        self._screen.section("Why a pod waits: in its condition and its event, counted over the nodes.")
        path = '{.status.conditions[?(@.type=="PodScheduled")].message}'
        self._run(f"kubectl get pod {WAITING_POD} -o jsonpath='{path}'")
        self._show_refusal()
        self._show_cost()
        self._show_claims()
        self._show_preemption()
        self._show_views()

    def stay(self) -> None:
        """Tell how to look around, and stay until interrupted."""
        self._screen.section(
            "All of it runs until Ctrl-C.",
            "The control plane is real, with all controllers. Nodes, GPUs and containers are simulated (README.md).",
            "In another terminal:",
        )
        for line in (
            f"export KUBECONFIG={shlex.quote(str(self._plane.kubeconfig))}",
            f'export PATH={shlex.quote(str(ensure_binaries()))}:{shlex.quote(PROGRAMS)}:"$PATH"',
            f"export GPULEDGER_URL={self._product.view_url}",
            "kubectl gpuledger top --watch                        # who holds what, live",
            "kubectl get gpua                                     # the ledger; gpua is short for gpuallocations",
            "kubectl explain gpua.status.holders                  # what its fields mean",
            "kubectl describe pod too-large                       # why a pod waits",
            "kubectl delete pod render                            # its two cards are free at once",
            "kubectl get pods -l job-name=train                   # another one comes for the one that was killed",
            "kubectl get gpua -l gpuledger.dev/node=gpu-node-3    # free again once the training has ended",
        ):
            self._screen.line(f"  {line}", "cyan")
        self._screen.line(f"Logs are in {self._plane.directory / 'logs'}")
        while True:
            time.sleep(1)
            self._ensure_alive()

    def _run(self, command: str) -> None:
        """Print a command and what it prints."""
        self._screen.command(command)
        answers_no = " explain " in command  # with a status, for scripts: then the pod has no place
        to_operator = {"GPULEDGER_URL": self._product.view_url}
        arguments = shlex.split(command)[1:]
        self._screen.table(self._plane.kubectl(*arguments, check=not answers_no, environment=to_operator))

    def _show_refusal(self) -> None:
        """Try as administrator what the API server has to refuse: a share as large as the card, beside others."""
        self._screen.section("The API server refuses what does not fit, whoever writes it. An administrator tries:")
        cards: list[Json] = json.loads(self._plane.kubectl("get", "gpua", "-o", "json"))["items"]
        card = next(card for card in cards if len(card["status"]["holders"]) > 1)
        capacity_mib, used_mib = card["spec"]["capacity"]["memoryMiB"], card["status"]["used"]["memoryMiB"]
        patch = [
            {"op": "replace", "path": "/status/holders/0/memoryMiB", "value": capacity_mib},
            {
                "op": "replace",
                "path": "/status/used/memoryMiB",
                "value": used_mib - card["status"]["holders"][0]["memoryMiB"] + capacity_mib,
            },
        ]
        name = card["metadata"]["name"]
        arguments = ["patch", "gpua", name, "--subresource=status", "--type=json", "-p", json.dumps(patch)]
        self._screen.command(f"kubectl {shlex.join(arguments)}")
        try:
            self._plane.kubectl(*arguments)
        except ControlPlaneError as error:
            self._screen.line(str(error).partition("failed with status 1: ")[2] or str(error), "red")
        else:
            raise DemoError("The API server has accepted a share that does not fit.")

    def _show_claims(self) -> None:
        """Let pods come that ask by ResourceClaims: they get shares of the same cards."""
        self._screen.section(
            "The first example again, in Kubernetes' own words: ResourceClaims.",
            "Both ways to ask are counted by the same objects, so a card is shared by pods of both.",
        )
        self._screen.command("kubectl apply -f examples/claims/01-share.yaml")
        self._screen.table(self._plane.kubectl("apply", "-f", str(EXAMPLES / "claims" / "01-share.yaml")))
        self._wait_for(self._claims_are_missing)
        self._run("kubectl get resourceclaims")
        self._run(f"kubectl get gpua -l gpuledger.dev/node=gpu-node-1 --sort-by=.spec.index -o {NARROW_CARDS}")

    def _claims_are_missing(self) -> list[str]:
        """Return which pods with claims have not got their cards yet."""
        found = json.loads(self._plane.kubectl("get", "pods", "-o", "json"))["items"]
        claiming = [pod for pod in found if pod["spec"].get("resourceClaims")]
        waiting = [pod["metadata"]["name"] for pod in claiming if pod["status"]["phase"] != "Running"]
        return [f"pod {name} does not run" for name in waiting] if claiming else ["there is no pod with a claim"]

    def _show_preemption(self) -> None:
        """Let a pod come for which others have to leave."""
        self._screen.section("A pod of higher priority comes, and no node has the eight cards that it needs.")
        self._screen.command("kubectl apply -f examples/preemption/urgent.yaml")
        self._screen.table(self._plane.kubectl("apply", "-f", str(EXAMPLES / "preemption" / "urgent.yaml")))
        self._wait_for(self._urgent_pod_waits)
        self._run("kubectl get pod urgent -o wide")
        path = "{range .items[*]}{.involvedObject.name}: {.message}{end}"
        self._run(f"kubectl get events --field-selector reason=Preempted -o jsonpath='{path}'")
        self._screen.section(
            "It was killed: its Job counts a failure, and makes another pod after ten seconds, which waits."
        )
        self._run(f"kubectl get job train -o custom-columns={JOB_COLUMNS}")

    def _urgent_pod_waits(self) -> list[str]:
        """Return what is missing until the pod runs, its victim was told why, and the victim's Job knows."""
        found = json.loads(self._plane.kubectl("get", "pod", "urgent", "-o", "json"))
        told = self._plane.kubectl("get", "events", "--field-selector", "reason=Preempted", "-o", "name")
        if found["status"]["phase"] != "Running":
            return ["pod urgent does not run"]
        if not told:
            return ["nobody was told to leave"]
        failed = self._plane.kubectl("get", "job", "train", "-o", "jsonpath={.status.failed}")
        return [] if failed else ["Job train has not noticed that a pod of it was killed"]

    def _show_views(self) -> None:
        """Show the ledger as people look at it every day."""
        self._screen.section("All of it at a glance, with the plugin for kubectl.")
        self._run("kubectl gpuledger top")
        self._screen.section("Why a pod waits: what is missing on each node, and what would help.")
        self._run(f"kubectl gpuledger explain pod/{WAITING_POD}")
        self._screen.section("The history of a pod's cards, with the reason for its node.")
        self._run("kubectl gpuledger history pod/urgent")
        self._screen.section("The same as a page, live, with the cluster as a map:")
        self._screen.line(f"  {self._product.view_url}", "cyan")

    def _show_cost(self) -> None:
        """Count the writes between the first example and now."""
        writes = [event for event in self._plane.api_writes(self._audit_begin) if event.user == USER]
        bindings = sum(event.subresource == "binding" for event in writes)
        ledger = sum(event.resource == "gpuallocations" for event in writes)
        nodes = sum(event.resource == "nodes" for event in writes)
        self._screen.section("What placing them cost, from the API server's audit log.")
        self._screen.line(
            f"{bindings} bindings with the annotation in them, {ledger} writes to the ledger, {nodes} to nodes"
        )

    # What is waited for: each returns a sentence about everything that is not as it should be.

    def _missing_cards(self) -> list[str]:
        phases = self._plane.kubectl("get", "gpua", "-o", "jsonpath={.items[*].status.phase}").split()
        missing = NODES * CARDS_PER_NODE - phases.count("Ready")
        return [f"{missing} cards are not Ready in the ledger"] if missing else []

    def _misplaced_pods(self) -> list[str]:
        pods: list[Json] = json.loads(self._plane.kubectl("get", "pods", "-o", "json"))["items"]
        missing = running_pods() + 1 - len(pods)
        problems = [f"{missing} pods are not created"] if missing else []
        for pod in pods:
            name, phase, reason = pod["metadata"]["name"], pod["status"]["phase"], unschedulable(pod)
            if name == WAITING_POD and not reason:
                problems.append(f"pod {name} should wait, and say why; it is {phase}")
            elif name != WAITING_POD and phase == "Pending":
                problems.append(f"pod {name} is Pending: {reason or 'nobody says why'}")
        return problems

    def _wait_for(self, problems: Callable[[], list[str]]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while found := problems():
            self._ensure_alive()
            if time.monotonic() > deadline:
                raise DemoError("\n".join([f"Still not right after {TIMEOUT_S:.0f} s:", *found, *self._last_words()]))
            time.sleep(POLL_INTERVAL_S)

    def _ensure_alive(self) -> None:
        self._plane.ensure_alive()
        self._default_scheduler.ensure_alive()
        self._product.ensure_alive()

    def _last_words(self) -> list[str]:
        operator = self._product.operator
        return operator.log_text().splitlines()[-LOG_TAIL_LINES:] if operator else []


def running_pods() -> int:
    """Return how many pods of the examples are to run."""
    texts = [file.read_text() for file in EXAMPLES.glob("*.yaml")]
    documents = [document for text in texts for document in yaml.safe_load_all(text)]
    return sum(int(document["spec"].get("parallelism", 1)) for document in documents) - 1


def unschedulable(pod: Json) -> str:
    """Return what kube-scheduler says about a pod that it can't place, or an empty string."""
    conditions: list[Json] = pod["status"].get("conditions") or []
    return next((str(c["message"]) for c in conditions if c.get("reason") == "Unschedulable"), "")


def run_demo(description: str, target: str, tell: Callable[[Screen, contextlib.ExitStack], Callable[[], None]]) -> int:
    """Run a demo as the program's command line says, and return the exit status.

    `tell` tells the story, leaves on the stack what is to be stopped, and returns what stays until interrupted.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--keep", action="store_true", help="stay up until Ctrl-C")
    keep = parser.parse_args().keep

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    screen, settled = Screen(), False
    try:
        with contextlib.ExitStack() as stack:
            stay = tell(screen, stack)
            settled = keep
            if keep:
                stay()
    except KeyboardInterrupt:
        print("\nEverything is stopped and removed.", file=sys.stderr)
        return 0 if settled else 130
    except (BuildError, ControlPlaneError, DemoError) as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 1
    screen.section(f"Everything is stopped and removed. To look around in it: make {target} KEEP=1")
    return 0


def tell(screen: Screen, stack: contextlib.ExitStack) -> Callable[[], None]:
    """Tell the story of `Demo`; see `run_demo`."""
    ensure_binaries()  # its progress is its own
    plane = ControlPlane(every_controller=True)
    with screen.step("a control plane: etcd, API server, controllers, kube-scheduler"):
        plane.start()
        stack.callback(plane.stop)
        scheduler = plane.start_default_scheduler()
    demo = Demo(plane, screen, scheduler)
    demo.set_up()
    demo.apply_examples()
    demo.show()
    return demo.stay


if __name__ == "__main__":
    sys.exit(run_demo("Share simulated GPUs on a real control plane, and show the ledger.", "demo", tell))
