"""The agent's configuration, from the settings and from its Node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpuledger.agent.devices.health import HealthPolicy
from gpuledger.agent.devices.nvml import NvmlSource
from gpuledger.agent.devices.source import DeviceSource
from gpuledger.agent.devices.yaml_source import YamlSource
from gpuledger.agent.isolation.choice import Bursts, HamiCore, Isolation
from gpuledger.agent.isolation.driver_limits import ControlGroups
from gpuledger.configuration.dialects import dialects_of
from gpuledger.configuration.files import nodes_config
from gpuledger.configuration.settings import ALSO_SERVED, Settings
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.model.card import Card
from gpuledger.model.errors import BadInput
from gpuledger.model.node import NodeConfig
from gpuledger.model.request import ANY_NVIDIA

AUTO = "auto"

DRIVER_INTERVAL_S = 30.0
"""How often the driver is asked for all cards; faults tell of themselves."""

FILE_INTERVAL_S = 2.0
"""How often a file with cards is looked at; one that has not changed is not read."""


@dataclass(frozen=True, slots=True)
class CapacityNames:
    """The resources that stand for all memory and cores of a node's cards, as Volcano's device plugin shows them."""

    memory: str
    memory_unit_mib: int
    cores: str

    def amounts(self, cards: Iterable[Card]) -> dict[str, int]:
        """Return the amounts for these cards: NVIDIA's, whether they work or not. A name that is empty has none."""
        ours = [card.capacity for card in cards if card.vendor == ANY_NVIDIA.vendor]
        found = {
            self.memory: sum(each.memory_mib for each in ours) // self.memory_unit_mib,
            self.cores: sum(each.cores for each in ours),
        }
        return {name: amount for name, amount in found.items() if name}


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """All that an agent has to know before it starts."""

    node_name: str
    resources: Mapping[str, tuple[str, ...]]
    """Vendor of a card -> the count resources by which pods ask for such cards."""
    config: NodeConfig
    isolation: Isolation | None
    """None: what fits the node, whichever that is at the moment."""
    health: HealthPolicy = field(default_factory=HealthPolicy)
    poll_interval_s: float = DRIVER_INTERVAL_S
    with_cdi: bool = True
    cdi_directory: Path = Path("/var/run/cdi")
    vendor_cdi_directories: tuple[Path, ...] = (Path("/etc/cdi"), Path("/var/run/cdi"))
    kubelet_directory: Path = Path("/var/lib/kubelet")
    state_directory: Path = Path("/var/lib/gpuledger")
    hami_core_directory: str = ""
    hami_core_image_directory: Path = Path("/hami-core")
    hami_core_sha256: tuple[str, ...] = ()
    hami_core: HamiCore = field(default_factory=HamiCore)
    mps_directory: str = ""
    reserved_memory: str = AUTO
    """Whether what the driver itself takes of a card's memory is `given` to pods, or `kept`."""
    bursts: Bursts = Bursts.NEVER
    mps_daemon: bool = False
    """Whether `gpuledger mps-daemon` runs the MPS daemons."""
    priority_resource: str = ""
    monitor_interval_s: float = 5.0
    """How often containers' shared regions are looked at; 0: never."""
    idle_after_s: float = 0.0
    """After so long without use a share is idle for too long; 0: that does not matter."""
    metrics_compatibility: tuple[str, ...] = ()
    """Systems under whose names there are metrics, too."""
    serves_claims: bool = False
    """Whether ResourceClaims get cards, where the kubelet has them."""
    capacity: CapacityNames | None = None
    """The names under which the Node's capacity shows the amounts of all cards; None if it does not."""
    resource_slices: bool = False
    """Whether the cards are shown as ResourceSlices."""
    own_pod_uid: str = ""
    """Empty for an agent that is a process of its node."""
    health_host: str = "0.0.0.0"  # noqa: S104 - it only tells
    health_port: int = 8890

    def keeps_reserved_memory(self, isolation: Isolation) -> bool:
        """Return whether what the driver itself takes of a card's memory is not given away."""
        return self.reserved_memory == "kept" or (self.reserved_memory == AUTO and isolation is Isolation.DRIVER)

    def config_for(self, isolation: Isolation) -> NodeConfig:
        """Return the configuration of a node whose shares are kept apart in this way at the moment."""
        return self.config if self.isolation is not None else replace(self.config, mode=str(isolation))


