"""Hiding pods from autoscalers: a resource on each pod with cards that no node lists. In CEL, and in Python.

An autoscaler sees of a node's cards only slots, ten for each card. So it takes pods that fill their nodes for pods that
fit beside each other, evicts one, and removes its node; and it makes one node for two pods that need one each. It
leaves alone a pod that, in its eyes, fits on no node at all: it neither evicts it nor makes a node for it.

Amounts do not matter, so each pod gets 1, on its first container. Pods whose sums are written (sums.py) are hidden by
these already, and get nothing more: who lets Kueue count sums need not know of one more resource. Templates get
nothing, since no autoscaler reads them. Nor do pods of DaemonSets: Karpenter leaves those out when it looks for another
place for a node's pods, but counts them as a load of each new node, and would then find no type of node for any pod.
(Karpenter 1.14: IsReschedulable in pkg/utils/pod, buildDaemonOverheadGroups in pkg/controllers/provisioning.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gpuledger.formats.admission.rules import CLUSTERS_OWN, add_label, named, patch
from gpuledger.formats.custom_resource.crd import ALL_CONTAINERS, asks, literal
from gpuledger.formats.dialects.request import containers
from gpuledger.formats.dialects.vocabulary import HIDING, SUM_GPUS, Dialects
from gpuledger.formats.kubernetes.pod import DAEMON_SET, is_of_daemon_set
from gpuledger.formats.kubernetes.stand_in import MANAGED_LABEL
from gpuledger.formats.resource_claims.claims import has_claims
from gpuledger.model.json_object import Json
from gpuledger.model.request import ANY_NVIDIA

HIDING_POLICY: Final = "gpuledger-hiding"

WITHOUT_SUMS: Final = "without-sums"
"""The condition that only counts where sums are written."""


def hidden_pods(dialects: Dialects, scheduler_names: Sequence[str], *, with_sums: bool) -> list[Json]:
    """Return the conditions by which all other pods are left alone: ours with cards, or with ResourceClaims.

    Of a claim, the API server's policies see the name alone, so a pod counts that brings one and names our scheduler.
    `with_sums` says that sums are written, which hide pods that ask for NVIDIA's cards.
    """
    asking = f"{ALL_CONTAINERS}.exists(c,\n  {asks(literal(dialects.by_name), literal(dialects.counts()))})"
    ours = (
        f"({_with_claims(scheduler_names)}) ||\n"
        f"({_SCHEDULER} in {literal(['', CLUSTERS_OWN, *scheduler_names])} &&\n{asking})"
    )
    return [
        *([_without_sums(dialects)] if with_sums else []),
        of_no_daemon_set(),
        named("has-cards", ours),
    ]


def of_no_daemon_set() -> Json:
    """Return the condition that no DaemonSet has made a pod."""
    daemon = f"o.kind == {literal(DAEMON_SET)} && o.?controller.orValue(false)"
    return named("is-of-no-daemon-set", f"!object.metadata.?ownerReferences.orValue([]).exists(o, {daemon})")


def brings_claims(scheduler_names: Sequence[str]) -> Json:
    """Return the condition that a pod brings ResourceClaims, and names one of our schedulers."""
    return named("brings-claims", _with_claims(scheduler_names))


_SCHEDULER: Final = "object.spec.?schedulerName.orValue('')"


def _with_claims(scheduler_names: Sequence[str]) -> str:
    return f"{_SCHEDULER} in {literal(scheduler_names)} &&\n  object.spec.?resourceClaims.orValue([]).size() > 0"


def _without_sums(dialects: Dialects) -> Json:
    """Return the condition that a pod asks for no card of those that are summed up."""
    summed = [each for each in dialects.vocabularies if each.vendor == ANY_NVIDIA.vendor]
    names = literal(list(dict.fromkeys(name for each in summed for name in (each.count, *each.request_names) if name)))
    counts = literal(list(dict.fromkeys(each.count for each in summed if each.count)))
    return named(WITHOUT_SUMS, f"!{ALL_CONTAINERS}.exists(c,\n  {asks(names, counts)})")


def hiding_mutations() -> list[Json]:
    """Return the changes: the resource on the first container, in place of an amount that a user has written.

    And the label of pods with cards, by which stand-ins keep off their nodes; pods that ask for some have it already.
    """
    resources, path = "object.spec.containers[0].?resources", "/spec/containers/0/resources"
    made = " +\n".join(
        f"({resources}{field}.hasValue() ? [] : [JSONPatch{{op: 'add', path: '{path}{place}', value: {{}}}}])"
        for field, place in (("", ""), (".?limits", "/limits"), (".?requests", "/requests"))
    )
    written = ",\n".join(
        f" JSONPatch{{op: 'add', path: '{path}/{part}/' + jsonpatch.escapeKey({literal(HIDING)}), value: '1'}}"
        for part in ("limits", "requests")
    )
    return [patch(f"{made} +\n[{written}]"), patch(add_label(MANAGED_LABEL, literal("true")))]


def hide(pod: Json, scheduler_names: Sequence[str], *, asks_for_cards: bool, with_sums: bool) -> None:
    """Do to a pod what the policy does. `asks_for_cards` is whether its containers ask for some, by their limits.

    `with_sums` says that its sums have been written, if it has any.
    """
    spec = pod["spec"]
    scheduler = spec.get("schedulerName") or ""
    with_claims = scheduler in scheduler_names and has_claims(pod)
    is_ours = asks_for_cards and scheduler in ("", CLUSTERS_OWN, *scheduler_names)
    if not (with_claims or is_ours) or is_of_daemon_set(pod) or (with_sums and _has_sums(pod)):
        return
    metadata = pod.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), MANAGED_LABEL: "true"}
    first = spec["containers"][0]
    resources = first.get("resources") or {}
    both = {part: {**(resources.get(part) or {}), HIDING: "1"} for part in ("limits", "requests")}
    first["resources"] = {**resources, **both}


def _has_sums(pod: Mapping[str, Any]) -> bool:
    return any(SUM_GPUS in ((each.get("resources") or {}).get("limits") or {}) for each, _ in containers(pod))
