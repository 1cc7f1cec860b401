"""Simulated nodes: registered as an agent and its kubelet would, with cards and containers that exist only on paper.

The status of a pod is a function of the pod and of the time, sent as a kubelet would send it. Images, volumes, probes
and grace periods play no part: a container runs as soon as its turn comes, is ready at once, and is killed at once when
its pod is deleted. A few commands do what they say: sleep, true, exit ... Any other runs on, or for JOB_RUNTIME_S in a
pod that is to end; that of an init container ends at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import shlex
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath

from gpuledger.formats.kubernetes.node import REGISTER_ANNOTATION, register_of
from gpuledger.formats.kubernetes.other import condition_of
from gpuledger.formats.kubernetes.pod import bound_node, is_being_deleted, is_finished, pod_identity, started_at
from gpuledger.formats.resource_claims.claims import SERVES_CLAIMS_ANNOTATION
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.reads import KubeReads
from gpuledger.kube_api.writes import KubeletWrites
from gpuledger.model.card import ALL_CORES, Amounts, Card
from gpuledger.model.clock import rfc3339
from gpuledger.model.errors import ApiError, Conflict, NotFound, Unreachable
from gpuledger.model.json_object import Json
from gpuledger.model.node import NodeConfig, NodeConfigs

SHELLS = frozenset({"sh", "bash", "ash", "dash"})
SCRIPT_FLAG = re.compile(r"-[a-z]*c")
DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
JOINTS = frozenset({";", "\n", "&&", "||"})
EXIT_CODES = 256

Step = tuple[str, list[str]]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a command: how long it takes, `math.inf` for one that runs until it is killed, and how it ends."""

    lasts_s: float
    exit_code: int = 0


ENDLESS = Run(math.inf)
AT_ONCE = Run(0.0)


def run_of(words: Sequence[str]) -> Run | None:
    """Return the outcome of a command, None where only running it would tell."""
    match words:
        case [shell, flag, script, *_] if _name(shell) in SHELLS and SCRIPT_FLAG.fullmatch(flag):
            return _script(script)
        case _:
            return _command(words)


def _command(words: Sequence[str]) -> Run | None:
    name, arguments = _name(words[0]) if words else "", words[1:]
    match name:
        case "sleep":
            return _sleep(arguments)
        case "true" | ":" | "echo":
            return AT_ONCE
        case "false":
            return Run(0.0, exit_code=1)
        case "pause":
            return ENDLESS
        case "tail" if list(arguments) == ["-f", "/dev/null"]:
            return ENDLESS
    return None


def _sleep(durations: Sequence[str]) -> Run | None:
    if "infinity" in durations:
        return ENDLESS
    found = [DURATION.fullmatch(text) for text in durations]
    times_s = [float(match[1]) * UNITS_S[match[2]] for match in found if match]
    return Run(sum(times_s)) if durations and len(times_s) == len(durations) else None


def _script(script: str) -> Run | None:
    """Return the outcome of commands one after the other, None if one of them is not understood."""
    lasts_s, code = 0.0, 0
    try:
        for joint, words in _steps(script):
            if joint not in JOINTS:
                return None
            if not words or (joint == "&&" and code) or (joint == "||" and not code):
                continue
            if words[0] == "exit":
                return Run(lasts_s, int(words[1]) % EXIT_CODES if words[1:] else code)
            run = _command(words)
            if run is None:
                return None
            lasts_s, code = lasts_s + run.lasts_s, run.exit_code
    except ValueError:  # an open quote, or an exit code that is no number
        return None
    return Run(lasts_s, code)


def _steps(script: str) -> Iterator[Step]:
    """Yield each command of a script, with what stands before it. Raises ValueError."""
    tokens = shlex.shlex(script, posix=True, punctuation_chars=";&|<>()\n")
    tokens.whitespace, tokens.commenters, tokens.whitespace_split = " \t\r", "", True
    joint, words = ";", list[str]()
    for token in tokens:
        if set(token) <= set(";&|<>()\n"):
            yield joint, words
            joint, words = token.strip("\n") or "\n", []
        else:
            words.append(token)
    yield joint, words


def _name(program: str) -> str:
    return PurePosixPath(program).name


JOB_RUNTIME_S = 30.0

KILLED_EXIT_CODE = 143
"""128 and the number of SIGTERM."""

FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S, DOUBLINGS = 10.0, 300.0, 5
"""A container's second restart waits so long, each later one twice as long as the one before."""

ENDED = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}
"""Phase of a pod that has ended -> why it is not ready."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The time of one pod."""

    started: datetime
    now: datetime

    @property
    def elapsed_s(self) -> float:
        """How long ago the pod was taken up."""
        return (self.now - self.started).total_seconds()

    def at(self, elapsed_s: float) -> str:
        """Return a moment of the pod's life, RFC 3339."""
        return rfc3339(self.started + timedelta(seconds=elapsed_s))


def next_status(pod: Json, now: datetime) -> Json | None:
    """Return the status that a kubelet would write now, None where it would write nothing."""
    if is_finished(pod):
        return None
    status = _status(pod, Clock(datetime.fromisoformat(started_at(pod) or rfc3339(now)), now))
    return None if _gist(status) == _gist(pod.get("status") or {}) else status


def _gist(status: Json) -> list[object]:
    """Return the fields for which a kubelet writes a new status."""
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    states = [(each["name"], each["restartCount"], *(each.get("state") or ())) for each in containers]
    return [bool(status.get("startTime")), status.get("phase"), states]


def _status(pod: Json, clock: Clock) -> Json:
    spec = pod["spec"]
    policy = spec.get("restartPolicy", "Always")
    init, begin_s = _init_containers(spec.get("initContainers") or (), policy, clock)
    main = _main_containers(spec["containers"], policy, begin_s, clock)
    initialized = begin_s <= clock.elapsed_s
    phase = _phase(init, main, initialized)
    if phase not in ENDED and is_being_deleted(pod):
        phase = "Failed"
    if phase in ENDED:
        init, main = ([_killed(each, clock) for each in statuses] for statuses in (init, main))
    unready = [each["name"] for each in (*init, *main) if not each["ready"]]
    return {
        "phase": phase,
        "startTime": clock.at(0),
        "initContainerStatuses": init,
        "containerStatuses": main,
        "conditions": _conditions(pod, phase, initialized, unready, clock),
    }


def _phase(init: Iterable[Json], main: Iterable[Json], initialized: bool) -> str:
    """Return the pod's phase. A container is `terminated` here if it is not run again."""
    if any(each["state"]["terminated"]["exitCode"] for each in init if "terminated" in each["state"]):
        return "Failed"
    if not initialized:
        return "Pending"
    ends = [each["state"].get("terminated") for each in main]
    if not all(ends):
        return "Running"
    return "Failed" if any(end["exitCode"] for end in ends) else "Succeeded"


# Containers.


def _init_containers(containers: Iterable[Json], policy: str, clock: Clock) -> tuple[list[Json], float]:
    """Return their statuses, and when the last of them lets the main containers begin, in seconds of the pod's life."""
    begin_s, statuses = 0.0, []
    for container in containers:
        if container.get("restartPolicy") == "Always":  # a sidecar: the next one begins beside it
            statuses.append(_container_status(container, _run(container, ENDLESS), begin_s, "Always", clock))
        else:
            run = _run(container, AT_ONCE)
            status = _container_status(container, run, begin_s, "Never" if policy == "Never" else "OnFailure", clock)
            statuses.append({**status, "ready": "terminated" in status["state"] and not run.exit_code})
            begin_s += math.inf if run.exit_code else run.lasts_s
    return statuses, begin_s


def _main_containers(containers: Iterable[Json], policy: str, begin_s: float, clock: Clock) -> list[Json]:
    default = ENDLESS if policy == "Always" else Run(JOB_RUNTIME_S)
    return [_container_status(each, _run(each, default), begin_s, policy, clock) for each in containers]


def _run(container: Json, default: Run) -> Run:
    return run_of([*(container.get("command") or ()), *(container.get("args") or ())]) or default


def _container_status(container: Json, run: Run, begin_s: float, policy: str, clock: Clock) -> Json:
    """Return what has become of a container; `policy` is as a pod's restartPolicy."""
    restarts, last = 0, Json()
    while (end_s := begin_s + run.lasts_s) <= clock.elapsed_s:
        end = _terminated(run.exit_code, clock.at(begin_s), clock.at(end_s))
        if policy == "Never" or (policy == "OnFailure" and not run.exit_code):
            return _shown(container, end, restarts, last)
        begin_s = end_s + _back_off_s(restarts)
        if begin_s > clock.elapsed_s:
            return _shown(container, {"waiting": {"reason": "CrashLoopBackOff"}}, restarts, end)
        restarts, last = restarts + 1, end
    if begin_s > clock.elapsed_s:
        return _shown(container, {"waiting": {"reason": "PodInitializing"}}, restarts, last)
    return _shown(container, {"running": {"startedAt": clock.at(begin_s)}}, restarts, last)


