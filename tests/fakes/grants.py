"""Grants with good defaults."""

from typing import Any

from gpuledger.formats.runtime.cdi import Grant


def a_grant(name: str = "slot-1-0a1b", pod: str = "a", **changes: Any) -> Grant:
    """Return a grant of a pod whose UID is `uid-POD`."""
    fields: dict[str, Any] = {
        "name": name,
        "pod_uid": f"uid-{pod}",
        "namespace": "default",
        "pod": pod,
        "container": "main",
        "resource": "nvidia.com/gpu",
        "slots": frozenset({"slot-1"}),
        "uuids": ("GPU-1",),
        "edits": {"env": ["A=1"]},
    }
    return Grant(**(fields | changes))
