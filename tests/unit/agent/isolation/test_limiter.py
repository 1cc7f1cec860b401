"""What a hook asks for is set if it is the grant's and its pod's, is known to the next agent, and goes in the end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from fakes.grants import a_grant
from gpuledger.agent.devices.source import DriverGone, LimitRefused, MemoryLimit
from gpuledger.agent.isolation import driver_limits as limiter
from gpuledger.agent.isolation.driver_limits import ONLY_OWN, VERSION_1, ControlGroups, DriverLimits
from gpuledger.formats.runtime.cdi import CardLimit, Grant, GrantedClaim
from gpuledger.formats.runtime.limit_hook import (
    ANSWERS,
    LONGEST_ANSWER,
    REQUESTS,
    LimitRequest,
    answer_line,
    group_path,
    read_request,
)
from gpuledger.model.errors import BadInput

UID = "29b4fdab-e2a1-4ac6-8199-eb7915d01ccc"
PATIENCE_S = 20.0
LIMITS = (CardLimit("GPU-1", 0, 4_000), CardLimit("GPU-2", 500, 2_000))


class Tree(ControlGroups):
    """Groups as directories, populated as their file says; who watches is told by the test."""

    def group(self, path: str, populated: bool = True) -> Path:
        directory = self.root / path.removeprefix("/")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup.events").write_text(f"populated {int(populated)}\nfrozen 0\n")
        return directory

    def watch(self, on_change: Callable[[Path], None]) -> Any:
        self.on_change = on_change
        self.watched: list[Path] = []

        class Watch:
            add = self.watched.append

            def close(self) -> None:
                pass

        return Watch()


class Scene:
    """An agent's limits, its grants, and a driver that keeps what is set."""

    def __init__(self, root: Path) -> None:
        self.root, self.tree = root, Tree(root / "cgroup")
        self.grants: list[Grant] = []
        self.set: list[MemoryLimit] = []
        self.failure: Exception | None = None
        self.hang: asyncio.Event | None = None
        self.limits = self.agent()

    def agent(self) -> DriverLimits:
        return DriverLimits(self.root / "limits", lambda: self.grants, self.tree, self._set)

    async def _set(self, limits: Iterable[MemoryLimit], timeout_s: float) -> None:
        if self.hang is not None:
            await self.hang.wait()
        if self.failure is not None:
            raise self.failure
        self.set += limits

    def give(self, name: str = "slot-1-0a1b", **changes: Any) -> Grant:
        """Give a container its cards, and expect its hook."""
        grant = a_grant(name, pod_uid=UID, uuids=("GPU-1", "GPU-2"), limits=LIMITS, **changes)
        self.limits.expect(name)
        self.grants.append(grant)
        return grant

    async def ask(self, name: str, group: str, pid: int = 4711) -> str:
        """Ask as a hook does; return the answer."""
        answers = os.open(self.root / "limits" / ANSWERS / name, os.O_RDWR | os.O_NONBLOCK)
        requests = os.open(self.root / "limits" / REQUESTS, os.O_RDWR)
        os.write(requests, f"{name} {pid} {group}\n".encode())
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    with contextlib.suppress(BlockingIOError):
                        whose, _, answer = os.read(answers, 65536).decode().partition(" ")
                        assert whose == str(pid)
                        return answer.rstrip("\n")
                    await asyncio.sleep(0.001)
        finally:
            os.close(requests)
            os.close(answers)

    async def settled(self) -> None:
        """Wait until nothing is being done."""
        async with asyncio.timeout(PATIENCE_S):
            while self.limits._tasks:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    def records(self) -> list[str]:
        return sorted(file.name for file in (self.root / "limits" / "limited").iterdir())


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.limits.close()


def path_of(uid: str = UID, container: str = "c0ffee") -> str:
    return f"/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice/cri-containerd-{container}.scope"


def limits_in(directory: Path) -> list[MemoryLimit]:
    return [MemoryLimit("GPU-1", str(directory), 0, 4_000), MemoryLimit("GPU-2", str(directory), 500, 2_000)]


def none_in(directory: Path) -> list[MemoryLimit]:
    return [MemoryLimit("GPU-1", str(directory)), MemoryLimit("GPU-2", str(directory))]


