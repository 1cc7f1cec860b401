"""The admission policies, for pods that are created and changed, and for nodes as their agents change them.

They are rendered from the same vocabularies that operator and scheduler use, so their names can't differ.
docs/admission.md describes the effect of each.

One of them refuses nothing, and warns of fields and names of resources that have no effect (unsupported_fields.yaml).
CEL has no measure of how near two words are, so the warning about a misspelt name lists the valid names.

Our own account may change little of objects that belong to others: ResourceClaims, and Kueue's workloads. The operator
and kube-scheduler have one account, so the changes that kube-scheduler itself makes to claims are allowed, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpuledger.formats.admission import autoscalers, card_access, rules, sums
from gpuledger.formats.annotations import ASKED_LABEL
from gpuledger.formats.custom_resource.crd import ALL_CONTAINERS, literal, objects_as_yaml, table
from gpuledger.formats.dialects.sums import CardModels
from gpuledger.formats.dialects.unsupported import (
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
from gpuledger.formats.kubernetes.other import LEASE_NAMESPACE
from gpuledger.formats.kubernetes.workload import CONTROLLER
from gpuledger.formats.kubernetes.workload import GROUP as KUEUE_VERSION
from gpuledger.formats.resource_claims.claims import DRIVER, PROTECTION
from gpuledger.model.json_object import Json

OWN_CLAIMS: Final = "gpuledger-own-claims"
OWN_WORKLOADS: Final = "gpuledger-own-workloads"
OWN_ANSWERS: Final = "gpuledger-own-answers"
OWN_CHECKS: Final = "gpuledger-own-checks"

KUEUE_GROUP: Final = KUEUE_VERSION.partition("/")[0]
WORKLOADS: Final = ("workloads", "workloads/status")
CHECKS: Final = ("admissionchecks", "admissionchecks/status")

_NOW, _BEFORE = (f"{each}.?status.?admissionChecks.orValue([])" for each in ("object", "oldObject"))
_METADATA: Final = ("labels", "annotations", "ownerReferences")


def _same(*fields: str) -> str:
    return " &&\n".join(f"object.{field} == oldObject.{field}" for field in fields)


def own_claim_validations(*, of_all_drivers: bool) -> list[Json]:
    """Return the rules on ResourceClaims: our cards, the pods that they are reserved for, and the finalizer for that.

    `of_all_drivers`: kube-scheduler allocates other drivers' devices as well, in a profile for that, and makes claims.
    """
    kept = (*(f"metadata.?{field}" for field in _METADATA), "spec", "?status.?devices")
    finalizers = "{}.metadata.?finalizers.orValue([])".format
    others = "!({0}.?status.?allocation.?devices.?results.orValue([]).exists(r, r.driver != {1}))".format
    status = rules.denial(
        f"{_same('?status.?allocation', '?status.?reservedFor')} ||\n"
        f"{others('object', literal(DRIVER))} &&\n{others('oldObject', literal(DRIVER))}",
        f"gpuledger allocates and reserves only devices of {DRIVER}",
    )
    made = rules.denial("request.operation == 'UPDATE'", "gpuledger neither creates nor deletes ResourceClaims")
    changes = [
        rules.denial(
            _same(*kept),
            "of a ResourceClaim, gpuledger changes only its allocation, for whom it is reserved, and "
            f"the finalizer {PROTECTION}",
        ),
        rules.denial(
            f"{finalizers('oldObject')}.all(f, f in {finalizers('object')}) &&\n"
            f"{finalizers('object')}.all(f, f == {literal(PROTECTION)} || f in {finalizers('oldObject')})",
            f"of a ResourceClaim's finalizers, gpuledger only adds {PROTECTION}",
        ),
        *([] if of_all_drivers else [status]),
    ]
    of_changes = [{**each, "expression": f"request.operation != 'UPDATE' ||\n{each['expression']}"} for each in changes]
    return [*([] if of_all_drivers else [made]), *of_changes]


def no_change_of_queues() -> list[Json]:
    """Return the rule where Kueue's checks are not answered."""
    return [rules.denial("false", "gpuledger changes no objects of Kueue, as its setting kueue is false")]


