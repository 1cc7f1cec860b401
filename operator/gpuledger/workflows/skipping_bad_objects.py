"""Skips objects that can't be processed, so that one bad object affects no other."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from gpuledger.model.errors import BadInput, StateRolledBack
from gpuledger.model.json_object import Json
from gpuledger.workflows.counts import Counts

logger = logging.getLogger(__name__)


@contextmanager
def skipping_bad_objects(kind: str, found: Json, counts: Counts) -> Iterator[None]:
    """Process one object: if that fails, it is logged with its name, counted, and left out.

    Raises StateRolledBack: then nothing that is remembered can be trusted.
    """
    try:
        yield
    except StateRolledBack:
        raise
    except BadInput as error:
        counts.bad_input.labels(kind).inc()
        logger.error("%s %s is skipped: %s", kind, _name(found), error)
    except Exception:
        counts.bad_input.labels(kind).inc()
        logger.exception("%s %s is skipped: processing it failed, which is a bug in gpuledger", kind, _name(found))


def _name(found: Json) -> str:
    metadata = found.get("metadata") if isinstance(found, dict) else None
    if not isinstance(metadata, dict):
        return "without a name"
    return "/".join(str(metadata[key]) for key in ("namespace", "name") if metadata.get(key))
