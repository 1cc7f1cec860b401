"""kube-scheduler: its questions to an extender, version v1, its configuration, and its message that no node will do.

Source: k8s.io/kube-scheduler/extender/v1. Its types carry no JSON tags, so the outer keys are Go's field names.

kube-scheduler sends its extenders no token, so the extender knows it by a password in the extender's URL. Go's HTTP
client sends it as Basic authentication, and writes *** in its place into the errors that kube-scheduler shows in pods'
conditions: "Post http://kube-scheduler:***@127.0.0.1:8888/filter: ... connection refused". A secret in the URL's path
would be in there as it is. So is the whole URL, password included, in what kube-scheduler says of a status other than
200 (pkg/scheduler/extender.go, `send`): whoever knows the password never gets one.

The configuration is rendered from the same settings that the operator runs with. Of the message, in a pod's condition,
reasons of kube-scheduler are told from those of gpuledger. Source: FitError.Error() of Kubernetes'
pkg/scheduler/framework: "0/N nodes are available: ", then either a sentence about all nodes, or "COUNT REASON" for each
reason, joined by ", "; then ". " and the result of preemption. Reasons of an extender stand among those of
kube-scheduler's own plugins, unmarked.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import orjson

from gpuledger.formats.dialects.vocabulary import HIDING, SUMS, Dialects
from gpuledger.formats.kubernetes.other import (
    LEASE_DURATION_S,
    LEASE_NAME,
    LEASE_NAMESPACE,
    RENEW_DEADLINE_S,
    RETRY_PERIOD_S,
    condition_of,
)
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import JsonMapping

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
    """A pod, and the pods that kube-scheduler would evict for it on each node."""

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
    """Return the nodes that fit, and the reasons of the others.

    Refused nodes are "unresolvable": up to Kubernetes 1.37 kube-scheduler's own preemption can't see cards, and would
    look for victims on these nodes without success. A later one asks for nodes that are only short of room.
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


PLACED_BY_US = ("NodeResourcesFit", "NodeResourcesBalancedAllocation")
"""In-tree plugins whose scores would weigh against the policy, and that no pod has asked for: emptier nodes first."""

CLAIMS_PLUGIN = "DynamicResources"
"""The in-tree plugin that would allocate pods' ResourceClaims itself."""

LONGEST_BACK_OFF_S = 10
"""Before kube-scheduler tries a pod again, at most: its own default, and said all the same, for much relies on it."""

LONGEST_BACK_OFF_OF_GROUPS_S = 1
"""The same where it tries groups as a whole: it can't be made to try one earlier, and from 1.37 on, this is multiplied
by the square root of a group's members. So one of 64 is tried within eight seconds of room."""


def scheduler_configuration(
    scheduler_names: Sequence[str],
    dialects: Dialects,
    extender_url: str,
    http_timeout_s: int,
    leader_elect: bool,
    nodes_offered: int = 1,
    native_gangs: bool = False,
    resource_claims: bool = False,
    all_drivers_name: str = "",
    gather_s: float = inf,
) -> dict[str, Any]:
    """Return a KubeSchedulerConfiguration with a profile for each name; the extender decides on their pods' cards.

    All resources are ignored by the scheduler itself, the count too: it would count slots where cards matter, and its
    preemption would evict pods for them. Where it preempts for want of CPU, it asks whether that makes room on cards,
    too. Every node is looked at, because a sample could miss the only one with room.
    Where it is offered several nodes, it scores them by what the pod itself prefers, and by the extender.
    With `resource_claims`, it leaves pods' ResourceClaims to the extender, and asks it about all pods of its profiles;
    but in the profile `all_drivers_name`, it allocates them itself, those of other drivers for good.
    `gather_s` is how long the first members of a gang that are to be bound wait for the last one.
    """
    names = [*dialects.resources(), *SUMS, HIDING]
    ignored = names if resource_claims else ()
    profiles = [
        {
            "schedulerName": name,
            "percentageOfNodesToScore": 100,
            **_profile(nodes_offered > 1, ignored, claims_too=name == all_drivers_name),
        }
        for name in scheduler_names
    ]
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {
            "leaderElect": leader_elect,
            "resourceName": LEASE_NAME,
            "resourceNamespace": LEASE_NAMESPACE,
            "leaseDuration": f"{LEASE_DURATION_S}s",
            "renewDeadline": f"{RENEW_DEADLINE_S}s",
            "retryPeriod": f"{RETRY_PERIOD_S}s",
        },
        "clientConnection": {"qps": 1000, "burst": 2000},
        "podMaxBackoffSeconds": LONGEST_BACK_OFF_OF_GROUPS_S if native_gangs else _longest_back_off_s(gather_s),
        "profiles": profiles,
        "extenders": [
            {
                "urlPrefix": extender_url,
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "preemptVerb": "preempt",
                "bindVerb": "bind",
                "weight": 1,
                "enableHTTPS": False,
                "httpTimeout": f"{http_timeout_s}s",
                "nodeCacheCapable": True,
                "ignorable": False,
                # Without names, it is asked about all pods: those with ResourceClaims name none.
                **({} if resource_claims else {"managedResources": [_managed(name) for name in names]}),
            }
        ],
    }


