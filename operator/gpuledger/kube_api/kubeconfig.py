"""Which cluster is meant: kubeconfig files, a context in them, or the account of the pod that this program runs in.

As kubectl reads them (https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig): KUBECONFIG
names several files, parted by colons; those that do not exist are skipped, and what comes first in them counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger.model.errors import BadInput, Unreachable

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config.kube_config import KubeConfigLoader


NO_CLUSTER = (
    "no cluster is named: no kubeconfig, and not in a pod. --kubeconfig FILE names one, or KUBECONFIG, "
    "and --context one of several"
)


def in_pod() -> bool:
    """Return whether this program runs in a pod, by what the kubelet tells each container."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


def persons_files(kubeconfig: str | None) -> str | None:
    """Return the kubeconfig files that count for a person, parted by colons; None: the pod's account.

    Raises BadInput where there is neither.
    """
    files = kubeconfig or os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    if kubeconfig or _existing(files):
        return files
    check_named(None)
    return None


def check_named(kubeconfig: str | None) -> None:
    """Raise BadInput where neither files nor a pod's account name a cluster."""
    if not kubeconfig and not in_pod():
        raise BadInput(NO_CLUSTER)


async def load(configuration: Configuration, kubeconfig: str | None, context: str | None) -> None:
    """Fill in address and credentials: of a context in these files, or else of the pod's account. Raises BadInput."""
    from kubernetes_asyncio import config

    with _unreadable(kubeconfig):
        if kubeconfig is None:
            check_named(None)
            if context:
                raise BadInput(f"there is no context {context!r}: {NO_CLUSTER}")
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            return
        loader = await config.load_kube_config(
            config_file=kubeconfig, context=_context(kubeconfig, context), client_configuration=configuration
        )
    if hasattr(loader, "exec_plugin_expiry"):
        configuration.refresh_api_key_hook = _renewal(loader)


def namespace_of(kubeconfig: str, context: str | None) -> str:
    """Return the namespace of a context in these files. Raises BadInput."""
    from kubernetes_asyncio.config.kube_config import KubeConfigLoader, KubeConfigMerger

    with _unreadable(kubeconfig):
        merged = KubeConfigMerger(kubeconfig).config
        loader = KubeConfigLoader(merged, active_context=_context(kubeconfig, context), config_base_path=None)
        found = loader.current_context
        return str((found or {})["context"].get("namespace") or "default")


def _context(kubeconfig: str, context: str | None) -> str:
    """Return the context to use. Like kubectl, take it from the first file; the library takes the last."""
    import yaml

    if context:
        return context
    for file in _existing(kubeconfig):
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        if isinstance(content, dict) and (found := content.get("current-context")):
            return str(found)
    raise BadInput(
        f"no credentials for an API server from kubeconfig {kubeconfig}: no current-context; --context names one"
    )


def _existing(files: str) -> list[Path]:
    paths = [Path(file).expanduser() for file in files.split(os.pathsep) if file]
    return [path for path in paths if path.is_file()]


@contextmanager
def _unreadable(kubeconfig: str | None) -> Iterator[None]:
    """Turn all errors of the library, which checks little of its input, into BadInput."""
    if kubeconfig is not None and not _existing(kubeconfig):
        raise BadInput(f"kubeconfig {kubeconfig} does not exist")
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        where = f"kubeconfig {kubeconfig}" if kubeconfig else "the pod's account"
        text = " ".join(str(error).split()) or type(error).__name__
        raise BadInput(f"no credentials for an API server from {where}: {text}") from error


def _renewal(loader: KubeConfigLoader) -> Any:
    """Return a function that takes a new token from the user's program once the one it gave is about to end."""

    async def renew(configuration: Configuration) -> None:
        try:
            await loader.load_from_exec_plugin()
        except Exception as error:
            raise Unreachable(f"the kubeconfig's program gives no new token: {' '.join(str(error).split())}") from error
        configuration.api_key["BearerToken"] = loader.token

    return renew
