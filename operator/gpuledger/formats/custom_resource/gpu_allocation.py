"""One card in the ledger: the custom resource `GPUAllocation`, what the card is and who holds a share of it.

These models are the only source of the CRD. `crd.py` derives the schema from them, descriptions included: the text
here is what `kubectl explain gpua` prints. Every string, list and map has a maximum; without one the API server
estimates a rule's cost for the largest request there can be, and refuses the CRD.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from gpuledger.formats.custom_resource.stored_card import (
    MAX_ACCOUNT_WORD,
    MAX_CARDS_OF_ONE_POD,
    MAX_CLAIMS,
    MAX_CONFLICTS,
    MAX_CONTAINERS,
    MAX_CORES,
    MAX_ENDED,
    MAX_HOST_AMOUNT,
    MAX_INDEX,
    MAX_LINE,
    MAX_LINK_SCORE,
    MAX_LINKS,
    MAX_MEMORY_MIB,
    MAX_SLOTS,
    MAX_SLOTS_OF_ONE_POD,
    UUID_PATTERN,
    amounts_json,
    described,
)
from gpuledger.model.card import Card, CardPhase
from gpuledger.model.share import DEFAULT_GRACE_S, LONGEST_GRACE_KEPT_S, MAX_HOLDERS, HolderState, SeatFor
from gpuledger.model.usage import MILLION

# Words of a field that camelCase alone would spell "Uid" and "Mib".
_SPELLINGS: Final = {"uid": "UID", "mib": "MiB"}


def wire_name(field: str) -> str:
    """Spell a field as Kubernetes does: `pod_uid` is `podUID`, `memory_mib` is `memoryMiB`."""
    first, *others = field.split("_")
    return first + "".join(_SPELLINGS.get(word, word.capitalize()) for word in others)


# No amount is negative: a negative one could pay for another in a sum.
MemoryMiB = Annotated[int, Field(ge=0, le=MAX_MEMORY_MIB, json_schema_extra={"format": "int64"})]
Cores = Annotated[int, Field(ge=0, le=MAX_CORES, json_schema_extra={"format": "int32"})]
Slots = Annotated[int, Field(ge=0, le=MAX_SLOTS, json_schema_extra={"format": "int32"})]
SlotsOfOnePod = Annotated[int, Field(ge=1, le=MAX_SLOTS_OF_ONE_POD, json_schema_extra={"format": "int32"})]
SomeMemoryMiB = Annotated[int, Field(ge=1, le=MAX_MEMORY_MIB, json_schema_extra={"format": "int64"})]
SomeSlots = Annotated[int, Field(ge=1, le=MAX_SLOTS, json_schema_extra={"format": "int32"})]
HostAmount = Annotated[int, Field(ge=0, le=MAX_HOST_AMOUNT, json_schema_extra={"format": "int64"})]
LinkScore = Annotated[int, Field(ge=0, le=MAX_LINK_SCORE, json_schema_extra={"format": "int32"})]

Uid = Annotated[str, Field(min_length=1, max_length=64)]
Victim = Annotated[str, Field(min_length=1, max_length=64, description="UID of a pod.")]
Attempt = Annotated[str, Field(min_length=1, max_length=32)]
DnsLabel = Annotated[str, Field(min_length=1, max_length=63)]
DnsName = Annotated[str, Field(min_length=1, max_length=253)]
EntryName = Annotated[str, Field(min_length=1, max_length=191)]  # up to three DNS labels, and a slash between two
Word = Annotated[str, Field(max_length=32)]
Time = Annotated[str, Field(max_length=32, pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
Line = Annotated[str, Field(max_length=MAX_LINE)]
AccountWord = Annotated[str, Field(max_length=MAX_ACCOUNT_WORD)]
Sum = Annotated[int, Field(ge=0, le=10**18, json_schema_extra={"format": "int64"})]
Seconds = Annotated[int, Field(ge=0, le=2**31 - 1, json_schema_extra={"format": "int32"})]


class Part(BaseModel):
    """Settings that all parts share; unknown fields are skipped, a newer release may have written them."""

    model_config = ConfigDict(alias_generator=wire_name, populate_by_name=True, frozen=True)


class Capacity(Part):
    """The amounts that the card offers in total."""

    memory_mib: SomeMemoryMiB = Field(description="Memory of the card, in MiB.")
    cores: Cores = Field(
        description="Compute of the card, in percent: 100 is one whole card, more is compute offered several times."
    )
    number: SomeSlots = Field(description="Slots of the card: how many shares of it can exist at once.")


class CardFailure(Part):
    """The fault by which a card is out of service, as its node reports it."""

    fault_class: Literal["other", "contained", "reset", "lost"] = Field(
        description="lost: the card has fallen off the bus. reset: only a reset brings it back, and its programs have "
        "ended or are not to be trusted. contained: the program that was hit has ended, the others run on. other: it "
        "says nothing of programs."
    )
    since: Time = Field(description="When it began, RFC 3339, by the node's clock.")


class CardSpec(Part):
    """The card, as its node reports it."""

    # One owner, as for the status: else each link of each card has an entry of its own in metadata.managedFields.
    model_config = ConfigDict(json_schema_extra={"x-kubernetes-map-type": "atomic"})

    uuid: str = Field(
        min_length=1,
        max_length=253,
        pattern=UUID_PATTERN,
        description="UUID of the card, as its driver spells it. In lower case it is the name of this object.",
    )
    node_name: DnsName = Field(description="Node that the card is in. Cannot change while a pod holds the card.")
    index: int = Field(
        ge=0,
        le=MAX_INDEX,
        json_schema_extra={"format": "int32"},
        description="Number of the card on its node, counted from 0. Can change at a reboot; the UUID does not.",
    )
    vendor: Word = Field(description="Vendor of the card, such as nvidia.")
    model: Line = Field(description="Model of the card, as its driver names it.")
    mode: Word = Field(
        description="How the node keeps shares of the card apart, such as none, mps, hami-core or mig. "
        "With none, limits are counted but not enforced."
    )
    numa_node: int | None = Field(
        default=None,
        ge=-1,
        le=MAX_INDEX,
        json_schema_extra={"format": "int32"},
        description="NUMA node of the card; -1 or absent where the machine does not report it.",
    )
    pcie_root: Word | None = Field(
        default=None,
        description="PCIe root complex of the card, such as pci0000:16; absent where the machine does not report it.",
    )
    healthy: bool = Field(description="Whether the node reports that the card works. If not, it takes no new pods.")
    failure: CardFailure | None = Field(
        default=None, description="What is wrong with a card that is not healthy, where its node reports that."
    )
    capacity: Capacity = Field(description="What the card offers in total. Shares never add up to more.")
    links: dict[str, LinkScore] | None = Field(
        default=None,
        max_length=MAX_LINKS,
        description="Links to other cards of its node: the other card's UUID to a score, higher is better.",
    )


class Used(Part):
    """The sum over the holders."""

    memory_mib: MemoryMiB = Field(description="Memory held, in MiB. Always the sum over the holders.")
    cores: Cores = Field(description="Compute held, in percent of the card. Always the sum over the holders.")
    number: Slots = Field(description="Slots held. Always the sum over the holders.")


def unique_by(key: str) -> JsonDict:
    """Have the API server refuse a second entry with the same key."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


