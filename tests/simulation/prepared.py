"""What has to be put in place before a world can live."""

import contextlib
import gc
import logging
import pkgutil
from collections.abc import Iterator
from datetime import datetime
from importlib import import_module
from types import ModuleType

from fakes.virtual_time import LoopDatetime
from gpuledger import workflows


def clocks() -> list[ModuleType]:
    """Return the modules that read the time of day."""
    found = pkgutil.walk_packages(workflows.__path__, f"{workflows.__name__}.")
    modules = [import_module(each.name) for each in found]
    return [module for module in modules if getattr(module, "datetime", None) is datetime]


defects: list[str] = []
"""What operators have logged together with a traceback: errors that nobody has thought of."""


class _Defects(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            defects.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """Let the time of day be that of the worlds, keep the operators quiet, and what is loaded out of the collector."""
    changed, logger, handler = clocks(), logging.getLogger("gpuledger"), _Defects()
    before = logger.level, logger.propagate
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    logger.addHandler(handler)
    for module in changed:
        module.datetime = LoopDatetime  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()  # else each collection walks thousands of objects of libraries, which takes longer than a world
    try:
        yield
    finally:
        gc.unfreeze()
        for module in changed:
            module.datetime = datetime  # type: ignore[attr-defined]
        logger.removeHandler(handler)
        logger.level, logger.propagate = before
