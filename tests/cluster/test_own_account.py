"""What somebody can do who has stolen a token of ours: the policies on our own account, and all that RBAC grants.

The requests are dry runs. But for RBAC's own answers, the account has every right here: only the policies limit it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.claims import CLAIMS, claim, request
from cluster.cluster import MERGE_PATCH, NODES, PODS, Cluster, Connection, RequestFailed, pod
from cluster.dry_runs import DRY, as_user, change
from control_plane import ControlPlane
from fakes.own_account_cases import (
    A_CHECK_LESS,
    ANSWER_CASES,
    CLAIM_CASES,
    LABELLED,
    NOBODY,
    NODE_CASES,
    WORKLOAD_CASES,
    Case,
    a_node,
    a_workload,
    checks,
    condition,
    says,
    workload_status,
)
from fakes.own_account_cases import claims as claim_bodies
from gpuledger.configuration.dialects import policies
from gpuledger.configuration.settings import Settings
from installation import MANIFESTS, NAMESPACE, NO_KUBELET, REPOSITORY, USER, Installation
from kueue import API as KUEUE
from kueue import install_types

Json = dict[str, Any]

AGENT = f"system:serviceaccount:{NAMESPACE}:gpuledger-agent"
WORKLOADS = f"/apis/{KUEUE}/namespaces/default/workloads"
CHECKS = f"/apis/{KUEUE}/admissionchecks"
READS = {"get", "list", "watch"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a cluster with the policies for the setting kueue, and without Kueue."""
    with ControlPlane.run() as plane:  # with the policies of another setting
        installation = Installation(plane, NO_KUBELET)
        installation.install()
        for file in ("service_account.yaml", "rbac.yaml"):
            plane.kubectl("apply", "-f", str(MANIFESTS / "agent" / file))
        apply_policies(plane, tmp_path_factory.mktemp("policies"), kueue=True)
        running = Cluster(plane, installation)
        running.request("POST", PODS, pod("probe", {}, schedulerName="nobody"))
        yield running
        running.close()


def apply_policies(plane: ControlPlane, directory: Path, **settings: object) -> None:
    file = directory / "policies.yaml"
    file.write_text(policies(Settings().changed(settings), frozenset({"validating"})))
    plane.kubectl("apply", "-f", str(file))


@pytest.fixture
def ours(cluster: Cluster) -> Iterator[Connection]:
    connection = as_user(cluster.plane, USER)
    yield connection
    connection.close()


@contextmanager
def refused(policy: str, sentence: str) -> Iterator[None]:
    with pytest.raises(RequestFailed, match=rf"ValidatingAdmissionPolicy '{policy}'.*{re.escape(sentence)}"):
        yield


def wait_in_force(cluster: Cluster, connection: Connection, path: str, patch: Json, policy: str) -> None:
    def is_in_force() -> bool:
        try:
            change(connection, path, patch)
        except RequestFailed as error:
            return policy in str(error)
        return False

    cluster.wait(is_in_force, f"{policy} is in force")


def judge(ours: Connection, policy: str, path: str, case: Case) -> None:
    """Try a change in a dry run: the policy has to let it through, or refuse it in these words."""
    if not case.sentence:
        change(ours, f"{path}/{case.name}{case.subresource}", case.patch)
        return
    with refused(policy, case.sentence):
        change(ours, f"{path}/{case.name}{case.subresource}", case.patch)


def test_where_kueue_is_not_installed_the_other_policies_hold_and_nothing_else_is_refused(
    cluster: Cluster, ours: Connection
) -> None:
    """The kind by which the rule on others' checks goes, AdmissionCheck, is not there."""
    wait_in_force(cluster, ours, f"{PODS}/probe", LABELLED, "gpuledger-own-account")
    change(ours, f"{PODS}/probe", {"metadata": {"annotations": {"gpuledger.dev/woken": "1"}}})
    user = as_user(cluster.plane, "user")
    change(user, f"{PODS}/probe", LABELLED)
    user.close()


# ResourceClaims.


@pytest.fixture(scope="module")
def claims(cluster: Cluster) -> None:
    """Create claims: `free`, `ours`, allocated with a card and protected, and `others` with another driver's device."""
    operator, admin = as_user(cluster.plane, USER), as_user(cluster.plane, "admin")
    probe = cluster.request("GET", f"{PODS}/probe")["metadata"]["uid"]
    for name, (body, status) in claim_bodies(probe).items():
        cluster.request("POST", CLAIMS, body)
        if status:
            who = operator if name == "ours" else admin
            who.request("PATCH", f"{CLAIMS}/{name}/status", {"status": status}, MERGE_PATCH)
    wait_in_force(cluster, operator, f"{CLAIMS}/free", LABELLED, "gpuledger-own-claims")
    operator.close()
    admin.close()


