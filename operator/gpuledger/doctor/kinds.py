"""Findings about a cluster, and their kinds: each with its severity, its meaning, and its remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self


class Severity(StrEnum):
    """Severity of a finding."""

    ERROR = "error"
    """Pods do not get cards, or the ledger is not kept as it should be."""
    WARNING = "warning"
    """It works, but for something that a person should know."""


E, W = Severity.ERROR, Severity.WARNING


class FindingKind(StrEnum):
    """The kinds of findings, in the order in which they are shown. The ids are stable: scripts may rely on them."""

    severity: Severity
    meaning: str
    remedy: str
    """What to do; words in capitals stand for names that a finding fills in."""

    def __new__(cls, value: str, severity: Severity, meaning: str, remedy: str) -> Self:
        """Return a member with what is to be said of it."""
        kind = str.__new__(cls, value)
        kind._value_ = value
        kind.severity, kind.meaning, kind.remedy = severity, meaning, remedy
        return kind

    # The API server.
    SERVER_TOO_OLD = (
        "server-too-old",
        E,
        "The API server is older than Kubernetes 1.30.",
        "Upgrade the control plane to Kubernetes 1.30 or newer.",
    )
    NOBODY_PREEMPTS = (
        "nobody-preempts",
        E,
        "`preemption: native`, and the API server is older than 1.38: kube-scheduler finds no victims on cards.",
        "Set `preemption: auto`.",
    )
    SCHEDULER_VERSION = (
        "scheduler-version",
        W,
        "The Deployment's kube-scheduler is newer than the API server, or more than one minor version older.",
        "Use the kube-scheduler image vSERVER in the Deployment.",
    )

    # The custom resource.
    CRD_MISSING = ("crd-missing", E, "The CRD of GPUAllocation is missing.", "kubectl apply -k manifests/")
    CRD_DIFFERS = (
        "crd-differs",
        E,
        "The CRD is not that of this release: its rules or fields differ.",
        "gpuledger crd | kubectl apply -f -",
    )
    CRD_NOT_SERVED = (
        "crd-not-served",
        E,
        "The API server does not serve the CRD.",
        "kubectl describe crd gpuallocations.gpuledger.dev says why.",
    )

    # Admission.
    POLICIES_ABSENT = (
        "policies-absent",
        W,
        "Neither the admission policies nor the webhook are installed: users can write the operator's "
        "annotations, and pods have to name the scheduler themselves.",
        "kubectl apply -k manifests/",
    )
    POLICY_MISSING = (
        "policy-missing",
        E,
        "One of the admission policies is missing.",
        "gpuledger admission-policies --settings FILE --kind KIND | kubectl apply -f -",
    )
    POLICY_UNBOUND = (
        "policy-unbound",
        E,
        "A policy has no binding, or one that does not deny, so it has no effect.",
        "gpuledger admission-policies --settings FILE --kind KIND | kubectl apply -f -",
    )
    POLICY_NAMES = (
        "policy-names",
        E,
        "A policy or the webhook's configuration has other resource names than the settings.",
        "gpuledger admission-policies --settings FILE | kubectl apply -f -",
    )
    POLICY_DIFFERS = (
        "policy-differs",
        E,
        "A policy or its binding differs from what this release generates from the settings.",
        "gpuledger admission-policies --settings FILE | kubectl apply -f -",
    )
    NO_DEFAULTS = (
        "no-defaults",
        W,
        "Nothing fills in new pods: they have to name the scheduler and the number of GPUs themselves. "
        "Before Kubernetes 1.36, the webhook does it.",
        "docs/admission.md, The webhook",
    )
    WEBHOOK_UNSERVED = (
        "webhook-unserved",
        E,
        "The API server sends pods to the webhook, but the operator does not serve it: it rejects all pods with GPUs.",
        "Set `webhook_port: 9443`, or kubectl delete "
        "mutatingwebhookconfiguration,validatingwebhookconfiguration gpuledger",
    )

    # Permissions of accounts.
    OPERATOR_PERMISSION = (
        "operator-permission",
        E,
        "The operator's account, which kube-scheduler uses too, lacks permissions.",
        "kubectl apply -k manifests/",
    )
    AGENT_PERMISSION = (
        "agent-permission",
        E,
        "The node agents' account lacks permissions.",
        "kubectl apply -k manifests/",
    )
    OVER_HAMI_PERMISSION = (
        "over-hami-permission",
        E,
        "Nodes run HAMi's device plugin, and the operator may not patch nodes: it can't set the lock that the plugin "
        "requires.",
        "kubectl apply -k manifests/over-hami",
    )

    # Operator and kube-scheduler.
    SETTINGS_DIFFER = (
        "settings-differ",
        E,
        "The settings of operator, agents, or the file given with `--settings` differ.",
        "kubectl apply -k manifests/, so that all of them use the same file",
    )
    RELEASE_DIFFERS = (
        "release-differs",
        W,
        "Operator or agents are of another release than the doctor, which checks the cluster against its own.",
        "Use the doctor of release RELEASE, or set that workload's image to the doctor's release.",
    )
    SCHEDULER_TWICE = (
        "scheduler-twice",
        E,
        "Another scheduler runs and serves a name that `extra_scheduler_names` makes ours.",
        "Stop the other scheduler, or remove its name from extra_scheduler_names: docs/moving-over.md",
    )
    GROUP_GATES = (
        "group-gates",
        W,
        "kube-scheduler tries Kubernetes' own groups as a whole, or should: its feature gates and `native_gangs` "
        "do not go together.",
        "Take the gates from the Deployment's kube-scheduler, and native_gangs from the settings; or set both as in "
        "docs/gangs.md",
    )
    GROUP_DIVIDED = (
        "group-divided",
        W,
        "Pods of one gang name different schedulers, so that not all of them count; or have different priorities, with "
        "which Kubernetes' own groups are not tried.",
        "Set the same schedulerName, and priorityClassName, on all pods of the gang.",
    )
    OPERATOR_ABSENT = (
        "operator-absent",
        E,
        "The operator has no pod.",
        "kubectl apply -k manifests/; kubectl describe deployment gpuledger -n gpuledger-system",
    )
    OPERATOR_NOT_READY = (
        "operator-not-ready",
        E,
        "No pod of the operator is Ready.",
        "kubectl logs -n gpuledger-system POD --all-containers",
    )
    OPERATOR_DEGRADED = (
        "operator-degraded",
        W,
        "Some of the operator's pods are missing or not Ready: no replica can take over.",
        "kubectl logs -n gpuledger-system POD --all-containers",
    )
    LEASE_NOT_HELD = (
        "lease-not-held",
        E,
        "The schedulers' Lease has no holder: none of our kube-schedulers runs.",
        "kubectl logs -n gpuledger-system deployment/gpuledger -c kube-scheduler",
    )
    LEASE_EXPIRED = (
        "lease-expired",
        E,
        "The holder of the schedulers' Lease no longer renews it.",
        "kubectl logs -n gpuledger-system POD -c kube-scheduler",
    )
    LEADER_NOT_READY = (
        "leader-not-ready",
        E,
        "The operator beside the leading kube-scheduler is not Ready: the scheduler gets no answers from it.",
        "kubectl logs -n gpuledger-system POD -c operator",
    )
    LEADER_UNKNOWN = (
        "leader-unknown",
        W,
        "The kube-scheduler that holds the Lease runs in none of the operator's pods.",
        "Stop the other kube-scheduler, or have it use another Lease.",
    )
    SCHEDULER_ERROR = (
        "scheduler-error",
        E,
        "kube-scheduler could not ask the operator about pods.",
        "kubectl logs -n gpuledger-system deployment/gpuledger -c operator",
    )
    SCHEDULER_CONFIG = (
        "scheduler-config",
        E,
        "A kube-scheduler's configuration does not match the settings.",
        "gpuledger scheduler-config --settings FILE, for that kube-scheduler, then restart it",
    )

    # Nodes.
    NODE_NOT_SHARED = (
        "node-not-shared",
        W,
        "A node has GPUs, but none of them is in the ledger: no agent registers them.",
        "kubectl label node NODE gpuledger.dev/agent=true, if no other device plugin serves its cards; if NVIDIA's "
        "does, set node_label: nodes without that label get pods that only count GPUs",
    )
    AGENT_ABSENT = (
        "agent-absent",
        E,
        "A node with the label gpuledger.dev/agent=true has no pod of the node agent.",
        "kubectl describe daemonset gpuledger-agent -n gpuledger-system",
    )
    AGENT_NOT_READY = (
        "agent-not-ready",
        E,
        "The node agent is not Ready; without NVIDIA's driver library, or a container runtime that brings it, it never "
        "is.",
        "kubectl logs -n gpuledger-system POD; if it finds no driver: install it, or set runtimeClassName: nvidia",
    )
    NODE_WITHOUT_CARDS = (
        "node-without-cards",
        E,
        "The node agent runs, but lists no card.",
        "kubectl logs -n gpuledger-system -l app.kubernetes.io/name=gpuledger-agent; nvidia-smi on NODE",
    )
    CARDS_OUT = (
        "cards-out",
        E,
        "The agent or device plugin of a node reports that none of its cards works.",
        "nvidia-smi on NODE; docs/node-agent.md, What it finds out",
    )
    REGISTER_PROBLEM = (
        "register-problem",
        E,
        "The register of cards that a node's device plugin writes can't be read, or only in part.",
        "gpuledger inspect node/NODE",
    )
    NODE_NAMES = (
        "node-names",
        E,
        "A node's device plugin serves other resource names than the settings: no pod gets its cards.",
        "Set in the settings what it serves (resource_count, volcano_count), or restart it with the settings' names.",
    )
    PLUGIN_SILENT = (
        "plugin-silent",
        E,
        "A node lists cards, but its kubelet offers none of them: its device plugin does not answer.",
        "Restart the device plugin on NODE, and check its log.",
    )
    CARDS_NOT_ENTERED = (
        "cards-not-entered",
        E,
        "A node lists cards that are not in the ledger.",
        "kubectl logs -n gpuledger-system deployment/gpuledger -c operator",
    )
    PLUGINS_CLASH = (
        "plugins-clash",
        E,
        "Two device plugins allocate the same cards of a node.",
        "Keep one of them away from NODE: its DaemonSet's nodeSelector, or the label gpuledger.dev/agent",
    )
    PLUGINS_MIXED = (
        "plugins-mixed",
        W,
        "Two device plugins run on a node under different names: they can allocate a card twice.",
        "Keep one of them away from NODE.",
    )
    KUBELET_TOO_OLD = (
        "kubelet-too-old",
        E,
        "A kubelet older than 1.29 does not pass on CDI devices.",
        "Upgrade the kubelet of NODE, or set `delivery: directory`.",
    )
    RUNTIME_WITHOUT_CDI = (
        "runtime-without-cdi",
        E,
        "A node's container runtime does not support CDI: containers start without their cards.",
        "Upgrade it to containerd 2.0, or set `delivery: directory`.",
    )
    RUNTIME_CDI_OFF = (
        "runtime-cdi-off",
        W,
        "containerd 1.7 supports CDI only if its configuration enables it, which the doctor can't see.",
        "enable_cdi = true in containerd's configuration on NODE, or containerd 2.0",
    )
    NO_SCORES = (
        "no-scores",
        W,
        "The policy is `topology`, but a node does not report how its cards are connected.",
        "ENABLE_TOPOLOGY_SCORE=true for HAMi's device plugin on NODE, or another policy",
    )
    ISOLATION_NONE = (
        "isolation-none",
        W,
        "Nothing keeps containers to their shares of a node's cards, and the settings do not say that this is meant.",
        "docs/isolation.md: an image with HAMi-core, or another isolation; isolation: none in the settings, or "
        '"operatingmode": "none" for NODE in node_config_file, says that it is meant',
    )

    CARDS_UNACCOUNTED = (
        "cards-unaccounted",
        E,
        "Pods may use cards without a share in the ledger, so these cards take no new pods.",
        "gpuledger migrate --dry-run, then without it; gpuledger audit; docs/audit.md, Cards that are closed",
    )

    CARDS_NOT_CONFIRMED = (
        "cards-not-confirmed",
        W,
        "Cards whose object is new take no pods before their nodes' agents have told what containers have of them.",
        "It takes seconds. If they stay: gpuledger doctor on the agents of their nodes, and kubectl logs of these; "
        "docs/operations.md, The ledger is lost",
    )

    # ResourceClaims.
    CLAIM_CLASS_MISSING = (
        "claim-class-missing",
        W,
        "Pods wait that bring ResourceClaims, and there is no DeviceClass gpu.gpuledger.dev.",
        "kubectl apply -k manifests/claims",
    )
    CLAIMS_NOT_SERVED = (
        "claims-not-served",
        W,
        "Pods bring ResourceClaims, and a node's agent is no driver of claims: the node takes none of these pods.",
        "Set resource_claims: true and delivery: cdi for the agents; kubectl logs of the agent of NODE says more.",
    )
    CLAIMS_NOT_MADE = (
        "claims-not-made",
        E,
        "Pods wait, and no ResourceClaim is made for them: kube-controller-manager does that.",
        "Check that kube-controller-manager runs, and that the ResourceClaimTemplate exists.",
    )
    CLAIMS_UNACCOUNTED = (
        "claims-unaccounted",
        E,
        "ResourceClaims have cards of ours that the ledger did not give: another scheduler has allocated them.",
        "gpuledger audit; have their pods placed by gpuledger's profile; docs/claims.md",
    )

    # Pods.
    FOREIGN_PODS = (
        "foreign-pods",
        E,
        "Another scheduler placed pods with GPUs on our nodes: the ledger does not count what they use.",
        "Have their owners create them anew under gpuledger's profile: the admission policies see to that "
        "in namespaces with the label gpuledger.dev/admission=true; or keep their nodes apart (node_label, node_taint)",
    )
    PODS_UNSERVED = (
        "pods-unserved",
        E,
        "Pods request GPUs of a scheduler that does not run: no scheduler has tried them.",
        "Add the name to `extra_scheduler_names`, or have their owners create them anew with "
        "`schedulerName: SCHEDULER`",
    )

    GPUS_REPLICATED = (
        "gpus-replicated",
        W,
        "NVIDIA's device plugin gives out each GPU of a node several times: pods that count GPUs do not go there.",
        "Switch sharing off in the plugin's configuration for NODE; or with replicas_elsewhere: as-gpus, pods get "
        "replicas as GPUs; docs/moving-over.md, Mixed clusters",
    )
    CARD_ACCESS = (
        "card-access",
        W,
        "Pods reach cards of our nodes without a share: the ledger does not count what they use.",
        "Have their owners ask for shares in limits. Where a namespace has the label gpuledger.dev/admission=true, "
        "such pods are refused: docs/admission.md",
    )

    # Autoscalers.
    KEEP_NODES_PERMISSION = (
        "keep-nodes-permission",
        E,
        "`keep_nodes_in_use` is set, and the operator may not patch nodes: autoscalers are not told which to keep.",
        "kubectl apply -k manifests/keep-nodes",
    )
    GROWTH_PERMISSION = (
        "growth-permission",
        E,
        "`growth` is `stand-ins`, and the operator may not create pods in its namespace: no nodes are asked for.",
        "kubectl apply -k manifests/growth",
    )
    AUTOSCALER_UNGUARDED = (
        "autoscaler-unguarded",
        W,
        "An autoscaler runs, and nothing hides new pods from it: it takes several that fill their nodes for pods that "
        "fit on one, and evicts some.",
        "Set hide_from_autoscalers: true, and install the policies, or the webhook: docs/autoscaling.md",
    )
    AUTOSCALER_SEES_PODS = (
        "autoscaler-sees-pods",
        W,
        "An autoscaler runs, and pods that hold cards ask for nothing that their nodes do not list: it may evict them.",
        "Label their namespaces gpuledger.dev/admission=true where admission is off, and have their owners create them "
        "anew; until then keep_nodes_in_use: true protects them: docs/autoscaling.md",
    )

    # Clocks.
    CLOCK_SKEW_HERE = (
        "clock-skew-here",
        W,
        "The clock of the machine that the doctor runs on differs from the API server's.",
        "Start NTP on the machine.",
    )
    CLOCK_SKEW_NODE = (
        "clock-skew-node",
        W,
        "A node's clock differs from the API server's: deadlines for its pods come early or late.",
        "Start NTP on NODE.",
    )

    # The doctor itself.
    NOT_CHECKED = (
        "not-checked",
        W,
        "Something could not be read, so the named checks were skipped.",
        "Give the account what it needs, as the finding says.",
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    kind: FindingKind
    where: str
    """The object, as "node NAME" or "KIND NAME"."""
    text: str
    """The problem, in words."""
    remedy: str

    @classmethod
    def of(cls, kind: FindingKind, where: str, text: str, remedy: str = "", **names: str) -> Finding:
        """Return a finding. `names` replace the words in capitals in the remedy."""
        remedy = remedy or kind.remedy
        for word, name in names.items():
            remedy = remedy.replace(word, name)
        return cls(kind, where, text, remedy)

    def json(self) -> dict[str, Any]:
        """Return it as data."""
        severity = self.kind.severity.value
        return {
            "id": self.kind.value,
            "severity": severity,
            "where": self.where,
            "text": self.text,
            "mend": self.remedy,
        }
