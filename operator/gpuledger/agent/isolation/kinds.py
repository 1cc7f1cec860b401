"""The ways there are, and what a way is told of a container. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gpuledger.formats.runtime.mps_status import SEVERAL


class Isolation(StrEnum):
    """Ways to keep shares apart."""

    NONE = "none"
    """Nothing does: limits are counted, not enforced."""
    MPS = "mps"
    HAMI_CORE = "hami-core"
    DRIVER = "driver"
    """The kernel's part of the driver limits a container's memory."""
    MIG = "mig"
    """The card is a part of a card that the hardware keeps apart."""


@dataclass(frozen=True, slots=True)
class GrantedCard:
    """A container's part of one card, by the ledger."""

    uuid: str
    index: int
    vendor: str
    mode: str
    memory_mib: int
    cores: int
    """Percent; 0: none were promised."""
    exclusive: bool
    """Whether its pod has the card alone."""
    capacity_mib: int = 0
    """The card's memory, as the node offers it."""
    burst_mib: int = 0
    """Up to how much its container may take while nobody else needs it; less than its share stands for that."""

    @property
    def most_mib(self) -> int:
        """The limit of its memory."""
        return max(self.memory_mib, self.burst_mib)


@dataclass(frozen=True, slots=True)
class HamiCore:
    """How the node's containers have HAMi-core."""

    library_directory: str = ""
    """Of the library and its ld.so.preload; empty: they lie in HAMi-core's directory itself."""
    core_policy: str = "default"
    """Whether the limit of cores holds: by default as the node's monitor says, always (force), or never (disable)."""
    oversubscribed: bool = False
    """Whether the node's cards give out more memory than they have."""
    log_level: str = ""
    """0 to 4; empty: the library's own default."""


@dataclass(frozen=True, slots=True)
class MpsPipes:
    """By which directory of the node a container finds the MPS daemon of its cards."""

    serving: Mapping[str, str] = field(default_factory=dict)
    """UUID of a card, or SEVERAL -> directory of pipes."""
    why_not: Mapping[str, str] = field(default_factory=dict)
    """Those that take no programs at the moment -> why."""
    otherwise: str = ""
    """Why the rest take none."""

    def of(self, cards: Sequence[GrantedCard]) -> str:
        """Return the directory for a container with these cards, an empty string if none serves."""
        return self.serving.get(_daemon_of(cards), "")

    def missing(self, cards: Sequence[GrantedCard]) -> str:
        """Return why no daemon serves a container with these cards, an empty string if one does."""
        name = _daemon_of(cards)
        if name in self.serving:
            return ""
        which = "containers with several GPUs" if name == SEVERAL else f"GPU {name}"
        return f"the MPS daemon of {which} takes no programs: {self.why_not.get(name) or self.otherwise or _NO_DAEMON}"


@dataclass(frozen=True, slots=True)
class Installed:
    """Where the ways have what they need on the node; empty: not there."""

    hami_core_directory: str = ""
    mps_directory: str = ""
    why_no_driver_limits: str = "no driver is known"
    """Why the driver can't limit memory on this node; empty: it can."""
    hami_core: HamiCore = HamiCore()
    why_no_hami_core: str = ""
    """Why hami_core_directory is empty; empty: nobody has installed any."""
    mps_pipes: MpsPipes | None = None
    """Where our own program runs MPS' daemons; None: there is one daemon, and its pipes lie below mps_directory."""


_NO_DAEMON = "there is none for it"


def _daemon_of(cards: Sequence[GrantedCard]) -> str:
    return cards[0].uuid if len(cards) == 1 else SEVERAL
