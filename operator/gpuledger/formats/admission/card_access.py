"""The policies about ways of a pod to cards that the ledger did not give it: formats/kubernetes/card_access.py, in CEL.

One judges pods, and containers that are added to one. The other gives containers without cards a variable by which
NVIDIA's runtime gives them none; it changes nothing of containers with a share.
"""

from __future__ import annotations

from typing import Final

from gpuledger.formats.admission.autoscalers import of_no_daemon_set
from gpuledger.formats.admission.rules import all_named, denial, named, patch
from gpuledger.formats.custom_resource.crd import ALL_CONTAINERS, literal, mentions
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.kubernetes.card_access import (
    BY_MOUNT,
    CLASSES,
    DEVICES,
    HARMLESS,
    NO_CARDS,
    VARIABLES,
    VISIBLE,
    WHOLE,
    WayKind,
    way_text,
)
from gpuledger.model.json_object import Json

ACCESS_POLICY: Final = "gpuledger-card-access"
OVERWRITING_POLICY: Final = "gpuledger-env"

ACTIONS: Final = {"refuse": "Deny", "warn": "Warn", "record": "Audit"}
"""What happens with such a pod -> what the policy's binding says."""


def access_variables(dialects: Dialects) -> list[Json]:
    """Return the variables of the policy: for each kind of way, the sentences about a pod."""
    ours, harmless = literal(VARIABLES), literal(HARMLESS)
    path, devices = _plain_in_cel("v.hostPath.path"), literal([f"/dev/{each}" for each in DEVICES])
    expressions = {
        "containers": f"request.operation == 'CREATE' ? {ALL_CONTAINERS}\n"
        "  : object.spec.?ephemeralContainers.orValue([])",
        "variable": _each(
            "env",
            f"v.name in {ours} &&\n    (has(v.valueFrom) || !(v.?value.orValue('') in {harmless}))",
            _text_in_cel(WayKind.VARIABLE, "c.name", "v.name"),
        ),
        "mount": _each(
            "volumeMounts",
            f"({_plain_in_cel('v.mountPath')} + '/').startsWith({literal(BY_MOUNT + '/')})",
            _text_in_cel(WayKind.MOUNT, "c.name", "v.mountPath"),
        ),
        "privileged": "variables.containers.filter(c, c.?securityContext.?privileged.orValue(false))\n"
        f"  .map(c, {_text_in_cel(WayKind.PRIVILEGED, 'c.name')})\n  .join('; ')",
        "class": f"!object.spec.?runtimeClassName.orValue('').startsWith({literal(CLASSES)}) ? '' :\n"
        f"  variables.containers.filter(c, {_without_cards(dialects)} &&\n"
        f"    !c.?env.orValue([]).exists(e, e.name == {literal(VISIBLE)}))\n"
        f"  .map(c, {_text_in_cel(WayKind.CLASS, 'c.name')})\n  .join('; ')",
        "volume": "request.operation != 'CREATE' ? '' :\n"
        "  object.spec.?volumes.orValue([]).filter(v, has(v.hostPath) &&\n"
        f"    ({path} in {literal(WHOLE)} ||\n"
        f"     {devices}.exists(d, {path}.startsWith(d))))\n"
        f"  .map(v, {_text_in_cel(WayKind.VOLUME, 'v.name', 'v.hostPath.path')})\n  .join('; ')",
    }
    return all_named(expressions)


def _each(field: str, condition: str, text: str) -> str:
    """Return the texts for what containers `c` have in a list, `v`, of which something holds, as one string."""
    return (
        f"variables.containers.map(c, c.?{field}.orValue([]).filter(v,\n    {condition})\n"
        f"    .map(v, {text})\n    .join('; '))\n  .filter(t, t != '').join('; ')"
    )


def access_validations() -> list[Json]:
    """Return the rules. The first that is broken is what the user reads."""
    return [denial(f"variables.{kind} == ''", spelled=f"variables.{kind}") for kind in WayKind]


def _plain_in_cel(path: str) -> str:
    return f"('/' + {path}.split('/').filter(s, !(s in ['', '.'])).join('/'))"


def _text_in_cel(kind: WayKind, who: str, what: str = "") -> str:
    """Return the expression for a sentence, of the expressions for whom it is about, and for what that has."""
    before, _, rest = way_text(kind, "\0", "\1").partition("\0")
    parts = [literal(before + ("volume " if kind is WayKind.VOLUME else "container ")), who]
    between, _, after = rest.partition("\1")
    parts += [literal(between), what, literal(after)] if what else [literal(rest)]
    return " + ".join(parts)


# The variable that containers without cards get.


def lacking_containers(dialects: Dialects) -> list[Json]:
    """Return the conditions that a pod has a container that asks for no cards, and could get some by the variable.

    Pods of DaemonSets are the cluster's own: what watches cards has to see all of them.
    """
    return [of_no_daemon_set(), named("lacks-the-variable", f"{ALL_CONTAINERS}.exists(c, {_lacks(dialects)})")]


def overwriting_variables(dialects: Dialects) -> list[Json]:
    """Return the variables of the policy: the places of those containers, and of variables that are to be replaced."""
    return all_named({field: _places(field, dialects) for field in ("containers", "initContainers")})


def overwriting_mutations() -> list[Json]:
    """Return the changes: what a container says itself goes, the last first, and the variable is added."""
    return [patch(" +\n".join(f"({_changes(field)})" for field in ("containers", "initContainers")))]


def _places(field: str, dialects: Dialects) -> str:
    container = f"object.spec.{field}[i]"
    return (
        f"lists.range(object.spec.?{field}.orValue([]).size())\n"
        f"  .filter(i, [{container}].exists(c, {_lacks(dialects)}))"
    )


def _changes(field: str) -> str:
    container, path = f"object.spec.{field}[i]", f"'/spec/{field}/' + string(i) + '/env'"
    variable = f"{{'name': {literal(VISIBLE)}, 'value': {literal(NO_CARDS)}}}"
    return (
        f"variables.{field}.map(i,\n"
        f"  lists.range({container}.?env.orValue([]).size()).reverse()\n"
        f"    .filter(j, {container}.env[j].name == {literal(VISIBLE)})\n"
        f"    .map(j, JSONPatch{{op: 'remove', path: {path} + '/' + string(j)}}) +\n"
        f"  [has({container}.env)\n"
        f"    ? JSONPatch{{op: 'add', path: {path} + '/-', value: {variable}}}\n"
        f"    : JSONPatch{{op: 'add', path: {path}, value: [{variable}]}}]).flatten()"
    )


def _lacks(dialects: Dialects) -> str:
    """Return the condition on a container `c`."""
    is_set = f"e.name == {literal(VISIBLE)} && e.?value.orValue('') in {literal(HARMLESS[1:])}"
    return f"{_without_cards(dialects)} &&\n    !c.?env.orValue([]).exists(e, {is_set})"


def _without_cards(dialects: Dialects) -> str:
    """Return the condition that a container `c` asks for no cards."""
    return f"c.?resources.?claims.orValue([]).size() == 0 &&\n    !({mentions(literal(dialects.by_name))})"
