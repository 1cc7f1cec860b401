"""The scheduler extender's JSON, version v1.

Source: k8s.io/kube-scheduler/extender/v1. Its types carry no JSON tags, so the outer keys are Go's field names.

kube-scheduler sends its extenders no token, so the extender knows it by a password in the extender's URL. Go's HTTP
client sends it as Basic authentication, and writes *** in its place into the errors that kube-scheduler shows in pods'
conditions: "Post http://kube-scheduler:***@127.0.0.1:8888/filter: ... connection refused". A secret in the URL's path
would be in there as it is. So is the whole URL, password included, in what kube-scheduler says of a status other than
200 (pkg/scheduler/extender.go, `send`): whoever knows the password never gets one.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import orjson

from gpuledger.model.errors import BadInput

NAMES_KEY = b',"NodeNames":['
"""The text before the names of the nodes, the last field of a request. Within a string its quotes are escaped."""

SEARCHES = 8
"""Names that are looked for in the text, before it is decoded: that takes as long as about sixteen of them."""


@dataclass(frozen=True, slots=True)
class FilterArguments:
    """A pod and the nodes that kube-scheduler would accept for it."""

    pod: Mapping[str, Any]
    node_names: Collection[str]
    pod_bytes: int = 0
    """How long the pod is as JSON, or a little less."""
    is_first_look: bool = False
    """Whether it is known that kube-scheduler asks again, about all nodes, if these are refused."""

    @property
    def pod_uid(self) -> str:
        """The pod's UID."""
        return str((self.pod.get("metadata") or {}).get("uid"))


class NodeNames(Collection[str]):
    """The names in a request, decoded when they have to be.

    kube-scheduler names all nodes in each request, every time in another order. Mostly one thing alone is asked of
    them: whether the best node is among them. To make a set of 5,000 takes longer than all else that a Filter does.
    """

    def __init__(self, text: bytes, begin: int) -> None:
        self._text = text
        self._begin = begin  # of the JSON list, which ends before the last byte of the text
        self._searches = 0
        self._list: list[str] | None = None
        self._set: frozenset[str] | None = None

    def __contains__(self, name: object) -> bool:
        if self._set is None and self._searches < SEARCHES:
            self._searches += 1
            return self._text.find(f'"{name}"'.encode(), self._begin) >= 0
        if self._set is None:
            self._set = frozenset(self._names())
        return name in self._set

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def _names(self) -> list[str]:
        if self._list is None:
            self._list = _json(memoryview(self._text)[self._begin : -1])
        return self._list


@dataclass(frozen=True, slots=True)
class BindArguments:
    """A pod that is to be bound to a node."""

    uid: str
    namespace: str
    name: str
    node_name: str


@dataclass(frozen=True, slots=True)
class PreemptArguments:
    """A pod, and whom kube-scheduler would evict for it on each node."""

    pod: Mapping[str, Any]
    victims: Mapping[str, tuple[str, ...]]
    """Node name -> UIDs of the victims."""
    violations: Mapping[str, int]
    """Node name -> how many of them a PodDisruptionBudget protects."""


def filter_arguments(text: bytes) -> FilterArguments:
    """Read a filter or prioritize request. Raises BadInput if it is no JSON, or has no pod or no node names."""
    begin = text.find(NAMES_KEY)
    if begin >= 0 and text.endswith(b"]}"):
        try:
            pod = orjson.loads(text[:begin] + b"}")["Pod"]
        except (orjson.JSONDecodeError, KeyError):
            pod = None
        if isinstance(pod, dict):
            return FilterArguments(pod, NodeNames(text, begin + len(NAMES_KEY) - 1), begin)
    body = _json(text)
    pod = body.get("Pod") if isinstance(body, dict) else None
    names = body.get("NodeNames") if isinstance(body, dict) else None
    if not isinstance(pod, dict) or not isinstance(names, list):
        raise BadInput("the request has no Pod or no NodeNames: set nodeCacheCapable: true for this extender")
    return FilterArguments(pod, names, len(orjson.dumps(pod)))


