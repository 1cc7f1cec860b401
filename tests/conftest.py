"""What holds for all tests: Hypothesis' profile, the run's seed, which tests are long, and which run side by side."""

import gc
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

from build_steps import cache_directory
from effort import LEFT_OUT, RUN_SEED, times
from side_by_side import group_of, in_order, is_computed

pytest_plugins = ["reporting"]

STANDING = "installed_cluster"
"""The fixture of that cluster, of tests/cluster/conftest.py."""

COMPUTED_S, LONGEST_COMPUTED_S = 300, 3_600
"""Limits of one test that computes, by `make test` and by `make test-all`."""

settings.register_profile(
    "gpuledger",
    max_examples=times(30, 200, check=10),  # others in each run
    deadline=None,  # a busy machine must not fail a property
    database=DirectoryBasedExampleDatabase(cache_directory().parent / "hypothesis"),  # a failure is tried again first
    print_blob=True,
)
settings.load_profile("gpuledger")


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads it
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(RUN_SEED)


@pytest.hookimpl(trylast=True)  # after the conftest.py of tests/cluster and tests/node have set their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes more effort than was asked for, and put the groups of tests in order."""
    left_out = {item for item in items if any(map(item.get_closest_marker, LEFT_OUT))}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    for item in items:  # thousands of examples on two busy cores; a limit that a test has of its own is of its one try
        if is_computed(group_of(item.nodeid)) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(times(COMPUTED_S, LONGEST_COMPUTED_S)))
    # Modules that leave their cluster to each other come one after the other: else it starts again and again.
    standing = {group_of(item.nodeid) for item in items if STANDING in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: (*in_order(group := group_of(item.nodeid)), group in standing))


def pytest_collection_finish() -> None:
    """Leave out of collections what is there before the tests: thousands of items take longer than most tests."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let pytest-xdist 3.8 give whole groups to its workers; with pytest 9.2, its own marker for that does nothing."""
    from xdist.scheduler import LoadScopeScheduling  # only there on the side that hands out the work

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

        def _assign_work_unit(self, node: Any) -> None:
            """Have one process compute from the start, while the others wait: else all compute at once in the end."""
            if node is self.nodes[-1]:
                computed = next(filter(is_computed, self.workqueue), None)
                if computed is not None:
                    self.workqueue.move_to_end(computed, last=False)
            super()._assign_work_unit(node)

    return ByGroup(config, log)