def own_workload_validations() -> list[Json]:
    """Return the rules on a workload of Kueue: what checks say of it, and nothing else.

    Which check is whose, the workload does not say: see `own_answer_validations`.
    """
    kept = (*(f"metadata.?{field}" for field in (*_METADATA, "finalizers")), "spec")
    said_by_checks = rules.unchanged("k == 'admissionChecks'", "?status", "status")
    return [
        rules.denial(
            f"{_same(*kept)} &&\n{said_by_checks}",
            "of a Workload, gpuledger changes only what its admission checks say",
        ),
        rules.denial(
            f"{_NOW}.map(c, c.name) == {_BEFORE}.map(c, c.name) &&\n"
            f"{_NOW}.map(c, c.?podSetUpdates.orValue([])) == {_BEFORE}.map(c, c.?podSetUpdates.orValue([]))",
            "gpuledger adds and removes no admission check of a Workload, and changes no pods by one",
        ),
    ]


def own_answer_validations() -> list[Json]:
    """Return the rule that the checks of other controllers stay as they are.

    It is about one AdmissionCheck, `params`, and is applied with each of the cluster. What it costs is limited by the
    eight checks that Kueue lets a workload have.
    """
    other = f"filter(c, c.name == params.metadata.name && params.spec.controllerName != {literal(CONTROLLER)})"
    return [
        rules.denial(
            f"{_NOW}.{other} ==\n{_BEFORE}.{other}",
            f"of a Workload's admission checks, gpuledger answers only those of the controller {CONTROLLER}",
        )
    ]


def with_each_check(policy: Json, binding: Json) -> list[Json]:
    """Return a policy and its binding that are applied with each AdmissionCheck, and with none where there is none.

    An API server that does not know the kind, as Kueue is not installed or is being installed, would refuse all changes
    of workloads, Kueue's own as well, whatever the policy's conditions say: `failurePolicy: Ignore` prevents that.
    """
    policy["spec"]["failurePolicy"] = "Ignore"
    policy["spec"]["paramKind"] = {"apiVersion": KUEUE_VERSION, "kind": "AdmissionCheck"}
    binding["spec"]["paramRef"] = {"selector": {}, "parameterNotFoundAction": "Allow"}
    return [policy, binding]


def own_check_validations() -> list[Json]:
    """Return the rules on AdmissionChecks: whether ours are active."""
    kept = (*(f"metadata.?{field}" for field in (*_METADATA, "finalizers")), "spec")
    return [
        rules.denial(
            f"object.spec.controllerName == {literal(CONTROLLER)} &&\n{_same(*kept)}",
            f"of AdmissionChecks, gpuledger changes only the status of those of the controller {CONTROLLER}",
        )
    ]


LIMITS = "c.?resources.?limits.orValue({})"


def serving_pods() -> Json:
    """Return the condition that a pod names a resource under a domain of ours; or a word that asks for a GPU."""
    asking = [word.name for word in unsupported_fields() if word.asks]
    return rules.named(
        "names-gpus",
        f"{ALL_CONTAINERS}.exists(c,\n  {LIMITS}.exists(n, n.split('/')[0] in "
        f"{literal(served_domains())})) ||\n"
        f"{literal(asking)}.exists(w, w in object.metadata.?annotations.orValue({{}}))",
    )


def word_variables(dialects: Dialects) -> list[Json]:
    """Return the variables of the policy: for each rule, the text of its warning about a pod."""
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
    return rules.all_named(expressions)


def word_validations() -> list[Json]:
    """Return the rules. A pod that breaks one gets a warning only."""
    return [
        *(
            rules.denial(f"variables.{name} == ''", spelled=f"variables.{name}")
            for name in ("unknown", "annotations", "labels")
        ),
        rules.denial("!variables.sandbox", SANDBOX),
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


IGNORE_LABEL: Final = "gpuledger.dev/ignore"
"""On a namespace, with the value "true": its pods are left to other schedulers."""

EXEMPT_NAMESPACES: Final = ("kube-system", LEASE_NAMESPACE)
"""Namespaces whose pods must start even if gpuledger fails."""

HEADER: Final = """\
# Generated by `gpuledger admission-policies`; do not edit. With other settings:
# gpuledger admission-policies --settings FILE | kubectl apply -f -
"""

ADMISSION_LABEL: Final = "gpuledger.dev/admission"
"""On a namespace, with the value "true": where only labelled namespaces are admitted, this one is."""


def _namespaces(*more: Json) -> Json:
    expressions = [
        {"key": IGNORE_LABEL, "operator": "NotIn", "values": ["true"]},
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(EXEMPT_NAMESPACES)},
        *more,
    ]
    return {"namespaceSelector": {"matchExpressions": expressions}}


