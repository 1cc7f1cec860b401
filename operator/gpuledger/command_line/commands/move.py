"""`gpuledger move`: empties cards, or makes room for a pod, by moves: first the new place, then the eviction.

The place is a GPUReservation for the pod's controller, so the API server keeps the cards for its replacement, whoever
else comes meanwhile. It has an end: whatever becomes of the command, nothing is kept for long.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import zip_longest
from typing import TYPE_CHECKING

import click

from gpuledger.command_line.cluster_access import ClusterAccess
from gpuledger.command_line.commands.cordon import Kept, change_cordons, described, say
from gpuledger.command_line.options import Common, common_options, completed_names, read_settings, settings_option
from gpuledger.command_line.output import plural, utc_now
from gpuledger.formats.custom_resource.reservation import KIND, MESSAGE_LENGTH, MOST_MEMBERS, MOST_OWNERS, Phase
from gpuledger.formats.custom_resource.stored_card import API_VERSION
from gpuledger.model.clock import rfc3339
from gpuledger.model.errors import ApiError, BadInput, Conflict, NotFound
from gpuledger.model.json_object import Json, picked, placed_by
from gpuledger.reports.tables import Column, Terminal, listed, table

if TYPE_CHECKING:
    from pathlib import Path

    from gpuledger.kube_api.client import KubeClient
    from gpuledger.what_if.moves import Mover, Room
    from gpuledger.what_if.scene import Given, Scene

REASON = "its pods are moved"

LOOK_AGAIN_S = 1.0
RETRY_S = 5.0
"""Before an eviction that was refused is tried again: as `kubectl drain`."""

KEPT = timedelta(minutes=5)
"""How long places are kept beyond the command's time: a pod may take as long to end."""

COMES_S = 30.0
"""How long kube-scheduler may take to try a pod again."""

TOO_MANY_REQUESTS = 429


@click.command(short_help="Move pods to other cards, each to a place that is reserved for it.")
@click.option(
    "--empty",
    "emptied",
    multiple=True,
    metavar="card/UUID | node/NAME",
    help="Cards, or all of a node, that all pods are to leave.",
    shell_complete=completed_names("card", "node"),
)
@click.option("--for", "wanted", metavar="POD", help="A pod that waits: have so many leave that it fits.")
@click.option("--dry-run", is_flag=True, help="Show who would move where, and who may be evicted now; change nothing.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(1),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for places, budgets, and pods that leave.",
)
@click.option("--reason", default=REASON, show_default=True, help="Reason that the cordoned cards show.")
@settings_option
@common_options("name", namespaced=True)
def move(
    emptied: tuple[str, ...],
    wanted: str | None,
    dry_run: bool,
    timeout_s: float,
    reason: str,
    settings_file: Path | None,
    common: Common,
) -> None:
    """Have pods leave cards for others, one of each controller at a time, and no pod before it has a place.

    For each pod, a GPUReservation keeps cards for the pod that its controller will make anew; then it is evicted, as
    far as its PodDisruptionBudgets allow. A gang moves as a whole. Pods without a controller, of DaemonSets, with
    ResourceClaims, or with gpuledger.dev/move: never stay, and are named. With --empty, the cards are cordoned, and
    stay so: `uncordon` opens them. With --for, they are cordoned until the room is there. Your account needs `patch` on
    gpuallocations, `create` and `delete` on gpureservations, and `create` on pods/eviction. Exit status: 0 if all have
    moved, or with --dry-run if all could; 1 if not; 2 after an error.
    """
    if bool(emptied) == bool(wanted):
        raise click.UsageError("say what the moves are for: --empty card/UUID or node/NAME, or --for POD")
    settings = read_settings(settings_file, common.kubeconfig, common.context)

    from gpuledger.configuration.dialects import dialects_of
    from gpuledger.placement.policy import policy_of
    from gpuledger.what_if.moves import plan_room_for, plan_to_empty

    dialects, policy = dialects_of(settings), policy_of("/".join(settings.policies))

    async def read(client: KubeClient) -> Scene:
        from gpuledger.kube_api.reads import KubeReads
        from gpuledger.what_if.live import read_cluster

        return await read_cluster(KubeReads(client), settings.scheduler_names, dialects)

    scene = common.in_cluster(read)
    scene.zone_labels = settings.gang_zones
    with common.cluster() as cluster:
        room: Room | None = None
        if wanted is not None:
            pod = _waiting(scene, wanted, common.namespace_named(cluster))
            room = plan_room_for(scene, dialects, policy, pod)
            if room is None:
                raise BadInput(
                    f"no moves make room for pod {wanted}: it would fit on no node, or who would have to leave has no "
                    f"room elsewhere; `gpuledger explain pod/{wanted}` shows each node"
                )
            names: Sequence[str] = [f"card/{uuid}" for uuid in room.uuids]
            movers = list(room.movers)
        else:
            names = emptied
            uuids = {str(done["uuid"]) for done in change_cordons(cluster, names, reason, Kept.ALL)}
            movers = plan_to_empty(scene, dialects, policy, uuids)
        moves = Moves(cluster, moves_of(movers), common.for_people and not dry_run)
        if dry_run:
            moves.try_all()
        else:
            _carry_out(cluster, moves, names, reason, timeout_s, room, common)
            if wanted is not None and common.for_people and not moves.left(dry_run):
                say(_where_it_is(cluster, pod.content))
        names_of = (mover.name for each in moves.all for mover in each.movers)
        common.show(moves.json(dry_run, room), lambda terminal: moves.lines(dry_run, room, terminal), names_of)
    sys.exit(1 if moves.left(dry_run) else 0)


