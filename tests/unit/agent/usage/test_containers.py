"""What each container has and uses: by its region where there is one, else by the driver."""

from dataclasses import replace

from fakes.grants import a_grant
from gpuledger.agent.usage.regions import (
    MIB,
    MOST_CLAIMED_BYTES,
    NVML,
    REGION,
    ContainerUse,
    ProcessesUse,
    RegionLook,
    container_uses,
)
from gpuledger.formats.runtime.cdi import GrantedClaim
from gpuledger.formats.runtime.shared_region import PAUSED
from unit.agent.usage.conftest import Node

HELD = {"env": ["GPULEDGER_MEMORY_MIB=3000", "GPULEDGER_CORES=30"]}


def only(uses: list[ContainerUse]) -> ContainerUse:
    (use,) = uses
    return use


def test_a_container_without_a_region_is_told_by_its_processes() -> None:
    grant = a_grant(edits=HELD)
    use = only(container_uses([grant], {}, {("GPU-1", "uid-a", "main"): ProcessesUse(700, 12)}, 0))
    assert (use.source, use.memory_used_bytes, use.cores_percent) == (NVML, 700 * MIB, 12)
    assert (use.part.memory_mib, use.part.cores, use.part.memory_limit_mib) == (3000, 30, None)
    assert (use.last_kernel_s_ago, use.paused) == (None, False)


def test_what_pods_use_by_a_claim_that_they_share_is_told_of_none_of_them() -> None:
    shared = a_grant(
        edits=HELD, pod_uid="uid-of-claim", pod="together", claim=GrantedClaim("together", "uid-of-claim", "gpu")
    )
    own = a_grant(edits=HELD, container="c0/gpu", claim=GrantedClaim("made", "uid-of-another", "gpu"))
    used = {("GPU-1", "uid-of-claim", "main"): ProcessesUse(1, 1), ("GPU-1", "uid-a", "c0/gpu"): ProcessesUse(700, 12)}
    of_shared, of_own = container_uses([shared, own], {}, used, 0)
    assert (of_shared.memory_used_bytes, of_shared.part.memory_mib) == (None, 3000)
    assert of_own.memory_used_bytes == 700 * MIB


def test_what_is_held_and_not_used_is_there_with_nothing() -> None:
    use = only(container_uses([a_grant(edits=HELD)], {}, {}, 0))
    assert (use.memory_used_bytes, use.cores_percent) == (0, 0)


def test_without_the_driver_nothing_is_known_of_it() -> None:
    use = only(container_uses([a_grant(edits=HELD)], {}, None, 0))
    assert (use.memory_used_bytes, use.cores_percent) == (None, None)


def a_look(node: Node) -> RegionLook:
    node.active("a", processes=[(1, 400), (2, 800)])
    return node.regions.look(node.places())["a"]


def test_a_region_tells_more_and_goes_before(node: Node) -> None:
    look = a_look(node)
    by_driver = {("GPU-1", "uid-a", "main"): ProcessesUse(5000, 50)}
    use = only(container_uses(node.grants.values(), {"a": look}, by_driver, node.now_s + 4))
    assert (use.source, use.memory_used_bytes, use.last_kernel_s_ago) == (REGION, 1200 * MIB, 4)
    assert (use.context_bytes, use.module_bytes, use.data_bytes) == (300 * MIB, 300 * MIB, 600 * MIB)
    assert use.cores_percent == 50  # 14 by the library, which puts it to 0 several times in a second
    assert use.part.memory_limit_mib == 3000
    paused = replace(look, region=replace(look.region, recent_kernel=PAUSED))
    assert only(container_uses(node.grants.values(), {"a": paused}, None, 0)).paused


def test_claims_beyond_all_measure_are_cut_off(node: Node) -> None:
    """Who reads the answer refuses such numbers, and would lose those of all other containers, too."""
    look = a_look(node)
    process = look.region.processes[0]
    greedy = replace(process, uses=(replace(process.uses[0], total_bytes=2**63 - 1, cores_percent=2**63),))
    look = replace(look, region=replace(look.region, processes=(greedy,) * 1024, last_kernel_s=2**64 - 1))
    use = only(container_uses(node.grants.values(), {"a": look}, {}, node.now_s))
    assert (use.memory_used_bytes, use.cores_percent, use.last_kernel_s_ago) == (MOST_CLAIMED_BYTES, 100, 0)


def test_a_card_that_a_region_does_not_name_is_told_by_the_driver(node: Node) -> None:
    """So is every card until a program has asked NVML; and what it names beside is none of the container's."""
    look = a_look(node)
    device = replace(look.region.devices[0], uuid="GPU-9")
    look = replace(look, region=replace(look.region, devices=(device,)))
    uses = container_uses(node.grants.values(), {"a": look}, {("GPU-1", "uid-a", "main"): ProcessesUse(9, 0)}, 0)
    assert [(use.part.uuid, use.source, use.memory_used_bytes) for use in uses] == [("GPU-1", NVML, 9 * MIB)]


def test_a_container_with_two_grants_of_a_card_is_there_once(node: Node) -> None:
    look = a_look(node)
    second = replace(node.grants["a"], name="a-2")
    for grants in ([node.grants["a"], second], [second, node.grants["a"]]):
        assert only(container_uses(grants, {"a": look}, {}, 0)).source == REGION
