"""GPUAllocation objects into the model and back, by hand: this is the hot path, and the API server has checked them.

The names of the custom resource and its limits are here, apart from its models: a command that only reads cards starts
without pydantic, a fifth of a second sooner.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from sys import intern
from typing import Any, Final

from gpuledger.model.card import Amounts, Card, Links, total
from gpuledger.model.errors import BadInput
from gpuledger.model.failure import Failure, FaultClass
from gpuledger.model.request import HostAmounts
from gpuledger.model.share import (
    DEFAULT_GRACE_S,
    Claim,
    ClaimRef,
    ContainerShare,
    Holder,
    HolderState,
    Misfit,
    Pod,
    SeatFor,
    SeatOwner,
    Share,
    StoredCard,
    StoredSeat,
)
from gpuledger.model.usage import NO_CHARGE, Charge, EndedShare, Wasted

GROUP: Final = "gpuledger.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "GPUAllocation"
PLURAL: Final = "gpuallocations"
SINGULAR: Final = "gpuallocation"
SHORT_NAME: Final = "gpua"
CATEGORY: Final = "gpuledger"
"""The kind's category in kubectl: `kubectl get gpuledger`. Not `all`, which is for the objects that a namespace
owns."""

MAX_CONTAINERS: Final = 64
MAX_CONFLICTS: Final = 64
MAX_CLAIMS: Final = 64
MAX_ENDED: Final = 256
MAX_CARDS_OF_ONE_POD: Final = 1024
MAX_LINKS: Final = 64
MAX_MEMORY_MIB: Final = 16 * 1024 * 1024  # 16 TiB
MAX_CORES: Final = 10_000  # percent of one card, which can be offered several times over
MAX_HOST_AMOUNT: Final = 2**40
MAX_SLOTS: Final = 1024
MAX_SLOTS_OF_ONE_POD: Final = 64
MAX_INDEX: Final = 1023
MAX_LINK_SCORE: Final = 1_000_000
MAX_LINE: Final = 256
MAX_ACCOUNT_WORD: Final = 256

# Inside, anything that may stand in an object's name; at the ends, a letter or a digit.
UUID_PATTERN: Final = r"^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*$"

CORDON_ANNOTATION: Final = "gpuledger.dev/cordoned"
"""On a card: a person wants no new pods on it; the value says why. Those who hold it stay."""
NODE_CORDON_ANNOTATION: Final = "gpuledger.dev/cordoned-node"
"""The same for all cards of a node: a mark of its own, so that taking it back opens no card that has another one."""
CORDON_TIME: Final = "%Y-%m-%d %H:%M UTC"
"""How a cordon says when it was made, at the end of its reason: "(who, when)"."""
_CORDON_TIMES = re.compile(r"(?:\(|, )(\d{4}-\d\d-\d\d \d\d:\d\d UTC)\)(?=;|$)")

NODE_LABEL = "gpuledger.dev/node"
LABEL_LENGTH = 63
"""Kubernetes' limit for a label's value; a node's name can be longer, and then its cards carry no such label."""

KINDS_SHARED = 4096
"""Different amounts, and parts of containers, of which all equal ones are one object. Pods come from few templates."""

_amounts = lru_cache(KINDS_SHARED)(Amounts)
_container_share = lru_cache(KINDS_SHARED)(ContainerShare)
_charge = lru_cache(KINDS_SHARED)(Charge)

PODS_LENGTH = 256
PODS_NAMED = 2
"""Pods that the printer column PODS names before it counts the rest."""