def _where_it_is(cluster: ClusterAccess, pod: Json) -> str:
    """Return where a pod for which there is room now has come to, in a sentence; it may take a while."""
    metadata, until_s = pod["metadata"], time.monotonic() + COMES_S
    name = f"pod {metadata['namespace']}/{metadata['name']}"
    while time.monotonic() < until_s:
        try:
            found = cluster.read(f"{pods_in(metadata['namespace'])}/{metadata['name']}")
        except NotFound:
            return f"{name} is gone"
        if found["spec"].get("nodeName"):
            return f"{name} is on node {found['spec']['nodeName']}"
        time.sleep(LOOK_AGAIN_S)
    return f"{name} waits still: `gpuledger explain pod/{metadata['name']}` says why"


def _waiting(scene: Scene, name: str, namespace: str) -> Given:
    """Return a pod that waits. Raises BadInput if there is none of that name."""
    named = name.removeprefix("pod/")
    for given in scene.pods:
        metadata = given.content["metadata"]
        if metadata["name"] == named and metadata["namespace"] == namespace:
            return given
    raise BadInput(f"no pod {named} in namespace {namespace} waits for GPUs")


def _carry_out(
    cluster: ClusterAccess,
    moves: Moves,
    names: Sequence[str],
    reason: str,
    timeout_s: float,
    room: Room | None,
    common: Common,
) -> None:
    """Cordon, move, and open the cards again where the room was for a pod. Raises BadInput and ApiError."""
    marked = []
    for done in change_cordons(cluster, names, reason, Kept.MARKED):
        if done["error"]:
            raise BadInput(described(done))
        if done["did"] == "cordoned":
            marked.append(f"card/{done['uuid']}")
        if common.for_people:
            say(described(done))
    with cluster.tidily() as is_told_to_end:
        try:
            moves.until_done(timeout_s, is_told_to_end)
        finally:
            moves.tidy_up()
            for done in change_cordons(cluster, marked, None) if room is not None and marked else ():
                if common.for_people:
                    say(described(done))