class ResourceClaimRef(Part):
    """A ResourceClaim in the namespace of its pod."""

    name: DnsName = Field(description="Name of the ResourceClaim.")
    uid: Uid = Field(description="UID of the ResourceClaim. A name can return in another claim, a UID cannot.")
    shared: bool | None = Field(
        default=None,
        description="Whether other pods can join the claim, since its pods name it; absent: it was made for this pod.",
    )


class ContainerShare(Part):
    """One container's part of the card."""

    name: EntryName = Field(
        description="Name of the container, or claim/request for a request of a ResourceClaim, by its name in the pod. "
        "Each has at most one share of a card."
    )
    memory_mib: MemoryMiB = Field(description="Memory that the container may use, in MiB.")
    cores: Cores = Field(description="Compute that the container may use, in percent of the card.")
    claim: ResourceClaimRef | None = Field(
        default=None,
        description="The ResourceClaim by which containers of the pod get the card; absent for a container's own "
        "resources.",
    )


class _Share(Part):
    """A pod and what it takes of the card, however it came to it."""

    pod_uid: Uid = Field(description="UID of the pod. A name can return in another pod, a UID cannot.")
    namespace: DnsLabel = Field(description="Namespace of the pod.")
    pod: DnsName = Field(description="Name of the pod.")
    memory_mib: MemoryMiB = Field(description="Memory that the pod takes at its peak, in MiB.")
    cores: Cores = Field(description="Compute that the pod takes at its peak, in percent of the card.")
    number: SlotsOfOnePod = Field(description="Slots of the card that the pod takes at once.")