def _back_off_s(restarts: int) -> float:
    return min(FIRST_BACK_OFF_S * 2 ** min(restarts - 1, DOUBLINGS), LONGEST_BACK_OFF_S) if restarts else 0.0


def _shown(container: Json, state: Json, restarts: int, last: Json) -> Json:
    named = {"name": container["name"], "image": container["image"], "imageID": ""}
    runs = "running" in state
    return {**named, "state": state, "lastState": last, "restartCount": restarts, "ready": runs, "started": runs}


def _terminated(exit_code: int, begin: str, end: str) -> Json:
    reason = "Error" if exit_code else "Completed"
    return {"terminated": {"exitCode": exit_code, "reason": reason, "startedAt": begin, "finishedAt": end}}


def _killed(status: Json, clock: Clock) -> Json:
    """Return the status of a container after the end of its pod: if it runs, it is killed."""
    if "running" not in status["state"]:
        return status
    end = _terminated(KILLED_EXIT_CODE, status["state"]["running"]["startedAt"], rfc3339(clock.now))
    return {**status, "state": end, "ready": False, "started": False}


# Conditions.


def _conditions(pod: Json, phase: str, initialized: bool, unready: Sequence[str], clock: Clock) -> list[Json]:
    """Return the conditions that a kubelet writes; those of others are not its business."""
    ready = phase == "Running" and not unready
    why = "" if ready else ENDED.get(phase, "ContainersNotReady")
    message = f"containers with unready status: [{' '.join(unready)}]" if why == "ContainersNotReady" else ""
    return [
        _condition(pod, "PodScheduled", True, clock),
        _condition(pod, "PodReadyToStartContainers", phase not in ENDED, clock),
        _condition(pod, "Initialized", initialized, clock, "" if initialized else "ContainersNotInitialized"),
        _condition(pod, "ContainersReady", ready, clock, why, message),
        _condition(pod, "Ready", ready, clock, why, message),
    ]


def _condition(pod: Json, kind: str, holds: bool, clock: Clock, reason: str = "", message: str = "") -> Json:
    before = condition_of(pod, kind) or {}
    same = before.get("status") == str(holds)
    since = before.get("lastTransitionTime") if same else rfc3339(clock.now)
    told = {"type": kind, "status": str(holds), "reason": reason, "message": message}
    return {**told, "lastTransitionTime": since}


logger = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.3


class FakeKubelet:
    """Reports on the pods of some nodes, and removes those that have ended. It polls, and is no model of a kubelet."""

    def __init__(self, client: KubeClient, node_names: Collection[str]) -> None:
        self._reads, self._writes = KubeReads(client), KubeletWrites(client)
        self._node_names = node_names

    async def run(self) -> None:
        """Play until cancelled."""
        while True:
            try:
                async for page in self._reads.all_bound_pods():
                    for pod in page:
                        if bound_node(pod) in self._node_names:
                            await self.play(pod)
            except Unreachable as error:
                logger.info("the API server does not answer: %s", error)
            await asyncio.sleep(POLL_INTERVAL_S)

    async def play(self, pod: Json) -> None:
        """Do what there is to do for a pod now."""
        status = next_status(pod, datetime.now(UTC))
        try:
            if status:
                await self._writes.set_pod_status(pod, status)
            if is_being_deleted(pod) and pod["metadata"].get("deletionGracePeriodSeconds") != 0:  # 0: only a finalizer
                await self._writes.remove_pod(pod)
        except (NotFound, Conflict):
            pass  # it went meanwhile
        except Unreachable:
            raise
        except ApiError as error:  # of this pod alone
            logger.warning("%s: %s", pod_identity(pod), error)


MODELS_MIB = {
    "T4": 15360,
    "V100-32GB": 32768,
    "A10": 23028,
    "RTX-4090": 24564,
    "L40S": 46068,
    "A100-40GB": 40960,
    "A100-80GB": 81920,
    "H100-80GB": 81559,
    "H200": 143771,
}
"""Model -> memory of a card, in MiB, about what NVML reports."""

