"""HAMi-core from an image: checked, installed as a whole or not at all, and kept while a container uses it."""

import asyncio
import errno
import hashlib
import os
import re
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.crashes import crashed_at_line
from fakes.shared_library import a_library
from gpuledger.agent.isolation import hami_core
from gpuledger.agent.isolation.hami_core import HamiCoreLibrary

FILES = (hami_core.__file__, shutil.__file__)
OLD, NEW = a_library(b"old"), a_library(b"new" * 50_000)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Place:
    """A node's directory for HAMi-core, and what an image has brought beside it."""

    def __init__(self, root: Path) -> None:
        self.home, self.image = root / "vgpu", root / "image"
        self.home.mkdir()

    def bring(self, data: bytes, name: str = "libvgpu.so.v2.9.0") -> None:
        self.image.mkdir(exist_ok=True)
        for file in self.image.iterdir():
            file.unlink()
        (self.image / name).write_bytes(data)

    def agent(self, *accepted: str) -> HamiCoreLibrary:
        return HamiCoreLibrary(self.home, self.image, accepted)

    def directory(self, data: bytes) -> Path:
        return self.home / "versions" / sha256(data)[:16]

    def names(self) -> set[str]:
        return {path.name for path in (self.home / "versions").iterdir()}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_what_an_image_brings_is_installed_and_named(place: Place) -> None:
    place.bring(NEW)
    agent = place.agent()
    assert agent.found() is None
    agent.refresh()
    found = agent.found()
    assert found is not None
    assert (found.version, found.sha256) == ("v2.9.0", sha256(NEW))
    assert Path(found.directory) == place.directory(NEW)
    assert (place.directory(NEW) / "libvgpu.so").read_bytes() == NEW
    assert (place.directory(NEW) / "ld.so.preload").read_text() == "/usr/local/vgpu/libvgpu.so\n"
    assert agent.why_not == ""


def test_containers_of_any_user_can_load_it_whatever_our_umask_is(place: Place) -> None:
    place.bring(NEW)
    before = os.umask(0o077)
    try:
        place.agent().refresh()
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in place.directory(NEW).iterdir()}
    assert modes == {"libvgpu.so": 0o755, "ld.so.preload": 0o644}
    assert stat.S_IMODE(place.directory(NEW).stat().st_mode) == 0o755


def test_an_image_of_hami_2_4_does_not_name_its_version(place: Place) -> None:
    place.bring(OLD, "libvgpu.so")
    agent = place.agent()
    agent.refresh()
    found = agent.found()
    assert found is not None
    assert found.version == ""


