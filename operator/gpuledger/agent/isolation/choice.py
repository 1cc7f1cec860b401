"""Which mechanism isolates a container's shares, as its node or its pod chooses, and what each adds to it. Pure.

Limits above a container's share, which a pod may take of its cards while nobody else needs it: the ledger counts the
share, and nothing else. So they are only for nodes whose administrator allows that, and, unless he says otherwise,
whose isolation keeps the shares of the others: the driver does, HAMi-core does not.

The driver: NVIDIA's kernel module keeps each container's control group to its memory of a card. Source: NVML's
nvmlDeviceSetMemoryLimits_v1 (driver 615), and NVIDIA's "MPS v3 Memory Partitioning". NVIDIA's toolkit (1.20.1) has a
hook of its own for it, which takes one amount for all cards of a container, from its environment: shares differ by
card, and what a pod's user writes there must not count.

MPS: CUDA's own server keeps each client to its part of a card. Source: CUDA's MPS documentation
(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE). In the directory of pipes, CUDA connects to the
socket `control`, and opens nothing else: seen of the drivers 535 and 550, without a card. Sockets work on a read-only
mount, where nobody can replace them, or put anything beside them.

Not each of them keeps several containers that use one claim to its amount together. HAMi-core counts by process id, and
each container has ids of its own: with one file for several containers, a process takes another one's entry for its
own, or for that of a process that has ended, and removes it (HAMi-core's `init_proc_slot_withlock`, `proc_alive`). MPS
limits each process. The driver limits control groups, which are nested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from gpuledger.formats.annotations import limit_of, memory_limits
from gpuledger.formats.runtime.cdi import CardLimit, bind_mount, create_runtime_hook
from gpuledger.formats.runtime.limit_hook import SCRIPT, SHELL, TIMEOUT_S
from gpuledger.formats.runtime.mps import SEVERAL, SHARED_MEMORY
from gpuledger.model.card import MIG
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import Json


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
    """Up to how much its container may take while no other one needs it; its share, if less."""

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
    """Why hami_core_directory is empty; empty: none was installed."""
    mps_pipes: MpsPipes | None = None
    """Where our own program runs MPS' daemons; None: there is one daemon, and its pipes lie below mps_directory."""


_NO_DAEMON = "there is none for it"


def _daemon_of(cards: Sequence[GrantedCard]) -> str:
    return cards[0].uuid if len(cards) == 1 else SEVERAL


@dataclass(frozen=True, slots=True)
class IsolationChoice:
    """A way, and why it is not the one that the pod wishes; empty if it is."""

    isolation: Isolation
    why_not_as_wished: str = ""


def choose(cards: Sequence[GrantedCard], of_node: Isolation, wish: str, installed: Installed) -> IsolationChoice:
    """Return how these cards are kept apart from others' shares.

    A pod's wish counts where it can harm no other pod: it is alone on its cards, or the node enforces nothing and has
    what the wish needs. Users can write wishes at any time.
    """
    own = Isolation.MIG if all(card.mode == Isolation.MIG for card in cards) else of_node
    if not wish or wish == own:
        return IsolationChoice(own)
    if wish not in (Isolation.NONE, Isolation.MPS, Isolation.HAMI_CORE, Isolation.DRIVER) or own is Isolation.MIG:
        return IsolationChoice(own, f"{wish[:32]!r} can't be chosen for these cards")
    wished = Isolation(wish)
    if wished is Isolation.NONE:
        alone = all(card.exclusive for card in cards)
        return (
            IsolationChoice(wished)
            if alone
            else IsolationChoice(own, "none is only for pods that have their cards alone")
        )
    if not _is_installed(wished, installed):
        return IsolationChoice(own, f"{wished} is not installed on the node")
    if own is not Isolation.NONE and not all(card.exclusive for card in cards):
        return IsolationChoice(own, f"the node enforces limits by {own}")
    return IsolationChoice(wished)


def fitting(installed: Installed) -> Isolation:
    """Return the best way that a node has without an administrator's doing: the driver, else HAMi-core from an image.

    A library that another program has put on the node, such as HAMi, does not count: that may go at any time.
    """
    if not installed.why_no_driver_limits:
        return Isolation.DRIVER
    from_image = installed.hami_core.library_directory not in ("", installed.hami_core_directory)
    return Isolation.HAMI_CORE if from_image else Isolation.NONE


def without_hami_core(
    choice: IsolationChoice, cards: Sequence[GrantedCard], of_node: Isolation, installed: Installed
) -> IsolationChoice:
    """Return the choice for a container whose environment wishes, as HAMi's users say it, that HAMi-core does nothing.

    That is the wish for none, and counts where that would: not beside other pods.
    """
    if choice.isolation is not Isolation.HAMI_CORE:
        return choice
    return choose(cards, of_node, Isolation.NONE, installed)


def missing(isolation: Isolation, installed: Installed, cards: Sequence[GrantedCard] = ()) -> str:
    """Return the problem of this way on the node with these cards, an empty string for none."""
    if isolation is Isolation.MPS and installed.mps_pipes is not None and cards:
        return installed.mps_pipes.missing(cards)
    if _is_installed(isolation, installed):
        return ""
    reasons = {Isolation.DRIVER: installed.why_no_driver_limits, Isolation.HAMI_CORE: installed.why_no_hami_core}
    why = f": {reason}" if (reason := reasons.get(isolation)) else ""
    return f"the node's isolation is {isolation}, which it does not have{why}"


