"""Policies for queues, in CEL: sums of what containers request, and Kueue's label.

formats/dialects/sums.py has the sums in Python. The policy holds for pods, and for what has templates of pods that a
queue counts. A container's amounts are overwritten, whatever a user has written there, and written again they are the
same.

Kueue's label is written on objects that name a queue in other words: formats/dialects/sums.py has it in Python.
Of a Job, Kueue reads the label of the Job itself, not that of its
template, so the Job gets it, wherever the word stands. Only when an object is created: Kueue lets nobody change the
queue of a job that runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpuledger.formats.admission.rules import CLUSTERS_OWN, add_label, all_named, named, patch
from gpuledger.formats.annotations import ASKED_LABEL
from gpuledger.formats.custom_resource.crd import literal, mentions
from gpuledger.formats.dialects.selection import AVOID_MODEL, USE_MODEL
from gpuledger.formats.dialects.sums import (
    KINDS,
    LABEL_PLACES,
    PLACES,
    PRODUCT_LABEL,
    QUEUE_NAME,
    CardModels,
    TemplatePlace,
    queue_label_names,
)
from gpuledger.formats.dialects.vocabulary import SUM_CORES, SUM_GPUS, SUM_MEMORY, SUMS, Dialects, Vocabulary
from gpuledger.model.json_object import Json
from gpuledger.model.request import ANY_NVIDIA

SUMS_POLICY: Final = "gpuledger-sums"


def sum_rules() -> list[Json]:
    """Return which requests are looked at: new pods, and what has templates whenever these change."""
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    return [pods, *template_rules()]


def template_rules(*operations: str) -> list[Json]:
    """Return which requests for objects with templates are looked at: if none are named, of creation and change."""
    named = operations or ("CREATE", "UPDATE")
    return [
        {"apiGroups": [group], "apiVersions": [version], "operations": [*named], "resources": [*resources]}
        for group, version, resources in KINDS
    ]


def summing_templates(dialects: Dialects) -> list[Json]:
    """Return the conditions by which all other objects are left alone, and all changes of other parts of these."""
    words = (name for each in _nvidias(dialects) for name in (each.count, *each.request_names) if name)
    names = literal(list(dict.fromkeys((*words, *SUMS))))
    changed = "request.operation != 'UPDATE' ||\n" + " !=\n".join(
        f"{pods_in(name)}\n  .map(p, [dyn(p.spec.?schedulerName.orValue('')), dyn({containers_of('p')}.map(c,\n"
        f"    c.?resources.orValue({{}}))), dyn({literal([*USE_MODEL, *AVOID_MODEL])}.map(a,\n"
        "    p.?metadata.?annotations[?a].orValue('')))])"
        for name in ("object", "oldObject")
    )
    asking = f"{pods_in('object')}\n  .exists(p, {containers_of('p')}.exists(c,\n    {mentions(names)}))"
    return [named("mentions-gpus", asking), named("containers-changed", changed)]


def sum_variables(dialects: Dialects, scheduler_names: Sequence[str], models: CardModels) -> list[Json]:
    """Return the variables of the policy, each a step of request.py and sums.py."""
    schedulers = literal(["", CLUSTERS_OWN, *scheduler_names])
    rows = ",\n".join("  " + _row(each) for each in _nvidias(dialects))
    expressions = {
        "models": literal([f"{name}={memory_mib}" for name, memory_mib in models.memory_mib]),
        "vocabularies": f"[\n{rows}\n]",
        "templates": f"{_templates('object')}\n  .filter(t, t.pod.spec.?schedulerName.orValue('') in {schedulers})",
        "chosen": _CHOSEN,
        "kinds": _KINDS.replace("<which>", "max" if models.largest else "min"),
        "containers": f"variables.kinds.map(t, {_of_template('containers')} +\n  {_of_template('initContainers')})"
        ".flatten()",
        "worded": _WORDED,
        "amounts": _AMOUNTS,
        "shares": _SHARES,
        "sums": _SUMS,
        "writes": _WRITES,
    }
    return all_named(expressions)


def sum_mutations() -> list[Json]:
    """Return the changes."""
    ops = (
        "variables.sums.filter(s, s.asks && !has(s.resources.requests))\n"
        "  .map(s, JSONPatch{op: 'add', path: s.path + '/resources/requests', value: {}}) +\n"
        "variables.writes.filter(w, w.value != '')\n"
        "  .map(w, JSONPatch{op: 'add', path: w.path, value: w.value}) +\n"
        "variables.writes.filter(w, w.value == '')\n"
        "  .map(w, JSONPatch{op: 'remove', path: w.path})"
    )
    return [patch(ops)]


def _nvidias(dialects: Dialects) -> list[Vocabulary]:
    return [each for each in dialects.vocabularies if each.vendor == ANY_NVIDIA.vendor]


def _row(words: Vocabulary) -> str:
    """Return a vocabulary. A word that it lacks is empty, which no container has."""
    row = {
        "name": words.name,
        "count": words.count,
        "memory": words.memory,
        "percentage": words.memory_percentage,
        "cores": words.cores,
        "both": words.both,
        "totals": "yes" if words.totals else "",
        "percentage_first": "yes" if words.percentage_first else "",
        "unit": str(words.memory_unit_mib),
        "default_gpus": str(words.default_gpus),
        "default_memory": str(words.default_memory_mib),
        "default_cores": str(words.default_cores),
    }
    return "{" + ", ".join(f"{literal(key)}: {literal(value)}" for key, value in row.items()) + "}"


def containers_of(pod: str) -> str:
    """Return the list of containers of a pod, or of a template."""
    return f"({pod}.spec.?containers.orValue([]) + {pod}.spec.?initContainers.orValue([]))"


def pods_in(found: str) -> str:
    """Return the list of templates in an object, for servers whose CEL knows no positions in lists."""
    single = ",\n   ".join(_here(found, place.at) for place in PLACES if not place.each)
    lists = [f"[{single}]", *(_several(found, place, False) for place in PLACES if place.each)]
    return "(" + " +\n  ".join(lists) + f")\n  {_with_containers('p')}"


def _templates(found: str) -> str:
    """Return the list of templates in an object: path of its spec, and what stands beside it."""
    lists = [
        _several(found, place)
        if place.each
        else f"[{_template(literal(_path((*place.at, 'spec'))), _here(found, place.at))}]"
        for place in PLACES
    ]
    return "(" + " +\n  ".join(lists) + f")\n  {_with_containers('p.pod')}"


def _with_containers(pod: str) -> str:
    return f".filter(p, {pod}.?spec.?containers.hasValue())"


def _several(found: str, place: TemplatePlace, with_path: bool = True) -> str:
    """Return the list of the templates in one place that has several."""
    outer = _here(found, place.at, "[]" if place.each == "list" else "{}")
    keys = f"lists.range({outer}.size())" if with_path and place.each == "list" else outer
    inner = f"{outer}[i]" if with_path or place.each == "map" else "i"
    pod = _here(inner, place.then)
    key = "string(i)" if place.each == "list" else "i.replace('~', '~0').replace('/', '~1')"
    path = f"{literal(_path(place.at) + '/')} + {key} + {literal(_path((*place.then, 'spec')))}"
    return f"{keys}.map(i, {_template(path, pod) if with_path else pod})"


def _here(found: str, keys: Sequence[str], otherwise: str = "{}") -> str:
    """Return the expression for a nested field that may be missing."""
    return found + "".join(f".?{key}" for key in keys) + (f".orValue({otherwise})" if keys else "")


def _path(keys: Sequence[str]) -> str:
    return "".join(f"/{key}" for key in keys)


def _template(path: str, pod: str) -> str:
    return f"{{'path': dyn({path}), 'pod': dyn({pod})}}"


def _of_template(field: str) -> str:
    """Return the list of a template's containers of one kind: path, limits, resources, and the MiB of a card."""
    several = f"t.pod.spec.?{field}.orValue([])"
    return (
        f"lists.range({several}.size()).map(i, {{\n"
        f"    'path': dyn(t.path + '/{field}/' + string(i)), 'mib': dyn(t.mib),\n"
        f"    'resources': dyn({several}[i].?resources.orValue({{}})),\n"
        f"    'limits': dyn({several}[i].?resources.?limits.orValue({{}}))}})"
    )


