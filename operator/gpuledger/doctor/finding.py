"""A finding about a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuledger.doctor.finding_kind import FindingKind


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    kind: FindingKind
    where: str
    """The object, as "node NAME" or "KIND NAME"."""
    text: str
    """The problem, in words."""
    remedy: str

    @classmethod
    def of(cls, kind: FindingKind, where: str, text: str, remedy: str = "", **names: str) -> Finding:
        """Return a finding. `names` replace the words in capitals in the remedy."""
        remedy = remedy or kind.remedy
        for word, name in names.items():
            remedy = remedy.replace(word, name)
        return cls(kind, where, text, remedy)

    def json(self) -> dict[str, Any]:
        """Return it as data."""
        severity = self.kind.severity.value
        return {
            "id": self.kind.value,
            "severity": severity,
            "where": self.where,
            "text": self.text,
            "mend": self.remedy,
        }
