"""Who holds the schedulers' Lease, by the name of its host."""

from typing import Any

import pytest

from gpuledger.formats.kubernetes.other import holder_host_name

Json = dict[str, Any]


@pytest.mark.parametrize(
    ("identity", "host"),
    [
        ("gpuledger-5d9c7-x2v_0e6f-4c", "gpuledger-5d9c7-x2v"),
        ("host_with_underscores_0e6f-4c", "host_with_underscores"),
        ("", ""),
    ],
)
def test_the_host_is_what_comes_before_the_last_underscore(identity: str, host: str) -> None:
    assert holder_host_name({"spec": {"holderIdentity": identity}}) == host


@pytest.mark.parametrize("lease", [{}, {"spec": None}, {"spec": {}}, {"spec": {"holderIdentity": None}}])
def test_a_lease_that_nobody_holds_has_no_host(lease: Json) -> None:
    assert holder_host_name(lease) == ""
