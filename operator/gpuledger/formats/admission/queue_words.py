"""The policy that writes Kueue's label on what names a queue in other words, in CEL.

formats/dialects/queue_labels.py says it in Python. Of a Job, Kueue reads the label of the Job itself, not that of its
template, so the Job gets it, wherever the word stands. Only when an object is created: Kueue lets nobody change the
queue of a job that runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpuledger.formats.admission.defaults import CLUSTERS_OWN
from gpuledger.formats.admission.sums import containers_of, pods_in, template_rules
from gpuledger.formats.custom_resource.crd import literal, mentions
from gpuledger.formats.dialects.queue_labels import PLACES, QUEUE_NAME, queue_label_names
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.kubernetes.workload import ASKED_LABEL
from gpuledger.model.json_object import Json

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
    return [{"name": name, "expression": expression} for name, expression in conditions.items()]


def queue_variables(dialects: Dialects, scheduler_names: Sequence[str]) -> list[Json]:
    """Return the variable of the policy: the names of queues, the first of which counts."""
    names = f"{_holders(dialects, scheduler_names)}.map(h,\n  {_names('h')}).flatten().filter(n, {_IS_NAME})"
    return [{"name": "queues", "expression": names}]


def queue_mutations() -> list[Json]:
    """Return the change."""
    label = literal(ASKED_LABEL)
    change = (
        "variables.queues.size() == 0 ? [] : has(object.metadata.labels)\n"
        f'  ? [JSONPatch{{op: "add", path: "/metadata/labels/" + jsonpatch.escapeKey({label}),\n'
        "      value: variables.queues[0]}]\n"
        f'  : [JSONPatch{{op: "add", path: "/metadata/labels", value: {{{label}: variables.queues[0]}}}}]'
    )
    return [{"patchType": "JSONPatch", "jsonPatch": {"expression": change}}]


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
    """Return the list of what may say a queue: the object, then its pods or templates."""
    return f"([dyn(object)] + {_asking(dialects, scheduler_names)})"


def _names(holder: str) -> str:
    """Return the list of what such an object says."""
    given = {place: f"{holder}.?metadata.?{place}" for place in PLACES}
    names = {place: literal(queue_label_names(place)) for place in PLACES}
    lists = (f"{names[place]}.map(w, string({where}[?w].orValue('')))" for place, where in given.items())
    return "(" + " +\n    ".join(lists) + ")"
