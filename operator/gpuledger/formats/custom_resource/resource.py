"""The names of the custom resource `GPUAllocation`, and its limits.

Apart from its models: a command that only reads cards starts without pydantic, a fifth of a second sooner.
"""

from __future__ import annotations

from typing import Final

GROUP: Final = "gpuledger.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "GPUAllocation"
PLURAL: Final = "gpuallocations"
SINGULAR: Final = "gpuallocation"
SHORT_NAME: Final = "gpua"
CATEGORY: Final = "gpuledger"
"""What else kubectl knows the kind by: `kubectl get gpuledger`. Not in `all`, which is for what a namespace owns."""

MAX_CONTAINERS: Final = 64
MAX_CONFLICTS: Final = 64
MAX_CLAIMS: Final = 64
MAX_CARDS_OF_ONE_POD: Final = 1024
MAX_LINKS: Final = 64
MAX_MEMORY_MIB: Final = 16 * 1024 * 1024  # 16 TiB
MAX_CORES: Final = 10_000  # percent of one card, which can be offered several times over
MAX_SLOTS: Final = 1024
MAX_SLOTS_OF_ONE_POD: Final = 64
MAX_INDEX: Final = 1023
MAX_LINK_SCORE: Final = 1_000_000
MAX_LINE: Final = 256

# Inside, anything that may stand in an object's name; at the ends, a letter or a digit.
UUID_PATTERN: Final = r"^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*$"

CORDON_ANNOTATION: Final = "gpuledger.dev/cordoned"
"""On a card: a person wants no new pods on it; the value says why. Those who hold it stay."""