@dataclass(slots=True)
class Move:
    """Pods that one object makes, or a gang, on their way: they have one reservation, and a place each."""

    movers: list[Mover]
    state: str = "holds"
    """holds, reserving, refused, evicted, arrived, moved, stays or failed; with --dry-run also may-leave."""
    text: str = ""
    retry_s: float = 0.0
    """When it is looked at again, by the monotonic clock."""
    evicted: int = 0
    """How many of its pods were asked to leave, in their order."""

    @property
    def pods(self) -> list[Json]:
        """Return its pods, in the order in which they leave."""
        return [pod for mover in self.movers for pod in mover.pods]

    @property
    def is_gang(self) -> bool:
        """Return whether all of its pods leave at once."""
        return self.movers[0].gang is not None

    @property
    def name(self) -> str:
        """Return how people call it."""
        if self.is_gang or len(self.movers) == 1:
            return self.movers[0].name if self.is_gang else f"pod {self.movers[0].name}"
        ((kind, name),) = controllers_of(self.pods)
        return f"{len(self.pods)} pods of {kind} {self.namespace}/{name}"

    @property
    def reservation(self) -> str:
        """Return the name of its reservation: it says whose pod it is, and no other has it."""
        metadata = self.pods[0]["metadata"]
        return f"move-{str(metadata['uid'])[:8]}-{metadata['name']}"[:MOST_NAME].rstrip("-.")

    @property
    def namespace(self) -> str:
        """Return its namespace."""
        return str(self.pods[0]["metadata"]["namespace"])

    @property
    def why_not(self) -> str:
        """Return why one of its pods would have no room now, empty if all have."""
        return next(filter(None, (mover.why_not for mover in self.movers)), "")


MOST_NAME = 253
UNDER_WAY = ("reserving", "refused", "evicted", "arrived")


def moves_of(movers: Sequence[Mover]) -> list[Move]:
    """Return the moves: pods that the same object makes, and that ask for the same, are one."""
    found: dict[object, Move] = {}
    for mover in movers:
        stays = mover.stays or _too_much(mover)
        alike = (controllers_of(mover.pods), _asked(mover.pods[0]), mover.pods[0]["metadata"]["namespace"])
        if stays or mover.gang is not None:
            found[mover.name] = Move([mover], *(("stays", stays) if stays else ()))
        else:
            found.setdefault(alike, Move([])).movers.append(mover)
    return list(found.values())


def controllers_of(pods: Sequence[Json]) -> tuple[tuple[str, str], ...]:
    """Return kind and name of what makes pods, each once."""
    owners = [owner for pod in pods for owner in pod["metadata"].get("ownerReferences") or ()]
    return tuple(dict.fromkeys((owner["kind"], owner["name"]) for owner in owners if owner.get("controller")))


def _asked(pod: Json) -> str:
    return str(placed_by(pod["spec"])["containers"])


def _too_much(mover: Mover) -> str:
    if len(mover.pods) > MOST_MEMBERS or len(controllers_of(mover.pods)) > MOST_OWNERS:
        return "its gang has too many members, or too many objects that make them"
    return "the members of its gang ask for different cards" if len(set(map(_asked, mover.pods))) > 1 else ""


