"""What the regular audits have found, as Kubernetes says it of their Jobs.

The audit itself writes nothing: its exit status says whether anything differs, the kubelet reports that, and
kube-controller-manager sums it up in the Job. So the account of the audit needs no right to write, and one that could
not even reach the API server is known as well.
"""

from __future__ import annotations

from gpuledger.formats.kubernetes.other import AuditRun, audit_run
from gpuledger.kube_api.watch import Listed, forgetting
from gpuledger.model.json_object import Json


class AuditRuns:
    """The audits that have ended, as long as their Jobs are there."""

    def __init__(self) -> None:
        self._ended: dict[str, AuditRun] = {}  # UID of a Job -> how it has ended

    def __len__(self) -> int:
        return len(self._ended)

    def last(self) -> AuditRun | None:
        """Return the last one that could compare the ledger with the cluster, None if there is none."""
        compared = [run for run in self._ended.values() if run.differs is not None]
        return max(compared, key=lambda run: run.ended_s, default=None)

    def observe(self, job: Json, gone: bool) -> None:
        """Observe the Job of an audit."""
        uid, run = job["metadata"]["uid"], audit_run(job)
        if gone or run is None:
            self._ended.pop(uid, None)
        else:
            self._ended[uid] = run

    def listing(self) -> Listed:
        """Return a function that forgets the present ones that are missing in a later list."""
        return forgetting(self._ended, lambda uid: self._ended.pop(uid, None))
