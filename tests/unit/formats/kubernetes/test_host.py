"""CPU and memory of nodes and pods: how their amounts are rounded."""

import pytest

from gpuledger.formats.quantity import host_capacity, host_request
from gpuledger.model.request import HostAmounts


@pytest.mark.parametrize(
    ("cpu", "memory", "found"),
    [
        ("1", "1Mi", HostAmounts(1_000, 1)),
        ("1500m", "1.5Gi", HostAmounts(1_500, 1_536)),
        ("100u", "1", HostAmounts(1, 0)),
        ("1000100u", "1048577", HostAmounts(1_001, 1)),
        ("0", "1048575", HostAmounts(0, 0)),
    ],
)
def test_cpu_counts_in_whole_thousandths_rounded_up_and_memory_in_whole_mib(
    cpu: str, memory: str, found: HostAmounts
) -> None:
    quantities = {"cpu": cpu, "memory": memory}
    assert host_capacity({"status": {"allocatable": quantities}}) == found
    assert host_request({"spec": {"containers": [{"resources": {"requests": quantities}}]}}) == found
