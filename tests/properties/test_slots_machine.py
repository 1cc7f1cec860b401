"""A kubelet that gives out slots in any way it may, and an agent that must never mix up its pods.

Few slots and many pods, so that each slot has many owners; init containers, sidecars and containers that share slots,
as the kubelet's rules have it. Pods end and come back under their names, kubelet and agent start anew, the checkpoint
is damaged or older than it should be. Whatever happens: when a start is allowed and the runtime finds a file under the
name that the kubelet tells it, the file has that container's cards by the ledger; and no name is ever given twice.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from effort import times
from fakes.agent_node import AgentNode
from fakes.device_manager import CHECKPOINT, AdmissionError
from fakes.objects import GPU
from fakes.virtual_time import VirtualTimeLoop
from gpuledger.agent.grants import starts as retry
from gpuledger.formats.runtime.cdi import read_grant
from gpuledger.model.errors import GpuledgerError

SLOTS = 5
CARDS = 3
NAMES = ["a", "b"]

Json = dict[str, Any]

cards = st.lists(st.integers(0, CARDS - 1), min_size=1, max_size=2, unique=True)
pods = st.fixed_dictionaries(
    {"main": cards},
    optional={"side": cards, "init-1": cards, "init-2": cards, "sidecar": cards},
)


class SlotsMachine(RuleBasedStateMachine):
    """One node."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(retry, "PATIENCE_S", retry.PAUSE_S / 2)  # nothing changes meanwhile
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        self.live: dict[str, Json] = {}  # UID -> pod that the kubelet runs
        self.ledger: dict[tuple[str, str], tuple[str, ...]] = {}  # UID, container -> its cards, also of the past
        self.names: dict[str, tuple[str, str]] = {}  # name -> UID and container that were told it
        self.files: dict[str, tuple[str, str]] = {}  # name -> UID and container that the file has ever been of
        self.created = 0
        self.stale: bytes | None = None

    @initialize()
    def begin(self) -> None:
        async def build() -> AgentNode:
            return AgentNode(self.root, cards=CARDS, slots=SLOTS)

        self.node = self.loop.run_until_complete(build())

    def teardown(self) -> None:
        self.loop.close()
        self.patch.undo()
        self.folder.cleanup()

    # Pods.

    @rule(name=st.sampled_from(NAMES), given=pods, backwards=st.booleans(), lies=st.booleans(), seen=st.booleans())
    def create(self, name: str, given: dict[str, list[int]], backwards: bool, lies: bool, seen: bool) -> None:
        """Bind a pod, which the kubelet may not see; one of that name that is there still ends only later."""
        self.created += 1
        uid = f"uid-{self.created}"
        annotation = '{"main": [{"uuid": "GPU-node-a-0"}, {"uuid": "GPU-node-a-1"}]}' if lies else None
        inits = [each for each in given if each.startswith("init")]
        sidecars = [each for each in given if each == "sidecar"]
        pod = self.node.bind(name, given, uid=uid, init=inits, sidecars=sidecars, annotation=annotation)
        for container, indexes in given.items():
            self.ledger[uid, container] = self.node.uuids(*sorted(indexes))
        if not seen:
            return
        self.node.kubelet.choose = lambda slots: sorted(slots, reverse=backwards)
        self.stale = (self.node.kubelet.directory / CHECKPOINT).read_bytes()
        try:
            self.loop.run_until_complete(self.node.admit(pod))
            self.live[uid] = pod
        except AdmissionError:  # some of its containers may have been given theirs
            self.node.kubelet.forget(uid)
        for container in self.node.kubelet.given.get(uid, ()):
            told = self.node.name(pod, container)
            assert told not in self.names, "a name is given once"
            self.names[told] = (uid, container)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), in_ledger=st.booleans(), in_api=st.booleans())
    def end(self, data: st.DataObject, in_ledger: bool, in_api: bool) -> None:
        """Let a pod end; the ledger and the API server may know it later."""
        uid = data.draw(st.sampled_from(sorted(self.live)))
        pod = self.live.pop(uid)
        self.node.kubelet.forget(uid)
        if in_ledger:
            self.node.release(uid)
        stored = self.node.api.pods.get(("default", pod["metadata"]["name"]))
        if in_api and stored is not None and stored["metadata"]["uid"] == uid:
            self.node.api.delete_pod(pod["metadata"]["name"])

    # Starts.

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """Start any container of any pod, for the first time or again."""
        uid = data.draw(st.sampled_from(sorted(self.live)))
        container = data.draw(st.sampled_from(sorted(self.node.kubelet.given[uid])))
        self.loop.run_until_complete(self._start(uid, container))

    @precondition(lambda self: self.live)
    @rule()
    def start_all(self) -> None:
        """Start everything at once."""
        every = [(uid, each) for uid in self.live for each in self.node.kubelet.given[uid]]

        async def start() -> None:
            await asyncio.gather(*(self._start(uid, container) for uid, container in every))

        self.loop.run_until_complete(start())

    async def _start(self, uid: str, container: str) -> None:
        pod = self.live[uid]
        stored = self.node.api.pods.get(("default", pod["metadata"]["name"]))
        in_order = (
            stored is not None
            and stored["metadata"]["uid"] == uid
            and sum(each["metadata"]["name"] == pod["metadata"]["name"] for each in self.live.values()) == 1
            and self.healthy_checkpoint()
        )
        try:
            name = await self.node.start(pod, container)
        except GpuledgerError:
            assert not in_order, "nothing stands in the way of this container"
            return
        found = self.node.delivered(name)
        if found is not None:
            assert found == (uid, container, self.ledger[uid, container])
        assert found is not None or not in_order

    def healthy_checkpoint(self) -> bool:
        before = (self.node.kubelet.directory / CHECKPOINT).read_bytes()
        return b"PodUID" in before and before != self.stale

    # What happens around them.

    @rule(rebuild=st.booleans())
    def start_agent_anew(self, rebuild: bool) -> None:
        """Let the agent lose its memory."""
        self.node.start_agent()
        if rebuild:
            self.loop.run_until_complete(self.node.starts.rebuild((GPU,)))

    @rule()
    def start_kubelet_anew(self) -> None:
        """Let the kubelet read its checkpoint, and hear of the slots again."""
        self.node.kubelet.write_checkpoint()
        self.node.kubelet.restart()
        self.node.kubelet.take_list(GPU, [(f"slot-{number}", "Healthy") for number in range(SLOTS)])

    @rule(how=st.sampled_from(["damaged", "gone", "older"]))
    def harm_checkpoint(self, how: str) -> None:
        """Let the checkpoint be of no use until the kubelet writes it again."""
        path = self.node.kubelet.directory / CHECKPOINT
        if how == "gone":
            path.unlink(missing_ok=True)
            path.write_bytes(b"")
        elif how == "damaged":
            path.write_bytes(b'{"Data": {"PodDeviceEntries": [{')
        elif self.stale is not None:
            path.write_bytes(self.stale)

    @rule()
    def write_checkpoint(self) -> None:
        """Let the kubelet write it again, as it does at each list of slots."""
        self.node.kubelet.write_checkpoint()

    @invariant()
    def no_name_ever_changes_hands(self) -> None:
        """Look at every file that a runtime could read."""
        cdi = self.root / "cdi"
        for file in cdi.glob("*.json") if cdi.is_dir() else ():
            grant = read_grant(file.read_bytes())
            owner = (grant.pod_uid, grant.container)
            assert self.names[grant.name] == owner, "the file is of who was told its name"
            assert self.files.setdefault(grant.name, owner) == owner
            assert grant.uuids == self.ledger[owner]


TestSlots = SlotsMachine.TestCase
TestSlots.settings = settings(max_examples=times(40, 40, check=10), stateful_step_count=30)
