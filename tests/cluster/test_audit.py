"""`gpuledger audit` on a real cluster: each kind of difference made on purpose, shown, mended; and none made up."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from cluster.cluster import (
    ALLOCATIONS,
    COUNT,
    DEADLINE_S,
    DEVICES,
    MEMORY,
    MERGE_PATCH,
    PERCENT,
    PODS,
    Cluster,
    Connection,
    Json,
    container,
    devices,
    phase,
    pod,
    uuids,
)
from effort import times
from gpuledger.agent.simulated import FakeNode, fake_nodes
from gpuledger.command_line.program import main
from gpuledger.formats.kubernetes.node import REGISTER_ANNOTATION, register_of

AUDIT_TIMEOUT_S = 120.0
PAST = "2026-01-01T00:00:00Z"
SHARE_MIB = 4000
SHARE = {COUNT: 1, MEMORY: SHARE_MIB}

BURST_ROUNDS = times(2, 8)
BURST_PODS = times(20, 40)
PAUSE_S = times(5, 0) / 10
"""Between two bursts. An audit takes longer."""
AUDITS_AT_LEAST = times(2, 3)
"""Every other one may mend."""


@dataclass(frozen=True)
class Audit:
    """How a run of the command has ended."""

    code: int
    output: str
    log: str

    @property
    def rows(self) -> list[Json]:
        """The findings of `-o json`."""
        return list(json.loads(self.output))

    def kinds(self, mended: bool | None = None) -> list[str]:
        """Return the kinds of the findings, of all or of those that were mended or left."""
        return [row["kind"] for row in self.rows if mended in (None, row["mended"])]


def run_audit(cluster: Cluster, *arguments: str, kubeconfig: Path | None = None) -> Audit:
    """Run the command as a program, as an administrator or with another account."""
    command = [
        *(sys.executable, "-m", "gpuledger", "audit", "--settings", str(cluster.installation.settings_file)),
        *("--kubeconfig", str(kubeconfig or cluster.plane.kubeconfig), *arguments),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=AUDIT_TIMEOUT_S, check=False)
    return Audit(done.returncode, done.stdout, done.stderr)


def audit(cluster: Cluster, *arguments: str, kubeconfig: Path | None = None) -> Audit:
    """Run the command for a script, in this process, and with little patience: nothing moves."""
    files = ["--settings", str(cluster.installation.settings_file)]
    files += ["--kubeconfig", str(kubeconfig or cluster.plane.kubeconfig)]
    done = CliRunner().invoke(main, ["audit", "-o", "json", "--settle-s", "0.2", *files, *arguments])
    return Audit(done.exit_code, done.stdout, done.stderr)


@pytest.fixture
def still(cluster: Cluster) -> Iterator[Cluster]:
    """Yield a cluster whose operator a test stops, so that only the audit mends anything."""
    yield cluster
    cluster.installation.kill_operator()
    cluster.installation.start_operator()
    cluster.settle()


def stop_operator(cluster: Cluster) -> None:
    cluster.settle()
    cluster.installation.kill_operator()


def enter(cluster: Cluster, uuid: str, holders: Sequence[Json]) -> None:
    """Write a card's holders as an administrator, with a total that adds up."""
    used = {amount: sum(holder[amount] for holder in holders) for amount in ("memoryMiB", "cores", "number")}
    cluster.patch(f"{ALLOCATIONS}/{uuid.lower()}/status", {"status": {"holders": list(holders), "used": used}})


def a_holder(name: str, uid: str, **fields: object) -> Json:
    return {
        "podUID": uid,
        "namespace": "default",
        "pod": name,
        "memoryMiB": SHARE_MIB,
        "cores": 0,
        "number": 1,
        "exclusive": False,
        "priority": 0,
        "containers": [{"name": "main", "memoryMiB": SHARE_MIB, "cores": 0}],
        "state": "allocated",
        "attempt": "first",
        **fields,
    }


def uid_of(cluster: Cluster, name: str) -> str:
    return str(cluster.pod(name)["metadata"]["uid"])


def annotate(cluster: Cluster, name: str, text: str | None) -> None:
    cluster.patch(f"{PODS}/{name}", {"metadata": {"annotations": {DEVICES: text}}})


