"""Delete from installed packages what the image's program can't load: half of their size.

    python tools/trim_packages.py SITE_PACKAGES     delete it there
    python tools/trim_packages.py --check           import all that gpuledger imports anywhere, with this Python

manifests/Dockerfile and container_image.py run it. A part of the image's build, so only the standard library is needed.
"""

from __future__ import annotations

import ast
import os
import pkgutil
import re
import shutil
import struct
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

LIBRARY = "kubernetes_asyncio"
LISTS = ("__init__.py", "client/__init__.py", "client/models/__init__.py")
"""Modules that import all others. In programs that import Kopf first, as `kopf run`, they do run."""

KEPT_OF_LIBRARY = (
    *LISTS,
    "config/*.py",
    *("client/api_client.py", "client/configuration.py", "client/exceptions.py", "client/rest.py"),
    *("client/models/v1_object_meta.py", "client/models/v1_owner_reference.py"),  # Kopf asks for these classes
)
"""All else are modules for each kind of object, which gpuledger.kube_api.lean_import keeps from being imported."""

UNUSED = (
    *("*.md", "bazel-project"),  # left by builds of wheels
    # gpuledger.formats.resource_claims.cel imports the other two extensions.
    *(f"cel_expr_python/ext/ext_{name}.*" for name in ("encoders", "math", "proto", "strings")),
    *("certifi/tests", "numpy/**/tests", f"{LIBRARY}/config/*_test.py"),
    *("numpy/conftest.py", "numpy/distutils", "numpy/f2py", "numpy/testing"),  # for builds and tests of other packages
    *("numpy/_pyinstaller", "numpy/random/_examples"),
    *("numpy/_core/include", "numpy/_core/lib", "numpy/random/lib"),  # to compile and link against
)
"""Patterns of files and directories, with those that only some versions of Python have."""

SOURCES = ("a", "c", "h", "pxd", "pyi", "pyx")
"""Suffixes of what compilers and type checkers read."""

ELF_OF_64_BITS = b"\x7fELF\x02\x01"
"""How a library of amd64 or arm64 begins."""


def trim(packages: Path) -> None:
    """Delete from a directory of installed packages what can't be loaded, and the symbols of compiled modules.

    What is changed becomes a new file, so that hard links of it elsewhere stay what they are.
    """
    library = packages / LIBRARY
    kept = {path for pattern in KEPT_OF_LIBRARY for path in library.glob(pattern)}
    for path in [path for path in library.rglob("*") if path.is_file() and path not in kept]:
        path.unlink()
    for name in LISTS:
        _forget_deleted(packages, library / name)
    for pattern in (*UNUSED, *(f"**/*.{suffix}" for suffix in SOURCES)):
        for path in list(packages.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for path in packages.rglob("*.so*"):
        if path.is_file():
            strip(path)
    for directory, _, _ in os.walk(packages, topdown=False):
        if not os.listdir(directory):
            os.rmdir(directory)


def _forget_deleted(packages: Path, module: Path) -> None:
    """Take the imports of what is deleted out of a module, and the list of its names, in a new file."""
    text = re.sub(r"^__all__ = \[.*?\]\n", "", module.read_text(), flags=re.MULTILINE | re.DOTALL)
    module.unlink()
    module.write_text("".join(line for line in text.splitlines(keepends=True) if _is_there(packages, line)))


def _is_there(packages: Path, line: str) -> bool:
    """Return whether a line imports what is left of the library, or nothing of it."""
    found = re.match(rf"(?:from|import) ({LIBRARY}\.[\w.]+)", line)
    if found is None:
        return True
    place = packages / found[1].replace(".", "/")
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def strip(library: Path) -> None:
    """Cut a shared library off behind its last segment: what follows are symbols for debuggers, which no loader reads.

    As `strip` does, without binutils, which Python's images do not have. Format: elf(5).
    """
    content = library.read_bytes()
    if not content.startswith(ELF_OF_64_BITS):
        return  # a linker's script, or another machine's library
    table, entry_size, entries = struct.unpack_from("<Q", content, 32)[0], *struct.unpack_from("<HH", content, 54)
    end = table + entry_size * entries
    for at in range(table, end, entry_size):
        offset, _, _, size = struct.unpack_from("<4Q", content, at + 8)
        end = max(end, offset + size)
    header = bytearray(content[:64])
    struct.pack_into("<Q", header, 40, 0)  # there are no sections any more
    struct.pack_into("<HHH", header, 58, 0, 0, 0)
    unfinished = library.with_name(f"{library.name}.unfinished")
    unfinished.write_bytes(header + content[64:end])
    unfinished.chmod(library.stat().st_mode)
    unfinished.replace(library)


def check() -> int:
    """Import each module of gpuledger, and what any function in it or in the trimmed library imports; return how many.

    Raises ImportError or AttributeError for what is not there.
    """
    import gpuledger
    from gpuledger.kube_api import lean_import

    lean_import.install()
    found = [each.name for each in pkgutil.walk_packages(gpuledger.__path__, "gpuledger.")]
    places = [Path(place) for place in (*gpuledger.__path__, *import_module(f"{LIBRARY}.config").__path__)]
    asked = {each for place in places for file in place.rglob("*.py") for each in imports(file)}
    asked |= {(module, name) for name, module in lean_import.PLACES.items()}  # Kopf does without its two, if it has to
    for module in found:
        if not module.endswith("__main__"):
            import_module(module)
    for module, name in sorted(asked):
        if not hasattr(import_module(module), name):
            import_module(f"{module}.{name}")
    return len(found) + len(asked)


def imports(file: Path) -> Iterator[tuple[str, str]]:
    """Yield module and name of each absolute import in a file, wherever in it; of a whole module, `__name__`."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((each.name, "__name__") for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, each.name) for each in node.names)


def main() -> int:
    """Do what is asked, and return the exit status."""
    match sys.argv[1:]:
        case ["--check"]:
            print(f"{check()} imports")
        case [packages] if (Path(packages) / LIBRARY).is_dir():
            trim(Path(packages))
        case _:
            print(f"error: name a directory of installed packages, with {LIBRARY} in it, or --check", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
