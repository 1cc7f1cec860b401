"""The inventory of this machine is what nvidia-smi shows of it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("print_inventory.py")
FIELDS = ("index", "uuid", "name", "memory.total", "pci.bus_id", "driver_version", "mig.mode.current")
PCIE_SCORES = {"SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50}

Json = dict[str, Any]


def nvidia_smi(*arguments: str) -> str:
    found = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, check=True, timeout=60)
    return re.sub(r"\x1b\[[0-9;]*m", "", found.stdout)  # topo -m underlines its header


@pytest.fixture(scope="module")
def inventory() -> Json:
    command = [sys.executable, str(PROGRAM)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert found.returncode == 0, found.stderr
    result: Json = json.loads(found.stdout)
    return result


@pytest.fixture(scope="module")
def queried() -> list[dict[str, str]]:
    """Return what `--query-gpu` says of each physical card."""
    lines = nvidia_smi(f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits").splitlines()
    return [dict(zip(FIELDS, [cell.strip() for cell in line.split(",")], strict=True)) for line in lines if line]


def whole_cards(inventory: Json) -> dict[str, Json]:
    return {device["uuid"]: device for device in inventory["devices"] if not device["mode"]}


def test_the_cards_are_those_of_the_list(inventory: Json, queried: list[dict[str, str]]) -> None:
    cards: dict[str, tuple[int, str]] = {}
    mig_devices: dict[str, str] = {}  # UUID -> that of the card
    parent = ""
    for line in nvidia_smi("-L").splitlines():
        if card := re.match(r"GPU (\d+): (.+) \(UUID: (\S+)\)", line):
            parent = card[3]
            cards[parent] = (int(card[1]), card[2])
        elif mig := re.match(r"\s+MIG .+\(UUID: (\S+)\)", line):
            mig_devices[mig[1]] = parent
    cut = {row["uuid"] for row in queried if row["mig.mode.current"] == "Enabled"}
    unified = {row["uuid"] for row in queried if not row["memory.total"].isdigit()}
    listed = {uuid: (device["index"], device["model"]) for uuid, device in whole_cards(inventory).items()}
    assert listed == {uuid: card for uuid, card in cards.items() if uuid not in cut | unified}
    assert {device["uuid"]: device["parent_uuid"] for device in inventory["devices"] if device["mode"]} == mig_devices


def test_memory_address_and_versions_are_those_of_the_query(inventory: Json, queried: list[dict[str, str]]) -> None:
    for row in queried:
        device = whole_cards(inventory).get(row["uuid"])
        if device is not None:
            assert device["memory_mib"] == int(row["memory.total"])
            assert device["bus_id"] == row["pci.bus_id"].lower()[-len("0000:00:00.0") :]
        assert inventory["driver"] == row["driver_version"]
    cuda = re.search(r"CUDA Version\s*:\s*([\d.]+)", nvidia_smi("-q", "-d", "MEMORY"))
    assert cuda is None or inventory["cuda"] == cuda[1]
    print(f"\n{len(inventory['devices'])} cards, driver {inventory['driver']}, CUDA {inventory['cuda']}")  # noqa: T201


def test_links_and_numa_nodes_are_those_of_the_topology(inventory: Json, queried: list[dict[str, str]]) -> None:
    uuid_of = {f"GPU{row['index']}": row["uuid"] for row in queried}
    cards = whole_cards(inventory)
    rows = [[cell.strip() for cell in line.split("\t")] for line in nvidia_smi("topo", "-m").splitlines()]
    header = next(row for row in rows if row[:1] == [""] and any(cell.startswith("GPU") for cell in row))
    for row in rows:
        card = cards.get(uuid_of.get(row[0], ""))
        if card is None or len(row) < 2:
            continue
        for column, shown in zip(header[1:], row[1:], strict=False):
            if column in uuid_of and column != row[0] and uuid_of[column] in cards:
                assert_score(card["links"].get(uuid_of[column], 0), shown)
            elif column == "NUMA Affinity" and shown.isdigit():
                assert card["numa_node"] == int(shown)


def assert_score(score: int, shown: str) -> None:
    """Compare with a cell of the matrix; where there are NVLinks, it does not show the way over PCIe."""
    if nvlinks := re.fullmatch(r"NV(\d+)", shown):
        assert score // 100 == int(nvlinks[1])
        assert score % 100 in {*PCIE_SCORES.values(), 60}
    else:
        assert score == PCIE_SCORES[shown]


def test_the_cards_of_this_machine_work(inventory: Json) -> None:
    """A card that is broken fails here rather than in a test that looks for something else."""
    assert [(device["uuid"], device["fault"]) for device in inventory["devices"] if device["fault"]] == []
