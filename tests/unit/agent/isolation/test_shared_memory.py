"""What programs under MPS share is memory of its own, mounted once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuledger.agent.isolation.mps_daemons import mount_shared_memory
from gpuledger.model.errors import BadInput

PROGRAM = """
import os, sys
from pathlib import Path
from gpuledger.agent.isolation.mps_daemons import mount_shared_memory
directory = Path(sys.argv[1])
print(mount_shared_memory(directory, "8m"), mount_shared_memory(directory, "9m"))
found = os.statvfs(directory / "shm")
print(found.f_blocks * found.f_frsize, oct(os.stat(directory / "shm").st_mode & 0o7777))
"""


def may_unshare() -> bool:
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return os.geteuid() == 0 and done.returncode == 0


@pytest.mark.skipif(not may_unshare(), reason="only root mounts")
def test_it_is_mounted_once_with_its_size_for_all_users(tmp_path: Path) -> None:
    command = ["unshare", "--mount", sys.executable, "-c", PROGRAM, str(tmp_path / "mps")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True False", f"{8 * 2**20} 0o1777"]


def test_what_is_mounted_stays(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"proc /proc proc rw 0 0\ngpuledger-mps {tmp_path}/shm tmpfs rw,size=8m 0 0\n")
    assert not mount_shared_memory(tmp_path, "50%", mounts)


def test_what_can_not_be_mounted_is_said(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text("")
    with pytest.raises(BadInput, match="can't be mounted with size=much: "):
        mount_shared_memory(tmp_path, "much", tmp_path / "mounts")
