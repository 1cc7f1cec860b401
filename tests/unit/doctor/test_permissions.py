"""What the doctor asks about is what the manifests grant, and what they grant is asked about."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from gpuledger.doctor.facts import AGENT, AS_INIT, BESIDE, OPERATOR, OVER_HAMI, Permission

Json = dict[str, Any]

MANIFESTS = Path(__file__).parents[3] / "manifests"


def roles(*files: str) -> dict[tuple[str, str], Json]:
    """Return (kind, name) -> object, of the files' RBAC."""
    found = [each for file in files for each in yaml.safe_load_all((MANIFESTS / file).read_text())]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def granted(*objects: Json) -> set[Permission]:
    """Return all that roles of ours grant."""
    return {permission for each in objects for rule in each["rules"] for permission in of_rule(each, rule)}


def of_rule(role: Json, rule: Json) -> Iterator[Permission]:
    namespace = role["metadata"].get("namespace", "")
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                for name in rule.get("resourceNames", [""]):
                    yield Permission(verb, resource, group, namespace, name)


def test_the_operators_own_roles_grant_what_is_asked_about_and_no_more() -> None:
    found = roles("rbac.yaml")
    own = granted(found["ClusterRole", "gpuledger"], found["Role", "gpuledger-lease"])
    assert own - {*AS_INIT} == {*OPERATOR}


def test_of_each_role_of_kubernetes_own_that_is_bound_one_permission_is_asked_about() -> None:
    found = roles("rbac.yaml")
    ours = {name for kind, name in found if kind in ("ClusterRole", "Role")}
    bound = {each["roleRef"]["name"] for (kind, _), each in found.items() if kind.endswith("Binding")}
    assert {permission.role for permission in BESIDE} == bound - ours


def test_the_agents_roles_grant_what_is_asked_about_and_no_more() -> None:
    found = roles("agent/rbac.yaml")
    bound = {(each["roleRef"]["kind"], each["roleRef"]["name"]) for each in found.values() if "roleRef" in each}
    assert granted(*(found[role] for role in bound)) == {*AGENT}


def test_the_role_for_people_who_see_what_is_used_reads_agents_and_is_bound_to_nobody() -> None:
    found = roles("agent/rbac.yaml", "rbac.yaml")
    where = "gpuledger-system"
    assert granted(found["Role", "gpuledger-usage"]) == (
        {Permission("list", "pods", namespace=where), Permission("get", "pods/proxy", namespace=where)}
    )
    assert "gpuledger-usage" not in {each["roleRef"]["name"] for each in found.values() if "roleRef" in each}


def test_over_hami_one_more_is_granted() -> None:
    found = roles("over-hami/rbac.yaml")
    assert granted(found["ClusterRole", "gpuledger-over-hami"]) == {OVER_HAMI}


def test_a_permission_reads_as_a_sentence_and_is_asked_for_with_its_subresource() -> None:
    permission = Permission("patch", "gpuallocations/status", "gpuledger.dev")
    assert str(permission) == "patch gpuallocations/status.gpuledger.dev"
    assert permission.attributes() == {
        "verb": "patch",
        "group": "gpuledger.dev",
        "resource": "gpuallocations",
        "subresource": "status",
    }
    lease = Permission("get", "leases", "coordination.k8s.io", "here", "that")
    assert str(lease) == "get leases.coordination.k8s.io that in namespace here"
