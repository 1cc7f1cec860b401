"""The driver's limits on a real kubelet and containerd: set before a container's first process, gone after its last.

The driver is a stand-in, which notes each limit in a file; containers note there when they begin and end. So the order
of lines is the order of events, whatever clocks say.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.claims import CLAIMS, TEMPLATES, claim, create_class, share, template
from cluster.cluster import COUNT, MEMORY, PODS, Json, devices
from effort import times
from fakes.nvml.fake_nvml import NO_LIMIT, NO_PERMISSION, Failure, SetLimit, limit_lines, some_cards
from node.gpu_node import GpuNode, gpu_container, gpu_pod, one_card
from node.limiting_agent import POINTS
from node.test_claims import by_claim, serves_claims

MIB = 1024 * 1024
SHARED: Json = {"volumes": [{"name": "notes", "hostPath": {"path": "/var/lib/fake-nvml"}}]}
MOUNT = [{"name": "notes", "mountPath": "/notes"}]
CAN_NOT = re.compile("isolation is driver, and .* 615 or newer")
SET = "nvmlDeviceSetMemoryLimits_v1"
CARDS = 6
"""Of ten slots each: enough for fifty containers."""


def noting(name: str, limits: dict[str, int]) -> Json:
    """Return a container that notes when its first process begins, and when its last one ends."""
    script = (
        f"echo begins {name} >> /notes/limits; "
        f"trap 'echo ends {name} >> /notes/limits; exit 0' TERM; while :; do sleep 3600 & wait $!; done"
    )
    return gpu_container(name, limits, script, volumeMounts=MOUNT)


class Limits:
    """The node, and what its driver and containers have noted."""

    def __init__(self, gpu: GpuNode) -> None:
        self.gpu = gpu

    def lines(self) -> list[SetLimit | str]:
        """Return what was noted, in order, without what the agent tries out with its own group."""
        noted = limit_lines((self.gpu.node.path("/var/lib/fake-nvml") / "limits").read_text())
        return [line for line in noted if not (isinstance(line, SetLimit) and "kubepods" not in line.group)]

    def of(self, name: str) -> list[SetLimit | str]:
        """Return the lines of a pod with one container of its name."""
        uid = self._uids[name]
        return [
            line
            for line in self.lines()
            if (isinstance(line, SetLimit) and uid in line.group) or line in (f"begins {name}", f"ends {name}")
        ]

    def start(self, *names: str, limits: dict[str, int] | None = None) -> None:
        """Start pods with one container each."""
        self.create(*names, limits=limits)
        self.gpu.wait_running(*names)

    def create(
        self, *names: str, limits: dict[str, int] | None = None, annotations: dict[str, str] | None = None
    ) -> None:
        """Create such pods."""
        for n, name in enumerate(names):
            made = gpu_pod(name, noting(name, limits or one_card(1000 + n)), **SHARED)
            made["metadata"]["annotations"] = {**made["metadata"].get("annotations", {}), **(annotations or {})}
            self.gpu.create(made)
        self._uids = {**getattr(self, "_uids", {}), **{n: self.uid(n) for n in names}}

    def uid(self, name: str) -> str:
        """Return a pod's UID."""
        return str(self.gpu.cluster.pod(name)["metadata"]["uid"])

    def check_start(self, name: str) -> None:
        """Check that the limits of the pod's share were set before its first process began, and are in force."""
        lines = self.of(name)
        begun = len(lines) - 1 - lines[::-1].index(f"begins {name}")
        before = [line for line in lines[:begun] if isinstance(line, SetLimit)]
        share = {each["uuid"]: each["memoryMiB"] for each in devices(self.gpu.cluster.pod(name))[name]}
        group = before[-1].group
        assert {line.uuid: (line.soft, line.hard) for line in before if line.group == group} == {
            uuid: (0, memory_mib * MIB) for uuid, memory_mib in share.items()
        }, lines
        assert not [line for line in lines[begun:] if isinstance(line, SetLimit) and line.group == group], lines

    def check_end(self, name: str) -> None:
        """Check that whatever was removed of the pod's limits was removed after its last process."""
        lines = self.of(name)
        ended = lines.index(f"ends {name}")
        removed = [n for n, line in enumerate(lines) if isinstance(line, SetLimit) and line.hard == NO_LIMIT]
        assert all(n > ended for n in removed), lines

    def removed(self, names: Sequence[str]) -> int:
        """Return of how many of these pods the limits were removed before their group went."""
        return sum(any(isinstance(line, SetLimit) and line.hard == NO_LIMIT for line in self.of(n)) for n in names)


