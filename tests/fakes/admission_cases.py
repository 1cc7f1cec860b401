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


# Pods that reach cards without a share.

VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def _with_main(limits: Json | None = None, /, **fields: Any) -> Json:
    main = {"name": "main", "image": "i", **({"resources": {"limits": limits}} if limits else {}), **fields}
    return {"containers": [main]}


def _sets(value: str | None, name: str = VISIBLE) -> Json:
    return _with_main(
        env=[{"name": "A", "value": "all"}, {"name": name, **({} if value is None else {"value": value})}]
    )


def _brings(path: str) -> Json:
    return _with_main() | {"volumes": [{"name": "logs", "hostPath": {"path": path}}]}


def _mounts(path: str) -> Json:
    return _with_main(volumeMounts=[{"name": "a", "mountPath": path}]) | {"volumes": [{"name": "a", "emptyDir": {}}]}


_OTHER = {"fieldRef": {"fieldPath": "metadata.name"}}

PAST_THE_LEDGER: dict[str, tuple[Json, str]] = {
    "all cards": (_sets("all"), f"container main sets {VISIBLE}, by which it gets cards"),
    "one card": (_sets("GPU-1"), f"container main sets {VISIBLE}, by which"),
    "as another variable says": (_sets("$(A)"), f"container main sets {VISIBLE}, by which"),
    "as a field says": (_with_main(env=[{"name": VISIBLE, "valueFrom": _OTHER}]), f"container main sets {VISIBLE}"),
    "over its share": (
        _with_main({COUNT: "1", MEMORY: "100"}, env=[{"name": VISIBLE, "value": "all"}]),
        f"container main sets {VISIBLE}, by which",
    ),
    "another vendor's": (_sets("0", "ASCEND_VISIBLE_DEVICES"), "container main sets ASCEND_VISIBLE_DEVICES, by which"),
    "in an init container": (
        _with_main() | {"initContainers": [{"name": "early", "image": "i", "env": [{"name": VISIBLE, "value": "0"}]}]},
        f"container early sets {VISIBLE}, by which",
    ),
    "by a mount": (
        _mounts("/var/run//nvidia-container-devices/all"),
        "container main names cards by its mount /var/run//nvidia-container-devices/all",
    ),
    "privileged": (_with_main(securityContext={"privileged": True}), "container main is privileged, and reaches all"),
    "a device of the node": (
        _brings("/dev/nvidia0"),
        "volume logs brings devices of the node by hostPath, /dev/nvidia0",
    ),
    "a path in other words": (
        _brings("//dev/./nvidiactl"),
        "volume logs brings devices of the node by hostPath, //dev",
    ),
    "all devices": (_brings("/dev/"), "volume logs brings devices of the node by hostPath, /dev/;"),
    "all of the node": (_brings("/"), "volume logs brings devices of the node by hostPath, /;"),
    "a runtime class": (
        _with_main() | {"runtimeClassName": "nvidia"},
        "container main asks for no cards, and the runtime class of its pod gives it all that its image names",
    ),
    "a container beside one with a share": (
        {
            "containers": [
                {"name": "main", "image": "i", "resources": {"limits": {COUNT: "1"}}},
                {"name": "beside", "image": "i"},
            ],
            "runtimeClassName": "nvidia-cdi",
        },
        "container beside asks for no cards, and the runtime class",
    ),
}
"""What is tried -> the pod's spec, and how the refusal begins."""

WITHIN_THE_LEDGER: dict[str, Json] = {
    "no cards": _with_main(),
    "a share": _with_main({COUNT: "1", MEMORY: "100"}),
    "a share under a runtime class": _with_main({COUNT: "1"}) | {"runtimeClassName": "nvidia"},
    "none": _sets("none"),
    "void": _sets("void"),
    "an empty variable": _sets(""),
    "a variable without a value": _sets(None),
    "void under a runtime class": _sets("void") | {"runtimeClassName": "nvidia"},
    "another runtime class": _with_main() | {"runtimeClassName": "gvisor"},
    "another variable": _sets("all", "VISIBLE_DEVICES"),
    "another mount": _mounts("/var/run/nvidia-container-devices-not"),
    "not privileged": _with_main(securityContext={"privileged": False}),
    "a directory of the node": _brings("/var/log"),
    "another device": _brings("/dev/fuse"),
}
