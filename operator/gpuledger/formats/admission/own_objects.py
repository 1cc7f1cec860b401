"""Rules on what our own account changes of objects that others look after: ResourceClaims, and Kueue's workloads.

operator and kube-scheduler have one account. So what kube-scheduler itself writes of claims is allowed, too.
"""

from __future__ import annotations

from typing import Any, Final

from gpuledger.formats.admission.accounts import unchanged
from gpuledger.formats.custom_resource.cel import literal
from gpuledger.formats.objects.queue import GROUP as KUEUE_VERSION
from gpuledger.formats.objects.workload import CONTROLLER
from gpuledger.formats.resource_claims.names import DRIVER, PROTECTION

Json = dict[str, Any]

OWN_CLAIMS: Final = "gpuledger-own-claims"
OWN_WORKLOADS: Final = "gpuledger-own-workloads"
OWN_CHECKS: Final = "gpuledger-own-checks"

KUEUE_GROUP: Final = KUEUE_VERSION.partition("/")[0]
WORKLOADS: Final = ("workloads", "workloads/status")
CHECKS: Final = ("admissionchecks", "admissionchecks/status")

_METADATA: Final = ("labels", "annotations", "ownerReferences")


def _same(*fields: str) -> str:
    return " &&\n".join(f"object.{field} == oldObject.{field}" for field in fields)


def own_claim_validations(*, of_all_drivers: bool) -> list[Json]:
    """Return the rules on ResourceClaims: cards of ours, whom they are reserved for, and the finalizer for that.

    `of_all_drivers`: kube-scheduler allocates other drivers' devices as well, in a profile for that, and makes claims.
    """
    kept = (*(f"metadata.?{field}" for field in _METADATA), "spec", "?status.?devices")
    finalizers = "{}.metadata.?finalizers.orValue([])".format
    others = "!({0}.?status.?allocation.?devices.?results.orValue([]).exists(r, r.driver != {1}))".format
    status = {
        "expression": f"{_same('?status.?allocation', '?status.?reservedFor')} ||\n"
        f"{others('object', literal(DRIVER))} &&\n{others('oldObject', literal(DRIVER))}",
        "message": f"gpuledger allocates and reserves only devices of {DRIVER}",
    }
    made = {
        "expression": "request.operation == 'UPDATE'",
        "message": "gpuledger neither creates nor deletes ResourceClaims",
    }
    changes = [
        {
            "expression": _same(*kept),
            "message": "of a ResourceClaim, gpuledger changes only its allocation, for whom it is reserved, and "
            f"the finalizer {PROTECTION}",
        },
        {
            "expression": f"{finalizers('oldObject')}.all(f, f in {finalizers('object')}) &&\n"
            f"{finalizers('object')}.all(f, f == {literal(PROTECTION)} || f in {finalizers('oldObject')})",
            "message": f"of a ResourceClaim's finalizers, gpuledger only adds {PROTECTION}",
        },
        *([] if of_all_drivers else [status]),
    ]
    of_changes = [{**each, "expression": f"request.operation != 'UPDATE' ||\n{each['expression']}"} for each in changes]
    return [*([] if of_all_drivers else [made]), *of_changes]


def no_change_of_queues() -> list[Json]:
    """Return the rule where Kueue's checks are not answered."""
    return [
        {
            "expression": "false",
            "message": "gpuledger changes no objects of Kueue, as its setting kueue is false",
        }
    ]


def check_params() -> tuple[Json, Json]:
    """Return what the rule on workloads is applied with: each AdmissionCheck of the cluster, one after the other."""
    return (
        {"apiVersion": KUEUE_VERSION, "kind": "AdmissionCheck"},
        {"selector": {}, "parameterNotFoundAction": "Deny"},
    )


def own_workload_validations() -> list[Json]:
    """Return the rules on a workload of Kueue: what our checks say of it, and nothing else.

    The last of them is about one AdmissionCheck, `params`, and is applied with each: so every check that is another
    controller's stays as it is.
    """
    kept = (*(f"metadata.?{field}" for field in (*_METADATA, "finalizers")), "spec")
    said_by_checks = unchanged("k == 'admissionChecks'", "?status", "status")
    checks = "{}.?status.?admissionChecks.orValue([])".format
    now, before = checks("object"), checks("oldObject")
    other = f"filter(c, c.name == params.metadata.name && params.spec.controllerName != {literal(CONTROLLER)})"
    return [
        {
            "expression": f"{_same(*kept)} &&\n{said_by_checks}",
            "message": "of a Workload, gpuledger changes only what its admission checks say",
        },
        {
            "expression": f"{now}.map(c, c.name) == {before}.map(c, c.name) &&\n"
            f"{now}.map(c, c.?podSetUpdates.orValue([])) == {before}.map(c, c.?podSetUpdates.orValue([]))",
            "message": "gpuledger adds and removes no admission check of a Workload, and changes no pods by one",
        },
        {
            "expression": f"{now}.{other} ==\n{before}.{other}",
            "message": f"of a Workload's admission checks, gpuledger answers only those of the controller {CONTROLLER}",
        },
    ]


def own_check_validations() -> list[Json]:
    """Return the rules on AdmissionChecks: whether ours are active."""
    kept = (*(f"metadata.?{field}" for field in (*_METADATA, "finalizers")), "spec")
    return [
        {
            "expression": f"object.spec.controllerName == {literal(CONTROLLER)} &&\n{_same(*kept)}",
            "message": f"of AdmissionChecks, gpuledger changes only the status of those of the controller {CONTROLLER}",
        }
    ]
