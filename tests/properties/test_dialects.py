"""Foreign formats read back as what was written, and nothing that anybody can write raises another error than ours."""

import contextlib
from dataclasses import replace
from typing import Any

import orjson
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from builders import a_card
from effort import times
from fakes.dialects import (
    HAMI,
    VOLCANO,
    VOLCANO_COUNT,
    a_foreign_node,
    an_annotated_pod,
    dialects_with,
    hamis_item,
    inventory_of,
)
from fakes.objects import DIALECTS, GPU, a_container
from gpuledger.command_line.commands.inspect import as_json, as_lines, has_problems, inspect_text
from gpuledger.configuration.settings import Settings
from gpuledger.formats.custom_resource import stored_card as crd
from gpuledger.formats.dialects.assignments import hami_assignment, old_devices, unmatched, volcano_assignment
from gpuledger.formats.dialects.registers import SCORES_ANNOTATION
from gpuledger.formats.dialects.vendors import vendor_rows
from gpuledger.formats.dialects.vocabulary import AssignmentAnnotations
from gpuledger.formats.inspection import inspected
from gpuledger.formats.kubernetes.node import Inventory, node_facts, read_registers
from gpuledger.formats.kubernetes.pod import pod_facts
from gpuledger.model.card import Amounts, Card
from gpuledger.model.errors import BadInput
from gpuledger.model.share import ContainerShare, Share
from gpuledger.reports.tables import Terminal

UNIT_MIB = 16
COARSE = dialects_with(volcano_memory_unit_mib=UNIT_MIB)

uuids = st.from_regex(r"\AGPU-[a-z0-9]{1,12}\Z")
models = st.text(
    st.characters(codec="utf-8", exclude_characters=",:", exclude_categories=("Cc", "Cs")), max_size=40
).map(str.strip)
modes = st.sampled_from(["hami-core", "mig-parent", "mps"])


