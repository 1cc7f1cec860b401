"""The secret that the operator shares with the kube-scheduler beside it, in a file of their pod.

It is made by whichever comes first, and lasts as long as the pod, on a volume in memory: so an operator whose container
starts again still knows the kube-scheduler that has gone on.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from pathlib import Path

from gpuledger.model.errors import BadInput

SECRET_BYTES = 32
SECRET = re.compile(r"[A-Za-z0-9_-]{32,128}")
"""What needs no quoting in a URL."""


def extender_secret(path: Path | None) -> str:
    """Return the secret in a file, which is made unless it is there; none without a path.

    Raises BadInput for what is no secret of ours, OSError.
    """
    if path is None:
        return ""
    if not path.exists():
        _make(path)
    found = path.read_text(errors="replace").strip()
    if not SECRET.fullmatch(found):
        raise BadInput(
            f"--extender-secret: {path} has something other than 32 to 128 letters, digits, - and _; "
            "delete it, and a new secret is made"
        )
    return found


def _make(path: Path) -> None:
    """Write a secret that only this account reads; one that somebody else has written meanwhile stays."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(SECRET_BYTES))
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(fresh)
    finally:
        fresh.unlink()