@dataclass(slots=True)
class Moves:
    """Carries moves out."""

    cluster: ClusterAccess
    all: list[Move]
    tells: bool
    """Whether each step is printed."""
    until: str = field(default="")
    """When what is reserved ends, RFC 3339."""

    def try_all(self) -> None:
        """Ask whether each pod may be evicted now."""
        for each in self.all:
            if each.state == "holds":
                refusal = self._refusal(each.pods)
                self._note(each, "refused" if refusal else "may-leave", refusal)

    def until_done(self, timeout_s: float, is_told_to_end: Callable[[], bool]) -> None:
        """Reserve for all at once, so that nobody else gets the room; move until all have, or it is time to end."""
        self.until = rfc3339(utc_now() + timedelta(seconds=timeout_s) + KEPT)
        until_s = time.monotonic() + timeout_s
        for each in self.all:
            if each.state == "stays" and self.tells:
                say(f"{each.name} stays: {each.text}")
        while any(each.state in ("holds", *UNDER_WAY) for each in self.all):
            if time.monotonic() >= until_s or is_told_to_end():
                return
            for each in self.all:
                if time.monotonic() >= each.retry_s and each.state in ("holds", *UNDER_WAY):
                    self._step(each)
            time.sleep(LOOK_AGAIN_S)

    def tidy_up(self) -> None:
        """Give up places for which no pod was evicted; a pod that leaves has its place until that ends."""
        for each in self.all:
            if each.state in ("reserving", "refused"):
                self._forget(each)

    def _step(self, move: Move) -> None:
        try:
            match move.state:
                case "holds":
                    self._reserve(move)
                case "arrived":
                    self._end(move)
                case _:
                    self._go_on(move)
        except ApiError as error:
            self._fail(move, " ".join(str(error).split()))

    def _fail(self, move: Move, why: str) -> None:
        self._note(move, "failed", why)
        self._forget(move)

    def _reserve(self, move: Move) -> None:
        """Have cards kept for the pods that will be made anew."""
        first = move.pods[0]
        kept = picked(first["metadata"], ("labels", "annotations"))
        owners = [{"controller": {"kind": kind, "name": name}} for kind, name in controllers_of(move.pods)]
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": move.reservation, "namespace": move.namespace},
            "spec": {
                "count": len(move.pods),
                "owners": owners,
                "expires": self.until,
                "template": {"metadata": kept, "spec": placed_by(first["spec"])},
            },
        }
        with suppress(Conflict):  # from a run that was cut off
            self.cluster.create(_reservations(move.namespace), body)
        self._note(move, "reserving", "")

    def _go_on(self, move: Move) -> None:
        """Have the next pod leave, or the whole gang, once it has a place and the one before has come to its own."""
        try:
            status = self.cluster.read(f"{_reservations(move.namespace)}/{move.reservation}").get("status") or {}
        except NotFound:
            status = {"phase": Phase.EXPIRED, "conditions": [{"message": "its reservation was deleted"}]}
        why = next((str(each["message"]) for each in status.get("conditions") or ()), "")[:MESSAGE_LENGTH]
        taken, reserved = int(status.get("taken") or 0), int(status.get("reserved") or 0)
        if status.get("phase") in (Phase.REFUSED, Phase.EXPIRED):
            self._fail(move, f"no pod has come for its place: {why}" if move.evicted > taken else why)
        elif taken >= len(move.pods) > move.evicted:
            self._fail(move, "other pods of its controller have taken the places")
        elif taken >= len(move.pods):
            self._note(move, "arrived", "")
            self._forget(move)
        elif move.evicted > taken:
            pass  # the one before is on its way
        elif reserved < (len(move.pods) if move.is_gang else 1):
            self._note(move, "reserving", why)
        elif refusal := self._have_leave(move):
            move.retry_s = time.monotonic() + RETRY_S
            self._note(move, "refused", refusal)

    def _have_leave(self, move: Move) -> str:
        """Evict the next pod, or all of a gang; return why a budget forbids that. Raises ApiError."""
        leaving = move.pods if move.is_gang else [move.pods[move.evicted]]
        if len(leaving) > 1 and (refusal := self._refusal(leaving)):
            return refusal
        for pod in leaving:
            if refusal := self._ask(pod, dry_run=False):
                return refusal
        move.evicted += len(leaving)
        names = ", ".join(f"{move.namespace}/{pod['metadata']['name']}" for pod in leaving)
        self._note(move, "evicted", names if len(move.pods) > 1 else "")
        return ""

    def _end(self, move: Move) -> None:
        """Observe whether the pods that were evicted have ended."""
        for pod in move.pods:
            path = f"{pods_in(move.namespace)}/{pod['metadata']['name']}"
            with suppress(NotFound):
                if self.cluster.read(path)["metadata"]["uid"] == pod["metadata"]["uid"]:
                    return
        self._note(move, "moved", "")

    def _forget(self, move: Move) -> None:
        with suppress(ApiError):
            self.cluster.delete(f"{_reservations(move.namespace)}/{move.reservation}")

    def _refusal(self, pods: Sequence[Json]) -> str:
        """Return why one of the pods may not be evicted now, empty if each may."""
        return next(filter(None, (self._ask(pod, dry_run=True) for pod in pods)), "")

    def _ask(self, pod: Json, dry_run: bool) -> str:
        from gpuledger.formats.kubernetes.other import eviction
        from gpuledger.formats.kubernetes.pod import pod_identity

        identity = pod_identity(pod)
        path = f"{pods_in(identity.namespace)}/{identity.name}/eviction"
        try:
            self.cluster.create(path, eviction(identity, dry_run))
        except (NotFound, Conflict):  # it has left
            return ""
        except ApiError as error:
            if error.status != TOO_MANY_REQUESTS:
                raise
            return " ".join(str(error).split())
        return ""

    def _note(self, move: Move, state: str, text: str) -> None:
        if (move.state, move.text) != (state, text):
            move.state, move.text = state, text
            if self.tells:
                say(f"{move.name}: {SAID[state]}{': ' + text if text else ''}")

    # How it has ended.

    def left(self, dry_run: bool) -> list[Move]:
        """Return those that have not moved, or with a dry run could not now."""
        if dry_run:
            return [each for each in self.all if each.state != "may-leave" or each.why_not]
        return [each for each in self.all if each.state != "moved"]

    def lines(self, dry_run: bool, room: Room | None, terminal: Terminal) -> Iterator[str]:
        """Yield it for people."""
        if room is not None and not terminal.csv:
            yield f"room on node {room.node_name}, on {plural(len(room.uuids), 'card')}"
        if dry_run and self.all:
            columns = [Column("POD"), Column("FROM"), Column("TO"), Column("NOW", fold=True)]
            yield from table(terminal, columns, [row for each in self.all for row in _rows(each)])
        if not terminal.csv:
            yield self.summary(dry_run)

    def summary(self, dry_run: bool) -> str:
        """Return how it has ended, in a sentence."""
        left, total = self.left(dry_run), sum(len(each.pods) for each in self.all)
        if not total:
            return "no pod has to move"
        if dry_run:
            could = total - sum(len(each.pods) for each in left)
            return f"{could} of {plural(total, 'pod')} could move now"
        if left:
            return f"not all of {plural(total, 'pod')} have moved: {listed([each.name for each in left])} left"
        return f"{plural(total, 'pod')} moved"

    def json(self, dry_run: bool, room: Room | None) -> Json:
        """Return it for programs."""
        moves = [
            {
                "pods": [f"{each.namespace}/{pod['metadata']['name']}" for pod in each.pods],
                "gang": str(each.movers[0].gang) if each.is_gang else None,
                "from": [name for mover in each.movers for name in mover.leaves],
                "to": [name or None for mover in each.movers for name in mover.to],
                "whyNot": each.why_not or None,
                "state": each.state,
                "text": each.text or None,
            }
            for each in self.all
        ]
        kept = None if room is None else {"node": room.node_name, "cards": list(room.uuids)}
        return {"room": kept, "moves": moves, "dryRun": dry_run, "done": not self.left(dry_run)}


SAID = {
    "reserving": "waiting for room elsewhere",
    "refused": "not evicted for now",
    "evicted": "evicted",
    "arrived": "in place; what was evicted ends",
    "moved": "moved",
    "stays": "stays",
    "failed": "not moved",
    "may-leave": "may be evicted",
}


def _rows(move: Move) -> Iterator[tuple[str, ...]]:
    said = f"{SAID[move.state]}{': ' + move.text if move.text else ''}"
    for mover in move.movers:
        why = f"{said}; {mover.why_not}" if mover.why_not else said
        names = [f"{move.namespace}/{pod['metadata']['name']}" for pod in mover.pods]
        for name, begin, end in zip_longest(names, mover.leaves, mover.to, fillvalue=""):
            yield name, begin, end or "-", why


def _reservations(namespace: str) -> str:
    from gpuledger.command_line.owners import path_of

    return path_of("gpureservation", namespace)


def pods_in(namespace: str) -> str:
    """Return the path of a namespace's pods."""
    from gpuledger.command_line.owners import path_of

    return path_of("pod", namespace)
