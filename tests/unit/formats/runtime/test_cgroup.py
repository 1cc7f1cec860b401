"""A process is its pod's, whichever way the kubelet names control groups."""

import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.formats.runtime.cdi import pod_group, pod_uid

UID = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
UNDERSCORED = UID.replace("-", "_")
STATIC = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"
OTHER = "ffffffff-4e5f-6071-8293-a4b5c6d7e8f9"
CONTAINER = "c" * 64


@pytest.mark.parametrize(
    ("text", "uid"),
    [
        (f"0::/kubepods/burstable/pod{UID}/{CONTAINER}\n", UID),
        (f"0::/kubepods/pod{UID}/{CONTAINER}\n", UID),
        (f"0::/pod{UID}/{CONTAINER}\n", UID),
        (
            "0::/kubepods.slice/kubepods-besteffort.slice/"
            f"kubepods-besteffort-pod{UNDERSCORED}.slice/cri-containerd-{CONTAINER}.scope\n",
            UID,
        ),
        (f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/crio-{CONTAINER}.scope\n", UID),
        (f"12:cpu,cpuacct:/kubepods/besteffort/pod{UID}/{CONTAINER}\n11:memory:/kubepods/besteffort/pod{UID}/c\n", UID),
        (f"1:name=systemd:/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/docker-{CONTAINER}.scope\n0::/\n", UID),
        (f"0::/../../pod{UID}/{CONTAINER}\n", UID),
        (f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UNDERSCORED}.slice/a.scope\n", UID),
        (f"0::/kubepods/burstable/pod{STATIC}/{CONTAINER}\n", STATIC),
        (f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/a.scope\n", STATIC),
        (f"0::/kubepods/pod{UID}/{CONTAINER}/inner/pod{OTHER}/x\n", UID),
        (f"0::/kubepods/pod{UID}", UID),
        ("0::/\n", None),
        ("0::/system.slice/containerd.service\n", None),
        (f"0::/user.slice/tripod{UID}/a\n", None),
        (f"0::/kubepods/pod{UID}0/a\n", None),
        ("0::/kubepods/pod/a\n", None),
        ("", None),
    ],
)
def test_the_pod_is_read_from_the_group(text: str, uid: str | None) -> None:
    assert pod_uid(text) == uid


@given(st.uuids(), st.booleans())
def test_every_uid_reads_back(uid: uuid.UUID, systemd: bool) -> None:
    name = f"kubepods-pod{str(uid).replace('-', '_')}.slice" if systemd else f"pod{uid}"
    assert pod_uid(f"0::/kubepods/{name}/{CONTAINER}\n") == str(uid)


@given(st.text())
def test_any_text_gives_a_uid_or_none(text: str) -> None:
    found = pod_uid(text)
    assert found is None or re.fullmatch(r"[0-9a-f-]{32,36}", found)


@pytest.mark.parametrize(
    ("text", "group"),
    [
        (f"0::/kubepods/burstable/pod{UID}/{CONTAINER}", f"0::/kubepods/burstable/pod{UID}"),
        (
            f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/a.scope",
            f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice",
        ),
        (f"0::/kubepods/pod{UID}/{CONTAINER}/inner/pod{OTHER}/x", f"0::/kubepods/pod{UID}"),
        (f"0::/kubepods/pod{UID}", f"0::/kubepods/pod{UID}"),
        ("0::/system.slice/containerd.service", None),
    ],
)
def test_a_pods_own_group_is_read_from_that_of_a_container(text: str, group: str | None) -> None:
    assert pod_group(text) == group
