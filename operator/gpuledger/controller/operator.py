"""The operator for Kopf's own command: `kopf run -m gpuledger.controller.operator -A`.

It is the one that `gpuledger run` starts, and takes that command's options from the environment.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from gpuledger.kube_api import lean_import

lean_import.install()

import kopf  # noqa: E402

from gpuledger.controller.kopf_frame import KopfFrame  # noqa: E402
from gpuledger.controller.run_options import options_from  # noqa: E402

frame = KopfFrame(kopf.get_default_registry(), partial(options_from, os.environ))


@kopf.on.cleanup()
async def raise_failure(**_: Any) -> None:
    """Have the command fail if the operator has: Kopf takes its end for one that was wished."""
    if frame.failure is not None:
        raise kopf.PermanentError(str(frame.failure)) from frame.failure
