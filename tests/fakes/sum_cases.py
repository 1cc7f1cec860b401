"""What containers ask for, and what that is in sum: by hand, and at random."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from fakes.admission_cases import BOTH, BYTES, CORE, RATIO, SHARED, VOLCANO_COUNT, VOLCANO_MEMORY
from fakes.objects import CORES, MEMORY
from fakes.objects import GPU as COUNT
from fakes.objects import PERCENTAGE as PERCENT

Json = dict[str, Any]

SUM_MEMORY, SUM_CORES, SUM_GPUS = "gpuledger.dev/memory-mib", "gpuledger.dev/cores", "gpuledger.dev/gpus"

LARGE, SMALL = ("NVIDIA A100-40GB", 40_960), ("Tesla T4", 15_360)
SUM_MODELS = [f"{name}={memory_mib}" for name, memory_mib in (SMALL, LARGE)]
"""The setting of that name, for a cluster of two models."""

VOLCANO_PERCENT, VOLCANO_CORES = "volcano.sh/vgpu-memory-percentage", "volcano.sh/vgpu-cores"
CLASSIC_COUNT, CLASSIC_MEMORY = "volcano.sh/gpu-number", "volcano.sh/gpu-memory"

SUMMED: list[tuple[Json, tuple[int, int, int]]] = [
    ({COUNT: 1, MEMORY: 1000}, (1000, 0, 1)),
    ({COUNT: 2, MEMORY: 4000}, (8000, 0, 2)),
    ({COUNT: 3, MEMORY: 4000, CORES: 30}, (12_000, 90, 3)),
    ({MEMORY: 500}, (500, 0, 1)),
    ({COUNT: 1}, (40_960, 100, 1)),
    ({COUNT: 2, CORES: 50}, (81_920, 100, 2)),
    ({COUNT: 2, PERCENT: 25}, (20_480, 0, 2)),
    ({COUNT: 1, PERCENT: 100}, (40_960, 100, 1)),
    ({COUNT: 1, MEMORY: 1000, PERCENT: 50}, (1000, 0, 1)),
    ({VOLCANO_COUNT: 1, VOLCANO_MEMORY: 1000, VOLCANO_PERCENT: 50}, (20_480, 0, 1)),
    ({CLASSIC_COUNT: 2, CLASSIC_MEMORY: 7}, (14, 0, 2)),
    ({SHARED: 2, BYTES: "8Gi", CORE: 50}, (8192, 50, 2)),
    ({BOTH: 200}, (81_920, 200, 2)),
    ({RATIO: 50}, (20_480, 0, 1)),
]
"""Limits of a container that may get any card, and its MiB, cores and cards in sum, by the larger of the two models."""

WORDS: tuple[Mapping[str, tuple[object, ...]], ...] = (
    {
        COUNT: (1, 2, 8),
        MEMORY: (0, 1, 1000, 40_000, "1000000"),
        PERCENT: (0, 1, 7, 50, 100),
        CORES: (0, 1, 33, 100),
    },
    {
        VOLCANO_COUNT: (1, 2, 3),
        VOLCANO_MEMORY: (0, 1, 5000),
        VOLCANO_PERCENT: (0, 3, 100),
        VOLCANO_CORES: (0, 10, 100),
    },
    {CLASSIC_COUNT: (1, 4), CLASSIC_MEMORY: (0, 10, 9000)},
    {SHARED: (1, 2, 4), BYTES: ("8Gi", "400Mi"), CORE: (4, 100, 200), RATIO: (4, 100, 400), BOTH: (4, 50, 200)},
    {COUNT: (0, 1)},
    {"cpu": (1,)},
    {"hygon.com/dcunum": (1,), "hygon.com/dcumem": (500,)},
)

CHOICES = ("a100", "T4", "Tesla,A100", "H100", " t4 , ", "", "tesla-t4|H100", "NVIDIA A100 40GB")
PRODUCTS = ("Tesla-T4", "NVIDIA-A100-40GB", "another")


def random_pod(number: int, choose: random.Random) -> Json:
    """Return a pod whose containers ask in any words, and that may say which models it wants, or write sums itself."""
    annotations = {
        f"{prefix}/{word}": choose.choice(CHOICES)
        for prefix in ("gpuledger.dev", "nvidia.com")
        for word in ("use-gputype", "nouse-gputype")
        if choose.random() < 0.15
    }
    if choose.random() < 0.1:
        annotations["volcano.sh/card.name"] = choose.choice(CHOICES)
    spec: Json = {"containers": [_container(f"c{i}", choose) for i in range(choose.randint(1, 3))]}
    if choose.random() < 0.3:
        spec["initContainers"] = [_container("early", choose)]
    if choose.random() < 0.2:
        spec["nodeSelector"] = {"nvidia.com/gpu.product": choose.choice(PRODUCTS)}
    if choose.random() < 0.5:
        spec["schedulerName"] = "gpuledger"
    metadata = {"name": f"pod-{number}", "namespace": "default", "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _container(name: str, choose: random.Random) -> Json:
    words = choose.choice(WORDS)
    limits = {name: str(choose.choice(amounts)) for name, amounts in words.items() if choose.random() < 0.6}
    if choose.random() < 0.3:
        limits[choose.choice((SUM_MEMORY, SUM_CORES, SUM_GPUS))] = "1"
    resources: Json = {"limits": limits}
    if choose.random() < 0.3:
        resources["requests"] = dict(limits)
    return {"name": name, "image": "none", "resources": resources}
