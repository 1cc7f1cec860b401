"""Who evicts follows the setting, or the API server's version."""

import pytest

from gpuledger.workflows.context import PreemptionMode


@pytest.mark.parametrize(
    ("setting", "operator", "scheduler"),
    [("own", True, False), ("native", False, True), ("off", False, False), ("auto", False, False)],
)
def test_the_setting_says_who_preempts(setting: str, operator: bool, scheduler: bool) -> None:
    assert PreemptionMode.by_setting(setting) == PreemptionMode(operator, scheduler)


@pytest.mark.parametrize(("version", "native"), [((1, 30), False), ((1, 37), False), ((1, 38), True), ((2, 0), True)])
def test_otherwise_the_version_does(version: tuple[int, int], native: bool) -> None:
    who = PreemptionMode.by_setting("auto")
    who.know(version)
    assert who == PreemptionMode(operator=not native, scheduler=native)
