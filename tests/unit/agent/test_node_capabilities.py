"""What the node has is looked at when a container starts, and parsed only when it has changed."""

import os
from pathlib import Path
from typing import Any

import pytest

from fakes.grants import a_grant
from gpuledger.agent.config import AgentConfig
from gpuledger.agent.grants import grants as node_capabilities
from gpuledger.agent.grants.grants import NodeCapabilitiesReader
from gpuledger.agent.isolation.choice import Isolation, MpsPipes
from gpuledger.agent.isolation.hami_core import HamiCoreLibrary
from gpuledger.formats.runtime.cdi import grant_file
from gpuledger.model.node import NodeConfig

SPEC = 'cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices:\n- {{name: "0", containerEdits: {{env: ["FROM={}"]}}}}\n'


class Machine:
    """Directories of a node, and who reads them."""

    def __init__(self, root: Path) -> None:
        self.etc, self.run, self.hami, self.mps, self.proc = (
            root / name for name in ("etc", "run", "hami", "mps", "proc")
        )
        self.plan = AgentConfig(
            node_name="node-a",
            resources={},
            config=NodeConfig(),
            isolation=Isolation.NONE,
            vendor_cdi_directories=(self.etc, self.run),
            hami_core_directory=str(self.hami),
            mps_directory=str(self.mps),
        )
        self.library = HamiCoreLibrary(self.hami, self.hami / "no image")
        self.reader = NodeCapabilitiesReader(self.plan, self.library, proc=self.proc)

    def describe(self, directory: Path, text: str = "", name: str = "nvidia.yaml") -> None:
        directory.mkdir(exist_ok=True)
        (directory / name).write_text(text or SPEC.format(directory.name))

    @property
    def found(self) -> object:
        return self.reader().vendor.edits("nvidia.com/gpu", ["0"])


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_node_without_anything_has_nothing(machine: Machine) -> None:
    capabilities = machine.reader()
    assert (capabilities.installed.hami_core_directory, capabilities.installed.mps_directory) == ("", "")
    assert dict(capabilities.vendor.devices) == {}


def test_devices_are_found_and_the_later_directory_counts(machine: Machine) -> None:
    machine.describe(machine.etc)
    assert machine.found == {"env": ["FROM=etc"]}
    machine.describe(machine.run)
    assert machine.found == {"env": ["FROM=run"]}
    (machine.run / "nvidia.yaml").unlink()
    assert machine.found == {"env": ["FROM=etc"]}


def test_files_are_parsed_only_when_they_have_changed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.describe(machine.etc)
    parsed: list[Path] = []
    real = node_capabilities._specs

    def counted(file: Path) -> Any:
        parsed.append(file)
        return real(file)

    monkeypatch.setattr(node_capabilities, "_specs", counted)
    for _ in range(5):
        machine.reader()
    assert len(parsed) == 1
    (machine.etc / "gpuledger.dev-share-slot-1-0a1b.json").write_bytes(grant_file(a_grant()))
    machine.reader()
    assert len(parsed) == 1, "each of our own containers makes one"


@pytest.mark.parametrize("text", ["\t: {", "- 1", "kind: [", "\x00"])
def test_a_file_that_can_not_be_read_hides_no_other(machine: Machine, text: str) -> None:
    machine.describe(machine.etc)
    machine.describe(machine.run, text, "broken.yaml")
    machine.describe(machine.run, "not looked at", "notes.txt")
    assert machine.found == {"env": ["FROM=etc"]}


def test_hami_core_is_there_when_both_of_its_files_are(machine: Machine) -> None:
    machine.hami.mkdir()
    (machine.hami / "libvgpu.so").write_text("")
    assert machine.reader().installed.hami_core_directory == ""
    (machine.hami / "ld.so.preload").write_text("")
    assert machine.reader().installed.hami_core_directory == str(machine.hami)


@pytest.mark.parametrize(
    ("pid_file", "comm", "runs"),
    [("42\n", "nvidia-cuda-mps\n", True), ("42", "bash\n", False), ("42", None, False), ("", "nvidia-cuda-mps", False)],
)
def test_mps_is_there_while_its_daemon_runs(machine: Machine, pid_file: str, comm: str | None, runs: bool) -> None:
    (machine.mps / "pipe").mkdir(parents=True)
    (machine.mps / "pipe" / "nvidia-cuda-mps-control.pid").write_text(pid_file)
    if comm is not None:
        (machine.proc / "42").mkdir(parents=True)
        (machine.proc / "42" / "comm").write_text(comm)
    assert bool(machine.reader().installed.mps_directory) == runs


@pytest.mark.parametrize("kind", ["pipe", "link", "directory", "long"])
def test_what_a_container_puts_in_the_place_of_the_daemons_file_is_no_daemon(machine: Machine, kind: str) -> None:
    (machine.mps / "pipe").mkdir(parents=True)
    (machine.proc / "42").mkdir(parents=True)
    (machine.proc / "42" / "comm").write_text("nvidia-cuda-mps\n")
    file, other = machine.mps / "pipe" / "nvidia-cuda-mps-control.pid", machine.mps / "other"
    other.write_text("42")
    match kind:
        case "pipe":
            os.mkfifo(file)  # to read it would wait for ever
        case "link":
            file.symlink_to(other)
        case "directory":
            file.mkdir()
        case _:
            file.write_text("4" * 10_000)
    assert machine.reader().installed.mps_directory == ""


def test_our_own_daemons_are_looked_at_whenever_a_container_starts(machine: Machine) -> None:
    pipes = MpsPipes({"GPU-0": "/mps/0"})
    reader = NodeCapabilitiesReader(machine.plan, machine.library, mps_pipes=lambda: pipes, proc=machine.proc)
    assert reader().installed.mps_directory == str(machine.mps)
    assert reader().installed.mps_pipes is pipes