async def test_each_card_is_limited_to_its_own_share_before_the_answer(scene: Scene) -> None:
    scene.give()
    directory = scene.tree.group(path_of())
    assert await scene.ask("slot-1-0a1b", f"0::{path_of()}") == "ok"
    assert scene.set == limits_in(directory)
    assert scene.tree.watched == [directory]
    assert await scene.ask("slot-1-0a1b", f"0::{path_of()}") == "ok", "asked again, it is set again"


@pytest.mark.parametrize(
    ("group", "why"),
    [
        ("0::/kubepods/podother", "not one of the pod"),
        (f"0::{path_of(uid='00000000-e2a1-4ac6-8199-eb7915d01ccc')}", "not one of the pod"),
        (f"0::/system.slice/../{path_of()}", "no path of a control group"),
        (f"0::/{path_of()}", "no path of a control group"),
        (f"0::{path_of()}/./", "no path of a control group"),
        ("0::/", "no path of a control group"),
        (f"8:pids:{path_of()}", "version 1"),
        (f"0::{path_of(container='gone')}", "does not see the control group"),
    ],
)
async def test_a_group_that_is_not_the_pods_own_is_refused(scene: Scene, group: str, why: str) -> None:
    scene.give()
    scene.tree.group(path_of())
    assert why in await scene.ask("slot-1-0a1b", group)
    assert scene.set == []
    assert scene.records() == []


OTHER = "00000000-e2a1-4ac6-8199-eb7915d01ccc"
OWN_CLAIM = GrantedClaim("made", "uid-of-claim", "gpu")


def shared_grant(scene: Scene, limits: tuple[CardLimit, ...]) -> None:
    """Give pods a claim that they share."""
    claim = GrantedClaim("together", "uid-of-claim", "gpu")
    scene.grants.append(a_grant("claim.1.gpu", pod_uid=claim.uid, claim=claim, uuids=("GPU-1",), limits=limits))
    scene.limits.expect("claim.1.gpu")


async def test_a_part_of_a_card_that_pods_share_is_used_by_one_of_them_at_a_time(scene: Scene) -> None:
    shared_grant(scene, LIMITS[:1])
    first, second = path_of(), path_of(uid=OTHER)
    directory = scene.tree.group(first)
    scene.tree.group(second)
    assert await scene.ask("claim.1.gpu", f"0::{first}") == "ok"
    refused = await scene.ask("claim.1.gpu", f"0::{second}")
    assert refused.startswith(f"claim together has a part of GPU-1, and the pod with UID {UID} uses it")
    assert refused.endswith("let both be containers of one pod, or let the claim request whole GPUs")
    assert not [each for each in scene.set if OTHER.replace("-", "_") in each.group]
    assert "does not tell which pod" in await scene.ask("claim.1.gpu", f"0::{scene_group(scene, '/system.slice/c1')}")
    scene.limits.close()
    scene.limits = scene.agent()
    scene.limits.resume()
    assert "uses it" in await scene.ask("claim.1.gpu", f"0::{second}"), "the next agent knows it, too"
    scene.tree.group(first, populated=False)
    assert await scene.ask("claim.1.gpu", f"0::{second}") == "ok"
    assert directory.is_dir()


async def test_pods_share_whole_cards(scene: Scene) -> None:
    shared_grant(scene, ())
    for group in (path_of(), path_of(uid=OTHER)):
        scene.tree.group(group)
        assert await scene.ask("claim.1.gpu", f"0::{group}") == "ok"


async def test_what_containers_of_a_pod_have_by_one_claim_is_one_amount(scene: Scene) -> None:
    scene.give("claim.1.gpu", claim=OWN_CLAIM)
    groups = [path_of(container=f"c{n}") for n in range(8)]
    for group in groups:
        scene.tree.group(group)
        assert await scene.ask("claim.1.gpu", f"0::{group}") == "ok"
    whole = str(scene.tree.root / groups[0].removeprefix("/").rpartition("/")[0])
    in_force = {(each.group, each.uuid): each for each in scene.set}
    assert in_force[whole, "GPU-1"] == MemoryLimit("GPU-1", whole, 0, 4_000)
    assert in_force[whole, "GPU-2"] == MemoryLimit("GPU-2", whole, 500, 2_000)
    leaves = [each for (group, uuid), each in in_force.items() if group != whole and uuid == "GPU-2"]
    assert sum(each.guaranteed_mib for each in leaves) == 500, "nor is more kept for it than it has"