def _longest_back_off_s(gather_s: float) -> int:
    """Return before how many seconds a pod is tried again, at most.

    The members of a gang fail at different times, so they are tried again at different times: if they waited longer
    than the others stand in Bind, they could miss each other for ever.
    """
    return max(1, int(min(LONGEST_BACK_OFF_S, gather_s / 2)))


def _managed(name: str) -> dict[str, Any]:
    return {"name": name, "ignoredByScheduler": True}


def _profile(scores: bool, ignored: Sequence[str], claims_too: bool) -> dict[str, Any]:
    """Return the plugins of a profile.

    With `scores`, these are kept to the pods' own preferences: no default spreading either. `ignored` are the resources
    that the scheduler leaves to an extender which is asked about all pods; their claims are left to it, too, but
    with `claims_too`.
    """
    plugins: dict[str, Any] = {}
    arguments: list[dict[str, Any]] = []
    if scores:
        plugins["score"] = {"disabled": [{"name": name} for name in PLACED_BY_US]}
        spreading = {"defaultingType": "List", "defaultConstraints": []}
        arguments.append({"name": "PodTopologySpread", "args": spreading})
    if ignored:
        if not claims_too:
            plugins["multiPoint"] = {"disabled": [{"name": CLAIMS_PLUGIN}]}
        arguments.append({"name": "NodeResourcesFit", "args": {"ignoredResources": [*ignored]}})
    return {name: value for name, value in (("plugins", plugins), ("pluginConfig", arguments)) if value}


LONGEST = 16 * 1024
"""Characters of a message that are read: a condition's message can't be longer than 32 KiB."""

_COUNTED = re.compile(r"^0/(?P<nodes>\d+) nodes are available(?:: (?P<rest>.*))?$", re.DOTALL)
_REASON = re.compile(r"(?:^|, )(?P<count>\d+) (?P<text>.+?)(?=, \d+ |$)", re.DOTALL)
_END = re.compile(r"\.(?: |$)")

_OWN = re.compile(r"Insufficient |Too many pods|node\(s\) |node declared features |cannot allocate all claims")
"""How the reasons of Kubernetes' plugins begin, in all of pkg/scheduler/framework/plugins but those that refuse a pod
for all nodes at once."""

_RESOURCE = "Insufficient "

_RULES = re.compile(
    r"node\(s\) (didn't match Pod's node affinity|didn't match the requested node name|had untolerated taint"
    r"|were unschedulable)"
)
"""How reasons begin that other pods have no part in, in plugins nodeaffinity, nodename, tainttoleration and
nodeunschedulable."""

NO_NODES = "no nodes available to schedule pods"
"""kube-scheduler's message in a cluster without any node."""


@dataclass(frozen=True, slots=True)
class SchedulerWords:
    """kube-scheduler's last message about a pod."""

    own: tuple[tuple[str, int], ...] = ()
    """Its own reasons, and for how many nodes each, most first; 0: for all of them at once."""
    refused_all: bool = False
    """Whether these stand for every node, so that the operator was not asked about any."""
    gates: tuple[str, ...] = ()
    """The scheduling gates because of which it does not look at the pod at all."""

    @property
    def short_of(self) -> tuple[str, ...]:
        """Return the resources of which it found too little."""
        return tuple(text.removeprefix(_RESOURCE) for text, _ in self.own if text.startswith(_RESOURCE))

    @property
    def rules_out(self) -> bool:
        """Return whether no node takes the pod for what pod and nodes say, whichever other pods leave."""
        return bool(self.gates) or (self.refused_all and all(_RULES.match(text) for text, _ in self.own))

    @property
    def in_short(self) -> str:
        """Return its own reasons in a line: "Insufficient cpu (3), node(s) were unschedulable (1)"."""
        return ", ".join(f"{text} ({count})" if count else text for text, count in self.own)


def scheduler_words(pod: JsonMapping) -> SchedulerWords:
    """Return kube-scheduler's message in a pod's status; nothing if there is none, or it can't be read."""
    last = condition_of(pod, "PodScheduled")
    if last is None or last.get("status") != "False":
        return SchedulerWords()
    if last.get("reason") == "SchedulingGated":
        return SchedulerWords(gates=tuple(str(gate.get("name")) for gate in pod["spec"].get("schedulingGates") or ()))
    if last.get("reason") != "Unschedulable":
        return SchedulerWords()
    return read_words(str(last.get("message") or ""))


def read_words(message: str) -> SchedulerWords:
    """Return the parts of a message; nothing if it has another form."""
    if message.startswith(NO_NODES):
        return SchedulerWords(((NO_NODES, 0),), refused_all=True)
    found = _COUNTED.match(message[:LONGEST])
    if not found or not found["rest"]:
        return SchedulerWords()
    said = _END.split(found["rest"], maxsplit=1)[0]
    reasons = [(each["text"], int(each["count"])) for each in _REASON.finditer(said)]
    if not reasons:
        return SchedulerWords(((said, 0),), refused_all=True)
    own = sorted((each for each in reasons if _OWN.match(each[0])), key=lambda each: -each[1])
    return SchedulerWords(tuple(own), refused_all=len(own) == len(reasons))
