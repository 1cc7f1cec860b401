"""Rules on who writes into ResourceClaims which cards they got, and who lists cards in ResourceSlices.

Other drivers' claims and slices cost one comparison: the conditions leave them out.
"""

from __future__ import annotations

from typing import Any, Final

from gpuledger.formats.admission.accounts import NODE_OF_TOKEN
from gpuledger.formats.custom_resource.cel import literal
from gpuledger.formats.resource_claims.names import DRIVER

Json = dict[str, Any]

RESOURCE_GROUP: Final = "resource.k8s.io"
CLAIMS: Final = "resourceclaims"
CLAIM_STATUS: Final = "resourceclaims/status"
SLICES: Final = "resourceslices"

ALLOCATION = "?status.?allocation"


def with_our_cards() -> Json:
    """Return the condition that a claim is left with cards of ours. One that loses them needs nobody's permission."""
    results = f"object.{ALLOCATION}.?devices.?results.orValue([])"
    return {"name": "with-our-cards", "expression": f"{results}.exists(r, r.driver == {literal(DRIVER)})"}


def allocation_validations() -> list[Json]:
    """Return the rule that an allocation with cards of ours stays as it is: others add, change and move none."""
    return [
        {
            "expression": f"object.{ALLOCATION} == oldObject.{ALLOCATION}",
            "message": f"only gpuledger gives out devices of {DRIVER}, and enters them in its ledger: "
            "have the pod scheduled by it (schedulerName)",
        }
    ]


def of_our_driver() -> Json:
    """Return the condition that a slice lists our cards."""
    return {"name": "of-our-driver", "expression": f"object.spec.driver == {literal(DRIVER)}"}


def slice_validations() -> list[Json]:
    """Return the rule that others than node agents list no cards of ours."""
    return [
        {"expression": "false", "message": f"only gpuledger's node agents write ResourceSlices of the driver {DRIVER}"}
    ]


def agent_slice_variables() -> list[Json]:
    """Return the variables of the rule below: the slice, also one that is deleted, and the node of the token."""
    node = f"request.userInfo.?extra[?{literal(NODE_OF_TOKEN)}][?0].orValue('')"
    return [
        {"name": "spec", "expression": "object == null ? oldObject.spec : object.spec"},
        {"name": "node", "expression": node},
    ]


def agent_slice_validations() -> list[Json]:
    """Return the rules on slices that a node agent writes or deletes: of our driver, for the node of its token."""
    return [
        {
            "expression": f"variables.spec.driver == {literal(DRIVER)}",
            "message": f"a node agent writes ResourceSlices of the driver {DRIVER} only",
        },
        {
            "expression": "variables.node != '' && variables.spec.?nodeName.orValue('') == variables.node &&\n"
            "variables.spec.pool.name == variables.node",
            "messageExpression": "'a node agent lists the cards of its own node: its token is for ' +\n"
            "  (variables.node == '' ? 'no node' : 'node ' + variables.node) + ', not for ' +\n"
            "  variables.spec.?nodeName.orValue('all nodes')",
        },
    ]
