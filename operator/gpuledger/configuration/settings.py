"""Every option, once: its name, unit, default and help. Read from a YAML file, whose keys are the names below.

The scheduler's configuration, the operator and the simulated nodes all take them from the same file, so the names of
the resources can't differ between them. Values are checked by pydantic, against the type of their default and their
declaration.

Files that a setting names are a path, or a ConfigMap of the cluster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import Field as Option
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from gpuledger.configuration.node_templates import MOST_TEMPLATES, NewNodes
from gpuledger.formats.custom_resource.stored_card import MAX_SLOTS
from gpuledger.model.errors import BadInput, did_you_mean

PREFIX = "configmap:"
_PATTERN = re.compile(PREFIX + r"([a-z0-9][a-z0-9-]{0,62})/([a-z0-9][a-z0-9.-]{0,252})")

FROM_CONFIG_MAPS = ("hami_config_file", "volcano_config_file", "node_config_file")
"""Settings that can name a ConfigMap."""


class ConfigMapName(NamedTuple):
    """Where a ConfigMap is."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class FileContent(str):
    """The value of a setting that names a file, with the content that was read of it elsewhere."""

    __slots__ = ("content",)

    content: str

    @classmethod
    def of(cls, named: str, content: str) -> FileContent:
        """Return the name of a file with its content."""
        found = cls(named)
        found.content = content
        return found


def config_map_name(named: str) -> ConfigMapName | None:
    """Return which ConfigMap `configmap:NAMESPACE/NAME` names, None for a path. Raises ValueError for another form."""
    if not named.startswith(PREFIX):
        return None
    found = _PATTERN.fullmatch(named)
    if found is None:
        raise ValueError(f"a ConfigMap is named as configmap:NAMESPACE/NAME, not {named!r}")
    return ConfigMapName(found[1], found[2])


def config_map_text(data: Mapping[str, str]) -> str:
    """Return a ConfigMap's data as a file has it that holds the ConfigMap. The same data give the same text."""
    return json.dumps({"kind": "ConfigMap", "data": dict(data)}, sort_keys=True)


def content_of(named: str, option: str) -> str:
    """Return the content of a file that a setting names. Raises BadInput."""
    if isinstance(named, FileContent):
        return named.content
    if config_map_name(named) is not None:
        raise BadInput(f"settings: {option}: {named} has not been read from the cluster")
    try:
        return Path(named).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"settings: {option}: {error}") from error


POLICIES = ("binpack", "spread", "topology", "topology-aware", "fragmentation")

IDLE_POLICIES = ("report", "yield", "evict")
"""How to choose among nodes, and among cards: docs/placement.md."""

TOPOLOGY, TOPOLOGY_AWARE = "topology", "topology-aware"
"""The same; the latter is HAMi's word. Where it chooses the cards, it chooses the node as well, as for a pod's wish."""

ALSO_SERVED = ("volcano", "volcano-classic", "koordinator")
"""Systems whose words for NVIDIA's cards have a count of their own."""

METRICS_COMPATIBILITY = ("hami", "hami-legacy", "volcano")
"""Systems whose metric names are available beside our own: docs/metrics.md."""