@pytest.mark.promise("forgery")
@pytest.mark.usefixtures("claims")
@pytest.mark.parametrize("case", CLAIM_CASES, ids=lambda case: case.what)
def test_our_account_gives_cards_to_claims_takes_them_back_and_changes_nothing_else(
    ours: Connection, case: Case
) -> None:
    judge(ours, "gpuledger-own-claims", CLAIMS, case)


@pytest.mark.usefixtures("claims")
def test_our_account_neither_creates_nor_deletes_claims(ours: Connection) -> None:
    with refused("gpuledger-own-claims", "neither creates nor deletes"):
        ours.request("POST", f"{CLAIMS}{DRY}", claim("new", request()))
    with refused("gpuledger-own-claims", "neither creates nor deletes"):
        ours.request("DELETE", f"{CLAIMS}/free{DRY}")


@pytest.mark.usefixtures("claims")
def test_others_change_claims_as_before(cluster: Cluster) -> None:
    user = as_user(cluster.plane, "user")
    change(user, f"{CLAIMS}/free", LABELLED)
    change(user, f"{CLAIMS}/others/status", {"status": {"reservedFor": None}})
    user.request("POST", f"{CLAIMS}{DRY}", claim("new", request()))
    user.close()


# Nodes.


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> None:
    """Create a node, and wait until the policy is in force."""
    cluster.request("POST", NODES, a_node())
    operator = as_user(cluster.plane, USER)
    wait_in_force(cluster, operator, f"{NODES}/gpu-node", LABELLED, "gpuledger-own-nodes")
    operator.close()


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("case", NODE_CASES, ids=lambda case: case.what)
def test_our_account_changes_of_nodes_a_lock_and_what_keeps_them(ours: Connection, case: Case) -> None:
    judge(ours, "gpuledger-own-nodes", NODES, case)


# Kueue.


@pytest.fixture(scope="module")
def kueue(cluster: Cluster) -> None:
    """Install Kueue's kinds: checks `cards`, ours, and `budget` of another controller; a workload that has both."""
    install_types(cluster.plane)
    for body in checks():
        cluster.request("POST", CHECKS, body)
    cluster.request("POST", WORKLOADS, a_workload())
    cluster.patch(f"{WORKLOADS}/job/status", {"status": workload_status()})  # others are not refused meanwhile
    operator = as_user(cluster.plane, USER)
    wait_in_force(cluster, operator, f"{WORKLOADS}/job", LABELLED, "gpuledger-own-workloads")
    others = says("budget", state="Ready")  # the API server has to know the checks, too
    wait_in_force(cluster, operator, f"{WORKLOADS}/job/status", others, "gpuledger-own-answers")
    operator.close()


@pytest.mark.usefixtures("kueue")
@pytest.mark.parametrize("case", [case for case in WORKLOAD_CASES if case != A_CHECK_LESS], ids=lambda case: case.what)
def test_our_account_answers_its_own_check_and_changes_nothing_else_of_a_workload(ours: Connection, case: Case) -> None:
    judge(ours, "gpuledger-own-workloads", WORKLOADS, case)


@pytest.mark.usefixtures("kueue")
def test_our_account_takes_no_check_off_a_workload(ours: Connection) -> None:
    """Two policies refuse that, and the API server names whichever it has asked first."""
    with pytest.raises(RequestFailed, match=r"ValidatingAdmissionPolicy 'gpuledger-own-(workloads|answers)'"):
        change(ours, f"{WORKLOADS}/{A_CHECK_LESS.name}{A_CHECK_LESS.subresource}", A_CHECK_LESS.patch)


@pytest.mark.usefixtures("kueue")
@pytest.mark.parametrize("case", ANSWER_CASES, ids=lambda case: case.what)
def test_our_account_does_not_speak_for_another_check(ours: Connection, case: Case) -> None:
    judge(ours, "gpuledger-own-answers", WORKLOADS, case)


def active(word: str) -> Json:
    return {"status": {"conditions": [condition("Active", word)]}}


