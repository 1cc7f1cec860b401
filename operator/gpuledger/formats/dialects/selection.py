"""Annotations by which a pod says which cards it wants, and how to choose among them.

The names are HAMi's and Volcano's; under `gpuledger.dev/` there are the same. Where several say the same thing, all
count: of lists of cards, the union. Koordinator has one label beside them. Sources: HAMi 2.10,
`pkg/device/nvidia/device.go` and `pkg/util/types.go`; Volcano 1.16, `pkg/scheduler/api/devices/nvidia/vgpu`;
Koordinator, `apis/extension/device_share.go`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpuledger.formats.quantity import truth
from gpuledger.model.card import CardFilter
from gpuledger.model.errors import BadInput, did_you_mean
from gpuledger.model.json_object import JsonMapping
from gpuledger.model.request import ANY_NVIDIA, MAX_ENTRIES

PREFIXES = ("gpuledger.dev", "nvidia.com", "hami.io", "volcano.sh")
"""HAMi has the choice of cards under nvidia.com, and its documentation also under hami.io."""

CARD_NAME = "volcano.sh/card.name"
"""Of Volcano's plugin capacity-card: models as `nvidia.com/gpu.product` names them, with bars between them. It also
names parts of cards, as `MODEL/mps-10g*1/8`."""

USE_MODEL = (*(f"{prefix}/use-gputype" for prefix in PREFIXES), CARD_NAME)
AVOID_MODEL = tuple(f"{prefix}/nouse-gputype" for prefix in PREFIXES)
USE_UUID = (*(f"{prefix}/use-gpuuuid" for prefix in PREFIXES), "volcano.sh/vgpu-use-gpuuuid")
AVOID_UUID = (*(f"{prefix}/nouse-gpuuuid" for prefix in PREFIXES), "volcano.sh/vgpu-nouse-gpuuuid")
NUMA_BIND = tuple(f"{prefix}/numa-bind" for prefix in PREFIXES)
MODE = tuple(f"{prefix}/vgpu-mode" for prefix in PREFIXES)
NODE_POLICY = tuple(f"{prefix}/node-scheduler-policy" for prefix in PREFIXES)
CARD_POLICY = tuple(f"{prefix}/gpu-scheduler-policy" for prefix in PREFIXES)

ISOLATION_PROVIDER = "koordinator.sh/gpu-isolation-provider"
"""Label on a pod, Koordinator's: what has to keep its shares apart from others'."""
HAMI_CORE = "HAMi-core"
"""The only provider that Koordinator has a name for."""

POLICIES = {
    "binpack": "binpack",
    "spread": "spread",
    "topology-aware": "topology",
    "topology": "topology",
    "fragmentation": "fragmentation",
}
"""As users write them -> as ours are called."""

TOPOLOGY = "topology"

MAX_CHARACTERS = 16_384
"""Of one annotation, and of all entries of a pod: a list of as many UUIDs as that is shorter. They stay in memory for
as long as the pod waits."""

OTHER_POLICIES = {
    "mutex": "to have a card alone, ask for all of its cores",
    "numa": "to have all cards on one NUMA node, set numa-bind",
    "numa-bind": "to have all cards on one NUMA node, set the annotation of that name",
}
"""HAMi's other words for choosing cards -> what does the same here."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A pod's choice of cards, from its annotations."""

    cards: CardFilter = ANY_NVIDIA
    one_numa_node: bool = False
    node_policy: str = ""
    card_policy: str = ""
    warnings: tuple[str, ...] = ()

    @staticmethod
    def entries_of(pod: JsonMapping, annotation: str) -> tuple[str, ...]:
        """Return the list in a vendor's own annotation."""
        return _entries(_annotations(pod), (annotation,)) if annotation else ()


NOTHING_CHOSEN = Selection()


