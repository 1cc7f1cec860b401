"""docs/production.md, operations.md and runbooks.md on two real nodes, as a platform team walks through them.

One cluster, from its installation to the last command that takes everything away, with 40 pods that share cards. Each
test goes on where the one before it ended.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from build_steps import BuildError
from cluster.cluster import COUNT, MEMORY, PODS, Json, RequestFailed
from cluster.kubernetes import needs_filling_in
from cluster.moved_over import as_hami_counts
from container_image import VERSION
from control_plane import ControlPlaneError
from documents.journey import Walk
from documents.pages import ROOT, commands_of
from fakes.nvml import fake_nvml
from fakes.nvml.fake_nvml import LOST, Failure
from installation import NAMESPACE
from node.gpu_node import gpu_pod
from node.pod_cluster import NODES, PodCluster, cards_of, require_pods
from node.production import NEXT_VERSION, REPLICAS, TEAM, Production, wait_established

pytestmark = [pytest.mark.timeout(1800), needs_filling_in]

PRODUCTION, OPERATIONS, RUNBOOKS = (ROOT / "docs" / f"{name}.md" for name in ("production", "operations", "runbooks"))
ONE, OTHER = NODES
SCALE = "kubectl scale deployment/gpuledger -n gpuledger-system --replicas="
DELETE_CARDS = "kubectl delete gpuallocations --all"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    """Yield a cluster without gpuledger, whose nodes and registry have what the page says."""
    require_pods()
    fake_nvml.library_directory()
    try:
        with PodCluster.running() as cluster:
            found = Production(cluster, tmp_path_factory.mktemp("shell"))
            found.prepare()
            wait_established(cluster.plane)
            yield found
            if record := os.environ.get("RECORD_JOURNEY"):
                Path(record).write_text("".join(f"$ {c.text}\n{printed}\n" for c, printed in found.journey.done))
            for plugin in found.plugins.values():
                plugin.stop()
    except (ControlPlaneError, BuildError) as error:
        pytest.fail(f"The cluster does not start.\n{error}", pytrace=False)


def not_run(site: Production, document: Path) -> list[str]:
    """Return the commands of a document that nobody has run: such as one that was added to it."""
    run = {command for command, _ in site.journey.done}
    return [command.text for command in commands_of(document) if command not in run]


def on_card(name: str, uuid: str) -> Json:
    """Return a pod that takes a little of this card, or of none."""
    annotations = {"gpuledger.dev/use-gpuuuid": uuid}
    return gpu_pod(name, {COUNT: 1, MEMORY: 100}, annotations=annotations, hostNetwork=False)


# Installing.


def test_the_production_page_leads_from_a_registry_to_the_first_team(site: Production) -> None:
    Walk(site.journey, PRODUCTION, "Images").rest()
    values = Walk(site.journey, PRODUCTION, "Values")
    values.through("cp ")
    site.adapt_values()
    values.rest()
    Walk(site.journey, PRODUCTION, "Install", *NODES).rest()
    site.cluster.wait_installed()
    Walk(site.journey, PRODUCTION, "Check").rest()
    wait_for_no_findings(site)
    Walk(site.journey, PRODUCTION, "Teams").rest()

    forbidden = on_card("urgent", "any")
    forbidden["metadata"]["namespace"] = TEAM
    forbidden["spec"]["priorityClassName"] = "gpu-serving"
    with pytest.raises(RequestFailed, match="exceeded quota: no-serving-priority"):
        site.cluster.request("POST", f"/api/v1/namespaces/{TEAM}/pods", forbidden)
    site.scale(REPLICAS)
    site.check()
    assert not_run(site, PRODUCTION) == []


# Operating.


def test_each_command_of_operations_does_what_its_page_says(site: Production) -> None:
    pods = site.check()
    some_pod = next(iter(site.pods().values()))["metadata"]["name"]
    (site.journey.shell.directory / "pod.yaml").write_text(yaml.safe_dump(on_card("more", cards_of(0).cards[0].uuid)))
    Walk(site.journey, OPERATIONS, "Capacity", ONE, POD=some_pod, NAMESPACE=TEAM).rest()
    for section in ("Alerts", "Regular audits"):
        Walk(site.journey, OPERATIONS, section).rest()
    job = ("job/audit-now", "-n", NAMESPACE, "--for=condition=Complete", "--timeout=120s")
    site.cluster.plane.kubectl("wait", *job, timeout_s=150)
    out_of_service(site)
    Walk(site.journey, OPERATIONS, "Backup").rest()
    after_drain = site.check()
    assert len(after_drain & pods) < REPLICAS
    lost_ledger(site)
    assert site.check() == after_drain
    Walk(site.journey, OPERATIONS, "Disaster: etcd restored from an old snapshot").rest()
    site.cluster.wait_installed()
    assert site.check() == after_drain
    assert not_run(site, OPERATIONS) == []


def out_of_service(site: Production) -> None:
    """Cordon a card, then a node, and open them again; then drain the node."""
    cluster = site.cluster
    site.scale(REPLICAS - 1)
    uuid = site.card_with_a_slot(ONE)
    walk = Walk(site.journey, OPERATIONS, "Taking things out of service", ONE, UUID=uuid, TEXT="test")
    for mark in ("card", "node"):
        before = site.uids_on(uuid)
        walk.through(f"kubectl gpuledger cordon {mark}/")
        site.wait_phase(uuid, "Cordoned")
        cluster.create(on_card(f"after-{mark}", uuid))
        cluster.wait_refused(f"after-{mark}", "no card that is not cordoned")
        assert site.uids_on(uuid) == before
        walk.through(f"kubectl gpuledger uncordon {mark}/")
        cluster.wait_bound(f"after-{mark}")
        cluster.request("DELETE", f"{PODS}/after-{mark}")
    cluster.wait(lambda: not cluster.pods(), "the pods that nobody would make again are gone")  # a drain refuses them
    site.scale(REPLICAS)
    walk.through("kubectl drain")
    cluster.wait(lambda: not any(site.uids_on(card.uuid) for card in cards_of(0).cards), "no share of the node is left")
    walk.rest()


def lost_ledger(site: Production) -> None:
    """Delete all cards, once while the operator runs, and once while it is away."""
    held = site.cluster.holders()

    def holders() -> dict[str, set[str]]:
        return {uuid: {each["podUID"] for each in found} for uuid, found in site.cluster.holders().items()}

    expected = {uuid: {each["podUID"] for each in found} for uuid, found in held.items()}
    assert site.run(DELETE_CARDS)[0] == 0
    site.cluster.wait(lambda: holders() == expected, "the operator has written the cards again, with their holders")
    assert site.run(f"{SCALE}0")[0] == 0
    site.cluster.wait(lambda: not site.cluster.system_pods(), "the operator is gone")
    assert site.run(DELETE_CARDS)[0] == 0
    assert site.run(f"{SCALE}2")[0] == 0
    site.cluster.wait(lambda: holders() == expected, "the cards are back, with what their agents confirmed", 120)
    assert site.run("kubectl rollout status deployment/gpuledger -n gpuledger-system --timeout=180s")[0] == 0
    Walk(site.journey, OPERATIONS, "The ledger is lost").rest()
    assert holders() == expected


# By task.


def test_the_runbooks_lose_no_pod_and_give_no_card_twice(site: Production) -> None:
    changes_restart_no_pod(site)
    a_node_goes_out(site, OTHER)
    a_card_dies(site)
    a_card_is_replaced(site)
    a_node_is_replaced(site)
    to_hami(site, OTHER)
    to_hami(site, ONE)
    to_the_agent(site, ONE)
    to_hami(site, ONE)
    uninstall(site)
    assert not_run(site, RUNBOOKS) == []


def changes_restart_no_pod(site: Production) -> None:
    pods = site.check()
    Walk(site.journey, RUNBOOKS, "Change a setting").rest()
    assert site.check() == pods
    walk = Walk(site.journey, RUNBOOKS, "Upgrade to another version", VERSION=NEXT_VERSION)
    walk.through("kubectl gpuledger doctor")
    site.cluster.wait_installed()
    assert versions(site) == {NEXT_VERSION}
    assert site.check() == pods
    walk.rest()
    site.cluster.wait_installed()
    assert versions(site) == {VERSION}
    assert site.check() == pods
    walk = Walk(site.journey, RUNBOOKS, "Rename the scheduler")
    walk.through("kubectl rollout status deployment")
    site.cluster.create(
        on_card("old-name", next(uuid for uuid, held in site.cluster.holders().items() if len(held) < 10))
    )
    site.cluster.wait(lambda: site.cluster.runs("old-name"), "a pod that names the scheduler of before runs", 120)
    site.cluster.request("DELETE", f"{PODS}/old-name")
    walk.rest()
    assert site.check() == pods
    wait_for_no_findings(site)


def wait_for_no_findings(site: Production) -> None:
    """Wait until doctor has none: agents begin anew when a setting has changed, and are not Ready for a moment."""

    def has_none() -> bool:
        return bool(json.loads(site.run("kubectl gpuledger doctor -o json")[1])["findings"] == [])

    site.cluster.wait(has_none, "doctor finds nothing", 60)


def versions(site: Production) -> set[str]:
    """Return the tags of our image that operators and agents run."""
    pods = {**site.cluster.system_pods(), **site.cluster.system_pods("gpuledger-agent")}.values()
    images = {each["image"] for pod in pods for each in pod["spec"]["containers"]}
    return {image.rpartition(":")[2] for image in images if "/gpuledger:" in image}


def a_node_goes_out(site: Production, node: str) -> None:
    stay = site.uids_on(NODES[1 - NODES.index(node)])
    walk = Walk(site.journey, RUNBOOKS, "A node goes out for a while", node)
    walk.through("kubectl drain")
    assert not site.uids_on(node)
    assert stay <= site.check()
    walk.rest()
    site.wait_ready(node)


def a_card_dies(site: Production) -> None:
    uuid, others = cards_of(0).cards[1].uuid, [card.uuid for card in cards_of(0).cards if card != cards_of(0).cards[1]]
    hit, spared = site.uids_on(uuid), set[str]().union(*map(site.uids_on, others))
    assert hit
    site.show(ONE, replace(cards_of(0), failures=(Failure(LOST, card=uuid),)))
    site.wait_phase(uuid, "Unhealthy")

    def told() -> set[str]:
        events = site.cluster.request("GET", f"/api/v1/namespaces/{TEAM}/events")["items"]
        return {each["involvedObject"]["uid"] for each in events if each["reason"] == "GPUUnhealthy"}

    site.cluster.wait(lambda: told() == hit, "its pods are told")
    assert site.check() >= spared  # those on the card are evicted, by the operator or by what follows

    walk = Walk(site.journey, RUNBOOKS, "A card dies", ONE, UUID=uuid)
    walk.through("kubectl gpuledger drain")
    pods = site.check()
    assert (hit & pods, spared & pods) == (set(), spared)
    walk.through("kubectl wait --for=delete pod")
    assert site.check(counted=True) == pods
    walk.through("nvidia-smi")
    site.show(ONE, cards_of(0))
    walk.through("kubectl rollout status daemonset")
    site.wait_phase(uuid, "Cordoned")
    walk.rest()
    site.wait_phase(uuid, "Ready")
    assert site.check() == pods


def a_card_is_replaced(site: Production) -> None:
    cards = cards_of(0).cards
    uuid, new = cards[2].uuid, "GPU-00000099"
    Walk(site.journey, RUNBOOKS, "A card dies", ONE, UUID=uuid).through("kubectl gpuledger drain")
    out = Walk(site.journey, RUNBOOKS, "A node goes out for a while", ONE)
    out.through("kubectl drain")
    pods = site.check()
    site.reboot(ONE, replace(cards_of(0), cards=(*cards[:2], replace(cards[2], uuid=new), *cards[3:])))
    gone = ("Unavailable", "its node no longer reports it")
    site.cluster.wait(lambda: site.card(uuid) == gone, "the node no longer reports the card", 120)
    out.rest()
    Walk(site.journey, RUNBOOKS, "A card is replaced", ONE, UUID=uuid, CARD=uuid.lower()).rest()
    site.wait_ready(ONE)
    assert {each["spec"]["uuid"] for each in site.cluster.cards().values()} >= {new}
    site.reboot(ONE, cards_of(0))  # and back, for what follows
    site.wait_phase(new, "")
    site.wait_ready(ONE)
    assert site.check() == pods


def a_node_is_replaced(site: Production) -> None:
    walk = Walk(site.journey, RUNBOOKS, "A node is replaced", OTHER)
    walk.through("kubectl wait --for=delete gpuallocation")
    pods = site.check()
    site.node(OTHER).restart_kubelet()  # it creates the Node, as that of the new machine does
    assert site.run(f"kubectl wait --for=create node/{OTHER} --timeout=60s")[0] == 0
    site.label_as_control_plane(OTHER)
    walk.rest()
    site.cluster.wait_installed()
    assert site.check() == pods


# HAMi's device plugin.


def to_hami(site: Production, node: str) -> None:
    walk = Walk(site.journey, RUNBOOKS, "Back to HAMi's device plugin", node)
    walk.through("kubectl label node NAME gpu=on")
    site.plugins[node].start()
    site.wait_ready(node)
    walk.rest()
    site.check()


def to_the_agent(site: Production, node: str) -> None:
    walk = Walk(site.journey, RUNBOOKS, "From HAMi's device plugin to the node agent", node)
    walk.through("kubectl label node NAME gpu-")
    site.plugins[node].stop()
    walk.rest()
    site.wait_ready(node)
    site.check()


def uninstall(site: Production) -> None:
    pods = site.check()
    held = {uuid: card["status"]["used"]["memoryMiB"] for uuid, card in site.cluster.cards().items()}
    Walk(site.journey, RUNBOOKS, "Uninstall").rest()
    site.cluster.wait(lambda: not site.leftovers(), "nothing of it is left in the API server", 120)
    assert site.check(counted=False) == pods
    assert as_hami_counts(site.cluster) == {uuid: used for uuid, used in held.items() if used}
