"""Output of the commands: the terminal's width and colours, bars, amounts and times, and the cards of the ledger."""

from __future__ import annotations

import gc
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from gpuledger.formats.custom_resource.stored_card import (
    API_VERSION,
    CORDON_ANNOTATION,
    LABEL_LENGTH,
    NODE_LABEL,
    PLURAL,
)
from gpuledger.model.card import Amounts
from gpuledger.model.errors import BadInput, Denied, NotFound
from gpuledger.model.json_object import Json
from gpuledger.reports.tables import Part, Terminal, listed

if TYPE_CHECKING:
    from gpuledger.command_line.cluster_access import ClusterAccess


NARROWEST = 120
"""Columns of a table with UUIDs and details on a terminal: narrower, a detail would be a column of syllables."""


def terminal_of(no_color: bool = False, narrowest: int = 0, csv: bool = False) -> Terminal:
    """Return the properties of standard output. Colours only on a terminal, never under NO_COLOR (no-color.org).

    A terminal with fewer columns than `narrowest` breaks the lines itself.
    """
    if csv:
        return Terminal(csv=True)
    terminal = sys.stdout.isatty()
    dumb = os.environ.get("TERM") == "dumb"
    return Terminal(
        width=max(shutil.get_terminal_size().columns, narrowest) if terminal else None,
        colours=terminal and not dumb and not no_color and not os.environ.get("NO_COLOR"),
        blocks=(sys.stdout.encoding or "").lower().startswith("utf"),
    )


def data(content: Any, output: str) -> str:
    """Return content as JSON or YAML."""
    if output == "json":
        import orjson

        return orjson.dumps(content, option=orjson.OPT_INDENT_2).decode() + "\n"
    import yaml

    return str(yaml.dump(content, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False))


def write(lines: Iterable[str]) -> None:
    """Print lines. Characters that the terminal's encoding lacks become question marks."""
    encoding = sys.stdout.encoding or "utf-8"
    text = "".join(f"{line}\n" for line in lines)
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


ENTER, LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
"""To the other screen, without a cursor, and with lines that end where it ends; and back."""
HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


class Screen:
    """The terminal while a `with` lasts."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal

    def __enter__(self) -> Self:
        """Take the other screen."""
        self._write(ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the first screen back."""
        self._write(LEAVE)

    def show(self, lines: Sequence[str]) -> None:
        """Paint lines over those before: in place, so that nothing flickers.."""
        self._write(HOME + "\r\n".join(f"{line}{REST_OF_LINE}" for line in lines) + REST_OF_SCREEN)

    def _write(self, text: str) -> None:
        encoding = self._terminal.encoding or "utf-8"
        self._terminal.write(text.encode(encoding, "replace").decode(encoding))
        self._terminal.flush()


WIDTH = 10
EIGHTHS = " ▏▎▍▌▋▊▉"
FULL, EMPTY = "█", "░"


def bar(terminal: Terminal, used: float, capacity: float, style: str, width: int = WIDTH) -> tuple[Part, ...]:
    """Return a bar of `width` columns. Anything taken shows, and only what is full looks full; red is too much."""
    if capacity <= 0:
        return ((" " * width, ""),)
    steps = 8 if terminal.blocks else 1
    filled = round(width * steps * used / capacity)
    if 0 < used < capacity:
        filled = min(max(filled, 1), width * steps - 1)
    if used > capacity:
        filled, style = width * steps, "red"
    whole, rest = divmod(filled, steps)
    if not terminal.blocks:
        return (("#" * whole, style), ("." * (width - whole), "dim"))
    drawn = FULL * whole + (EIGHTHS[rest] if rest else "")
    return ((drawn, style), (EMPTY * (width - len(drawn)), "dim"))


AGES = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
"""Seconds -> the unit of that many."""


def share_text(amounts: Amounts, exclusive: bool) -> str:
    """Spell a share: "8000 MiB, 20 % cores", and whether it is alone on its card."""
    slots = f", {amounts.number} slots" if amounts.number != 1 else ""
    return f"{amounts.memory_mib} MiB, {amounts.cores} % cores{slots}" + (", alone on the card" if exclusive else "")


def amounts_of(found: Json) -> Amounts:
    """Return the amounts of an object that spells them as a GPUAllocation does."""
    return Amounts(found.get("memoryMiB", 0), found.get("cores", 0), found.get("number", 0))


