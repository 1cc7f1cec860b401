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
    modules = [
        import_module(f"{workflows.__name__}.{found.name}") for found in pkgutil.iter_modules(workflows.__path__)
    ]
    return [module for module in modules if getattr(module, "datetime", None) is datetime]


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """Let the time of day be that of the worlds, keep the operators quiet, and what is loaded out of the collector."""
    changed, logger = clocks(), logging.getLogger("gpuledger")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
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
        logger.setLevel(level)
