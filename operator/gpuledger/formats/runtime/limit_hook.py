"""How a starting container's hook and the node agent talk: one line each way, through FIFOs. Pure.

The container runtime runs the hook on the node, where the container's control groups exist and no process of its image
does. Source of what the hook reads: the OCI runtime specification (`runtime.md`, State; `config.md`, POSIX-platform
Hooks), and cgroups(7) for /proc/PID/cgroup: with version 2 alone, it is one line, `0::` and a path. The agent can't
read that path itself: in its own cgroup namespace, it sees another one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuledger.formats.runtime.cdi import is_name
from gpuledger.model.errors import BadInput

REQUESTS, ANSWERS = "requests", "answers"
"""Below the agent's directory of the hook: the FIFO for requests, and the directory with one for each answer."""

SCRIPT = "limit-memory.sh"

SHELL = "/bin/sh"
"""Named as the hook's program, so that the script's own file system may be mounted without `exec`."""

TIMEOUT_S = 10
"""How long a container start waits for the agent: longer than an agent that was killed takes to be back."""

LONGEST_LINE = 4096
"""Bytes that Linux writes to a FIFO at once (PIPE_BUF): lines of several hooks never mix."""

UNIFIED = "0::"
"""Before the path of a process' control group of version 2."""

OK = "ok"

HOOK = r"""# Written by gpuledger's node agent, which writes it again when it starts.
# The container runtime runs it when a container's control group exists, and before anything of its image runs. It asks
# the agent to limit the container's memory on its cards there. It calls no program, so it needs no PATH.
name=$1 here=$2
refuse() {
    printf 'gpuledger: %s\n' "$1" >&2
    exit 1
}
state=
while read -r line || [ -n "$line" ]; do
    state=$state$line
done
pid=${state#*\"pid\":}
pid=${pid# }
pid=${pid%%[!0-9]*}
[ -n "$pid" ] || refuse 'the container runtime does not tell the hook which process it is about'
read -r group <"/proc/$pid/cgroup" || refuse "the control group of process $pid can't be read"
[ "${#group}" -lt 3900 ] || refuse 'the name of the control group is too long'
[ -p "$here/requests" ] && [ -p "$here/answers/$name" ] ||
    refuse 'the node agent does not know of this container; the kubelet tries again'
# For reading and writing: neither waits for an agent that is just being started again, and takes it up then.
exec 3<>"$here/answers/$name" 4<>"$here/requests"
printf '%s\n' "$name $pid $group" >&4
while read -r whose answer <&3; do
    [ "$whose" = "$pid" ] && break
done
[ "$answer" = ok ] || refuse "${answer:-no answer from the node agent}"
"""
"""POSIX shell, builtins only. It is given the name of the container's grant, and the agent's directory."""

LONGEST_ANSWER = 1000
"""Characters of a refusal: it becomes a part of the pod's events."""

_MOST_DIGITS = 10
_SEGMENT = re.compile(r"[^/\x00-\x1f\x7f]+")


@dataclass(frozen=True, slots=True)
class LimitRequest:
    """A hook's request."""

    name: str
    """Of the grant."""
    pid: int
    """The container's first process, as the node counts."""
    group: str
    """The process's control group in the node's /proc: the first line there, not yet judged."""


def read_request(line: bytes) -> LimitRequest:
    """Return the request in a line of a hook. Raises BadInput for anything else: the writer is not trusted."""
    if len(line) > LONGEST_LINE:
        raise BadInput(f"a request to limit memory has {len(line):,} bytes; {LONGEST_LINE:,} is the most")
    try:
        name, pid, group = line.decode().split(" ", 2)
    except ValueError:  # UnicodeDecodeError is one, too
        raise BadInput("a request to limit memory is not of the form NAME PID GROUP") from None
    if not is_name(name) or not pid.isascii() or not pid.isdigit() or len(pid) > _MOST_DIGITS:
        raise BadInput("a request to limit memory names no grant, or no process")
    return LimitRequest(name, int(pid), group)


def group_path(group: str) -> str:
    """Return the path of a control group of version 2, `/` and what follows, from a line of /proc/PID/cgroup.

    Raises BadInput for one of version 1, and for a path that could lead anywhere else.
    """
    if not group.startswith(f"{UNIFIED}/"):
        raise BadInput("the node has control groups of version 1, for which the driver limits no memory")
    path = group.removeprefix(UNIFIED)
    segments = path.split("/")[1:]
    if not all(_SEGMENT.fullmatch(each) and each not in (".", "..") for each in segments):
        raise BadInput(f"{path[:200]!r} is no path of a control group")
    return path


def answer_line(pid: int, refusal: str = "") -> bytes:
    """Return the line that lets a container start, or with a sentence, keeps it from that."""
    sentence = " ".join(refusal.split())[:LONGEST_ANSWER]
    return f"{pid} {sentence or OK}\n".encode(errors="replace")
