"""Upgrades, rollbacks, crashes and containers in any order: no container ever has a part of a library.

What a container has mounted is followed by the path that its grant names: that there is a whole library, as long as the
container may start again from it.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fakes.crashes import crashed_at_line
from fakes.shared_library import a_library
from gpuledger.agent.isolation import hami_core
from gpuledger.agent.isolation.hami_core import HamiCoreLibrary

LIBRARIES = [a_library(bytes([number]) * (number * 40_000 + 1)) for number in range(3)]
BROKEN = [LIBRARIES[0][:-1], b"", b"\x7fELF"]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


CONTENT = {sha256(data)[:16]: data for data in LIBRARIES}


class VersionsMachine(RuleBasedStateMachine):
    """One node."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.home, self.image = self.root / "vgpu", self.root / "image"
        self.home.mkdir()
        self.brought: bytes | None = None
        self.mounted: dict[int, str] = {}  # container -> path of its library
        self.created = 0

    @initialize()
    def begin(self) -> None:
        self.start_agent()

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    # The administrator.

    @rule(data=st.sampled_from([*LIBRARIES, *BROKEN]))
    def upgrade(self, data: bytes) -> None:
        shutil.rmtree(self.image, ignore_errors=True)
        self.image.mkdir()
        (self.image / "libvgpu.so.v1").write_bytes(data)
        self.brought = data
        self.start_agent()

    @rule()
    def do_without_an_image(self) -> None:
        shutil.rmtree(self.image, ignore_errors=True)
        self.brought = None
        self.start_agent()

    # The agent.

    @rule()
    def start_agent(self) -> None:
        self.agent = HamiCoreLibrary(self.home, self.image)

    @rule()
    def look(self) -> None:
        self.agent.refresh()
        self.agent.remove_unused(self.mounted.values())
        found = self.agent.found()
        if self.brought in LIBRARIES:
            assert found is not None
            assert found.sha256 == sha256(self.brought or b"")
        else:
            assert found is None
        used = {Path(path).parent.name for path in self.mounted.values()}
        assert used <= self.versions()

    @rule()
    def look_in_peace(self) -> None:
        """After two looks, nothing is there that nobody needs."""
        for _ in range(2):
            self.look()
        found = self.agent.found()
        needed = {Path(path).parent.name for path in self.mounted.values()}
        assert self.versions() == needed | ({Path(found.directory).name} if found else set())
        assert {path.name for path in (self.home / "versions").glob(".*")} == set()

    @rule(line=st.integers(0, 200), removes=st.booleans())
    def crash(self, line: int, removes: bool) -> None:
        paths = list(self.mounted.values())

        def work() -> None:
            self.agent.refresh()
            if removes:
                self.agent.remove_unused(paths)

        crashed_at_line(work, (hami_core.__file__, shutil.__file__), line)
        self.start_agent()

    # Containers.

    @rule()
    def start_container(self) -> None:
        found = self.agent.found()
        if found is not None:
            self.created += 1
            self.mounted[self.created] = f"{found.directory}/libvgpu.so"

    @precondition(lambda self: self.mounted)
    @rule(data=st.data())
    def end_container(self, data: st.DataObject) -> None:
        del self.mounted[data.draw(st.sampled_from(sorted(self.mounted)))]

    # What always holds.

    def versions(self) -> set[str]:
        there = self.home / "versions"
        return {path.name for path in there.iterdir() if not path.name.startswith(".")} if there.exists() else set()

    @invariant()
    def all_that_could_be_mounted_is_whole(self) -> None:
        for name in self.versions():
            assert (self.home / "versions" / name / "libvgpu.so").read_bytes() == CONTENT[name]
            assert (self.home / "versions" / name / "ld.so.preload").read_text() == "/usr/local/vgpu/libvgpu.so\n"

    @invariant()
    def who_runs_has_what_it_started_with(self) -> None:
        for path in self.mounted.values():
            assert Path(path).is_file()


TestVersions = VersionsMachine.TestCase
