"""Tells a pod's owner, in one Event, what the pod says that has no effect; most pods are never written to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuledger.formats.dialects.unsupported import PodWarning
from gpuledger.formats.kubernetes.pod import pod_identity
from gpuledger.model.json_object import Json
from gpuledger.model.refusal import EventReason
from gpuledger.workflows.counts import Counts
from gpuledger.workflows.event_recorder import EventRecorder

MOST_EVENTS = 4
"""Of one pod, however often its annotations change."""


class PodWarner:
    """Follows the pods that wait. The Event has a name of its own, so another replica does not post it again."""

    def __init__(
        self,
        read_warnings: Callable[[Json], Sequence[PodWarning]],
        event_recorder: EventRecorder,
        counts: Counts,
        is_active: Callable[[], bool],
    ) -> None:
        self._read_warnings = read_warnings
        self._event_recorder = event_recorder
        self._counts = counts
        self._is_active = is_active
        self._said: dict[str, set[str]] = {}  # pod UID -> what was said of it

    def observe_pending(self, pod: Json) -> None:
        """Observe a pod without a node."""
        if not self._is_active():
            return
        warnings = self._read_warnings(pod)
        if not warnings:
            return
        identity, text = pod_identity(pod), "; ".join(warning.text for warning in warnings)
        said = self._said.setdefault(identity.uid, set())
        if text in said or len(said) >= MOST_EVENTS:
            return
        said.add(text)
        for warning in warnings:
            self._counts.words_without_effect.labels(warning.kind).inc()
        self._event_recorder.post_pod_event_once(identity, EventReason.WORDS_WITHOUT_EFFECT, text, text)

    def forget_pending(self, pod_uid: str) -> None:
        """Record that a pod is bound or gone."""
        self._said.pop(pod_uid, None)

    def known_pending(self) -> set[str]:
        """Return the UIDs of the waiting pods that were warned."""
        return set(self._said)
