"""Which tests share a process, and in which order they begin.

`make test` runs several processes at once. Tests of one group run in one process, one after the other, and share
control planes, nodes and browsers. A group is a file, if it is not named here.
"""

GROUPS = {  # file -> group
    # Each group has a real node of its own.
    "node/test_delivery.py": "node 1",
    "node/test_agent_restarts.py": "node 1",
    "node/test_node_truth.py": "node 1",
    "node/test_claims.py": "node 1",
    "node/test_driver_limits.py": "node 2",
    "node/test_daemonset.py": "node 2",
    "node/test_isolation.py": "node 2",
    "node/test_mps_daemons.py": "node 2",
    "node/test_monitor.py": "node 2",
    "node/test_image.py": "node 2",
    "node/test_node_box.py": "node 2",
    # There may be one card, and how busy it is gets measured.
    "gpu/test_driver_limits.py": "gpu",
    "gpu/test_hami_core.py": "gpu",
    "gpu/test_inventory.py": "gpu",
    "gpu/test_mps.py": "gpu",
    "gpu/test_mps_daemons.py": "gpu",
    "gpu/test_uses.py": "gpu",
    # An API server without gpuledger.
    "cluster/test_claim_slices.py": "cluster/cards",
    "cluster/test_crd_invariants.py": "cluster/cards",
    "cluster/test_fake_rules.py": "cluster/cards",
    "cluster/test_kubectl_habits.py": "cluster/cards",
}
BEGIN = (  # the longest first: whoever comes last has nobody to share the work with
    "node/test_as_pods.py",
    "node 1",
    "node 2",
    "cluster/test_preemption.py",
    "cluster/test_outages.py",
    "cluster/test_crash_points.py",
    "cluster/test_replicas.py",
)
WAITING = ("node", "cluster", "hostile", "browser", "manifests", "monitoring", "gpu")
"""Directories of tests that mostly wait for other programs. What is computed comes after them, and fills the gaps."""


def group_of(nodeid: str) -> str:
    """Return the group of a test, by pytest's name for it: tests/unit/test_a.py::test_b[c]."""
    file = nodeid.partition("::")[0].removeprefix("tests/")
    return GROUPS.get(file, file)


def is_computed(group: str) -> bool:
    """Return whether a group's tests need nothing but a processor."""
    return group not in BEGIN and group.partition("/")[0] not in WAITING


def in_order(group: str) -> tuple[int, int]:
    """Return what groups are sorted by."""
    begin = BEGIN.index(group) if group in BEGIN else len(BEGIN)
    directory = group.partition("/")[0]
    return begin, WAITING.index(directory) if directory in WAITING else len(WAITING)
