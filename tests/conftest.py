"""What holds for all tests: Hypothesis' profile, and cheap tests before those that need a control plane or a node."""

import os

import pytest
from hypothesis import settings

settings.register_profile(
    "gpuledger",
    deadline=None,  # a busy machine must not fail a property
    derandomize=os.environ.get("CI") == "true",  # a red pipeline must be the change's fault
    print_blob=True,
)
settings.load_profile("gpuledger")


@pytest.hookimpl(trylast=True)  # after the conftest.py of tests/cluster and tests/node have set their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: [item.get_closest_marker(name) is not None for name in ("node", "cluster")])
