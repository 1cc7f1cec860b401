"""The control plane that the test modules of one process share, each with the settings that it needs.

A module borrows it, with gpuledger's manifests applied and none of its programs running:

    with shared.cluster({"nominate_ahead_nodes": 100}) as cluster: ...

Afterwards the plane is as it was: what was started is killed, what was created is deleted. A module that changes or
deletes what was there, or creates what does not go away, fails by name, and the next one gets a new plane.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from cluster.cluster import Cluster, Connection, RequestFailed
from control_plane import ControlPlane, ControlPlaneError
from installation import NO_KUBELET, Installation

DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
METADATA = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"

GONE_S = 60.0
"""How long what was created may take to go, on a slow machine."""

CARDS, EVENTS, NAMESPACES = "gpuallocations", "events", "/api/v1/namespaces"
WRITTEN_BY_PEOPLE = frozenset({"configmaps", "secrets", "roles", "rolebindings", "clusterrolebindings"})
"""Kinds of which no program of a plane changes an object that is there: any change is a module's."""

LEASES = "leases"

WRITTEN_LATE = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
"""What the API server writes by itself a minute after its start."""

RELEASE_DELAY_S = 4
"""Shorter than the default, so that the test of it need not wait; long enough to be seen on a slow machine."""

UNDISTURBED_S = 3600
"""No comparison with full lists comes while a test counts what is looked at."""

STANDING = {"release_delay_s": RELEASE_DELAY_S, "longest_release_s": 6, "resync_interval_s": UNDISTURBED_S}
"""Settings of the cluster for tests that need none of their own."""

Inventory = dict[str, object]
"""Path of an object -> what must not change of it."""


