"""Tests on a real card. They are skipped, with the reason, where there is none."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def no_card() -> str:
    """Return why there is no card here; empty: there is one."""
    if shutil.which("nvidia-smi") is None:
        return "no NVIDIA driver on this machine: nvidia-smi is missing"
    found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    if found.returncode != 0 or "GPU " not in found.stdout:
        return f"no NVIDIA card on this machine: nvidia-smi says {(found.stdout + found.stderr).strip()[:200]!r}"
    return ""


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    own = [item for item in items if item.path.is_relative_to(HERE)]
    reason = no_card() if own else ""
    for item in own:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
