"""Sentences about an object, where `kubectl describe` shows them: Events, and a pod's condition GPUAllocated."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any

from gpuledger.model.json_object import Json
from gpuledger.model.share import Pod

MESSAGE_LENGTH = 1024
"""Kubernetes' limit."""

NAME_LENGTH = 253
DIGEST_LENGTH = 16


def node_event(node_name: str, reason: str, sentence: str, now: datetime) -> Json:
    """Return a warning about a Node. It has no namespace, so its events are in the default one."""
    # The kubelet's convention: a Node's name stands for its UID.
    return _event({"kind": "Node", "name": node_name, "uid": node_name}, "default", "Warning", reason, sentence, now)


def pod_event(pod: Pod, warning: bool, reason: str, sentence: str, now: datetime) -> Json:
    """Return a warning, or good news, about a Pod."""
    about = {"kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
    return _event(about, pod.namespace, "Warning" if warning else "Normal", reason, sentence, now)


def node_event_once(node_name: str, reason: str, sentence: str, now: datetime, key: str) -> Json:
    """Return the same under a name that only this node and key have: a second one is refused as existing."""
    event = node_event(node_name, reason, sentence, now)
    return event | {"metadata": {"name": _name(node_name, f"{node_name}/{reason}/{key}"), "namespace": "default"}}


def named_once(event: Json, pod: Pod, key: str) -> Json:
    """Return an event under a name that only this pod and key have: a second one is refused as existing."""
    return event | {
        "metadata": {"name": _name(pod.name, f"{pod.uid}/{event['reason']}/{key}"), "namespace": pod.namespace}
    }


def _name(of: str, key: str) -> str:
    digest = sha256(key.encode()).hexdigest()[:DIGEST_LENGTH]
    return f"{of[: NAME_LENGTH - DIGEST_LENGTH - 1].rstrip('.-')}.{digest}"


def _event(about: Json, namespace: str, kind: str, reason: str, sentence: str, now: datetime) -> Json:
    moment = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "gpuledger-", "namespace": namespace},
        "involvedObject": {"apiVersion": "v1", **about},
        "type": kind,
        "reason": reason,
        "message": sentence[:MESSAGE_LENGTH],
        "source": {"component": "gpuledger"},
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }


ALLOCATED = "GPUAllocated"


def condition_of(pod: Mapping[str, Any], kind: str) -> Json | None:
    """Return a condition of a pod, None if it has none of this type."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition.get("type") == kind), None)


def shortened(message: str) -> str:
    """Return a message as it is stored."""
    return message if len(message) <= MESSAGE_LENGTH else message[: MESSAGE_LENGTH - 1] + "…"


def allocated_condition(status: str, reason: str, message: str, now: str) -> Json:
    """Return the condition. `reason` is one word; `now` is RFC 3339."""
    return {
        "type": ALLOCATED,
        "status": status,
        "reason": reason,
        "message": shortened(message),
        "lastTransitionTime": now,
    }


def condition_reason(words: str) -> str:
    """Spell a reason as conditions do: `no-memory` is `NoMemory`."""
    return "".join(word.capitalize() for word in words.split("-"))
