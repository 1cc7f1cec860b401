"""One run: a plan is carried out, then all faults stop, everything comes to rest, and is judged."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from chaos.admin import Admin
from chaos.arena import LONGEST_RELEASE_S, RELEASE_DELAY_S, Arena
from chaos.arithmetic import is_bound
from chaos.checker import Checker, Finding
from chaos.director import Director, Workers
from chaos.history import Change
from chaos.hostile_user import HostileUser, is_hostile
from chaos.kubelet import KubeletPlayer
from chaos.outcome import Outcome
from chaos.pair import Hands, Pair
from chaos.plan import Plan
from chaos.pods import reservations_path
from chaos.rest import GANG_WAITS, Others, come_to_rest, miscounted, unsettled
from chaos.workloads import Manager
from chaos.world import World
from hostile.catalogue import NAMESPACE as HOSTILE

Json = dict[str, Any]

REST_S = 30.0
"""How long everything has to come to rest. It begins anew whenever something is put right: on a busy machine, that many
pods are bound one after the other can take longer."""

LONGEST_REST_S = 120.0

LOOK_S = 0.5
QUIET_S = 1.0
READY_S = 60.0
AUDIT_MAY_FIND = ("abandoned-holders", "over-capacity", "too-many-slots", "two-nodes")
"""Pods on a card that its node does not report any more, that two nodes report, or that has shrunk: the plan does that.
The checker looks for shares that are too much for any other reason."""

PUT_THERE = ("not-adoptable", "not-entered", "unreadable-pod")
"""What the audit rightly says of pods that the hostile user has put on a node himself. Of his others the checker would
find it, too."""

TRACE = "Traceback (most recent call last)"

BAD_LINES = (TRACE, "was never retrieved", "was never awaited", "Unclosed ")
"""What must not be in a log of ours: an error that nobody has taken care of."""


def run(arena: Arena, outcome: Outcome[Plan]) -> None:
    """Carry out a plan, and leave the arena empty."""
    checker = Checker(RELEASE_DELAY_S, LONGEST_RELEASE_S)
    try:
        _Run(arena, outcome, checker).go()
    finally:
        arena.history.listeners = ()
        outcome.findings = [*checker.findings, *outcome.findings]  # whatever has broken down since
        outcome.checks = checker.checks
        arena.clear(outcome.plan)


class _Run:
    """The parts of one run."""

    def __init__(self, arena: Arena, outcome: Outcome[Plan], checker: Checker) -> None:
        self._arena = arena
        self._plan = outcome.plan
        self._outcome = outcome
        self._checker = checker
        self._last_card_change_s = 0.0

    def go(self) -> None:
        """Do it all."""
        arena, plan, outcome = self._arena, self._plan, self._outcome
        with ExitStack() as stack:
            kubelet = stack.enter_context(KubeletPlayer(arena.plane))
            manager = stack.enter_context(Manager(arena.plane))
            arena.history.listeners = (
                outcome.changes.append,
                self._checker.take,
                kubelet.take,
                manager.take,
                self._count,
            )
            arena.add_namespaces(plan.namespaces)
            pairs, rival = stack.enter_context(arena.pairs(plan))
            workers = self._workers(stack)
            world = World(workers.nodes_admin, plan.nodes)
            world.add_all()
            self._wait_ready(pairs)
            director = Director(arena.plane, pairs, rival, world, workers)
            self._storm(director, pairs, rival)
            kubelet.calm()
            self._rest(pairs)
            self._judge(pairs, rival)
        outcome.done = director.done
        outcome.findings += [
            Finding("a command has failed by an error of its own", each)
            for each in director.complaints
            if TRACE in each
        ]
        outcome.counts["members of gangs bound"] = self._checker.gangs.checks
        outcome.counts["pods with claims bound"] = self._checker.claims.checks
        outcome.counts["quotas checked"] = self._checker.quotas.checks
        outcome.counts["workloads ready"] = self._checker.workloads.checks
        outcome.counts["shares accounted"] = self._checker.accounts.checks
        outcome.counts += director.counts + workers.hostile_user.counts

    def _workers(self, stack: ExitStack) -> Workers:
        hands = {name: Hands(name) for name in ("pods", "nodes", "hostile", "moves")}
        admins = {name: Admin(self._arena.plane) for name in hands}
        for name in hands:
            stack.callback(admins[name].close)
            stack.callback(hands[name].close)
        return Workers(
            pods=hands["pods"],
            nodes=hands["nodes"],
            hostile=hands["hostile"],
            moves=hands["moves"],
            plane=self._arena.hands,
            pods_admin=admins["pods"],
            nodes_admin=admins["nodes"],
            hostile_user=HostileUser(admins["hostile"]),
        )

    def _count(self, change: Change) -> None:
        if change.kind == "card":
            self._last_card_change_s = change.at_s
            self._outcome.counts["card changes"] += 1
        elif change.kind != "pod":
            self._outcome.counts[f"{change.kind} changes"] += 1
        elif is_hostile(change.now or change.before or {}):
            self._outcome.counts["hostile pods bound"] += _gets_bound(change)
        elif change.before is None:
            self._outcome.counts["pods created"] += 1
        elif change.now is None:
            self._outcome.counts["pods deleted"] += 1
        elif _gets_bound(change):
            self._outcome.counts["pods bound"] += 1

    def _wait_ready(self, pairs: Mapping[int, Pair]) -> None:
        """Wait until everything is there: the chaos begins from a cluster that works."""
        wanted = {card.uuid for node in self._plan.nodes for card in node.cards}
        deadline = time.monotonic() + READY_S
        for pair in pairs.values():
            pair.wait()
        while True:
            cards = self._arena.admin.cards()
            if wanted <= {uuid for uuid, card in cards.items() if (card.get("status") or {}).get("phase") == "Ready"}:
                return
            if time.monotonic() > deadline:
                raise RuntimeError("the cards are not ready before the chaos begins")
            time.sleep(0.1)

    def _storm(self, director: Director, pairs: Mapping[int, Pair], rival: Pair) -> None:
        outcome, everybody = self._outcome, [*pairs.values(), rival]
        outcome.begin_s = time.monotonic()
        for pair in everybody:
            pair.storm()
        director.direct(self._plan.steps, self._plan.seconds)
        for pair in everybody:
            pair.calm()
        for namespace in ("default", *self._plan.namespaces):  # what they keep is nobody's from now on
            status = self._arena.admin.try_to("DELETE", reservations_path(namespace))
            if status not in (0, HTTPStatus.NOT_FOUND):
                raise RuntimeError(f"the reservations of namespace {namespace} can't be deleted: {status}")
        rival.stop_all()
        for pair in everybody:
            pair.wait()
        outcome.chaos_s = time.monotonic() - outcome.begin_s

    def _rest(self, pairs: Mapping[int, Pair]) -> None:
        """Wait until nothing is out of order."""

        def pause() -> None:
            for pair in pairs.values():
                pair.look_after()
            time.sleep(LOOK_S)

        come_to_rest(self._outcome, lambda: self._unsettled(pairs), pause, REST_S, LONGEST_REST_S)

    def _unsettled(self, pairs: Mapping[int, Pair]) -> list[Finding]:
        history = self._arena.history
        cards = {card["spec"]["uuid"]: card for card in history.objects("card").values()}
        pods = {pod["metadata"]["uid"]: pod for pod in history.objects("pod").values()}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        others = Others(*map(history.objects, ("claim", "quota", "workload")))
        found = unsettled(cards, pods, history.objects("node"), now, others)
        for namespace in ("default", *self._plan.namespaces):
            names = [each["metadata"]["name"] for each in self._arena.admin.all(reservations_path(namespace))]
            found += [Finding("a reservation is there again", f"{namespace}/{name}") for name in names]
        for pair in pairs.values():
            metrics = pair.installation.metrics()
            found += miscounted(cards, metrics)
            if metrics.get("gpuledger_gangs_first_total"):  # others may wait for the gang that goes first
                found = [finding for finding in found if finding.rule != GANG_WAITS]
        quiet_s = time.monotonic() - self._last_card_change_s
        if not found and quiet_s < QUIET_S:
            found.append(Finding("the ledger is written though nothing happens", f"the last time {quiet_s:.1f} s ago"))
        return found

    def _judge(self, pairs: Mapping[int, Pair], rival: Pair) -> None:
        outcome = self._outcome
        outcome.findings += self._audit(pairs[0])
        for pair in [*pairs.values(), rival]:
            outcome.findings += [Finding("the operator has ended by itself", words) for words in pair.last_words]
            for program, times in pair.ended.items():
                outcome.counts[f"{program} ended by itself"] += times
            for kind, count in pair.faults().items():
                outcome.faults[kind] = outcome.faults.get(kind, 0) + count
            metrics = pair.installation.metrics().items()
            outcome.logs[f"{pair.name}.metrics"] = "\n".join(f"{name} {value:g}" for name, value in metrics)
            for name, text in pair.log_texts():
                outcome.logs[name] = text
                if name.startswith("operator"):
                    outcome.findings += bad_lines(name, text)
            outcome.exchanges += pair.exchanges()
        if self._arena.history.failure is not None:
            raise RuntimeError("the history has gaps") from self._arena.history.failure

    def _audit(self, pair: Pair) -> list[Finding]:
        """Ask `gpuledger audit` for a third opinion."""
        installation = pair.installation
        files = ["--settings", str(installation.settings_file), "--kubeconfig", str(installation.kubeconfig)]
        command = [sys.executable, "-m", "gpuledger", "audit", "-o", "json", "--settle-s", "1", *files]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode not in (0, 1):
            return [Finding("the audit fails", done.stderr[-2000:])]
        found = [found for found in json.loads(done.stdout) if not is_expected(found)]
        return [Finding("the audit finds something", json.dumps(each)) for each in found]


def _gets_bound(change: Change) -> bool:
    """Return whether a pod gets a node that was created without one."""
    before, now = change.before, change.now
    return before is not None and now is not None and is_bound(now) and not is_bound(before)


def is_expected(found: Json) -> bool:
    """Return whether the audit is right to find something: the plan does that."""
    is_hostile_pod = str(found["pod"]).startswith(f"{HOSTILE}/")
    return found["kind"] in AUDIT_MAY_FIND or (is_hostile_pod and found["kind"] in PUT_THERE)


def bad_lines(name: str, text: str) -> list[Finding]:
    """Return the errors in a log that nobody has taken care of, the first three."""
    lines = text.splitlines()
    bad = [number for number, line in enumerate(lines) if any(words in line for words in BAD_LINES)]
    return [
        Finding("an error that nobody took care of", "\n".join([f"{name}:", *lines[n - 1 : n + 30]])) for n in bad[:3]
    ]
