"""Small traces whose results can be worked out by hand."""

from pathlib import Path

from gpuledger.model.request import HostAmounts
from replay.trace import PodKind, Trace, TraceNode, TracePod

PLENTY = HostAmounts(1_000_000, 1_000_000)
LITTLE = HostAmounts(1_000, 1_000)

WHOLE = PodKind(LITTLE, 1, 1000)
HALF = PodKind(LITTLE, 1, 500)
PAIR = PodKind(LITTLE, 2, 1000)
NO_GPU = PodKind(LITTLE, 0, 0)

NODES_CSV = "sn,cpu_milli,memory_mib,gpu,model\nn1,8000,8000,2,T4\nn2,8000,8000,2,P100\n"
PODS_CSV = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time\n"
    "p1,1000,100,1,1000,,0,100\n"
    "p2,1000,100,1,500,T4|P100,10,60\n"
    "p3,1000,100,0,0,,20,30\n"
    "p4,1000,100,1,500,P100,30,300\n"
)


def a_node(name: str = "n1", cards: int = 1, host: HostAmounts = PLENTY, model: str = "T4") -> TraceNode:
    """Return a node."""
    return TraceNode(name, host, cards, model)


def a_trace(nodes: list[TraceNode], *kinds: PodKind) -> Trace:
    """Return a trace with one pod of each kind."""
    return Trace(tuple(nodes), tuple(TracePod(f"p{number}", kind) for number, kind in enumerate(kinds)))


def written(folder: Path, nodes: str = NODES_CSV, pods: str = PODS_CSV) -> tuple[str, str]:
    """Write a trace; return the names of its files."""
    files = folder / "nodes.csv", folder / "pods.csv"
    for file, text in zip(files, (nodes, pods), strict=True):
        file.write_text(text)
    return str(files[0]), str(files[1])
