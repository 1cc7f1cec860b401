"""Open a box on this machine, and run programs in it: namespaces that vanish with everything in them.

A box has its own mounts, processes, host name and cgroups; files are the machine's, but for the directories of PRIVATE,
which start empty and are kept in memory. The network is the machine's. A small init, written here, is its process 1.
When that ends, the kernel kills whatever runs in the box and drops its mounts.

`local_node.Node` is the caller. It runs this file as a script, with the standard library only:

    node_box.py open NAME ID FILE       open a box with that host name; FILE says the id of its init, once it is there
    node_box.py enter PID COMMAND ...   run a command in the box of that init, as if it were here: signals are passed
                                        on, the exit status is the command's, and what ends one ends the other

Needs root. Formats: proc(5), cgroups(7), mount(2), setns(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PRIVATE = ("/run", "/var/lib", "/var/log")
CGROUPS = Path("/sys/fs/cgroup")
CGROUP_PREFIX = "gpuledger-node-"
CGROUP_TIMEOUT_S = 5.0
CONTROLLERS = {"cpu", "cpuset", "memory", "pids"}
LEAF = "box"
"""With version 2, a cgroup that is divided has no processes itself. Those of the box but not of its pods are here."""

SCRATCH = Path("/run/box")

KERNEL_SETTINGS = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)
"""What a kubelet sets in /proc/sys for the whole machine. In the box these are plain files."""

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWPID = 0x00020000, 0x02000000, 0x04000000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE, MS_SHARED = 2, 4, 8, 4096, 16384, 1 << 18, 1 << 20
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Hierarchy:
    """A mounted tree of cgroups. Of version 1, there are several: one for each controller, or a few together."""

    options: str  # what the mount of a tree of version 1 needs: "cpu", "cpu,cpuacct", "name=systemd"; empty: version 2
    mounted: Path
    root: str  # which cgroup it is that is mounted there; not "/" in some containers
    own: str  # in which cgroup this process is

    @property
    def boxes(self) -> Path:
        """The directory in which boxes get their cgroups: below our own, which version 2 does not allow."""
        return self.path(self.own) if self.options else self.mounted

    def path(self, cgroup: str) -> Path:
        """Return the directory of a cgroup that /proc/<id>/cgroup names."""
        return Path(os.path.normpath(self.mounted / os.path.relpath(cgroup, self.root)))

    def is_used(self, top: Path) -> bool:
        """Return whether a box lives there. Its init is in its topmost cgroup, or with version 2 in one below."""
        if self.options:
            return bool((top / "cgroup.procs").read_text())
        return "populated 1" in (top / "cgroup.events").read_text()


def hierarchies() -> list[Hierarchy]:
    """Return the trees of cgroups in which a box has a place: those of version 1, or the one of version 2."""
    places = _cgroups_by_options("self")
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        root, mounted = before.split()[3:5]
        kind, _, super_options = after.split(" ", 2)
        words = set(super_options.split(","))
        here = [options for options in places if kind == "cgroup" and options and set(options.split(",")) <= words]
        if kind == "cgroup2" and "" in places:
            here = [""]
        found += [Hierarchy(options, Path(mounted), root, places[options]) for options in here]
    if any("memory" in hierarchy.options.split(",") for hierarchy in found):
        return [hierarchy for hierarchy in found if hierarchy.options]
    return [hierarchy for hierarchy in found if not hierarchy.options][:1]


def lacking_controllers() -> list[str]:
    """Return the controllers that a box can't have on this machine, without the names of versions."""
    trees = hierarchies()
    if any(tree.options for tree in trees):
        return sorted(CONTROLLERS - {option for tree in trees for option in tree.options.split(",")})
    if not trees:
        return sorted(CONTROLLERS)
    top = trees[0].mounted
    divisible = not (top / "cgroup.type").exists() or not (top / "cgroup.procs").read_text()  # it is the root, or empty
    present = (top / ("cgroup.controllers" if divisible else "cgroup.subtree_control")).read_text().split()
    return sorted(CONTROLLERS - set(present))


