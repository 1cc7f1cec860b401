"""Pods of this node that have ended without a word of the kubelet, and what is left of them.

A forced deletion, and Kubernetes' own garbage collector, end a pod at the API server, whatever runs on the
node. Then this agent looks for its processes, and writes into an annotation of the node what it finds. Of a pod that
ends in good order nothing is looked for, and nothing written.

A pod with a ResourceClaim has no process yet when the kubelet has its claim prepared, and may still start: a container
runtime that stands still can have been told. So as long as the kubelet has not given the claim back, and no other pod
uses it, nothing is concluded from there being no process.

Where the kubelet keeps no control groups for pods, a process is known by its container alone, and no status names all
containers of a pod: the kubelet writes it later than it starts them, and after the pod's deletion not at all. There the
agent reports what runs, and never that nothing does.

Finds the pods that have processes on this node, by the kubelet's control groups.

A process that has ended and was not reaped yet holds nothing any more, unless one of its threads still hangs, as in a
driver.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuledger.formats.annotations import MAX_NAMED, ends_annotation, read_containers, read_ends
from gpuledger.formats.kubernetes.pod import container_names, has_ended, is_finished
from gpuledger.formats.quantity import resources_asked
from gpuledger.formats.resource_claims.claims import names_of_claims
from gpuledger.formats.runtime.cdi import container_id, pod_uid
from gpuledger.kube_api.reads import KubeReads
from gpuledger.model.errors import ApiError, BadInput
from gpuledger.model.json_object import Json

OVER = frozenset("ZXx")
"""States of threads of which nothing is left but their exit status: see proc_pid_stat(5)."""

ENDED = (FileNotFoundError, ProcessLookupError)
"""Errors of reading a process that has ended meanwhile. Any other error says nothing of it."""


@dataclass(frozen=True, slots=True)
class Sight:
    """The result of one look at all processes."""

    pods: frozenset[str]
    """UIDs of those pods that have processes."""
    sees_pods: bool
    """Whether there are control groups of pods: if not, one is known by its containers alone."""


def look_for_pods(proc: Path, containers: Mapping[str, Collection[str]]) -> Sight:
    """Return which of these pods have processes: pod UID -> ids of its containers, as far as they are known.

    Raises OSError where it can't see: that must not be taken for pods of which nothing is left.
    """
    pods = {container: uid for uid, ids in containers.items() for container in ids}
    found, sees_pods = set[str](), False
    for process, groups in _processes(proc):
        of_pod = pod_uid(groups)
        sees_pods = sees_pods or of_pod is not None
        uid = of_pod or pods.get(container_id(groups) or "", "")
        if uid in containers and uid not in found and _lives(process):
            found.add(uid)
    return Sight(frozenset(found), sees_pods)


def _processes(proc: Path) -> Iterator[tuple[Path, str]]:
    for process in proc.iterdir():
        if process.name.isdigit():
            try:
                yield process, (process / "cgroup").read_text()
            except ENDED:
                continue


def _lives(process: Path) -> bool:
    try:
        return any(_state(thread) not in OVER for thread in (process / "task").iterdir())
    except ENDED:
        return False


def _state(thread: Path) -> str:
    """Return the state of a thread, one letter; its name before that can contain anything."""
    try:
        return (thread / "stat").read_text().rpartition(") ")[2][:1]
    except ENDED:
        return "X"


logger = logging.getLogger(__name__)


LOOK_INTERVAL_S = 1.0
LONGEST_INTERVAL_S = 5.0
"""Between two looks at a pod of which something is left; the agent does not look while there is none."""

RUNS_AFTER_S = 5.0
"""After this it is said that something is left: a kubelet that hears of a forced deletion needs two seconds or so."""

KEPT_AT_MOST_S = 300.0
"""For how long after a pod's end a claim that the kubelet does not give back says that the pod may start: the kubelet
waits for its runtime to start a pod for four minutes, and a word of it can be lost when this agent restarts."""

ASK_AGAIN_S = 1.0

Claim = tuple[str, str]
"""Namespace and name of a ResourceClaim."""

Look = Callable[[Mapping[str, Collection[str]]], Awaitable[Sight]]
"""Finds which pods have processes: UID -> ids of its containers, as far as they are known. May raise OSError."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The state of a pod that may run."""

    containers: frozenset[str] = frozenset()
    """Ids of its containers."""
    claims: frozenset[Claim] = frozenset()
    """Those that it names."""
    sought_s: float = 0.0
    """Since when it is looked for, by the loop's clock; 0: it is not."""