async def test_beside_a_claim_a_pod_has_what_its_other_containers_have(scene: Scene) -> None:
    scene.give("claim.1.gpu", claim=OWN_CLAIM)
    scene.give("slot-1-0a1b")
    by_claim, own, early = (path_of(container=each) for each in ("c1", "c2", "c3"))
    whole = str(scene.tree.root / own.removeprefix("/").rpartition("/")[0])

    def of_pod() -> int | None:
        return [each.most_mib for each in scene.set if (each.group, each.uuid) == (whole, "GPU-1")][-1]

    scene.tree.group(early)
    await scene.ask("slot-1-0a1b", f"0::{early}")
    assert whole not in {each.group for each in scene.set}, "without a claim, each container's own limit is enough"
    scene.tree.group(early, populated=False)
    scene.tree.group(by_claim)
    await scene.ask("claim.1.gpu", f"0::{by_claim}")
    assert of_pod() == 4_000, "a container that has ended counts no more"
    scene.tree.group(own)
    await scene.ask("slot-1-0a1b", f"0::{own}")
    assert of_pod() == 8_000


async def test_with_the_last_container_of_a_claim_the_limits_of_its_pod_go(scene: Scene) -> None:
    scene.give("claim.1.gpu", claim=OWN_CLAIM)
    one, other = (scene.tree.group(path_of(container=each)) for each in ("c1", "c2"))
    for each in ("c1", "c2"):
        await scene.ask("claim.1.gpu", f"0::{path_of(container=each)}")
    for directory, groups in ((one, [one]), (other, [other, one.parent])):
        scene.tree.group(str(directory.relative_to(scene.tree.root)), populated=False)
        before = len(scene.set)
        scene.tree.on_change(directory)
        await scene.settled()
        assert scene.set[before:] == [limit for each in groups for limit in none_in(each)]


def scene_group(scene: Scene, path: str) -> str:
    """Make a group, and return its path."""
    scene.tree.group(path)
    return path


async def test_a_grant_that_is_not_known_gets_no_start(scene: Scene) -> None:
    scene.limits.expect("slot-7-ffff")
    scene.tree.group(path_of())
    assert "given the container no cards" in await scene.ask("slot-7-ffff", f"0::{path_of()}")


@pytest.mark.parametrize(
    "failure", [LimitRefused("card GPU-1 says no"), DriverGone("the driver has not answered for 8 s")]
)
async def test_what_the_driver_says_is_the_answer(scene: Scene, failure: Exception) -> None:
    scene.give()
    scene.tree.group(path_of())
    scene.failure = failure
    assert await scene.ask("slot-1-0a1b", f"0::{path_of()}") == str(failure)
    scene.failure = None
    assert await scene.ask("slot-1-0a1b", f"0::{path_of()}") == "ok"


async def test_limits_are_removed_after_the_last_process_and_not_before(scene: Scene) -> None:
    scene.give()
    directory = scene.tree.group(path_of())
    await scene.ask("slot-1-0a1b", f"0::{path_of()}")
    scene.set.clear()
    scene.tree.on_change(directory)
    scene.limits.tidy()
    await scene.settled()
    assert scene.set == []
    scene.tree.group(path_of(), populated=False)
    scene.tree.on_change(directory)
    scene.tree.on_change(directory)
    await scene.settled()
    assert scene.set == none_in(directory)
    assert scene.records() == []
    scene.tree.on_change(directory)
    await scene.settled()
    assert scene.set == none_in(directory)


async def test_where_groups_can_not_be_watched_limits_are_set_and_removed_later(scene: Scene) -> None:
    def refuse(on_change: Callable[[Path], None]) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    scene.tree.watch = refuse  # type: ignore[method-assign]
    scene.give()
    directory = scene.tree.group(path_of())
    assert await scene.ask("slot-1-0a1b", f"0::{path_of()}") == "ok"
    scene.tree.group(path_of(), populated=False)
    scene.limits.tidy()
    await scene.settled()
    assert scene.set == [*limits_in(directory), *none_in(directory)]


