"""Files by which kubelet, container runtime and kernel know containers: CDI, checkpoint, control groups.

CDI: files from which a container runtime learns what a device means for a container. Source: the Container Device
Interface's specification, 0.6.0 and later (cncf-tags/container-device-interface). Of other vendors' files only the
edits are read, as they are: what they contain is theirs.

The kubelet's checkpoint: which container has which slots, and the answer of its device plugin. Source:
`pkg/kubelet/cm/devicemanager/checkpoint` of k8s.io/kubernetes, in this form since 1.20.
It is the kubelet's own file and no API: its readers must be able to do without.

Control groups: from a process to its pod, or at least to its container. Source: the kubelet's cgroup managers:
`.../pod<uid>/<container>` with cgroupfs, `...-pod<uid with _>.slice/...` with systemd, in versions 1 and 2 of control
groups. The UID of a static pod, which a file on the node describes, is a hash. The outermost group counts: inside its
own, a container may call groups whatever it likes. A kubelet that keeps no groups for pods (cgroupsPerQOS: false)
leaves the container's id, which runtimes make of 64 digits.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import Json

KIND = "gpuledger.dev/share"
"""Vendor and class of our devices: a device is what one container got."""

VERSIONS = (("netDevices", "1.1.0"), ("additionalGids", "0.7.0"), ("intelRdt", "0.7.0"))
"""Edits, and the version that brought them, newest first: a runtime refuses a file that is older than its words."""

OLDEST_VERSION = "0.6.0"
"""The first with annotations."""

FILE_PREFIX, FILE_SUFFIX = "gpuledger.dev-share-", ".json"

CLAIM_PREFIX = "claim."

POD_UID, POD, CONTAINER = "gpuledger.dev/pod-uid", "gpuledger.dev/pod", "gpuledger.dev/container"
CARDS, RESOURCE, SLOTS = "gpuledger.dev/cards", "gpuledger.dev/resource", "gpuledger.dev/slots"
CLAIM, CLAIM_UID, REQUEST = "gpuledger.dev/claim", "gpuledger.dev/claim-uid", "gpuledger.dev/request"
"""Of a grant to a ResourceClaim; absent for a container's own."""

LIMITS = "gpuledger.dev/limits"
"""UUID=GUARANTEED:MOST of each card whose driver limits the container's memory, in MiB; absent where none does."""

SHARES = "gpuledger.dev/shares"
"""UUID=MIB:CORES of each card that the container has a part of, UUID=MIB:CORES:alone where it has the card alone."""

_ALONE = "alone"
_MEMORY, _CORES = "GPULEDGER_MEMORY_MIB", "GPULEDGER_CORES"

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")

_LISTS = ("env", "deviceNodes", "hooks", "mounts", "additionalGids", "netDevices")
"""Edits that are lists, which two sets of edits can be joined by."""


@dataclass(frozen=True, slots=True)
class CardLimit:
    """How much of a card's memory a container may take, as the driver is to hold it to."""

    uuid: str
    guaranteed_mib: int
    """Never taken from it for others; 0: nothing is."""
    most_mib: int


@dataclass(frozen=True, slots=True)
class GrantedPart:
    """A container's part of a card, by the ledger, when it was granted."""

    uuid: str
    memory_mib: int
    cores: int
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class GrantedClaim:
    """The ResourceClaim, in the namespace of its grant, by whose request containers get their cards."""

    name: str
    uid: str
    request: str
    """The first one, where several are always used together."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One container's cards, as our file has them: enough to recognise the file's owner after a restart.

    Or those of a request of a ResourceClaim, for all containers that name it. Where pods share the claim, `pod` and
    `pod_uid` are its own.
    """

    name: str
    """Name of the device: never used for another container."""
    pod_uid: str
    namespace: str
    pod: str
    container: str
    resource: str
    slots: frozenset[str]
    uuids: tuple[str, ...]
    """Its cards, in the order in which it sees them."""
    edits: Json = field(default_factory=dict)
    """containerEdits of CDI."""
    limits: tuple[CardLimit, ...] = ()
    """Set by the driver's own means before the container's first process; empty: not by these."""
    claim: GrantedClaim | None = None
    parts: tuple[GrantedPart, ...] = ()
    """What it has of each of its cards, in the same order."""

    @property
    def of_one_pod(self) -> bool:
        """Whether `pod` is one, and nothing of any other gets these cards."""
        return self.claim is None or self.claim.uid != self.pod_uid

    @property
    def place(self) -> str:
        """The name of the directory that goes with the grant: as HAMi-core's users know it, owner's UID and part."""
        return f"{self.pod_uid}_{self.container}" if self.claim is None else f"{self.claim.uid}_{self.claim.request}"

    @property
    def file_name(self) -> str:
        """Name of the file in the runtime's directory."""
        return f"{FILE_PREFIX}{self.name}{FILE_SUFFIX}"


def device_name(name: str) -> str:
    """Return the name of a device for a container runtime."""
    return f"{KIND}={name}"