class EndedPods:
    """Follows the pods that request cards of this node, from when the API server shows that they have ended."""

    def __init__(
        self,
        resources: Collection[str],
        look: Look,
        say: Callable[[str], None],
        prepared: Callable[[], Collection[Claim]] | None = None,
    ) -> None:
        """Make one, for pods that ask for any of these resources.

        `prepared` returns the claims that the kubelet has asked for, and not given back; it is None where claims are
        not served, so that pods with claims are none of ours.
        """
        self._resources = frozenset(resources)
        self._prepared = prepared
        self._look = look
        self._say = say  # has the node show this
        self._living: dict[str, _Known] = {}  # UID of a pod that may run -> what is known of it
        self._doubtful: dict[str, _Known] = {}  # UID of a pod that is looked for -> what is known of it
        self._may_start: set[str] = set()  # UIDs of pods that are looked for, and whose claims the kubelet keeps
        self._said: dict[str, bool] = {}  # UID -> whether anything of it runs, the oldest first
        self._wanted = asyncio.Event()
        self._listed = False
        self._sees_pods = False  # whether processes of pods were ever seen in control groups of these
        self.complete = asyncio.Event()
        """Set once what it says is complete: all pods were shown once, and those in doubt looked for."""

    def remember(self, node: Json, granted: Iterable[str]) -> None:
        """Observe what this node said before this agent started, and the UIDs of the pods that had cards then."""
        with suppress(BadInput):
            self._said = dict(read_ends(node) or {})
            self._living = {uid: _Known(frozenset(ids)) for uid, ids in read_containers(node).items()}
        for uid in granted:
            self._living.setdefault(uid, _Known())

    def observe(self, pod: Json, gone: bool) -> None:
        """Observe a pod of this node."""
        has_claims = self._prepared is not None and pod["spec"].get("resourceClaims")
        if not has_claims and self._resources.isdisjoint(resources_asked(pod)):
            return
        uid, namespace = pod["metadata"]["uid"], pod["metadata"]["namespace"]
        claims = frozenset((namespace, name) for name in names_of_claims(pod)) if has_claims else frozenset()
        known = _Known(frozenset(container_names(pod)), claims)
        if has_ended(pod):
            self._living.pop(uid, None)  # one that is looked for goes on being looked for
        elif gone or is_finished(pod):
            self._doubt(uid, known)
        else:
            self._living[uid] = known

    def look_for(self, pod_uid: str) -> None:
        """Look for what is left of a pod, unless the API server shows that it may run."""
        if pod_uid not in self._living:
            self._doubt(pod_uid, _Known(), RUNS_AFTER_S)

    def may_run(self) -> frozenset[str]:
        """Return the UIDs of pods that have ended at the API server, and of which something may still run."""
        return frozenset(self._doubtful)

    def over(self) -> frozenset[str]:
        """Return the UIDs of pods of which nothing is left, the latest."""
        return frozenset(uid for uid, runs in self._said.items() if not runs)

    def listing(self) -> Callable[[set[str]], None]:
        """Return the callback for the list of pods: others that were known have ended unseen."""
        before = set(self._living)

        def listed(uids: set[str]) -> None:
            for uid in before - uids:
                self._doubt(uid, _Known(), RUNS_AFTER_S)  # etcd may have been put back: others could get its card
            if not self._listed:
                self._listed = True
                self._wanted.set()

        return listed

    async def run(self) -> None:
        """Look for pods while there are any to look for, until cancelled."""
        while True:
            await self._wanted.wait()
            await self._look_once()
            pause_s = LOOK_INTERVAL_S
            self._wanted.clear()
            while self._doubtful:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._wanted.wait()
                        pause_s = LOOK_INTERVAL_S
                self._wanted.clear()
                has_seen = await self._look_once()
                if not has_seen or self._doubtful.keys() <= self._said.keys() | self._may_start:
                    pause_s = min(1.5 * pause_s, LONGEST_INTERVAL_S)

    async def _look_once(self) -> bool:
        """Look for those in doubt, and say what was found; return whether anything could be seen."""
        listed = self._listed
        sought = dict(self._doubtful)
        if sought:
            try:
                sight = await self._look({uid: each.containers for uid, each in sought.items()})
            except OSError as error:  # as for want of a file descriptor: then nothing is known of any pod
                logger.warning("the processes of ended pods can't be listed, retrying: %s", error)
                return False
            self._conclude(sought, sight)
        self._say(ends_annotation(self._said, {uid: each.containers for uid, each in self._doubtful.items()}))
        if listed:
            self.complete.set()
        return True

    def _conclude(self, sought: Mapping[str, _Known], sight: Sight) -> None:
        now_s = asyncio.get_running_loop().time()
        self._sees_pods = self._sees_pods or sight.sees_pods
        kept = self._kept()
        self._may_start = {
            uid
            for uid, each in sought.items()
            if not each.claims.isdisjoint(kept) and now_s < each.sought_s + KEPT_AT_MOST_S
        }
        for uid, each in sought.items():
            if uid in sight.pods:
                if now_s >= each.sought_s + RUNS_AFTER_S:
                    self._settle(uid, True)
            elif self._sees_pods and uid in self._may_start:
                continue
            elif self._sees_pods:
                self._settle(uid, False)
                del self._doubtful[uid]
            elif each.containers or not self._said.get(uid):
                self._said.pop(uid, None)  # unknown, or no longer known
                del self._doubtful[uid]

    def _settle(self, uid: str, runs: bool) -> None:
        if self._said.get(uid) == runs:
            return
        self._said.pop(uid, None)
        self._said[uid] = runs
        logger.info(
            "pod with UID %s: %s", uid, "some of its processes still run" if runs else "none of its processes are left"
        )
        ended = [each for each, still in self._said.items() if not still]
        for each in ended[: max(0, len(self._said) - MAX_NAMED)]:
            del self._said[each]

    def _kept(self) -> frozenset[Claim]:
        """Return the claims that the kubelet has not given back, and that no pod uses which may run."""
        used = {claim for known in self._living.values() for claim in known.claims}
        return frozenset(self._prepared() if self._prepared else ()).difference(used)

    def _doubt(self, uid: str, found: _Known, ago_s: float = 0.0) -> None:
        """Look for a pod that has ended so long ago."""
        known = self._living.pop(uid, _Known())
        if uid in self._doubtful or self._said.get(uid) is False:
            return
        containers, claims = known.containers | found.containers, known.claims | found.claims
        self._doubtful[uid] = _Known(containers, claims, asyncio.get_running_loop().time() - ago_s)
        self._wanted.set()


async def sees_processes(own_pod_uid: str, node_name: str, pods: KubeReads) -> bool:
    """Return whether this agent sees the processes of pods: as a pod, only one with the node's process ids does."""
    while own_pod_uid:
        try:
            there = await pods.pods_of_node(node_name, _uid_and_host_pid)
        except ApiError as error:
            logger.info("whether this pod has hostPID can't be read yet, retrying: %s", error)
            await asyncio.sleep(ASK_AGAIN_S)
            continue
        return (own_pod_uid, True) in there
    return True


def _uid_and_host_pid(pod: Json) -> tuple[str, bool]:
    return pod["metadata"]["uid"], bool(pod["spec"].get("hostPID"))
