"""Types of the JSON objects that Kubernetes' API server and other programs send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
"""An object to write, or one that nobody else has."""

JsonMapping = Mapping[str, Any]
"""An object that is shared, such as one of a watch: its readers change nothing in it."""