@pytest.mark.usefixtures("kueue")
def test_our_account_says_of_its_own_checks_that_they_are_active(ours: Connection) -> None:
    change(ours, f"{CHECKS}/cards/status", active("True"))
    with refused("gpuledger-own-checks", "only the status of those of the controller"):
        change(ours, f"{CHECKS}/budget/status", active("False"))
    for patch in (LABELLED, {"spec": {"parameters": {"apiGroup": "a.b", "kind": "K", "name": "n"}}}):
        with refused("gpuledger-own-checks", "only the status of those of the controller"):
            change(ours, f"{CHECKS}/cards", patch)


@pytest.mark.usefixtures("kueue")
def test_others_change_workloads_as_before(cluster: Cluster) -> None:
    user = as_user(cluster.plane, "user")
    change(user, f"{WORKLOADS}/job/status", says("budget", state="Ready"))
    change(user, f"{WORKLOADS}/job", LABELLED)
    user.close()


@pytest.mark.usefixtures("kueue", "claims")
def test_without_the_setting_our_account_changes_no_workload_at_all(
    cluster: Cluster, ours: Connection, tmp_path: Path
) -> None:
    apply_policies(cluster.plane, tmp_path)
    own = says("cards", state="Ready")
    wait_in_force(cluster, ours, f"{WORKLOADS}/job/status", own, "gpuledger-own-workloads")
    with refused("gpuledger-own-workloads", "its setting kueue is false"):
        change(ours, f"{CHECKS}/cards/status", active("True"))


@pytest.mark.usefixtures("claims")
def test_with_a_profile_for_all_drivers_kube_scheduler_allocates_theirs_too(
    cluster: Cluster, ours: Connection, tmp_path: Path
) -> None:
    """And nothing more: what is not an allocation stays as it is."""
    settings = {"all_drivers_scheduler_name": "gpuledger-all-drivers", "resource_slices": True}
    apply_policies(cluster.plane, tmp_path, **settings)

    def may() -> bool:
        try:
            change(ours, f"{CLAIMS}/others/status", {"status": NOBODY})
        except RequestFailed:
            return False
        return True

    cluster.wait(may, "the policy allows other drivers' allocations")
    ours.request("POST", f"{CLAIMS}{DRY}", claim("new", request()))
    with refused("gpuledger-own-claims", "changes only its allocation"):
        change(ours, f"{CLAIMS}/others", LABELLED)


# All powers.

OWN = {
    "create bindings": "bind pods",
    "create pods/binding": "bind pods",
    "create pods/eviction": "evict and delete pods",
    "delete pods": "evict and delete pods",
    "patch pods": "patch pods",
    "patch pods/status": "the status",
    "update pods/status": "the status",
    "update pods/finalizers": "finalizers",
    "create gpuallocations.gpuledger.dev": "rewrite the ledger",
    "patch gpuallocations.gpuledger.dev": "rewrite the ledger",
    "delete gpuallocations.gpuledger.dev": "rewrite the ledger",
    "patch gpuallocations.gpuledger.dev/status": "rewrite the ledger",
    "patch resourcequotas/status": "the status of ResourceQuotas",
    "patch gpureservations.gpuledger.dev/status": "the status of GPUReservations",
    "create gpuusages.gpuledger.dev": "GPUUsage",
    "deletecollection gpuusages.gpuledger.dev": "GPUUsage",
    "patch gpuusages.gpuledger.dev/status": "GPUUsage",
    "patch persistentvolumes": "PersistentVolume",
    "update persistentvolumes": "PersistentVolume",
    "patch persistentvolumeclaims": "PersistentVolumeClaim",
    "update persistentvolumeclaims": "PersistentVolumeClaim",
    "create resourceclaims.resource.k8s.io": "ResourceClaim",
    "delete resourceclaims.resource.k8s.io": "ResourceClaim",
    "patch resourceclaims.resource.k8s.io": "ResourceClaim",
    "update resourceclaims.resource.k8s.io": "ResourceClaim",
    "patch resourceclaims.resource.k8s.io/status": "ResourceClaim",
    "update resourceclaims.resource.k8s.io/status": "ResourceClaim",
    "patch resourceclaims.resource.k8s.io/binding": "ResourceClaim",
    "update resourceclaims.resource.k8s.io/binding": "ResourceClaim",
    "patch workloads.kueue.x-k8s.io/status": "Kueue's workloads",
    "patch admissionchecks.kueue.x-k8s.io/status": "AdmissionCheck",
    "patch podgroups.scheduling.volcano.sh": "any PodGroup of `scheduling.volcano.sh`",
    "patch podgroups.scheduling.k8s.io/status": "PodGroup",
    "update podgroups.scheduling.k8s.io/status": "PodGroup",
    "create events": "Events",
    "patch events": "Events",
    "update events": "Events",
    "create events.events.k8s.io": "Events",
    "patch events.events.k8s.io": "Events",
    "update events.events.k8s.io": "Events",
    "create leases.coordination.k8s.io": "Leases",
    "update leases.coordination.k8s.io": "Leases",
    "create leasecandidates.coordination.k8s.io": "Leases",
    "delete leasecandidates.coordination.k8s.io": "Leases",
    "deletecollection leasecandidates.coordination.k8s.io": "Leases",
    "patch leasecandidates.coordination.k8s.io": "Leases",
    "update leasecandidates.coordination.k8s.io": "Leases",
    "create tokenreviews.authentication.k8s.io": "tokens",
    "create subjectaccessreviews.authorization.k8s.io": "tokens",
}
"""All that the account of operator and kube-scheduler may write -> the words for it in docs/security.md."""