def start_agent(gpu: GpuNode, point: str = "") -> None:
    program = [str(Path(__file__).with_name("limiting_agent.py")), *([point] if point else [])]
    gpu.start_agent(program=program)


@pytest.fixture
def limits(gpu: GpuNode) -> Iterator[Limits]:
    """Yield the node with a driver that limits memory, and an agent that uses it."""
    gpu.kill_agent()
    before = gpu.state
    notes = gpu.node.path("/var/lib/fake-nvml") / "limits"
    notes.write_text("")
    notes.chmod(0o666)
    cards = some_cards(CARDS)
    gpu.show(replace(before, cards=cards, limits="/var/lib/fake-nvml/limits", driver_version="615.71.09"))
    gpu.change_settings(isolation="driver")
    start_agent(gpu)
    gpu.wait_ready()
    yield Limits(gpu)
    gpu.remove_all()
    gpu.kill_agent()
    gpu.show(before)
    gpu.change_settings(isolation="none")
    gpu.start_agent()
    gpu.wait_ready()


def test_what_fits_the_node_is_the_driver_and_a_pod_may_borrow_where_all_keep_their_shares(limits: Limits) -> None:
    gpu = limits.gpu
    gpu.kill_agent()
    gpu.change_settings(isolation="auto", memory_bursts="guaranteed")
    start_agent(gpu)
    gpu.wait_ready()
    try:
        gpu.cluster.wait(
            lambda: {card["spec"]["mode"] for card in gpu.cluster.cards().values()} == {"driver"}, "the cards say so"
        )
        limits.create("borrows", limits=one_card(1000), annotations={"gpuledger.dev/memory-limit": "borrows=5000"})
        limits.create("keeps", limits=one_card(2000))
        gpu.wait_running("borrows", "keeps")
        for name, share, most in (("borrows", 1000, 5000), ("keeps", 2000, 2000)):
            found = [(each.soft, each.hard) for each in limits.of(name) if isinstance(each, SetLimit)]
            assert found == [(share * MIB, most * MIB)], (name, limits.of(name))
    finally:
        gpu.change_settings(memory_bursts="never")


@pytest.mark.promise("isolation")
def test_limits_are_set_before_the_first_process_and_removed_after_the_last(
    limits: Limits, say: Callable[[str], None]
) -> None:
    names = [f"held-{n}" for n in range(4)]
    limits.start(*names)
    limits.start("several", limits={COUNT: 3, MEMORY: 700})
    limits.gpu.check(*names, "several")
    for name in (*names, "several"):
        limits.check_start(name)
    limits.gpu.remove(*names, "several")
    for name in (*names, "several"):
        limits.check_end(name)
    say(f"limits of {limits.removed(names)} of {len(names)} containers were removed before their groups were gone")


def test_a_container_that_starts_again_is_limited_again(limits: Limits) -> None:
    limits.gpu.create(
        gpu_pod(
            "again",
            gpu_container(
                "again",
                one_card(2000),
                "echo begins again >> /notes/limits; [ -e /notes/again ] && exec sleep 3600; echo > /notes/again",
                volumeMounts=MOUNT,
            ),
            **SHARED,
        )
    )
    limits._uids = {"again": limits.uid("again")}
    limits.gpu.cluster.wait(lambda: limits.of("again").count("begins again") == 2, "it has begun twice")
    limits.check_start("again")
    groups = {line.group for line in limits.of("again") if isinstance(line, SetLimit) and line.hard != NO_LIMIT}
    assert len(groups) == 2


def claim_pods(gpu: GpuNode, *pods: Json) -> None:
    """Create pods by claims, when the node serves these."""
    create_class(gpu.cluster)
    gpu.cluster.wait(lambda: serves_claims(gpu) == "true", "the kubelet has taken up our driver")
    gpu.create(*pods)


def in_force(limits: Limits, uid: str) -> dict[str, dict[str, int]]:
    """Return the limits of a pod's groups: last part of the group's name -> UUID -> MiB."""
    found: dict[str, dict[str, int]] = {}
    for line in limits.lines():
        if isinstance(line, SetLimit) and uid in line.group:
            found.setdefault(line.group.rpartition("/")[2], {})[line.uuid] = line.hard // MIB
    return found