def stored_card(allocation: Mapping[str, Any]) -> StoredCard:
    """Return a card with its holders. Raises BadInput if a required field is missing: then the CRD is not ours.

    What many cards have in common is one object in memory: thousands of nodes have tens of thousands of cards.
    """
    try:
        spec, status = allocation["spec"], allocation.get("status")
        capacity = spec["capacity"]
        card = Card(
            uuid=intern(spec["uuid"]),
            node_name=intern(spec["nodeName"]),
            index=spec["index"],
            capacity=_amounts(capacity["memoryMiB"], capacity["cores"], capacity["number"]),
            vendor=intern(spec["vendor"]),
            model=intern(spec["model"]),
            mode=intern(spec["mode"]),
            numa_node=spec.get("numaNode"),
            pcie_root=intern(spec.get("pcieRoot") or ""),
            healthy=spec["healthy"],
            links=Links(spec.get("links") or {}),
            failure=_failure(spec.get("failure")),
        )
        return StoredCard(
            card=card,
            resource_version=int(allocation["metadata"]["resourceVersion"]),
            holders=None if status is None else tuple(read_holder(card.uuid, entry) for entry in status["holders"]),
            phase="" if status is None else intern(str(status["phase"])),
            reason="" if status is None else intern(status.get("reason") or ""),
            misfits=() if status is None else tuple(_misfit(entry) for entry in status.get("conflicts") or ()),
            claims=() if status is None else tuple(_claim(card.uuid, each) for each in status.get("claims") or ()),
            ended=None if status is None or "ended" not in status else tuple(map(_ended, status["ended"])),
            account_revision=None if status is None else status.get("accountRevision"),
            wasted=None if status is None or "wasted" not in status else _wasted(status["wasted"]),
            cordoned=_cordoned(allocation["metadata"].get("annotations")),
            created=intern(allocation["metadata"].get("creationTimestamp") or ""),
        )
    except (KeyError, TypeError, ValueError) as error:
        name = (allocation.get("metadata") or {}).get("name")
        raise BadInput(f"GPUAllocation {name} lacks {error}: is the CRD of this release installed?") from error


def _failure(spec: Mapping[str, Any] | None) -> Failure | None:
    return Failure(FaultClass(spec["faultClass"]), spec["since"]) if spec else None


def new_allocation(card: Card) -> dict[str, Any]:
    """Return the object to create for a card. Its status is a write of its own."""
    from gpuledger.formats.custom_resource.gpu_allocation import (
        card_spec,  # brings pydantic, which those who only read cards do without
    )

    labels = {NODE_LABEL: card.node_name} if len(card.node_name) <= LABEL_LENGTH else {}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": card.object_name, "labels": labels},
        "spec": card_spec(card),
    }


def holder_json(holder: Holder) -> dict[str, Any]:
    """Return a holder as an element of `status.holders`."""
    entry = _share_json(holder) | {"state": holder.state.value}
    if holder.attempt:
        entry["attempt"] = holder.attempt
    if holder.deadline:
        entry["deadline"] = holder.deadline
    if holder.seat is not None:
        entry["seat"] = seat_json(holder.seat)
    if holder.since:
        entry |= charged_json(holder)
    return entry


def charged_json(holder: Holder) -> dict[str, Any]:
    """Return the fields of a holder that say since when it is charged, and to whom."""
    amounts = {"waitedSeconds": holder.waited_s, "wastedBefore": holder.wasted_before_ms}
    counted = {name: amount for name, amount in amounts.items() if amount}
    return {"since": holder.since} | counted | _charge_json(holder.pod.charge)


def _charge_json(charge: Charge) -> dict[str, Any]:
    words = {"owner": charge.owner, "queue": charge.queue, "priorityClass": charge.priority_class}
    return {name: word for name, word in words.items() if word}


def ended_json(ended: EndedShare) -> dict[str, Any]:
    """Return a share that is over as an element of `status.ended`."""
    return {
        "key": ended.key,
        "namespace": ended.namespace,
        **_charge_json(ended.charge),
        "since": in_milliseconds(ended.since),
        "until": in_milliseconds(ended.until),
        "millionths": ended.part,
        "memoryMiB": ended.memory_mib,
        "cores": ended.cores,
        "waitedSeconds": ended.waited_s,
        **({"idleSeconds": ended.idle_s} if ended.idle_s else {}),
        **({"wastedMilliseconds": ended.wasted_ms} if ended.wasted_ms else {}),
    }


