"""Checks of nodes with GPUs: what keeps their cards from the ledger or from containers, and other allocators.

Other allocators are device plugins, schedulers, and DRA drivers: only the ledger may give cards out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import combinations

from gpuledger.doctor.facts import (
    AGENT_APP,
    Facts,
    Release,
    known,
    labels_of,
    name_of,
    pods_of_app,
    some_of,
    time_of,
    version_in,
    why_not_ready,
)
from gpuledger.doctor.kinds import Finding, FindingKind
from gpuledger.formats.admission.policies import ADMISSION_LABEL, EXEMPT_NAMESPACES
from gpuledger.formats.dialects.vocabulary import KNOWN_COUNTS
from gpuledger.formats.kubernetes.card_access import ways_past_the_ledger
from gpuledger.formats.kubernetes.kept_node import TRUE
from gpuledger.formats.kubernetes.node import (
    AGENT_LABEL,
    NVIDIA,
    REGISTER_ANNOTATION,
    REPLICAS_LABEL,
    STRATEGY_LABEL,
    Inventory,
    NodeFacts,
    has_label,
    node_facts,
    read_registers,
)
from gpuledger.formats.kubernetes.other import condition_of
from gpuledger.formats.kubernetes.pod import (
    SCHEDULED,
    bound_node,
    created_at,
    is_being_deleted,
    is_finished,
    is_of_daemon_set,
    is_ready,
    scheduler_of,
)
from gpuledger.formats.quantity import resources_asked
from gpuledger.formats.resource_claims.claims import (
    DEVICE_CLASS,
    DRIVER,
    SERVES_CLAIMS_ANNOTATION,
    claim_names,
    has_claims,
)
from gpuledger.model.card import CardPhase
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import Json
from gpuledger.model.node import Dialect

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

NOTHING = "none"
"""The way to isolate that enforces nothing; also the mode of a card of such a node."""


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


CLOSED = {
    CardPhase.UNACCOUNTED: FindingKind.CARDS_UNACCOUNTED,
    CardPhase.PENDING: FindingKind.CARDS_NOT_CONFIRMED,
}


def check_unaccounted(facts: Facts) -> Iterator[Finding]:
    """Yield the cards that are closed because pods may use them without the ledger."""
    cards = known(facts.cards)
    for phase, kind in CLOSED.items():
        closed = sorted(name for name, each in cards.items() if each == phase)
        if closed:
            yield Finding.of(kind, "the ledger", f"{len(closed)} of {len(cards)} take no new pods: {some_of(closed)}")


def check_names_of_nodes(facts: Facts) -> Iterator[Finding]:
    """Yield nodes that list cards, and offer none of the resources that the settings name."""
    release, agents = known(facts.release), _agents_by_node(known(facts.our_pods))
    for node in known(facts.nodes):
        found = node_facts(node, release.dialects)
        where = f"node {found.name}"
        for register, _ in found.registers:
            if register.count in found.offered or any(_is_new(pod, facts) for pod in agents.get(found.name, ())):
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


def check_isolation(facts: Facts) -> Iterator[Finding]:
    """Yield nodes of our agents that keep nobody to a share, where nobody has chosen that."""
    release, agents = known(facts.release), _agents_by_node(known(facts.our_pods))
    if release.nodes is None:
        return
    for node in known(facts.nodes):
        found = node_facts(node, release.dialects)
        chosen = release.nodes.of(found.name).mode or release.isolation
        if chosen == NOTHING or found.name not in agents or not _is_ours(found):
            continue
        try:
            free = [card for card in read_registers(found).cards if card.mode == NOTHING and card.vendor == NVIDIA]
        except BadInput:
            continue  # check_registers says so
        if free:
            text = f"containers can use more than their share of {len(free)} of its cards: nothing enforces any"
            yield Finding.of(FindingKind.ISOLATION_NONE, f"node {found.name}", text, NODE=found.name)


def _has_our_agent(node: Json, release: Release) -> bool:
    native = any(register.dialect is Dialect.NATIVE for register, _ in node_facts(node, release.dialects).registers)
    return native or labels_of(node).get(AGENT_LABEL) == "true"


def _agents_by_node(our_pods: Sequence[Json]) -> Mapping[str, list[Json]]:
    found: dict[str, list[Json]] = {}
    for pod in pods_of_app(our_pods, AGENT_APP):
        if (node := bound_node(pod)) and not is_finished(pod):
            found.setdefault(node, []).append(pod)
    return found


REGISTERS_S = 15.0
"""A kubelet shows what a new agent serves with its node's next status, which it writes every 10 s."""


