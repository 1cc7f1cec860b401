"""Rules on requests that the API server rejects at once: those that no node could ever serve.

The rules are those of request.py, as far as CEL can say them in few words; the rest is refused by the operator, with a
reason on the pod. What is accepted there must never be refused here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuledger.formats.custom_resource.cel import ALL_CONTAINERS, asks, is_zero, literal, mentions, table
from gpuledger.formats.custom_resource.gpu_allocation import MAX_MEMORY_MIB
from gpuledger.formats.dialects.request import too_many_containers
from gpuledger.formats.dialects.totals import MAX_CARDS
from gpuledger.formats.dialects.vocabulary import Dialects, Vocabulary
from gpuledger.model.card import ALL_CORES

Json = dict[str, Any]

ITS_SCHEDULER = "this pod asks for GPUs, but its scheduler "
WRITE_SCHEDULER = " does not know who has them: write spec.schedulerName: "
NAMES_ITS_NODE = (
    "this pod asks for GPUs, and names its node itself, so no scheduler would choose cards for it: "
    "remove spec.nodeName; to say which nodes it may use, write spec.nodeSelector"
)

AMOUNT = "c.resources.limits[n]"
"""Container `c`'s amount of resource `n`. Requests are the same: the API server sees to it."""

MOST_BYTES = 2**63 - 1
"""What a quantity can have."""

TELLING = " && variables.words[n].vocabulary != ''"
"""Of the words, those that only one vocabulary has."""


def request_variables(dialects: Dialects, scheduler_names: Sequence[str]) -> list[Json]:
    """Return the variables of the policy: tables of words, and for each rule the texts of those who break it."""
    expressions = {
        "names": literal(dialects.by_name),
        "words": table(_meanings(dialects)),
        "choices": table(_choices(dialects)),
        "counts": literal(dialects.counts()),
        "in_bytes": literal(dialects.in_bytes()),
        "containers": f"{ALL_CONTAINERS}.filter(c,\n  {mentions('variables.words')})",
        "asks": f"variables.containers.exists(c,\n  {asks('variables.words', 'variables.counts')})",
        "bytes": _each_word(
            f"{AMOUNT}.endsWith('i') && !(n in variables.in_bytes)",
            f"{AMOUNT} + ' has a unit of bytes; write a plain whole number (' + variables.words[n].means + ')'",
        ),
        "counted_twice": _each_container(
            "c.resources.limits.filter(n, n in variables.counts).size() > 1",
            "' counts its cards twice, as ' + variables.counts.filter(n, n in c.resources.limits).join(' and as ')"
            " + ': keep one'",
        ),
        "several_kinds": _each_container(
            _differ("kind"),
            f"' asks for cards of several kinds (' + {_named()}"
            " + '): a container gets cards of one kind, so give each kind a container of its own'",
        ),
        "mixed": _each_container(
            _differ("vocabulary"),
            f"' mixes the words of several kinds (' + {_named(TELLING)} + '): keep one of them'",
        ),
        "too_much": _each_word(
            f"quantity({AMOUNT}).isGreaterThan(quantity(variables.words[n].most))",
            f"{AMOUNT} + ' is more than ' + variables.words[n].most + '; it is ' + variables.words[n].means",
        ),
        "not_cut": _each_word(
            f"n in variables.choices && !({is_zero(AMOUNT)}) &&\n"
            f"      !variables.choices[n].exists(s, quantity(s).compareTo(quantity({AMOUNT})) == 0)",
            f"{AMOUNT} + ' can\\'t be cut; choose one of ' + variables.choices[n].join(', ')",
        ),
        "too_many": f"variables.containers.filter(c,\n  {asks('variables.words', 'variables.counts')})"
        f".size() <= {dialects.most_containers} ? ''\n  : {literal(too_many_containers(dialects.most_containers))}",
        "none": _each_container(
            f"c.resources.limits.exists(n, n in variables.counts && {is_zero(AMOUNT)}) &&\n"
            "    c.resources.limits.exists(n, n in variables.words && !(n in variables.counts)"
            f" && !({is_zero(AMOUNT)}))",
            "' asks for GPU memory or cores on 0 GPUs: set '"
            " + variables.counts.filter(n, n in c.resources.limits).join() + ' to 1 or more, or drop the rest'",
        ),
        "scheduler_names": literal(scheduler_names),
    }
    return [{"name": name, "expression": expression} for name, expression in expressions.items()]


