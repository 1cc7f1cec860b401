"""The objects that `get`, `describe` and `drain` are about, as data: pods, cards and nodes as the ledger has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from gpuledger.command_line.cluster_access import ClusterAccess
from gpuledger.command_line.options import Named, no_such
from gpuledger.command_line.output import (
    NO_NODES,
    TO_READ,
    NoLedger,
    all_cards,
    begin_cards,
    card_named,
    cordon_of,
    in_reading_order,
)
from gpuledger.command_line.top.rows import NODES, begin_nodes, cordoned_nodes, nodes_read
from gpuledger.command_line.top.teams import asks_for_cards
from gpuledger.formats.annotations import DEVICES_ANNOTATION, read_devices
from gpuledger.formats.custom_resource.stored_card import (
    NODE_CORDON_ANNOTATION,
    amounts_json,
    claim_json,
    misfit_json,
    stored_card,
)
from gpuledger.formats.kubernetes.other import ALLOCATED, condition_of
from gpuledger.formats.kubernetes.workload import queue_of
from gpuledger.model.card import Amounts
from gpuledger.model.errors import BadInput, Denied, NotFound
from gpuledger.model.json_object import Json
from gpuledger.reports.cards import by_node, report_of_stored

Shares = dict[str, list[Json]]
"""UID of a pod -> its shares, by place."""

WAITING, NOT_IN_LEDGER, NO_GPU = "waiting", "not in the ledger", "no GPUs"
"""States of pods without a share, beside those of ENDED."""
BY_ANNOTATION, NOT_KNOWN = "by its annotation", "not known"
"""States of bound pods where the account may not read the ledger: its owner can write the annotation."""
ENDED = ("Succeeded", "Failed")


def kind_of(found: Json) -> str:
    """Return the kind of an object of this module."""
    return "pod" if "pod" in found else "card" if "uuid" in found else "node"


def name_of(found: Json) -> str:
    """Return its name as commands take it: card/UUID."""
    kind = kind_of(found)
    return f"{kind}/{found['uuid' if kind == 'card' else kind]}"


class LedgerReader:
    """Reads objects by their names, and the ledger once for all of them. Raises BadInput and ApiError."""

    def __init__(self, cluster: ClusterAccess, namespace: str) -> None:
        """Take the namespace of pods, empty for all."""
        self._cluster, self._namespace = cluster, namespace
        self._cards: list[Json] | None = None

    def found(self, wanted: Named) -> Iterator[Json]:
        """Yield the object of a name, or all of a kind: of pods those that hold cards, claim some or wait."""
        if wanted.kind == "pod":
            yield from [self._pod(wanted.name)] if wanted.name is not None else self._pods()
        elif wanted.kind == "card":
            cards = [card_named(self._all(), wanted.name)] if wanted.name is not None else self._all()
            yield from map(card_json, sorted(cards, key=_place))
        else:
            yield from self._nodes(wanted.name)

    def _all(self) -> list[Json]:
        if self._cards is None:
            self._cards = all_cards(self._cluster)
        return self._cards

    def _pod(self, name: str) -> Json:
        try:
            pod = self._cluster.read(f"/api/v1/namespaces/{self._namespace}/pods/{name}")
        except NotFound:
            raise BadInput(no_such("pod", name, self._namespace)) from None
        cards = begin_cards(self._cluster, pod["spec"].get("nodeName")) if self._cards is None else self._cards
        return pod_json(pod, self._namespace, self._shares(cards))

    def _pods(self) -> Iterator[Json]:
        where = f"/namespaces/{self._namespace}" if self._namespace else ""
        pods = self._cluster.begin(f"/api/v1{where}/pods")
        shares = self._shares(begin_cards(self._cluster) if self._cards is None else self._cards)
        yield from pods_of_interest(pods, self._namespace, shares)

    def _shares(self, cards: Iterable[Json]) -> Shares | None:
        """Return the shares of all pods; None, with a note, where the account may not read the ledger."""
        try:
            return shares_of(cards)
        except NoLedger:
            self._cluster.notes = [HINT]
            return None

    def _nodes(self, name: str | None) -> Iterator[Json]:
        nodes = begin_nodes(self._cluster, name, only_cordoned=True)
        found = by_node(report_of_stored(stored_card(item)) for item in self._all())
        cordoned = cordoned_nodes(nodes_read(nodes) or ())
        named = [node for node in found if name in (None, node.name)]
        if name is not None and not named:
            check_node(self._cluster, name)
            raise BadInput(f"node {name!r} has no cards in the ledger; `gpuledger doctor` says what is missing")
        for node in sorted(named, key=lambda node: in_reading_order(node.name)):
            yield node.json() | {"unschedulable": node.name in cordoned}


def check_node(cluster: ClusterAccess, name: str) -> None:
    """Raise BadInput if there is no node of this name, as far as the account may know."""
    try:
        cluster.read(f"{NODES}/{name}")
    except NotFound:
        raise BadInput(no_such("node", name)) from None
    except Denied:
        raise BadInput(NO_NODES.format(name=name)) from None


def card_json(found: Json) -> Json:
    """Return all that is known of a card, of its GPUAllocation."""
    card = stored_card(found)
    return {
        **report_of_stored(card).json(),
        "healthy": card.card.healthy,
        "cordoned": cordon_of(found),
        "nodeCordoned": cordon_of(found, NODE_CORDON_ANNOTATION),
        "links": dict(card.card.links),
        "claimedBy": [claim_json(claim) for claim in card.claims],
        "conflictsWith": [misfit_json(misfit) for misfit in card.misfits],
    }


HINT = f"Cards are those that the pods' own annotations name, a hint that the ledger may contradict; {TO_READ}."
"""Stands behind what was not read from the ledger."""


def pods_of_interest(pods: Iterable[Json], namespace: str, shares: Shares | None) -> Iterator[Json]:
    """Yield those that hold cards, claim some, or wait; by their annotations, where there are no shares to be read."""
    for pod in pods:
        found = pod_json(pod, namespace, shares)
        if found["shares"] or (_is_pending(pod) and asks_for_cards(pod)):
            yield found


def pod_json(pod: Json, namespace: str, shares: Shares | None) -> Json:
    """Return a pod's shares as the ledger has them, and what its annotation names; of None, that stands in for them."""
    told = _annotated(pod)
    held = _told_shares(pod, told["told"]) if shares is None else shares.get(pod["metadata"]["uid"], [])
    found: Json = {
        "namespace": pod["metadata"].get("namespace") or namespace,
        "pod": pod["metadata"]["name"],
        "podUID": pod["metadata"]["uid"],
        "node": pod["spec"].get("nodeName"),
        "queue": queue_of(pod) or None,
        "phase": (pod.get("status") or {}).get("phase", ""),
        "created": pod["metadata"].get("creationTimestamp"),
        "byAnnotation": shares is None,
        "shares": held,
        **told,
    }
    return found | {"state": _state(pod, found), "reason": _reason(pod)}