def _is_new(agent: Json, facts: Facts) -> bool:
    """Return whether an agent is Ready for so short a time that its node need not show what it serves."""
    since = str((condition_of(agent, "Ready") or {}).get("lastTransitionTime") or "")
    now = facts.server_time if isinstance(facts.server_time, datetime) else facts.local_time
    return is_ready(agent) and bool(since) and now - datetime.fromisoformat(since) < timedelta(seconds=REGISTERS_S)


def _sign_of_gpus(node: Json, found: NodeFacts) -> str:
    """Return a sign that a node has GPUs, empty if there is none."""
    if found.offered:
        return f"it offers {', '.join(sorted(found.offered))}"
    labels = labels_of(node)
    return next((f"label {label}" for label in GPU_LABELS if labels.get(label) == "true"), "")


OURS, NVIDIAS, HAMIS, VOLCANOS = "gpuledger's", "NVIDIA's", "HAMi's", "Volcano's"

HAMI_IMAGE = re.compile(r"(?:^|/)hami(?::[^/]*)?$")

SCHEDULERS = {
    "hami-scheduler": (HAMI_IMAGE, "scheduler-extender"),
    "volcano": (re.compile("vc-scheduler"), ""),
    "koord-scheduler": (re.compile("koord-scheduler"), ""),
}
"""Scheduler name that another system serves by default -> its scheduler's image, and a word of the program's name."""

CLASHING = (frozenset((HAMIS, NVIDIAS)),)
"""Plugins that serve one resource, beside ours, which serves the names of all of them."""


def check_plugins(facts: Facts) -> Iterator[Finding]:
    """Yield nodes with more than one device plugin for NVIDIA's cards."""
    found: dict[str, dict[str, str]] = {}  # node -> whose plugin -> its pod
    for pod in known(facts.pods):
        if (node := bound_node(pod)) and not is_finished(pod) and (whose := plugin_of(pod)):
            found.setdefault(node, {})[whose] = f"{pod['metadata']['namespace']}/{name_of(pod)}"
    for agent in pods_of_app(known(facts.our_pods), AGENT_APP):
        if node := bound_node(agent):
            found.setdefault(node, {})[OURS] = f"{agent['metadata']['namespace']}/{name_of(agent)}"
    for each in known(facts.nodes):
        plugins = found.get(name_of(each), {})
        if REGISTER_ANNOTATION in (each["metadata"].get("annotations") or {}):
            plugins.setdefault(OURS, f"the agent that writes {REGISTER_ANNOTATION}")
        yield from _pairs(name_of(each), plugins)


def _pairs(node: str, plugins: dict[str, str]) -> Iterator[Finding]:
    for one, other in combinations(sorted(plugins), 2):
        clash = OURS in (one, other) or frozenset((one, other)) in CLASHING
        text = f"{one} device plugin ({plugins[one]}) and {other} ({plugins[other]}) both serve its cards"
        kind = FindingKind.PLUGINS_CLASH if clash else FindingKind.PLUGINS_MIXED
        yield Finding.of(kind, f"node {node}", text, NODE=node)


def plugin_of(pod: Json) -> str:
    """Return the system whose device plugin for NVIDIA's cards a pod is, by its images; empty for none."""
    for container in (pod.get("spec") or {}).get("containers") or ():
        image, program = _image(container), _program(container)
        if "volcano-vgpu-device-plugin" in image or "volcano-device-plugin" in image:
            return VOLCANOS
        if HAMI_IMAGE.search(image) and "device-plugin" in program:  # its scheduler is in the same image
            return HAMIS
        if "k8s-device-plugin" in image:
            return NVIDIAS
    return ""


def check_other_schedulers(facts: Facts) -> Iterator[Finding]:
    """Yield schedulers that would place the same pods as ours."""
    names = known(facts.release).scheduler_names
    served = {name: found for name, found in SCHEDULERS.items() if name in names}
    for pod in known(facts.pods) if served else ():
        for name, (image, word) in served.items():
            containers = (pod.get("spec") or {}).get("containers") or ()
            if bound_node(pod) and any(image.search(_image(c)) and word in _program(c) for c in containers):
                text = f"it serves the scheduler name {name}, and so does gpuledger"
                where = f"pod {pod['metadata']['namespace']}/{name_of(pod)}"
                yield Finding.of(FindingKind.SCHEDULER_TWICE, where, text)


