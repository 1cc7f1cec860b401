"""Containers with HAMi-core on a node, each with a directory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fakes.shared_regions import NEWEST, a_hami_grant, controls, write_region
from gpuledger.agent.usage.regions import RegionPlace, Regions, region_place
from gpuledger.formats.runtime.cdi import Grant
from gpuledger.formats.runtime.shared_region import RegionLayout


class Node:
    """Its containers, and a clock that a test moves."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now_s = 1_800_000_000
        self.grants: dict[str, Grant] = {}
        self.gone: set[int] = set()  # processes that have ended
        self.regions = Regions(6.0, lambda: self.now_s, lambda pid: pid not in self.gone)

    def container(self, name: str, priority: int = 1, uuids: Sequence[str] = ("GPU-1",), **region: Any) -> Path:
        """Add one, whose region is as said; return where that is."""
        directory = self.root / name
        directory.mkdir(exist_ok=True)
        self.grants[name] = a_hami_grant(name, directory, priority, uuids)
        write_region(directory / "usage.cache", uuids, **region)
        return directory / "usage.cache"

    def active(self, name: str, priority: int = 1, uuids: Sequence[str] = ("GPU-1",), **region: Any) -> Path:
        """Add one that launches a kernel now."""
        return self.container(name, priority, uuids, last_kernel_s=self.now_s, **region)

    def places(self) -> list[RegionPlace]:
        """Return where the regions are."""
        return [place for grant in self.grants.values() if (place := region_place(grant))]

    def look(self) -> set[str]:
        """Let a pass go by; return who pauses then."""
        return {name for name, look in self.regions.look(self.places()).items() if look.paused}

    def controls(self, name: str, layout: RegionLayout = NEWEST) -> tuple[int, int]:
        """Return recent_kernel and utilization_switch of a container's file."""
        return controls(self.root / name / "usage.cache", layout)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Return a node without containers."""
    return Node(tmp_path)
