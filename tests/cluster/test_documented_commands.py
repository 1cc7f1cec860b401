"""The commands of the documents that need a cluster, one after the other, on a real API server with the demo's pods."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml

from cluster.cluster import Cluster, pod
from cluster.kubernetes import FILLS_IN, MINOR
from control_plane import ControlPlane, free_port
from documents.pages import ROOT, Run, run_elsewhere, runs, shown
from documents.shell import Shell, for_cluster
from installation import Installation

CARDS, PODS_BOUND = 24, 9
"""What the demo's three nodes have, and how many of the examples' pods find room there."""

CERTIFICATE = (
    "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=gpuledger-webhook.gpuledger-system.svc "
    "-keyout tls.key -out tls.crt"
)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Yield a shell beside a control plane of its own, with the examples' pods on the demo's nodes."""
    with ControlPlane.run(every_controller=True) as plane:  # some of the commands uninstall it
        plane.start_default_scheduler()
        installation = Installation(plane, {"view_port": free_port()})
        installation.start()
        installation.fake_nodes("--count", "3", "--gpus", "8", stay=True)
        cluster = Cluster(plane, installation)
        cluster.wait(lambda: len(cluster.cards()) == CARDS, "the cards are in the ledger")
        plane.kubectl("apply", "-f", str(ROOT / "examples"))
        cluster.wait(
            lambda: sum(bool(each["spec"].get("nodeName")) for each in cluster.pods().values()) == PODS_BOUND,
            "the examples are placed",
        )
        directory = tmp_path_factory.mktemp("shell")
        for name in ("examples", "manifests", "crds"):
            (directory / name).symlink_to(ROOT / name)
        (directory / "pod.yaml").write_text(yaml.safe_dump(pod("one-more", {"nvidia.com/gpu": 1})))
        variables = for_cluster(plane.kubeconfig, directory) | {
            "GPULEDGER_URL": installation.view_url,
            "GPULEDGER_SETTINGS": str(installation.settings_file),
        }
        shell = Shell(directory, variables)
        made = shell.run(CERTIFICATE)
        assert made.returncode == 0, made.stderr
        yield shell
        cluster.close()
        installation.kill_operator()


@pytest.mark.parametrize("run", runs("cluster"), ids=lambda run: run.command[:60])
def test_a_command_ends_as_the_documents_say(shell: Shell, run: Run) -> None:
    """In the order of the list: some build on others, and the last ones uninstall everything."""
    if not FILLS_IN and ("admission" in run.command or run.command.startswith("kubectl apply -k manifests/")):
        pytest.skip(f"all policies together need a newer Kubernetes than {MINOR}")
    done = shell.run(run.run_as)
    printed = done.stdout + done.stderr
    assert done.returncode == run.status, printed
    shapes = {shape(line) for line in printed.splitlines()}
    here = [command for command in shown()[run.command] if command.file not in run_elsewhere()]
    shown_as = [command.output.splitlines()[0] for command in here if command.output]
    if run.compared and shown_as:
        assert shapes & set(map(shape, shown_as)), f"the documents show {shown_as}, and it prints\n{printed}"


def shape(line: str) -> str:
    """Return what of a line is the same in each run: the names of generated pods and all numbers are not."""
    named = re.sub(r"\b(train-\d)-[a-z0-9]{5}\b", r"\1", line)
    return " ".join(re.sub(r"[\d,.]+", "0", re.sub(r"(?i)GPU-[0-9a-f-]{20,}", "GPU-UUID", named)).split())
