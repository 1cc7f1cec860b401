"""The conditions of the policies: on requests, on annotations that steer device plugins, and on our accounts' writes.

Requests that no node could ever serve are refused, as far as CEL can say so in few words; the operator refuses the
rest, with a reason on the pod. A request that request.py accepts must never be refused here.

Only the operator writes the cards of ResourceClaims into them, and only agents list cards in ResourceSlices. Claims and
slices of other drivers cost one comparison: the conditions leave them out.

Defaults that the API server adds to new pods with cards are here as well: scheduler, label, and number of cards.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Final

from gpuledger.formats.annotations import DEVICES_ANNOTATION, STAND_IN_LABEL
from gpuledger.formats.custom_resource.crd import ALL_CONTAINERS, asks, is_zero, literal, mentions, table
from gpuledger.formats.custom_resource.stored_card import MAX_MEMORY_MIB
from gpuledger.formats.dialects.assignments import FOREIGN_ANNOTATIONS, LOCK_ANNOTATION
from gpuledger.formats.dialects.request import too_many_containers
from gpuledger.formats.dialects.vendors import vendor_rows
from gpuledger.formats.dialects.vocabulary import Dialects, Vocabulary
from gpuledger.formats.kubernetes.budgets import KEYS as BUDGET_KEYS
from gpuledger.formats.kubernetes.kept_node import KEEPING, KEPT_ANNOTATION
from gpuledger.formats.kubernetes.other import LEASE_NAMESPACE
from gpuledger.formats.kubernetes.other import PREFIX as QUOTA_PREFIX
from gpuledger.formats.kubernetes.stand_in import MANAGED_LABEL, NOBODY
from gpuledger.formats.resource_claims.claims import DRIVER
from gpuledger.model.card import ALL_CORES
from gpuledger.model.json_object import Json
from gpuledger.model.request import MAX_CARDS

OPERATOR = f"system:serviceaccount:{LEASE_NAMESPACE}:gpuledger"
"""The account of operator and kube-scheduler."""

AGENT = f"system:serviceaccount:{LEASE_NAMESPACE}:gpuledger-agent"
"""The account of the node agents, one token for each node."""

OUR_PREFIX = "gpuledger.dev/"
NODE_OF_TOKEN = "authentication.kubernetes.io/node-name"  # noqa: S105 - the name of a claim
"""The claim by which the API server names the node of a token's pod."""


@functools.cache
def vendors_annotations() -> tuple[str, ...]:
    """Return the annotations by which the table tells other vendors' own device plugins of a pod's cards."""
    every = (each for row in vendor_rows() if (each := row.assignment_annotations()) is not None)
    return tuple(sorted({name for each in every for name in each.others}))


FOREIGN_PREFIX = "hami.io/"
FOREIGN_ENDINGS = ("-to-allocate", "-allocated")
"""Beginning and end of HAMi's annotations for other vendors' cards."""


ONLY_OURS = (
    f"the annotation {DEVICES_ANNOTATION} says which GPUs a pod got, and only gpuledger writes it: "
    "leave it out of what you create, and as it is in what you change"
)
ONLY_SCHEDULERS = "only schedulers tell device plugins which GPUs a pod got: leave out the annotation "


def named(name: str, expression: str) -> Json:
    """Return a condition, or a variable, of a policy."""
    return {"name": name, "expression": expression}


def all_named(expressions: Mapping[str, str]) -> list[Json]:
    """Return conditions or variables: name -> expression."""
    return [named(name, expression) for name, expression in expressions.items()]


def denial(expression: str, message: str = "", spelled: str = "") -> Json:
    """Return a rule of a policy: the message where it is broken is a text, or an expression that spells one."""
    told = {"messageExpression": spelled} if spelled else {"message": message}
    return {"expression": expression, **told}


def patch(changes: str) -> Json:
    """Return a mutation of a policy: an expression for JSON patches."""
    return {"patchType": "JSONPatch", "jsonPatch": {"expression": changes}}


def add_label(label: str, value: str) -> str:
    """Return the expression for the JSON patches that write a label; `value` is an expression, too."""
    return (
        "has(object.metadata.labels)\n"
        f'  ? [JSONPatch{{op: "add", path: "/metadata/labels/" + jsonpatch.escapeKey({literal(label)}), '
        f"value: {value}}}]\n"
        f'  : [JSONPatch{{op: "add", path: "/metadata/labels", value: {{{literal(label)}: {value}}}}}]'
    )


def not_from(account: str) -> Json:
    """Return the condition that a request is from another account."""
    return named("from-others", f"request.userInfo.username != {literal(account)}")


def only_from(account: str) -> Json:
    """Return the condition that a request is from this account."""
    return named("from-this-account", f"request.userInfo.username == {literal(account)}")