def _ended(entry: Mapping[str, Any]) -> EndedShare:
    return EndedShare(
        key=entry["key"],
        namespace=intern(entry["namespace"]),
        charge=_read_charge(entry),
        since=datetime.fromisoformat(entry["since"]),
        until=datetime.fromisoformat(entry["until"]),
        part=entry["millionths"],
        memory_mib=entry["memoryMiB"],
        cores=entry["cores"],
        waited_s=entry["waitedSeconds"],
        idle_s=entry.get("idleSeconds", 0),
        wasted_ms=entry.get("wastedMilliseconds", 0),
    )


def wasted_json(wasted: Wasted) -> dict[str, Any]:
    """Return what has been wasted of a card as its `status.wasted`."""
    return {"until": in_milliseconds(wasted.until), "cardMilliseconds": wasted.card_ms}


def _wasted(entry: Mapping[str, Any]) -> Wasted:
    return Wasted(datetime.fromisoformat(entry["until"]), entry["cardMilliseconds"])


def _read_charge(entry: Mapping[str, Any]) -> Charge:
    return _charge(*(intern(entry.get(name) or "") for name in ("owner", "queue", "priorityClass")))


def in_milliseconds(moment: datetime) -> str:
    """Return a time in UTC as RFC 3339, with milliseconds."""
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"


def seat_json(seat: StoredSeat) -> dict[str, Any]:
    """Return for whom a share is kept, as it is written beside it."""
    entry: dict[str, Any] = {"kind": seat.owner.kind.value, "name": seat.owner.name, "uid": seat.owner.uid}
    host = {"cpuMilli": seat.host.cpu_milli, "memoryMiB": seat.host.memory_mib}
    return entry | {"member": seat.member, "cards": seat.cards} | {name: each for name, each in host.items() if each}


def claim_json(claim: Claim) -> dict[str, Any]:
    """Return a claim as an element of `status.claims`."""
    entry = _share_json(claim.holder)
    return entry | {"cards": claim.cards, "victims": list(claim.victims), "deadline": claim.holder.deadline}


def _share_json(holder: Holder) -> dict[str, Any]:
    pod, share = holder.pod, holder.share
    entry: dict[str, Any] = {
        **_identity_json(pod),
        **amounts_json(share.amounts),
        "exclusive": share.exclusive,
        "priority": pod.priority,
        "containers": [_container_json(each) for each in share.containers],
    }
    if pod.grace_s != DEFAULT_GRACE_S:
        entry["graceSeconds"] = pod.grace_s
    return entry


def _container_json(container: ContainerShare) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": container.name, "memoryMiB": container.memory_mib, "cores": container.cores}
    if container.claim is not None:
        shared = {"shared": True} if container.claim.shared else {}
        entry["claim"] = {"name": container.claim.name, "uid": container.claim.uid} | shared
    return entry


def misfit_json(misfit: Misfit) -> dict[str, Any]:
    """Return a share that does not fit as an element of `status.conflicts`."""
    return {**_identity_json(misfit.pod), **amounts_json(misfit.amounts), "why": misfit.why}


def described(card: Card) -> dict[str, Any]:
    """Return what a register and the `spec` of a GPUAllocation say alike of a card."""
    return {
        "uuid": card.uuid,
        "index": card.index,
        "vendor": card.vendor,
        "model": card.model,
        "mode": card.mode,
        "numa_node": card.numa_node,
        "pcie_root": card.pcie_root or None,
        "healthy": card.healthy,
        "failure": failure_json(card.failure),
    }


def failure_json(failure: Failure | None) -> dict[str, str] | None:
    """Return a failure as a register and the `spec` of a GPUAllocation spell it."""
    return None if failure is None else {"faultClass": failure.fault_class.value, "since": failure.since}


def amounts_json(amounts: Amounts) -> dict[str, int]:
    """Return amounts of a card as its object spells them."""
    return {"memoryMiB": amounts.memory_mib, "cores": amounts.cores, "number": amounts.number}


def _identity_json(pod: Pod) -> dict[str, Any]:
    return {"podUID": pod.uid, "namespace": pod.namespace, "pod": pod.name}