def test_nothing_is_written_twice(place: Place) -> None:
    place.bring(NEW)
    place.agent().refresh()
    before = (place.directory(NEW) / "libvgpu.so").stat().st_ino
    place.agent().refresh()
    assert (place.directory(NEW) / "libvgpu.so").stat().st_ino == before
    assert place.names() == {place.directory(NEW).name}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (NEW[:-1], "can't be loaded: it is not whole"),
        (b"", "can't be loaded: it is no ELF file"),
        (a_library(NEW, "aarch64"), "can't be loaded: it is for another machine than x86_64"),
        (a_library(b"some other library", "x86_64", knows=b""), "is not HAMi-core"),
    ],
)
def test_what_is_no_whole_library_of_this_machine_is_not_installed(
    place: Place, data: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    place.bring(data)
    agent = HamiCoreLibrary(place.home, place.image, machine="x86_64")
    for _ in range(3):
        agent.refresh()
    assert agent.found() is None
    assert why in agent.why_not
    assert len(caplog.messages) == 1, "once, not at each look"
    assert list(place.home.iterdir()) == []


def test_only_a_listed_checksum_is_accepted(place: Place) -> None:
    place.bring(NEW)
    refused = place.agent(sha256(OLD))
    refused.refresh()
    assert refused.found() is None
    assert f"has the SHA-256 {sha256(NEW)}, which hami_core_sha256 does not list" in refused.why_not
    accepted = place.agent(sha256(OLD), sha256(NEW))
    accepted.refresh()
    assert accepted.found() is not None


def test_a_library_that_is_refused_leaves_no_other_in_its_place(place: Place) -> None:
    """Neither the version before, nor one that somebody installed by hand: the node is not what its settings say."""
    place.bring(OLD)
    agent = place.agent(sha256(OLD))
    agent.refresh()
    by_hand(place, OLD)
    place.bring(NEW)
    agent.refresh()
    assert agent.found() is None


def test_an_image_that_was_built_without_it_leaves_the_one_by_hand(place: Place) -> None:
    """Its directory is in the agent's image all the same, with whatever else HAMi's own has there."""
    (place.image).mkdir(exist_ok=True)
    (place.image / "ld.so.preload").write_text("/usr/local/vgpu/libvgpu.so")
    by_hand(place, OLD)
    agent = place.agent()
    agent.refresh()
    found = agent.found()
    assert found is not None
    assert (found.directory, agent.why_not) == (str(place.home), "")


def test_several_libraries_in_an_image_are_none(place: Place) -> None:
    place.bring(NEW)
    (place.image / "libvgpu.so").write_bytes(OLD)
    agent = place.agent()
    agent.refresh()
    assert "it has 2 files libvgpu.so*" in agent.why_not


def test_what_is_too_large_is_not_even_read(place: Place) -> None:
    place.bring(NEW)
    with (place.image / "libvgpu.so.v2.9.0").open("r+b") as file:
        file.truncate(2**30)
    agent = place.agent()
    agent.refresh()
    assert "larger than 64 MiB" in agent.why_not


def by_hand(place: Place, data: bytes) -> None:
    (place.home / "libvgpu.so").write_bytes(data)
    (place.home / "ld.so.preload").write_text("/usr/local/vgpu/libvgpu.so\n")


def test_what_was_installed_by_hand_is_used_as_it_is_where_no_image_is_set(place: Place) -> None:
    agent = place.agent()
    assert agent.found() is None
    by_hand(place, b"whatever it is\n")
    found = agent.found()
    assert found is not None
    assert (found.directory, found.sha256) == (str(place.home), sha256(b"whatever it is\n"))
    agent.refresh()
    assert agent.found() == found
    assert {path.name for path in place.home.iterdir()} == {"libvgpu.so", "ld.so.preload"}
    by_hand(place, b"another one\n")
    replaced = agent.found()
    assert replaced is not None
    assert replaced.sha256 == sha256(b"another one\n")


def test_what_was_installed_by_hand_has_to_be_a_listed_one_too(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    by_hand(place, OLD)
    agent = place.agent(sha256(NEW))
    assert agent.found() is agent.found() is None
    assert "hami_core_sha256 does not list" in agent.why_not
    assert len(caplog.messages) == 1
    by_hand(place, NEW)
    assert agent.found() is not None
    assert agent.why_not == ""


def test_where_there_is_no_directory_for_it_nothing_is_looked_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand(place, OLD)
    place.bring(NEW)
    monkeypatch.chdir(place.home)
    agent = HamiCoreLibrary(Path(), place.image)
    asyncio.run(agent.run(tuple))
    assert agent.found() is None
    assert {path.name for path in place.home.iterdir()} == {"libvgpu.so", "ld.so.preload"}


def test_an_image_counts_before_what_was_installed_by_hand(place: Place) -> None:
    by_hand(place, OLD)
    place.bring(NEW)
    agent = place.agent()
    agent.refresh()
    found = agent.found()
    assert found is not None
    assert found.sha256 == sha256(NEW)
    assert (place.home / "libvgpu.so").read_bytes() == OLD


def test_a_version_that_somebody_has_changed_is_not_given_out_and_is_made_anew(place: Place) -> None:
    place.bring(NEW)
    agent = place.agent()
    agent.refresh()
    library = place.directory(NEW) / "libvgpu.so"
    running = library.open("rb")  # as a container's mount does, it keeps the file that it has
    library.chmod(0o755)
    library.write_bytes(NEW[:100])
    agent.refresh()
    assert library.read_bytes() == NEW
    assert running.read() == NEW[:100]
    running.close()
    (place.directory(NEW) / "ld.so.preload").unlink()
    assert agent.found() is None, "a container without it would have no limits"
    agent.refresh()
    assert agent.found() is not None


# Versions while containers use them.


def test_an_older_version_stays_while_a_container_uses_it(place: Place) -> None:
    place.bring(OLD)
    place.agent().refresh()
    used = {str(place.directory(OLD) / "libvgpu.so"), "/dev/nvidia0", "/etc"}
    place.bring(NEW)
    agent = place.agent()
    agent.refresh()
    for _ in range(3):
        agent.remove_unused(used)
    assert place.names() == {place.directory(OLD).name, place.directory(NEW).name}
    agent.remove_unused(())
    assert place.directory(OLD).exists(), "a container that starts at this moment may have it"
    agent.remove_unused(())
    assert place.names() == {place.directory(NEW).name}


def test_going_back_is_another_upgrade(place: Place) -> None:
    for data in (OLD, NEW, OLD, NEW):
        place.bring(data)
        agent = place.agent()
        agent.refresh()
        found = agent.found()
        assert found is not None
        assert found.sha256 == sha256(data)
        for _ in range(2):
            agent.remove_unused(())
        assert place.names() == {place.directory(data).name}


def test_without_an_image_any_more_its_versions_go_when_nobody_uses_them(place: Place) -> None:
    place.bring(NEW)
    place.agent().refresh()
    (place.image / "libvgpu.so.v2.9.0").unlink()
    place.image.rmdir()
    agent = place.agent()
    agent.refresh()
    assert agent.found() is None
    used = [str(place.directory(NEW) / "ld.so.preload")]
    for paths in (used, used, (), ()):
        assert place.directory(NEW).exists()
        agent.remove_unused(paths)
    assert place.names() == set()


def test_a_used_path_elsewhere_protects_nothing(place: Place) -> None:
    place.bring(OLD)
    place.agent().refresh()
    place.bring(NEW)
    agent = place.agent()
    agent.refresh()
    for _ in range(2):
        agent.remove_unused([f"/elsewhere/{place.directory(OLD).name}/libvgpu.so"])
    assert place.names() == {place.directory(NEW).name}


# Crashes and faults.


def whole(directory: Path) -> bool:
    known = {sha256(data)[:16]: data for data in (OLD, NEW)}
    return (directory / "libvgpu.so").read_bytes() == known[directory.name] and (
        directory / "ld.so.preload"
    ).read_text() == "/usr/local/vgpu/libvgpu.so\n"


def assert_only_whole_versions(place: Place) -> None:
    for name in place.names() if (place.home / "versions").exists() else ():
        assert name.startswith(".") or whole(place.home / "versions" / name), name


def crash_at_each_line(
    root: Path, work: Callable[[Place], Callable[[], object]], check: Callable[[Place], None]
) -> int:
    """Do work again and again, each time in a new place, ended at its first line, its second, and so on.

    Return how often it was ended.
    """
    line, crashed = -1, True
    while crashed:
        line += 1
        (root / str(line)).mkdir()
        place = Place(root / str(line))
        crashed = crashed_at_line(work(place), FILES, line)
        check(place)
    return line


def test_a_crash_at_any_line_of_an_installation_leaves_what_the_next_agent_makes_whole(tmp_path: Path) -> None:
    def upgrade(place: Place) -> Callable[[], object]:
        place.bring(OLD)
        place.agent().refresh()
        place.bring(NEW)
        return place.agent().refresh

    def check(place: Place) -> None:
        assert_only_whole_versions(place)
        assert whole(place.directory(OLD)), "containers that run have it"
        for file in (place.home / "versions").glob(".unfinished-*/*"):
            file.write_bytes(file.read_bytes()[:10])  # a power loss takes what was not flushed
        agent = place.agent()
        agent.refresh()
        found = agent.found()
        assert found is not None
        assert found.sha256 == sha256(NEW)
        assert place.names() == {place.directory(OLD).name, place.directory(NEW).name}
        assert_only_whole_versions(place)

    assert crash_at_each_line(tmp_path, upgrade, check) > 30


def test_a_crash_at_any_line_of_a_repair_leaves_no_version_that_is_not_whole_for_long(tmp_path: Path) -> None:
    def repair(place: Place) -> Callable[[], object]:
        place.bring(NEW)
        place.agent().refresh()
        (place.directory(NEW) / "libvgpu.so").write_bytes(b"damaged")
        return place.agent().refresh

    def check(place: Place) -> None:
        agent = place.agent()
        agent.refresh()
        assert_only_whole_versions(place)
        agent.remove_unused(())
        assert place.names() == {place.directory(NEW).name}

    assert crash_at_each_line(tmp_path, repair, check) > 30


def test_a_crash_at_any_line_of_a_removal_leaves_whole_versions(tmp_path: Path) -> None:
    def remove(place: Place) -> Callable[[], object]:
        place.bring(OLD)
        place.agent().refresh()
        place.bring(NEW)
        agent = place.agent()
        agent.refresh()
        agent.remove_unused(())
        return lambda: agent.remove_unused(())

    def check(place: Place) -> None:
        assert_only_whole_versions(place)
        agent = place.agent()
        for _ in range(2):
            agent.remove_unused(())
        assert {name for name in place.names() if name.startswith(".")} == set()

    assert crash_at_each_line(tmp_path, remove, check) > 10


def test_another_agent_that_is_faster_does_no_harm(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.bring(NEW)
    first, second = place.agent(), place.agent()
    real = hami_core._flush_directory
    done: list[bool] = []

    def meanwhile(directory: Path) -> None:
        if not done:
            done.append(True)
            monkeypatch.setattr(hami_core, "UNFINISHED", ".another-")  # it does not see the first one's
            second.refresh()
            monkeypatch.setattr(hami_core, "UNFINISHED", ".unfinished-")
        real(directory)

    monkeypatch.setattr(hami_core, "_flush_directory", meanwhile)
    first.refresh()
    assert first.found() == second.found() is not None
    assert place.names() == {place.directory(NEW).name}
    assert_only_whole_versions(place)


def test_a_full_disk_is_tried_again_and_says_so_until_there_is_room(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hami_core, "SOON_S", 0.01)
    place.bring(NEW)
    agent = place.agent()
    real, seen = hami_core._write_lasting, threading.Event()
    said: list[str] = []

    def full(file: Path, data: bytes, mode: int) -> None:
        if len(said) == 3:
            return real(file, data, mode)
        said.append(agent.why_not)
        file.write_bytes(data[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    def removed(paths: object) -> None:  # which comes after each installation
        seen.set()

    monkeypatch.setattr(hami_core, "_write_lasting", full)
    monkeypatch.setattr(agent, "remove_unused", removed)

    async def until_installed() -> None:
        running = asyncio.create_task(agent.run(tuple))
        assert await asyncio.to_thread(seen.wait, 20)
        running.cancel()

    asyncio.run(until_installed())  # with a real clock: it waits for a thread
    assert said[0] == ""
    assert re.search("can't be installed in .* yet: .*No space left", said[1])
    assert agent.found() is not None
    assert agent.why_not == ""
    assert place.names() == {place.directory(NEW).name}