def changes_our_annotation() -> Json:
    """Return the condition by which requests that leave our annotation as it is are let go at once.

    The API server converts a pod once for the conditions of a policy, and three times more if all of them hold.
    """
    return named("changes-its-cards", f"object.{_OUR_VALUE} != {_OLD_VALUE}")


def devices_validations() -> list[Json]:
    """Return the rule that our annotation stays as it is: on new pods, changed ones, and on Bindings."""
    return [denial(f"object.{_OUR_VALUE} == {_OLD_VALUE}", ONLY_OURS)]


_OUR_VALUE = f"metadata.?annotations[?{literal(DEVICES_ANNOTATION)}]"
_OLD_VALUE = f"(oldObject == null ? optional.none() : oldObject.{_OUR_VALUE})"


def foreign_variables() -> list[Json]:
    """Return the variable of the rule below: what a request says that only schedulers may say."""
    return [named("found", f"object.metadata.?annotations.orValue({{}}).filter(k,\n  {_is_foreign()})")]


def with_our_annotation() -> Json:
    """Return the condition that a new pod says itself which cards it got."""
    expression = f"{literal(DEVICES_ANNOTATION)} in object.metadata.?annotations.orValue({{}})"
    return named("says-its-cards", expression)


def with_foreign_annotations() -> Json:
    """Return the condition that a new pod, or a Binding, steers device plugins itself."""
    expression = f"object.metadata.?annotations.orValue({{}}).exists(k,\n  {_is_foreign()})"
    return named("steers-device-plugins", expression)


def forged(annotations: Mapping[str, object]) -> str:
    """Return the refusal of the annotations of a new pod that is not from us, an empty string for none."""
    if DEVICES_ANNOTATION in annotations:
        return ONLY_OURS
    foreign = {*FOREIGN_ANNOTATIONS, *vendors_annotations()}
    found = sorted(
        name
        for name in annotations
        if name in foreign or (name.startswith(FOREIGN_PREFIX) and name.endswith(FOREIGN_ENDINGS))
    )
    return ONLY_SCHEDULERS + ", ".join(found) if found else ""


def _is_foreign() -> str:
    """Return the expression that an annotation `k` is one that only schedulers write."""
    endings = " || ".join(f"k.endsWith({literal(ending)})" for ending in FOREIGN_ENDINGS)
    names = literal((*FOREIGN_ANNOTATIONS, *vendors_annotations()))
    return f"k in {names} ||\n  k.startsWith('{FOREIGN_PREFIX}') && ({endings})"


def foreign_validations() -> list[Json]:
    """Return the rule that only schedulers steer device plugins, at creation: later on, the plugins write there too."""
    return [denial("variables.found.size() == 0", spelled=f"'{ONLY_SCHEDULERS}' + variables.found.join(', ')")]


def own_validations(annotations: Sequence[str]) -> list[Json]:
    """Return the rules on what our own account changes of a pod: these annotations, and the status."""
    same = "object.{0} == oldObject.{0}".format
    kept = ("labels", "finalizers", "ownerReferences")
    return [
        denial(same("spec"), "gpuledger does not change what pods are: spec is the user's"),
        denial(
            " &&\n".join(same(f"metadata.?{field}") for field in kept),
            f"gpuledger does not change {', '.join(kept)} of pods",
        ),
        denial(
            unchanged(f"k in {literal(annotations)}"),
            f"of a pod's annotations, gpuledger changes only {', '.join(annotations)}",
        ),
    ]


def own_quota_validations() -> list[Json]:
    """Return the rules on what our own account changes of a ResourceQuota: what is used of the keys that we count."""
    kept = ("spec", "status.?hard", "metadata.?labels", "metadata.?annotations", "metadata.?finalizers")
    budgets = f"{literal(list(BUDGET_KEYS))}.exists(b, k == b || k.startsWith(b + '.'))"
    ours = f"(k.startsWith({literal(QUOTA_PREFIX)}) && k.contains('/') || {budgets})"
    return [
        denial(
            " &&\n".join(f"object.{field} == oldObject.{field}" for field in kept),
            "gpuledger changes nothing of a ResourceQuota but what is used",
        ),
        denial(
            unchanged(ours, "status.?used", "status.used"),
            f"of a ResourceQuota's keys, gpuledger shows only what is used of {QUOTA_PREFIX}DOMAIN/NAME and of budgets",
        ),
    ]


