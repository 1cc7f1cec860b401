"""Annotations by which autoscalers keep a node, and what tells that they are ours.

Sources: Karpenter 1.14, pkg/apis/v1/labels.go (DoNotDisruptAnnotationKey); cluster-autoscaler 1.36,
core/scaledown/eligibility (ScaleDownDisabledKey). Both read "true" on a Node, and choose no such node for removal.

What we have written is named in an annotation of ours, in the same write. What was there before, a person's, is left,
and so is what a person changes afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

KARPENTER: Final = "karpenter.sh/do-not-disrupt"
CLUSTER_AUTOSCALER: Final = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
KEEPING: Final = (CLUSTER_AUTOSCALER, KARPENTER)
TRUE: Final = "true"

KEPT_ANNOTATION: Final = "gpuledger.dev/keeps"
"""On a node: which of these annotations on it are ours, with commas."""

Changes = dict[str, str | None]
"""Annotation -> its value, None to remove it. Empty: there is nothing to write."""


def keeping(annotations: Mapping[str, str]) -> Changes:
    """Return what keeps a node with these annotations."""
    missing = [name for name in KEEPING if name not in annotations]
    if KEPT_ANNOTATION in annotations or not missing:
        return {}
    return {**dict.fromkeys(missing, TRUE), KEPT_ANNOTATION: ",".join(missing)}


def letting_go(annotations: Mapping[str, str]) -> Changes:
    """Return what undoes that."""
    if KEPT_ANNOTATION not in annotations:
        return {}
    ours = annotations[KEPT_ANNOTATION].split(",")
    still_ours = [name for name in KEEPING if name in ours and annotations.get(name) == TRUE]
    return dict.fromkeys((*still_ours, KEPT_ANNOTATION))
