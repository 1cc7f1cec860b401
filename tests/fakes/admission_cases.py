"""New pods, and what admission has to say of them, whether by the API server's policies or by the webhook."""

from typing import Any

from fakes.objects import CORES, MEMORY
from fakes.objects import GPU as COUNT
from fakes.objects import PERCENTAGE as PERCENT

Json = dict[str, Any]

VOLCANO_COUNT, VOLCANO_MEMORY = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"
HYGON_COUNT, HYGON_CORES = "hygon.com/dcunum", "hygon.com/dcucores"
MTHREADS_COUNT, MTHREADS_MEMORY = "mthreads.com/vgpu", "mthreads.com/sgpu-memory"
SHARED, RATIO, BOTH = "koordinator.sh/gpu.shared", "koordinator.sh/gpu-memory-ratio", "koordinator.sh/gpu"
BYTES, CORE = "koordinator.sh/gpu-memory", "koordinator.sh/gpu-core"
HAMI_TOLD, VOLCANO_TOLD = "hami.io/vgpu-devices-to-allocate", "volcano.sh/vgpu-ids-new"

COUNTED_BY_SUM: list[tuple[Json, str]] = [
    ({BYTES: "8Gi", CORE: 100}, "1"),
    ({RATIO: 50, CORE: 50}, "1"),
    ({RATIO: 200, CORE: 200}, "2"),
    ({BOTH: 100}, "1"),
    ({BOTH: 30}, "1"),
    ({BOTH: 800}, "8"),
]
"""Limits in Koordinator's words without a number of cards, and the number that is added as gpu.shared."""

COUNTED: list[tuple[Json, str]] = [
    ({PERCENT: 25}, COUNT),
    ({CORES: 30}, COUNT),
    ({CORES: 30, MEMORY: 1}, COUNT),
    ({VOLCANO_MEMORY: 4000}, VOLCANO_COUNT),
    ({HYGON_CORES: 60}, HYGON_COUNT),
    ({"iluvatar.ai/MR-V100.vMem": 4}, "iluvatar.ai/MR-V100-vgpu"),
]
"""Limits without a count, and the count that is added."""

REFUSED: list[tuple[Json, str]] = [
    ({MEMORY: "4Gi"}, f"{MEMORY}: 4Gi has a unit of bytes; write a plain whole number (MiB per card)"),
    ({COUNT: "1Ki"}, f"{COUNT}: 1Ki has a unit of bytes; write a plain whole number (the number of different cards)"),
    ({COUNT: 1, VOLCANO_COUNT: 1}, f"counts its cards twice, as {COUNT} and as {VOLCANO_COUNT}: keep one"),
    ({COUNT: 1, HYGON_CORES: 5}, "a container gets cards of one kind, so give each kind a container of its own"),
    (
        {MEMORY: 1, VOLCANO_MEMORY: 1},
        f"mixes the words of several kinds ({MEMORY}, {VOLCANO_MEMORY}): keep one of them",
    ),
    ({COUNT: 0, MEMORY: 4000}, f"on 0 GPUs: set {COUNT} to 1 or more, or drop the rest"),
    ({COUNT: 0, CORES: 5}, f"on 0 GPUs: set {COUNT} to 1 or more, or drop the rest"),
    ({PERCENT: 101}, f"{PERCENT}: 101 is more than 100; it is a percentage of each card's memory"),
    ({CORES: "1k"}, f"{CORES}: 1k is more than 100; it is a percentage of each card's cores"),
    ({COUNT: 1025}, f"{COUNT}: 1025 is more than 1024; it is the number of different cards"),
    (
        {MTHREADS_COUNT: 1, "mthreads.com/sgpu-core": 17},
        "17 is more than 16; it is a number of 16 core groups of each card",
    ),
    (
        {MTHREADS_COUNT: 1, MTHREADS_MEMORY: 3},
        f"{MTHREADS_MEMORY}: 3 can't be cut; choose one of 2, 4, 8, 16, 32, 64, 96",
    ),
    (
        {BOTH: "1Ki"},
        f"{BOTH}: 1Ki has a unit of bytes; write a plain whole number (percent, summed up over the container's cards)",
    ),
    ({SHARED: 0, BYTES: "8Gi"}, f"on 0 GPUs: set {SHARED} to 1 or more, or drop the rest"),
    ({COUNT: 1, SHARED: 1, RATIO: 50}, f"counts its cards twice, as {COUNT} and as {SHARED}: keep one"),
    ({RATIO: 102_401}, "is more than 102400; it is percent, summed up over the container's cards"),
    ({"huawei.com/Ascend310P-memory": 30_000}, "30k is more than 24576; it is MiB per card"),
]
"""Limits that no node can serve, and how the policies' sentence ends."""

ACCEPTED: list[Json] = [
    {COUNT: 1024},
    {COUNT: 8, MEMORY: "16777216"},
    {COUNT: 1, PERCENT: 100, CORES: 100},
    {COUNT: 1, MEMORY: 1, PERCENT: 50},
    {COUNT: 0, MEMORY: 0},
    {COUNT: 1, MEMORY: 0, CORES: 0},
    {COUNT: 1, VOLCANO_MEMORY: 4000},
    {COUNT: "1k"},
    {"volcano.sh/gpu-memory": 10},
    {SHARED: 2, BYTES: "16Gi", CORE: 100},
    {BYTES: 8 * 1024**3},
    {SHARED: 2, RATIO: 200, CORE: 200},
    {BOTH: 400},
    {MTHREADS_COUNT: 1, MTHREADS_MEMORY: 96, "mthreads.com/sgpu-core": 16},
    {MTHREADS_COUNT: 1, MTHREADS_MEMORY: 0},
    {"huawei.com/Ascend310P": 1, "huawei.com/Ascend310P-memory": 24_576},
]

FOREIGN = (
    HAMI_TOLD,
    VOLCANO_TOLD,
    "hami.io/vgpu-node",
    "hami.io/bind-phase",
    "hami.io/dcu-devices-allocated",
    "volcano.sh/devices-to-allocate",
    "volcano.sh/gpu-index",
)
"""Annotations by which schedulers steer device plugins."""
