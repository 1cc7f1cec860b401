"""Warnings of the API server about what a new pod says that has no effect; they refuse nothing.

The words are those of unsupported_fields.yaml. CEL has no measure of how near two words are, so a misspelt name is
answered with the names that there are. Only names of resources are judged so: annotations are left to the operator.
"""

from __future__ import annotations

from typing import Any

from gpuledger.formats.custom_resource.cel import ALL_CONTAINERS, literal, table
from gpuledger.formats.dialects.unsupported_fields import (
    KATA,
    KUBEVIRT_LABEL,
    SANDBOX,
    SINGULAR,
    Place,
    UnsupportedField,
    served_domains,
    unsupported_fields,
)
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.objects.queue import ASKED_LABEL

Json = dict[str, Any]

LIMITS = "c.?resources.?limits.orValue({})"


def serving_pods() -> Json:
    """Return the condition that a pod names a resource under a domain of ours; or a word that asks for a GPU."""
    asking = [word.name for word in unsupported_fields() if word.asks]
    return {
        "name": "names-gpus",
        "expression": f"{ALL_CONTAINERS}.exists(c,\n  {LIMITS}.exists(n, n.split('/')[0] in "
        f"{literal(served_domains())})) ||\n"
        f"{literal(asking)}.exists(w, w in object.metadata.?annotations.orValue({{}}))",
    }


def word_variables(dialects: Dialects) -> list[Json]:
    """Return the variables of the policy: for each rule, the text of what a pod says."""
    expressions = {
        "names": literal(dialects.resources()),
        "unknown": f"{ALL_CONTAINERS}.map(c,\n"
        f"  {LIMITS}.map(n, n).filter(n, n.split('/')[0] in {literal(served_domains())} &&\n"
        f"    !(n in variables.names) && !({_others('n')}))\n"
        "  .map(n, 'resource ' + n + ' is not known; known are ' +\n"
        "    variables.names.filter(k, k.startsWith(n.split('/')[0] + '/')).join(', ')).join('; '))\n"
        "  .filter(text, text != '').join('; ')",
        **{place: _said(place) for place in ("annotations", "labels")},
        "sandbox": f"object.spec.?runtimeClassName.orValue('').startsWith({literal(KATA)}) ||\n"
        f"  object.metadata.?labels[{literal(KUBEVIRT_LABEL[0])}].orValue('') == {literal(KUBEVIRT_LABEL[1])}",
    }
    return [{"name": name, "expression": expression} for name, expression in expressions.items()]


def word_validations() -> list[Json]:
    """Return the rules. What breaks one is only warned of."""
    return [
        *(
            {"expression": f"variables.{name} == ''", "messageExpression": f"variables.{name}"}
            for name in ("unknown", "annotations", "labels")
        ),
        {"expression": "!variables.sandbox", "message": SANDBOX},
    ]


def _others(name: str) -> str:
    """Return the condition that a resource is another plugin's."""
    rows = [word for word in unsupported_fields() if "resources" in word.places and word.name]
    return " || ".join(
        f"{name}.startsWith({literal(word.name[:-1])})"
        if word.name.endswith("*")
        else f"{name} == {literal(word.name)}"
        for word in rows
    )


def _said(place: Place) -> str:
    """Return the texts of the words that are named in full: few look-ups, however much a pod says."""
    answers = {word.name: word.answer for word in unsupported_fields() if _is_exact(word) and place in word.places}
    queues = [word.name for word in unsupported_fields() if word.queue and place in word.places]
    given = f"object.metadata.?{place}.orValue({{}})"
    return (
        f"{literal(answers)}\n  .filter(w, w in {given} &&\n    !(w in {literal(queues)} && "
        f"{given}[w] == object.metadata.?labels[?{literal(ASKED_LABEL)}].orValue('')))\n"
        f"  .map(w, {literal(SINGULAR[place] + ' ')} + w + ' ' + {table(answers)}[w]).join('; ')"
    )


def _is_exact(word: UnsupportedField) -> bool:
    return bool(word.name) and not word.name.endswith("*") and not word.silent
