"""Kueue's manager in the cluster, by its own manifests: its pod, webhooks and Service, and jobs whose pods run."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from build_control_plane import ensure_kueue
from installation import REPOSITORY
from kind.cluster import COUNT, NAME, NAMESPACE, KindCluster
from kueue import CONFIGURATION
from node_image import write_program_image

Json = dict[str, Any]

EXAMPLES = REPOSITORY / "examples" / "queues"
IMAGE = "gpuledger.test/kueue:1"
CARDS_OF_A_NODE = 8
VISIBILITY = "visibility.kueue.x-k8s.io"
BATCH, RESEARCH = "team-batch", "team-research"


@pytest.fixture(scope="module")
def with_kueue(shown: KindCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KindCluster]:
    """Yield the cluster with Kueue, and with the two teams of the example, of which research owns the free cards."""
    manifests = install_kueue(shown, tmp_path_factory.mktemp("kueue"))
    shown.upgrade("settings.kueue=true", "settings.sum_models={NVIDIA-A100-40GB=40960}")
    teams = documents("queues.yaml")
    own(teams, len(free(shown)))
    shown.wait(lambda: applied(shown, teams), "Kueue's webhooks take queues")
    shown.wait(lambda: all(map(is_active, shown.objects("clusterqueues.kueue.x-k8s.io"))), "the queues are active")
    yield shown
    # The API server of Kubernetes 1.34 can keep the discovery of Kueue's own API server for stale, though it answers by
    # then: as long as that is so, no namespace goes.
    shown.kubectl("delete", "apiservice", *(f"{version}.{VISIBILITY}" for version in ("v1beta1", "v1beta2")))
    # Kueue's finalizers hold what is in use: first those who use, then what they used, and its manager last.
    for kind in ("Namespace", "ClusterQueue", "AdmissionCheck", "ResourceFlavor"):
        names = [each["metadata"]["name"] for each in teams if each["kind"] == kind]
        shown.kubectl("delete", kind.lower(), *names, "--timeout=90s")
    shown.kubectl("delete", f"--filename={manifests}", "--ignore-not-found", "--timeout=90s")
    shown.upgrade()  # without these settings


@pytest.fixture
def queues(with_kueue: KindCluster, cluster: KindCluster) -> Iterator[KindCluster]:
    """Yield the cluster with queues; leave no Job in them."""
    yield cluster
    for team in (BATCH, RESEARCH):
        cluster.kubectl("delete", "jobs", "--all", f"--namespace={team}")
        cluster.wait(partial(has_no_pods, cluster, team), f"{team} has no pods")


def has_no_pods(cluster: KindCluster, namespace: str) -> bool:
    """Return whether nothing is left of a team's Jobs."""
    return not cluster.objects("pods", f"--namespace={namespace}")


def install_kueue(cluster: KindCluster, directory: Path) -> Path:
    """Install Kueue by its release's manifests; return the file of these."""
    program, released = ensure_kueue()
    image, manifests = directory / "kueue.tar", directory / "kueue.yaml"
    write_program_image(image, IMAGE, program)
    cluster.docker.run("kind", "load", "image-archive", str(image), "--name", NAME)
    found = list(yaml.load_all(cluster.kubectl("kustomize", str(released / "default")), yaml.CSafeLoader))
    for each in found:
        adapt(each)
    manifests.write_text(yaml.dump_all(found, Dumper=yaml.CSafeDumper))
    cluster.kubectl("apply", "--server-side", f"--filename={manifests}")
    cluster.kubectl("rollout", "status", "deployment", "--namespace=kueue-system", "--timeout=180s")
    return manifests


def adapt(found: Json) -> None:
    """Change of Kueue's objects what docs/queues.md says, and its image."""
    if found["kind"] == "ConfigMap":
        file = "controller_manager_config.yaml"
        changes = {key: CONFIGURATION[key] for key in ("integrations", "resources")}
        found["data"][file] = yaml.safe_dump(yaml.safe_load(found["data"][file]) | changes)
    if found["kind"] == "Deployment":
        [container] = found["spec"]["template"]["spec"]["containers"]
        container |= {"image": IMAGE, "imagePullPolicy": "IfNotPresent", "command": [ensure_kueue()[0].name]}
        container["resources"] = {}  # four nodes here share what one has


def applied(cluster: KindCluster, objects: list[Json]) -> bool:
    """Apply objects where they say; raises BuildError while Kueue's webhooks do not answer."""
    cluster.kubectl("apply", "--filename=-", stdin=yaml.safe_dump_all(objects))
    return True


