"""Every kind of finding is documented, with the remedy that the command prints."""

import re
from pathlib import Path

from gpuledger.ledger.audit import AuditFindingKind

DOCUMENT = Path(__file__).parents[2] / "docs" / "audit.md"


def test_the_document_has_every_kind_with_its_remedy_in_the_order_of_the_command() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| [^|]+ \| ([^|]+) \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert rows == [(kind.value, kind.remedy) for kind in AuditFindingKind]