def told(uuid: str, memory_mib: int = SHARE_MIB) -> str:
    return json.dumps({"main": [{"uuid": uuid, "memoryMiB": memory_mib, "cores": 0}]})


def bound_by_hand(name: str, node: FakeNode, text: str | None, limits: Json | None = None) -> Json:
    """Return a pod of our profile that no scheduler has bound."""
    annotations = {} if text is None else {DEVICES: text}
    return pod(name, limits or SHARE, annotations=annotations, nodeName=node.name)


def set_register(cluster: Cluster, node: FakeNode, text: str) -> None:
    cluster.patch(f"/api/v1/nodes/{node.name}", {"metadata": {"annotations": {REGISTER_ANNOTATION: text}}})


def check_mended(cluster: Cluster, *kinds: str, arguments: Sequence[str] = ()) -> Audit:
    """See the audit find these kinds, mend them, and find nothing more."""
    found = audit(cluster)
    assert (found.code, sorted(found.kinds())) == (1, sorted(kinds)), found
    mended = audit(cluster, "--fix", *arguments)
    assert (mended.code, mended.kinds(mended=False)) == (0, []), mended
    assert set(kinds) <= set(mended.kinds(mended=True))
    again = audit(cluster, "--fix", *arguments)
    assert (again.code, again.rows) == (0, []), again
    return found


def check_left(cluster: Cluster, *kinds: str) -> Audit:
    """See the audit find these kinds, and leave them though it is told to mend all that it can."""
    found = audit(cluster)
    assert (found.code, sorted(found.kinds())) == (1, sorted(kinds)), found
    before = cluster.cards()
    left = audit(cluster, "--fix")
    assert (left.code, left.rows) == (1, found.rows), left
    assert cluster.cards() == before
    return found


# Holders.


@pytest.mark.promise("audit")
def test_holders_of_pods_without_a_right_to_them(still: Cluster) -> None:
    """Gone, finished, not bound, and a release that nobody has ended; the operator's own account may mend them."""
    (node,) = still.add_nodes(1, gpus=2)
    first, second = (card.uuid for card in node.cards)
    still.create(pod("runs", SHARE), pod("finishes", SHARE))
    runs, _ = still.wait_bound("runs", "finishes")
    stop_operator(still)
    still.finish("finishes")
    still.create(pod("waits", SHARE))
    waiting = a_holder("waits", uid_of(still, "waits"))
    late = a_holder("late", "uid-late", state="releasing", deadline=PAST)
    enter(still, first, [*still.holders()[first], a_holder("gone", "uid-gone"), waiting])
    enter(still, second, [*still.holders()[second], late])
    found = audit(still)
    assert found.code == 1
    assert {(row["kind"], row["pod"], row["card"]) for row in found.rows} == {
        ("pod-gone", "default/gone", first),
        ("pod-finished", "default/finishes", first),
        ("pod-not-bound", "default/waits", first),
        ("overdue", "default/late", second),
    }
    mended = audit(still, "--fix", kubeconfig=still.installation.kubeconfig)
    assert (mended.code, mended.kinds(mended=False)) == (0, []), mended
    held = {holder["pod"]: holder["state"] for holders in still.holders().values() for holder in holders}
    assert held == {"runs": "allocated", "gone": "releasing"}
    assert uuids(runs) == [first]
    assert (audit(still).code, audit(still).rows) == (0, [])
    assert not still.pod("waits")["spec"].get("nodeName")


def test_holders_that_a_pod_does_not_need(still: Cluster) -> None:
    here, there = still.add_nodes(2, gpus=2)
    still.create(pod("share", SHARE))
    (share,) = still.wait_bound("share")
    other = there if share["spec"]["nodeName"] == here.name else here
    (own,) = uuids(share)
    (beside,) = (c.uuid for node in (here, there) if node is not other for c in node.cards if c.uuid != own)
    stop_operator(still)
    holder = a_holder("share", share["metadata"]["uid"])
    for uuid in (beside, other.cards[0].uuid):
        enter(still, uuid, [holder])
    found = check_mended(still, "spare-holder", "spare-holder")
    assert {row["card"] for row in found.rows} == {beside, other.cards[0].uuid}
    assert [uuid for uuid, holders in still.holders().items() if holders] == [own]