def _state(pod: Json, found: Json) -> str:
    if found["shares"]:
        return ", ".join(dict.fromkeys(str(share["state"]) for share in found["shares"]))
    if found["phase"] in ENDED:
        return str(found["phase"])
    if _is_pending(pod) and asks_for_cards(pod):
        return WAITING
    if found["byAnnotation"]:
        return NOT_KNOWN
    return NOT_IN_LEDGER if found["told"] or asks_for_cards(pod) else NO_GPU


def _reason(pod: Json) -> str | None:
    """Return what the operator has written into a pod that waits."""
    condition = condition_of(pod, ALLOCATED) or {}
    waits = _is_pending(pod) and condition.get("status") == "False"
    return str(condition.get("message") or "") or None if waits else None


def _is_pending(pod: Json) -> bool:
    """Return whether a pod has no node yet; what `formats` knows of pods takes long to import."""
    return not pod["spec"].get("nodeName") and (pod.get("status") or {}).get("phase") not in ENDED


def shares_of(cards: Iterable[Json]) -> Shares:
    """Return the shares of all pods on these cards, and those that are claimed for them."""
    shares: Shares = defaultdict(list)
    for card in map(stored_card, sorted(cards, key=_place)):
        where = {"card": card.card.uuid, "node": card.card.node_name, "index": card.card.index}
        for holder in card.holders or ():
            share = _share_json(holder.share.amounts, holder.share.exclusive)
            shares[holder.pod.uid].append({**where, "state": holder.state.value, **share})
        for claim in card.claims:
            share = _share_json(claim.share.amounts, claim.share.exclusive)
            shares[claim.holder.pod.uid].append({**where, "state": "claimed", **share})
    return dict(shares)


def _told_shares(pod: Json, told: Iterable[Json]) -> list[Json]:
    """Return the shares that a bound pod's annotation names: of each card what its containers have together."""
    node, found = pod["spec"].get("nodeName"), dict[str, Json]()
    for each in told if node and (pod.get("status") or {}).get("phase") not in ENDED else ():
        where = {"card": each["uuid"], "node": node, "index": None, "state": BY_ANNOTATION}
        known = found.setdefault(each["uuid"], where | _share_json(Amounts(0, 0, 1), exclusive=False))
        for amount in ("memoryMiB", "cores"):
            known[amount] += each[amount]
    return list(found.values())


def _share_json(amounts: Amounts, exclusive: bool) -> Json:
    return {**amounts_json(amounts), "exclusive": exclusive}


def _place(found: Json) -> tuple[list[tuple[int, str]], tuple[int, str]]:
    card = stored_card(found).card
    return in_reading_order(card.node_name), card.place


def _annotated(pod: Json) -> Json:
    text = (pod["metadata"].get("annotations") or {}).get(DEVICES_ANNOTATION)
    try:
        annotated = read_devices(text) if text else ()
    except BadInput as error:
        return {"told": [], "toldProblem": str(error)}
    cards = [{"container": t.container, "uuid": t.uuid, "memoryMiB": t.memory_mib, "cores": t.cores} for t in annotated]
    return {"told": cards, "toldProblem": None}