def _entries(names: Sequence[str]) -> str:
    """Return the list in annotations of a template, as `model.card.folded` compares it."""
    given = "t.pod.?metadata.?annotations.orValue({})"
    return (
        f"{literal(names)}.filter(a, a in {given})\n"
        f"      .map(a, {given}[a].replace('|', ',').split(',')).flatten()\n"
        f"      .map(e, e.trim().lowerAscii().replace(' ', '-')).filter(e, e != '')"
    )


_CHOSEN = f"""variables.templates.map(t, {{'path': dyn(t.path), 'pod': dyn(t.pod),
    'use': dyn({_entries(USE_MODEL)}),
    'avoid': dyn({_entries(AVOID_MODEL)}),
    'product': dyn(t.pod.spec.?nodeSelector[{literal(PRODUCT_LABEL)}].orValue(''))}})"""
"""The choice of models of each template."""

_KINDS = """variables.chosen.map(t, {'path': dyn(t.path), 'pod': dyn(t.pod), 'mib': dyn(
    [variables.models.filter(m,
        (t.use.size() == 0 || t.use.exists(u, m.split('=')[0].lowerAscii().replace(' ', '-').contains(u))) &&
        !t.avoid.exists(u, m.split('=')[0].lowerAscii().replace(' ', '-').contains(u)) &&
        t.product in ['', m.split('=')[0].replace(' ', '-')]), variables.models]
      .filter(fitting, fitting.size() > 0)[0].map(m, int(m.split('=')[1])).<which>())})"""