def test_holders_of_which_nothing_says_whether_they_are_needed(still: Cluster) -> None:
    (node,) = still.add_nodes(1, gpus=2)
    still.create(pod("share", SHARE))
    (share,) = still.wait_bound("share")
    stop_operator(still)
    for card in node.cards:
        enter(still, card.uuid, [a_holder("share", share["metadata"]["uid"])])
    both = [{"uuid": card.uuid, "memoryMiB": SHARE_MIB, "cores": 0} for card in node.cards]
    annotate(still, "share", json.dumps({"main": both}))
    check_left(still, "holds-more")


def test_a_holder_on_another_node_alone_is_kept_until_the_pods_cards_are_entered(still: Cluster) -> None:
    here, there = still.add_nodes(2, gpus=1)
    still.create(pod("share", SHARE))
    (share,) = still.wait_bound("share")
    (own,) = uuids(share)
    (away,) = (card.uuid for node in (here, there) for card in node.cards if card.uuid != own)
    stop_operator(still)
    enter(still, own, [])
    enter(still, away, [a_holder("share", share["metadata"]["uid"])])
    check_left(still, "other-node", "not-entered")
    adopted = audit(still, "--fix", "--adopt")
    assert (adopted.code, set(adopted.kinds(mended=True))) == (0, {"not-entered", "spare-holder"}), adopted
    assert {uuid: len(holders) for uuid, holders in still.holders().items()} == {own: 1, away: 0}
    still.check_consistent()


# Pods.


def test_pods_that_are_bound_without_holders_are_entered_in_a_migration(still: Cluster) -> None:
    (node,) = still.add_nodes(1, gpus=2)
    still.create(pod("two", {COUNT: 2, MEMORY: SHARE_MIB}))
    still.wait_bound("two")
    stop_operator(still)
    still.create(bound_by_hand("old", node, told(node.cards[0].uuid)))
    enter(still, node.cards[1].uuid, [])
    check_left(still, "not-entered", "partly-entered")
    adopted = audit(still, "--fix", "--adopt", kubeconfig=still.installation.kubeconfig)
    assert (adopted.code, sorted(adopted.kinds(mended=True))) == (0, ["not-entered", "partly-entered"]), adopted
    still.check_consistent()
    assert [h["pod"] for h in still.holders()[node.cards[0].uuid]] == ["two", "old"]


def test_a_share_that_does_not_fit_is_a_conflict_until_its_pod_is_gone(still: Cluster) -> None:
    (node,) = still.add_nodes(1, gpus=1)
    (card,) = node.cards
    still.create(pod("whole", {COUNT: 1}))
    still.wait_bound("whole")
    stop_operator(still)
    still.create(bound_by_hand("late", node, told(card.uuid)))
    adopted = audit(still, "--fix", "--adopt")
    assert (adopted.code, adopted.kinds()) == (1, ["conflict"]), adopted
    status = still.cards()[card.uuid]["status"]
    assert [(c["pod"], c["memoryMiB"]) for c in status["conflicts"]] == [("late", SHARE_MIB)]
    assert [h["pod"] for h in status["holders"]] == ["whole"]
    assert status["used"]["memoryMiB"] == card.capacity.memory_mib
    again = audit(still, "--fix", "--adopt")
    assert (again.code, again.kinds()) == (1, ["conflict"]), again
    assert still.cards()[card.uuid]["status"] == status
    still.delete("late")
    check_mended(still, "conflict-over")
    assert not still.cards()[card.uuid]["status"]["conflicts"]


def test_an_annotation_that_can_not_be_used_is_a_finding(still: Cluster) -> None:
    here, there = still.add_nodes(2, gpus=1)
    own, away = here.cards[0].uuid, there.cards[0].uuid
    annotations = {
        "none": None,
        "no-json": "nonsense",
        "deep": "[" * 10_000,
        "negative": told(own, -SHARE_MIB),
        "absurd": told(own, 10**30),
        "no-such-card": told("GPU-nowhere"),
        "another-nodes-card": told(away),
        "another-container": told(own).replace("main", "other\u001b[31m"),
    }
    stop_operator(still)
    still.create(*(bound_by_hand(name, here, text) for name, text in annotations.items()))
    found = check_left(still, *["not-adoptable"] * len(annotations))
    assert {row["pod"] for row in found.rows} == {f"default/{name}" for name in annotations}
    adopted = run_audit(still, "--settle-s", "0.2", "--fix", "--adopt")
    assert adopted.code == 1
    assert adopted.output.endswith(f"{len(annotations)} found: {len(annotations)} left.\n")
    assert "\x1b" not in adopted.output
    assert not any(still.holders().values())


