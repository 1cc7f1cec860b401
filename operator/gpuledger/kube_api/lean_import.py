"""kubernetes-asyncio without the 850 generated modules that its packages import at once.

They take half a second and 30 MB, in each agent and at each command. Needed are its reader of credentials and its
connections (`kube_api.client`); Kopf asks for two of its classes. So its packages come empty, and load names when they
are asked for; for an unknown name they are loaded as the library has them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

LIBRARY = "kubernetes_asyncio"

LEAN_PACKAGES = (LIBRARY, f"{LIBRARY}.client", f"{LIBRARY}.client.models")

PLACES = {
    "ApiClient": f"{LIBRARY}.client.api_client",
    "Configuration": f"{LIBRARY}.client.configuration",
    "V1ObjectMeta": f"{LIBRARY}.client.models.v1_object_meta",
    "V1OwnerReference": f"{LIBRARY}.client.models.v1_owner_reference",
}
"""Class -> the module that it is in."""

CONTENTS = ("__all__", "__version__")
"""Names with underscores that a package makes itself."""


class _LeanFinder(MetaPathFinder):
    """Finds the lean packages."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where such a package is and how it is loaded here, None for anything else."""
        found = PathFinder.find_spec(fullname, path) if fullname in LEAN_PACKAGES else None
        if found is not None and found.loader is not None:
            found.loader = _LeanLoader(found.loader)
        return found


class _LeanLoader(Loader):
    """Leaves a package empty until something in it is used."""

    def __init__(self, complete: Loader) -> None:
        self._complete = complete

    def exec_module(self, module: ModuleType) -> None:
        """Have the package look for what it is asked for."""

        def ask(name: str) -> Any:
            if name.startswith("__") and name not in CONTENTS:  # the import system looks for some that need not be
                raise AttributeError(name)
            if name in PLACES:
                return getattr(import_module(PLACES[name]), name)
            if find_spec(f"{module.__name__}.{name}"):
                return import_module(f"{module.__name__}.{name}")
            del module.__getattr__
            self._complete.exec_module(module)
            return getattr(module, name)

        module.__getattr__ = ask  # type: ignore[method-assign]  # PEP 562


def install() -> None:
    """Have the library imported so from now on. What is imported already stays as it is. Idempotent."""
    if not any(isinstance(finder, _LeanFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _LeanFinder())