def agent_config(settings: Settings, node_name: str, kubelet_directory: Path, own_pod_uid: str = "") -> AgentConfig:
    """Return the plan for a node. Raises BadInput if the settings can't be used, or its mode can't be had."""
    config, dialects = nodes_config(settings).of(node_name), dialects_of(settings)
    vendors = {each.vendor for each in dialects.vocabularies}
    mode = config.mode or settings.isolation
    if mode not in {AUTO, *Isolation}:
        raise BadInput(f"node {node_name}: there is no mode {mode!r}; modes are {AUTO}, {', '.join(Isolation)}")
    if settings.delivery != "cdi" and mode in (Isolation.MPS, Isolation.HAMI_CORE, Isolation.DRIVER):
        raise BadInput(f"node {node_name}: {mode} needs CDI: set delivery to cdi")
    # MIG devices say themselves what they are; what is not cut into any has nothing to keep shares apart.
    isolation = Isolation.NONE if mode == Isolation.MIG else None if mode == AUTO else Isolation(mode)
    if isolation is None and (settings.delivery != "cdi" or settings.devices_file):
        mode = isolation = Isolation.NONE  # all that fits such a node: no hooks there, or no driver of NVIDIA's
    log_level = settings.hami_core_log_level if config.log_level is None else config.log_level
    return AgentConfig(
        node_name=node_name,
        resources={vendor: served_counts(settings, dialects, vendor) for vendor in vendors},
        poll_interval_s=FILE_INTERVAL_S if settings.devices_file else DRIVER_INTERVAL_S,
        config=replace(config, mode=mode),
        isolation=isolation,
        health=HealthPolicy(settings.fault_quiet_s).ignoring(map(int, settings.ignored_xids)),
        with_cdi=settings.delivery == "cdi",
        cdi_directory=Path(settings.cdi_directory),
        kubelet_directory=kubelet_directory,
        hami_core_directory=settings.hami_core_directory,
        hami_core_image_directory=Path(settings.hami_core_image_directory),
        hami_core_sha256=settings.hami_core_sha256,
        hami_core=HamiCore(
            core_policy=settings.hami_core_policy,
            oversubscribed=config.memory_scaling > 1,
            log_level="" if log_level < 0 else str(log_level),
        ),
        mps_directory=settings.mps_directory,
        reserved_memory=settings.reserved_memory,
        bursts=Bursts(settings.memory_bursts),
        mps_daemon=settings.mps_daemon,
        priority_resource=settings.resource_priority,
        monitor_interval_s=settings.monitor_interval_s,
        idle_after_s=settings.idle_after_s,
        metrics_compatibility=settings.metrics_compatibility,
        serves_claims=settings.resource_claims and settings.delivery == "cdi",
        capacity=_capacity_names(settings),
        resource_slices=settings.resource_claims and settings.resource_slices,
        own_pod_uid=own_pod_uid,
        health_host=settings.agent_health_host,
        health_port=settings.agent_health_port,
    )


def served_counts(settings: Settings, dialects: Dialects, vendor: str) -> tuple[str, ...]:
    """Return the counts that an agent serves of a vendor's cards.

    Of NVIDIA's, those that the settings ask for: each name would show the same slots once more.
    """
    left_out = {*ALSO_SERVED} - {*settings.agent_also_serves}
    chosen = (each for each in dialects.vocabularies if each.vendor == vendor and each.name not in left_out)
    return tuple(dict.fromkeys(each.count for each in chosen if each.count))


def _capacity_names(settings: Settings) -> CapacityNames | None:
    if not settings.volcano_capacity:
        return None
    return CapacityNames(settings.volcano_memory, settings.volcano_memory_unit_mib, settings.volcano_cores)


def device_source(settings: Settings) -> DeviceSource:
    """Return where this node's cards are read."""
    if settings.devices_file:
        return YamlSource(Path(settings.devices_file))
    return NvmlSource(groups=ControlGroups(), unified_memory_mib=settings.unified_memory_mib)