def box_cgroup(init: int, controller: str = "pids") -> Path:
    """Return the topmost cgroup of the box of an init, in a controller's tree: each has all its processes."""
    places = _cgroups_by_options(str(init))
    tree = next(tree for tree in hierarchies() if not tree.options or controller in tree.options.split(","))
    directory = tree.path(places[tree.options])
    return directory.parent if directory.name == LEAF else directory


def _cgroups_by_options(process: str) -> dict[str, str]:
    lines = Path(f"/proc/{process}/cgroup").read_text().splitlines()
    return {options: place for _, options, place in (line.split(":", 2) for line in lines)}


def remove_abandoned_cgroups() -> None:
    """Remove what boxes left behind, those of killed processes too: the cgroups without a living init."""
    deadline = time.monotonic() + CGROUP_TIMEOUT_S
    while time.monotonic() < deadline:  # a cgroup is busy for a moment after its last process
        boxes = [(tree, top) for tree in hierarchies() for top in tree.boxes.glob(f"{CGROUP_PREFIX}*")]
        if all(_is_removed(tree, top) for tree, top in boxes):
            return
        time.sleep(0.02)


def _is_removed(tree: Hierarchy, top: Path) -> bool:
    """Remove a box's cgroup; true as well when it is in use."""
    with contextlib.suppress(FileNotFoundError):
        try:
            if not tree.is_used(top):
                _remove_cgroup(top)
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False
            raise
    return True


def _remove_cgroup(directory: Path) -> None:
    for child in directory.iterdir():
        if child.is_dir():
            _remove_cgroup(child)
    directory.rmdir()  # its files are not ours to remove, and need not be


