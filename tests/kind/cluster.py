"""What tests do with a cluster of kind: by docker, kubectl and helm, as people do."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_steps import BuildError
from installation import REPOSITORY
from kind_lab import Docker

Json = dict[str, Any]

NAME, NAMESPACE = "gpuledger", "gpuledger-system"
WORKERS = (f"{NAME}-worker", f"{NAME}-worker2", f"{NAME}-worker3")
COUNT, MEMORY = "nvidia.com/gpu", "nvidia.com/gpumem"
DEADLINE_S = 120.0


@dataclass(frozen=True)
class KindCluster:
    """The cluster, or where it will be."""

    docker: Docker
    node_image: str

    def demo(self, **variables: str) -> str:
        """Run `make kind-demo`; return what it prints."""
        environment = {**self.docker.environment, "KIND_IMAGE": self.node_image, **variables}
        argv = [REPOSITORY / "examples" / "kind" / "demo.sh"]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def kubectl(self, *argv: str, stdin: str | None = None) -> str:
        """Run kubectl; return what it prints. Raises BuildError."""
        return self.docker.run("kubectl", *argv, stdin=None if stdin is None else stdin.encode())

    def objects(self, *argv: str) -> list[Json]:
        """Return objects that `kubectl get` lists."""
        found = json.loads(self.kubectl("get", *argv, "--output=json"))
        return list(found["items"]) if "items" in found else [found]

    def helm(self, *argv: str) -> str:
        """Run helm in our namespace; return what it prints. Raises BuildError."""
        return self.docker.run("helm", *argv, "--namespace", NAMESPACE)

    def upgrade(self, *changes: str, **files: Path) -> None:
        """Run `helm upgrade` with the preset and these `--set`s, and wait until all pods are of the new release.

        `files` are for `--set-file`, with `_` for the dots.
        """
        chart = REPOSITORY / "manifests" / "chart"
        sets = [word for change in changes for word in ("--set", change)]
        sets += [word for name, file in files.items() for word in ("--set-file", f"{name.replace('_', '.')}={file}")]
        self.helm("upgrade", "gpuledger", str(chart), "--values", str(chart / "presets" / "kind.yaml"), *sets)
        self.wait_rolled_out()

    def wait_rolled_out(self) -> None:
        """Wait until operator and agents are what their objects say."""
        for name in ("deployment/gpuledger", "daemonset/gpuledger-agent"):
            self.kubectl("rollout", "status", name, f"--namespace={NAMESPACE}", "--timeout=180s")

    def wait(self, condition: Callable[[], object], what: str, timeout_s: float = DEADLINE_S) -> None:
        """Wait until something is so; an API server that is away for a moment is asked again."""
        end_s = time.monotonic() + timeout_s
        while True:
            try:
                if condition():
                    return
                problem = ""
            except (BuildError, AssertionError) as error:
                problem = str(error)
            if time.monotonic() > end_s:
                state = self.kubectl("get", "pods", "--all-namespaces", "--output=wide")
                raise AssertionError(f"not within {timeout_s:g} s: {what} {problem}\n{state}")
            time.sleep(0.5)

    # Pods.

    def apply(self, *objects: Json, namespace: str = "default") -> None:
        """Create or change objects."""
        body = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "--namespace", namespace, "--filename=-", stdin=json.dumps(body))

    def pods(self, selector: str, namespace: str = "default") -> list[Json]:
        """Return the pods with some labels."""
        return self.objects("pods", f"--namespace={namespace}", f"--selector={selector}")

    def wait_running(self, selector: str, number: int, namespace: str = "default") -> list[Json]:
        """Wait until so many pods with these labels run; return them."""

        def running() -> list[Json]:
            return [pod for pod in self.pods(selector, namespace) if pod["status"]["phase"] == "Running"]

        self.wait(lambda: len(running()) == number, f"{number} pods {selector} run")
        return running()

    def clear(self, selector: str, namespace: str = "default") -> None:
        """Delete pods, and wait until the ledger has none of them."""
        names = {pod["metadata"]["name"] for pod in self.pods(selector, namespace)}
        self.kubectl(
            "delete", "pods", f"--selector={selector}", f"--namespace={namespace}", "--force", "--grace-period=0"
        )
        self.wait(lambda: not names & self.holders().keys(), f"pods {selector} hold nothing")

    # The ledger.

    def cards(self) -> list[Json]:
        """Return the GPUAllocations."""
        return self.objects("gpuallocations")

    def holders(self) -> dict[str, list[tuple[str, int]]]:
        """Return pod name -> its cards and MiB of each."""
        found: dict[str, list[tuple[str, int]]] = {}
        for card in self.cards():
            for holder in card["status"].get("holders", ()):
                share = card["metadata"]["name"], holder["memoryMiB"]
                found.setdefault(holder["pod"], []).append(share)
        return found

    def audit(self) -> None:
        """Let the operator's own program compare the ledger with the cluster."""
        for card in self.cards():
            status = card["status"]
            used = sum(holder["memoryMiB"] for holder in status.get("holders", ()))
            assert used == status.get("used", {}).get("memoryMiB", 0) <= card["spec"]["capacity"]["memoryMiB"]
        self.wait(lambda: "differ" not in self.run_audit(), "the audit finds nothing", 60)

    def run_audit(self) -> str:
        """Run the audit in the operator's pod. Raises BuildError if it finds something."""
        target = "deployment/gpuledger"
        return self.kubectl(
            "exec", target, f"--namespace={NAMESPACE}", "--container=operator", "--", "gpuledger", "audit"
        )


def pod(name: str, limits: Json, app: str = "test", **spec: Any) -> Json:
    """Return a pod that sleeps, with some limits; `app` is its label of that name."""
    container = {"name": "main", "image": "busybox:1.37", "command": ["sleep", "3600"], "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": app}},
        "spec": {
            "schedulerName": "gpuledger",
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            **spec,
        },
    }


def shares(number: int, app: str) -> Sequence[Json]:
    """Return so many pods with a share of a card each."""
    return [pod(f"{app}-{each}", {COUNT: 1, MEMORY: 4000}, app) for each in range(number)]


def restarts(pods: Sequence[Json]) -> int:
    """Return how often containers of pods have been started anew."""
    return sum(status["restartCount"] for each in pods for status in each["status"].get("containerStatuses", ()))


def address_of(cluster: KindCluster, app: str) -> str:
    """Return the address of a pod of gpuledger."""
    found = cluster.pods(f"app.kubernetes.io/name={app}", NAMESPACE)
    return str(found[0]["status"]["podIP"])