def claim_grant_name(uid: str, request: str) -> str:
    """Return the name of a grant to a request of a claim, always the same one. Neither UIDs nor requests have dots."""
    return f"{CLAIM_PREFIX}{uid}.{request}"


def claim_of_name(name: str) -> str | None:
    """Return the UID of the claim of a grant with this name, None if it is of no claim."""
    return name.removeprefix(CLAIM_PREFIX).partition(".")[0] if name.startswith(CLAIM_PREFIX) else None


def own_name(qualified: str) -> str | None:
    """Return a device's name if it is one of ours."""
    kind, _, name = qualified.partition("=")
    return name if kind == KIND and is_name(name) else None


def is_name(name: str) -> bool:
    """Return whether a device can have this name, and a file, too."""
    return bool(_NAME.fullmatch(name))


def grant_file(grant: Grant) -> bytes:
    """Return the file that tells a runtime of a grant. The same grant always gives the same text."""
    annotations = {
        POD_UID: grant.pod_uid,
        POD: f"{grant.namespace}/{grant.pod}",
        CONTAINER: grant.container,
        RESOURCE: grant.resource,
        SLOTS: ",".join(sorted(grant.slots)),
        CARDS: ",".join(grant.uuids),
    }
    if grant.limits:
        annotations[LIMITS] = ",".join(f"{each.uuid}={each.guaranteed_mib}:{each.most_mib}" for each in grant.limits)
    if grant.parts:
        annotations[SHARES] = ",".join(map(_part_text, grant.parts))
    if grant.claim is not None:
        annotations |= {CLAIM: grant.claim.name, CLAIM_UID: grant.claim.uid, REQUEST: grant.claim.request}
    device = {"name": grant.name, "annotations": annotations, "containerEdits": grant.edits}
    version = next((version for key, version in VERSIONS if key in grant.edits), OLDEST_VERSION)
    return orjson.dumps({"cdiVersion": version, "kind": KIND, "devices": [device]}, option=orjson.OPT_INDENT_2)


def read_grant(text: bytes) -> Grant:
    """Return the grant in a file of ours. Raises BadInput."""
    try:
        spec = orjson.loads(text)
        (device,) = spec["devices"]
        said = device["annotations"]
        namespace, _, pod = said[POD].partition("/")
        uuids = tuple(uuid for uuid in said[CARDS].split(",") if uuid)
        edits = dict(device["containerEdits"])
        return Grant(
            name=str(device["name"]),
            pod_uid=str(said[POD_UID]),
            namespace=namespace,
            pod=pod,
            container=str(said[CONTAINER]),
            resource=str(said[RESOURCE]),
            slots=frozenset(slot for slot in said[SLOTS].split(",") if slot),
            uuids=uuids,
            edits=edits,
            limits=tuple(_card_limit(each) for each in said.get(LIMITS, "").split(",") if each),
            claim=GrantedClaim(str(said[CLAIM]), str(said[CLAIM_UID]), str(said[REQUEST])) if CLAIM in said else None,
            parts=tuple(map(_part, said[SHARES].split(","))) if said.get(SHARES) else _parts_told(uuids, edits),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"not one of our CDI files: {error!r}") from error


def _part_text(part: GrantedPart) -> str:
    return f"{part.uuid}={part.memory_mib}:{part.cores}" + (f":{_ALONE}" if part.exclusive else "")


def _part(text: str) -> GrantedPart:
    """Return a container's part of a card in an annotation. Raises ValueError."""
    uuid, _, amounts = text.partition("=")
    memory_mib, cores, *alone = amounts.split(":")
    return GrantedPart(uuid, int(memory_mib), int(cores), alone == [_ALONE])


def _parts_told(uuids: Sequence[str], edits: Mapping[str, Any]) -> tuple[GrantedPart, ...]:
    """Return the parts in a file of a release that wrote them for the container alone. Raises ValueError."""
    told = dict(str(line).partition("=")[::2] for line in edits.get("env") or ())
    amounts = zip(*(told.get(name, "").split(",") for name in (_MEMORY, _CORES)), strict=True)
    if _MEMORY not in told:
        return ()
    return tuple(GrantedPart(uuid, int(mib), int(cores)) for uuid, (mib, cores) in zip(uuids, amounts, strict=True))


def _card_limit(text: str) -> CardLimit:
    """Return the limit for a card in an annotation. Raises ValueError."""
    uuid, _, amounts = text.partition("=")
    guaranteed, _, most = amounts.partition(":")
    return CardLimit(uuid, int(guaranteed), int(most))


@dataclass(frozen=True, slots=True)
class VendorDevices:
    """The devices of another vendor's CDI files: what a container needs to use a card."""

    devices: Mapping[str, Json] = field(default_factory=dict)
    """Qualified name -> edits, with those that all devices of its file need."""

    def edits(self, kind: str, names: Iterable[str]) -> Json | None:
        """Return the edits of the first of these names that there is, None if there is none."""
        return next((found for name in names if (found := self.devices.get(f"{kind}={name}")) is not None), None)


