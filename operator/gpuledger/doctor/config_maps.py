"""The files that our workloads get from ConfigMaps: the settings, and perhaps kube-scheduler's configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from gpuledger.model.json_object import Json

SETTINGS_VARIABLE = "GPULEDGER_SETTINGS"


def settings_file(workload: Json, container_name: str) -> tuple[str, str] | None:
    """Return ConfigMap and key of a workload's settings, None if they come from elsewhere.

    `workload` is a Deployment or a DaemonSet.
    """
    for container in _containers(workload):
        if container["name"] == container_name:
            given = {each["name"]: each.get("value", "") for each in container.get("env") or ()}
            flags = [*(container.get("command") or ()), *(container.get("args") or ())]
            path = _flag(flags, "--settings") or given.get(SETTINGS_VARIABLE, "")
            return _config_map(workload, container, path) if path else None
    return None


def mounted_file(workload: Json, container_name: str, path: str) -> tuple[str, str] | None:
    """Return ConfigMap and key of what a container finds at a path, None if that comes from elsewhere."""
    for container in _containers(workload):
        if container["name"] == container_name:
            return _config_map(workload, container, path)
    return None


def scheduler_config_file(workload: Json) -> tuple[str, str] | None:
    """Return ConfigMap and key of kube-scheduler's configuration, None if it comes from elsewhere."""
    for container in _containers(workload):
        flags = [*(container.get("command") or ()), *(container.get("args") or ())]
        if any(str(each).endswith("kube-scheduler") for each in flags[:1]) and (path := _flag(flags, "--config")):
            return _config_map(workload, container, path)
    return None


def _containers(workload: Json) -> Iterator[Json]:
    yield from workload["spec"]["template"]["spec"]["containers"]


def _flag(flags: list[str], name: str) -> str:
    for position, flag in enumerate(flags):
        if flag.startswith(f"{name}="):
            return flag.partition("=")[2]
        if flag == name and position + 1 < len(flags):
            return flags[position + 1]
    return ""


def _config_map(workload: Json, container: Json, path: str) -> tuple[str, str] | None:
    """Return which key of which ConfigMap a container finds at a path."""
    volumes = {each["name"]: each for each in workload["spec"]["template"]["spec"].get("volumes") or ()}
    for mount in container.get("volumeMounts") or ():
        found = volumes.get(mount["name"], {}).get("configMap")
        if found and PurePosixPath(path).is_relative_to(mount["mountPath"]):
            file = mount.get("subPath") or str(PurePosixPath(path).relative_to(mount["mountPath"]))
            keys = {item["path"]: item["key"] for item in found.get("items") or ()}
            return found["name"], keys.get(file, file)
    return None
