"""Requests of anybody in which all of the admission happens, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.cluster import MERGE_PATCH, Connection, pod
from control_plane import ControlPlane

Json = dict[str, Any]

DRY = "?dryRun=All"


def as_user(plane: ControlPlane, name: str, **extra: str) -> Connection:
    """Return a connection of somebody who may do everything, as far as RBAC goes."""
    more = {f"Impersonate-Extra-{key}": value for key, value in extra.items()}
    return Connection(plane, identity={"Impersonate-User": name, "Impersonate-Group": "system:masters", **more})


def create(connection: Connection, body: Json, namespace: str = "default") -> Json:
    """Create a pod in a dry run; return it as it would be stored."""
    body["metadata"]["namespace"] = namespace
    return connection.request("POST", f"/api/v1/namespaces/{namespace}/pods{DRY}", body)


def change(connection: Connection, path: str, patch: Json) -> Json:
    """Change an object in a dry run; return it as it would be stored."""
    return connection.request("PATCH", path + DRY, patch, MERGE_PATCH)


def bare(limits: Mapping[str, object], **fields: object) -> Json:
    """Return a pod as a user writes it who has not read anything: without a scheduler."""
    body = pod("bare", limits, **fields)  # type: ignore[arg-type]
    del body["spec"]["schedulerName"]
    return body