def _is_installed(isolation: Isolation, installed: Installed) -> bool:
    if isolation is Isolation.MPS:
        return bool(installed.mps_directory)
    if isolation is Isolation.DRIVER:
        return not installed.why_no_driver_limits
    return isolation is not Isolation.HAMI_CORE or bool(installed.hami_core_directory)


class Bursts(StrEnum):
    """Where a pod's limit may be above its share."""

    NEVER = "never"
    GUARANTEED = "guaranteed"
    """Where others keep their shares all the same."""
    ANY = "any"
    """Where there are limits at all."""


_HELD_BY = {
    Bursts.GUARANTEED: frozenset({Isolation.DRIVER}),
    Bursts.ANY: frozenset({Isolation.DRIVER, Isolation.HAMI_CORE}),
}


def with_bursts(
    cards: Sequence[GrantedCard], pod: Mapping[str, Any], container: str, isolation: Isolation, allowed: Bursts
) -> tuple[Sequence[GrantedCard], str]:
    """Return a container's cards with the limits that its pod wishes, and why these count for nothing.

    The latter is empty if they count, or the pod wishes none.
    """
    try:
        limits = memory_limits(pod)
    except BadInput as error:
        return cards, str(error)
    if not limits:
        return cards, ""
    if allowed is Bursts.NEVER:
        return cards, "this node allows no limits above shares (setting memory_bursts)"
    if isolation not in _HELD_BY[allowed]:
        return cards, f"{isolation}, by which this node isolates, does not hold such limits"
    return [
        replace(card, burst_mib=limit_of(container, limits, card.memory_mib, card.capacity_mib)) for card in cards
    ], ""


VENDORS_HOOK = "apply-cuda-memory-limits"
REQUEST, LIMIT = "NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"
"""The variables that the toolkit's hook reads, in MiB."""


def driver_edits(name: str, directory: str, limits: Sequence[CardLimit]) -> Json:
    """Return the edits for the container of a grant; `directory` is the agent's for the hook, on the node.

    Where NVIDIA's container runtime brings its own hook in later than ours, that one reads amounts that are no more
    than any of the container's shares.
    """
    edits: Json = {"hooks": [create_runtime_hook(SHELL, [f"{directory}/{SCRIPT}", name, directory], TIMEOUT_S)]}
    if limits:
        most_mib = min(limit.most_mib for limit in limits)
        guaranteed_mib = min(most_mib, *(limit.guaranteed_mib for limit in limits))
        edits["env"] = [f"{REQUEST}={guaranteed_mib}", f"{LIMIT}={most_mib}"]
    return edits


def without_vendors_limits(edits: Json) -> Json:
    """Return edits without the toolkit's hook: it would only set what ours sets after it."""
    hooks = [hook for hook in edits.get("hooks") or () if VENDORS_HOOK not in (hook.get("args") or ())]
    return {**edits, "hooks": hooks} if "hooks" in edits else edits


def driver_limits(cards: Sequence[GrantedCard], guarantees: bool = False) -> tuple[CardLimit, ...]:
    """Return the limits of these cards: the share of each, or what a container may borrow. MIG devices need none.

    With `guarantees`, where others on the node may borrow, its share is kept for each container.
    """
    return tuple(
        CardLimit(card.uuid, card.memory_mib if guarantees else 0, card.most_mib) for card in cards if card.mode != MIG
    )


MPS_PIPES, MPS_MEMORY = "/tmp/nvidia-mps", "/dev/shm"  # noqa: S108 - where CUDA looks for them in a container


def mps_edits(cards: Sequence[GrantedCard], directory: str, pipes: MpsPipes | None = None) -> Json:
    """Return the edits for a container with these cards.

    `directory` is MPS' on the node, `pipes` says where the daemons are that we run ourselves.
    """
    memory = ",".join(f"{position}={card.memory_mib}M" for position, card in enumerate(cards))
    env = [f"CUDA_MPS_PIPE_DIRECTORY={MPS_PIPES}", "CUDA_DEVICE_ORDER=PCI_BUS_ID"]
    if not all(card.exclusive for card in cards):
        env.append(f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={memory}")
    promised = [card.cores for card in cards if card.cores]
    if promised and min(promised) < 100:  # one number for all of a client's cards
        env.append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={min(promised)}")
    own = pipes.of(cards) if pipes is not None else f"{directory}/pipe"
    mounts = [bind_mount(own, MPS_PIPES, "ro"), bind_mount(f"{directory}/{SHARED_MEMORY}", MPS_MEMORY, "rw")]
    return {"env": env, "mounts": mounts}


_COUNTS = {
    Isolation.HAMI_CORE: "HAMi-core counts what each container uses by itself",
    Isolation.MPS: "MPS limits each process by itself",
}
"""Ways that can't hold an amount that containers have together -> why."""


def why_not_together(isolation: Isolation, cards: Sequence[GrantedCard], containers: int, by_several_pods: bool) -> str:
    """Return why containers can't use these cards of one claim together; empty: they can, or nothing limits them.

    `containers` of a pod use them at the same time. Whole cards need no limit.
    """
    if isolation not in _COUNTS or all(card.exclusive or card.mode == Isolation.MIG for card in cards):
        return ""
    if by_several_pods:
        who, instead = "pods that share it", "give each pod a claim of its own, by a ResourceClaimTemplate"
    elif containers > 1:
        who, instead = f"its {containers} containers", "give each container a request of its own"
    else:
        return ""
    return f"{_COUNTS[isolation]}, so {who} could use more than the claim has: {instead}, or request whole GPUs"