def selection(pod: JsonMapping) -> Selection:
    """Return the choice of cards in the pod's annotations.

    Raises BadInput for an unknown word: ignoring it would give the pod a card that it did not want.
    """
    annotations, mode = _annotations(pod), isolation_wish(pod)
    if not annotations and not mode:
        return NOTHING_CHOSEN
    node_policy, node_warnings = _policy(annotations, NODE_POLICY)
    card_policy, card_warnings = _policy(annotations, CARD_POLICY)
    if card_policy == TOPOLOGY and not node_policy:  # as HAMi's guide says: its nodes are chosen by it, too
        node_policy = TOPOLOGY
    lists = [_entries(annotations, names) for names in (USE_MODEL, AVOID_MODEL, USE_UUID, AVOID_UUID, MODE)]
    if sum(len(entry) for entries in lists for entry in entries) > MAX_CHARACTERS:
        raise BadInput(f"the annotations that choose cards have more than {MAX_CHARACTERS:,} characters together")
    use_models, avoid_models, use_uuids, avoid_uuids, modes = lists
    _check_whole(annotations)
    return Selection(
        cards=CardFilter(
            use_models=use_models,
            avoid_models=avoid_models,
            use_uuids=use_uuids,
            avoid_uuids=avoid_uuids,
            modes=modes or mode,
        ),
        one_numa_node=_numa_bind(annotations),
        node_policy=node_policy,
        card_policy=card_policy,
        warnings=node_warnings + card_warnings,
    )


def _check_whole(annotations: Mapping[str, object]) -> None:
    """Raise BadInput where a card is named by one of its parts: what it is cut into says the request."""
    for entry in _entries(annotations, (CARD_NAME,)):
        if "/" in entry:
            model = entry.partition("/")[0]
            raise BadInput(
                f"annotation {CARD_NAME}: {entry[:64]!r} names a part of a card; write {model[:64]}, and ask for "
                "memory and cores in limits"
            )


def isolation_wish(pod: JsonMapping) -> tuple[str, ...]:
    """Return the mode of cards that a pod's label of Koordinator requires; none without it. Raises BadInput."""
    labels = (pod.get("metadata") or {}).get("labels")
    provider = labels.get(ISOLATION_PROVIDER) if isinstance(labels, dict) else None
    if not provider:
        return ()
    if provider != HAMI_CORE:
        raise BadInput(
            f"label {ISOLATION_PROVIDER}: {str(provider)[:64]!r} is not known; write {HAMI_CORE}, or drop it"
        )
    return ("hami-core",)


def _annotations(pod: JsonMapping) -> Mapping[str, object]:
    annotations = (pod.get("metadata") or {}).get("annotations")
    return annotations if isinstance(annotations, dict) else {}


def _entries(annotations: Mapping[str, object], names: tuple[str, ...]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for name in names:
        value = annotations.get(name)
        if isinstance(value, str):
            if len(value) > MAX_CHARACTERS:
                raise BadInput(f"annotation {name} is longer than {MAX_CHARACTERS:,} characters")
            found |= dict.fromkeys(entry.strip() for entry in re.split("[,|]", value) if entry.strip())
            if len(found) > MAX_ENTRIES:
                raise BadInput(f"annotation {name} has more than {MAX_ENTRIES} entries")
    return tuple(found)


def _numa_bind(annotations: Mapping[str, object]) -> bool:
    result = False
    for name in NUMA_BIND:
        if name in annotations:
            try:
                result |= truth(annotations[name])
            except BadInput as error:
                raise BadInput(f"annotation {name}: {error}") from None
    return result


def _policy(annotations: Mapping[str, object], names: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the first policy of the first annotation that has one, and what to say of the words passed over."""
    warnings: list[str] = []
    for position, name in enumerate(names):
        words = _entries(annotations, (name,))
        for place, word in enumerate(words):
            if word in POLICIES:
                rest = ", ".join(words[place + 1 :])[:64]
                if rest:
                    warnings.append(f"annotation {name}: the first policy counts, {word}; {rest} has no effect")
                others = names[position + 1 :]
                warnings += (
                    f"annotation {other} has no effect: {name} counts" for other in others if other in annotations
                )
                return POLICIES[word], tuple(warnings)
            if word not in OTHER_POLICIES:
                known = f"policies are {', '.join(POLICIES)}{did_you_mean(word, POLICIES)}"
                raise BadInput(f"annotation {name}: {word[:64]!r} is not a policy; {known}")
            warnings.append(f"annotation {name}: {word} has no effect; {OTHER_POLICIES[word]}")
    return "", tuple(warnings)
