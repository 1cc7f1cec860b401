"""The formats in which device plugins list a node's cards, each read into the same cards.

Sources: HAMi 2.10, `pkg/device/devices.go` (JSON since 2.8, before that comma-separated); volcano-vgpu-device-plugin,
`pkg/util/util.go` (five fields, later six); reference registers in HAMi's FAQ. One card that can't be read does not
hide the others. HAMi leaves out fields that are zero or false, so an absent `health` means a fault. JSON with other
names for the same is data, too: `NodeRegister.fields`.

Some plugins list no cards and only report their number, to the kubelet or in a patch of `status.capacity`. These cards
get the names that HAMi gives them: unique in the cluster, and the same after a restart. Source: HAMi 2.10,
GetNodeDevices in pkg/device/{cambricon,mthreads,metax,kunlun,enflame,awsneuron}.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gpuledger.formats.custom_resource.gpu_allocation import (
    Cores,
    Line,
    LinkScore,
    SomeMemoryMiB,
    SomeSlots,
    Time,
    Word,
    wire_name,
)
from gpuledger.formats.custom_resource.stored_card import MAX_INDEX, MAX_LINK_SCORE, MAX_LINKS, UUID_PATTERN
from gpuledger.formats.dialects.vocabulary import NodeCapacity, NodeRegister
from gpuledger.formats.quantity import truth, whole_number
from gpuledger.model.card import ALL_CORES, MIG, MIG_PARENT
from gpuledger.model.errors import BadInput

MAX_CARDS = 1024
"""Cards that a node may list: more is no node, and would cost the operator its time."""


def capacity_text(status: Mapping[str, Any], capacity: NodeCapacity) -> str | None:
    """Return the amounts of these cards in a Node's status, as a text that is equal for equal amounts.

    None if it has none of them.
    """
    given, left = status.get("capacity") or {}, status.get("allocatable") or {}
    cards = given.get(capacity.cards)
    if cards is None or _is_zero(cards):
        return None
    told = {"cards": cards, "memory": given.get(capacity.memory), "allocatable": left.get(capacity.cards)}
    return orjson.dumps({name: str(value) for name, value in told.items() if value is not None}).decode()


def capacity_cards(text: str, register: NodeRegister, node_name: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the cards behind such a text, and a sentence on what it leaves open. Raises BadInput."""
    capacity = register.capacity
    if capacity is None:
        raise BadInput("it has no amounts")
    told = orjson.loads(text)
    units = _amount(told, "cards", capacity.cards)
    cards = units // capacity.per_card
    if cards > MAX_CARDS:
        raise BadInput(f"it stands for more than {MAX_CARDS} cards")
    memory_mib = register.memory_mib
    if capacity.memory:
        memory_mib = _amount(told, "memory", capacity.memory) * register.memory_unit_mib * capacity.per_card // units
    if not memory_mib:
        raise BadInput(f"the node says nothing of {capacity.memory}, the memory of these cards")
    found = [
        {
            "uuid": f"{node_name}-{register.id}-{index}",
            "index": index,
            "vendor": register.vendor,
            "model": register.model,
            "memoryMiB": memory_mib,
            "cores": ALL_CORES,
            "number": capacity.number,
            "numaNode": index * capacity.numa_nodes // cards if capacity.numa_nodes else None,
        }
        for index in range(cards)
    ]
    return found, list(_left_open(told, units, capacity))


def _left_open(told: Mapping[str, str], units: int, capacity: NodeCapacity) -> list[str]:
    problems = []
    if units % capacity.per_card:
        problems.append(f"{units} is no multiple of {capacity.per_card}, which a card is; the rest is left out")
    usable = _amount(told, "allocatable", capacity.cards) if "allocatable" in told else 0
    if 0 < usable < units:
        problems.append(
            f"only {usable} of {units} are allocatable: some card is at fault, and the node does not say which, "
            "so its cards stay open; drain the node, or cordon the card"
        )
    return problems


def _amount(told: Mapping[str, str], key: str, resource: str) -> int:
    try:
        return whole_number(told.get(key, "0"))
    except BadInput as error:
        raise BadInput(f"{resource}: {error}") from None


def _is_zero(quantity: object) -> bool:
    try:
        return whole_number(quantity) == 0
    except BadInput:
        return False


SCORES_ANNOTATION = "hami.io/node-nvidia-score"
"""On a node: JSON list of {uuid, score: {peer uuid: number}}, higher is better connected."""

Item = Mapping[str, object]


class RegisteredFailure(BaseModel):
    """The failure of a card, as in the CRD; a class that only a later release knows is read as `other`."""

    model_config = ConfigDict(alias_generator=wire_name, populate_by_name=True, frozen=True, strict=True)

    fault_class: Word
    since: Time


