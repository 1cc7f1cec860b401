"""Annotations of gpuledger about single pods. The first of them names the cards of a pod's containers, for its agent.

Agents report on their Nodes which pods have ended without a report of their kubelet, and whether any process runs:

    {"6d0c...": "runs 8f2e...", "91ab...": "ended"}

A UID that is not named means nothing. Where the annotation is missing, no agent of the node answers such questions.
After `runs` come ids of containers, for an agent that is restarted: where the kubelet keeps no control groups for pods,
it knows their processes by these alone.

The values of those that the operator writes to pods have no meaning: that they change is the point.

A pod may ask for a limit above its share: what it may use of a card while nobody else needs it. The share is what the
ledger counts, and what the pod is guaranteed; the limit is counted nowhere. It is in MiB of each card, of all
containers (`16000`) or of some (`main=16000,tools=4000`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import orjson

from gpuledger.formats.custom_resource.stored_card import MAX_CORES, MAX_MEMORY_MIB, UUID_PATTERN
from gpuledger.model.errors import BadInput
from gpuledger.model.node import AnnotatedCard
from gpuledger.model.share import Share

OWN_NAMESPACE = "gpuledger-system"

STAND_IN_LABEL = "gpuledger.dev/stand-in"
"""On a stand-in, a pod that stands for a node to come: the name of its template."""

ASKED_LABEL = "kueue.x-k8s.io/queue-name"
"""The LocalQueue that a user names."""

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


WOKEN_ANNOTATION = "gpuledger.dev/woken"
"""On a pod for which room was found while it slept: kube-scheduler tries again what has changed."""

RELEASED_ANNOTATION = "gpuledger.dev/released"
"""On a pod whose shares were taken back: a Binding that names its resourceVersion of before fails."""

MEMORY_LIMIT_ANNOTATION = "gpuledger.dev/memory-limit"

ALL = ""
"""In place of a container's name: those that are not named."""

LONGEST_TEXT = 4096

_PART = re.compile(r"(?:([a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)=)?([1-9][0-9]{0,8})")


def memory_limits(pod: Mapping[str, Any]) -> dict[str, int]:
    """Return the limits that a pod wishes, in MiB of each card: name of a container, or `ALL` -> limit.

    Empty if it wishes none. Raises BadInput.
    """
    text = str((pod["metadata"].get("annotations") or {}).get(MEMORY_LIMIT_ANNOTATION, ""))
    if not text.strip():
        return {}
    parts = text.replace(" ", "").split(",") if len(text) <= LONGEST_TEXT else [""]
    found = {}
    for part in parts:
        match = _PART.fullmatch(part)
        if match is None or (match[1] or ALL) in found:
            raise BadInput(
                f"{MEMORY_LIMIT_ANNOTATION}: {text[:64]!r} is neither MiB, such as 16000, nor such as "
                "main=16000,tools=4000 with each container once"
            )
        found[match[1] or ALL] = int(match[2])
    return found


def limit_of(container: str, limits: Mapping[str, int], share_mib: int, card_mib: int) -> int:
    """Return a container's limit on a card: at least its share, and at most what the card has."""
    return max(share_mib, min(limits.get(container, limits.get(ALL, share_mib)), card_mib))


ON_FAILURE_ANNOTATION = "gpuledger.dev/on-card-failure"
"""On a pod: `stay`, `leave`, or how long it stays on a card that has failed, such as 300s."""

_WAIT = re.compile(r"([0-9]{1,6})([smh])")
_UNITS_S = {"s": 1, "m": 60, "h": 3600}


def wait_on_failure_s(pod: Mapping[str, Any]) -> float | None:
    """Return how long a pod wishes to stay on a card that has failed: infinity for `stay`, None if it does not say.

    Raises BadInput.
    """
    text = str((pod["metadata"].get("annotations") or {}).get(ON_FAILURE_ANNOTATION, "")).strip()
    if not text:
        return None
    found = _WAIT.fullmatch(text)
    if text in ("stay", "leave"):
        return math.inf if text == "stay" else 0.0
    if found is None:
        raise BadInput(f"{ON_FAILURE_ANNOTATION}: {text[:64]!r} is neither stay nor leave, nor a time such as 300s")
    return float(found[1]) * _UNITS_S[found[2]]


DEVICES_ANNOTATION = "gpuledger.dev/devices"
"""On a bound pod: JSON {container: [{uuid, memoryMiB, cores}]}, cards in the order of their index."""

MAX_UUID_LENGTH = 253


def devices_annotation(shares: Iterable[Share]) -> str:
    """Return the value of the annotation for a pod's shares, given in the order of the cards' index."""
    devices: dict[str, list[dict[str, object]]] = {}
    for share in shares:
        for container in share.containers:
            devices.setdefault(container.name, []).append(
                {"uuid": share.uuid, "memoryMiB": container.memory_mib, "cores": container.cores}
            )
    return orjson.dumps(devices).decode()


def read_devices(text: str) -> tuple[AnnotatedCard, ...]:
    """Return the cards in the annotation, in its order. Raises BadInput for any other content."""
    try:
        devices = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadInput(f"annotation {DEVICES_ANNOTATION} is not JSON: {error}") from None
    if not isinstance(devices, dict) or not all(isinstance(cards, list) for cards in devices.values()):
        raise BadInput(f"annotation {DEVICES_ANNOTATION} does not map containers to lists of cards")
    annotated = tuple(_annotated_card(container, card) for container, cards in devices.items() for card in cards)
    if len({(card.container, card.uuid) for card in annotated}) < len(annotated):
        raise BadInput(f"annotation {DEVICES_ANNOTATION} gives a container the same card twice")
    return annotated


def _annotated_card(container: str, card: object) -> AnnotatedCard:
    where = f"annotation {DEVICES_ANNOTATION}, container {container[:63]!r}"
    if not isinstance(card, dict):
        raise BadInput(f"{where}: an entry is no card")
    uuid = checked_uuid(card.get("uuid"), where)
    memory_mib = checked_amount(card.get("memoryMiB"), MAX_MEMORY_MIB, f"{where}, card {uuid}: memoryMiB")
    return AnnotatedCard(
        container, uuid, memory_mib, checked_amount(card.get("cores"), MAX_CORES, f"{where}, card {uuid}: cores")
    )


def checked_uuid(uuid: object, where: str) -> str:
    """Return a UUID that a person or another program wrote. Raises BadInput if it can't be one."""
    if not isinstance(uuid, str) or len(uuid) > MAX_UUID_LENGTH or not re.fullmatch(UUID_PATTERN, uuid):
        raise BadInput(f"{where}: a card has no UUID")
    return uuid


def checked_amount(amount: object, maximum: int, what: str) -> int:
    """Return an amount that a person or another program wrote. Raises BadInput if it is none, or too much."""
    # Not isinstance: a bool is an int, too.
    if type(amount) is not int or not 0 <= amount <= maximum:
        raise BadInput(f"{what} is not between 0 and {maximum}")
    return amount
