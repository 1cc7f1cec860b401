"""Writes the trail down as it happens: one line of JSON for each record, to a file or to standard output.

A thread of its own does it. A slow disk delays no pod; and a file that was moved away by logrotate is opened again.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import QueueHandler, QueueListener, WatchedFileHandler
from queue import SimpleQueue
from typing import Any

import orjson

from gpuledger.reports.record import Record
from gpuledger.workflows.pending.trail import Trail

STANDARD_OUTPUT = "-"


@contextmanager
def trail_written(trail: Trail, file: str) -> Iterator[None]:
    """Have the records of a trail written down as long as this lasts; nothing happens without a file.

    Raises OSError if the file can't be opened.
    """
    if not file:
        yield
        return
    handler = logging.StreamHandler(sys.stdout) if file == STANDARD_OUTPUT else WatchedFileHandler(file)
    handler.setFormatter(_Line())
    queue: SimpleQueue[Any] = SimpleQueue()
    listener, sender = QueueListener(queue, handler), _Sender(queue)

    def send(record: Record) -> None:
        sender.emit(logging.LogRecord("trail", logging.INFO, "", 0, record, None, None))

    trail.on_record.append(send)
    listener.start()
    try:
        yield
    finally:
        trail.on_record.remove(send)
        listener.stop()  # after everything was written
        handler.close()


class _Sender(QueueHandler):
    """Hands records over as they are: the thread spells them out."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record


class _Line(logging.Formatter):
    """A record of the trail as a line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        assert isinstance(record.msg, Record)  # noqa: S101 - nothing else is sent here
        return orjson.dumps(record.msg.json()).decode()