class _WholeShare(_Share):
    """All that there is to know of a share."""

    exclusive: bool = Field(description="Whether the pod has the card for itself. It is then the only holder.")
    priority: int = Field(
        ge=-(2**31),
        le=2**31 - 1,
        json_schema_extra={"format": "int32"},
        description="Priority of the pod, as its PriorityClass says.",
    )
    grace_seconds: int | None = Field(
        default=None,
        ge=0,
        le=LONGEST_GRACE_KEPT_S,
        json_schema_extra={"format": "int32"},
        description=f"How long the pod may take to end once it is deleted; absent: {DEFAULT_GRACE_S} s. A pod that is "
        "gone without a report of its node keeps its share for that time, and longer.",
    )
    containers: tuple[ContainerShare, ...] = Field(
        max_length=MAX_CONTAINERS,
        json_schema_extra=unique_by("name"),
        description="What each container gets. These need not add up to the pod's amounts: init containers end "
        "before the others start.",
    )


class Seat(Part):
    """For whom a share is kept whose pod does not exist yet. The pod takes its place when it is bound."""

    kind: SeatFor = Field(description="Kind of the object that keeps it. workload: one of Kueue's.")
    name: DnsName = Field(description="Name of that object, in the holder's namespace.")
    uid: Uid = Field(description="UID of that object. A name can return in another object, a UID cannot.")
    member: EntryName = Field(description="Which of the object's pods: unique among them.")
    cards: int = Field(
        ge=1,
        le=MAX_CARDS_OF_ONE_POD,
        json_schema_extra={"format": "int32"},
        description="How many cards the pod gets in total.",
    )
    cpu_milli: HostAmount | None = Field(
        default=None, description="CPU that the pod takes of the node, in thousandths of a core; absent: 0."
    )
    memory_mib: HostAmount | None = Field(
        default=None, description="Memory that the pod takes of the node, in MiB; absent: 0."
    )


class _Charged(Part):
    """To whom the time of a share is charged, within its namespace."""

    owner: AccountWord | None = Field(
        default=None, description="The object that has made the pod, as Kind/name; absent for a pod by itself."
    )
    queue: AccountWord | None = Field(default=None, description="Queue of Kueue that the pod came from, if any.")
    priority_class: AccountWord | None = Field(default=None, description="PriorityClass of the pod, if it has one.")


class Holder(_WholeShare, _Charged):
    """A pod that holds a share of the card. It counts in full, whatever its state."""

    state: HolderState = Field(
        description="allocated: the pod is bound to the node, or about to be. releasing: the share is being taken "
        "back; the pod is gone and may still run, or its bind failed. reserved: room kept for a pod that waits "
        "for others to leave, or for one that is to come."
    )
    seat: Seat | None = Field(
        default=None,
        description="For whom the share is kept, if its pod does not exist yet: the holder's UID is then its own, "
        "and its name that of the object which keeps it. Of a pod: the seat that it has taken.",
    )
    attempt: Attempt | None = Field(
        default=None,
        description="Random name of the attempt to bind the pod that entered this share, or relied on it last. Writes "
        "to the entry test it: one that arrives late, meant for an earlier attempt, changes nothing.",
    )
    deadline: AwareDatetime | None = Field(
        default=None, description="When a reserved or releasing share expires if nothing else happens."
    )
    since: AwareDatetime | None = Field(
        default=None,
        description="From when on the share is charged, by the API server's clock; absent: it is not, as one that is "
        "reserved for a pod that waits.",
    )
    waited_seconds: Seconds | None = Field(
        default=None, description="How long the pod had waited for it then; of a pod on several cards, at one of them."
    )
    wasted_before: Sum | None = Field(
        default=None, description="What status.wasted was when its time began; absent: 0."
    )


class Ended(_Charged):
    """The time of a share that is over. It is here until the record of its namespace has it."""

    key: Annotated[str, Field(min_length=1, max_length=160)] = Field(
        description="The attempt that had entered the share, and the pod's UID. Nothing is charged twice by it."
    )
    namespace: DnsLabel = Field(description="Namespace of the pod, which is charged.")
    since: AwareDatetime = Field(description="From when on the share was held.")
    until: AwareDatetime = Field(description="Until when.")
    millionths: int = Field(
        ge=0,
        le=MILLION,
        json_schema_extra={"format": "int32"},
        description="Part of the card in millionths: of its memory or of its cores, whichever is more.",
    )
    memory_mib: MemoryMiB = Field(description="Memory that was held, in MiB.")
    cores: Cores = Field(description="Compute that was held, in percent of the card.")
    idle_seconds: Seconds | None = Field(
        default=None, description="For how long of that nothing computed with it, by its node's agent."
    )
    waited_seconds: Seconds = Field(description="How long the pod had waited for it.")
    wasted_milliseconds: Sum | None = Field(
        default=None,
        description="Its part, in time of the card, of what was left of the card meanwhile and of use to nobody.",
    )