@pytest.mark.promise("limits of claims")
def test_containers_of_one_claim_are_held_to_its_amount_together_by_their_pods_group(limits: Limits) -> None:
    gpu = limits.gpu
    gpu.cluster.request("POST", TEMPLATES, template("part", share("4000Mi")))
    names = [f"c{n}" for n in range(8)]
    try:
        claim_pods(gpu, by_claim("eight", "part", {name: [{"name": "gpu"}] for name in names}))
        gpu.wait_running("eight")
        (uuid,) = {card for card, _, _ in gpu.told("eight", "c0")}
        uid = limits.uid("eight")
        found = in_force(limits, uid)
        assert found.pop(f"pod{uid}") == {uuid: 4000}, "what the ledger counts, once"
        assert list(found.values()) == [{uuid: 4000}] * 8, "each of them may use all of it"
    finally:
        gpu.remove_all()
        gpu.cluster.request("DELETE", f"{TEMPLATES}/part")


def test_a_part_that_pods_share_is_used_by_one_after_the_other_and_events_say_why(limits: Limits) -> None:
    gpu = limits.gpu
    gpu.cluster.request("POST", CLAIMS, claim("together", share("4000Mi")))
    try:
        claim_pods(gpu, by_claim("first", named="together"))
        gpu.wait_running("first")
        gpu.create(by_claim("second", named="together"))
        why = f"the pod with UID {limits.uid('first')} uses it: isolation by the driver can't keep several pods to one"
        gpu.cluster.wait(lambda: any(why in text for text in gpu.cluster.messages("second")), "its events say why")
        assert not gpu.has_run("second")
        assert in_force(limits, limits.uid("second")) == {}
        gpu.cluster.request("DELETE", f"{PODS}/first")
        gpu.wait_running("second")
    finally:
        gpu.remove_all()
        gpu.cluster.request("DELETE", f"{CLAIMS}/together")


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(each, marks=[] if each == "after the limits are set" else [pytest.mark.long])
        for each in POINTS
        if "removed" not in each
    ],
)
def test_an_agent_killed_at_any_step_of_a_start_leaves_no_container_without_its_limit(
    limits: Limits, point: str
) -> None:
    gpu = limits.gpu
    limits.start("bystander")
    before = gpu.identities("bystander")
    gpu.kill_agent()
    start_agent(gpu, point)
    agent = gpu.agent
    assert agent is not None
    gpu.wait_ready()
    limits.create("hit", limits=one_card(2000))
    gpu.cluster.wait(lambda: not agent.alive, f"the agent dies {point}: {gpu.log_tail()}")
    start_agent(gpu)
    gpu.wait_ready()
    gpu.wait_running("hit")
    limits.start("new", limits=one_card(3000))
    for name in ("bystander", "hit", "new"):
        limits.check_start(name)
    assert gpu.identities("bystander") == before


def test_an_agent_killed_before_it_removes_limits_is_followed_by_one_that_knows_them(limits: Limits) -> None:
    gpu = limits.gpu
    gpu.kill_agent()
    start_agent(gpu, "before the limits are removed")
    agent = gpu.agent
    assert agent is not None
    gpu.wait_ready()
    limits.start("short")
    gpu.cluster.request("DELETE", "/api/v1/namespaces/default/pods/short")
    gpu.cluster.wait(lambda: not agent.alive or "short" not in gpu.cluster.pods(), "it has ended")
    gpu.kill_agent()
    start_agent(gpu)
    gpu.wait_ready()
    limits.start("next")
    limits.check_start("next")
    limits.check_end("short")
    records = gpu.node.path("/var/lib/gpuledger/limits/limited")
    gpu.cluster.wait(lambda: len(list(records.iterdir())) == 1, "only what runs is known to be limited")


@pytest.mark.parametrize("program", ["kubelet", pytest.param("containerd", marks=pytest.mark.long)])
def test_a_restart_of_what_runs_the_pods_leaves_limits_as_they_are(limits: Limits, program: str) -> None:
    gpu = limits.gpu
    names = [f"before-{n}" for n in range(3)]
    limits.start(*names)
    noted = limits.lines()
    before = gpu.identities(*names)
    {"kubelet": gpu.node.restart_kubelet, "containerd": gpu.node.restart_containerd}[program]()
    gpu.wait_ready()
    assert limits.lines() == noted
    limits.start("after-0", "after-1")
    assert gpu.identities(*names) == before
    for name in (*names, "after-0", "after-1"):
        limits.check_start(name)


