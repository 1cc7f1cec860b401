"""The scheduler extender's JSON, version v1.

Source: k8s.io/kube-scheduler/extender/v1. Its types carry no JSON tags, so the outer keys are Go's field names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuledger.model.errors import BadInput


@dataclass(frozen=True, slots=True)
class FilterArguments:
    """A pod and the nodes that kube-scheduler would accept for it."""

    pod: Mapping[str, Any]
    node_names: list[str]


@dataclass(frozen=True, slots=True)
class BindArguments:
    """A pod that is to be bound to a node."""

    uid: str
    namespace: str
    name: str
    node_name: str


def filter_arguments(body: object) -> FilterArguments:
    """Read a filter or prioritize request. Raises BadInput if it has no pod or no node names."""
    pod = body.get("Pod") if isinstance(body, dict) else None
    names = body.get("NodeNames") if isinstance(body, dict) else None
    if not isinstance(pod, dict) or not isinstance(names, list):
        raise BadInput("the request has no Pod or no NodeNames: set nodeCacheCapable: true for this extender")
    return FilterArguments(pod, names)


def bind_arguments(body: object) -> BindArguments:
    """Read a bind request. Raises BadInput if something is missing."""
    try:
        return BindArguments(body["PodUID"], body["PodNamespace"], body["PodName"], body["Node"])  # type: ignore[index]
    except (KeyError, TypeError) as error:
        raise BadInput(f"the bind request lacks {error}") from error


def filter_answer(node_names: Sequence[str], refused: Mapping[str, str]) -> dict[str, Any]:
    """Return the nodes that fit, and why the others do not.

    Refused nodes are "unresolvable": up to Kubernetes 1.37 kube-scheduler's own preemption can't see cards, and would
    look for victims on these nodes in vain.
    """
    return {
        "Nodes": None,
        "NodeNames": list(node_names),
        "FailedNodes": {},
        # A percent sign, such as in a user's own words, would garble the pod's event: its text is a format there.
        "FailedAndUnresolvableNodes": {name: text.replace("%", " percent") for name, text in refused.items()},
        "Error": "",
    }


def filter_error(message: str) -> dict[str, Any]:
    """Fail the pod's scheduling attempt: kube-scheduler tries again soon, with back-off."""
    return {"Nodes": None, "NodeNames": None, "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": message}


def priorities(node_names: Sequence[str]) -> list[dict[str, Any]]:
    """Score nodes by their place in the list, the first is best. Scores of an extender go from 0 to 10."""
    return [{"Host": name, "Score": max(0, 10 - place)} for place, name in enumerate(node_names)]


def bind_answer(error: str = "") -> dict[str, str]:
    """Answer a bind request; an empty error means that the pod is bound."""
    return {"Error": error}
