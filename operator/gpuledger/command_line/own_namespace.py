"""`explain`, `report` and `history` for people who may work in one namespace, and may not reach the operator's pods.

First the operator is asked through its Service, with a token of the namespace (docs/kubectl-gpuledger.md, Developers).
Where the account may not do that, either, the pod itself tells what was written into it, and Events what happened.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from operator import itemgetter

from gpuledger.command_line.cluster_access import ClusterAccess
from gpuledger.command_line.objects import pod_json as shares_told
from gpuledger.command_line.top.teams import asks_for_cards
from gpuledger.formats.annotations import DEVICES_ANNOTATION
from gpuledger.formats.kubernetes.gang import described, gang_name_of, gang_of
from gpuledger.formats.kubernetes.other import (
    ALLOCATED,
    LEASE_NAME,
    LEASE_NAMESPACE,
    PORT_NAME,
    SERVICE,
    TOKEN_HEADER,
    condition_of,
    token_request,
)
from gpuledger.formats.kubernetes.pod import bound_node, created_at, is_finished, pod_identity, scheduler_says
from gpuledger.formats.kubernetes.workload import GROUP, queue_of
from gpuledger.model.errors import ApiError, BadInput, Denied, EventReason, NotFound
from gpuledger.model.gang import GangStage
from gpuledger.model.json_object import Json
from gpuledger.reports.account import Question
from gpuledger.reports.cards import pod_json
from gpuledger.reports.explanation import (
    Explanation,
    GangProgress,
    Kind,
    MemberState,
    State,
    is_named,
    workload_explanation,
)
from gpuledger.reports.records import RecordKind

TRIES = 16
"""Each reaches one of the replicas at random, and only the active one answers."""
ON_STANDBY, BUSY = 421, 429
LOOK_AGAIN_S = 0.2

ROLE = "gpuledger-developer"
TO_ASK = (
    f"your account needs Role {ROLE} in namespace {LEASE_NAMESPACE}, "
    "and `create` on serviceaccounts/token in its own, as `edit` has it"
)
TO_ALLOW = f"for each card's part in it, {TO_ASK}"


RECORD_KINDS = {
    "Scheduled": RecordKind.ASSIGNED.value,
    "FailedScheduling": RecordKind.REFUSED.value,
    EventReason.WAITING.value: RecordKind.REFUSED.value,
    EventReason.PREEMPTING.value: RecordKind.PREEMPTING.value,
    EventReason.PREEMPTED.value: RecordKind.EVICTED.value,
    EventReason.PREEMPTION_GIVEN_UP.value: RecordKind.GIVEN_UP.value,
}
"""Reason of an Event -> the kind of record that the operator has of the same; others stand for themselves."""
OF_ANY_POD = ("Scheduled", "FailedScheduling")
"""Of these, only Events of pods that ask for cards are shown."""


def events_of(cluster: ClusterAccess, question: Mapping[str, str], error: Denied) -> Json:
    """Return the Events on the pods of a namespace in the form of the operator's records. Raises ApiError.

    Raises Denied, too, where cards or nodes are asked about: of these there are none.
    """
    if "card" in question or "node" in question:
        raise Denied(f"{error}; Events of a namespace say nothing of its {'card' if 'card' in question else 'node'}s")
    namespace = question.get("namespace") or cluster.namespace()
    of_pods = {"fieldSelector": "involvedObject.kind=Pod"}
    events = cluster.begin(f"/api/v1/namespaces/{namespace}/events", of_pods)
    pods = {str(pod["metadata"]["uid"]): pod for pod in cluster.begin(f"/api/v1/namespaces/{namespace}/pods")}
    found = sorted((_record(event, pods) for event in events if _is_of_gpus(event, pods)), key=itemgetter("time"))
    wanted = [record for record in found if _is_wanted(record, question)]
    cluster.notes.append(
        "These are the namespace's Events, which Kubernetes keeps for an hour; for the operator's records, the account "
        f"needs `get` on Lease {LEASE_NAME} and `create` on pods/portforward in namespace {LEASE_NAMESPACE}."
    )
    latest = wanted[-int(question["limit"]) :]
    return {"kept": len(found), "dropped": 0, "records": latest, "byEvents": True}


def _is_of_gpus(event: Json, pods: Mapping[str, Json]) -> bool:
    if event.get("reason") in OF_ANY_POD:
        pod = pods.get(str(event["involvedObject"].get("uid")))
        return pod is not None and (
            asks_for_cards(pod) or DEVICES_ANNOTATION in (pod["metadata"].get("annotations") or {})
        )
    return event.get("reason") in set(EventReason)


def _record(event: Json, pods: Mapping[str, Json]) -> Json:
    subject, reason = event["involvedObject"], str(event.get("reason"))
    pod = pods.get(str(subject.get("uid")), {"metadata": {}})
    gang = gang_name_of(pod)
    return {
        "time": event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"],
        "kind": RECORD_KINDS.get(reason, reason),
        "namespace": subject.get("namespace"),
        "pod": subject.get("name"),
        "podUID": subject.get("uid"),
        "gang": gang.name if gang else None,
        "priority": 0,
        "node": (bound_node(pod) if pod.get("spec") and reason == "Scheduled" else "") or "",
        "cards": [],
        "text": " ".join(str(event.get("message") or "").split()),
        "alternatives": [],
    }


def _is_wanted(record: Json, question: Mapping[str, str]) -> bool:
    since_s = int(question.get("since", 0))
    if since_s and datetime.fromisoformat(record["time"]).timestamp() < since_s:
        return False
    return all(question.get(word, "") in ("", record[word] or "") for word in ("pod", "gang", "kind"))


def ask_as_developer(cluster: ClusterAccess, kind: str, namespace: str, name: str) -> Json:
    """Return the operator's explanation of a pod or gang for its namespace; its status where the account may not ask.

    Raises NotFound if there is no such pod or gang, ApiError and BadInput.
    """
    try:
        return _ask(cluster, namespace, "explain", {kind: f"{namespace}/{name}"})
    except (Denied, NotFound) as error:  # NotFound: the Service is not there, or the pod, which is found out then
        return _own_words(cluster, kind, namespace, name, error)


def report_as_developer(cluster: ClusterAccess, namespace: str, asked: Question) -> Json:
    """Return the operator's report of what a namespace held. Raises Denied, NotFound and other ApiErrors, BadInput."""
    days = asked.days
    parameters = {"namespace": namespace, "by": asked.by, "since": str(days.begin), "until": str(days.end)}
    return _ask(cluster, namespace, "report", parameters)


