"""The command `gpuledger inspect`: reads objects from files or from the cluster, and shows what is understood."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from gpuledger.configuration.dialects import words_of
from gpuledger.configuration.settings import Settings
from gpuledger.formats.documents import read_documents
from gpuledger.formats.inspection import inspected
from gpuledger.kube_api.client import KubeClient
from gpuledger.model.errors import BadInput

Json = dict[str, Any]


def inspect_text(text: str, where: str, settings: Settings) -> list[Json]:
    """Return what is understood of the documents of a YAML or JSON text. Raises BadInput if it is neither."""
    words = words_of(settings)
    return [found for document in read_documents(text, where) for found in inspected(document, words)]


async def inspect_live(names: Iterable[str], namespace: str, kubeconfig: Path | None, settings: Settings) -> list[Json]:
    """Return what is understood of objects of the cluster, named as node/NAME or pod/NAME.

    Raises BadInput for another kind, and ApiError.
    """
    words = words_of(settings)
    paths = [_path(name, namespace) for name in names]
    client = await KubeClient.connect(kubeconfig)
    try:
        objects = [{"kind": kind, **await client.request("GET", path)} for kind, path in paths]
    finally:
        await client.close()
    return [found for each in objects for found in inspected(each, words)]


def as_json(found: list[Json]) -> str:
    """Return one object as itself and several as a List, like kubectl."""
    content: Json = found[0] if len(found) == 1 else {"kind": "List", "items": found}
    return orjson.dumps(content, option=orjson.OPT_INDENT_2).decode()


def has_problems(found: Iterable[Json]) -> bool:
    """Tell whether something would not be taken as it is."""
    return any(each["problems"] for each in found)


def _path(name: str, namespace: str) -> tuple[str, str]:
    kind, _, rest = name.partition("/")
    if kind in ("node", "nodes", "no") and rest:
        return "Node", f"/api/v1/nodes/{rest}"
    if kind in ("pod", "pods", "po") and rest:
        return "Pod", f"/api/v1/namespaces/{namespace}/pods/{rest}"
    raise BadInput(f"{name!r} is neither node/NAME nor pod/NAME")