def request_validations() -> list[Json]:
    """Return the rules on new pods. The first that is broken is what the user reads."""
    rules = ("too_many", "bytes", "counted_twice", "several_kinds", "mixed", "none", "too_much", "not_cut")
    return [
        *({"expression": f"variables.{name} == ''", "messageExpression": f"variables.{name}"} for name in rules),
        {
            "expression": "!variables.asks || object.spec.schedulerName in variables.scheduler_names",
            "messageExpression": f"'{ITS_SCHEDULER}' + object.spec.schedulerName"
            f" + '{WRITE_SCHEDULER}' + variables.scheduler_names.join(' or ')",
        },
        {
            "expression": "!variables.asks || object.spec.?nodeName.orValue('') == ''",
            "message": NAMES_ITS_NODE,
        },
    ]


def _each_word(condition: str, text: str) -> str:
    """Return the texts for all words `n` of our containers `c` of which something holds, as one string.

    Always in the order of the list: a text that changes from one attempt to the next would be a new event each time.
    Most containers break no rule, so the list is walked only for those that do.
    """
    return (
        f"variables.containers.filter(c, c.resources.limits.exists(n, n in variables.words &&\n      {condition}))\n"
        f"  .map(c, variables.names.filter(n, n in c.resources.limits &&\n      {condition})\n"
        f"    .map(n, 'container ' + c.name + ', ' + n + ': ' + {text}).join('; '))\n"
        "  .join('; ')"
    )


def _each_container(condition: str, text: str) -> str:
    """Return the texts for all our containers `c` of which something holds, as one string."""
    return f"variables.containers.filter(c,\n    {condition})\n  .map(c, 'container ' + c.name + {text})\n  .join('; ')"


def _differ(column: str) -> str:
    """Return the condition that two words of a container say different things in a column of the table."""
    return (
        f"c.resources.limits.exists(n, n in variables.words && variables.words[n].{column} != '' &&\n"
        f"      c.resources.limits.exists(m, m in variables.words && variables.words[m].{column} != '' &&\n"
        f"        variables.words[n].{column} != variables.words[m].{column}))"
    )


def _named(which: str = "") -> str:
    return f"variables.names.filter(n, n in c.resources.limits{which}).join(', ')"


def _meanings(dialects: Dialects) -> dict[str, dict[str, str]]:
    """Return name of a resource -> the largest number, what it means, the kind of card, whose word it is.

    The last two are empty where several vocabularies share the name and disagree: then the operator decides.
    """
    rows = {}
    for name, sharing in dialects.by_name.items():
        meanings = [_most(each, name) for each in sharing]
        most, means = max(meanings)
        kinds = {f"{each.vendor} {each.model}".strip() for each in sharing}
        owner = sharing[0].name if len(sharing) == 1 and name != sharing[0].count else ""
        rows[name] = {
            "most": str(most),
            "means": means,
            "kind": kinds.pop() if len(kinds) == 1 else "",
            "vocabulary": owner,
        }
    return rows


def _most(vocabulary: Vocabulary, name: str) -> tuple[int, str]:
    """Return the largest number that a resource can have, and what it is a number of."""
    if vocabulary.totals and name != vocabulary.count:
        if name == vocabulary.memory:
            return MOST_BYTES, "bytes, summed up over the container's cards"
        return MAX_CARDS * ALL_CORES, "percent, summed up over the container's cards"
    if name == vocabulary.memory:
        unit = vocabulary.memory_unit_mib
        largest = min(MAX_MEMORY_MIB, vocabulary.memory_of_card_mib or MAX_MEMORY_MIB)
        if vocabulary.memory_in_bytes:
            return largest * 2**20, f"memory per card, in bytes or in units of {unit} MiB"
        return largest // unit, "MiB per card" if unit == 1 else f"memory per card in units of {unit} MiB"
    if name == vocabulary.memory_percentage:
        return 100, "a percentage of each card's memory"
    if name == vocabulary.cores:
        of_card = ALL_CORES if vocabulary.cores_in_percent else vocabulary.cores_of_card
        groups = f"a number of {of_card} core groups of each card"
        most = MAX_CARDS * of_card if vocabulary.cores_span_cards else of_card
        return most, "a percentage of each card's cores" if of_card == ALL_CORES else groups
    if vocabulary.count_is_cores:
        return vocabulary.cores_of_card, "a number of parts of one card"
    return MAX_CARDS, "the number of different cards"


def _choices(dialects: Dialects) -> dict[str, list[str]]:
    """Return name of a memory resource -> the only numbers that exist, where not all do."""
    return {
        each.memory: [str(units) for units in each.memory_choices]
        for each in dialects.vocabularies
        if each.memory_choices and len(dialects.by_name[each.memory]) == 1
    }
