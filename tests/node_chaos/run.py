"""One run: a plan is carried out, then all faults stop, everything comes to rest, and is judged."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any, Self

from chaos.arithmetic import is_bound
from chaos.checker import Checker, Finding
from chaos.history import Change
from chaos.outcome import Outcome
from chaos.report import WORKLOAD
from chaos.rest import come_to_rest, miscounted, unsettled
from chaos.run import bad_lines
from node_chaos.arena import NodeArena
from node_chaos.checker import NodeChecker
from node_chaos.claims import claim_of, use_of
from node_chaos.director import Director, Workers
from node_chaos.plan import NodePlan
from node_chaos.rest import (
    counts,
    unsettled_containers,
    unsettled_counters,
    unsettled_files,
    unsettled_slots,
)
from node_chaos.sight import Eyes, Look
from node_chaos.steps import DamageCheckpoint, RemoveGrants

Json = dict[str, Any]

LOOK_INTERVAL_S = 0.2
"""Between two looks at all containers; a look takes some hundredths of a second."""

REST_S = 75.0
"""How long everything has to come to rest, from when something was put right last: a kubelet tries after a minute or so
what it could not do, and an agent that was away leaves a share to end in time."""

LONGEST_REST_S = 240.0
LOSES_FILES = RemoveGrants, DamageCheckpoint
PAUSE_S = 0.5
NO_POD: Json = {"spec": {"containers": []}}


class Watchman:
    """Looks at the node again and again in a thread of its own, and has the checker compare: `with Watchman(...)`."""

    def __init__(self, eyes: Eyes, checker: NodeChecker) -> None:
        self._eyes, self._checker = eyes, checker
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchman", daemon=True)
        self.failure: BaseException | None = None
        self.last = Look(0.0, ())
        self.looks = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ended.wait(LOOK_INTERVAL_S):
                ledger = self._checker.ledger()
                look = self._eyes.look()
                self._checker.judge(ledger, look)
                self.last, self.looks = look, self.looks + 1
        except BaseException as error:
            self.failure = error
            raise


def run(arena: NodeArena, outcome: Outcome[NodePlan], patience_s: float = REST_S) -> None:
    """Carry out a plan, and leave the arena empty; `patience_s` is for what is not in order at rest."""
    steps = outcome.plan.steps
    may_forget = any(isinstance(step, DamageCheckpoint) for step in steps)
    checker = NodeChecker(may_forget, outcome.plan.isolation)
    of_ledger = Checker(0.0, 0.0)  # how long shares stay is up to what runs, here
    try:
        _Run(arena, outcome, checker, of_ledger, patience_s).go()
    finally:
        arena.history.listeners = ()
        outcome.findings = [*checker.findings, *of_ledger.findings, *outcome.findings]
        outcome.checks = checker.checks + of_ledger.checks
        outcome.exchanges += checker.sightings()
    arena.clear()


class _Run:
    """The parts of one run."""

    def __init__(
        self,
        arena: NodeArena,
        outcome: Outcome[NodePlan],
        checker: NodeChecker,
        of_ledger: Checker,
        patience_s: float,
    ) -> None:
        self._patience_s = patience_s
        self._arena, self._outcome, self._checker, self._of_ledger = arena, outcome, checker, of_ledger
        self._programs = arena.programs
        self._pods: dict[str, Json] = {}  # UID -> pod as it was last
        self._may_forget = checker.may_forget
        self._files_are_complete = not any(isinstance(step, LOSES_FILES) for step in outcome.plan.steps)

    def go(self) -> None:
        """Do it all."""
        arena, outcome = self._arena, self._outcome
        arena.change(outcome.plan.delivery, outcome.plan.isolation)
        for change in _as_it_is(arena):
            self._checker.take(change)
            self._take_of_ledger(change)
        arena.history.listeners = (outcome.changes.append, self._checker.take, self._take_of_ledger, self._count)
        logs = _Logs(arena)
        with ExitStack() as stack:
            workers = Workers(arena.admin, arena.disks)
            stack.callback(workers.close)
            eyes = arena.eyes()
            watchman = stack.enter_context(Watchman(eyes, self._checker))
            director = Director(arena.gpu, self._programs, workers, eyes)
            outcome.begin_s = time.monotonic()
            try:
                director.direct(outcome.plan.steps, outcome.plan.seconds)
            finally:
                outcome.done, outcome.chaos_s = director.done, time.monotonic() - outcome.begin_s
                outcome.counts += director.counts
                outcome.faults = {f"node: {kind}": n for kind, n in director.counts.items() if kind not in WORKLOAD}
                outcome.logs = logs.texts()
            self._rest(watchman)
            outcome.counts["looks"] += watchman.looks
        self._judge(logs, watchman)

    def _take_of_ledger(self, change: Change) -> None:
        """Have the ledger's checker take a change. It knows nothing of claims: NodeChecker compares those itself."""
        if change.kind != "pod" or claim_of(change.now or change.before or NO_POD) is None:
            self._of_ledger.take(change)

    def _count(self, change: Change) -> None:
        if change.kind != "pod":
            return
        if change.now is not None:
            self._pods[change.now["metadata"]["uid"]] = change.now
        before, now = change.before, change.now
        if before is None:
            self._outcome.counts["pods created"] += 1
        elif now is None:
            self._outcome.counts["pods deleted"] += 1
        elif is_bound(now) and not is_bound(before):
            self._outcome.counts["pods bound"] += 1

    def _rest(self, watchman: Watchman) -> None:
        """Wait until nothing is out of order."""

        def look() -> list[Finding]:
            self._programs.look_after()
            return self._unsettled(watchman.last)

        come_to_rest(self._outcome, look, lambda: time.sleep(PAUSE_S), self._patience_s, LONGEST_REST_S)

    def _unsettled(self, look: Look) -> list[Finding]:
        history, arena = self._arena.history, self._arena
        cards = {card["spec"]["uuid"]: card for card in history.objects("card").values()}
        pods = {pod["metadata"]["uid"]: pod for pod in history.objects("pod").values()}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        files = arena.files()
        found = [
            *unsettled(cards, pods, history.objects("node"), now),
            *miscounted(cards, arena.gpu.installation.metrics()),
            *unsettled_containers(
                pods, look.containers, self._may_forget, self._outcome.plan.isolation, self._files_are_complete
            ),
            *unsettled_counters(arena.counters()),
            *unsettled_files(files, pods, look.containers, self._files_are_complete),
        ]
        if not self._may_forget:
            by_slots = [each for each in look.containers if not use_of(pods.get(each.pod_uid, NO_POD), each.name)]
            found += unsettled_slots(arena.checkpoint(), by_slots)
        if not arena.gpu.ready():
            found.append(Finding("the agent is not ready", arena.gpu.log_tail()))
        return found

    def _judge(self, logs: _Logs, watchman: Watchman) -> None:
        outcome = self._outcome
        outcome.logs = logs.texts()
        for name, text in outcome.logs.items():
            if name.startswith(("agent", "operator")):
                outcome.findings += bad_lines(name, text)
        if times := self._programs.ended.pop("agent", 0):
            outcome.findings.append(Finding("the agent has ended by itself", f"{times} times"))
        for program, times in self._programs.ended.items():
            outcome.counts[f"{program} ended by itself"] += times
        self._programs.ended.clear()
        outcome.counts.update(counts(self._pods.values()))
        outcome.counts["containers seen"] += len(self._checker.seen)
        outcome.counts["containers without their cards"] += len(self._checker.without)
        for failure in (watchman.failure, self._arena.history.failure):
            if failure is not None:
                raise RuntimeError("what was seen has gaps") from failure


class _Logs:
    """What the programs log from now on."""

    def __init__(self, arena: NodeArena) -> None:
        self._directory = arena.gpu.plane.directory / "logs"
        self._begins = {file: file.stat().st_size for file in self._directory.iterdir()}

    def texts(self) -> dict[str, str]:
        """Return name -> text, of the node's programs without the node's name."""
        found = {}
        for file in sorted(self._directory.glob("*.log")):
            if file.name.startswith(("node-1-", "operator", "kube-scheduler")):
                text = file.read_bytes()[self._begins.get(file, 0) :].decode(errors="replace")
                if text:
                    found[file.name.removeprefix("node-1-")] = text
        return found


def _as_it_is(arena: NodeArena) -> list[Change]:
    """Return the cards of an empty node, as changes, for who comes later."""
    cards = arena.history.objects("card").items()
    return [Change(0, time.monotonic(), "card", key, None, card) for key, card in cards]
