"""Defaults that the API server adds to new pods with cards: scheduler, label, and number of cards."""

from __future__ import annotations

from gpuledger.formats.custom_resource.crd import ALL_CONTAINERS, asks, literal, mentions, table
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.model.json_object import Json

MANAGED_LABEL = "gpuledger.dev/managed"
"""On pods that ask for cards: so that they can be selected."""

TASK_PRIORITY = "CUDA_TASK_PRIORITY"
"""The variable in which HAMi-core finds a container's priority on its card; HAMi's own webhook sets it likewise."""

CLUSTERS_OWN = "default-scheduler"
"""The API server's default where a pod names no scheduler."""


def asking_pods(dialects: Dialects) -> Json:
    """Return the condition by which all other pods are left alone."""
    condition = asks(literal(dialects.by_name), literal(dialects.counts()))
    return {"name": "asks-for-gpus", "expression": f"{ALL_CONTAINERS}.exists(c,\n  {condition})"}


def mentioning_pods(dialects: Dialects) -> Json:
    """Return the condition that a pod says anything of our resources, and be it that it wants none."""
    return {
        "name": "mentions-gpus",
        "expression": f"{ALL_CONTAINERS}.exists(c,\n  {mentions(literal(dialects.by_name))})",
    }


def default_variables(dialects: Dialects) -> list[Json]:
    """Return the variables of the policy: which count belongs to which word, and where one has to be added."""
    defaults = _defaults(dialects)
    expressions = {
        "words": literal(defaults),
        "defaults": table(defaults),
        "counts": literal(dialects.counts()),
        "hundreds": literal(dialects.hundreds()),
        "uncounted": _uncounted("containers") + " +\n" + _uncounted("initContainers"),
    }
    if dialects.priorities():
        expressions["priorities"] = literal(dialects.priorities())
        expressions["prioritized"] = _prioritized("containers") + " +\n" + _prioritized("initContainers")
    return [{"name": name, "expression": expression} for name, expression in expressions.items()]


def mutations(scheduler_name: str, node_taint: str = "", priorities: bool = True) -> list[Json]:
    """Return the changes. A scheduler that a pod names stays: the policy on requests judges it.

    What each pod may need is in one of them: for each, the API server writes the pod as JSON and reads it again.
    `node_taint` is a taint of our nodes, key=value:effect, which pods then tolerate; `priorities` says whether there is
    a resource for the priority on a card.
    """
    scheduler = (
        f"object.spec.?schedulerName.orValue('') in ['', {literal(CLUSTERS_OWN)}]\n"
        f'  ? [JSONPatch{{op: "add", path: "/spec/schedulerName", value: {literal(scheduler_name)}}}]\n'
        "  : []"
    )
    label = (
        "has(object.metadata.labels)\n"
        f'  ? [JSONPatch{{op: "add", path: "/metadata/labels/" + jsonpatch.escapeKey({literal(MANAGED_LABEL)}), '
        'value: "true"}]\n'
        f'  : [JSONPatch{{op: "add", path: "/metadata/labels", value: {{{literal(MANAGED_LABEL)}: "true"}}}}]'
    )
    # The API server copies limits to requests after each change, as it does with a pod that it is sent.
    count = (
        'variables.uncounted.map(u, JSONPatch{op: "add",\n'
        "  path: u.container + '/resources/limits/' + jsonpatch.escapeKey(variables.defaults[u.word].count),\n"
        "  value: u.cards})"
    )
    filled_in = [scheduler, label, count, *([_PRIORITY] if priorities else [])]
    texts = [" +\n".join(f"({text})" for text in filled_in), *([_toleration(node_taint)] if node_taint else [])]
    return [{"patchType": "JSONPatch", "jsonPatch": {"expression": text}} for text in texts]


_VARIABLE = f'{{"name": {literal(TASK_PRIORITY)}, "value": p.value}}'
_PRIORITY = (
    "variables.prioritized.map(p, p.path.endsWith('-')\n"
    f'  ? JSONPatch{{op: "add", path: p.path, value: {_VARIABLE}}}\n'
    f'  : JSONPatch{{op: "add", path: p.path, value: [{_VARIABLE}]}})'
)


def _toleration(node_taint: str) -> str:
    taint, _, effect = node_taint.rpartition(":")
    key, _, value = taint.partition("=")
    toleration = {"key": key, "operator": "Equal", "value": value, "effect": effect}
    spelled = "{" + ", ".join(f"{literal(name)}: {literal(text)}" for name, text in toleration.items()) + "}"
    return (
        f"object.spec.?tolerations.orValue([]).exists(t, t.?key.orValue('') in ['', {literal(key)}])\n"
        "  ? []\n"
        "  : has(object.spec.tolerations)\n"
        f'  ? [JSONPatch{{op: "add", path: "/spec/tolerations/-", value: {spelled}}}]\n'
        f'  : [JSONPatch{{op: "add", path: "/spec/tolerations", value: [{spelled}]}}]'
    )


def _uncounted(field: str) -> str:
    """Return the list of containers that have words but no count.

    Each is {container: its path, word: one of its words, cards: their number}. The number is the default one, or where
    amounts are sums over the cards, one for each whole hundred percent.
    """
    container = f"object.spec.{field}[i]"
    return (
        f"lists.range(object.spec.?{field}.orValue([]).size())\n"
        f"  .filter(i, {container}.?resources.?limits.orValue({{}}).exists(n, n in variables.defaults) &&\n"
        f"    !{container}.resources.limits.exists(n, n in variables.counts))\n"
        f"  .map(i, {{'container': '/spec/{field}/' + string(i),\n"
        f"    'word': variables.words.filter(n, n in {container}.resources.limits)[0],\n"
        f"    'cards': (variables.hundreds.filter(n, n in {container}.resources.limits &&\n"
        f"        quantity({container}.resources.limits[n]).isInteger())\n"
        f"      .map(n, quantity({container}.resources.limits[n]).asInteger())\n"
        "      .filter(percent, percent > 0 && percent % 100 == 0).map(percent, string(percent / 100)) +\n"
        f"      variables.words.filter(n, n in {container}.resources.limits)"
        ".map(n, variables.defaults[n].gpus))[0]})"
    )


def _prioritized(field: str) -> str:
    """Return the list of containers that name a priority on their cards, and lack the variable for it.

    Each is {path: where the variable goes, value: the priority}.
    """
    container = f"object.spec.{field}[i]"
    named = f"{container}.resources.limits[variables.priorities.filter(n, n in {container}.resources.limits)[0]]"
    return (
        f"lists.range(object.spec.?{field}.orValue([]).size())\n"
        f"  .filter(i, {container}.?resources.?limits.orValue({{}}).exists(n, n in variables.priorities) &&\n"
        f"    !{container}.?env.orValue([]).exists(e, e.name == {literal(TASK_PRIORITY)}))\n"
        f"  .map(i, {{'path': '/spec/{field}/' + string(i) + (has({container}.env) ? '/env/-' : '/env'),\n"
        f"    'value': string(quantity({named}).asInteger())}})"
    )


def _defaults(dialects: Dialects) -> dict[str, dict[str, str]]:
    """Return name of a resource -> the count that goes with it, and its number where the container names none.

    A container that mixes words gets the count of any of them, and is refused by the policy on requests.
    """
    return {
        name: {"count": sharing[0].count, "gpus": str(sharing[0].default_gpus)}
        for name, sharing in dialects.by_name.items()
        if len(sharing) == 1 and name != sharing[0].count and sharing[0].count and sharing[0].default_gpus
    }
