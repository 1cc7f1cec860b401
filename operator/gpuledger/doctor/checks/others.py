"""Checks for other programs that allocate our nodes' GPUs: device plugins, and schedulers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations

from gpuledger.doctor.facts import Facts, Json, known
from gpuledger.doctor.finding import Finding
from gpuledger.doctor.finding_kind import FindingKind
from gpuledger.doctor.objects import AGENT_APP, name_of, pods_of_app, some_of
from gpuledger.formats.objects.node import REGISTER_ANNOTATION, node_facts
from gpuledger.formats.objects.pod import bound_node, is_finished, scheduler_of
from gpuledger.formats.objects.resources import resources_asked

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
    """Return whose device plugin for NVIDIA's cards a pod is, by its containers' images; empty if it is none."""
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
    """Yield our nodes with pods that have GPUs by the word of another scheduler."""
    release = known(facts.release)
    names = set(release.dialects.resources())
    ours = {name_of(node) for node in known(facts.nodes) if node_facts(node, release.dialects).registers}
    found: dict[str, list[str]] = {}  # node -> pods, each with its scheduler
    for pod in known(facts.pods):
        node, scheduler = bound_node(pod), scheduler_of(pod)
        if node in ours and scheduler not in release.scheduler_names and names & set(resources_asked(pod)):
            described = f"{pod['metadata']['namespace']}/{name_of(pod)} (scheduler {scheduler or 'none'})"
            found.setdefault(node, []).append(described)
    for node, pods in sorted(found.items()):
        text = f"pods that are not in the ledger request its cards: {some_of(pods)}"
        yield Finding.of(FindingKind.FOREIGN_PODS, f"node {node}", text, NODE=node)