class SharedPlane:
    """A control plane with gpuledger's manifests, which starts when it is first asked for."""

    def __init__(self, **flags: Any) -> None:
        """Take what ControlPlane takes."""
        self._flags = flags
        self._plane: ControlPlane | None = None
        self._standing: Cluster | None = None
        self._is_lent = False

    def stop(self) -> None:
        """Stop it, if it runs; the next who asks for it gets a new one."""
        if self._plane:
            self._end_standing()
            self._asking.close()
            self._plane.stop()
            self._plane = None

    @contextmanager
    def lent(self, standing: bool = False) -> Iterator[ControlPlane]:
        """Lend the plane: with no program on it, or with those of standing() if they run, which then stay.

        Raises BuildError or ControlPlaneError when it does not start, and AssertionError when it is not left as it was.
        """
        assert not self._is_lent, "the plane is lent already: a module has one set of settings at a time"
        self._is_lent = True
        try:
            plane = self._started()
            if not standing:
                self._end_standing()
            yield plane
            if self._standing is None:
                plane.kill_programs()
            self._clean(standing)
        except BaseException:
            self.stop()  # what one module has broken must not fail all that follow
            raise
        finally:
            self._is_lent = False

    def standing(self) -> Cluster:
        """Return the cluster for modules without settings of their own, of a plane that is lent to such a one."""
        assert self._plane
        assert self._is_lent
        if self._standing is None:
            installation = Installation(self._plane, {**NO_KUBELET, **STANDING})
            installation.start()
            self._standing = Cluster(self._plane, installation)
        return self._standing

    def cluster(self, settings: Mapping[str, object], **installation: Any) -> AbstractContextManager[Cluster]:
        """Run operator and kube-scheduler on it, see cluster_on()."""
        return cluster_on(self.lent(), settings, **installation)

    def _started(self) -> ControlPlane:
        if self._plane is None:
            plane = ControlPlane(**self._flags)
            plane.start()
            self._plane, self._asking = plane, Connection(plane, identity={"Accept": METADATA})
            Installation(plane).install()
            self._kinds = _kinds(plane)
            self._before = {path: kept for path, kept in self._at_rest().items() if _kind_of(path) != EVENTS}
        return self._plane

    def _end_standing(self) -> None:
        assert self._plane
        if self._standing:
            self._standing.close()
            self._standing = None
        self._plane.kill_programs()

    def _inventory(self) -> Inventory:
        found: Inventory = {}
        for path, kind in self._kinds:
            for each in self._asking.request("GET", f"{path}/{kind}")["items"] or ():
                metadata = each["metadata"]
                if kind == LEASES and "apiserver.kubernetes.io/identity" in (metadata.get("labels") or {}):
                    continue  # the API server's own, which it may delete and create anew
                where = f"namespaces/{metadata['namespace']}/" if "namespace" in metadata else ""
                kept = ["uid", "labels", "annotations", "generation"]
                kept += ["resourceVersion"] if kind in WRITTEN_BY_PEOPLE else []
                found[f"{path}/{where}{kind}/{metadata['name']}"] = [metadata.get(name) for name in kept]
        found.pop(WRITTEN_LATE, None)
        return found

    def _at_rest(self) -> Inventory:
        """Return what there is, once controllers have finished what belongs to the new objects."""
        deadline_s = time.monotonic() + GONE_S
        before: Inventory = {}
        while time.monotonic() < deadline_s:
            with suppress(RequestFailed):  # the API server is not ready for a new kind yet
                found = self._inventory()
                if found == before:
                    return found
                before = found
            time.sleep(0.3)
        raise ControlPlaneError(f"after {GONE_S:g} s the control plane still changes")

    def _clean(self, standing: bool) -> None:
        """Delete what was not there before, and wait until it is gone.

        Raises AssertionError when something stays, and when what was there is gone or was changed.
        """
        deadline_s = time.monotonic() + GONE_S
        kinds: set[str] = set()
        while True:
            found = self._inventory()
            new = found.keys() - self._before.keys()
            left = {path for path in new if not (standing and _kind_of(path) == EVENTS)}
            if not left:
                break
            kinds |= set(map(_kind_of, left))
            assert time.monotonic() < deadline_s, f"the module leaves what does not go away: {sorted(left)}"
            self._delete(new)
            time.sleep(0.1)
        missing = sorted(self._before.keys() - found.keys())
        changed = {path: (kept, found[path]) for path, kept in self._before.items() if found.get(path, kept) != kept}
        assert not missing, f"the module has deleted what was there before: {missing}"
        assert not changed, f"the module has changed what was there before: {changed}"
        if standing and CARDS in kinds:
            self._end_standing()  # the operator must not remember shares that the next module knows nothing of

    def _delete(self, paths: set[str]) -> None:
        """Delete these objects, a collection at once if nothing else is in it."""
        collections = defaultdict(list)
        for path in sorted(paths):
            collections[path.rpartition("/")[0]].append(path)
        shared = {path.rpartition("/")[0] for path in self._before}
        for collection, listed in collections.items():
            for path in listed if collection in shared else [collection]:
                with suppress(RequestFailed):  # it may be gone meanwhile, or be tried again
                    self._asking.request("DELETE", path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})
        for path in collections.get(NAMESPACES, ()):
            name = path.rpartition("/")[2]
            if not any(f"/namespaces/{name}/" in each for each in paths):  # its controller begins after 5 s
                with suppress(RequestFailed):
                    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "spec": {}}
                    self._asking.request("PUT", f"{path}/finalize", body)


@contextmanager
def cluster_on(
    plane: AbstractContextManager[ControlPlane],
    settings: Mapping[str, object],
    scheduler_flags: Sequence[str] = (),
    scheduler_changes: Mapping[str, object] | None = None,
) -> Iterator[Cluster]:
    """Run operator and kube-scheduler, see Installation, on a plane that is borrowed or started for it.

    Nobody plays kubelets there, if the settings say nothing else.
    """
    with plane as running:
        installation = Installation(
            running,
            {**NO_KUBELET, **settings},
            scheduler_flags=scheduler_flags,
            scheduler_changes=scheduler_changes,
        )
        installation.start()
        cluster = Cluster(running, installation)
        yield cluster
        cluster.close()


def _kinds(plane: ControlPlane) -> list[tuple[str, str]]:
    """Return each kind whose objects can be listed and deleted: the path of its version, and its plural."""
    asking = Connection(plane, identity={"Accept": DISCOVERY})
    found = []
    for root in ("/api", "/apis"):
        for group in asking.request("GET", root)["items"]:
            name, version = group.get("metadata", {}).get("name", ""), group["versions"][0]
            path = "/".join(part for part in (root, name, version["version"]) if part)
            found += [
                (path, each["resource"])
                for each in version["resources"]
                if {"list", "delete"} <= set(each["verbs"]) and name != "events.k8s.io"  # the same objects once more
            ]
    asking.close()
    return found


def _kind_of(path: str) -> str:
    return path.rsplit("/", 2)[1]