def option(
    default: Any,
    text: str,
    *,
    choices: tuple[str, ...] = (),
    least: float = 0,
    most: float | None = None,
    rows: type[BaseModel] | None = None,
) -> Any:
    """Declare an option with its help: the words that it can have, the bounds of a number, or what a list has."""
    metadata = {"help": text, "choices": choices, "least": least, "most": most, "rows": rows}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Settings:
    """The options. Units are the last word of a name."""

    scheduler_name: str = option("gpuledger", "Pods with this spec.schedulerName are ours.")
    extra_scheduler_names: tuple[str, ...] = option(
        (), "More such names, for example hami-scheduler or volcano: only names that no other scheduler serves."
    )

    node_label: str = option("", "Label, key=value, that selects our nodes; empty: all nodes that register cards.")
    whole_gpus_elsewhere: bool = option(
        True, "Pods that only count nvidia.com/gpu may go to nodes without node_label, where NVIDIA's plugin serves it."
    )
    replicas_elsewhere: str = option(
        "none",
        "How such pods count a node where NVIDIA's plugin gives out each card several times, as time slices or by MPS: "
        "none, they do not go there; or as-gpus, each replica is one GPU.",
        choices=("none", "as-gpus"),
    )
    node_taint: str = option("", "Taint, key=value:effect, of our nodes: admission makes pods tolerate it.")

    admission_namespaces: str = option(
        "all",
        "In which namespaces admission fills in and judges pods: all (but those with the label gpuledger.dev/ignore), "
        "or those labelled gpuledger.dev/admission=true.",
        choices=("all", "labelled"),
    )
    card_access: str = option(
        "refuse",
        "What admission does, in namespaces labelled gpuledger.dev/admission=true, with pods that reach cards without "
        "a share (NVIDIA_VISIBLE_DEVICES, privileged, devices by hostPath): refuse, warn, or record in the audit log.",
        choices=("refuse", "warn", "record"),
    )
    overwrite_env: bool = option(
        False, "Whether containers without cards get NVIDIA_VISIBLE_DEVICES=void by admission; HAMi's overwriteEnv."
    )

    resource_count: str = option("nvidia.com/gpu", "Resource: how many different cards a container gets.")
    resource_memory: str = option("nvidia.com/gpumem", "Resource: memory of each card, in MiB.")
    resource_memory_percentage: str = option("nvidia.com/gpumem-percentage", "Resource: the same in percent.")
    resource_cores: str = option("nvidia.com/gpucores", "Resource: cores of each card, in percent.")
    resource_priority: str = option(
        "nvidia.com/priority", "Resource: priority on a card; does not influence placement."
    )

    resource_memory_unit_mib: int = option(1, "What 1 of resource_memory stands for; HAMi's memoryFactor.", least=1)

    volcano_count: str = option("volcano.sh/vgpu-number", "Volcano's name for the number of cards.")
    volcano_memory: str = option("volcano.sh/vgpu-memory", "Volcano's name for the memory of each card.")
    volcano_memory_percentage: str = option("volcano.sh/vgpu-memory-percentage", "The same in percent.")
    volcano_cores: str = option("volcano.sh/vgpu-cores", "Volcano's name for the cores of each card, in percent.")
    volcano_memory_unit_mib: int = option(
        1, "What 1 of volcano_memory, and of memory in Volcano's registers, stands for; its gpuMemoryFactor.", least=1
    )
    volcano_classic_count: str = option("volcano.sh/gpu-number", "Whole cards, in the words of Volcano's first plugin.")
    volcano_classic_memory: str = option("volcano.sh/gpu-memory", "Memory of a card, in the same words.")

    koordinator_names: bool = option(True, "Read Koordinator's names, koordinator.sh/gpu-memory and the others.")

    vendors: tuple[str, ...] = option(
        ("all",), "Rows in use from the table of other vendors' cards: their names, all, or none."
    )
    vendors_file: str = option("", "YAML file with rows for that table.")

    hami_config_file: str = option(
        "", "HAMi's hami-scheduler-device: configmap:NAMESPACE/NAME, or a file with the ConfigMap or its content."
    )
    volcano_config_file: str = option("", "Volcano's volcano-vgpu-device-config, named in the same ways.")
    node_config_file: str = option("", "HAMi's hami-device-plugin or Volcano's volcano-vgpu-node-config, likewise.")

    default_gpus: int = option(1, "Cards for a container that requests only memory or cores.")
    default_memory_mib: int = option(0, "Memory for a container that requests only cards; 0: the whole card.")
    default_cores: int = option(0, "Cores, in percent, for a container that requests none; 0: no guarantee.", most=100)

    most_containers: int = option(
        8, "Containers of one pod that may request cards; each makes the search for a place longer.", least=1
    )

    sum_models: tuple[str, ...] = option(
        (),
        "Models of the cluster's cards, each MODEL=MIB: then admission writes on containers what they ask for in sum, "
        "for ResourceQuota and Kueue.",
    )
    sum_by: str = option(
        "largest",
        "Of the models that a pod may get, the one by whose memory its whole cards and percentages are counted: "
        "largest, smallest.",
        choices=("largest", "smallest"),
    )

    hide_from_autoscalers: bool = option(
        True,
        "Whether admission writes gpuledger.dev/managed, which no node lists, on pods with cards: autoscalers neither "
        "evict these pods nor add nodes for them.",
    )
    volcano_pod_group_status: bool = option(
        False,
        "Whether the operator writes the status of Volcano's PodGroups, in place of Volcano's scheduler: Volcano's "
        "controller makes a Job's pods when that says so. Not beside that scheduler.",
    )
    keep_nodes_in_use: bool = option(
        False, "Whether nodes with pods on their cards carry the annotations by which autoscalers keep a node."
    )

    growth: str = option(
        "none",
        "How nodes are asked for when pods wait for cards: none, stand-ins (pods by which an autoscaler adds "
        "nodes), metric (gpuledger_nodes_wanted alone, for who adds nodes by other means).",
        choices=("none", "stand-ins", "metric"),
    )
    node_templates: tuple[NewNodes, ...] = option(
        (), "The nodes that can be added: docs/autoscaling.md has the fields.", rows=NewNodes
    )
    growth_delay_s: float = option(5.0, "How long a pod has waited before nodes are asked for.")
    growth_patience_s: float = option(
        900.0, "How long a stand-in may wait for its node; then others are tried, and this one later.", least=10
    )
    preemption_waits_for_nodes_s: float = option(
        0.0,
        "How long a pod or gang waits for nodes that are asked for before the operator evicts others; 0: not at all.",
    )

    node_policy: str = option(
        "fragmentation",
        "Which fitting node to prefer: fragmentation (what costs the expected pods least), binpack (fullest first), "
        "spread, topology-aware (smallest first).",
        choices=POLICIES,
    )
    card_policy: str = option(
        "fragmentation",
        "Which fitting cards of the node to prefer: fragmentation, binpack, spread, topology-aware (by links; nodes "
        "too, unless node_policy says another).",
        choices=POLICIES,
    )

    nodes_offered: int = option(
        1,
        "Fitting nodes offered to kube-scheduler, which applies a pod's soft preferences; 10 at most, 1: none.",
        least=1,
        most=10,
    )
    nominate_ahead_nodes: int = option(
        1_500, "Feasible nodes from which on queued pods are nominated before kube-scheduler asks for them; 0: never."
    )

    kopf_pods_most_nodes: int = option(
        100, "Nodes, counted at the start, up to which Kopf watches pods; beyond, the plain watch does; 0: never Kopf."
    )

    preemption: str = option(
        "auto",
        "Which program evicts pods of lower priority from cards: own (the operator), native (kube-scheduler, from "
        "Kubernetes 1.38 on), off; auto: by the API server's version.",
        choices=("auto", "own", "native", "off"),
    )
    preempt_despite_budgets: bool = option(
        False, "Evict pods that a PodDisruptionBudget protects if nothing else helps, as kube-scheduler does."
    )
    preemption_timeout_s: float = option(
        60.0, "How long room stays reserved for a pod after the pods evicted for it must have ended."
    )

    tell_waiting_after_s: float = option(
        10.0, "After how long a pod that fits on no node gets the reason as a condition and an Event; 0: never."
    )
    trail_kept: int = option(10_000, "Number of history records of pods' cards kept in memory.")
    usage_kept_days: int = option(
        90,
        "For how many days records of what namespaces held of GPUs (GPUUsage) are kept; 0: none are written.",
    )
    idle_policy: str = option(
        "report",
        "What becomes of shares that are idle for too long: report (its namespace is told), yield (and any pod that "
        "waits may have their pods evicted, whatever its priority), evict (and their pods are evicted). A Namespace's "
        "annotation gpuledger.dev/idle-policy comes first.",
        choices=IDLE_POLICIES,
    )
    idle_after_s: float = option(
        3600.0, "After how long without any use a share is idle for too long, by its node's agent; 0: never.", least=0
    )
    idle_grace_s: float = option(1800.0, "How long after that a pod yields or is evicted.")
    idle_keep_allowed: bool = option(
        True, "Whether pods with the annotation gpuledger.dev/idle: keep may stay, whatever the policy."
    )
    trail_file: str = option("", "File to which these records are appended as lines of JSON; -: standard output.")

    hold_ttl_s: float = option(30.0, "How long a chosen card stays on hold for a pod whose Bind request does not come.")
    bind_timeout_s: float = option(
        0.0, "After how long Bind gives up, less than extender_timeout_s; 0: after three quarters of it."
    )
    extender_timeout_s: int = option(60, "How long kube-scheduler waits for an answer.")
    gang_gather_s: float = option(
        20.0, "How long binds of a gang's members wait for each other; half of bind_timeout_s at most."
    )
    gang_replacement_s: float = option(
        30.0, "How long the place of a gang's member that has failed or was deleted is kept for another; 0: not at all."
    )
    gang_zones: tuple[str, ...] = option(
        (), "Labels of nodes that are close to each other, the narrowest first; a gang goes to as few zones as it can."
    )
    kueue: bool = option(False, "Whether to answer Kueue's admission checks of the controller gpuledger.dev/cards.")
    queue_words: bool = option(
        False, "Whether admission takes queues in Volcano's and KAI's words for LocalQueues of Kueue of the same names."
    )
    kueue_reserve_s: float = option(
        60.0,
        "How long cards are reserved for a workload of Kueue: until it is admitted, then until its pods come.",
    )
    kueue_retry_s: float = option(
        60.0,
        "After how long an admitted workload of which a pod finds no cards is evicted and queued again; 0: never.",
    )
    reservations: bool = option(True, "Whether GPUReservations keep cards for pods that are to come.")
    reservation_longest_s: float = option(
        86_400.0, "How long a GPUReservation lasts at most, from its creation, whatever it says; 0: as long as it says."
    )
    native_gangs: bool = option(
        False, "Whether gpuledger's kube-scheduler runs Kubernetes' own cycle for groups, which feature gates turn on."
    )
    resource_claims: bool = option(True, "Whether pods can bring ResourceClaims (Kubernetes 1.34 and later).")
    all_drivers_scheduler_name: str = option(
        "", "Another profile, for pods that bring claims of other drivers, too; needs resource_slices (1.36)."
    )
    plugin_timeout_s: float = option(
        20.0, "How long HAMi's or Volcano's device plugin may take to find a pod, while other pods of the node wait."
    )
    start_timeout_s: float = option(
        60.0, "After how long a node whose kubelet has not started a bound pod takes no more pods; 0: never."
    )
    release_delay_s: float = option(
        30.0, "How long, beyond its grace period, the shares of a deleted pod stay if its node reported nothing."
    )
    longest_release_s: float = option(3600.0, "How long they stay at most if no agent reports that the pod still runs.")
    resync_interval_s: float = option(
        300.0, "How often the operator compares its memory with full lists; it only reads."
    )

    agent_also_serves: tuple[str, ...] = option(
        (),
        "Beside resource_count, the other systems whose name for the number of cards the node agent serves: volcano, "
        "volcano-classic, koordinator.",
        choices=ALSO_SERVED,
    )
    volcano_capacity: bool = option(
        False, "Nodes of our agent show volcano_memory and volcano_cores of all their cards in their capacity."
    )
    resource_slices: bool = option(
        True, "Whether nodes of our agent show their cards as ResourceSlices, where resource_claims is true."
    )
    slots_per_card: int = option(
        10, "How many containers can have a part of a card at a time.", least=1, most=MAX_SLOTS
    )
    memory_scaling: float = option(
        1.0,
        "How much memory nodes of our agent give out of each card, as a multiple of what it has; nothing swaps.",
        least=0.01,
        most=100,
    )
    isolation: str = option(
        "auto",
        "How nodes isolate shares of a card: auto (by the driver, else by HAMi-core that an image brings, else none), "
        "none, mps, hami-core, driver, mig; node_config_file can set it per node.",
        choices=("auto", "none", "mps", "hami-core", "driver", "mig"),
    )
    reserved_memory: str = option(
        "auto",
        "Memory of a card that its driver keeps for itself: given to pods, or kept; auto: kept where isolation is "
        "driver.",
        choices=("auto", "given", "kept"),
    )
    unified_memory_mib: int = option(
        0,
        "Memory to offer of a card that has none of its own, as in GB10 and Jetson; 0: such a card is given as a whole "
        "only.",
    )
    memory_bursts: str = option(
        "never",
        "Where a pod's annotation gpuledger.dev/memory-limit may set a limit of memory above its share: never, where "
        "others keep their shares (guaranteed: by the driver), or where there are limits at all (any).",
        choices=("never", "guaranteed", "any"),
    )
    delivery: str = option(
        "cdi",
        "How containers get their cards: by CDI, or by directory for older runtimes.",
        choices=("cdi", "directory"),
    )
    cdi_directory: str = option("/var/run/cdi", "Where the container runtime of every node reads CDI files.")
    hami_core_directory: str = option("/usr/local/vgpu", "Where HAMi-core is installed on nodes that have it.")
    hami_core_image_directory: str = option("/hami-core", "Where an image brings HAMi-core, for the agent to install.")
    hami_core_sha256: tuple[str, ...] = option((), "The SHA-256 that HAMi-core's library may have; empty: any.")
    hami_core_policy: str = option(
        "default",
        "Whether HAMi-core limits cores: default (unless the node's monitor lifts it), force or disable.",
        choices=("default", "force", "disable"),
    )
    hami_core_log_level: int = option(
        -1, "How much HAMi-core logs in containers, from 0 to 4; -1: as each container says.", least=-1, most=4
    )
    mps_directory: str = option("/run/nvidia/mps", "Where MPS has its pipe/ and shm/ on nodes that run its daemon.")
    mps_daemon: bool = option(False, "Whether `gpuledger mps-daemon` runs MPS' daemons on nodes, and nobody else does.")
    mps_multiuser: bool = option(
        True, "Whether programs of different users share an MPS server; if not, those of another user wait."
    )
    mps_client_memory_percent: int = option(
        100,
        "Most memory of a card that one program may allocate under MPS, whatever its container says, in percent.",
        least=1,
        most=100,
    )
    mps_client_cores_percent: int = option(100, "The same of its cores.", least=1, most=100)
    monitor_interval_s: float = option(
        5.0,
        "How often the agent looks at the containers with HAMi-core: what they use, and who pauses by "
        "resource_priority; 0: never.",
    )
    devices_file: str = option("", "YAML file with a node's cards, in place of NVIDIA's driver.")
    fault_quiet_s: float = option(300.0, "How long after a critical fault (Xid) a working card stays out of service.")
    leave_failed_cards: tuple[str, ...] = option(
        ("lost", "reset"),
        "The classes of faults for which pods are evicted from a card: lost, reset, contained; none: pods stay.",
        choices=("lost", "reset", "contained"),
    )
    failure_grace_s: float = option(
        60.0, "How long after a card has failed its pods are evicted; of a lost one, after 10 s at most."
    )
    failure_longest_s: float = option(
        3600.0,
        "How long pods that ask for it (gpuledger.dev/on-card-failure) stay on a failed card at most.",
    )
    failure_despite_budgets: bool = option(
        False, "Evict pods from a lost card although a PodDisruptionBudget forbids it: their programs are dead."
    )
    failure_most_nodes: int = option(
        1, "If cards of more nodes fail within five minutes, no pod is evicted for it, and a person is needed.", least=1
    )
    failure_most_cards_percent: int = option(
        10, "The same for several cards, if they are more than this part of all.", least=1, most=100
    )
    ignored_xids: tuple[str, ...] = option(
        (), "More faults (Xid numbers) that programs cause themselves, beside the usual ones."
    )

    adopt_pods: bool = option(
        False, "Enter bound pods without shares from their annotation, which users can write: only while migrating."
    )
    conflict_policy: str = option(
        "report",
        "report: shares that do not fit on their card are listed; youngest-leaves: the pods bound last are evicted.",
        choices=("report", "youngest-leaves"),
    )

    listen_host: str = option("127.0.0.1", "Where the extender listens: kube-scheduler is in the same pod.")
    listen_port: int = option(8888, "Port of the extender: for kube-scheduler alone, which has a secret for it.")
    health_host: str = option("0.0.0.0", "Where /healthz, /readyz and /metrics listen.")  # noqa: S104 - they only tell
    health_port: int = option(8889, "Port of /healthz, /readyz and /metrics.")
    scheduler_livez_url: str = option(
        "https://127.0.0.1:10259/livez", "URL that /healthz/scheduler checks: kube-scheduler's health, in the same pod."
    )
    agent_health_host: str = option("0.0.0.0", "Where the node agent's probes and metrics listen.")  # noqa: S104
    agent_health_port: int = option(8890, "Port of the node agent's /healthz, /readyz and /metrics.")
    metrics_per_card: bool = option(
        True, "Show each card in /metrics; if false, only sums by model, namespace and phase."
    )
    metrics_per_pod: bool = option(True, "Show in /metrics what each pod holds of each card.")
    metrics_compatibility: tuple[str, ...] = option(
        (),
        "Show cards and pods under other systems' names too, for their dashboards: hami, hami-legacy, volcano.",
        choices=METRICS_COMPATIBILITY,
    )
    view_host: str = option("127.0.0.1", "Where the page listens; on any other address it requires tokens.")
    view_port: int = option(8891, "Port of the page, which also answers `explain` and `history`; 0: neither.")
    grafana_url: str = option(
        "", "Address of gpuledger's dashboard in Grafana, to which the page links, with the namespaces; empty: no link."
    )
    explain_port: int = option(
        8892, "Port on health_host where developers ask why their own pods wait, with a token; 0: none."
    )
    webhook_host: str = option("0.0.0.0", "Where the admission webhook listens.")  # noqa: S104 - it only judges
    webhook_port: int = option(0, "Port of the admission webhook; 0: no webhook.")
    webhook_cert_file: str = option("/webhook/tls.crt", "The webhook's certificate, PEM; read again when it changes.")
    webhook_key_file: str = option("/webhook/tls.key", "The key of that certificate, PEM.")

    @property
    def scheduler_names(self) -> tuple[str, ...]:
        """All names of schedulers that are ours."""
        all_drivers = (self.all_drivers_scheduler_name,) if self.all_drivers_scheduler_name else ()
        return (self.scheduler_name, *self.extra_scheduler_names, *all_drivers)

    @property
    def policies(self) -> tuple[str, str]:
        """How nodes are chosen and how cards are, each by the one word that placement has for it."""
        nodes, cards = (TOPOLOGY if each == TOPOLOGY_AWARE else each for each in (self.node_policy, self.card_policy))
        if cards == TOPOLOGY and nodes == Settings().node_policy:
            nodes = TOPOLOGY
        return nodes, cards

    @property
    def extender_url(self) -> str:
        """Where kube-scheduler finds the extender."""
        return f"http://{self.listen_host}:{self.listen_port}"

    @property
    def bind_answer_s(self) -> float:
        """After how long Bind sends no more Bindings: a while before kube-scheduler gives up."""
        return self.bind_timeout_s or 0.75 * self.extender_timeout_s

    @property
    def gather_s(self) -> float:
        """How long binds of a gang's members wait for each other; what is left is for their writes."""
        return min(self.gang_gather_s, self.bind_answer_s / 2)

    def changed(self, values: Mapping[str, object]) -> Settings:
        """Return the settings with some values replaced.

        Raises ValueError for a name that does not exist, a value of another kind, or values that contradict.
        """
        known = {option.name: option for option in fields(self)}
        wrong, good = list[str](), dict[str, Any]()
        for name, value in values.items():
            if name not in known:
                meant = did_you_mean(str(name), known) or f"; options are {', '.join(sorted(known))}"
                wrong.append(f"unknown option {name!r}{meant}")
                continue
            try:
                good[name] = checked(known[name], value)
            except ValueError as error:
                wrong.append(str(error))
        result = replace(self, **good)
        wrong += result._contradictions()
        if wrong:
            raise ValueError(f"settings: {wrong[0]}" if len(wrong) == 1 else "\n- ".join(["settings:", *wrong]))
        return result

    def _contradictions(self) -> Iterator[str]:
        """Yield what is wrong with values that are possible by themselves and not together, or a name that is none."""
        if not all(number.isdecimal() for number in self.ignored_xids):
            yield "ignored_xids is a list of numbers, each in quotes"
        if not all(re.fullmatch(_MODEL, each) for each in self.sum_models):
            yield "sum_models is a list of MODEL=MIB, such as Tesla-T4=15360"
        if not all(re.fullmatch("[0-9a-f]{64}", each) for each in self.hami_core_sha256):
            yield "hami_core_sha256 is a list of checksums of 64 digits, as sha256sum prints them"
        yield from self._wrong_together()
        yield from self._wrong_names()
        yield from self._wrong_templates()
        if self.node_label and not re.fullmatch(_LABEL, self.node_label):
            yield f"node_label is a label, key=value, not {self.node_label!r}"
        if self.node_taint and not re.fullmatch(f"{_LABEL}:(NoSchedule|PreferNoSchedule|NoExecute)", self.node_taint):
            yield f"node_taint is a taint, key=value:NoSchedule, not {self.node_taint!r}"
        if self.grafana_url and not re.fullmatch(_WEB_ADDRESS, self.grafana_url):
            yield f"grafana_url is an address, such as https://grafana.example.com/d/gpus, not {self.grafana_url!r}"
        for name in FROM_CONFIG_MAPS:
            try:
                config_map_name(getattr(self, name))
            except ValueError as error:
                yield f"{name}: {error}"
        if self.vendors_file.startswith(PREFIX):
            yield "vendors_file is the path of a file; mount the ConfigMap that holds it"

    def _wrong_together(self) -> Iterator[str]:
        if self.bind_timeout_s >= self.extender_timeout_s:
            yield "bind_timeout_s must be less than extender_timeout_s, or answers come too late"
        if self.adopt_pods and self.conflict_policy == "youngest-leaves":
            yield (
                "conflict_policy: youngest-leaves and adopt_pods exclude each other:"
                " an annotation, which users write, could evict pods of others"
            )

    def _wrong_templates(self) -> Iterator[str]:
        names = [each.name for each in self.node_templates]
        if len(set(names)) < len(names) or len(names) > MOST_TEMPLATES:
            yield f"node_templates are {MOST_TEMPLATES} at most, each with another name"
        if self.growth != "none" and not names:
            yield f"growth is {self.growth}, and node_templates does not say which nodes can be added"

    def _wrong_names(self) -> Iterator[str]:
        counts = {name for name in (self.resource_count, self.volcano_count, self.volcano_classic_count) if name}
        others = [name for option in RESOURCES if (name := getattr(self, option)) and not option.endswith("_count")]
        names = [*counts, *others]
        if len(set(names)) < len(names) or not all("/" in name for name in names):
            yield (
                "resource names must differ and have a domain, such as nvidia.com/gpu; only the names of counts may be "
                "the same"
            )
        if not self.resource_count:
            yield "resource_count is the name that our own node agent serves; it can't be empty"
        profiles = self.scheduler_names
        if len(set(profiles)) < len(profiles) or "default-scheduler" in profiles or not all(profiles):
            yield "scheduler names must differ, and none can be default-scheduler, which is the cluster's own"


