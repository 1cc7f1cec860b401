"""Checks of the admission policies, and of the webhook that replaces them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpuledger.doctor.compare import differences
from gpuledger.doctor.facts import Facts, Json, Release, known
from gpuledger.doctor.finding import Finding
from gpuledger.doctor.finding_kind import FindingKind
from gpuledger.doctor.objects import name_of, some_of

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
    fills_in = any(kind.startswith("Mutating") for kind, _ in stored) or "MutatingWebhookConfiguration" in webhooks
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
    """Return what `gpuledger admission-policies --kind` calls it."""
    if name_of(policy) in WITH_AGENTS:
        return "agents"
    return "mutating" if policy["kind"].startswith("Mutating") else "validating"