NOT_IGNORED: Final = _namespaces()
"""In which namespaces pods are filled in and judged: in all that do not opt out."""

LABELLED: Final = _namespaces({"key": ADMISSION_LABEL, "operator": "In", "values": ["true"]})
"""The same: only in those that opt in."""

OF_USERS: Final = {"namespaceSelector": {**NOT_IGNORED["namespaceSelector"], "matchLabels": {ADMISSION_LABEL: "true"}}}
"""Namespaces that opt in, whatever the others do: elsewhere, programs of the cluster need the devices of its nodes."""

POD_CHANGES: Final = ("pods", "pods/status", "pods/ephemeralcontainers", "pods/resize")
"""All ways to an annotation of a pod: its subresources take metadata, too."""

BINDINGS: Final = ("pods/binding", "bindings")
"""Both take annotations to the pod. The latter is the older name."""


def mutating_policies(
    dialects: Dialects,
    scheduler_names: Sequence[str],
    node_taint: str = "",
    models: CardModels | None = None,
    queue_words: bool = False,
    hiding: bool = True,
    scope: Json = NOT_IGNORED,
    *,
    overwriting: bool = False,
) -> list[Json]:
    """Return the policies that fill in new pods. Pods without a scheduler get the first of the names.

    `scope` says in which namespaces; `hiding` that autoscalers are to leave pods with cards alone; `overwriting` that
    containers without cards get the variable by which NVIDIA's runtime gives them none.

    `node_taint` is a taint of our nodes, key=value:effect, which pods then tolerate. With the models of the cluster's
    cards, the sums that containers ask for are written on them, too; with `queue_words`, Kueue's label on objects that
    name a queue in other words.
    """
    spec = {
        "reinvocationPolicy": "IfNeeded",  # another policy or webhook may add containers
        "matchConditions": [rules.asking_pods(dialects)],
        "variables": rules.default_variables(dialects),
        "mutations": rules.mutations(scheduler_names[0], node_taint, bool(dialects.priorities())),
    }
    filling_in = _policy("Mutating", "gpuledger-pods", [rule("CREATE", "pods")], spec, scope)
    return [
        *filling_in,
        *(_summing(dialects, scheduler_names, models, scope) if models else ()),
        *(_queueing(dialects, scheduler_names, scope) if queue_words else ()),
        *(_hiding(dialects, scheduler_names, bool(models), scope) if hiding else ()),
        *(_overwriting(dialects, scope) if overwriting else ()),
    ]