def own_new_pod_validations() -> list[Json]:
    """Return the rules on the pods that our own account creates: they are for nobody to run, and get nothing."""
    spec = "object.spec"
    on_host = " && ".join(f"!{spec}.?{each}.orValue(false)" for each in ("hostNetwork", "hostPID", "hostIPC"))
    containers = f"({spec}.containers + {spec}.?initContainers.orValue([]))"
    return [
        denial(
            f"{spec}.?schedulerName.orValue('') == {literal(NOBODY)} &&\n"
            f"{spec}.?nodeName.orValue('') == '' &&\n"
            f"{literal(STAND_IN_LABEL)} in object.metadata.?labels.orValue({{}})",
            "gpuledger creates no pods but stand-ins for nodes, which nobody runs",
        ),
        denial(
            f"{spec}.?volumes.orValue([]).size() == 0 &&\n{on_host} &&\n"
            f"{containers}.all(c, !c.?securityContext.?privileged.orValue(false))",
            "a stand-in has nothing of a node, were it to run",
        ),
    ]


OWN_ON_NODES = (LOCK_ANNOTATION, *KEEPING, KEPT_ANNOTATION)
"""What our own account annotates Nodes with, where it may."""


def own_node_validations() -> list[Json]:
    """Return the rules on what our own account changes of a Node: HAMi's lock, and what has autoscalers keep it."""
    kept = ("spec", "metadata.?labels", "metadata.?finalizers", "metadata.?ownerReferences")
    return [
        denial(
            " &&\n".join(f"object.?{field} == oldObject.?{field}" for field in kept),
            "gpuledger changes nothing of a node but annotations",
        ),
        denial(
            unchanged(f"k in {literal(OWN_ON_NODES)}"),
            f"of a node's annotations, gpuledger changes only {', '.join(OWN_ON_NODES)}",
        ),
    ]


NODE_STATUS = (
    "?conditions",
    "?addresses",
    "?nodeInfo",
    "?images",
    "?daemonEndpoints",
    "?phase",
    "?volumesInUse",
    "?volumesAttached",
)
"""The parts of a Node's status beside its amounts that all supported versions of Kubernetes know."""


def agent_validations(capacity: Sequence[str] = ()) -> list[Json]:
    """Return the rules on what a node agent changes: annotations of ours, on the node that its token is for.

    `capacity` are the amounts that it shows there, too.
    """
    node = f"request.userInfo.?extra[?{literal(NODE_OF_TOKEN)}][?0].orValue('')"
    status = tuple(f"status.{part}" for part in NODE_STATUS) if capacity else ("?status",)
    kept = ("?spec", *status, "metadata.?labels", "metadata.?finalizers", "metadata.?ownerReferences")
    ours = f"k in [{', '.join(map(literal, capacity))}]"
    amounts = [
        denial(
            unchanged(ours, f"status.?{amount}", f"status.{amount}"),
            f"of its node's {amount}, a node agent changes only {' and '.join(capacity)}",
        )
        for amount in (("capacity", "allocatable") if capacity else ())
    ]
    return [
        denial(
            f"object.metadata.name == {node}",
            spelled=f"'a node agent changes its own node: its token is for ' +\n"
            f"  ({node} == '' ? 'no node' : 'node ' + {node}) + ', not for ' + object.metadata.name",
        ),
        denial(
            " &&\n".join(f"object.{field} == oldObject.{field}" for field in kept),
            f"a node agent changes annotations under {OUR_PREFIX}, and nothing else of its node",
        ),
        denial(
            unchanged(f"k.startsWith({literal(OUR_PREFIX)})"),
            f"of its node's annotations, a node agent changes only those under {OUR_PREFIX}",
        ),
        *amounts,
    ]


def unchanged(except_for: str, where: str = "metadata.?annotations", there: str = "metadata.annotations") -> str:
    """Return the expression that no key `k` of a map has come, gone or changed but those of which something holds."""
    return (
        f"object.{where}.orValue({{}}).all(k, {except_for} ||\n"
        f"  oldObject.{where}[?k] == optional.of(object.{there}[k])) &&\n"
        f"oldObject.{where}.orValue({{}}).all(k, {except_for} ||\n"
        f"  k in object.{where}.orValue({{}}))"
    )


RESOURCE_GROUP: Final = "resource.k8s.io"
CLAIMS: Final = "resourceclaims"
CLAIM_STATUS: Final = "resourceclaims/status"
SLICES: Final = "resourceslices"

ALLOCATION = "?status.?allocation"


def with_our_cards() -> Json:
    """Return the condition that a claim is left with cards of ours. Any account may take them away."""
    results = f"object.{ALLOCATION}.?devices.?results.orValue([])"
    return named("with-our-cards", f"{results}.exists(r, r.driver == {literal(DRIVER)})")


def allocation_validations() -> list[Json]:
    """Return the rule that an allocation with cards of ours stays as it is: others add, change and move none."""
    return [
        denial(
            f"object.{ALLOCATION} == oldObject.{ALLOCATION}",
            f"only gpuledger gives out devices of {DRIVER}, and enters them in its ledger: "
            "have the pod scheduled by it (schedulerName)",
        )
    ]


