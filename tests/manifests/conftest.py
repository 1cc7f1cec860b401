"""Helm is built from source when it is first wanted, as promtool is."""

from pathlib import Path

import pytest

from manifests.helm import Helm, the_helm

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(1200))  # a first build takes minutes


@pytest.fixture(scope="session")
def helm() -> Helm:
    """Return Helm with our chart."""
    return the_helm()
