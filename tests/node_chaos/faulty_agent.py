"""An agent with a fault, which the chaos must find: `faulty_agent.py FAULT agent ...`. Run in a node's box."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from gpuledger.agent import agent as startup
from gpuledger.agent.devices.watcher import DeviceWatcher
from gpuledger.agent.ended_pods import Sight
from gpuledger.agent.grants import files as grant_files
from gpuledger.agent.grants import grants
from gpuledger.agent.grants import grants as edits
from gpuledger.agent.grants.grants import Grants
from gpuledger.agent.grants.ledger_view import LedgerView
from gpuledger.agent.grants.starts import ContainerStarts
from gpuledger.agent.isolation import choice, hami_core
from gpuledger.agent.isolation.driver_limits import DriverLimits
from gpuledger.agent.usage.monitor import Monitor
from gpuledger.command_line.program import main
from gpuledger.formats.runtime.cdi import bind_mount
from gpuledger.model.errors import StartRefused
from node_chaos.impatient_agent import be_impatient
from node_chaos.steps import Delivery, Isolation

Patch = Callable[[], None]


@dataclass(frozen=True)
class Fault:
    """What is wrong with an agent, and how that is found."""

    plant: Patch
    rules: frozenset[str]
    """Each of them alone is enough."""
    isolation: Isolation = "none"
    delivery: Delivery = "cdi"


def wrap(owner: Any, name: str, made: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Patch:
    """Return what puts another function in place of one, made of that."""
    return lambda: setattr(owner, name, made(getattr(owner, name)))


def instead(owner: Any, name: str, does: Callable[..., Any]) -> Patch:
    """Return what puts another function in place of one."""
    return lambda: setattr(owner, name, does)


def of_another(right: Callable[..., Any]) -> Callable[..., Any]:
    """Return what answers with the last answer, if it is about as many cards, every third time."""
    starts = itertools.count(1)
    last: dict[int, Any] = {}  # number of cards -> the last answer

    async def cards_of(view: LedgerView, pod: Any, container: str, number: int) -> Any:
        found = await right(view, pod, container, number)
        answer = last.get(number, found) if next(starts) % 3 == 0 else found
        last[number] = found
        return answer

    return cards_of


def with_all_memory(right: Callable[..., Any]) -> Callable[..., Any]:
    """Return what tells a container that it has all memory of its cards."""
    return lambda cards, vendor, kept: right(
        [replace(card, memory_mib=card.capacity_mib) for card in cards], vendor, kept
    )


def with_one_less(right: Callable[..., Any]) -> Callable[..., Any]:
    """Return what leaves out a container's last card."""
    return lambda cards, vendor, kept: right(cards[:-1] or cards[:0], vendor, kept)


def with_devices_of_another(right: Callable[..., Any]) -> Callable[..., Any]:
    """Return what brings the devices of the card that a container had that came before."""
    before: list[Any] = []

    def device_edits(cards: Any, vendor: Any) -> Any:
        before.append(cards)
        return right(before[-2] if len(before) > 1 else cards, vendor)

    return device_edits


def by_halves(right: Callable[..., Any]) -> Callable[..., Any]:
    """Return what leaves an unfinished file beside each that it writes."""

    def write(file: Any, text: bytes) -> None:
        right(file, text)
        file.with_suffix(grant_files.UNFINISHED).write_bytes(text[:10])

    return write


async def nobody_runs(_: object) -> Sight:
    """Say that nothing is left of any pod."""
    return Sight(frozenset(), sees_pods=True)


async def nothing(*_: object, **__: object) -> None:
    """Do nothing."""


async def refused(*_: object, **__: object) -> None:
    """Refuse a start."""
    raise StartRefused("it never starts")


def once_something_runs(right: Callable[..., Any]) -> Callable[..., Any]:
    """Return what says that an agent is not ready once it has started a container."""
    return lambda agent: ["never again"] if agent._starts.outcomes["started"] else right(agent)