def _call(name: str, *arguments: object) -> None:
    if getattr(LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")


def _mount(source: str, target: str | Path, kind: str, flags: int = 0, options: str = "") -> None:
    _call("mount", source.encode(), str(target).encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())


def _join(directory: Path) -> None:
    """Move this process into a cgroup that may be new, or that somebody else may just be removing."""
    for attempts_left in range(9, -1, -1):
        try:
            directory.mkdir(exist_ok=True)
            _give_it_what_version_1_does_not(directory)
            (directory / "cgroup.procs").write_text("0")
        except OSError:
            if not attempts_left:
                raise
        else:
            return


def _give_it_what_version_1_does_not(cgroup: Path) -> None:
    """Let a cgroup use the processors and memory that its parent may use: by itself it has none, and no process."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        above, here = cgroup.parent / name, cgroup / name
        if above.exists() and here.exists() and not here.read_text().strip():
            here.write_text(above.read_text())


def _divide(cgroup: Path) -> None:
    """Let the children of a cgroup of version 2 have all controllers that it has itself."""
    for controller in (cgroup / "cgroup.controllers").read_text().split():
        with contextlib.suppress(OSError):  # a few are only for the root; what we need was looked at before
            (cgroup / "cgroup.subtree_control").write_text(f"+{controller}")


def _fork_child_that_dies_with_us() -> int:
    """Fork; return 0 in the child, which is killed when this process ends, else the child's id."""
    child_reads, we_write = os.pipe()
    we_read, child_writes = os.pipe()
    child = os.fork()
    if child:
        os.close(child_reads)
        os.close(child_writes)
        os.read(we_read, 1)  # it has asked for its death signal
        with contextlib.suppress(BrokenPipeError):
            os.write(we_write, b"!")
        os.close(we_read)
        os.close(we_write)
        return child
    os.close(we_read)
    os.close(we_write)
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.write(child_writes, b"!")
    if not os.read(child_reads, 1):
        os._exit(1)  # we died before the child could ask
    os.close(child_reads)
    os.close(child_writes)
    return 0


def _exit_as(status: int) -> None:
    """End the way a child has ended: with its exit status, or by the same signal."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        LIBC.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: one core dump of it is enough
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


# ---- opening a box ----


def open_box(name: str, identity: str, init_file: Path) -> None:
    """Open a box, write the id of its init as this process sees it, and stay until the init ends."""
    trees = hierarchies()
    tops = [tree.boxes / f"{CGROUP_PREFIX}{identity}" for tree in trees]
    for tree, top in zip(trees, tops, strict=True):
        if not tree.options:
            _divide(tree.mounted)
        _join(top)
    _call("unshare", CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWCGROUP | CLONE_NEWUTS)  # the trees now begin there
    for tree, top in zip(trees, tops, strict=True):
        if not tree.options:
            _join(top / LEAF)
            _divide(top)
    complete, tell = os.pipe()
    init = _fork_child_that_dies_with_us()
    if not init:
        os.close(complete)
        _furnish(name, trees)
        os.write(tell, b"!")
        os.close(tell)
        _reap_for_ever()
    os.close(tell)
    if os.read(complete, 1):
        temporary = init_file.with_suffix(".new")
        temporary.write_text(str(init))
        temporary.rename(init_file)
    _exit_as(os.waitpid(init, 0)[1])


def _furnish(name: str, trees: Sequence[Hierarchy]) -> None:
    socket.sethostname(name)
    _mount("none", "/", "", MS_REC | MS_PRIVATE)  # nothing gets out of here
    _mount("none", "/", "", MS_REC | MS_SHARED)  # but from here into the containers, as on a node
    for directory in PRIVATE:
        _mount("tmpfs", directory, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    _mount_cgroups(trees)
    SCRATCH.mkdir()
    for setting in KERNEL_SETTINGS:
        real, copy = Path("/proc/sys") / setting, SCRATCH / setting.replace("/", "-")
        if real.exists():
            copy.write_text(real.read_text())
            _mount(str(copy), real, "", MS_BIND)


def _mount_cgroups(trees: Sequence[Hierarchy]) -> None:
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    if not trees[0].options:
        _call("umount2", str(CGROUPS).encode(), MNT_DETACH)  # nothing can be mounted over itself
        _mount("cgroup2", CGROUPS, "cgroup2", flags)
        return
    _mount("tmpfs", CGROUPS, "tmpfs", flags, "mode=755")
    for tree in trees:
        directory = CGROUPS / tree.mounted.name
        directory.mkdir()
        _mount("cgroup", directory, "cgroup", flags, tree.options)


def _reap_for_ever() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        signal.sigwait([signal.SIGCHLD])


# ---- entering a box ----


def enter(init: int, argv: Sequence[str]) -> None:
    """Run a command in the box of an init, and end as it ends."""
    directory = Path.cwd()
    places = _cgroups_by_options(str(init))
    for tree in hierarchies():
        (tree.path(places[tree.options]) / "cgroup.procs").write_text("0")
    with contextlib.ExitStack() as files:
        namespaces = [files.enter_context(open(f"/proc/{init}/ns/{kind}")) for kind in ("cgroup", "uts", "pid", "mnt")]
        for namespace in namespaces:
            _call("setns", namespace.fileno(), 0)
    with contextlib.suppress(OSError):
        os.chdir(directory)
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    child = _fork_child_that_dies_with_us()
    if not child:
        os.setpgid(0, 0)  # so that it can be killed with its children, and be reaped by us
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        try:
            os.execvp(argv[0], [*argv])  # noqa: S606 - there is no shell to want here
        except OSError as error:
            print(f"{argv[0]} can't be run: {error.strerror}", file=sys.stderr, flush=True)
            os._exit(127)
    for number in FORWARDED:
        signal.signal(number, lambda received, _: os.kill(child, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it leaves in its process group
    _exit_as(os.waitpid(child, 0)[1])


def main() -> None:
    """Do what the command line says; see the top of the file."""
    action, *arguments = sys.argv[1:]
    if action == "open":
        open_box(arguments[0], arguments[1], Path(arguments[2]))
    elif action == "enter":
        enter(int(arguments[0]), arguments[1:])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