EVERYBODYS = {
    "create selfsubjectaccessreviews.authorization.k8s.io",
    "create selfsubjectrulesreviews.authorization.k8s.io",
    "create selfsubjectreviews.authentication.k8s.io",
}


def rules_of(cluster: Cluster, account: str, namespace: str) -> list[Json]:
    """Return what RBAC lets an account do in a namespace."""
    connection = Connection(cluster.plane, identity={"Impersonate-User": account})
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    answer = connection.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review)
    connection.close()
    return list(answer["status"]["resourceRules"])


def powers(rules: list[Json], *, reads: bool) -> set[str]:
    """Return `verb resource.group/subresource`, of what reads or of what writes."""
    found = set()
    for each in rules:
        for verb in each["verbs"]:
            for group in each["apiGroups"]:
                for resource in each["resources"]:
                    name, slash, rest = resource.partition("/")
                    if (verb in READS) is reads:
                        found.add(f"{verb} {name}{'.' if group else ''}{group}{slash}{rest}")
    return found - EVERYBODYS


@pytest.mark.promise("forgery")
def test_every_power_of_our_account_is_in_the_document(cluster: Cluster) -> None:
    text = (REPOSITORY / "docs" / "security.md").read_text()
    section = text.partition("## The operator and its kube-scheduler")[2].partition("\n## ")[0]
    for namespace in ("default", NAMESPACE):
        found = powers(rules_of(cluster, USER, namespace), reads=False)
        assert found - OWN.keys() == set(), "a power that nobody has written down"
        assert "patch gpuallocations.gpuledger.dev" in found
        assert {words for power, words in OWN.items() if power in found and words not in section} == set()


def test_our_account_reads_no_secrets_and_of_config_maps_only_our_own(cluster: Cluster) -> None:
    found = powers(rules_of(cluster, USER, "default"), reads=True)
    assert not {each for each in found if each.partition(" ")[2] in ("secrets", "configmaps", "*", "*.*")}
    assert not {each for each in powers(rules_of(cluster, USER, NAMESPACE), reads=True) if "secrets" in each}


@pytest.mark.parametrize("namespace", ["default", "kube-system", NAMESPACE])
def test_an_agents_token_reads_no_secrets_and_no_config_maps(cluster: Cluster, namespace: str) -> None:
    """With real requests: a list, and one object by its name, of what is there."""
    found = {each.partition(" ")[2] for each in powers(rules_of(cluster, AGENT, namespace), reads=True)}
    assert found == {"nodes", "pods", "gpuallocations.gpuledger.dev", "resourceslices.resource.k8s.io"} | (
        found & {"resourceclaims.resource.k8s.io"}
    )
    agent = Connection(cluster.plane, identity={"Impersonate-User": AGENT})
    for kind in ("secrets", "configmaps"):
        cluster.plane.kubectl(
            "create", kind[:-1], *(["generic"] if kind == "secrets" else []), "tried", "-n", namespace
        )
        path = f"/api/v1/namespaces/{namespace}/{kind}"
        for tried in (path, f"{path}/tried", f"/api/v1/{kind}"):
            with pytest.raises(RequestFailed, match="forbidden") as refusal:
                agent.request("GET", tried)
            assert refusal.value.status == 403
    agent.close()


def test_an_agents_token_writes_only_to_nodes_slices_and_events(cluster: Cluster) -> None:
    found = powers(rules_of(cluster, AGENT, "kube-system"), reads=False)
    assert found <= {
        "patch nodes",
        "patch nodes/status",
        "create events",
        "create resourceslices.resource.k8s.io",
        "update resourceslices.resource.k8s.io",
        "delete resourceslices.resource.k8s.io",
    }