AS_THEY_ARE = NodeConfigs()

VENDOR = "nvidia"
"""Of the models above."""

PODS_PER_NODE = 250
NUMA_NODES = 2
CARDS_PER_PCIE_ROOT = 2
NVLINK_SCORE = 200
LABELS = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "type": "gpuledger-fake"}
NO_HOST = "-is-simulated-no-container-runs-"
"""Ends the name that the API server looks up for `kubectl logs` and `exec`, and tells when it finds no such host."""


@dataclass(frozen=True, slots=True)
class FakeNode:
    """A node that exists only in the API server."""

    name: str
    cards: tuple[Card, ...]


def fake_nodes(
    prefix: str, count: int, gpus: int, model: str, slots: int | None = None, configs: NodeConfigs = AS_THEY_ARE
) -> list[FakeNode]:
    """Return nodes with cards of a model. The same arguments always give the same UUIDs.

    Raises ValueError for a model that is not in MODELS_MIB.
    """
    if model not in MODELS_MIB:
        raise ValueError(f"there is no model {model!r}; models are {', '.join(MODELS_MIB)}")
    names = [f"{prefix}-{position}" for position in range(1, count + 1)]
    return [fake_node(name, gpus, model, _with_slots(configs.of(name), slots)) for name in names]


def _with_slots(config: NodeConfig, slots: int | None) -> NodeConfig:
    return config if slots is None else replace(config, split_count=slots)


def fake_node(name: str, gpus: int, model: str, config: NodeConfig = NodeConfig()) -> FakeNode:  # noqa: B008 - frozen
    """Return one node, of this name; see `fake_nodes`. Raises KeyError for a model that is not in MODELS_MIB."""
    uuids = [f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{index}.{name}')}" for index in range(gpus)]
    cards = (
        Card(
            uuid=uuids[index],
            node_name=name,
            index=index,
            capacity=Amounts(MODELS_MIB[model], ALL_CORES, config.split_count),
            vendor=VENDOR,
            model=f"NVIDIA-{model}",
            numa_node=index * NUMA_NODES // max(gpus, 1),
            pcie_root=f"pci0000:{index // CARDS_PER_PCIE_ROOT * 16:02x}",
            links={peer: NVLINK_SCORE for peer in uuids if peer != uuids[index]},
        )
        for index in range(gpus)
    )
    return FakeNode(name, config.offered(cards))


async def register(
    nodes: Sequence[FakeNode],
    count_resources: Sequence[str],
    run_pods: bool,
    kubeconfig: str | None = None,
    context: str | None = None,
) -> None:
    """Create or update the nodes at the API server; with `run_pods`, stay and play their kubelet."""
    client = await KubeClient.connect(kubeconfig, context)
    try:
        for node in nodes:
            await register_node(client, node, count_resources)
        logger.info("%d nodes with %d cards registered", len(nodes), sum(len(node.cards) for node in nodes))
        if run_pods:
            await FakeKubelet(client, {node.name for node in nodes}).run()
    finally:
        await client.close()


async def register_node(client: KubeClient, node: FakeNode, count_resources: Sequence[str]) -> None:
    """Write the annotation as the agent does, and the status as its kubelet does. Idempotent.

    All cards can be asked for by each of the names: the agent serves them all.
    """
    annotations = {REGISTER_ANNOTATION: register_of(node.cards), SERVES_CLAIMS_ANNOTATION: "true"}
    metadata = {"name": node.name, "annotations": annotations}
    labels = {"kubernetes.io/hostname": node.name, **LABELS}
    slots = dict.fromkeys(count_resources, str(sum(card.capacity.number for card in node.cards)))
    amounts = {"cpu": "128", "memory": "1Ti", "pods": str(PODS_PER_NODE), **slots}
    ready = {"type": "Ready", "status": "True", "reason": "FakeKubelet", "message": "simulated by gpuledger"}
    status = {
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": [ready],
        "addresses": [{"type": "Hostname", "address": f"{node.name}{NO_HOST}"}],
        "nodeInfo": {"osImage": "simulated by gpuledger"},
    }
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {**metadata, "labels": labels}}
    await KubeletWrites(client).put_node(body, status)