class RegisteredCard(BaseModel):
    """One card of a register, spelled as in ours. Fields and limits are those of the CRD; the amounts are flat."""

    model_config = ConfigDict(alias_generator=wire_name, populate_by_name=True, frozen=True, strict=True)

    uuid: Annotated[str, Field(pattern=UUID_PATTERN, max_length=253)]
    index: Annotated[int, Field(ge=0, le=MAX_INDEX)]
    vendor: Word = "nvidia"
    model: Line = ""
    memory_mib: SomeMemoryMiB
    cores: Cores = ALL_CORES
    number: SomeSlots = 10
    numa_node: Annotated[int, Field(ge=-1, le=MAX_INDEX)] | None = None
    pcie_root: Word | None = None
    mode: Word = ""
    healthy: bool = True
    fault: Line = ""
    failure: RegisteredFailure | None = None
    links: Annotated[dict[str, LinkScore], Field(max_length=MAX_LINKS)] = {}


_CARD = TypeAdapter(RegisteredCard)


HAMIS_FIELDS = {
    "uuid": "id",
    "index": "index",
    "model": "type",
    "memory_mib": "devmem",
    "cores": "devcore",
    "number": "count",
    "numa_node": "numa",
    "mode": "mode",
    "healthy": "health",
}
"""Our name for a part of a card -> HAMi's."""


def read_cards(text: str, register: NodeRegister, node_name: str) -> tuple[list[RegisteredCard], list[str]]:
    """Return the cards of a register, and a sentence on each that can't be read.

    Raises BadInput when the whole text is of another form.
    """
    cards: list[RegisteredCard] = []
    problems: list[str] = []
    items: list[Any]
    read: Callable[[Any, int, NodeRegister], Any]
    if register.format == "capacity":
        items, problems = capacity_cards(text, register, node_name)
        read = _native
    elif register.format == "native":
        items, read = _items(text, register), _native
    else:
        items, read = _items(text, register), _foreign(_READERS[register.format], node_name)
    for position, item in enumerate(items):
        try:
            cards.append(_CARD.validate_python(read(item, position, register)))
        except ValidationError as error:
            problems.append(f"{_name(item, position)}: {_reason(error)}; the card is left out")
        except BadInput as error:
            problems.append(f"{_name(item, position)}: {error}; the card is left out")
    return cards, problems


def read_scores(text: str) -> dict[str, dict[str, int]]:
    """Return card UUID -> peer UUID -> score. Raises BadInput. Scores are numbers, or text that holds one."""
    result: dict[str, dict[str, int]] = {}
    for item in _json_list(text):
        uuid, scores = (item.get("uuid"), item.get("score")) if isinstance(item, dict) else (None, None)
        if not isinstance(uuid, str) or not isinstance(scores, dict) or len(scores) > MAX_LINKS:
            raise BadInput("an entry is no {uuid, score: {peer: number}}")
        result[uuid] = {peer: _score(uuid, peer, score) for peer, score in scores.items() if peer != uuid}
    return result


def _score(uuid: str, peer: str, score: object) -> int:
    if type(score) in (int, str):  # not isinstance: a bool is an int, too
        text = str(score)
        if len(text) <= 9 and text.isascii() and text.isdigit() and int(text) <= MAX_LINK_SCORE:
            return int(text)
    raise BadInput(f"the score of {uuid[:64]} to {peer[:64]} is no number from 0 to {MAX_LINK_SCORE}")


def _items(text: str, register: NodeRegister) -> list[Any]:
    if register.entries:
        items = _entries(text, register.entries)
    elif register.format == "native" or (register.format == "hami" and text.lstrip().startswith("[")):
        items = _json_list(text)
    else:
        items = [item for item in text.strip().split(":") if item.strip()]
    if len(items) > MAX_CARDS:
        raise BadInput(f"it lists more than {MAX_CARDS} cards")
    return items


def _json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadInput(f"it is not JSON: {error}") from None


def _entries(text: str, key: str) -> list[Any]:
    found = _json(text)
    items = found.get(key) if isinstance(found, dict) else None
    if not isinstance(items, list):
        raise BadInput(f"it has no list of cards under {key}")
    return items


def _json_list(text: str) -> list[Any]:
    items = _json(text)
    if not isinstance(items, list):
        raise BadInput("it is not a list of cards")
    return items


