"""What a node's agent says of pods that have ended without a word of their kubelet: whether anything of them runs.

    {"6d0c...": "runs", "91ab...": "ended"}

An annotation of the Node, in which a UID that is not named means nothing. Where the annotation is missing, no agent of
the node answers such questions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gpuledger.model.errors import BadInput

ENDS_ANNOTATION = "gpuledger.dev/pod-ends"

RUNS, ENDED = "runs", "ended"

MAX_NAMED = 256
"""UIDs in one annotation: some 12 KiB."""


def ends_annotation(runs: Mapping[str, bool]) -> str:
    """Return the annotation for these UIDs of pods, each with whether anything of the pod runs."""
    return orjson.dumps({uid: RUNS if runs[uid] else ENDED for uid in sorted(runs)}).decode()


def read_ends(node: Mapping[str, Any]) -> dict[str, bool] | None:
    """Return UID of a pod -> whether anything of it runs; None if nobody answers for the node.

    Raises BadInput for an annotation that can't be read.
    """
    text = ((node.get("metadata") or {}).get("annotations") or {}).get(ENDS_ANNOTATION)
    if text is None:
        return None
    try:
        named = orjson.loads(text)
        return {uid: {RUNS: True, ENDED: False}[word] for uid, word in named.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(f"{ENDS_ANNOTATION} is not a JSON object of {RUNS!r} and {ENDED!r}: {error!r}") from None
