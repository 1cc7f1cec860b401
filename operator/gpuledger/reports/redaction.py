"""What somebody may read of an explanation who may see one namespace: all of it but the names of others' pods."""

from __future__ import annotations

from gpuledger.model.json_object import Json

OTHERS = "a pod of another namespace"


def redacted_for(explanation: Json, namespace: str) -> Json:
    """Return an explanation of a pod or a gang, as its `json` gives it, without other namespaces' names of either."""

    def named(pods: list[str]) -> list[str]:
        return [pod if pod.startswith(f"{namespace}/") else OTHERS for pod in pods]

    waits_for = explanation.get("waitsFor") or []
    nodes = [
        {
            **node,
            "wouldHaveToLeave": named(node["wouldHaveToLeave"]),
            "cards": [{**card, "by": named(card["by"])} for card in node["cards"]],
        }
        for node in explanation["nodes"]
    ]
    summary = explanation["summary"]
    for pod in sorted(waits_for, key=len, reverse=True):  # longer names first: one can begin with another
        if not pod.startswith(f"{namespace}/"):
            summary = summary.replace(pod, OTHERS)
    seen = {**explanation, "summary": summary, "nodes": nodes}
    if "waitsFor" in explanation:
        seen["waitsFor"] = named(waits_for)
    turn = explanation.get("turn")
    if turn and not turn["gang"].startswith(f"{namespace}/"):
        seen["turn"] = {**turn, "gang": None}
    return seen