def preempt_arguments(text: bytes) -> PreemptArguments:
    """Read a preempt request, with victims by their UIDs or as whole pods.

    Raises BadInput if it is no JSON, or has no pod or no victims.
    """
    body = _json(text)
    try:
        nodes = body.get("NodeNameToMetaVictims") or {}
        victims = {name: tuple(pod["UID"] for pod in _pods(found)) for name, found in nodes.items()}
        if not nodes:
            nodes = body["NodeNameToVictims"]
            victims = {name: tuple(pod["metadata"]["uid"] for pod in _pods(found)) for name, found in nodes.items()}
        violations = {name: int((found or {}).get("NumPDBViolations") or 0) for name, found in nodes.items()}
        if not isinstance(body["Pod"], dict):
            raise TypeError("a Pod")
        return PreemptArguments(body["Pod"], victims, violations)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadInput(f"the preempt request has no Pod, or no victims that can be read: {error!r}") from error


def _pods(victims: Mapping[str, Any] | None) -> list[Any]:
    return list((victims or {}).get("Pods") or ())


def preempt_answer(victims: Mapping[str, Collection[str]], violations: Mapping[str, int]) -> dict[str, Any]:
    """Return on which nodes these victims make room for the pod. The others are no candidates."""
    return {
        "NodeNameToMetaVictims": {
            name: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": violations.get(name, 0)}
            for name, uids in victims.items()
        }
    }


def bind_arguments(text: bytes) -> BindArguments:
    """Read a bind request. Raises BadInput if it is no JSON, or something is missing."""
    body = _json(text)
    try:
        return BindArguments(body["PodUID"], body["PodNamespace"], body["PodName"], body["Node"])
    except (KeyError, TypeError) as error:
        raise BadInput(f"the bind request lacks {error}") from error


def _json(text: bytes | memoryview) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadInput(f"the request is not JSON: {error}") from error


def filter_answer(
    node_names: Collection[str], refused: Mapping[str, str], short_of_room: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the nodes that fit, and why the others do not.

    Refused nodes are "unresolvable": up to Kubernetes 1.37 kube-scheduler's own preemption can't see cards, and would
    look for victims on these nodes in vain. A later one asks for nodes that are only short of room.
    """
    return {
        "Nodes": None,
        "NodeNames": list(node_names),
        "FailedNodes": _without_percent(short_of_room or {}),
        "FailedAndUnresolvableNodes": _without_percent(refused),
        "Error": "",
    }


def _without_percent(refused: Mapping[str, str]) -> Mapping[str, str]:
    """Spell percent signs out, such as in a user's own words: to the scheduler the text of an event is a format."""
    if any("%" in text for text in set(refused.values())):
        return {name: text.replace("%", " percent") for name, text in refused.items()}
    return refused


def filter_error(message: str) -> dict[str, Any]:
    """Fail the pod's scheduling attempt: kube-scheduler tries again soon, with back-off."""
    return {"Nodes": None, "NodeNames": None, "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": message}


def priorities(node_names: Collection[str]) -> list[dict[str, Any]]:
    """Score nodes by their place in the list, the first is best. Scores of an extender go from 0 to 10.

    kube-scheduler multiplies them by 10 and adds the scores in-tree, each 0 to 100 times a weight of 1 to 3: a step
    of ours decides among nodes that are equal there, and weighs less than any preference of the pod.
    """
    return [{"Host": name, "Score": max(0, 10 - place)} for place, name in enumerate(node_names)]


def bind_answer(error: str = "") -> dict[str, str]:
    """Answer a bind request; an empty error means that the pod is bound."""
    return {"Error": error}


USER = "kube-scheduler"


def url_with(url: str, secret: str) -> str:
    """Return an extender's URL with the secret; without one, as it is."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{USER}:{secret}@{parts.netloc}")) if secret else url


def url_without(url: str) -> str:
    """Return the URL of an extender without a secret."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def authorization(secret: str) -> str:
    """Return the header with which a client proves that it knows the secret."""
    return f"Basic {b64encode(f'{USER}:{secret}'.encode()).decode()}" if secret else ""
