"""A healthy cluster, as facts."""

from collections.abc import Callable
from typing import Any

import pytest

from fakes.doctor_facts import healthy
from gpuledger.doctor.examination import examine
from gpuledger.doctor.facts import Facts

Json = dict[str, Any]
Found = Callable[..., list[tuple[str, str]]]


@pytest.fixture
def found() -> Found:
    """Return what examines a healthy cluster with some facts changed: (id, where) of each finding."""

    def look(**changes: Any) -> list[tuple[str, str]]:
        facts: Facts = healthy(**changes)
        return [(finding.kind.value, finding.where) for finding in examine(facts).findings]

    return look
