"""What nodes' agents answer to GET /usage, by the contract of docs/node-agent.md; and an HTTP server that does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson

from fakes.view_cluster import ViewCluster
from gpuledger.formats.node_usage import read_node_usage
from gpuledger.model.card import Card
from gpuledger.model.share import Holder

Json = dict[str, Any]


def an_answer(node: str, cards: list[Json], containers: list[Json], **changed: Any) -> Json:
    """Return the answer of a node's agent."""
    return {"node": node, "at": "2026-08-01T12:00:00Z", "cards": cards, "containers": containers} | changed


def a_used_card(card: Card, used_mib: int | None = 0, busy: int | None = 0) -> Json:
    """Return what an agent says of one card."""
    return {"uuid": card.uuid, "index": card.index, "memoryUsedMiB": used_mib, "utilizationPercent": busy}


def a_used_share(card: Card, holder: Holder, used_mib: int | None, busy: int | None = None, **changed: Any) -> Json:
    """Return what an agent says of a pod's container on a card."""
    pod, share = holder.pod, holder.share
    return {
        "namespace": pod.namespace,
        "pod": pod.name,
        "podUID": pod.uid,
        "container": share.containers[0].name,
        "uuid": card.uuid,
        "memoryHeldMiB": share.containers[0].memory_mib,
        "memoryUsedMiB": used_mib,
        "memoryLimitMiB": None,
        "coresHeld": share.containers[0].cores,
        "utilizationPercent": busy,
        "lastKernelSecondsAgo": None,
        "paused": False,
        "source": "nvml",
    } | changed


def measure(cluster: ViewCluster, node: str, uses: Mapping[str, Json]) -> None:
    """Let a node's agent say what its pods use: pod name -> what is said of it; of the others, most of what they hold.

    A card is used as its pods use it, and half of the time.
    """
    cards, containers = [], []
    for entry in cluster.ledger.entries_of_node(node):
        said = []
        for holder in entry.holders.values():
            held_mib = holder.share.containers[0].memory_mib
            limits = {"memoryLimitMiB": held_mib, "lastKernelSecondsAgo": 1, "source": "region"}
            use = {
                "memoryUsedMiB": held_mib * 3 // 4,
                "utilizationPercent": 40,
                **limits,
                **uses.get(holder.pod.name, {}),
            }
            said.append(a_used_share(entry.card, holder, None, **use))
        cards.append(a_used_card(entry.card, sum(each["memoryUsedMiB"] for each in said), 47 if said else 0))
        containers += said
    cluster.measured[node] = read_node_usage(an_answer(node, cards, containers), node)


IDLE = {"memoryUsedMiB": 0, "utilizationPercent": 0, "lastKernelSecondsAgo": None}
ASLEEP = {"memoryUsedMiB": 2_000, "utilizationPercent": 0, "lastKernelSecondsAgo": 4_000}


def measure_demo(cluster: ViewCluster) -> None:
    """Let the agents of two of the demo's nodes answer: most pods work, two do not; and the third's is silent."""
    measure(cluster, "gpu-node-1", {"notebook-7": ASLEEP, "embedding": IDLE})
    measure(cluster, "gpu-node-2", {"ranker": {"memoryUsedMiB": 6_000, "utilizationPercent": 12}})
    cluster.measured["gpu-node-3"] = "its agent does not answer within 5 s"


@contextmanager
def an_agent_server(answer: Callable[[str], tuple[int, bytes]] | Json, host: str = "127.0.0.1") -> Iterator[int]:
    """Serve /usage on a port of this machine, which is yielded: one answer, or what a function says of a path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if callable(answer):
                status, body = answer(self.path)
            else:
                status, body = (200, orjson.dumps(answer)) if self.path == "/usage" else (404, b"404: Not Found")
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", body.decode())
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer((host, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