def test_without_its_agent_no_container_starts_and_with_it_they_do(limits: Limits) -> None:
    gpu = limits.gpu
    limits.start("first")
    gpu.show(replace(gpu.state, failures=(Failure(NO_PERMISSION, SET),)))
    limits.create("refused", limits=one_card(1500))
    gpu.cluster.wait(
        lambda: any("SYS_ADMIN" in text for text in gpu.cluster.messages("refused")),
        f"its events say why: {gpu.log_tail()}",
    )
    assert "begins refused" not in limits.lines()
    gpu.cluster.wait(
        lambda: any("isolation is driver" in str(c.get("status")) for c in gpu.cluster.cards().values()),
        "the ledger says why the card takes no pods",
    )
    gpu.kill_agent()
    gpu.show(replace(gpu.state, failures=()))
    start_agent(gpu)
    gpu.wait_ready()
    gpu.wait_running("refused")
    for name in ("first", "refused"):
        limits.check_start(name)


def test_a_node_whose_driver_can_not_takes_no_pods_and_says_why(limits: Limits) -> None:
    gpu = limits.gpu
    limits.start("runs")
    before = gpu.identities("runs")
    gpu.kill_agent()
    gpu.show(replace(gpu.state, limits=None, driver_version="580.95.05"))
    start_agent(gpu)
    gpu.cluster.wait(lambda: all(CAN_NOT.search(reason) for reason in gpu_reasons(gpu)), "each card says why")
    assert not gpu.open_cards()
    gpu.create(gpu_pod("waits", one_card()))
    gpu.cluster.wait(lambda: CAN_NOT.search(explained(gpu, "waits")) is not None, "explain says why")
    assert gpu.identities("runs") == before
    gpu.show(replace(gpu.state, limits="/var/lib/fake-nvml/limits", driver_version="615.71.09"))
    gpu.kill_agent()
    start_agent(gpu)
    gpu.wait_ready()
    gpu.wait_running("waits")


def gpu_reasons(gpu: GpuNode) -> list[str]:
    """Return why each card takes no pods."""
    return [str(card["status"].get("reason")) for card in gpu.cluster.cards().values()]


def explained(gpu: GpuNode, name: str) -> str:
    """Return what `gpuledger explain` says of a pod."""
    where = ["--kubeconfig", str(gpu.plane.kubeconfig), "--operator-url", gpu.installation.view_url]
    argv = [sys.executable, "-m", "gpuledger", "explain", f"pod/{name}", "-n", "default", "-o", "json", *where]
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=environment).stdout


def test_fifty_containers_at_once_are_each_limited_to_their_own_share_and_start_soon(
    limits: Limits, say: Callable[[str], None]
) -> None:
    gpu = limits.gpu
    names = [f"crowd-{n}" for n in range(10)]
    for p, name in enumerate(names):
        containers = [noting(f"{name}-{n}", one_card(500 + 10 * p + n)) for n in range(5)]
        gpu.create(gpu_pod(name, *containers, **SHARED))
    gpu.wait_running(*names, timeout_s=300)
    lines = limits.lines()
    for name in names:
        pod = gpu.cluster.pod(name)
        for container, cards in devices(pod).items():
            begun = lines.index(f"begins {container}")
            (card,) = cards
            ids = [s["containerID"] for s in pod["status"]["containerStatuses"] if s["name"] == container]
            own = [
                line
                for line in lines[:begun]
                if isinstance(line, SetLimit) and ids[0].removeprefix("containerd://") in line.group
            ]
            assert [(line.uuid, line.hard) for line in own] == [(card["uuid"], card["memoryMiB"] * MIB)], container


RUNS = times(2, 6)


@pytest.mark.long
def test_a_start_takes_not_much_longer_than_one_without_a_gpu(limits: Limits, say: Callable[[str], None]) -> None:
    """Twelve pods of each kind at once, by turns: what else the machine does hits both alike."""
    gpu = limits.gpu
    took: dict[str, list[float]] = {"gpu": [], "plain": []}
    for run in range(RUNS):
        for kind in sorted(took, reverse=run % 2 == 0):
            names = [f"{kind}-{run}-{n}" for n in range(12)]
            if kind == "gpu":
                limits.start(*names, limits=one_card())
            else:
                others = {"schedulerName": "default-scheduler", **SHARED}
                gpu.create(*(gpu_pod(name, noting(name, {}), **others) for name in names))
                gpu.wait_running(*names)
            bound = gpu.bound_at_s()
            took[kind] += [gpu.started_at_s(name, name) - bound[name] for name in names]
            gpu.remove(*names)
    ours, plain = (statistics.median(took[kind]) for kind in ("gpu", "plain"))
    say(
        f"{RUNS} x 12 pods at once, from Binding to the first process: {ours:.2f} s in the middle with limits by the "
        f"driver, {plain:.2f} s without GPUs; ratio {ours / plain:.2f}"
    )
    assert ours < 2 * plain + 0.5