def test_requests_and_annotations_beyond_any_card_are_findings(still: Cluster) -> None:
    (node,) = still.add_nodes(1, gpus=1)
    (card,) = node.cards
    stop_operator(still)
    still.create(bound_by_hand("greedy", node, told(card.uuid, 1_000_000)))
    still.create(bound_by_hand("bad", node, told(card.uuid), {COUNT: 1, MEMORY: "4Gi"}))
    adopted = audit(still, "--fix", "--adopt")
    assert (adopted.code, adopted.kinds()) == (1, ["unreadable-pod", "conflict"]), adopted
    assert "4Gi has a unit of bytes" in adopted.rows[0]["detail"]
    assert adopted.rows[1]["pod"] == "default/greedy"
    assert not any(still.holders().values())


def test_an_annotation_that_differs_is_written_from_the_ledger(still: Cluster) -> None:
    (node,) = still.add_nodes(1, gpus=2)
    annotations = {"missing": None, "no-json": "nonsense", "empty": "{}", "other": told(node.cards[1].uuid, 1)}
    second = container({COUNT: 1, PERCENT: 10}, "second")
    still.create(*(pod(name, container(SHARE), second) for name in annotations))
    bound = still.wait_bound(*annotations)
    stop_operator(still)
    before = still.holders()
    for name, text in annotations.items():
        annotate(still, name, text)
    check_mended(still, *["annotation-differs"] * len(annotations))
    assert [devices(still.pod(name)) for name in annotations] == [devices(found) for found in bound]
    assert still.holders() == before


def pods_on_cards(cluster: Cluster) -> dict[str, set[str]]:
    return {uuid: {holder["pod"] for holder in holders} for uuid, holders in cluster.holders().items()}


@contextmanager
def adopting(cluster: Cluster) -> Iterator[None]:
    """Let an operator that is started meanwhile adopt pods."""
    file = cluster.installation.settings_file
    text = file.read_text()
    file.write_text(text + "adopt_pods: true\n")
    try:
        yield
    finally:
        file.write_text(text)


@pytest.mark.promise("audit")
@pytest.mark.parametrize("by_whom", ["the audit", "the operator"])
def test_a_ledger_that_was_lost_is_restored_on_request(still: Cluster, by_whom: str) -> None:
    """Cards are deleted while no operator runs; the next one writes them again, and knows of no holders."""
    still.add_nodes(2, gpus=2)
    names = [f"pod-{number}" for number in range(6)]
    still.create(*(pod(name, SHARE) for name in names), pod("two", {COUNT: 2, MEMORY: 10_000}))
    still.wait_bound(*names, "two")
    stop_operator(still)
    before = pods_on_cards(still)
    still.request("DELETE", ALLOCATIONS)
    still.installation.start_operator()
    still.wait(lambda: {phase(card) for card in still.cards().values()} == {"Ready"}, "the cards are back")
    still.wait(lambda: still.metric("gpuledger_pods_without_shares") == len(names) + 1, "the pods are counted")
    assert not any(still.holders().values())
    if by_whom == "the audit":
        assert audit(still, "--fix").kinds(mended=False) == ["not-entered"] * (len(names) + 1)
        adopted = audit(still, "--fix", "--adopt", kubeconfig=still.installation.kubeconfig)
        assert (adopted.code, adopted.kinds(mended=False)) == (0, []), adopted
    else:
        still.installation.kill_operator()
        with adopting(still):
            still.installation.start_operator()
        still.wait(lambda: pods_on_cards(still) == before, "the pods are entered")
        still.settle()
        assert still.metric("gpuledger_pods_without_shares") == 0
    assert pods_on_cards(still) == before
    still.check_consistent()
    assert (audit(still).code, audit(still).rows) == (0, [])


# Cards and nodes.


