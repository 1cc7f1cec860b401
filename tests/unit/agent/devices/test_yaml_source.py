"""Cards from a file: read anew when it changes, and a bad version harms nobody."""

import logging
from pathlib import Path

import pytest

from gpuledger.agent.devices.source import Device, DeviceUses
from gpuledger.agent.devices.yaml_source import YamlSource
from gpuledger.model.errors import BadInput

TWO_CARDS = """
driverVersion: "1.2"
cards:
  - {uuid: NPU-0, memoryMiB: 65536, vendor: ascend, model: 910B3, numaNode: 0, links: {NPU-1: 100}, number: 4,
     pcieRoot: "pci0000:16"}
  - {uuid: NPU-1, memoryMiB: 65536}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cards.yaml"
    path.write_text(TWO_CARDS)
    return path


@pytest.fixture
def source(file: Path) -> YamlSource:
    source = YamlSource(file)
    source.open()
    return source


def replace_file(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def test_a_card_is_what_the_file_says_and_the_rest_has_defaults(source: YamlSource) -> None:
    snapshot = source.snapshot()
    assert snapshot.driver_version == "1.2"
    assert snapshot.devices == (
        Device("NPU-0", 0, "910B3", 65536, "ascend", 0, "pci0000:16", links={"NPU-1": 100}, number=4),
        Device("NPU-1", 1, "", 65536),
    )


@pytest.mark.parametrize(
    ("said", "fault"),
    [("healthy: false", "the file marks it as unhealthy"), ("fault: dust", "dust"), ("healthy: true", "")],
)
def test_a_card_is_out_when_the_file_says_so(source: YamlSource, file: Path, said: str, fault: str) -> None:
    replace_file(file, f"cards: [{{uuid: NPU-0, memoryMiB: 1, {said}}}]")
    (device,) = source.snapshot().devices
    assert device.fault == fault


BAD_FILES = [
    ("cards: [", "is not YAML"),
    ("- uuid: NPU-0", "Input should be"),
    ("cards: [{uuid: NPU-0}]", "cards.0.memoryMiB: Field required"),
    ("cards: [{uuid: NPU-0, memoryMiB: 0}]", "cards.0.memoryMiB: Input should be greater than"),
    ("cards: [{uuid: NPU-0, memoryMiB: '1'}]", "cards.0.memoryMiB: Input should be a valid integer"),
    ("cards: [{uuid: a b, memoryMiB: 1}]", "cards.0.uuid: String should match"),
    ("cards: [{uuid: a, memoryMiB: 1, memory: 1}]", "cards.0.memory: Extra inputs"),
    ("cards: [{uuid: a, memoryMiB: 1}, {uuid: A, memoryMiB: 1}]", "cards.1: UUID A is that of cards.0, too"),
    ("cards: [{uuid: a, memoryMiB: 1, index: 1}, {uuid: b, memoryMiB: 1}]", "cards.1: index 1 is that of cards.0"),
]


@pytest.mark.parametrize(("text", "message"), BAD_FILES)
def test_a_bad_file_is_refused_at_first_with_where_and_why(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(BadInput) as refused:
        YamlSource(file).open()
    assert str(refused.value).startswith(str(file))
    assert message in str(refused.value)


@pytest.mark.parametrize(("text", "message"), BAD_FILES)
def test_a_file_that_turns_bad_leaves_the_cards_as_they_are_and_is_said_once(
    source: YamlSource, file: Path, text: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = source.snapshot()
    replace_file(file, text)
    assert source.snapshot() == source.snapshot() == before
    (record,) = (record for record in caplog.records if record.levelno >= logging.ERROR)
    assert message in record.getMessage()
    replace_file(file, "cards: []")
    assert source.snapshot().devices == ()


def test_a_file_that_goes_leaves_the_cards_as_they_are(
    source: YamlSource, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = source.snapshot()
    file.unlink()
    assert source.snapshot() == source.snapshot() == before
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    file.write_text("cards: []")
    assert source.snapshot().devices == ()


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_can_not_be_read_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "absent.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadInput, match=r"absent\.yaml"):
        YamlSource(file).open()


def test_a_file_has_no_faults_of_its_own_and_no_processes(source: YamlSource) -> None:
    assert list(source.wait_for_faults(0.01)) == []
    assert source.uses() == DeviceUses()
    source.close()
