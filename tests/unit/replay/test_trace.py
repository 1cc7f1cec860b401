"""Traces from CSV: what is read, and what a person is told of a file that can't be."""

from pathlib import Path

import pytest

from fakes.traces import NODES_CSV, PODS_CSV, written
from gpuledger.model.errors import BadInput
from gpuledger.model.request import HostAmounts
from replay.trace import PodKind, Trace, TraceNode, TracePod, read_trace


def read(folder: Path, nodes: str = NODES_CSV, pods: str = PODS_CSV, with_times: bool = False) -> Trace:
    files = written(folder, nodes, pods)
    return read_trace(Path(files[0]), Path(files[1]), with_times)


def test_a_trace_is_read(tmp_path: Path) -> None:
    trace = read(tmp_path, with_times=True)
    host = HostAmounts(1000, 100)
    assert trace.nodes[0] == TraceNode("n1", HostAmounts(8000, 8000), 2, "T4")
    assert trace.pods == (
        TracePod("p1", PodKind(host, 1, 1000), 0, 100),
        TracePod("p2", PodKind(host, 1, 500, ("T4", "P100")), 10, 60),
        TracePod("p3", PodKind(host, 0, 0), 20, 30),
        TracePod("p4", PodKind(host, 1, 500, ("P100",)), 30, 300),
    )
    assert trace.capacity_milli == 4000


def test_a_pod_that_has_not_ended_runs_until_the_end_of_the_trace(tmp_path: Path) -> None:
    pods = POD + "a,1,1,1,1000,5,\nb,1,1,1,1000,10,60\nc,1,1,1,1000,70, \n"
    trace = read(tmp_path, pods=pods, with_times=True)
    assert [(pod.created_s, pod.deleted_s) for pod in trace.pods] == [(5, 70), (10, 60), (70, 70)]


def test_what_other_tools_write_is_read_too(tmp_path: Path) -> None:
    """A byte order mark, Windows' line ends, other columns in another order, 1000.0 where a column has gaps."""
    nodes = "\ufeffmodel,gpu,memory_mib,cpu_milli,sn,zone\r\nT4,2.0,1,1000.0,n1,a\r\n"
    pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np1,1,1,1,1000.0\np2,1,1,0,\n"
    trace = read(tmp_path, nodes, pods)
    assert trace.nodes == (TraceNode("n1", HostAmounts(1000, 1), 2, "T4"),)
    assert [(pod.kind.cards, pod.kind.milli) for pod in trace.pods] == [(1, 1000), (0, 0)]


NODE = "sn,cpu_milli,memory_mib,gpu,model\n"
POD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time\n"


@pytest.mark.parametrize(
    ("nodes", "pods", "said"),
    [
        (NODE + "n1,8,8,two,T4\n", PODS_CSV, "nodes.csv, line 2, column gpu: 'two' is no whole number from 0 to 1024"),
        (NODE + "n1,8,8,1,T4\nn1,8,8,1,T4\n", PODS_CSV, "nodes.csv, line 3, column sn: there is a node 'n1' already"),
        (NODE + ",8,8,1,T4\n", PODS_CSV, "nodes.csv, line 2, column sn: it is empty; write a name"),
        (NODE + "n1,8,8\n", PODS_CSV, "nodes.csv, line 2, column gpu: the line ends before it"),
        (NODE + "n1,8,8,1,T4,x\n", PODS_CSV, "nodes.csv, line 2: it has more cells than the first line has names"),
        (NODE + "n1,8,8,0,\n", PODS_CSV, "nodes.csv has no node with a GPU"),
        ("", PODS_CSV, "nodes.csv lacks the column sn: its first line must name sn, cpu_milli"),
        ("sn,cpu\n", PODS_CSV, "nodes.csv lacks the column cpu_milli"),
        (NODES_CSV, POD + "p,1,1,1,1001,0,1\n", "pods.csv, line 2, column gpu_milli: '1001' is no whole number from 1"),
        (NODES_CSV, POD + "p,1,1,1,0.5,0,1\n", "column gpu_milli: '0.5' is no whole number from 1 to 1000"),
        (NODES_CSV, POD + "p,1,1,1,nan,0,1\n", "column gpu_milli: 'nan' is no whole number"),
        (NODES_CSV, POD + "p,1,1,-1,0,0,1\n", "column num_gpu: '-1' is no whole number from 0 to 1024"),
        (NODES_CSV, POD + "p,inf,1,1,1,0,1\n", "column cpu_milli: 'inf' is no whole number"),
        (NODES_CSV, POD + "p,1,1,1,1,5,1\n", "column deletion_time: 1 is before the pod's creation_time 5"),
        (NODES_CSV, POD + "p,1,1,0,0,0,1\n", "pods.csv has no pod that asks for a GPU"),
        (NODES_CSV, POD + '"p,1\n', "pods.csv is no CSV: unexpected end of data"),
        (NODES_CSV, POD.replace("creation_time", "born"), "pods.csv lacks the column creation_time"),
    ],
)
def test_a_bad_file_is_named_with_line_column_and_what_to_write(
    tmp_path: Path, nodes: str, pods: str, said: str
) -> None:
    with pytest.raises(BadInput) as raised:
        read(tmp_path, nodes, pods, with_times=True)
    assert said in str(raised.value)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    nodes, pods = map(Path, written(tmp_path))
    pods.write_bytes(b"name\xff\n")
    with pytest.raises(BadInput, match=r"pods\.csv is no text in UTF-8"):
        read_trace(nodes, pods)


def test_times_are_needed_only_for_departures(tmp_path: Path) -> None:
    pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,1000\n"
    assert read(tmp_path, pods=pods).pods[0].deleted_s == 0
