"""What tests/gpu runs with HAMi-core on a card, over the stand-in driver: so it is right when a card is there."""

import os
import sys
from pathlib import Path

import pytest

from gpu.hami_core_containers import LIBRARY, Machine
from gpu.test_hami_core import (
    containers,
    test_a_low_priority_pauses_while_a_high_one_computes_and_goes_on_after_it,
    test_mean_utilization_is_that_of_the_core_limit,
    test_the_guides_pod_sees_3000_mib_and_goes_on_after_cudas_error,
    test_two_containers_limits_hold_at_once_on_one_card,
)
from stand_in_driver.stand_in_driver import StandInDriver, some_cards

__all__ = [
    "containers",
    "test_a_low_priority_pauses_while_a_high_one_computes_and_goes_on_after_it",
    "test_mean_utilization_is_that_of_the_core_limit",
    "test_the_guides_pod_sees_3000_mib_and_goes_on_after_cudas_error",
    "test_two_containers_limits_hold_at_once_on_one_card",
]

pytestmark = pytest.mark.skipif(not LIBRARY, reason="GPULEDGER_HAMI_CORE names no libvgpu.so of HAMi-core")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    directory = tmp_path / "driver"
    directory.mkdir()
    (card,) = some_cards(1)
    environment = StandInDriver(directory, [card]).environment(PYTHONPATH=os.pathsep.join(sys.path))
    return Machine("the stand-in driver", card.uuid, environment, measured_s=10, computes_s=5)
