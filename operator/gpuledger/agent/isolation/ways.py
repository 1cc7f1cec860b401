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
    mps_pipes: MpsPipes | None = None
    """Where our own program runs MPS' daemons; None: there is one daemon, and its pipes lie below mps_directory."""


_NO_DAEMON = "there is none for it"


def _daemon_of(cards: Sequence[GrantedCard]) -> str:
    return cards[0].uuid if len(cards) == 1 else SEVERAL
