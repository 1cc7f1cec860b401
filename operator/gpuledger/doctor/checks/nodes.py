"""Nodes with GPUs: what keeps their cards from the ledger, or from containers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpuledger.doctor.facts import Facts, Json, Release, known
from gpuledger.doctor.finding import Finding
from gpuledger.doctor.finding_kind import FindingKind
from gpuledger.doctor.objects import (
    AGENT_APP,
    labels_of,
    name_of,
    pods_of_app,
    some_of,
    version_in,
    why_not_ready,
)
from gpuledger.formats.dialects.vocabulary import KNOWN_COUNTS
from gpuledger.formats.objects.node import (
    AGENT_LABEL,
    NVIDIA,
    Inventory,
    NodeFacts,
    has_label,
    node_facts,
    read_registers,
)
from gpuledger.formats.objects.pod import bound_node, is_finished, is_ready
from gpuledger.model.card import CardPhase
from gpuledger.model.errors import BadInput
from gpuledger.model.node_offer import Dialect

GPU_LABELS = (
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
)
"""By which GPU feature discovery and node feature discovery say that a node has a card of NVIDIA's."""

KUBELET_WITH_CDI = (1, 29)
CONTAINERD_WITH_CDI = (2, 0)
CONTAINERD_CDI_BY_CHOICE = (1, 7)


def check_inventory(facts: Facts) -> Iterator[Finding]:
    """Yield nodes that have GPUs, or an agent, and no inventory; with why."""
    dialects = known(facts.release).dialects
    agents = _agents_by_node(known(facts.our_pods))
    for node in known(facts.nodes):
        name, found = name_of(node), node_facts(node, dialects)
        if not has_label(node, dialects.node_label):
            continue
        if labels_of(node).get(AGENT_LABEL) == "true" or name in agents:
            yield from _agent_problems(name, agents.get(name, []), found, facts.last_words)
        elif not found.registers and (sign := _sign_of_gpus(node, found)):
            text = (
                f"it has GPUs ({sign}), but no register of cards: neither our agent's annotation nor another system's"
            )
            yield Finding.of(FindingKind.NODE_NOT_SHARED, f"node {name}", text, NODE=name)


def _agent_problems(
    name: str, pods: Sequence[Json], found: NodeFacts, last_words: Mapping[str, str]
) -> Iterator[Finding]:
    where = f"node {name}"
    if not pods:
        text = f"it has the label {AGENT_LABEL}=true, but no pod of the node agent"
        yield Finding.of(FindingKind.AGENT_ABSENT, where, text, NODE=name)
    elif not any(is_ready(pod) for pod in pods):
        pod = pods[0]
        more = "" if found.registers else "; the node has never listed its cards"
        text = f"pod {name_of(pod)}: {why_not_ready(pod, last_words)}{more}"
        yield Finding.of(FindingKind.AGENT_NOT_READY, where, text, POD=name_of(pod), NODE=name)
    elif not found.registers:
        yield Finding.of(
            FindingKind.NODE_WITHOUT_CARDS, where, "its agent is Ready, but has listed no cards", NODE=name
        )


def check_registers(facts: Facts) -> Iterator[Finding]:
    """Yield what is wrong with what device plugins say of their nodes' cards."""
    dialects, cards = known(facts.release).dialects, known(facts.cards)
    for node in known(facts.nodes):
        found = node_facts(node, dialects)
        if not found.registers:
            continue
        where = f"node {found.name}"
        try:
            inventory = read_registers(found)
        except BadInput as error:
            yield Finding.of(FindingKind.REGISTER_PROBLEM, where, str(error), NODE=found.name)
            continue
        places = ("annotation ", "capacity ")
        problems = [each for each in inventory.problems if any(f"{where}, {place}" in each for place in places)]
        for problem in problems:
            yield Finding.of(FindingKind.REGISTER_PROBLEM, where, problem.removeprefix(f"{where}, "), NODE=found.name)
        yield from _card_problems(found, inventory, cards, bool(problems))


def _card_problems(
    found: NodeFacts, inventory: Inventory, entered: Mapping[str, str], unreadable: bool
) -> Iterator[Finding]:
    name, where = found.name, f"node {found.name}"
    if not inventory.cards:
        if not unreadable:
            text = f"its register, {found.registers[0][0].place}, is empty"
            yield Finding.of(FindingKind.NODE_WITHOUT_CARDS, where, text, NODE=name)
        return
    if not any(card.healthy for card in inventory.cards):
        faults = sorted({card.fault or "no reason is given" for card in inventory.cards})
        text = f"none of its {len(inventory.cards)} cards works: {some_of(faults)}"
        yield Finding.of(FindingKind.CARDS_OUT, where, text, NODE=name)
    missing = [card.uuid for card in inventory.cards if card.object_name not in entered]
    if missing and found.offer is not None:
        yield Finding.of(FindingKind.CARDS_NOT_ENTERED, where, f"not in the ledger: {some_of(missing)}", NODE=name)


