"""Where a card hangs in the machine's PCI tree, as the kernel shows it.

Source: Linux, Documentation/ABI/testing/sysfs-bus-pci; spelled as by Kubernetes' standard attribute
`resource.kubernetes.io/pcieRoot` (k8s.io/dynamic-resource-allocation, deviceattribute/pci_linux.go), so that a network
card of another driver has the same.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_DEPTH = 2
"""Of a root below the directory of sysfs: devices/pci0000:16."""


def pcie_root(sysfs: Path, bus_id: str) -> str:
    """Return the root complex of a PCI device, such as "pci0000:16"; empty where the kernel does not show it."""
    if not bus_id:
        return ""
    directory = Path("bus", "pci", "devices")
    try:
        target = os.readlink(sysfs / directory / bus_id)
    except OSError:
        return ""
    parts = Path(os.path.normpath(directory / target)).parts  # of the link alone: sysfs may be a mount of the machine's
    if len(parts) <= _DEPTH or parts[0] != "devices" or parts[-1] != bus_id or not _ROOT.fullmatch(parts[1]):
        return ""
    return parts[1]