@st.composite
def nodes_of_cards(draw: st.DrawFn) -> list[Card]:
    """Return the cards of a node, in the order of their index, all fields such as any format can hold."""
    return [
        Card(
            uuid=uuid,
            node_name="node-a",
            index=index,
            capacity=Amounts(
                draw(st.integers(1, crd.MAX_MEMORY_MIB // UNIT_MIB)) * UNIT_MIB,
                draw(st.integers(0, crd.MAX_CORES)),
                draw(st.integers(1, crd.MAX_SLOTS)),
            ),
            model=draw(models),
            mode=draw(modes),
            numa_node=draw(st.integers(0, crd.MAX_INDEX)),
            healthy=draw(st.booleans()),
        )
        for index, uuid in enumerate(draw(st.lists(uuids, max_size=4, unique=True)))
    ]


def their_word(value: object) -> object:
    """Return the same as the others write it: what they call mig is a GPU that they cut."""
    return "mig" if value == "mig-parent" else value


def read(annotation: str, text: str) -> Inventory:
    return inventory_of(a_foreign_node({annotation: text}, {GPU: "10", VOLCANO_COUNT: "10"}), COARSE)


@given(nodes_of_cards())
def test_cards_survive_hamis_json(cards: list[Card]) -> None:
    items = []
    for card in cards:
        whole = hamis_item(card)
        items.append({name: their_word(value) for name, value in whole.items() if value})
    assert read(HAMI, orjson.dumps(items).decode()) == Inventory(tuple(cards))


def flag(healthy: bool) -> str:
    return "true" if healthy else "false"


@given(nodes_of_cards(), st.sampled_from(["", ":"]), st.booleans())
def test_cards_survive_hamis_text(cards: list[Card], closing: str, nine: bool) -> None:
    lines = []
    for card in cards:
        amounts = f"{card.capacity.number},{card.capacity.memory_mib},{card.capacity.cores}"
        line = f"{card.uuid},{amounts},{card.model},{card.numa_node},{flag(card.healthy)}"
        lines.append(f"{line},{card.index},{their_word(card.mode)}" if nine else line)
    expected = tuple(card if nine else replace(card, mode="hami-core") for card in cards)
    assert read(HAMI, ":".join(lines) + closing) == Inventory(expected)


@given(nodes_of_cards(), st.sampled_from(["", ":"]), st.booleans())
def test_cards_survive_volcanos_text_but_for_what_it_does_not_say(cards: list[Card], closing: str, six: bool) -> None:
    lines = []
    for card in cards:
        line = f"{card.uuid},{card.capacity.number},{card.capacity.memory_mib // UNIT_MIB},{card.model}"
        lines.append(f"{line},{flag(card.healthy)}" + (f",{their_word(card.mode)}" if six else ""))
    expected = tuple(
        replace(
            card, numa_node=None, capacity=replace(card.capacity, cores=100), mode=card.mode if six else "hami-core"
        )
        for card in cards
    )
    assert read(VOLCANO, ":".join(lines) + closing) == Inventory(expected)


NAMES = ["init", "a", "b", "c"]


@st.composite
def assigned(draw: st.DrawFn) -> tuple[list[str], list[Share]]:
    """Return a pod's containers, the first of them an init container, and its shares."""
    names = NAMES[: draw(st.integers(1, len(NAMES)))]
    amounts = st.tuples(st.integers(0, crd.MAX_MEMORY_MIB), st.integers(0, crd.MAX_CORES))
    shares = []
    for uuid in draw(st.lists(uuids, max_size=3, unique=True)):
        parts = draw(st.dictionaries(st.sampled_from(names), amounts, min_size=1))
        shares.append(Share(uuid, Amounts(), False, tuple(ContainerShare(name, *part) for name, part in parts.items())))
    return names, shares


def told(shares: list[Share], names: list[str]) -> list[tuple[str, str, int, int]]:
    """Return what is said of these containers: one line for each of their cards."""
    return sorted(
        (part.name, share.uuid, part.memory_mib, part.cores)
        for share in shares
        for part in share.containers
        if part.name in names
    )


def told_again(annotations: dict[str, str], names: list[str], unit_mib: int) -> list[tuple[str, str, int, int]]:
    pod = an_annotated_pod(
        annotations,
        *(a_container(name) for name in names if name != "init"),
        initContainers=[a_container("init")],
    )
    if names == ["init"]:
        pod["spec"]["containers"] = []
    old = old_devices(pod, unit_mib)
    assert old is not None
    return sorted((card.container, card.uuid, card.memory_mib, card.cores) for card in old.cards)


@given(assigned())
def test_hamis_assignment_tells_the_same_cards_again(pod: tuple[list[str], list[Share]]) -> None:
    names, shares = pod
    assume(shares)  # nobody is told of no cards
    written = hami_assignment(names, shares, lambda _: AssignmentAnnotations(), "node-a", 7)
    assert told_again(written, names, 1) == told(shares, names)


@given(assigned(), st.sampled_from([1, 16, 1_024]))
def test_volcanos_assignment_tells_the_main_containers_cards_again_with_memory_rounded_up(
    pod: tuple[list[str], list[Share]], unit_mib: int
) -> None:
    names, shares = pod
    main = [name for name in names if name != "init"]
    expected = [
        (name, uuid, -(-memory_mib // unit_mib) * unit_mib, cores)
        for name, uuid, memory_mib, cores in told(shares, main)
    ]
    assert told_again(volcano_assignment(main, shares, "node-a", 7, unit_mib), names, unit_mib) == expected


# Whatever anybody writes. What the API server lets through: text in annotations, quantities in its canonical form.

register_like = st.from_regex(r"\A(GPU-[0-9]?,?|[0-9-]{0,4},|true,|[:;,\[\]{}\" ]|hami-core|,){0,24}\Z")
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ["id", "uuid", "index", "count", "devmem", "devcore", "type", "numa", "mode", "health", "score", "links"]
FIELDS += ["memoryMiB", "cores", "number", "vendor", "model", "numaNode", "healthy", "main"]
items = st.lists(st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=8) | json_values, max_size=3)


def as_text(value: object) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # an integer that is too large for JSON, half a character
        return str(value).encode("utf-8", "replace").decode()


annotation_texts = (
    st.text(max_size=40).map(as_text)
    | st.text(st.characters(codec="utf-8"), max_size=40)
    | register_like
    | items.map(as_text)
)

NODE_NAMES = [each.annotation for each in DIALECTS.registers] + [SCORES_ANNOTATION]
COUNTS = list(DIALECTS.counts())
CHOICES = ["use-gputype", "nouse-gpuuuid", "vgpu-mode", "numa-bind", "node-scheduler-policy", "gpu-scheduler-policy"]
POD_NAMES = [f"{prefix}/{name}" for prefix in ("gpuledger.dev", "nvidia.com") for name in CHOICES]
POD_NAMES += ["gpuledger.dev/devices", "hami.io/vgpu-devices-allocated", "hami.io/vgpu-devices-to-allocate"]
POD_NAMES += ["hami.io/bind-phase", "volcano.sh/vgpu-ids-new", "volcano.sh/gpu-index"]
POD_NAMES += [name for row in vendor_rows() for name in (row.use_uuid, row.avoid_uuid) if name]
quantities = st.sampled_from(["0", "1", "2", "100", "3k", "30M", "1Gi", "500m", "-1", "x", "1e9", "9E"])


@settings(max_examples=times(150, 1_000, check=60))
@given(
    st.dictionaries(st.sampled_from(NODE_NAMES), annotation_texts, max_size=4),
    st.dictionaries(st.sampled_from(COUNTS), quantities, max_size=3),
)
def test_any_node_is_read_or_bad_input_and_every_card_that_is_read_can_be_stored(
    annotations: dict[str, str], allocatable: dict[str, str]
) -> None:
    facts = node_facts(a_foreign_node(annotations, allocatable), DIALECTS)
    with contextlib.suppress(BadInput):
        inventory = read_registers(facts)
        assert all(len(problem) < 1024 for problem in inventory.problems)
        names = [card.object_name for card in inventory.cards]
        assert len(names) == len(set(names))
        assert all(0 < card.capacity.memory_mib <= crd.MAX_MEMORY_MIB for card in inventory.cards)


@settings(max_examples=times(150, 1_000, check=60))
@given(
    st.dictionaries(st.sampled_from(POD_NAMES), annotation_texts, max_size=4),
    st.lists(st.dictionaries(st.sampled_from(DIALECTS.resources()), quantities, max_size=3), min_size=1, max_size=3),
)
def test_any_pod_has_facts(annotations: dict[str, str], limits: list[dict[str, str]]) -> None:
    """What can't be read is in the facts, as a sentence: a handler that meets such a pod goes on."""
    containers = [a_container(f"c{number}", each) for number, each in enumerate(limits)]
    pod = an_annotated_pod(annotations, *containers, initContainers=[a_container("init", limits[0])])
    facts = pod_facts(pod, DIALECTS)
    assert facts.request is None or not facts.bad_request
    assert not (facts.bad_annotation and facts.old)
    unmatched(pod)


@given(st.lists(st.sampled_from(COUNTS) | st.sampled_from(DIALECTS.resources()), min_size=1, max_size=2, unique=True))
def test_what_is_asked_for_in_any_words_takes_something_of_a_card(names: list[str]) -> None:
    pod = an_annotated_pod({}, a_container("main", dict.fromkeys(names, "1")))
    request = pod_facts(pod, DIALECTS).request
    for demand in request.shape if request else ():
        taken = demand.amounts_on(a_card().capacity)
        assert taken.memory_mib > 0
        assert taken.number == 1
        assert demand.wanted.vendor


# `gpuledger inspect` reads files, in which there can be anything.

KEYS = [
    "kind",
    "items",
    "metadata",
    "name",
    "namespace",
    "annotations",
    "spec",
    "containers",
    "initContainers",
    "limits",
]
KEYS += ["resources", "requests", "status", "allocatable", "template", "jobTemplate", "nodeName", *NODE_NAMES[:4], GPU]
keys = st.sampled_from(KEYS) | st.text(max_size=4) | st.integers(0, 3)
scalars = (
    st.sampled_from(["Node", "Pod", "List", "Deployment", "CronJob", "1", "node-a"])
    | annotation_texts
    | st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.binary(max_size=3)
    | st.dates()
)
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=5), max_leaves=20
)
objects = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["Node", "Pod", "Deployment", "List"]),
        "metadata": st.fixed_dictionaries(
            {"name": st.just("x"), "annotations": st.dictionaries(keys, scalars, max_size=3)}
        )
        | documents,
        "spec": st.fixed_dictionaries({"containers": st.lists(documents, max_size=2), "template": documents})
        | documents,
        "status": st.fixed_dictionaries({"allocatable": st.dictionaries(keys, scalars, max_size=2)}) | documents,
    }
)


@settings(max_examples=times(150, 1_000, check=60))
@given(documents | objects | st.fixed_dictionaries({"items": st.lists(objects, max_size=2)}))
def test_any_object_is_inspected(document: Any) -> None:
    found = list(inspected(document, DIALECTS))
    has_problems(found)
    assert orjson.loads(orjson.dumps(as_json(found)))
    assert list(as_lines(found, Terminal())) or not found


@settings(max_examples=75)  # each reads the vendors' table anew
@given(
    st.text(max_size=60)
    | st.from_regex(r"\A([a-z\"'\[\]{}:,&*!|>?#%@`~ -]|\n|!!(int|bool|float|timestamp|binary|set|omap|null) ){0,16}\Z")
    | objects.map(as_text)
)
def test_any_text_is_inspected_or_bad_input(text: str) -> None:
    with contextlib.suppress(BadInput):
        found = inspect_text(text, "file", Settings())
        as_json(found)
        list(as_lines(found, Terminal()))