def age(then: str | None, now: datetime) -> str:
    """Return how long ago a time was, in its largest unit: "3 min"; "never" for None."""
    if then is None:
        return "never"
    seconds = max(0, int((now - datetime.fromisoformat(then)).total_seconds()))
    size, unit = next((each for each in AGES if seconds >= each[0]), AGES[-1])
    return f"{seconds // size} {unit}"


def clock(then: str, now: datetime) -> str:
    """Return a time in this machine's zone: of today without the date."""
    at, here = datetime.fromisoformat(then).astimezone(now.tzinfo), now
    return f"{at:%H:%M:%S}" if at.date() == here.date() else f"{at:%Y-%m-%d %H:%M:%S}"


def utc_now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


def plural(count: int, noun: str) -> str:
    """Return "1 card" or "2 cards"."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def in_reading_order(name: str) -> list[tuple[int, str]]:
    """Sort key: node-2 comes before node-10, and card node-2/9 before node-2/10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


ALLOCATIONS = f"/apis/{API_VERSION}/{PLURAL}"

CARDS_NAMED = 4
"""Of more cards than one that a name could mean."""

FROM_MEMORY = {"resourceVersion": "0"}
"""The API server answers from its memory, in one piece, and does not ask etcd."""

NO_CRD = "there are no GPUAllocations on this cluster: is gpuledger installed? kubectl apply -k manifests/"

TO_READ = "to read the ledger, which names pods of all namespaces, your account needs ClusterRole gpuledger-viewer"


class NoLedger(Denied):
    """The account may not read the ledger; what it may read of its own namespace can stand in for that."""


NO_CARDS = (
    "No cards in the ledger. Have the agent run where they are (kubectl label node NAME gpuledger.dev/agent=true); "
    "`gpuledger doctor` says what is missing."
)

NO_NODES = (
    "node {name!r} has no cards in the ledger, and your account may not `get` nodes to see whether there is one of "
    "this name"
)


def begin_cards(cluster: ClusterAccess, node: str | None = None) -> Iterable[Json]:
    """Start to read the GPUAllocations, all or those of one node.

    Yields each as soon as it is there, once: the API server takes as long to send thousands of them as we take to read
    them. Raises BadInput without the CRD, NoLedger, ApiError.
    """
    return _of_node(cluster.begin(ALLOCATIONS, FROM_MEMORY | selector_of(node)), node)


def all_cards(cluster: ClusterAccess) -> list[Json]:
    """Return all GPUAllocations. Raises as `begin_cards`."""
    coming = begin_cards(cluster)
    with uncollected():
        return list(coming)


def _of_node(objects: Iterable[Json], node: str | None) -> Iterator[Json]:
    try:
        for item in objects:
            if node is None or item["spec"]["nodeName"] == node:
                yield item
    except NotFound:
        raise BadInput(NO_CRD) from None
    except Denied as error:
        raise NoLedger(f"{error}; {TO_READ}", error.status) from None


def selector_of(node: str | None) -> dict[str, str]:
    """Return the parameters that select a node's cards; of a node with too long a name for a label, all cards."""
    if node is None or len(node) > LABEL_LENGTH:
        return {}
    return {"labelSelector": f"{NODE_LABEL}={node}"}


def cordon_of(allocation: Json, mark: str = CORDON_ANNOTATION) -> str | None:
    """Return why a person wants no new pods on a card, None if it does not have this mark: its own, or its node's."""
    found = (allocation["metadata"].get("annotations") or {}).get(mark)
    return None if found is None else str(found)


def card_named(objects: Iterable[Json], name: str) -> Json:
    """Return the card whose UUID this is, or begins with it, in any case. Raises BadInput if it is none, or several."""
    wanted = name.lower()
    found = [item for item in objects if item["metadata"]["name"].startswith(wanted)]
    exact = [item for item in found if item["metadata"]["name"] == wanted]
    if not found:
        raise BadInput(f"no card has a UUID that begins with {name!r}; `gpuledger top cards` shows all of them")
    if len(found) > 1 and not exact:
        some = listed(sorted(item["spec"]["uuid"] for item in found), CARDS_NAMED)
        raise BadInput(f"{len(found)} cards have a UUID that begins with {name!r}: {some}; name more of it")
    return (exact or found)[0]


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector from looking through what is read, now and later.

    There are no cycles in it, and to look for them takes as long as to read.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