"""The MiB of a card for each template: of the models that it may get, or of all if there is none."""

_WORDED = """variables.containers.map(c, {'path': dyn(c.path), 'mib': dyn(c.mib), 'resources': dyn(c.resources),
    'limits': dyn(c.limits), 'found': dyn(
      [[variables.vocabularies.filter(v, [v.memory, v.percentage, v.cores, v.both].exists(w, w in c.limits)),
        variables.vocabularies.filter(v, v.count in c.limits)].filter(several, several.size() > 0)]
      .map(found, found.size() == 0 ? [] : [found[0][0]])[0])})"""
"""Which vocabulary a container uses: whose words stand beside the count, else the first that has the count."""


def _amount(word: str) -> str:
    return (
        f"dyn((c.found.filter(v, v.{word} in c.limits).map(v, string(c.limits[v.{word}]))\n"
        "      .filter(a, isQuantity(a) && quantity(a).isInteger()).map(a, quantity(a).asInteger()) + [-1])[0])"
    )


_AMOUNTS = f"""variables.worded.map(c, {{'path': dyn(c.path), 'mib': dyn(c.mib), 'resources': dyn(c.resources),
    'found': dyn(c.found),
    'n': {_amount("count")},
    'm': {_amount("memory")},
    'p': {_amount("percentage")},
    'c': {_amount("cores")},
    'b': {_amount("both")}}})"""
"""A container's amounts; -1 is none."""

_SHARES = """variables.amounts.map(c, c.found.size() == 0
  ? {'path': dyn(c.path), 'resources': dyn(c.resources), 'gpus': dyn(0), 'memory': dyn(0), 'cores': dyn(0)}
  : c.found[0].totals == ''
  ? {'path': dyn(c.path), 'resources': dyn(c.resources),
    'gpus': dyn(c.n >= 0 ? c.n : int(c.found[0].default_gpus)),
    'memory': dyn(c.p > 0 && (c.m <= 0 || c.found[0].percentage_first != '') ?
        (c.mib * c.p < 100 ? 1 : c.mib * c.p / 100) :
      c.m > 0 ? c.m * int(c.found[0].unit) :
      int(c.found[0].default_memory) > 0 ? int(c.found[0].default_memory) : c.mib),
    'cores': dyn(c.c >= 0 ? c.c :
      c.found[0].default_cores == '0' && c.p in [-1, 0, 100] &&
        ((c.m <= 0 && (c.p > 0 || c.found[0].default_memory == '0')) ||
          (c.p > 0 && c.found[0].percentage_first != '')) ? 100 : int(c.found[0].default_cores))}
  : {'path': dyn(c.path), 'resources': dyn(c.resources),
    'gpus': dyn(c.n < 1 && c.m < 1 && c.p < 1 && c.c < 1 && c.b < 1 ? 0 : c.n >= 0 ? c.n :
      [c.b, c.p].exists(p, p > 0 && p % 100 == 0) ? (c.b > 0 ? c.b : c.p) / 100 : 1),
    'memory': dyn(c.m), 'cores': dyn(c.b > 0 ? c.b : c.c), 'percent': dyn(c.b > 0 ? c.b : c.p), 'mib': dyn(c.mib)})"""
"""Cards, and memory and cores of each; where amounts are sums over the cards, still as they stand there."""