def validating_policies(
    dialects: Dialects,
    scheduler_names: Sequence[str],
    own_annotations: Sequence[str],
    *,
    kueue: bool = False,
    all_drivers: bool = False,
    scope: Json = NOT_IGNORED,
    card_access_is: str = "refuse",
) -> list[Json]:
    """Return the policies that refuse requests. `own_annotations` are those that our own account patches on pods.

    `kueue`: it answers Kueue's checks; `all_drivers`: its kube-scheduler allocates claims of other drivers. `scope`
    says in which namespaces requests are judged; `card_access_is` what happens with pods of namespaces that opt in
    which reach cards without a share, a key of `card_access.ACTIONS`.

    The annotation that is ours is protected in every namespace: no other program has a use for it.
    """
    ours = [rules.only_from(rules.OPERATOR)]
    new, binds = rule("CREATE", "pods"), rule("CREATE", *BINDINGS)
    changes, quotas = rule("UPDATE", *POD_CHANGES), rule("UPDATE", "resourcequotas", "resourcequotas/status")
    return [
        *_validating(
            "gpuledger-requests",
            [new],
            [rules.mentioning_pods(dialects)],
            rules.request_validations(),
            scope,
            rules.request_variables(dialects, scheduler_names),
        ),
        *_validating(
            "gpuledger-devices",
            [new, binds, changes],
            [rules.not_from(rules.OPERATOR), rules.changes_our_annotation()],
            rules.devices_validations(),
        ),
        *_validating(
            "gpuledger-foreign-devices",
            [new, binds],
            [rules.not_from(rules.OPERATOR), rules.with_foreign_annotations()],
            rules.foreign_validations(),
            scope,
            rules.foreign_variables(),
        ),
        *_judging_access(dialects, card_access.ACTIONS[card_access_is]),
        *_warning("gpuledger-words", [new], [serving_pods()], word_validations(), word_variables(dialects), scope),
        *_validating("gpuledger-own-account", [changes], ours, rules.own_validations(own_annotations)),
        *_validating("gpuledger-own-quotas", [quotas], ours, rules.own_quota_validations()),
        *_validating("gpuledger-own-pods", [new], ours, rules.own_new_pod_validations()),
        *_validating("gpuledger-own-nodes", [rule("UPDATE", "nodes")], ours, rules.own_node_validations()),
        *_validating(
            "gpuledger-claims",
            [rule("UPDATE", rules.CLAIM_STATUS, group=rules.RESOURCE_GROUP)],
            [rules.not_from(rules.OPERATOR), rules.with_our_cards()],
            rules.allocation_validations(),
        ),
        *_validating(
            "gpuledger-slices",
            [
                rule("CREATE", rules.SLICES, group=rules.RESOURCE_GROUP),
                rule("UPDATE", rules.SLICES, group=rules.RESOURCE_GROUP),
            ],
            [rules.not_from(rules.AGENT), rules.of_our_driver()],
            rules.slice_validations(),
        ),
        *_validating(
            OWN_CLAIMS,
            [
                rule("UPDATE", rules.CLAIMS, rules.CLAIM_STATUS, group=rules.RESOURCE_GROUP),
                *(rule(operation, rules.CLAIMS, group=rules.RESOURCE_GROUP) for operation in ("CREATE", "DELETE")),
            ],
            ours,
            own_claim_validations(of_all_drivers=all_drivers),
        ),
        *_own_queues(kueue),
    ]


def agent_policies(capacity: Sequence[str] = ()) -> list[Json]:
    """Return the policies that keep each node agent to its own node. They go with the agents in every installation.

    `capacity` are amounts that agents write into the capacity of their nodes.
    """
    changes = [rule("UPDATE", "nodes", "nodes/status")]
    slices = [rule(operation, rules.SLICES, group=rules.RESOURCE_GROUP) for operation in ("CREATE", "UPDATE", "DELETE")]
    return [
        *_validating("gpuledger-agents", changes, [rules.only_from(rules.AGENT)], rules.agent_validations(capacity)),
        *_validating(
            "gpuledger-agent-slices",
            slices,
            [rules.only_from(rules.AGENT)],
            rules.agent_slice_validations(),
            variables=rules.agent_slice_variables(),
        ),
    ]


def as_yaml(objects: Sequence[Json], header: str = HEADER) -> str:
    """Write policies, or what does the same, as a file that kubectl applies."""
    return objects_as_yaml(header, objects)


def rule(operation: str, *resources: str, group: str = "") -> Json:
    """Return which requests are looked at."""
    return {"apiGroups": [group], "apiVersions": ["v1"], "operations": [operation], "resources": list(resources)}


def _own_queues(answers_checks: bool) -> list[Json]:
    """Return the policies that limit our own account to our checks. Without Kueue, they apply to no object."""
    workloads, checks = (
        {**rule("UPDATE", *names, group=KUEUE_GROUP), "apiVersions": ["*"]} for names in (WORKLOADS, CHECKS)
    )
    if not answers_checks:
        return _validating(OWN_WORKLOADS, [workloads, checks], [rules.only_from(rules.OPERATOR)], no_change_of_queues())
    ours = [rules.only_from(rules.OPERATOR)]
    return [
        *_validating(OWN_WORKLOADS, [workloads], ours, own_workload_validations()),
        *with_each_check(*_validating(OWN_ANSWERS, [workloads], ours, own_answer_validations())),
        *_validating(OWN_CHECKS, [checks], ours, own_check_validations()),
    ]


