"""Checks of the API server, the custom resource, policies and webhook, permissions of our accounts, and clocks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from gpuledger.doctor.facts import (
    BY_SETTING,
    OVER_HAMI,
    AccountAccess,
    Facts,
    Release,
    differences,
    known,
    name_of,
    some_of,
    time_of,
)
from gpuledger.doctor.kinds import Finding, FindingKind
from gpuledger.formats.custom_resource.crd import custom_resource_definition
from gpuledger.formats.custom_resource.stored_card import GROUP, KIND, PLURAL, VERSION
from gpuledger.formats.kubernetes.node import node_facts
from gpuledger.model.json_object import Json
from gpuledger.model.node import Dialect

OLDEST = (1, 30)
"""Policies on requests, and the conditions of webhooks, are in every server from this one on: docs/admission.md."""

ASKS_EXTENDERS = (1, 38)
"""From this version on kube-scheduler asks an extender for victims: docs/preemption.md."""

CRD = f"CustomResourceDefinition {PLURAL}.{GROUP}"
SHOWN = 3
"""Number of differences to name; one remedy fixes them all."""


def check_server_version(facts: Facts) -> Iterator[Finding]:
    """Yield whether the server lacks what the program cannot do without."""
    version = known(facts.version)
    if version < OLDEST:
        text = f"it is Kubernetes {_spelled(version)}; policies and webhook conditions need {_spelled(OLDEST)}"
        yield Finding.of(FindingKind.SERVER_TOO_OLD, "API server", text)


def check_preemption(facts: Facts) -> Iterator[Finding]:
    """Yield whether evicting is left to a kube-scheduler that does not do it."""
    version, release = known(facts.version), known(facts.release)
    if release.preemption == "native" and version < ASKS_EXTENDERS:
        text = f"preemption is native, but it is Kubernetes {_spelled(version)}: no pod is evicted for cards"
        yield Finding.of(FindingKind.NOBODY_PREEMPTS, "settings", text)


def check_scheduler_version(facts: Facts) -> Iterator[Finding]:
    """Yield whether the Deployment's kube-scheduler is of a version that Kubernetes does not support here."""
    major, minor = known(facts.version)
    deployment = known(facts.deployment)
    if deployment is None:
        return
    for container in deployment["spec"]["template"]["spec"]["containers"]:
        tag = re.search(r":v(\d+)\.(\d+)[^/]*$", container.get("image", ""))
        if container["name"] == "kube-scheduler" and tag:
            scheduler = int(tag[1]), int(tag[2])
            if not (major, minor - 1) <= scheduler <= (major, minor):
                text = f"its kube-scheduler is {_spelled(scheduler)}, the API server {major}.{minor}"
                where = "Deployment gpuledger-system/gpuledger"
                yield Finding.of(FindingKind.SCHEDULER_VERSION, where, text, SERVER=f"{major}.{minor}.x")


def check_crd(facts: Facts) -> Iterator[Finding]:
    """Yield whether the ledger's resource is there, is that of this release, and is served."""
    crd = known(facts.crd)
    if crd is None:
        yield Finding.of(FindingKind.CRD_MISSING, CRD, f"there is no {KIND}, so there is no ledger")
        return
    wanted, found = _what_matters(custom_resource_definition()), _what_matters(crd)
    different = list(islice(differences(wanted, found), SHOWN + 1))
    if different:
        rest = ", ..." if len(different) > SHOWN else ""
        text = f"not as in this release: {', '.join(_shortened(each) for each in different[:SHOWN])}{rest}"
        yield Finding.of(FindingKind.CRD_DIFFERS, CRD, text)
    conditions = {each["type"]: each for each in (crd.get("status") or {}).get("conditions") or ()}
    for name, wanted_status in (("NamesAccepted", "True"), ("Established", "True"), ("Terminating", "False")):
        condition = conditions.get(name, {"status": "False" if name == "Terminating" else "Unknown"})
        if condition["status"] != wanted_status:
            text = f"condition {name} is {condition['status']}: {condition.get('message') or 'no reason is given'}"
            yield Finding.of(FindingKind.CRD_NOT_SERVED, CRD, text)
            return


def _what_matters(crd: Json) -> Json:
    """Return the parts that decide about objects: not the columns that kubectl prints."""
    spec = crd["spec"]
    versions = {each["name"]: each for each in spec["versions"]}
    ours = versions.get(VERSION, {})
    parts = ("schema", "served", "storage", "subresources", "selectableFields")
    return {"scope": {"is": spec["scope"]}, VERSION: {part: ours.get(part) for part in parts}}


def _shortened(path: str) -> str:
    return path.replace(f"{VERSION}.schema.openAPIV3Schema.", "").replace("properties.", "")


def _spelled(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


MUTATING_FROM = (1, 36)
"""Before this version, mutating policies are not stable."""

WITH_AGENTS = ("gpuledger-agents", "gpuledger-agent-slices")
"""The policies that come with the manifests, whether or not an administrator wants the others."""

Stored = Mapping[tuple[str, str], Json]
"""(Kind, name) -> what the API server has."""


def check_policies(facts: Facts) -> Iterator[Finding]:
    """Yield policies that are missing, without effect, or not those of the settings."""
    release, stored = known(facts.release), known(facts.policies)
    webhooks = {each["kind"] for each in known(facts.webhooks)}
    version = known(facts.version)
    wanted = [each for each in release.policies if not each["kind"].endswith("Binding")]
    if version < MUTATING_FROM or "MutatingWebhookConfiguration" in webhooks:
        wanted = [each for each in wanted if _key(each) in stored or not each["kind"].startswith("Mutating")]
    chosen = [each for each in wanted if name_of(each) not in WITH_AGENTS]
    if not webhooks and not any(_key(each) in stored for each in chosen):
        yield Finding.of(FindingKind.POLICIES_ABSENT, "API server", "there are no admission policies, and no webhook")
        chosen = []
    elif not any(_key(each) in stored for each in chosen):
        chosen = []  # the webhook stands in for them
    agents = [each for each in wanted if name_of(each) in WITH_AGENTS]
    for policy in (*chosen, *agents):
        yield from _compare(policy, release, stored)


def _compare(wanted: Json, release: Release, stored: Stored) -> Iterator[Finding]:
    kind, name = _key(wanted)
    where, short = f"{kind} {name}", _short_kind(wanted)
    found = stored.get((kind, name))
    if found is None:
        yield Finding.of(FindingKind.POLICY_MISSING, where, "it is not there", KIND=short)
        return
    binding, its_key = stored.get((f"{kind}Binding", name)), (f"{kind}Binding", name)
    wanted_binding = next(each for each in release.policies if _key(each) == its_key)
    if problem := _unbound(binding, wanted_binding):
        yield Finding.of(FindingKind.POLICY_UNBOUND, where, problem, KIND=short)
        binding = None
    if problem := _other_names(wanted, found, release):
        yield Finding.of(FindingKind.POLICY_NAMES, where, problem)
    elif different := _different(wanted, found, ("reinvocationPolicy",)):
        yield Finding.of(FindingKind.POLICY_DIFFERS, where, f"not as generated: {some_of(different)}")
    if binding is not None and (different := _different(wanted_binding, binding)):
        yield Finding.of(FindingKind.POLICY_DIFFERS, f"{kind}Binding {name}", f"not as generated: {some_of(different)}")


def _unbound(binding: Json | None, wanted: Json) -> str:
    kind, name = wanted["kind"], name_of(wanted)
    if binding is None:
        return f"it has no {kind} named {name}, so it does nothing"
    if binding["spec"].get("policyName") != name:
        return f"its binding is for the policy {binding['spec'].get('policyName')}"
    actions = binding["spec"].get("validationActions") or []
    if missing := [each for each in wanted["spec"].get("validationActions") or () if each not in actions]:
        does_not = "deny" if missing == ["Deny"] else "warn"
        return f"its binding does not {does_not}: validationActions are {', '.join(actions) or 'none'}"
    return ""


def check_defaults(facts: Facts) -> Iterator[Finding]:
    """Yield whether nothing fills pods in, where something else is there: then users have to know."""
    release, stored = known(facts.release), known(facts.policies)
    webhooks = {each["kind"] for each in known(facts.webhooks)}
    ours = {_key(each) for each in release.policies if name_of(each) not in WITH_AGENTS}
    fills_in = ("MutatingAdmissionPolicy", "gpuledger-pods") in stored or "MutatingWebhookConfiguration" in webhooks
    if known(facts.version) < MUTATING_FROM and not fills_in and (webhooks or ours & stored.keys()):
        major, minor = known(facts.version)
        text = (
            f"Kubernetes {major}.{minor} has no mutating policies, and gpuledger's mutating webhook is not configured"
        )
        yield Finding.of(FindingKind.NO_DEFAULTS, "API server", text)


def check_webhook(facts: Facts) -> Iterator[Finding]:
    """Yield whether the webhook that the API server calls is served, and concerns the right pods."""
    release = known(facts.release)
    wanted = {each["kind"]: each for each in release.webhooks}
    for found in known(facts.webhooks):
        where = f"{found['kind']} {name_of(found)}"
        if not release.webhook_port:
            text = "pods with GPUs are sent to a webhook, but webhook_port is 0 in the settings"
            yield Finding.of(FindingKind.WEBHOOK_UNSERVED, where, text)
        conditions = [each.get("matchConditions") for each in found.get("webhooks") or ()]
        if problem := _other_names(
            {"c": [w["matchConditions"] for w in wanted[found["kind"]]["webhooks"]]}, {"c": conditions}, release
        ):
            remedy = "gpuledger webhook-config --settings FILE --ca-file tls.crt | kubectl apply -f -"
            yield Finding.of(FindingKind.POLICY_NAMES, where, problem, remedy)


def _other_names(wanted: Any, found: Any, release: Release) -> str:
    """Return which names of resources are missing in a policy, and which are there in their place."""
    ours = set(release.dialects.resources())
    should, are = _names(wanted), _names(found)
    missing, others = sorted((should - are) & ours), sorted(are - should)
    if not missing:
        return ""
    instead = f", in place of it {some_of(others)}" if others else ""
    return f"it does not have {some_of(missing)}, which the settings have{instead}"


def _names(found: Any) -> set[str]:
    """Return every text in quotes that could be the name of a resource."""
    if isinstance(found, dict):
        return {name for each in found.values() for name in _names(each)}
    if isinstance(found, list):
        return {name for each in found for name in _names(each)}
    return set(re.findall(r"[\"']([a-zA-Z0-9.-]+/[A-Za-z0-9._-]+)[\"']", found)) if isinstance(found, str) else set()


def _different(wanted: Json, found: Json, defaulted: tuple[str, ...] = ()) -> list[str]:
    return [each for each in differences(wanted["spec"], found["spec"]) if each not in defaulted]


def _key(policy: Json) -> tuple[str, str]:
    return policy["kind"], name_of(policy)


def _short_kind(policy: Json) -> str:
    """Return its kind for `gpuledger admission-policies --kind`."""
    if name_of(policy) in WITH_AGENTS:
        return "agents"
    return "mutating" if policy["kind"].startswith("Mutating") else "validating"


SHOWN_RIGHTS = 6
"""Number of permissions to name; one remedy fixes them all."""


def check_operator_account(facts: Facts) -> Iterator[Finding]:
    """Yield each thing that the operator has to do and may not."""
    access = known(facts.operator_access)
    needed = [each for each in access.denied if each not in BY_SETTING]
    yield from _denials(FindingKind.OPERATOR_PERMISSION, AccountAccess(access.account, tuple(needed)))


def check_agent_account(facts: Facts) -> Iterator[Finding]:
    """Yield each thing that the node agents have to do and may not."""
    yield from _denials(FindingKind.AGENT_PERMISSION, known(facts.agent_access))


def _denials(kind: FindingKind, access: AccountAccess) -> Iterator[Finding]:
    """Yield one finding for what our own roles grant, and one for each role of Kubernetes' own."""
    lacking: dict[str, list[str]] = {}  # role of Kubernetes' own, or empty -> what it would grant
    for permission in access.denied:
        lacking.setdefault(permission.role, []).append(str(permission))
    for role, permissions in lacking.items():
        remedy = f"kubectl apply -k manifests/, which binds the role {role}" if role else ""
        yield Finding.of(kind, access.account, f"it may not {some_of(permissions, SHOWN_RIGHTS)}", remedy)


def check_over_hami(facts: Facts) -> Iterator[Finding]:
    """Yield whether there are nodes with HAMi's plugin, and the operator can't set the lock that it needs."""
    dialects, access = known(facts.release).dialects, known(facts.operator_access)
    if OVER_HAMI not in access.denied:
        return
    for node in known(facts.nodes):
        offer = node_facts(node, dialects).offer
        if offer is not None and offer.dialect is Dialect.HAMI:
            text = f"node {name_of(node)} runs HAMi's device plugin, and the account may not {OVER_HAMI}"
            yield Finding.of(FindingKind.OVER_HAMI_PERMISSION, access.account, text)
            return


SKEW = timedelta(seconds=5)
"""The API server tells its time to the second, and an answer takes a while."""

SILENT = timedelta(seconds=60)
"""A kubelet renews its Lease every ten seconds, and after 40 s of silence its node is not ready."""


def check_clock_here(facts: Facts) -> Iterator[Finding]:
    """Yield whether our own clock differs from the API server's."""
    skew = facts.local_time - known(facts.server_time)
    if abs(skew) > SKEW:
        yield Finding.of(FindingKind.CLOCK_SKEW_HERE, "this machine", f"its clock is {_offset(skew)} the API server's")


def check_clocks_of_nodes(facts: Facts) -> Iterator[Finding]:
    """Yield nodes whose kubelets live, and write of another time than the API server's."""
    now = known(facts.server_time)
    ready = {name_of(node): node for node in known(facts.nodes) if _is_ready(node)}
    for lease in known(facts.node_leases):
        node = ready.get(name_of(lease))
        renewed = time_of((lease.get("spec") or {}).get("renewTime"))
        if node is None or renewed is None:
            continue
        beats = [renewed, *_heartbeats(node)]
        ahead, behind = max(beats) - now, now - max(beats)
        if ahead > SKEW or behind > SILENT:  # it is ready: its kubelet has renewed the Lease within 40 s
            skew = ahead if ahead > SKEW else -behind
            text = f"its clock is about {_offset(skew)} the API server's, by the Lease that its kubelet renews"
            yield Finding.of(FindingKind.CLOCK_SKEW_NODE, f"node {name_of(node)}", text, NODE=name_of(node))


def _is_ready(node: dict[str, Any]) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _heartbeats(node: dict[str, Any]) -> list[datetime]:
    conditions = (node.get("status") or {}).get("conditions") or ()
    times = (time_of(each.get("lastHeartbeatTime")) for each in conditions)
    return [each for each in times if each is not None]


def _offset(skew: timedelta) -> str:
    return f"{abs(skew).total_seconds():.0f} s {'ahead of' if skew > timedelta(0) else 'behind'}"