async def test_of_a_group_that_is_gone_nothing_is_left_to_remove(scene: Scene) -> None:
    scene.give()
    directory = scene.tree.group(path_of())
    await scene.ask("slot-1-0a1b", f"0::{path_of()}")
    scene.set.clear()
    (directory / "cgroup.events").unlink()
    directory.rmdir()
    scene.limits.tidy()
    await scene.settled()
    assert (scene.set, scene.records()) == ([], [])


async def test_what_can_not_be_removed_now_is_tried_again(scene: Scene) -> None:
    grant = scene.give()
    directory = scene.tree.group(path_of())
    await scene.ask("slot-1-0a1b", f"0::{path_of()}")
    scene.set.clear()
    scene.tree.group(path_of(), populated=False)
    scene.failure = DriverGone("not now")
    scene.grants.clear()
    scene.limits.forget(grant)
    await scene.settled()
    assert scene.records() == ["slot-1-0a1b.json"]
    assert list((scene.root / "limits" / ANSWERS).iterdir()) == []
    scene.failure = None
    scene.limits.tidy()
    await scene.settled()
    assert (scene.set, scene.records()) == (none_in(directory), [])


async def test_the_next_agent_knows_what_was_set_and_what_is_expected(scene: Scene) -> None:
    scene.give()
    scene.give("slot-2-0a1b")
    ended, gone, runs = (scene.tree.group(path_of(container=name)) for name in ("ended", "gone", "runs"))
    for name, directory in (("slot-1-0a1b", ended), ("slot-1-0a1b", gone), ("slot-2-0a1b", runs)):
        assert await scene.ask(name, f"0::{path_of(container=directory.name[15:-6])}") == "ok"
    scene.limits.close()
    scene.set.clear()
    scene.tree.group(path_of(container="ended"), populated=False)
    (gone / "cgroup.events").unlink()
    gone.rmdir()
    scene.grants.pop()
    (scene.root / "limits" / "limited" / "broken.json").write_text("[1")
    (scene.root / "limits" / "limited" / "slot.unfinished").write_text("{")
    scene.limits = scene.agent()
    scene.limits.resume()
    await scene.settled()
    assert scene.set == none_in(ended)
    assert [path.name for path in (scene.root / "limits" / ANSWERS).iterdir()] == ["slot-1-0a1b"]
    assert scene.records() == ["broken.json", "slot-2-0a1b.json", "slot.unfinished"]
    assert runs in scene.tree.watched


async def test_an_agent_that_died_between_noting_and_setting_leaves_a_note(scene: Scene) -> None:
    scene.give()
    scene.tree.group(path_of())
    scene.hang = asyncio.Event()
    asking = asyncio.create_task(scene.ask("slot-1-0a1b", f"0::{path_of()}"))
    async with asyncio.timeout(PATIENCE_S):
        while not (scene.root / "limits" / "limited" / "slot-1-0a1b.json").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert not asking.done()
    scene.hang.set()
    assert await asking == "ok"


async def test_without_use_nothing_is_made(scene: Scene) -> None:
    scene.limits.resume()
    scene.limits.tidy()
    scene.limits.forget(a_grant())
    assert not (scene.root / "limits").exists()


async def test_too_many_requests_wait_in_the_pipe(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter, "MOST_AT_ONCE", 4)
    scene.give()
    scene.tree.group(path_of())
    scene.hang = asyncio.Event()
    requests = os.open(scene.root / "limits" / REQUESTS, os.O_RDWR)
    line = f"slot-1-0a1b 1 0::{path_of()}\n".encode()
    for _ in range(20):
        os.write(requests, line)
        await asyncio.sleep(0.001)
    assert len(scene.limits._tasks) == 4
    scene.hang.set()
    async with asyncio.timeout(PATIENCE_S):
        while len(scene.set) < 20 * len(LIMITS):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    os.close(requests)