def check_unaccounted(facts: Facts) -> Iterator[Finding]:
    """Yield the cards that are closed because pods may use them without the ledger."""
    closed = sorted(name for name, phase in known(facts.cards).items() if phase == CardPhase.UNACCOUNTED)
    if closed:
        text = f"{len(closed)} of {len(known(facts.cards))} take no new pods: {some_of(closed)}"
        yield Finding.of(FindingKind.CARDS_UNACCOUNTED, "the ledger", text)


def check_names_of_nodes(facts: Facts) -> Iterator[Finding]:
    """Yield nodes that list cards, and offer none of the resources that the settings name."""
    release = known(facts.release)
    for node in known(facts.nodes):
        found = node_facts(node, release.dialects)
        where = f"node {found.name}"
        for register, _ in found.registers:
            if register.count in found.offered:
                continue
            others = sorted(found.offered & {*KNOWN_COUNTS}) if register.vendor == NVIDIA else []
            if others:
                text = f"it offers {', '.join(others)}, and none of {register.count}, which is the name in the settings"
                yield Finding.of(FindingKind.NODE_NAMES, where, text, NODE=found.name)
            elif found.offer is None:
                text = f"it lists cards in {register.place}, but its allocatable {register.served} is 0 or absent"
                yield Finding.of(FindingKind.PLUGIN_SILENT, where, text, NODE=found.name)


def check_cdi(facts: Facts) -> Iterator[Finding]:
    """Yield nodes of our agents whose kubelet or runtime passes no CDI devices on."""
    release = known(facts.release)
    if not release.with_cdi:
        return
    for node in known(facts.nodes):
        if not _has_our_agent(node, release):
            continue
        info, name = (node.get("status") or {}).get("nodeInfo") or {}, name_of(node)
        kubelet, runtime = str(info.get("kubeletVersion") or ""), str(info.get("containerRuntimeVersion") or "")
        version = version_in(kubelet)
        if version and version < KUBELET_WITH_CDI:
            yield Finding.of(FindingKind.KUBELET_TOO_OLD, f"node {name}", f"its kubelet is {kubelet}", NODE=name)
        kind = _runtime_problem(runtime)
        if kind:
            yield Finding.of(kind, f"node {name}", f"its container runtime is {runtime}", NODE=name)


def _runtime_problem(runtime: str) -> FindingKind | None:
    system, _, _ = runtime.partition("://")
    version = version_in(runtime)
    if system == "docker":
        return FindingKind.RUNTIME_WITHOUT_CDI
    if system != "containerd" or not version or version >= CONTAINERD_WITH_CDI:
        return None
    return FindingKind.RUNTIME_CDI_OFF if version >= CONTAINERD_CDI_BY_CHOICE else FindingKind.RUNTIME_WITHOUT_CDI


def check_scores(facts: Facts) -> Iterator[Finding]:
    """Yield nodes with several cards that say nothing of their connections, where these decide."""
    release = known(facts.release)
    if not release.topology:
        return
    for node in known(facts.nodes):
        found = node_facts(node, release.dialects)
        try:
            cards = read_registers(found).cards if found.registers else ()
        except BadInput:
            continue  # check_registers says so
        if len(cards) < 2 or any(card.links for card in cards):
            continue
        hami = found.registers[0][0].dialect is Dialect.HAMI
        remedy = "" if hami else "Choose another node_policy and card_policy, or ignore this: all links count as equal."
        text = f"its {len(cards)} cards have no scores, so topology can't tell them apart"
        yield Finding.of(FindingKind.NO_SCORES, f"node {found.name}", text, remedy, NODE=found.name)


def _has_our_agent(node: Json, release: Release) -> bool:
    native = any(register.dialect is Dialect.NATIVE for register, _ in node_facts(node, release.dialects).registers)
    return native or labels_of(node).get(AGENT_LABEL) == "true"


def _agents_by_node(our_pods: Sequence[Json]) -> Mapping[str, list[Json]]:
    found: dict[str, list[Json]] = {}
    for pod in pods_of_app(our_pods, AGENT_APP):
        if (node := bound_node(pod)) and not is_finished(pod):
            found.setdefault(node, []).append(pod)
    return found


def _sign_of_gpus(node: Json, found: NodeFacts) -> str:
    """Return what shows that a node has GPUs, empty if nothing does."""
    if found.offered:
        return f"it offers {', '.join(sorted(found.offered))}"
    labels = labels_of(node)
    return next((f"label {label}" for label in GPU_LABELS if labels.get(label) == "true"), "")