def common_counters(right: Callable[..., Any]) -> Callable[..., Any]:
    """Return what gives all containers the same counters."""
    return lambda home, place, starts=False: right(home, "everybodys")


def common_lock(_: Callable[..., Any]) -> Callable[..., Any]:
    """Return what mounts one directory of the node in all containers."""
    return lambda container, size, files: bind_mount("/var/lib/hami-core", container, "rw")


def writable(right: Callable[..., Any]) -> Callable[..., Any]:
    """Return what lets containers write where the sockets of their daemon are."""
    return lambda host, container, access: right(host, container, "rw")


HELD = "a container is not held to its share"
TOO_MUCH = "containers can take more than the ledger counts"
ANOTHERS_PLACE = "a container's place for HAMi-core is another one's, too"

FAULTS = {
    "another pod's cards": Fault(
        wrap(LedgerView, "cards_of", of_another),
        frozenset({"a container runs without a share", "a container has another share than its own"}),
    ),
    "all memory": Fault(
        wrap(grants, "container_edits", with_all_memory),
        frozenset({"a container has another share than its own", "a card is used beyond what it has"}),
    ),
    "a card less": Fault(
        wrap(grants, "container_edits", with_one_less),
        frozenset({"a container has more or fewer cards than it asks for"}),
    ),
    "other devices": Fault(
        wrap(edits, "_device_edits", with_devices_of_another),
        frozenset({"a container has other cards than it was told"}),
    ),
    "no limits": Fault(instead(DeviceWatcher, "limit_memory", nothing), frozenset({HELD}), "driver"),
    "each container of a claim by itself": Fault(
        instead(DriverLimits, "_limits_of_pod", lambda *_: []), frozenset({TOO_MUCH}), "driver"
    ),
    "each pod of a claim by itself": Fault(
        instead(DriverLimits, "_check_alone", lambda *_: None), frozenset({TOO_MUCH}), "driver"
    ),
    "claims together by HAMi-core": Fault(
        instead(grants, "why_not_together", lambda *_, **__: ""), frozenset({TOO_MUCH, ANOTHERS_PLACE}), "hami-core"
    ),
    "claims together by MPS": Fault(
        instead(grants, "why_not_together", lambda *_, **__: ""), frozenset({TOO_MUCH}), "mps"
    ),
    "common counters": Fault(wrap(grants, "own_directory", common_counters), frozenset({ANOTHERS_PLACE}), "hami-core"),
    "a common lock": Fault(wrap(hami_core, "memory_mount", common_lock), frozenset({ANOTHERS_PLACE}), "hami-core"),
    "counters of any size": Fault(
        instead(Monitor, "keep_small", nothing),
        frozenset({"a container fills the node's disk with its counters"}),
        "hami-core",
    ),
    "sockets to write": Fault(
        wrap(choice, "bind_mount", writable),
        frozenset({"a container has more of its MPS daemon than its socket to read"}),
        "mps",
    ),
    "the dead are not looked for": Fault(
        instead(startup, "_look_for_pods", nobody_runs), frozenset({"a container runs whose share was given up"})
    ),
    "nothing is removed": Fault(
        instead(Grants, "forget", lambda *_: None), frozenset({"a file of a pod that is gone is left over"})
    ),
    "files by halves": Fault(wrap(grant_files, "write_whole", by_halves), frozenset({"a temporary file is left over"})),
    "it starts nothing": Fault(instead(ContainerStarts, "start", refused), frozenset({"a bound pod does not run"})),
    "it is not ready": Fault(
        wrap(startup.Agent, "_not_ready", once_something_runs), frozenset({"the agent is not ready"})
    ),
}


def rules_with_faults(faults: Iterable[Fault] = tuple(FAULTS.values())) -> frozenset[str]:
    """Return the rules that a fault of an agent breaks."""
    return frozenset(rule for fault in faults for rule in fault.rules)


if __name__ == "__main__":
    be_impatient()
    FAULTS[sys.argv.pop(1)].plant()
    main()