def test_a_node_says_why_its_groups_can_not_be_limited(tmp_path: Path) -> None:
    groups = ControlGroups(tmp_path)
    assert groups.why_no_limits() == VERSION_1
    assert groups.own() is None
    (tmp_path / "cgroup.controllers").write_text("cpu memory dmem\n")
    assert groups.why_no_limits() == ""
    (tmp_path / "cgroup.events").write_text("populated 1\n")
    (tmp_path / "cgroup.procs").write_text(f"1\n{os.getpid()}\n")
    assert groups.why_no_limits() == ONLY_OWN
    assert groups.own() == tmp_path
    (tmp_path / "cgroup.procs").write_text("1\n")
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "cgroup.procs").write_text(f"{os.getpid()}\n")
    assert groups.why_no_limits() == ""
    assert groups.own() == tmp_path / "a" / "b"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["start", "start", "start", "end", "end", "remove", "crash", "driver fails", "driver works"]),
        st.integers(0, 3),
    ),
    max_size=25,
)


@settings(max_examples=times(40, 400))
@given(steps=STEPS)
def test_whatever_happens_in_whatever_order_who_may_start_is_limited_and_nothing_is_left(
    steps: list[tuple[str, int]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_live(Path(directory), steps))


async def _live(root: Path, steps: list[tuple[str, int]]) -> None:
    scene, serial, running = Scene(root), 0, dict[int, Path]()
    names = [f"slot-{number}-0a1b" for number in range(4)]
    for name in names:
        scene.give(name)

    def last(directory: Path) -> list[MemoryLimit]:
        return [limit for limit in scene.set if limit.group == str(directory)][-len(LIMITS) :]

    for step, number in steps:
        if step == "start" and number not in running:
            serial += 1
            directory = scene.tree.group(path_of(container=f"c{serial}"))
            if await scene.ask(names[number], f"0::{path_of(container=f'c{serial}')}", serial) == "ok":
                assert last(directory) == limits_in(directory)
                running[number] = directory
            else:
                assert scene.failure is not None
                _vanish(directory)
        elif step in ("end", "remove") and number in running:
            directory = running.pop(number)
            if step == "end":
                (directory / "cgroup.events").write_text("populated 0\n")
            else:
                _vanish(directory)
            scene.tree.on_change(directory)
        elif step == "crash":
            scene.limits.close()
            scene.limits = scene.agent()
            scene.limits.resume()
        elif step.startswith("driver"):
            scene.failure = DriverGone("not now") if step == "driver fails" else None
        assert all(last(directory) == limits_in(directory) for directory in running.values())
    scene.failure = None
    await scene.settled()
    for directory in running.values():
        (directory / "cgroup.events").write_text("populated 0\n")
    scene.limits.tidy()
    await scene.settled()
    left = [path.parent for path in scene.tree.root.rglob("cgroup.events")]
    assert all(last(directory) == none_in(directory) for directory in left)
    assert scene.records() == []
    scene.limits.close()


def _vanish(directory: Path) -> None:
    (directory / "cgroup.events").unlink()
    directory.rmdir()


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_bad_input(line: bytes) -> None:
    with contextlib.suppress(BadInput):
        request = read_request(line)
        assert line.decode() == f"{request.name} {line.decode().split(' ')[1]} {request.group}"
        assert "/" not in request.name
        assert request.pid >= 0


@given(st.text(max_size=200).map(lambda text: f"0::/{text}"))
def test_a_path_that_is_accepted_leads_nowhere_else(group: str) -> None:
    with contextlib.suppress(BadInput):
        path = group_path(group)
        assert os.path.normpath(path) == path
        assert path != "/"
        assert path.isprintable() or not any(ord(each) < 32 for each in path)


@given(st.integers(0, 2**22), st.text(max_size=3_000))
def test_an_answer_is_one_line_and_only_nothing_is_ok(pid: int, refusal: str) -> None:
    line = answer_line(pid, refusal)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert len(line) <= 4 * LONGEST_ANSWER + 12
    assert (line == f"{pid} ok\n".encode()) == (refusal.split() in ([], ["ok"]))


def test_a_request_is_read_as_it_was_written() -> None:
    assert read_request(b"slot-1-a 17 0::/a b/c") == LimitRequest("slot-1-a", 17, "0::/a b/c")