def _image(container: Json) -> str:
    return str(container.get("image") or "").partition("@")[0]


def _program(container: Json) -> str:
    return f"{container.get('name')} {' '.join(container.get('command') or ())}"


def check_foreign_pods(facts: Facts) -> Iterator[Finding]:
    """Yield our nodes with pods that have GPUs by the word of another scheduler.

    The ledger has the pods of a scheduler name that was ours when they came, and of one that was adopted.
    """
    release, held = known(facts.release), known(facts.pods_held)
    names = set(release.dialects.resources())
    ours = _nodes_with_cards(facts)
    found: dict[str, list[str]] = {}  # node -> pods, each with its scheduler
    for pod in known(facts.pods):
        node, scheduler = bound_node(pod), scheduler_of(pod)
        if node not in ours or scheduler in release.scheduler_names or pod["metadata"]["uid"] in held:
            continue
        if names & set(resources_asked(pod)):
            described = f"{pod['metadata']['namespace']}/{name_of(pod)} (scheduler {scheduler or 'none'})"
            found.setdefault(node, []).append(described)
    for node, pods in sorted(found.items()):
        text = f"pods that are not in the ledger request its cards: {some_of(pods)}"
        yield Finding.of(FindingKind.FOREIGN_PODS, f"node {node}", text, NODE=node)


def _nodes_with_cards(facts: Facts) -> set[str]:
    """Return the names of the nodes that list cards which are ours."""
    dialects = known(facts.release).dialects
    return {name_of(node) for node in known(facts.nodes) if node_facts(node, dialects).registers}


def check_replicas(facts: Facts) -> Iterator[Finding]:
    """Yield nodes on which whole GPUs would be parts of GPUs."""
    dialects = known(facts.release).dialects
    for node in known(facts.nodes):
        if node_facts(node, dialects).replicated:
            labels = labels_of(node)
            said = ", ".join(f"{key}={labels[key]}" for key in (STRATEGY_LABEL, REPLICAS_LABEL) if key in labels)
            name = name_of(node)
            yield Finding.of(FindingKind.GPUS_REPLICATED, f"node {name}", f"its labels say {said}", NODE=name)


def check_card_access(facts: Facts) -> Iterator[Finding]:
    """Yield our nodes with pods that reach cards without a share.

    Programs of the cluster itself do, too, as the node agent does: pods of DaemonSets count where a namespace has opted
    in, and those of the namespaces that must start whatever happens never.
    """
    release = known(facts.release)
    labels = {name_of(each): labels_of(each) for each in known(facts.namespaces)}
    ours = _nodes_with_cards(facts)
    found: dict[str, list[str]] = {}  # node -> pods, each with its first way
    for pod in known(facts.pods):
        namespace, node = pod["metadata"]["namespace"], bound_node(pod)
        opts_in = labels.get(namespace, {}).get(ADMISSION_LABEL) == TRUE
        is_the_clusters = namespace in EXEMPT_NAMESPACES or (is_of_daemon_set(pod) and not opts_in)
        if node in ours and not is_the_clusters and (ways := ways_past_the_ledger(pod, release.dialects)):
            found.setdefault(node, []).append(f"{namespace}/{name_of(pod)} ({ways[0].text.partition(';')[0]})")
    for node, pods in sorted(found.items()):
        text = f"{len(pods)} pods reach its cards without a share: {some_of(pods)}"
        yield Finding.of(FindingKind.CARD_ACCESS, f"node {node}", text)


LATE = timedelta(seconds=30)
"""After this long, a claim that is to be made from a template should be there, and a scheduler have tried a pod."""


def _now(facts: Facts) -> datetime:
    """Return the API server's time, this machine's where that could not be read."""
    return facts.server_time if isinstance(facts.server_time, datetime) else facts.local_time


