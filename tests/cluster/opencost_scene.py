"""OpenCost's own program, with a Prometheus that scrapes it and the operator, as docs/opencost.md has it.

GPULEDGER_OPENCOST names its program, which is not built here. It is told to report to nobody.
"""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from build_control_plane import ensure_prometheus
from cluster.cluster import PODS, Cluster
from control_plane import free_port

Json = dict[str, Any]

PROGRAM = "GPULEDGER_OPENCOST"
EXAMPLE = Path(__file__).parents[2] / "examples" / "opencost"
SCRAPE_INTERVAL = "5s"
PRICED_LABEL = "nvidia.com/gpu.count"
"""By this label of a node, OpenCost's prices of one's own have one for GPUs."""
SILENT = dict.fromkeys(
    (
        *("LOG_COLLECTION_ENABLED", "PRODUCT_ANALYTICS_ENABLED", "ERROR_REPORTING_ENABLED"),
        *("VALUES_REPORTING_ENABLED", "CLOUD_COST_ENABLED", "CUSTOM_COST_ENABLED"),
    ),
    "false",
)


class OpenCost:
    """What it and its Prometheus say."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._plane = cluster, cluster.plane
        self._port, self._prometheus_port = free_port(), free_port()

    def start(self, gpu_price: float) -> None:
        """Start both; a card costs `gpu_price` an hour. Raises BuildError or ControlPlaneError."""
        self._start_prometheus()
        directory = self._plane.directory / "opencost"
        directory.mkdir()
        prices = {"CPU": "0.03", "RAM": "0.004", "GPU": str(gpu_price), "storage": "0", "gpuLabel": PRICED_LABEL}
        (directory / "default.json").write_text(json.dumps(prices))
        environment = {
            **SILENT,
            "KUBECONFIG": str(self._plane.kubeconfig),
            "KUBERNETES_PORT": "tcp",  # without it, it does not ask the API server
            "PROMETHEUS_SERVER_ENDPOINT": f"http://127.0.0.1:{self._prometheus_port}",
            "CLUSTER_ID": "test",
            "CONFIG_PATH": f"{directory}/",
            "USE_CUSTOM_PROVIDER": "true",
            "API_PORT": str(self._port),
        }
        url = f"http://127.0.0.1:{self._port}/healthz"
        self._plane.start_program("opencost", [str(_program())], environment, lambda: self._plane.status_of(url) == 200)

    def _start_prometheus(self) -> None:
        (opencost,) = yaml.safe_load((EXAMPLE / "scrape.yaml").read_text())
        operator = self._cluster.installation.health_url.removeprefix("http://")
        configuration = {
            "global": {"scrape_interval": SCRAPE_INTERVAL, "evaluation_interval": SCRAPE_INTERVAL},
            "rule_files": [str(EXAMPLE / "rules.yaml")],
            "scrape_configs": [
                opencost | {"static_configs": [{"targets": [f"127.0.0.1:{self._port}"]}]},
                {"job_name": "gpuledger", "honor_labels": True, "static_configs": [{"targets": [operator]}]},
            ],
        }
        file = self._plane.directory / "prometheus.yaml"
        file.write_text(yaml.safe_dump(configuration))
        address = f"127.0.0.1:{self._prometheus_port}"
        data = self._plane.directory / "tsdb"
        flags = {"config.file": file, "storage.tsdb.path": data, "web.listen-address": address}
        argv = [str(ensure_prometheus()), *(f"--{name}={value}" for name, value in flags.items())]
        self._plane.start_program(
            "prometheus", argv, ready=lambda: self._plane.status_of(f"http://{address}/-/ready") == 200
        )

    def allocations(self, **options: str) -> dict[str, Json]:
        """Return pod name -> what it has cost in the last ten minutes, in steps of a minute."""
        query = urlencode({"window": "10m", "resolution": "1m", "aggregate": "pod", **options})
        (found,) = self._asked(self._port, f"/allocation/compute?{query}")["data"]
        return dict(found or {})

    def evaluated(self, query: str) -> dict[tuple[str, ...], float]:
        """Return the values of the query's labels, by their names' order -> what Prometheus says of it now."""
        found = self._asked(self._prometheus_port, f"/api/v1/query?{urlencode({'query': query})}")["data"]["result"]
        return {tuple(v for _, v in sorted(each["metric"].items())): float(each["value"][1]) for each in found}

    def _asked(self, port: int, path: str) -> Json:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            found: Json = json.load(answer)
        return found


def _program() -> Path:
    """Return the program. Skips the test where none is named: nothing in this repository builds it."""
    named = os.environ.get(PROGRAM, "")
    if not named:
        pytest.skip(f"OpenCost is not built here: set {PROGRAM} to the path of the program of a release")
    assert shutil.which(named), f"{PROGRAM}={named} is no program"
    return Path(named).absolute()


def play_containers(cluster: Cluster, *names: str) -> None:
    """Say that all containers of the pods run, as their kubelets do."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for name in names:
        running = [
            {key: each[key] for key in ("name", "image")}
            | {"imageID": "none", "ready": True, "started": True, "restartCount": 0}
            | {"state": {"running": {"startedAt": now}}}
            for each in cluster.pod(name)["spec"]["containers"]
        ]
        status = {"phase": "Running", "startTime": now, "containerStatuses": running}
        cluster.patch(f"{PODS}/{name}/status", {"status": status})


@contextmanager
def beside_opencost(cluster: Cluster, gpu_price: float) -> Iterator[OpenCost]:
    """Start it beside a cluster; skip the test where its program is missing."""
    _program()
    found = OpenCost(cluster)
    found.start(gpu_price)
    yield found