def test_a_card_that_has_shrunk_below_its_holders_is_shown(still: Cluster) -> None:
    (node,) = still.add_nodes(1, gpus=1)
    names = [f"pod-{number}" for number in range(3)]
    still.create(*(pod(name, SHARE) for name in names))
    still.wait_bound(*names)
    stop_operator(still)
    smaller = {"spec": {"capacity": {"memoryMiB": 6000, "number": 2}}}
    still.patch(f"{ALLOCATIONS}/{node.cards[0].object_name}", smaller)
    found = check_left(still, "over-capacity", "too-many-slots")
    assert found.rows[0]["detail"].startswith("12000 MiB of 6000; pods default/pod-")


def test_cards_whose_node_is_gone_or_does_not_report_them(still: Cluster) -> None:
    gone, fewer = still.add_nodes(2, gpus=3)
    still.create(pod("share", {COUNT: 1, MEMORY: SHARE_MIB}, nodeSelector={"kubernetes.io/hostname": gone.name}))
    (share,) = still.wait_bound("share")
    (held,) = uuids(share)
    stop_operator(still)
    still.request("DELETE", f"/api/v1/nodes/{gone.name}")
    set_register(still, fewer, register_of(fewer.cards[:1]))
    found = audit(still)
    assert sorted(found.kinds()) == ["abandoned-card"] * 4 + ["abandoned-holders"], found
    mended = audit(still, "--fix")
    assert (mended.code, mended.kinds(mended=False)) == (1, ["abandoned-holders"]), mended
    assert set(still.cards()) == {held, fewer.cards[0].uuid}
    still.delete("share")
    mended = audit(still, "--fix")
    assert (mended.code, mended.kinds(mended=True)) == (1, ["pod-gone"])  # it is releasing, and keeps its card
    assert mended.kinds(mended=False) == ["abandoned-holders"]


