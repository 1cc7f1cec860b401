"""What holds for all tests: Hypothesis' profile, the run's seed, which tests are long, and cheap tests first."""

import pytest
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

from build_steps import cache_directory
from effort import LONG, RUN_SEED

settings.register_profile(
    "gpuledger",
    deadline=None,  # a busy machine must not fail a property
    database=DirectoryBasedExampleDatabase(cache_directory().parent / "hypothesis"),  # a failure is tried again first
    print_blob=True,
)
settings.load_profile("gpuledger")


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads it
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(RUN_SEED)


def pytest_report_header() -> str:
    return f"seed: {RUN_SEED}; `make test SEED={RUN_SEED}` makes the same random choices"


@pytest.hookimpl(trylast=True)  # after the conftest.py of tests/cluster and tests/node have set their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not LONG:
        long = [item for item in items if item.get_closest_marker("long")]
        if long:
            config.hook.pytest_deselected(items=long)
            items[:] = [item for item in items if item not in long]
    items.sort(key=lambda item: [item.get_closest_marker(name) is not None for name in ("node", "cluster")])