def check_unserved_pods(facts: Facts) -> Iterator[Finding]:
    """Yield names of schedulers, not ours, by which pods with GPUs wait that no scheduler has tried."""
    release = known(facts.release)
    names = set(release.dialects.resources())
    now = _now(facts)
    found: dict[str, list[str]] = {}  # name of a scheduler -> pods
    for pod in known(facts.pods):
        scheduler, since = scheduler_of(pod), time_of(created_at(pod))
        is_tried = bound_node(pod) or condition_of(pod, SCHEDULED) is not None
        is_new = since is None or now - since <= LATE
        if is_tried or is_new or is_being_deleted(pod) or scheduler in release.scheduler_names:
            continue
        if names & set(resources_asked(pod)):
            found.setdefault(scheduler, []).append(f"{pod['metadata']['namespace']}/{name_of(pod)}")
    for scheduler, pods in sorted(found.items()):
        text = f"no scheduler has tried {some_of(pods)}"
        ours = release.scheduler_names[0]
        yield Finding.of(FindingKind.PODS_UNSERVED, f"scheduler {scheduler or 'none'}", text, SCHEDULER=ours)


def check_claim_class(facts: Facts) -> Iterator[Finding]:
    """Yield whether our DeviceClass is missing where pods wait that may need it."""
    if not known(facts.release).resource_claims or known(facts.claims) is None or known(facts.device_class) is not None:
        return
    if waiting := _waiting(facts):
        text = f"there is none, and pods with claims wait: {some_of(waiting)}"
        yield Finding.of(FindingKind.CLAIM_CLASS_MISSING, f"DeviceClass {DEVICE_CLASS}", text)


def check_claims_served(facts: Facts) -> Iterator[Finding]:
    """Yield nodes whose agent gives out cards, though not by claims, where pods bring some."""
    release = known(facts.release)
    if not release.resource_claims or known(facts.claims) is None or not _waiting(facts):
        return
    for node in known(facts.nodes):
        if _is_ours(node_facts(node, release.dialects)) and not _serves(node):
            text = f"its agent has not said that it serves ResourceClaims (annotation {SERVES_CLAIMS_ANNOTATION})"
            yield Finding.of(FindingKind.CLAIMS_NOT_SERVED, f"node {name_of(node)}", text, NODE=name_of(node))


def check_claims_made(facts: Facts) -> Iterator[Finding]:
    """Yield pods for which no claims are made from their templates."""
    now = _now(facts)
    late = []
    for pod in _pods_with_claims(facts):
        since = time_of(created_at(pod))
        lacking = [template for _, made, template in claim_names(pod) if template and not made]
        if not bound_node(pod) and lacking and since is not None and now - since > LATE:
            late.append(f"{pod['metadata']['namespace']}/{name_of(pod)} (ResourceClaimTemplate {lacking[0]})")
    if late:
        text = f"none is made from their templates for {some_of(late)}"
        yield Finding.of(FindingKind.CLAIMS_NOT_MADE, "ResourceClaims", text)


def check_claims(facts: Facts) -> Iterator[Finding]:
    """Yield claims that have cards of ours without the ledger."""
    held = known(facts.claims_held)
    found: dict[str, list[str]] = {}  # node -> claims
    for claim in known(facts.claims) or ():
        allocated = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
        nodes = {str(each.get("pool")) for each in allocated.get("results") or () if each.get("driver") == DRIVER}
        if nodes and claim["metadata"]["uid"] not in held:
            found.setdefault(min(nodes), []).append(f"{claim['metadata']['namespace']}/{name_of(claim)}")
    for node, claims in sorted(found.items()):
        text = f"claims that are not in the ledger have its cards: {some_of(claims)}"
        yield Finding.of(FindingKind.CLAIMS_UNACCOUNTED, f"node {node}", text, NODE=node)


def _pods_with_claims(facts: Facts) -> list[Json]:
    """Return the pods of our profiles that bring claims."""
    names = known(facts.release).scheduler_names
    pods = (pod for pod in known(facts.pods) if has_claims(pod) and not is_being_deleted(pod))
    return [pod for pod in pods if scheduler_of(pod) in names]


def _waiting(facts: Facts) -> list[str]:
    """Return the names of those of them that have no node."""
    waiting = (pod for pod in _pods_with_claims(facts) if not bound_node(pod))
    return [f"{pod['metadata']['namespace']}/{name_of(pod)}" for pod in waiting]


def _serves(node: Json) -> bool:
    return (node["metadata"].get("annotations") or {}).get(SERVES_CLAIMS_ANNOTATION) == "true"


def _is_ours(node: NodeFacts) -> bool:
    return any(register.dialect is Dialect.NATIVE for register, _ in node.registers)
