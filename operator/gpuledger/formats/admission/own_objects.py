"""Rules on what our own account changes of objects that others look after: ResourceClaims, and Kueue's workloads.

operator and kube-scheduler have one account. So what kube-scheduler itself writes of claims is allowed, too.
"""

from __future__ import annotations

from typing import Final

from gpuledger.formats.admission.rules import unchanged
from gpuledger.formats.custom_resource.crd import literal
from gpuledger.formats.kubernetes.workload import CONTROLLER
from gpuledger.formats.kubernetes.workload import GROUP as KUEUE_VERSION
from gpuledger.formats.resource_claims.claims import DRIVER, PROTECTION
from gpuledger.model.json_object import Json

OWN_CLAIMS: Final = "gpuledger-own-claims"
OWN_WORKLOADS: Final = "gpuledger-own-workloads"
OWN_ANSWERS: Final = "gpuledger-own-answers"
OWN_CHECKS: Final = "gpuledger-own-checks"

KUEUE_GROUP: Final = KUEUE_VERSION.partition("/")[0]
WORKLOADS: Final = ("workloads", "workloads/status")
CHECKS: Final = ("admissionchecks", "admissionchecks/status")

_NOW, _BEFORE = (f"{each}.?status.?admissionChecks.orValue([])" for each in ("object", "oldObject"))
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


def own_workload_validations() -> list[Json]:
    """Return the rules on a workload of Kueue: what checks say of it, and nothing else.

    Which check is whose, the workload does not say: see `own_answer_validations`.
    """
    kept = (*(f"metadata.?{field}" for field in (*_METADATA, "finalizers")), "spec")
    said_by_checks = unchanged("k == 'admissionChecks'", "?status", "status")
    return [
        {
            "expression": f"{_same(*kept)} &&\n{said_by_checks}",
            "message": "of a Workload, gpuledger changes only what its admission checks say",
        },
        {
            "expression": f"{_NOW}.map(c, c.name) == {_BEFORE}.map(c, c.name) &&\n"
            f"{_NOW}.map(c, c.?podSetUpdates.orValue([])) == {_BEFORE}.map(c, c.?podSetUpdates.orValue([]))",
            "message": "gpuledger adds and removes no admission check of a Workload, and changes no pods by one",
        },
    ]


def own_answer_validations() -> list[Json]:
    """Return the rule that the checks of other controllers stay as they are.

    It is about one AdmissionCheck, `params`, and is applied with each of the cluster. What it costs is limited by the
    eight checks that Kueue lets a workload have.
    """
    other = f"filter(c, c.name == params.metadata.name && params.spec.controllerName != {literal(CONTROLLER)})"
    return [
        {
            "expression": f"{_NOW}.{other} ==\n{_BEFORE}.{other}",
            "message": f"of a Workload's admission checks, gpuledger answers only those of the controller {CONTROLLER}",
        }
    ]


def with_each_check(policy: Json, binding: Json) -> list[Json]:
    """Return a policy and its binding that are applied with each AdmissionCheck, and with none where there is none.

    An API server that does not know the kind, as Kueue is not installed or is being installed, would refuse everybody's
    changes of workloads, Kueue's own as well, whatever the policy's conditions say: that is ignored.
    """
    policy["spec"]["failurePolicy"] = "Ignore"
    policy["spec"]["paramKind"] = {"apiVersion": KUEUE_VERSION, "kind": "AdmissionCheck"}
    binding["spec"]["paramRef"] = {"selector": {}, "parameterNotFoundAction": "Allow"}
    return [policy, binding]


def own_check_validations() -> list[Json]:
    """Return the rules on AdmissionChecks: whether ours are active."""
    kept = (*(f"metadata.?{field}" for field in (*_METADATA, "finalizers")), "spec")
    return [
        {
            "expression": f"object.spec.controllerName == {literal(CONTROLLER)} &&\n{_same(*kept)}",
            "message": f"of AdmissionChecks, gpuledger changes only the status of those of the controller {CONTROLLER}",
        }
    ]