def _ask(cluster: ClusterAccess, namespace: str, path: str, parameters: Mapping[str, str]) -> Json:
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
    token = cluster.create(account, token_request())["status"]["token"]
    address = f"/api/v1/namespaces/{LEASE_NAMESPACE}/services/{SERVICE}:{PORT_NAME}/proxy/v1/{path}"
    why = ApiError("it was not asked")
    for _ in range(TRIES):
        try:
            return cluster.ask_service(address, parameters, {TOKEN_HEADER: token})
        except ApiError as error:
            if error.status not in (ON_STANDBY, BUSY):
                raise
            why = error
            time.sleep(LOOK_AGAIN_S)
    if why.status == BUSY:
        raise BadInput(f"the operator is busy with others' questions: retry in a moment ({why})")
    raise BadInput(f"no replica of the operator is active: look at `kubectl get pods -n {LEASE_NAMESPACE}`")


def _own_words(cluster: ClusterAccess, kind: str, namespace: str, name: str, why: ApiError) -> Json:
    """Return what is written into its status in the form of an explanation."""
    of_kind = {"gang": _of_members, "workload": _of_workload}.get(kind, _of_pod)
    text = f"this is what its own status says, because the operator can't be asked: {why}; {TO_ALLOW}"
    return replace(of_kind(cluster, namespace, name), warnings=(text,)).json()


def _of_pod(cluster: ClusterAccess, namespace: str, name: str) -> Explanation:
    pod = cluster.read(f"/api/v1/namespaces/{namespace}/pods/{name}")
    node, words = bound_node(pod), scheduler_says(pod)
    state = State.ENDED if is_finished(pod) else State.PLACED if node else State.WAITING
    summary = "has ended" if state is State.ENDED else f"is bound to {node}{_told(pod, namespace)}"
    if state is State.WAITING:
        summary = _said(pod) or words or "kube-scheduler has not said anything of it yet"
    return Explanation.of_pod(pod_identity(pod), state, summary, since=created_at(pod), scheduler_says=words)