def vendor_devices(specs: Iterable[object]) -> VendorDevices:
    """Return the devices of parsed CDI files that are not ours. Entries of another form are left out.

    Of two devices with one name the later one counts, as CDI has it for directories in their order.
    """
    devices: dict[str, Json] = {}
    for spec in specs:
        if not isinstance(spec, dict) or spec.get("kind") in (None, KIND):
            continue
        shared, listed = _edits(spec.get("containerEdits")), spec.get("devices")
        for device in listed if isinstance(listed, list) else ():
            own = _edits(device.get("containerEdits")) if isinstance(device, dict) else None
            if own is not None and shared is not None:
                devices[f"{spec['kind']}={device.get('name')}"] = joined([shared, own])
    return VendorDevices(devices)


def _edits(found: object) -> Json | None:
    """Return edits that can be written down again, None for what is of another form."""
    edits = found or {}
    if not isinstance(edits, dict) or not all(isinstance(edits.get(key) or [], list) for key in _LISTS):
        return None
    try:
        orjson.dumps(edits)
    except TypeError:
        return None
    return edits


def joined(several: Iterable[Json]) -> Json:
    """Return all edits together, none twice; of several values of an environment variable, the last one."""
    result: Json = {}
    environment: dict[str, str] = {}
    for edits in several:
        for key in _LISTS:
            for each in edits.get(key) or ():
                if key == "env":
                    environment[str(each).partition("=")[0]] = str(each)
                elif each not in result.setdefault(key, []):
                    result[key].append(each)
        if "intelRdt" in edits:
            result["intelRdt"] = edits["intelRdt"]
    if environment:
        result["env"] = list(environment.values())
    return {key: value for key, value in result.items() if value}


def bind_mount(host: str, container: str, access: str) -> Json:
    """Return the edit that mounts a path of the node, `access` being ro or rw."""
    return {"hostPath": host, "containerPath": container, "options": [access, "bind", "nosuid", "nodev"]}


def memory_mount(container: str, size: str, files: int) -> Json:
    """Return the edit that mounts memory of the container's own for users of any id, of this size and files at most."""
    options = [f"size={size}", f"nr_inodes={files}", "mode=1777", "nosuid", "nodev", "noexec"]
    return {"hostPath": "tmpfs", "containerPath": container, "type": "tmpfs", "options": options}


def create_runtime_hook(program: str, arguments: Iterable[str], timeout_s: int) -> Json:
    """Return the edit that has the runtime run a program on the node before a container's first process.

    The container's control groups exist then. Where the program fails, or takes longer, the container does not start.
    """
    return {"hookName": "createRuntime", "path": program, "args": [program, *arguments], "timeout": timeout_s}


CHECKPOINT_FILE = "kubelet_internal_checkpoint"
"""Its name in the kubelet's directory of device plugins."""


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """The slots of one resource that one container has."""

    pod_uid: str
    container: str
    resource: str
    slots: frozenset[str]
    answer: bytes
    """The plugin's answer, a ContainerAllocateResponse, which the kubelet passes to the runtime."""


def read_checkpoint(text: bytes) -> tuple[CheckpointEntry, ...]:
    """Return the entries. Raises BadInput for a file of another form."""
    try:
        entries = orjson.loads(text)["Data"]["PodDeviceEntries"] or ()
        return tuple(_entry(entry) for entry in entries)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadInput(f"the kubelet's {CHECKPOINT_FILE} has another form than expected: {error!r}") from error


def _entry(entry: Mapping[str, Any]) -> CheckpointEntry:
    slots = entry["DeviceIDs"]  # NUMA node -> slots; a plain list before 1.20
    listed = slots.values() if isinstance(slots, dict) else [slots]
    return CheckpointEntry(
        pod_uid=str(entry["PodUID"]),
        container=str(entry["ContainerName"]),
        resource=str(entry["ResourceName"]),
        slots=frozenset(str(slot) for several in listed for slot in several or ()),
        answer=base64.b64decode(entry["AllocResp"] or "", validate=True),
    )


_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_CONTAINER = re.compile(r"[/:-]([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.MULTILINE)
_POD = re.compile(rf"[/-]pod({_UID})(?:\.slice)?(?:/|$)", re.MULTILINE)


def pod_uid(text: str) -> str | None:
    """Return the UID of the pod that a process is in, from its /proc/PID/cgroup; None if it is in none."""
    found = _POD.search(text)
    return found[1].replace("_", "-") if found else None


def pod_group(text: str) -> str | None:
    """Return the part of a control group's path that leads to its pod's own group; None if it is in no pod's."""
    found = _POD.search(text)
    return text[: found.end()].rstrip("/") if found else None


def container_id(text: str) -> str | None:
    """Return the id of the container that a process is in, from its /proc/PID/cgroup; None if it is in none."""
    found = _CONTAINER.search(text)
    return found[1] if found else None