def of_our_driver() -> Json:
    """Return the condition that a slice lists our cards."""
    return named("of-our-driver", f"object.spec.driver == {literal(DRIVER)}")


def slice_validations() -> list[Json]:
    """Return the rule that others than node agents list no cards of ours."""
    return [denial("false", f"only gpuledger's node agents write ResourceSlices of the driver {DRIVER}")]


def agent_slice_variables() -> list[Json]:
    """Return the variables of the rule below: the slice, also one that is deleted, and the node of the token."""
    node = f"request.userInfo.?extra[?{literal(NODE_OF_TOKEN)}][?0].orValue('')"
    return [
        named("spec", "object == null ? oldObject.spec : object.spec"),
        named("node", node),
    ]


def agent_slice_validations() -> list[Json]:
    """Return the rules on slices that a node agent writes or deletes: of our driver, for the node of its token."""
    return [
        denial(
            f"variables.spec.driver == {literal(DRIVER)}",
            f"a node agent writes ResourceSlices of the driver {DRIVER} only",
        ),
        denial(
            "variables.node != '' && variables.spec.?nodeName.orValue('') == variables.node &&\n"
            "variables.spec.pool.name == variables.node",
            spelled="'a node agent lists the cards of its own node: its token is for ' +\n"
            "  (variables.node == '' ? 'no node' : 'node ' + variables.node) + ', not for ' +\n"
            "  variables.spec.?nodeName.orValue('all nodes')",
        ),
    ]


ITS_SCHEDULER = "this pod asks for GPUs, but its scheduler "
WRITE_SCHEDULER = " does not know who has them: write spec.schedulerName: "
NAMES_ITS_NODE = (
    "this pod asks for GPUs, and names its node itself, so no scheduler would choose cards for it: "
    "remove spec.nodeName; to say which nodes it may use, write spec.nodeSelector"
)

AMOUNT = "c.resources.limits[n]"
"""Container `c`'s amount of resource `n`. Requests are the same: the API server sees to it."""

MOST_BYTES = 2**63 - 1
"""The largest value of a quantity."""

TELLING = " && variables.words[n].vocabulary != ''"
"""Of the words, those that only one vocabulary has."""


def request_variables(dialects: Dialects, scheduler_names: Sequence[str]) -> list[Json]:
    """Return the variables of the policy: tables of words, and for each rule the messages about its violations."""
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
    return all_named(expressions)


def request_validations() -> list[Json]:
    """Return the rules on new pods. The first that is broken is what the user reads."""
    rules = ("too_many", "bytes", "counted_twice", "several_kinds", "mixed", "none", "too_much", "not_cut")
    return [
        *(denial(f"variables.{name} == ''", spelled=f"variables.{name}") for name in rules),
        denial(
            "!variables.asks || object.spec.schedulerName in variables.scheduler_names",
            spelled=f"'{ITS_SCHEDULER}' + object.spec.schedulerName"
            f" + '{WRITE_SCHEDULER}' + variables.scheduler_names.join(' or ')",
        ),
        denial("!variables.asks || object.spec.?nodeName.orValue('') == ''", NAMES_ITS_NODE),
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


TASK_PRIORITY = "CUDA_TASK_PRIORITY"
"""The variable in which HAMi-core finds a container's priority on its card; HAMi's own webhook sets it likewise."""

CLUSTERS_OWN = "default-scheduler"
"""The API server's default where a pod names no scheduler."""


def asking_pods(dialects: Dialects) -> Json:
    """Return the condition by which all other pods are left alone."""
    condition = asks(literal(dialects.by_name), literal(dialects.counts()))
    return named("asks-for-gpus", f"{ALL_CONTAINERS}.exists(c,\n  {condition})")


def mentioning_pods(dialects: Dialects) -> Json:
    """Return the condition that a pod says anything of our resources, and be it that it wants none."""
    return named("mentions-gpus", f"{ALL_CONTAINERS}.exists(c,\n  {mentions(literal(dialects.by_name))})")


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
    return all_named(expressions)


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
    # The API server copies limits to requests after each change, as it does with a pod that it is sent.
    count = (
        'variables.uncounted.map(u, JSONPatch{op: "add",\n'
        "  path: u.container + '/resources/limits/' + jsonpatch.escapeKey(variables.defaults[u.word].count),\n"
        "  value: u.cards})"
    )
    filled_in = [scheduler, add_label(MANAGED_LABEL, literal("true")), count, *([_PRIORITY] if priorities else [])]
    texts = [" +\n".join(f"({text})" for text in filled_in), *([_toleration(node_taint)] if node_taint else [])]
    return list(map(patch, texts))


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