def free(cluster: KindCluster) -> list[str]:
    """Return the cards that nobody holds: the demo's pods are there as well."""
    return [each["metadata"]["name"] for each in cluster.cards() if not each["status"].get("holders")]


def documents(name: str) -> list[Json]:
    """Return the objects of an example."""
    return list(yaml.safe_load_all((EXAMPLES / name).read_text()))


def own(teams: list[Json], cards: int) -> None:
    """Let research own so many cards, instead of the example's four."""
    amounts = {"cores": 100 * cards, "memory-mib": 40960 * cards, "gpus": 100}
    [queue] = [each for each in teams if each["kind"] == "ClusterQueue" and each["metadata"]["name"] == "research"]
    for resource in queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"]:
        resource["nominalQuota"] = str(amounts[resource["name"].partition("/")[2]])


def is_active(queue: Json) -> bool:
    """Return whether Kueue admits workloads of a queue."""
    conditions = queue.get("status", {}).get("conditions", ())
    return any(each["type"] == "Active" and each["status"] == "True" for each in conditions)


def jobs(template: Json, number: int) -> list[Json]:
    """Return so many Jobs like one."""
    found = [copy.deepcopy(template) for _ in range(number)]
    for index, job in enumerate(found):
        job["metadata"]["name"] = f"render-{index + 1}"
    return found


def running(cluster: KindCluster, namespace: str) -> dict[str, str]:
    """Return the running pods of a team: name -> node."""
    pods = cluster.objects("pods", f"--namespace={namespace}", "--field-selector=status.phase=Running")
    return {
        each["metadata"]["name"]: each["spec"]["nodeName"]
        for each in pods
        if "deletionTimestamp" not in each["metadata"]
    }


def test_a_team_takes_back_the_eight_cards_of_one_node(queues: KindCluster) -> None:
    """The other team has borrowed all that were free; sums would let any eight of its jobs go."""
    [render, *_], [train] = documents("batch-jobs.yaml"), documents("research-job.yaml")
    borrowed = len(free(queues))
    queues.apply(*jobs(render, borrowed), namespace=BATCH)
    queues.wait(lambda: len(running(queues, BATCH)) == borrowed, "batch has borrowed all cards")

    [container] = train["spec"]["template"]["spec"]["containers"]
    container["resources"]["limits"] = {COUNT: CARDS_OF_A_NODE}
    queues.apply(train, namespace=RESEARCH)
    queues.wait(lambda: len(running(queues, RESEARCH)) == 1, "research has a whole node")
    [(name, node)] = running(queues, RESEARCH).items()
    cards = {each["metadata"]["name"]: each["spec"]["nodeName"] for each in queues.cards()}
    held = queues.holders()[name]
    assert {cards[card] for card, _ in held} == {node}
    assert len(held) == CARDS_OF_A_NODE
    others = borrowed - CARDS_OF_A_NODE
    queues.wait(lambda: len(running(queues, BATCH)) == others, "batch has the other nodes")

    queues.kubectl("delete", "job", "train", f"--namespace={RESEARCH}")
    queues.wait(lambda: len(running(queues, BATCH)) == borrowed, "batch has all cards again")


def test_the_operator_may_restart_while_jobs_wait(queues: KindCluster) -> None:
    """What a check has promised is in the ledger and in Kueue's objects; nothing of it is the process's."""
    [render, *_], borrowed = documents("batch-jobs.yaml"), len(free(queues))
    queues.apply(*jobs(render, borrowed + 2), namespace=BATCH)
    queues.wait(lambda: len(running(queues, BATCH)) == borrowed, "batch has borrowed all cards")
    before = running(queues, BATCH)
    queues.kubectl("rollout", "restart", "deployment/gpuledger", f"--namespace={NAMESPACE}")
    queues.wait_rolled_out()
    assert running(queues, BATCH) == before
    ended = sorted(before)[:2]
    owners = {
        each["metadata"]["name"]: each["metadata"]["ownerReferences"][0]["name"]
        for each in json.loads(queues.kubectl("get", "pods", f"--namespace={BATCH}", "--output=json"))["items"]
    }
    queues.kubectl("delete", "job", *(owners[name] for name in ended), f"--namespace={BATCH}")
    queues.wait(lambda: len(running(queues, BATCH)) == borrowed, "the two that waited run")
