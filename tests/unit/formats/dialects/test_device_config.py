"""HAMi's and Volcano's ConfigMaps load as they are: every key has its default, or is named as without effect."""

from dataclasses import replace
from typing import Any

import pytest
import yaml

from builders import a_card, cards_of
from gpuledger.configuration.settings import Settings
from gpuledger.formats.dialects.vendors import NOT_SUPPORTED, device_config, node_configs
from gpuledger.model.errors import BadInput
from gpuledger.model.node import NodeConfig

GUIDE = """
nvidia:
  resourceCountName: volcano.sh/vgpu-number
  resourceMemoryName: volcano.sh/vgpu-memory
  resourceMemoryPercentageName: volcano.sh/vgpu-memory-percentage
  resourceCoreName: volcano.sh/vgpu-cores
  overwriteEnv: false
  defaultMemory: 0
  defaultCores: 0
  defaultGPUNum: 1
  deviceSplitCount: 10
  deviceMemoryScaling: 1
  deviceCoreScaling: 1
  gpuMemoryFactor: 1
  knownMigGeometries: []
"""


def config_map(key: str, content: str) -> str:
    return yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {key: content}})


@pytest.mark.parametrize("text", [GUIDE, config_map("device-config.yaml", GUIDE)])
def test_the_guides_configuration_is_what_we_have_by_default(text: str) -> None:
    found = device_config(text, "volcano", "file")
    assert found.settings == {
        "volcano_count": "volcano.sh/vgpu-number",
        "volcano_memory": "volcano.sh/vgpu-memory",
        "volcano_memory_percentage": "volcano.sh/vgpu-memory-percentage",
        "volcano_cores": "volcano.sh/vgpu-cores",
        "volcano_memory_unit_mib": 1,
        "default_gpus": 1,
        "default_memory_mib": 0,
        "default_cores": 0,
        "slots_per_card": 10,
        "memory_scaling": 1.0,
        "overwrite_env": False,
    }
    assert found.nodes is not None
    assert found.nodes.of("any") == NodeConfig()
    assert [sentence.split(":")[0] for sentence in found.not_supported] == ["nvidia.knownMigGeometries"]


@pytest.mark.parametrize("system", ["hami", "volcano"])
def test_keys_that_are_missing_have_their_documented_defaults(system: str) -> None:
    found = device_config("nvidia: {}", system, "file")
    assert found.nodes is not None
    assert found.nodes.everywhere == NodeConfig(split_count=10, memory_scaling=1.0, core_scaling=1.0)
    assert (found.settings["default_gpus"], found.not_supported) == (1, ())


def test_hamis_names_and_factor_go_into_our_settings() -> None:
    text = "nvidia: {resourceCountName: example.com/gpu, memoryFactor: 1024, defaultCores: 30, defaultMemory: 500}"
    found = device_config(text, "hami", "file").settings
    assert (found["resource_count"], found["resource_memory_unit_mib"]) == ("example.com/gpu", 1024)
    assert (found["default_cores"], found["default_memory_mib"]) == (30, 500)


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("{disableCoreLimit: true}", {"hami_core_policy": "disable"}),
        ("{disableCoreLimit: false}", {}),
        ("{disableCoreLimit: true, gpuCorePolicy: default}", {"hami_core_policy": "disable"}),
        (
            "{disableCoreLimit: true, gpuCorePolicy: force}",
            {"hami_core_policy": "force"},
        ),  # a container's variable wins
        ("{gpuCorePolicy: force}", {"hami_core_policy": "force"}),
        ("{gpuCorePolicy: ''}", {}),
        ("{libCudaLogLevel: 0}", {"hami_core_log_level": 0}),
    ],
)
@pytest.mark.parametrize("system", ["hami", "volcano"])
def test_what_is_said_of_the_library_in_containers_goes_into_our_settings(
    system: str, text: str, settings: dict[str, object]
) -> None:
    found = device_config(f"nvidia: {text}", system, "file")
    assert {name: value for name, value in found.settings.items() if name.startswith("hami_core")} == settings
    assert found.not_supported == ()
    Settings().changed(found.settings)


@pytest.mark.parametrize("key", sorted(NOT_SUPPORTED))
def test_a_key_without_effect_is_named_with_what_to_know_instead(key: str) -> None:
    (sentence,) = device_config(f"nvidia: {{{key}: x}}", "hami", "file").not_supported
    assert sentence == f"nvidia.{key}: {NOT_SUPPORTED[key]}"


