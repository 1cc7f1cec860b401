"""Settings and the files of other systems that they name never disagree in silence."""

from pathlib import Path
from typing import Any

import pytest

from gpuledger.agent.simulated import fake_nodes
from gpuledger.configuration.dialects import dialects_of
from gpuledger.configuration.files import nodes_config, with_config_files
from gpuledger.configuration.settings import Settings
from gpuledger.model.errors import BadInput


def settings_of(**values: Any) -> Settings:
    values = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
    return with_config_files(Settings().changed(values), values)


def written(directory: Path, text: str, name: str = "file") -> Path:
    file = directory / name
    file.write_text(text)
    return file


def test_the_compatible_set_up_comes_from_volcanos_own_file(tmp_path: Path) -> None:
    file = written(tmp_path, "nvidia: {resourceCountName: nvidia.com/gpu}")
    settings = settings_of(volcano_config_file=file)
    assert settings.volcano_count == "nvidia.com/gpu"
    dialects = dialects_of(settings)
    assert {each.count for each in dialects.registers if each.dialect == "volcano"} == {"nvidia.com/gpu"}
    assert "volcano.sh/vgpu-number" not in dialects.resources()


def test_both_systems_files_go_together(tmp_path: Path) -> None:
    hami = written(tmp_path, "nvidia: {memoryFactor: 4}", "hami")
    volcano = written(tmp_path, "nvidia: {gpuMemoryFactor: 8}", "volcano")
    settings = settings_of(hami_config_file=hami, volcano_config_file=volcano)
    assert (settings.resource_memory_unit_mib, settings.volcano_memory_unit_mib) == (4, 8)


def test_a_setting_that_says_the_same_is_no_contradiction(tmp_path: Path) -> None:
    file = written(tmp_path, "nvidia: {defaultCores: 10}")
    assert settings_of(hami_config_file=file, default_cores=10).default_cores == 10


def test_a_setting_and_a_file_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path, "nvidia: {defaultCores: 10}")
    with pytest.raises(BadInput) as caught:
        settings_of(hami_config_file=file, default_cores=20)
    assert str(caught.value) == ("settings: default_cores is 20 in the settings and 10 in hami_config_file: keep one")


def test_two_files_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    hami = written(tmp_path, "nvidia: {defaultCores: 10}", "hami")
    volcano = written(tmp_path, "nvidia: {defaultCores: 20}", "volcano")
    with pytest.raises(BadInput, match="10 in hami_config_file and 20 in volcano_config_file"):
        settings_of(hami_config_file=hami, volcano_config_file=volcano)


@pytest.mark.parametrize("option", ["hami_config_file", "volcano_config_file"])
def test_a_file_that_can_not_be_read_is_named(option: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"settings: {option}: .*nowhere"):
        settings_of(**{option: tmp_path / "nowhere"})


def test_simulated_nodes_offer_their_cards_as_the_files_say(tmp_path: Path) -> None:
    everywhere = written(tmp_path, "nvidia: {deviceSplitCount: 4}")
    nodes = written(tmp_path, '{"nodeconfig": [{"name": "n-2", "devicememoryscaling": 2}]}', "nodes")
    configs = nodes_config(settings_of(volcano_config_file=everywhere, node_config_file=nodes))
    first, second = fake_nodes("n", 2, 1, "RTX-4090", configs=configs)
    assert [(card.capacity.memory_mib, card.capacity.number) for node in (first, second) for card in node.cards] == [
        (24_564, 4),
        (49_128, 4),
    ]


def test_slots_and_scaling_are_settings_and_a_node_s_own_count_there(tmp_path: Path) -> None:
    nodes = written(tmp_path, '{"nodeconfig": [{"name": "n-2", "devicesplitcount": 5}]}', "nodes")
    configs = nodes_config(Settings(slots_per_card=20, memory_scaling=1.5, node_config_file=str(nodes)))
    assert [(found.split_count, found.memory_scaling) for found in map(configs.of, ("n-1", "n-2"))] == [
        (20, 1.5),
        (5, 1.5),
    ]


@pytest.mark.parametrize(
    ("option", "ours", "text"),
    [("slots_per_card", 20, "deviceSplitCount: 4"), ("memory_scaling", 2.0, "deviceMemoryScaling: 1.5")],
)
def test_slots_and_scaling_in_two_places_that_contradict_each_other_are_refused(
    tmp_path: Path, option: str, ours: float, text: str
) -> None:
    file = str(written(tmp_path, f"nvidia: {{{text}}}"))
    said = {"hami_config_file": file, option: ours}
    with pytest.raises(BadInput, match=rf"{option} is {ours} in the settings and .* in hami_config_file: keep one"):
        with_config_files(Settings().changed(said), said)
    assert getattr(with_config_files(Settings().changed({"hami_config_file": file}), {}), option) != ours


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"slots_per_card": 0}, "slots_per_card is 1 at least"),
        ({"slots_per_card": 1025}, "slots_per_card is 1024 at most"),
        ({"memory_scaling": 0}, "memory_scaling is 0.01 at least"),
        ({"memory_scaling": 101}, "memory_scaling is 100 at most"),
        ({"memory_scaling": float("nan")}, "memory_scaling"),
    ],
)
def test_slots_and_scaling_have_bounds(values: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^settings: {sentence}"):
        Settings().changed(values)