_WEB_ADDRESS = r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[^\s#\"'<>\\]*)?"
_MODEL = r"[^=]{1,253}=[1-9][0-9]{0,8}"
_LABEL = r"[A-Za-z0-9./_-]{1,316}=[A-Za-z0-9._-]{0,63}"

RESOURCES = (
    "resource_count",
    "resource_memory",
    "resource_memory_percentage",
    "resource_cores",
    "resource_priority",
    "volcano_count",
    "volcano_memory",
    "volcano_memory_percentage",
    "volcano_cores",
    "volcano_classic_count",
    "volcano_classic_memory",
)
"""The options that are names of resources. An empty one does not exist."""


_KINDS = {str: "str", int: "int", float: "float", bool: "bool", tuple: "list of str"}


def adapter_of(option: Option[Any]) -> TypeAdapter[Any]:
    """Return what checks a value of an option, and knows its JSON schema."""
    metadata, kind = option.metadata, type(option.default)
    wanted: Any = kind
    if kind in (str, tuple):
        word: Any = metadata["rows"] or (Literal[metadata["choices"]] if metadata["choices"] else str)
        wanted = word if kind is str else tuple[word, ...]
    elif kind in (int, float):
        wanted = Annotated[wanted, Field(ge=metadata["least"], le=metadata["most"])]
    return TypeAdapter(wanted) if metadata["rows"] else TypeAdapter(wanted, config=ConfigDict(strict=True))


def checked(option: Option[Any], value: object) -> Any:
    """Return a value as the settings have it: a list as a tuple, a whole number of seconds as a float.

    Raises ValueError, which says what it must be.
    """
    try:
        return adapter_of(option).validate_python(tuple(value) if isinstance(value, list) else value)
    except ValidationError as error:
        broken = error.errors()[0]
        if option.metadata["rows"]:
            where = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in broken["loc"])
            raise ValueError(f"{option.name}{where}: {broken['msg']}") from error
        word = broken["input"] if broken["type"] == "literal_error" else ""
        meant = did_you_mean(word, option.metadata["choices"]) if isinstance(word, str) else ""
        raise ValueError(f"{option.name} {_rule(option, broken)}, not {value!r}{meant}") from error


def _rule(option: Option[Any], broken: ErrorDetails) -> str:
    metadata, kind = option.metadata, type(option.default)
    if broken["type"] == "literal_error" and isinstance(broken["input"], str):
        words = ", ".join(metadata["choices"])
        return f"is a list of {words}" if kind is tuple else f"must be one of {words}"
    if broken["type"] == "greater_than_equal":
        return f"is {metadata['least']} at least"
    if broken["type"] == "less_than_equal":
        return f"is {metadata['most']} at most"
    return f"must be a {_KINDS[kind]}"