def _foreign(
    read: Callable[[Any, int, NodeRegister], Item], node_name: str
) -> Callable[[Any, int, NodeRegister], Item]:
    """Return a reader that knows what the mode mig means to others: a GPU that their plugin cuts as it likes.

    It also says what the register's cards do not say themselves.
    """

    def renamed(item: Any, position: int, register: NodeRegister) -> Item:
        card = dict(read(item, position, register))
        card["memoryMiB"] = card["memoryMiB"] or register.memory_mib
        card["model"] = card["model"] or register.model
        if register.id:
            card["uuid"] = f"{node_name}-{register.id}-{card['index']}"
        return {**card, "mode": MIG_PARENT} if card["mode"] == MIG else card

    return renamed


def _native(item: Any, _position: int, _register: NodeRegister) -> Any:
    return item


def _hami(item: Any, position: int, register: NodeRegister) -> Item:
    if isinstance(item, str):
        return _separated(item, position, register)
    if not isinstance(item, dict):
        raise BadInput("it is no card")
    names = register.fields or HAMIS_FIELDS
    whole = _whole if register.fields else _as_it_is

    def part(name: str, absent: object, unknown: object) -> Any:
        """Return a part of a card; `absent` where the card leaves it out, `unknown` where the format does."""
        return item.get(names[name], absent) if name in names else unknown

    return {
        "uuid": part("uuid", None, ""),
        "index": whole(part("index", 0, position), "index"),
        "vendor": register.vendor,
        "model": part("model", "", ""),
        "memoryMiB": whole(part("memory_mib", 0, 0), "memory"),
        "cores": _percent(whole(part("cores", 0, register.cores_of_card), "cores"), register),
        "number": whole(part("number", 0, 1), "number of shares"),
        "numaNode": part("numa_node", 0, None),
        "mode": part("mode", "", ""),
        "healthy": part("healthy", False, True),
    }


_HAMIS = ("uuid", "number", "memoryMiB", "cores", "model", "numaNode", "healthy")
_VOLCANOS = ("uuid", "number", "memoryMiB", "model", "healthy")
_FORMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "hami": (_HAMIS, (*_HAMIS, "index", "mode")),
    "volcano": (_VOLCANOS, (*_VOLCANOS, "mode")),
}
"""Format -> the parts of a card that are separated by commas, in older releases and in newer ones."""

_NUMBERS = {
    "index": "index",
    "memoryMiB": "memory",
    "cores": "cores",
    "number": "number of shares",
    "numaNode": "NUMA node",
}
"""Parts of a card that are whole numbers -> as messages call them."""


def _separated(item: str, position: int, register: NodeRegister) -> Item:
    fields, forms = [field.strip() for field in item.split(",")], _FORMS[register.format]
    parts = next((form for form in forms if len(form) == len(fields)), None)
    if parts is None:
        raise BadInput(f"it has {len(fields)} fields, not {' or '.join(str(len(form)) for form in forms)}")
    card: dict[str, Any] = {"index": position, "vendor": register.vendor, "mode": "hami-core"}
    for part, text in zip(parts, fields, strict=True):
        if part == "healthy":
            card[part] = _healthy(text)
        else:
            card[part] = _number(text, _NUMBERS[part]) if part in _NUMBERS else text
    card["memoryMiB"] *= register.memory_unit_mib
    if "cores" in card:
        card["cores"] = _percent(card["cores"], register)
    return card


_READERS: dict[str, Callable[[Any, int, NodeRegister], Item]] = {"hami": _hami, "volcano": _separated}


def _number(text: str, what: str) -> int:
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    if not digits.isascii() or not digits.isdigit() or len(digits) > 12:
        raise BadInput(f"its {what} {text[:32]!r} is not a number")
    return int(sign + digits)


def _as_it_is(given: object, _what: str) -> object:
    return given


def _whole(given: object, what: str) -> object:
    """Return a number that may be written as a text; what is neither is for the card's own rules to refuse."""
    return _number(given, what) if isinstance(given, str) else given


def _percent(cores: object, register: NodeRegister) -> object:
    """Return cores in percent. Ascend's plugin counts AI cores, and percent when HAMi-core does the cutting."""
    if type(cores) is int and 0 <= cores <= register.cores_of_card:
        return cores * ALL_CORES // register.cores_of_card
    return cores


def _healthy(text: str) -> bool:
    try:
        return truth(text)
    except BadInput as error:
        raise BadInput(f"its health {error}") from None


def _name(item: object, position: int) -> str:
    uuid = item.get("uuid") or item.get("id") if isinstance(item, dict) else None
    if isinstance(item, str) and "," in item:
        uuid = item.split(",")[0].strip()
    return f"card {uuid}"[:128] if isinstance(uuid, str) and uuid else f"card number {position}"


def _reason(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    field = ".".join(map(str, first["loc"]))
    return f"{field or 'entry'}: {first['msg']}"