class Wasted(Part):
    """What was left of the card while it had no slot, no memory or no cores left for others."""

    until: AwareDatetime = Field(description="Until when it has been added up.")
    card_milliseconds: Sum = Field(
        description="Time of the card, for a holder that has all of it; of others each has its part. It only grows "
        "as long as anybody holds the card."
    )


class Claim(_WholeShare):
    """A share that is promised to a pod for which others have to leave. It becomes a reserved holder when it fits."""

    cards: int = Field(
        ge=1,
        le=MAX_CARDS_OF_ONE_POD,
        json_schema_extra={"format": "int32"},
        description="How many cards the pod gets in total. No pod is evicted before all of them are claimed.",
    )
    victims: tuple[Victim, ...] = Field(
        max_length=MAX_HOLDERS,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
        description="UIDs of the holders of this card that gpuledger evicts for it, and of the rest of their gangs. "
        "Empty if kube-scheduler evicts.",
    )
    deadline: AwareDatetime = Field(description="When the claim expires if the pod has not got its cards.")


class Conflict(_Share):
    """A share that was found on the node although it does not fit here. Shown, never counted."""

    why: Line = Field(description="Why the share is not counted.")


class CardStatus(Part):
    """Which pods hold the card. Written by gpuledger; the API server rejects a holder that does not fit."""

    # One owner for the whole status: metadata.managedFields stays the same size, however many holders there are.
    model_config = ConfigDict(json_schema_extra={"x-kubernetes-map-type": "atomic"})

    phase: CardPhase = Field(
        description="Pending: its object is new, and its node's agent has not told yet what containers have of it. "
        "Ready: takes pods. Unhealthy: the node reports a fault. Unavailable: its node no longer offers it. Cordoned: "
        "an administrator has set the annotation gpuledger.dev/cordoned, or cordoned-node. Unaccounted: a pod may use "
        "the card without a share in the ledger. Only a Ready card takes new pods."
    )
    reason: Line | None = Field(default=None, description="Why the card is not Ready, in words.")
    used: Used = Field(description="What the holders take together, out of spec.capacity.")
    pods: Line | None = Field(default=None, description="The holders in one line, shortened where there are many.")
    holders: tuple[Holder, ...] = Field(
        max_length=MAX_HOLDERS,
        json_schema_extra=unique_by("podUID"),
        description="The pods that hold a share of the card, one entry each. All of them count.",
    )
    claims: tuple[Claim, ...] | None = Field(
        default=None,
        max_length=MAX_CLAIMS,
        json_schema_extra=unique_by("podUID"),
        description="Shares promised to pods of higher priority, for which holders have to leave. Not counted in used, "
        "since it is not free yet; no other pod gets what becomes free.",
    )
    conflicts: tuple[Conflict, ...] | None = Field(
        default=None,
        max_length=MAX_CONFLICTS,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
        description="Shares found on the node that do not fit. They are not counted, and need an administrator.",
    )
    ended: tuple[Ended, ...] | None = Field(
        default=None,
        max_length=MAX_ENDED,
        json_schema_extra=unique_by("key"),
        description="Shares that have ended, each entered in the write that took its holder off, until the GPUUsage of "
        "its namespace has it.",
    )
    account_revision: Sum | None = Field(
        default=None,
        description="The object's resourceVersion before the write that listed a share in ended last, or that opened "
        "the card. A write that enters a holder tests it: one that arrives late enters no share again that has ended.",
    )
    wasted: Wasted | None = Field(
        default=None, description="What has been wasted of the card since it was free; absent if nothing was."
    )


class GPUAllocation(Part):
    """One GPU of the cluster, and every share of it that pods hold.

    The status is the ledger. A pod is entered here before it is bound to a node, and the API server refuses an entry
    that does not fit, no matter which client writes it.
    """

    spec: CardSpec = Field(description="What the card is and where it is, as its node reports it. Not to be edited.")
    status: CardStatus | None = Field(
        default=None,
        description="The pods that hold the card. Written by gpuledger; the API server rejects what does not fit.",
    )


def card_spec(card: Card) -> dict[str, Any]:
    """Return a card as the `spec` of its GPUAllocation."""
    given = {**described(card), "node_name": card.node_name, "capacity": amounts_json(card.capacity)}
    spec = CardSpec.model_validate({**given, "links": dict(card.links) or None})
    return spec.model_dump(by_alias=True, exclude_none=True)