def printed_total(allocation: Mapping[str, Any]) -> Amounts | None:
    """Return the total used amounts in the card's status, None before its first status."""
    used = (allocation.get("status") or {}).get("used")
    return None if used is None else Amounts(used.get("memoryMiB", 0), used.get("cores", 0), used.get("number", 0))


def used_json(holders: Iterable[Holder]) -> dict[str, int]:
    """Return `status.used` for these holders."""
    return amounts_json(total(holder.share.amounts for holder in holders))


def pods_column(holders: Iterable[Holder]) -> str:
    """Return the holders in one line of bounded length: "default/a, default/b +3"."""
    names = [holder.title for holder in holders]
    rest = f" +{len(names) - PODS_NAMED}" if len(names) > PODS_NAMED else ""
    named = ", ".join(names[:PODS_NAMED])
    room = PODS_LENGTH - len(rest)
    return (named if len(named) <= room else named[: room - 1] + "…") + rest


def _cordoned(annotations: Mapping[str, str] | None) -> str:
    if not annotations:
        return ""
    found = [annotations[name] for name in (CORDON_ANNOTATION, NODE_CORDON_ANNOTATION) if name in annotations]
    return "; ".join(dict.fromkeys(reason or "by a person, without a reason" for reason in found))


def cordoned_at_s(cordoned: str) -> float | None:
    """Return when a card was cordoned, in Unix seconds, by the oldest of its marks that say when; None if none does."""
    found = []
    for text in _CORDON_TIMES.findall(cordoned):
        with suppress(ValueError):  # a 13th month
            found.append(datetime.strptime(text, CORDON_TIME).replace(tzinfo=UTC).timestamp())
    return min(found, default=None)


def _claim(uuid: str, entry: Mapping[str, Any]) -> Claim:
    reserved = read_holder(uuid, {**entry, "state": HolderState.RESERVED})
    return Claim(reserved, entry["cards"], tuple(map(intern, entry["victims"])))


def read_holder(uuid: str, entry: Mapping[str, Any]) -> Holder:
    """Return a holder of a card from an element of `status.holders`. Raises KeyError, TypeError and ValueError."""
    return Holder(
        pod=Pod(
            intern(entry["podUID"]),
            intern(entry["namespace"]),
            intern(entry["pod"]),
            entry["priority"],
            entry.get("graceSeconds", DEFAULT_GRACE_S),
            _read_charge(entry) if "since" in entry else NO_CHARGE,
        ),
        share=Share(
            uuid=uuid,
            amounts=_amounts(entry["memoryMiB"], entry["cores"], entry["number"]),
            exclusive=entry["exclusive"],
            containers=tuple(map(_container, entry["containers"])),
        ),
        state=HolderState(entry["state"]),
        deadline=entry.get("deadline"),
        attempt=entry.get("attempt") or "",
        seat=_seat(entry["namespace"], entry["seat"]) if "seat" in entry else None,
        since=entry.get("since") or "",
        waited_s=entry.get("waitedSeconds") or 0,
        wasted_before_ms=entry.get("wastedBefore") or 0,
    )


def _seat(namespace: str, entry: Mapping[str, Any]) -> StoredSeat:
    owner = SeatOwner(SeatFor(entry["kind"]), intern(namespace), intern(entry["name"]), entry["uid"])
    host = HostAmounts(entry.get("cpuMilli", 0), entry.get("memoryMiB", 0))
    return StoredSeat(owner, entry["member"], entry["cards"], host)


def _container(entry: Mapping[str, Any]) -> ContainerShare:
    claim = entry.get("claim")
    if claim is None:
        return _container_share(entry["name"], entry["memoryMiB"], entry["cores"])
    ref = ClaimRef(claim["name"], claim["uid"], bool(claim.get("shared")))
    return ContainerShare(entry["name"], entry["memoryMiB"], entry["cores"], ref)


def _misfit(entry: Mapping[str, Any]) -> Misfit:
    return Misfit(
        pod=Pod(entry["podUID"], entry["namespace"], entry["pod"]),
        amounts=Amounts(entry["memoryMiB"], entry["cores"], entry["number"]),
        why=entry["why"],
    )