def test_unknown_keys_and_other_vendors_blocks_are_named_too() -> None:
    one, other = device_config("{nvidia: {colour: x}, hygon: {}}", "hami", "file").not_supported
    assert one == "nvidia.colour: this key is not known"
    assert other.startswith("hygon: resources of other vendors are rows of the table")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "file is no configuration"),
        ("[]", "file is no configuration"),
        ("{", "file is not YAML"),
        ("amd: {}", "file has no block `nvidia`"),
        ("nvidia: []", "file has no block `nvidia`"),
        ("nvidia: {deviceSplitCount: 0}", "file, nvidia, deviceSplitCount: Input should be greater than or equal to 1"),
        ("nvidia: {deviceSplitCount: many}", "file, nvidia, deviceSplitCount: Input should be a valid integer"),
        ("nvidia: {deviceMemoryScaling: -1}", "file, nvidia, deviceMemoryScaling: Input should be greater than 0"),
        ("nvidia: {resourceCountName: 7}", "file, nvidia, resourceCountName: Input should be a valid string"),
        ("{kind: ConfigMap, data: {other: x}}", "file: the ConfigMap has no device-config.yaml"),
        ("{kind: ConfigMap}", "file: the ConfigMap has no device-config.yaml"),
        (config_map("device-config.yaml", "{"), "file, device-config.yaml is not YAML"),
    ],
)
def test_what_can_not_be_used_is_refused_with_its_place(text: str, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        device_config(text, "hami", "file")
    assert str(caught.value).startswith(sentence)


NODES = """{"nodeconfig": [
  {"name": "a", "operatingmode": "mig", "devicesplitcount": 7, "migstrategy": "none",
   "filterdevices": {"uuid": ["GPU-x"], "index": [0]}, "libcudaloglevel": 0},
  {"name": "b", "devicememoryscaling": 1.8, "devicecorescaling": 2}
]}"""


@pytest.mark.parametrize("text", [NODES, config_map("config.json", NODES)])
def test_a_nodes_overrides_go_before_what_holds_everywhere(text: str) -> None:
    found, ignored = node_configs(text, NodeConfig(split_count=4), "file")
    assert found.of("a") == NodeConfig(7, 1.0, 1.0, "mig", frozenset({"GPU-x"}), frozenset({0}), 0)
    assert found.of("b") == NodeConfig(4, 1.8, 2.0)
    assert found.of("c") == NodeConfig(split_count=4)
    assert ignored == ("nodeconfig a, migstrategy: not supported",)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{}", "file, nodeconfig: Field required"),
        ('{"nodeconfig": [{}]}', "file, nodeconfig.0.name: Field required"),
        ('{"nodeconfig": [{"name": "a"}, {"name": "a"}]}', "file: a node is listed twice"),
        (
            '{"nodeconfig": [{"name": "a", "operatingmode": "fast"}]}',
            "file, nodeconfig.0.operatingmode: Input should be",
        ),
    ],
)
def test_nodes_that_can_not_be_used_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        node_configs(text, NodeConfig(), "file")
    assert str(caught.value).startswith(sentence)


def totals(config: NodeConfig, **card: Any) -> tuple[int, int, int]:
    offered = config.offered(cards_of(count=8, **card))
    amounts = [each.capacity for each in offered]
    return sum(a.cores for a in amounts), sum(a.memory_mib for a in amounts), sum(a.number for a in amounts)


def test_the_guides_arithmetic() -> None:
    """Eight cards of 24564 MiB, ten splits: 800 cores, 196512 MiB, 80 slots."""
    assert totals(NodeConfig(), memory_mib=24_564) == (800, 196_512, 80)


def test_scaling_is_applied_once_and_rounded_down() -> None:
    assert totals(NodeConfig(memory_scaling=1.1, core_scaling=1.5, split_count=4), memory_mib=24_564) == (
        8 * 150,
        8 * 27_020,
        8 * 4,
    )


def test_a_gpu_that_is_to_be_cut_is_not_scaled_and_hidden_cards_are_not_offered() -> None:
    one, two, *_ = cards_of()
    config = NodeConfig(
        memory_scaling=2.0, mode="mig", hidden_uuids=frozenset({one.uuid}), hidden_indexes=frozenset({7})
    )
    offered = config.offered(cards_of())
    assert [card.index for card in offered] == [1, 2, 3, 4, 5, 6]
    assert (offered[0].capacity, offered[0].mode) == (two.capacity, "mig-parent")


def test_a_mig_device_stays_as_it_is_whatever_the_node_does_with_its_cards() -> None:
    device = replace(a_card(0, uuid="MIG-0", memory_mib=5_000, number=1), mode="mig")
    assert NodeConfig(split_count=10, memory_scaling=2.0, mode="hami-core").offered([device]) == (device,)