def _told(pod: Json, namespace: str) -> str:
    cards = [f"{each['card']} ({each['memoryMiB']:,} MiB)" for each in shares_told(pod, namespace, None)["shares"]]
    return f", by its annotation with {', '.join(cards)}" if cards else ""


def _of_workload(cluster: ClusterAccess, namespace: str, name: str) -> Explanation:
    for found in cluster.begin(f"/apis/{GROUP}/namespaces/{namespace}/workloads"):
        if is_named(found, name):
            return workload_explanation(found)
    raise NotFound(f"namespace {namespace} has no workload of Kueue, and no job with one, called {name!r}", 404)


def _of_members(cluster: ClusterAccess, namespace: str, name: str) -> Explanation:
    named = [(gang_name_of(pod), pod) for pod in cluster.begin(f"/api/v1/namespaces/{namespace}/pods")]
    gang = min((found for found, _ in named if found and found.name == name), default=None)
    pods = [pod for found, pod in named if found and found == gang and not is_finished(pod)]
    if gang is None:
        raise NotFound(f"no pod of namespace {namespace} is of a gang {name!r}", 404)
    running, waiting = [pod for pod in pods if bound_node(pod)], [pod for pod in pods if not bound_node(pod)]
    minimum = max(map(_minimum, pods), default=0)
    stage = GangStage.RUNNING if len(running) >= (minimum or len(pods)) else GangStage.WAITING
    if len(pods) < minimum:
        stage = GangStage.INCOMPLETE
    enough = f" of {minimum}" if minimum else ""  # else a PodGroup says it
    summary = f"gang {name}: {len(running)}{enough} members run, {len(waiting)} wait"
    if stage is not GangStage.RUNNING:
        summary = next(filter(None, map(_said, waiting)), summary)
    progress = GangProgress(
        state=stage,
        minimum=minimum,
        needed=max(minimum - len(running), 0),
        not_created=max(minimum - len(pods), 0),
        running=len(running),
        waiting=len(waiting),
        pods=[_member(pod, "running") for pod in running] + [_member(pod, "waiting") for pod in waiting],
    )
    since = min(map(created_at, waiting), default=None)
    priority = max((pod_identity(pod).priority for pod in waiting), default=0)
    more: Json = {"gang": name, "gang_words": described(gang), "since": since, "priority": priority}
    return Explanation(Kind.GANG, namespace, name, stage, summary, members=progress, **more)


def _member(pod: Json, state: str) -> MemberState:
    return MemberState(pod["metadata"]["name"], pod["metadata"]["uid"], state, bound_node(pod))


def waiting_by_their_status(cluster: ClusterAccess, namespace: str) -> list[Json]:
    """Return the pods of a namespace, or of all, that wait by what the operator has written into them."""
    where = f"/namespaces/{namespace}" if namespace else ""
    found = []
    for pod in cluster.begin(f"/api/v1{where}/pods"):
        if bound_node(pod) or is_finished(pod) or not _said(pod):
            continue
        identity, gang = pod_identity(pod), gang_name_of(pod)
        word = (condition_of(pod, ALLOCATED) or {}).get("reason") or "waiting"
        reason = {"reason": word, "text": _said(pod), "nodes": 0}
        found.append(
            {
                **pod_json(identity),
                "gang": gang.name if gang else None,
                "queue": queue_of(pod) or None,
                "priority": identity.priority,
                "since": created_at(pod),
                "lastTried": None,
                "request": None,
                "reasons": [reason],
            }
        )
    return found


def _said(pod: Json) -> str:
    """Return what the operator has written into a pod's condition."""
    return str((condition_of(pod, ALLOCATED) or {}).get("message") or "")


def _minimum(pod: Json) -> int:
    try:
        gang = gang_of(pod)
    except BadInput:
        return 0
    return gang.minimum if gang else 0
