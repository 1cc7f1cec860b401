"""The objects that a command line names, as kubectl has them: KIND/NAME, KIND NAME, or KIND for all of that kind.

Shells complete names of pods, gangs, cards and nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpuledger.command_line.cluster_access import ClusterAccess
from gpuledger.command_line.output import all_cards
from gpuledger.formats.kubernetes.gang import gang_name_of
from gpuledger.model.errors import BadInput


def names(cluster: ClusterAccess, kinds: Iterable[str], incomplete: str, namespace: str | None) -> list[str]:
    """Return what a word can become: first a kind, then "card/GPU-...". Raises BadInput and ApiError."""
    kind, slash, begin = incomplete.partition("/")
    if not slash:
        return [f"{each}/" for each in kinds if each.startswith(kind)]
    if kind not in kinds:
        return []
    return [f"{kind}/{name}" for name in _of_kind(cluster, kind, namespace) if name.lower().startswith(begin.lower())]


def _of_kind(cluster: ClusterAccess, kind: str, namespace: str | None) -> Iterator[str]:
    if kind == "pod":
        path = f"/api/v1/namespaces/{namespace or cluster.namespace()}/pods"
        yield from (item["metadata"]["name"] for item in cluster.begin(path))
        return
    if kind == "gang":
        path = f"/api/v1/namespaces/{namespace or cluster.namespace()}/pods"
        yield from sorted({gang.name for item in cluster.begin(path) if (gang := gang_name_of(item))})
        return
    field = "uuid" if kind == "card" else "nodeName"
    yield from sorted({str(item["spec"][field]) for item in all_cards(cluster)})


KINDS = {
    "pod": ("pod", "pods", "po"),
    "gang": ("gang", "gangs"),
    "workload": ("workload", "workloads", "wl", "workloads.kueue.x-k8s.io", "job", "jobs"),
    "node": ("node", "nodes", "no"),
    "card": ("card", "cards", "gpua", "gpuallocation", "gpuallocations", "gpuallocations.gpuledger.dev"),
}
"""Kind -> how people call it."""


KIND_OF = {word: kind for kind, words in KINDS.items() for word in words}


SHOWN = {"pod": "pod/NAME", "gang": "gang/NAME", "workload": "workload/NAME", "node": "node/NAME", "card": "card/UUID"}


@dataclass(frozen=True, slots=True)
class Named:
    """What is meant: an object, or all of a kind."""

    kind: str
    name: str | None
    """None: all of them."""


def named_objects(words: Sequence[str], kinds: Sequence[str], all_of: Sequence[str] = ()) -> list[Named]:
    """Return what the words name, of these kinds, in their order; of kinds in `gather_all`, all can be meant.

    Raises BadInput with how to write it.
    """
    pairs = [word.partition("/") for word in words]
    if len({slash for _, slash, _ in pairs}) > 1:
        raise BadInput(f"{' '.join(words)!r} mixes KIND/NAME and KIND NAME: write one or the other")
    if "/" in "".join(words):
        return [_named("/".join((word, name)), word, name, kinds) for word, _, name in pairs]
    if not words:
        return []
    first, *names = words
    if names:
        return [_named(first, first, name, kinds) for name in names]
    kind = KIND_OF.get(first.lower(), "")
    if kind in kinds and kind not in all_of:
        raise BadInput(f"{first!r} has no name: write {SHOWN[kind]} or {SHOWN[kind].replace('/', ' ')}")
    if kind not in kinds:
        raise BadInput(f"{first!r} is {_neither(kinds)}")
    return [Named(kind, None)]


def one_object(words: Sequence[str], kinds: Sequence[str], all_of: Sequence[str] = ()) -> Named:
    """Return the one that the words name. Raises as `named_objects`, and for several."""
    found = named_objects(words, kinds, all_of)
    if len(found) != 1:
        raise BadInput(f"{' '.join(words)!r} names {len(found)} objects: name one at a time")
    return found[0]


def no_such(kind: str, name: str, namespace: str = "") -> str:
    """Return the sentence that there is no such pod, in this namespace, or node."""
    return f"there is no {kind} {name!r}" + (f" in namespace {namespace!r}; -n names another" if kind == "pod" else "")


def _named(written: str, word: str, name: str, kinds: Sequence[str]) -> Named:
    kind = KIND_OF.get(word.lower(), "")
    if kind not in kinds or not name or "/" in name:
        raise BadInput(f"{written!r} is {_neither(kinds)}")
    return Named(kind, name)


def _neither(kinds: Sequence[str]) -> str:
    shown = [SHOWN[kind] for kind in kinds]
    if len(shown) == 1:
        return f"not {shown[0]}"
    return f"neither {', '.join(shown[:-1])} nor {shown[-1]}" if len(shown) > 2 else f"neither {' nor '.join(shown)}"
