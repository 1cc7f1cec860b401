"""What has to be put in place before a world can live."""

import contextlib
import gc
import logging
from collections.abc import Iterator
from unittest import mock

from gpuledger.workflows import context
from gpuledger.workflows.journal import journal
from gpuledger.workflows.reporting import Counts, JournalCounts

defects: list[str] = []
"""What operators have logged together with a traceback: errors that nobody has thought of."""


class _Defects(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            defects.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """Keep the operators quiet, and what is loaded out of the collector.

    They have their counters in common, which nobody reads here: to declare them takes a fifth of a world's time.
    """
    logger, handler = logging.getLogger("gpuledger"), _Defects()
    before = logger.level, logger.propagate
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    logger.addHandler(handler)
    gc.collect()
    gc.freeze()  # else each collection walks thousands of objects of libraries, which takes longer than a world
    counts, of_journal = Counts(), JournalCounts(journal.GROUP_LIMIT)
    try:
        with (
            mock.patch.object(context, "Counts", return_value=counts),
            mock.patch.object(journal, "JournalCounts", return_value=of_journal),
        ):
            yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before
