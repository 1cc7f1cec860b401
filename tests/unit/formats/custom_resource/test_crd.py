"""The CRD in crds/ is what the models say, and a schema that the API server takes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuledger.formats.custom_resource.crd import as_yaml, custom_resource_definition, structural
from gpuledger.formats.custom_resource.gpu_allocation import GPUAllocation, wire_name
from gpuledger.model.card import CardPhase
from gpuledger.model.share import HolderState

Json = dict[str, Any]

FILE = Path(__file__).parents[4] / "crds" / "gpuledger.dev_gpuallocations.yaml"


def root_schema() -> Json:
    (version,) = custom_resource_definition()["spec"]["versions"]
    schema: Json = version["schema"]["openAPIV3Schema"]
    return schema


def walk(schema: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Yield every schema inside this one with its path."""
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from walk(field, f"{path}.{name}")
    for nested, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if nested in schema:
            yield from walk(schema[nested], path + mark)


SCHEMAS = dict(walk(root_schema()))  # path -> schema


def test_the_file_in_crds_is_what_the_models_say() -> None:
    assert FILE.read_text() == as_yaml(), f"{FILE.name} is older than the models: run `make generate` and commit it"


def test_the_file_reads_back_as_the_definition() -> None:
    assert yaml.safe_load(as_yaml()) == custom_resource_definition()


def test_strings_numbers_lists_and_maps_are_bounded() -> None:
    for path, schema in SCHEMAS.items():
        if schema["type"] == "string":
            assert "maxLength" in schema or "enum" in schema or schema.get("format") == "date-time", path
        if schema["type"] == "integer":
            assert {"minimum", "maximum", "format"} <= schema.keys(), path
        if schema["type"] == "array":
            assert {"maxItems", "x-kubernetes-list-type"} <= schema.keys(), path
        if "additionalProperties" in schema:
            assert "maxProperties" in schema, path


def test_every_field_is_described_in_sentences() -> None:
    for path, schema in SCHEMAS.items():
        if not path.endswith("{}"):
            description = schema.get("description", "")
            assert description.endswith("."), path
            assert "\n" not in description, path


def test_nothing_is_left_that_a_structural_schema_forbids() -> None:
    forbidden = {"$ref", "$defs", "anyOf", "allOf", "const", "title", "exclusiveMinimum", "exclusiveMaximum"}
    for path, schema in SCHEMAS.items():
        assert not forbidden & schema.keys(), path
        assert ("default" in schema) == (path == ".status.ended"), path
        assert not ({"properties", "additionalProperties"} <= schema.keys()), path


def test_every_rule_says_what_is_wrong_and_where() -> None:
    rules = [(path, rule) for path, schema in SCHEMAS.items() for rule in schema.get("x-kubernetes-validations", [])]
    assert rules
    for path, rule in rules:
        assert rule["message"], path
        assert rule["fieldPath"], path
        assert f"{path}{rule['fieldPath']}" in SCHEMAS, path


def test_optional_fields_keep_their_bounds() -> None:
    numa_node = structural(GPUAllocation.model_json_schema())["properties"]["spec"]["properties"]["numaNode"]
    assert (numa_node["type"], numa_node["minimum"]) == ("integer", -1)
    assert "numaNode" not in SCHEMAS[".spec"]["required"]


@pytest.mark.parametrize(
    ("field", "name"), [("pod_uid", "podUID"), ("memory_mib", "memoryMiB"), ("uuid", "uuid"), ("node_name", "nodeName")]
)
def test_fields_are_spelled_as_kubernetes_does(field: str, name: str) -> None:
    assert wire_name(field) == name


def test_an_object_survives_the_way_through_the_model() -> None:
    wire = {
        "spec": {
            "uuid": "GPU-0A",
            "nodeName": "node-a",
            "index": 0,
            "vendor": "nvidia",
            "model": "NVIDIA A100-SXM4-40GB",
            "mode": "none",
            "healthy": True,
            "capacity": {"memoryMiB": 40960, "cores": 100, "number": 10},
            "links": {"GPU-0B": 80},
        },
        "status": {
            "phase": "Ready",
            "used": {"memoryMiB": 4096, "cores": 25, "number": 1},
            "pods": "default/a",
            "holders": [
                {
                    "podUID": "11111111-2222-3333-4444-555555555555",
                    "namespace": "default",
                    "pod": "a",
                    "memoryMiB": 4096,
                    "cores": 25,
                    "number": 1,
                    "exclusive": False,
                    "priority": -5,
                    "containers": [{"name": "main", "memoryMiB": 4096, "cores": 25}],
                    "state": "reserved",
                    "attempt": "first",
                    "deadline": "2030-01-01T00:00:00Z",
                }
            ],
        },
    }
    card = GPUAllocation.model_validate(wire)
    assert card.status is not None
    assert card.status.phase is CardPhase.READY
    assert card.status.holders[0].state is HolderState.RESERVED
    assert card.model_dump(mode="json", by_alias=True, exclude_none=True) == wire


def test_a_field_of_a_newer_release_is_skipped() -> None:
    spec = {
        "uuid": "GPU-0A",
        "nodeName": "node-a",
        "index": 0,
        "vendor": "nvidia",
        "model": "",
        "mode": "none",
        "healthy": True,
        "capacity": {"memoryMiB": 1, "cores": 0, "number": 1},
    }
    assert GPUAllocation.model_validate({"spec": {**spec, "colour": "green"}}).spec.index == 0
