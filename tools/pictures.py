"""Takes the documents' pictures of the page and of the commands anew, on the cluster of `make demo KEEP=1`.

Run it in another terminal, after the exports that the demo prints: `.venv/bin/python tools/pictures.py`. Three teams
come to the cluster, so that there is something to see; then it is what the programs show. Look at each picture.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import page_screenshots
import terminal_picture

IMAGES = page_screenshots.IMAGES
WAIT_S = 60.0
TEAMS = (  # namespace, name, MiB, percent of cores: each after the other, so that all find the same place every time
    *(("research", f"train-{number}", 26_000, 40) for number in range(1, 5)),
    *(("research", f"eval-{number}", 13_000, 30) for number in range(1, 5)),
    *(("vision", f"detect-{number}", 26_000, 40) for number in range(1, 4)),
    *(("speech", f"listen-{number}", 24_000, 30) for number in range(1, 4)),
    ("vision", "detect-4", 20_000, 50),
    ("speech", "listen-4", 19_000, 50),
)
WAITING = ("default", "big-chat", 30_000, 40)
TERMINALS = (  # picture, columns, commands
    (
        "top",
        130,
        ("kubectl gpuledger top", "kubectl gpuledger top cards --node gpu-node-3", "kubectl gpuledger top namespaces"),
    ),
    ("explain", 150, ("kubectl gpuledger explain pod/big-chat",)),
    (
        "history",
        120,
        ("kubectl gpuledger history pod/urgent", "kubectl gpuledger history node/gpu-node-3 --limit 6"),
    ),
)


def kubectl(*arguments: str, text: str = "", check: bool = True) -> str:
    """Run kubectl and return what it prints. Raises CalledProcessError."""
    done = subprocess.run(["kubectl", *arguments], input=text, text=True, check=check, capture_output=True)
    return done.stdout


def pod(namespace: str, name: str, memory_mib: int, cores: int) -> str:
    """Return a pod with a part of one card."""
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(memory_mib), "nvidia.com/gpucores": str(cores)}
    main = {"name": "main", "image": "registry.k8s.io/pause:3.10", "resources": {"limits": limits}}
    content: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"schedulerName": "gpuledger", "containers": [main]},
    }
    return json.dumps(content)


def come(namespace: str, name: str, memory_mib: int, cores: int, expected: str = "Running") -> None:
    """Create a pod, and wait until it runs, or is refused. Raises TimeoutError."""
    kubectl("create", "namespace", namespace, check=False)
    kubectl("apply", "-f", "-", text=pod(namespace, name, memory_mib, cores))
    path = '{.status.phase} {.status.conditions[?(@.type=="PodScheduled")].reason}'
    deadline = time.monotonic() + WAIT_S
    while expected not in (seen := kubectl("-n", namespace, "get", "pod", name, "-o", f"jsonpath={path}")):
        if time.monotonic() > deadline:
            raise TimeoutError(f"pod {namespace}/{name} is not {expected}, but {seen}")
        time.sleep(0.1)


def fill() -> None:
    """Let the teams come, and cordon a card."""
    kubectl("delete", "job", "train", "--ignore-not-found", "--cascade=foreground", "--wait")
    for each in TEAMS:
        come(*each)
    where = "jsonpath={.items[?(@.spec.index==7)].metadata.name}"
    card = kubectl("get", "gpuallocations", "-l", "gpuledger.dev/node=gpu-node-3", "-o", where)
    kubectl("gpuledger", "cordon", f"card/GPU-{card.removeprefix('gpu-')}", "--reason", "fan is loud")
    come(*WAITING, expected="Unschedulable")


async def main(arguments: Sequence[str]) -> int:
    """Take all pictures."""
    address = os.environ.get("GPULEDGER_URL")
    if arguments or not address:
        print(__doc__, file=sys.stderr)
        return 2
    fill()
    for name, columns, commands in TERMINALS:
        terminal_picture.draw(IMAGES / f"{name}.svg", columns, commands)
        print(f"docs/images/{name}.svg")
    return await page_screenshots.main([]) or await page_screenshots.main(["--live", address])


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