def _summing(dialects: Dialects, scheduler_names: Sequence[str], models: CardModels, scope: Json) -> list[Json]:
    spec = {
        "reinvocationPolicy": "IfNeeded",  # another policy or webhook may change what a container asks for
        "matchConditions": sums.summing_templates(dialects),
        "variables": sums.sum_variables(dialects, scheduler_names, models),
        "mutations": sums.sum_mutations(),
    }
    return _policy("Mutating", sums.SUMS_POLICY, sums.sum_rules(), spec, scope)


def _queueing(dialects: Dialects, scheduler_names: Sequence[str], scope: Json) -> list[Json]:
    spec = {
        "reinvocationPolicy": "IfNeeded",  # another policy or webhook may add a container with cards
        "matchConditions": sums.queued_objects(dialects, scheduler_names),
        "variables": sums.queue_variables(dialects, scheduler_names),
        "mutations": sums.queue_mutations(),
    }
    return _policy("Mutating", sums.QUEUES_POLICY, sums.queue_rules(), spec, scope)


def _hiding(dialects: Dialects, scheduler_names: Sequence[str], with_sums: bool, scope: Json) -> list[Json]:
    spec = {
        "reinvocationPolicy": "IfNeeded",  # another policy or webhook may add a container with cards
        "matchConditions": autoscalers.hidden_pods(dialects, scheduler_names, with_sums=with_sums),
        "mutations": autoscalers.hiding_mutations(),
    }
    return _policy("Mutating", autoscalers.HIDING_POLICY, [rule("CREATE", "pods")], spec, scope)


def _overwriting(dialects: Dialects, scope: Json) -> list[Json]:
    spec = {
        "reinvocationPolicy": "IfNeeded",  # another policy or webhook may add containers
        "matchConditions": card_access.lacking_containers(dialects),
        "variables": card_access.overwriting_variables(dialects),
        "mutations": card_access.overwriting_mutations(),
    }
    return _policy("Mutating", card_access.OVERWRITING_POLICY, [rule("CREATE", "pods")], spec, scope)


def _judging_access(dialects: Dialects, action: str) -> list[Json]:
    policy, binding = _validating(
        card_access.ACCESS_POLICY,
        [rule("CREATE", "pods"), rule("UPDATE", "pods/ephemeralcontainers")],
        [],
        card_access.access_validations(),
        OF_USERS,
        card_access.access_variables(dialects),
    )
    binding["spec"]["validationActions"] = [action]
    return [policy, binding]


def _validating(
    name: str,
    requests: Sequence[Json],
    conditions: Sequence[Json],
    validations: Sequence[Json],
    scope: Json | None = None,
    variables: Sequence[Json] = (),
) -> list[Json]:
    spec = {
        **({"matchConditions": list(conditions)} if conditions else {}),
        **({"variables": list(variables)} if variables else {}),
        "validations": [{**each, "reason": "Forbidden"} for each in validations],
    }
    return _policy("Validating", name, requests, spec, scope)


def _warning(
    name: str,
    requests: Sequence[Json],
    conditions: Sequence[Json],
    validations: Sequence[Json],
    variables: Sequence[Json],
    scope: Json,
) -> list[Json]:
    """Return a policy that refuses nothing: the API server answers with warnings. One that fails says nothing."""
    spec = {"matchConditions": list(conditions), "variables": list(variables), "validations": list(validations)}
    policy, binding = _policy("Validating", name, requests, spec, scope)
    policy["spec"]["failurePolicy"] = "Ignore"
    binding["spec"]["validationActions"] = ["Warn"]
    return [policy, binding]


def _policy(kind: str, name: str, requests: Sequence[Json], spec: Json, scope: Json | None = None) -> list[Json]:
    """Return a policy and its binding, which is of the same name."""
    binding: Json = {"policyName": name}
    if kind == "Validating":
        binding["validationActions"] = ["Deny"]
    if scope:
        binding["matchResources"] = scope
    policy = {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": list(requests)}, **spec}
    return [_object(f"{kind}AdmissionPolicy", name, policy), _object(f"{kind}AdmissionPolicyBinding", name, binding)]


def _object(kind: str, name: str, spec: Json) -> Json:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }
