"""The API server itself, the custom resource, and the kube-scheduler that goes with them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from gpuledger.doctor.compare import differences
from gpuledger.doctor.facts import Facts, Json, known
from gpuledger.doctor.finding import Finding
from gpuledger.doctor.finding_kind import FindingKind
from gpuledger.formats.custom_resource.crd import custom_resource_definition
from gpuledger.formats.custom_resource.resource import GROUP, KIND, PLURAL, VERSION

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
    """Return what decides about objects: not the columns that kubectl prints."""
    spec = crd["spec"]
    versions = {each["name"]: each for each in spec["versions"]}
    ours = versions.get(VERSION, {})
    parts = ("schema", "served", "storage", "subresources", "selectableFields")
    return {"scope": {"is": spec["scope"]}, VERSION: {part: ours.get(part) for part in parts}}


def _shortened(path: str) -> str:
    return path.replace(f"{VERSION}.schema.openAPIV3Schema.", "").replace("properties.", "")


def _spelled(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