def test_what_nodes_report_and_the_ledger_does_not_have(still: Cluster) -> None:
    """Two nodes with one card, a card that has moved, a new node, and a register that can't be read."""
    here, there = still.add_nodes(2, gpus=2)
    stop_operator(still)
    both, moved = here.cards
    set_register(still, here, register_of([both]))
    set_register(still, there, register_of([both, moved, *there.cards]))
    still.request("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "broken"}})
    still.patch("/api/v1/nodes/broken", {"metadata": {"annotations": {REGISTER_ANNOTATION: "nonsense"}}})
    (new,) = fake_nodes("new-node", count=1, gpus=1, model="A100-40GB")
    still.register(new)
    found = check_left(still, "two-nodes", "moved-card", "not-in-ledger", "unreadable-register")
    rows = {row["kind"]: row for row in found.rows}
    assert rows["two-nodes"]["card"] == both.uuid
    assert rows["two-nodes"]["detail"].startswith(f"nodes {here.name} and {there.name} report it")
    assert (rows["moved-card"]["card"], rows["not-in-ledger"]["card"]) == (moved.uuid, new.cards[0].uuid)
    assert rows["unreadable-register"]["node"] == "broken"


# The command.


def test_the_table_has_whole_uuids_and_says_what_to_do(still: Cluster) -> None:
    (node,) = still.add_nodes(1, gpus=1)
    (card,) = node.cards
    stop_operator(still)
    enter(still, card.uuid, [a_holder("gone", "uid-gone")])
    still.create(bound_by_hand("old", node, None))
    table = run_audit(still, "--settle-s", "0.2")
    assert table.code == 1
    assert re.search(
        rf"^ *{node.name} +{card.uuid} +default/gone +4000 MiB, 0 % cores, 1 slot$", table.output, re.MULTILINE
    )
    assert re.search(
        rf"^ *{node.name} +default/old +it asks for 1 card and holds 0; no annotation", table.output, re.MULTILINE
    )
    assert "pod-gone: --fix releases the share" in table.output
    assert table.output.endswith("2 found: 2 left.\n")
    mended = run_audit(still, "--settle-s", "0.2", "--fix")
    assert mended.code == 1
    assert mended.output.endswith("2 found: 1 fixed, 1 left.\n")


@pytest.mark.promise("audit")
def test_a_consistent_cluster_has_no_finding_and_is_not_written_to(cluster: Cluster) -> None:
    cluster.add_nodes(2, gpus=2)
    names = [f"pod-{number}" for number in range(8)]
    cluster.create(*(pod(name, {COUNT: 1, PERCENT: 30}) for name in names))
    cluster.wait_bound(*names)
    cluster.settle()
    before = cluster.cards(), cluster.pods()
    found = run_audit(cluster)
    assert (found.code, found.output) == (0, "Ledger, pods and nodes agree.\n"), found
    for arguments in (("--fix",), ("--fix", "--adopt")):
        found = audit(cluster, *arguments)
        assert (found.code, found.rows) == (0, []), found
    assert (cluster.cards(), cluster.pods()) == before


def test_without_an_api_server_there_is_no_verdict(cluster: Cluster, tmp_path: Path) -> None:
    nowhere = tmp_path / "kubeconfig"
    text = cluster.plane.kubeconfig.read_text()
    nowhere.write_text(re.sub(r"server: \S+", "server: https://127.0.0.1:1", text))
    found = run_audit(cluster, kubeconfig=nowhere)
    assert (found.code, found.output) == (2, "")
    assert found.log.startswith("Error: ")


def test_an_account_without_rights_is_told_so(still: Cluster) -> None:
    """It may read, and not write: what it can't mend is left."""
    still.add_nodes(1, gpus=1)
    still.create(pod("share", SHARE))
    still.wait_bound("share")
    stop_operator(still)
    annotate(still, "share", "{}")
    plane = still.plane
    plane.kubectl("create", "serviceaccount", "reader", "-n", "default")
    plane.kubectl(
        "create", "clusterrole", "reader", "--verb=get,list", "--resource=nodes,pods,gpuallocations.gpuledger.dev"
    )
    plane.kubectl("create", "clusterrolebinding", "reader", "--clusterrole=reader", "--serviceaccount=default:reader")
    reader = plane.kubeconfig_of_service_account("default", "reader")
    found = run_audit(still, "-o", "json", "--settle-s", "0.2", "--fix", kubeconfig=reader)
    assert (found.code, found.kinds(mended=False)) == (1, ["annotation-differs"]), found
    assert re.search(r"\b403\b", found.log)


# A cluster that moves.


def come_and_go(cluster: Cluster, ended: threading.Event, created: list[str], deleted: list[str]) -> None:
    """Create pods in bursts, and delete each as soon as it is bound; let some finish first."""
    connection = Connection(cluster.plane)
    number = 0
    try:
        while not ended.wait(PAUSE_S):
            for _ in range(BURST_PODS):
                limits = ({COUNT: 1, PERCENT: 25}, {COUNT: 2, MEMORY: 6000}, {COUNT: 1})[number % 3]
                created.append(f"burst-{number}")
                connection.request("POST", PODS, pod(created[-1], limits))
                number += 1
            bound = [p for p in connection.request("GET", PODS)["items"] if p["spec"].get("nodeName")]
            for position, found in enumerate(bound):
                path = f"{PODS}/{found['metadata']['name']}"
                if position % 4 == 0:
                    succeeded = {"status": {"phase": "Succeeded"}}
                    connection.request("PATCH", f"{path}/status", succeeded, MERGE_PATCH)
                connection.request("DELETE", path, {"gracePeriodSeconds": 0})
                deleted.append(path)
    finally:
        connection.close()


def test_pods_that_come_and_go_are_never_a_finding(cluster: Cluster) -> None:
    """No audit may cry wolf, and none may mend what is not broken, while holders, Bindings and ends are under way."""
    cluster.add_nodes(10)
    ended, created, deleted = threading.Event(), list[str](), list[str]()
    burst = threading.Thread(target=come_and_go, args=(cluster, ended, created, deleted))
    burst.start()
    try:
        cluster.wait(lambda: len(deleted) > BURST_PODS, "pods come and go", 3 * DEADLINE_S)
        audits = 0
        while audits < AUDITS_AT_LEAST or len(deleted) < BURST_ROUNDS * BURST_PODS:
            before = len(created) + len(deleted)
            found = run_audit(cluster, "-o", "json", *(["--fix"] if audits % 2 else []))
            assert (found.code, found.rows) == (0, []), found
            assert len(created) + len(deleted) > before, "nothing has moved while the audit ran"
            audits += 1
    finally:
        ended.set()
        burst.join()
    names = list(cluster.pods())
    cluster.delete(*names)
    cluster.wait(lambda: not any(cluster.holders().values()), "all shares are released")
    assert (audit(cluster).code, audit(cluster).rows) == (0, [])
