"""An agent's report of pods that have ended without a report of their kubelet: whether any process runs.

    {"6d0c...": "runs 8f2e...", "91ab...": "ended"}

An annotation of the Node, in which a UID that is not named means nothing. Where the annotation is missing, no agent of
the node answers such questions. After `runs` come ids of containers, for an agent that is restarted: where the kubelet
keeps no control groups for pods, it knows their processes by these alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import orjson

from gpuledger.model.errors import BadInput

ENDS_ANNOTATION = "gpuledger.dev/pod-ends"

RUNS, ENDED = "runs", "ended"

MAX_NAMED = 256
"""UIDs in one annotation: some 12 KiB."""

MAX_CONTAINERS_NAMED = 8
"""Of one pod, as users choose how many it has."""


def ends_annotation(runs: Mapping[str, bool], containers: Mapping[str, Collection[str]] | None = None) -> str:
    """Return the annotation: UID of a pod -> whether anything of it runs, and UID -> ids of its containers."""
    ids = {uid: sorted((containers or {}).get(uid, ()))[:MAX_CONTAINERS_NAMED] for uid in runs}
    return orjson.dumps({uid: " ".join([RUNS, *ids[uid]]) if runs[uid] else ENDED for uid in sorted(runs)}).decode()


def read_ends(node: Mapping[str, Any]) -> dict[str, bool] | None:
    """Return UID of a pod -> whether anything of it runs; None if no agent answers for the node.

    Raises BadInput for an annotation that can't be read.
    """
    words = _words(node)
    try:
        return None if words is None else {uid: {RUNS: True, ENDED: False}[word[0]] for uid, word in words.items()}
    except (KeyError, IndexError) as error:
        raise _unreadable(error) from None


def read_containers(node: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return UID of a pod of which something runs -> ids of its containers. Raises BadInput as `read_ends` does."""
    return {uid: word[1:] for uid, word in (_words(node) or {}).items() if word[:1] == [RUNS]}


def _words(node: Mapping[str, Any]) -> dict[str, list[str]] | None:
    text = ((node.get("metadata") or {}).get("annotations") or {}).get(ENDS_ANNOTATION)
    if text is None:
        return None
    try:
        return {uid: word.split() for uid, word in orjson.loads(text).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise _unreadable(error) from None


def _unreadable(error: Exception) -> BadInput:
    return BadInput(f"{ENDS_ANNOTATION} is not a JSON object of {RUNS!r} and {ENDED!r}: {error!r}")
