"""Does the steps of a plan at their times."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Any

from chaos.admin import Admin
from chaos.claims import claim, claims_path
from chaos.hostile_user import HostileUser
from chaos.outcome import Done
from chaos.pair import Hands, Pair
from chaos.pods import (
    body_of,
    budget_name,
    budget_of,
    budgets_path,
    reservation_of,
    reservations_path,
    set_of,
    sets_path,
)
from chaos.quotas import COUNTED, quota_of, quotas_path
from chaos.quotas import NAME as QUOTA
from chaos.steps import (
    AddNode,
    ChangeCard,
    ClaimCard,
    Create,
    CreateClaim,
    CreateHostile,
    CreateReplicas,
    CreateReservation,
    CreateWorkload,
    Delete,
    DeleteClaim,
    DeleteHostile,
    DeleteNamespace,
    DeleteNode,
    DeleteReservation,
    DeleteWorkload,
    EndWatch,
    Freeze,
    HoldWatch,
    Kill,
    MoveAway,
    RestartApiServer,
    RestartEtcd,
    SetAgent,
    SetBudget,
    SetQuota,
    StaleEdit,
    StartRival,
    Step,
)
from chaos.timeline import Task, Timeline
from chaos.workloads import workload_body, workloads_path
from chaos.world import World
from cluster.cluster import ALLOCATIONS, RequestFailed
from control_plane import ControlPlane, ControlPlaneError
from faults import kinds
from faults.requests import watching

Json = dict[str, Any]

SAME_NAME_PAUSE_S = 0.1

OPEN_TIMES = 5
LONGEST_COMPLAINT = 500


@dataclass
class Workers:
    """Who does what: each does one thing after the other."""

    pods: Hands
    nodes: Hands
    hostile: Hands
    moves: Hands
    plane: Hands
    pods_admin: Admin
    nodes_admin: Admin
    hostile_user: HostileUser


class Director:
    """Has each step done by whom it concerns; itself it only keeps the time."""

    def __init__(
        self,
        plane: ControlPlane,
        pairs: Mapping[int, Pair],
        rival: Pair | None,
        world: World,
        workers: Workers,
    ) -> None:
        self._plane = plane
        self._pairs = pairs
        self._rival = rival
        self._world = world
        self._workers = workers
        self._timeline = Timeline()
        self.done: list[Done] = []
        self.counts: Counter[str] = Counter()
        self.complaints: list[str] = []
        """Of commands that failed."""

    def direct(self, steps: tuple[Step, ...], seconds: float) -> None:
        """Do the steps, and what follows from them within this time; then wait until all of it is done."""
        self._timeline.play(steps, self._perform, self._look_after, seconds)
        self.wait()

    def wait(self) -> None:
        """Wait until all workers have done what they were asked for. Raises the first error that they met."""
        workers = self._workers
        for hands in (workers.plane, workers.pods, workers.nodes, workers.hostile, workers.moves):
            hands.wait()

    def _later(self, wait_s: float, task: Task) -> None:
        self._timeline.at(time.monotonic() + wait_s, task)

    def _look_after(self) -> None:
        for pair in self._pairs.values():
            pair.look_after()

    def _perform(self, step: Step) -> None:
        self.counts[type(step).__name__] += 1
        self.done.append(Done(time.monotonic(), step))
        pods, hostile, user = self._workers.pods, self._workers.hostile, self._workers.hostile_user
        match step:
            case Create():
                pods.do(self._create, step)
            case Delete():
                pods.do(self._delete, step)
            case DeleteNamespace(namespace=namespace):
                pods.do(self._workers.pods_admin.try_to, "DELETE", f"/api/v1/namespaces/{namespace}")
            case SetBudget():
                pods.do(self._set_budget, step)
            case SetQuota() | CreateClaim() | DeleteClaim() | CreateWorkload() | DeleteWorkload():
                pods.do(self._change_objects, step)
            case CreateReplicas(namespace=namespace):
                pods.do(self._workers.pods_admin.try_to, "POST", sets_path(namespace), set_of(step))
            case MoveAway():
                self._workers.moves.do(self._move, step)
            case CreateReservation() | DeleteReservation():
                pods.do(self._reserve, step)
            case CreateHostile(kind=kind, node=node):
                hostile.do(user.create, kind, node)
            case DeleteHostile(kind=kind, by_force=by_force):
                hostile.do(user.delete, kind, by_force)
            case _:
                self._change_world(step)

    def _change_world(self, step: Step) -> None:
        """Do what concerns nodes and their cards."""
        nodes, world = self._workers.nodes, self._world
        match step:
            case DeleteNode(node=node, collect_after_s=collect_after_s):
                nodes.do(world.delete, node)
                if collect_after_s is not None:
                    self._later(collect_after_s, partial(nodes.do, world.collect_pods, node))
            case AddNode(node=node):
                nodes.do(world.add, node)
            case SetAgent(node=node, is_there=is_there):
                nodes.do(world.set_agent, node, is_there)
            case ChangeCard(node=node, card=card, field=field, value=value):
                nodes.do(world.change_card, node, card, field, value)
            case ClaimCard(node=node, owner=owner, card=card, is_claimed=is_claimed):
                nodes.do(world.claim_card, node, owner, card, is_claimed)
            case StaleEdit():
                nodes.do(self._read_for_edit, step)
            case _:
                self._disturb(step)

    def _disturb(self, step: Step) -> None:
        """Do what concerns programs, and what stands between them."""
        plane = self._workers.plane
        match step:
            case Kill(program=program, down_s=down_s, pair=pair):
                self._pairs[pair].kill(program, down_s)
            case Freeze(program=program, for_s=for_s, pair=pair):
                self._pairs[pair].freeze(program, for_s)
            case RestartApiServer(down_s=down_s):
                plane.do(self._plane.stop_api_server)
                plane.do(time.sleep, down_s)
                plane.do(self._plane.start_api_server)
            case RestartEtcd(down_s=down_s):
                plane.do(self._plane.stop_etcd)
                plane.do(time.sleep, down_s)
                plane.do(self._plane.start_etcd)
            case StartRival(for_s=for_s) if self._rival is not None:
                self._rival.start_all()
                self._later(for_s, self._rival.stop_all)
            case HoldWatch(resource=resource, for_s=for_s):
                self._hold_watch(resource, for_s)
            case EndWatch(resource=resource, code=code):
                for each in self._pairs.values():
                    each.api.arm(watching(resource), kinds.EndWatch(code))

    def _hold_watch(self, resource: str, for_s: float) -> None:
        for pair in self._pairs.values():
            held = pair.api.arm(watching(resource), kinds.HoldEvents(), times=None)
            self._later(for_s, partial(pair.api.disarm, held))

    # Requests of administrators and users.

    def _create(self, step: Create) -> None:
        pod = step.pod
        if self._workers.pods_admin.try_to("POST", f"/api/v1/namespaces/{pod.namespace}/pods", body_of(pod)) == 409:
            # The last pod of this name is still there.
            self._later(SAME_NAME_PAUSE_S, partial(self._workers.pods.do, self._create, step))

    def _delete(self, step: Delete) -> None:
        options = {"gracePeriodSeconds": 0} if step.by_force else {}
        self._workers.pods_admin.try_to("DELETE", f"/api/v1/namespaces/{step.namespace}/pods/{step.name}", options)

    def _set_budget(self, step: SetBudget) -> None:
        path, admin = budgets_path(step.namespace), self._workers.pods_admin
        admin.try_to("DELETE", f"{path}/{budget_name(step.group)}")
        if step.min_available is not None:
            admin.try_to("POST", path, budget_of(step.group, step.min_available))

    def _change_objects(self, step: Step) -> None:
        """Do what concerns quotas, claims and workloads."""
        admin = self._workers.pods_admin
        match step:
            case SetQuota(namespace=namespace, hard=hard):
                path = quotas_path(namespace)
                if not hard:
                    admin.try_to("DELETE", f"{path}/{QUOTA}")
                elif admin.try_to("POST", path, quota_of(dict(hard))):
                    spec = {"hard": dict.fromkeys(COUNTED) | quota_of(dict(hard))["spec"]["hard"]}
                    admin.patch(f"{path}/{QUOTA}", {"spec": spec})
            case CreateClaim(namespace=namespace, name=name):
                self._create_again(step, claims_path(namespace), claim(name))
            case DeleteClaim(namespace=namespace, name=name):
                admin.try_to("DELETE", f"{claims_path(namespace)}/{name}")
            case CreateWorkload(workload=workload):
                self._create_again(step, workloads_path(workload.namespace), workload_body(workload))
            case DeleteWorkload(namespace=namespace, name=name):
                admin.try_to("DELETE", f"{workloads_path(namespace)}/{name}")

    def _reserve(self, step: CreateReservation | DeleteReservation) -> None:
        path = reservations_path(step.namespace)
        if isinstance(step, CreateReservation):
            self._create_again(step, path, reservation_of(step, datetime.now(UTC)))
        else:
            self._workers.pods_admin.try_to("DELETE", f"{path}/{step.name}" if step.name else path)

    def _move(self, step: MoveAway) -> None:
        node = f"node/{step.node}"
        self._command("move", "--empty", node, "--timeout", f"{step.for_s:g}")
        for _ in range(OPEN_TIMES):  # the API server may be down
            if self._command("uncordon", node):
                return
            time.sleep(SAME_NAME_PAUSE_S)

    def _command(self, name: str, *arguments: str) -> bool:
        """Run a command of `kubectl gpuledger`; return whether it succeeded."""
        try:
            self._plane.kubectl("gpuledger", name, *arguments)
        except ControlPlaneError as error:
            self.counts[f"{name}: failed"] += 1
            self.complaints.append(f"{name}: {error}"[:LONGEST_COMPLAINT])
            return False
        self.counts[f"{name}: done"] += 1
        return True

    def _create_again(self, step: Step, path: str, body: Json) -> None:
        """Create an object, once the last one of its name is gone, which pods may keep."""
        status = self._workers.pods_admin.try_to("POST", path, body)
        self.counts[f"{type(step).__name__}: {status or 'created'}"] += 1
        if status == HTTPStatus.CONFLICT:
            self._later(SAME_NAME_PAUSE_S, partial(self._workers.pods.do, self._change_objects, step))

    def _read_for_edit(self, step: StaleEdit) -> None:
        try:
            card = self._workers.nodes_admin.request("GET", _card_path(step.card))
        except RequestFailed:  # there is nothing to edit
            return
        edit = {"version": self._replace, "totals": self._write_totals, "spec": self._write_spec}[step.what]
        self._later(step.age_s, partial(self._workers.nodes.do, edit, card))

    def _replace(self, card: Json) -> None:
        """Write the object as it was read: the API server refuses it if anything has changed since."""
        status = self._workers.nodes_admin.try_to("PUT", f"{_card_path(card['spec']['uuid'])}/status", card)
        self.counts[f"stale version: {status or 'unchanged'}"] += 1

    def _write_totals(self, card: Json) -> None:
        """Write what was used as it was read: the API server refuses it unless it is still the sum."""
        change = {"status": {"used": (card.get("status") or {}).get("used")}}
        status = self._workers.nodes_admin.patch(f"{_card_path(card['spec']['uuid'])}/status", change)
        self.counts[f"stale totals: {status or 'the same'}"] += 1

    def _write_spec(self, card: Json) -> None:
        """Write what the card was: the operator has to put it right."""
        status = self._workers.nodes_admin.patch(_card_path(card["spec"]["uuid"]), {"spec": card["spec"]})
        self.counts[f"stale spec: {status or 'written'}"] += 1


def _card_path(uuid: str) -> str:
    return f"{ALLOCATIONS}/{uuid.lower()}"