_SUMS = """variables.shares.map(s, !('percent' in s)
  ? {'path': dyn(s.path), 'resources': dyn(s.resources), 'asks': dyn(s.gpus > 0),
    'gpus': dyn(s.gpus), 'memory': dyn(s.gpus * s.memory), 'cores': dyn(s.gpus * s.cores)}
  : {'path': dyn(s.path), 'resources': dyn(s.resources), 'asks': dyn(s.gpus > 0), 'gpus': dyn(s.gpus),
    'memory': dyn(s.gpus < 1 ? 0 : s.memory > 0 ? s.memory / 1048576 :
      s.mib * (s.percent / s.gpus) < 100 ? s.gpus : s.gpus * (s.mib * (s.percent / s.gpus) / 100)),
    'cores': dyn(s.gpus < 1 ? 0 : s.percent == s.gpus * 100 && s.cores < 1 ? s.percent : s.cores < 0 ? 0 : s.cores)})"""
"""The sums that each container asks for."""


def _pointer(name: str) -> str:
    return name.replace("/", "~1")


_WRITES = (
    "variables.sums.map(s, ['limits', 'requests'].map(part,\n  ["
    + ", ".join(
        f"{{'name': {literal(name)}, 'key': {literal(_pointer(name))}, 'value': s.asks && s.{word} > 0 ? "
        f"string(s.{word}) : ''}}"
        for name, word in ((SUM_MEMORY, "memory"), (SUM_CORES, "cores"), (SUM_GPUS, "gpus"))
    )
    + "]\n  .filter(w, w.value != '' || w.name in s.resources[?part].orValue({}))\n"
    "  .map(w, {'path': s.path + '/resources/' + part + '/' + w.key, 'value': w.value})).flatten()).flatten()"
)
"""Where something is written, and what: nothing where it is taken away."""


QUEUES_POLICY: Final = "gpuledger-queues"


def queue_rules() -> list[Json]:
    """Return which requests are looked at: new pods, and what is new and has templates of them."""
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    return [pods, *template_rules("CREATE")]


def queued_objects(dialects: Dialects, scheduler_names: Sequence[str]) -> list[Json]:
    """Return the conditions by which all other objects are left alone."""
    holders = _holders(dialects, scheduler_names)
    conditions = {
        "asks-for-gpus": f"{_asking(dialects, scheduler_names)}.size() > 0",
        "names-a-queue": f"{holders}.exists(h,\n  {_names('h')}.exists(n, {_IS_NAME}))",
        "is-in-no-queue": f"!{holders}.exists(h,\n  {literal(ASKED_LABEL)} in h.?metadata.?labels.orValue({{}}))",
    }
    return [named(name, expression) for name, expression in conditions.items()]


def queue_variables(dialects: Dialects, scheduler_names: Sequence[str]) -> list[Json]:
    """Return the variable of the policy: the names of queues, the first of which counts."""
    names = f"{_holders(dialects, scheduler_names)}.map(h,\n  {_names('h')}).flatten().filter(n, {_IS_NAME})"
    return [named("queues", names)]


def queue_mutations() -> list[Json]:
    """Return the change."""
    return [patch(f"variables.queues.size() == 0 ? [] : {add_label(ASKED_LABEL, 'variables.queues[0]')}")]


_IS_NAME = f"n.matches({literal(QUEUE_NAME)})"


def _asking(dialects: Dialects, scheduler_names: Sequence[str]) -> str:
    """Return the list of the pods and templates in an object that ask for cards, of our schedulers."""
    schedulers = literal(["", CLUSTERS_OWN, *scheduler_names])
    counts = literal(dialects.counts())
    none = f"c.resources.limits.exists(n, n in {counts} && string(c.resources.limits[n]) == '0')"
    return (
        f"{pods_in('object')}\n  .filter(p, p.spec.?schedulerName.orValue('') in {schedulers} &&\n"
        f"    {containers_of('p')}.exists(c, {mentions(literal(dialects.by_name))} &&\n      !{none}))"
    )


def _holders(dialects: Dialects, scheduler_names: Sequence[str]) -> str:
    """Return the list of the objects that may name a queue: the object, then its pods or templates."""
    return f"([dyn(object)] + {_asking(dialects, scheduler_names)})"


def _names(holder: str) -> str:
    """Return the list of the queues that such an object names."""
    given = {place: f"{holder}.?metadata.?{place}" for place in LABEL_PLACES}
    names = {place: literal(queue_label_names(place)) for place in LABEL_PLACES}
    lists = (f"{names[place]}.map(w, string({where}[?w].orValue('')))" for place, where in given.items())
    return "(" + " +\n    ".join(lists) + ")"
