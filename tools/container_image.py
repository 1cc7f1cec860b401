"""Build the image `gpuledger:0.1.0` without Docker, as a tar that `ctr images import` reads.

    python tools/container_image.py [--hami-core LIBRARY] [OUTPUT]     make image does it in build/

Three layers, lowest first: Debian's Python with what it needs and a shell, made by mmdebstrap from this machine's own
suite and mirrors; the wheels whose hashes are in requirements/runtime.txt, trimmed (trim_packages.py); our package. The
first two are made once and kept in the build cache. All bytecode is written here: at run time the file system is
read-only. As an ordinary user, it takes what mmdebstrap then needs: the package uidmap, and the right to open
namespaces.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import trim_packages
from bill_of_materials import bill_of_materials, files_below, files_of_layers
from build_steps import Builder, BuildError, cache_directory, minutes
from node_image import write_image

REPOSITORY = Path(__file__).resolve().parent.parent
LOCK = REPOSITORY / "requirements" / "runtime.txt"
PACKAGE = REPOSITORY / "operator" / "gpuledger"
VERSION = re.findall('__version__ = "(.+)"', (PACKAGE / "__init__.py").read_text())[0]
NAME = f"gpuledger:{VERSION}"
FULL_NAME = f"docker.io/library/{NAME}"
"""What the name in the manifests stands for."""

DEBIAN_PACKAGES = ("base-files", "base-passwd", "libc-bin", "dash", "coreutils", "libstdc++6", "python3")
LEFT_OUT = ("man", "info", "locale", "lintian", "doc")
"""Directories below /usr/share. The licences in doc/ stay."""

MACHINES_OWN = ("dev", "etc/apt", "etc/hostname", "etc/resolv.conf", "etc/dpkg/dpkg.cfg.d", "var/cache", "var/lib/apt")
"""What mmdebstrap copies from this machine, and leaves behind of its work."""

PROGRAM = REPOSITORY / "manifests" / "gpuledger"
"""The command, for `kubectl exec`."""

DOCUMENTS = "usr/share/doc/gpuledger"
MATERIALS = f"{DOCUMENTS}/gpuledger.cdx.json"
"""Where the image has its bill of materials, with the Dockerfile, too."""

COMMAND = ("python3", "-m", "gpuledger")
ARGUMENTS = ("run",)
USER = "65532:65532"
ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
OLD_S = 946684800
"""The time of all files, so that the same content makes the same layer: the year 2000."""

BUILDER = Builder("image")


def ensure_layers() -> tuple[Path, Path, str]:
    """Return the two layers below our package, and their Python's version as in 3.11, making what is missing.

    The first time takes about 45 s on two cores. Raises BuildError.
    """
    directory = cache_directory().parent / "image"
    with BUILDER.alone(directory):
        root = _cached(directory, "root", _mmdebstrap(), _make_root)
        version = _python_version(root)
        return root, _cached(directory, f"python{version}-wheels", _pip(version), _make_wheels), version


def build_image(output: Path, package: Path = PACKAGE, name: str = FULL_NAME, hami_core: Path | None = None) -> str:
    """Write the image, in a second or two once there are the layers below. Raises BuildError.

    Returns its bill of materials, which is in it, too. `package` is the directory of another state of our package,
    which then needs another name. `hami_core` is a library of HAMi's, which the Dockerfile takes from HAMi's image.
    """
    if hami_core is not None and not hami_core.is_file():
        raise BuildError(f"{hami_core} is no file, and not HAMi-core's library.")
    root, wheels, version = ensure_layers()
    with tempfile.TemporaryDirectory(prefix="gpuledger-image-") as temporary:
        content, ours = Path(temporary) / "content", Path(temporary) / "package.tar"
        place = content / _site_packages(version) / PACKAGE.name
        shutil.copytree(package, place, ignore=shutil.ignore_patterns("__pycache__"))
        _compile(version, content)
        if hami_core is not None:
            (content / "hami-core").mkdir()
            shutil.copyfile(hami_core, content / "hami-core" / hami_core.name)
        (content / "usr/local/bin").mkdir()
        shutil.copy(PROGRAM, content / "usr/local/bin")
        (content / DOCUMENTS).mkdir(parents=True)
        shutil.copyfile(REPOSITORY / "LICENSE", content / DOCUMENTS / "LICENSE")
        files = [*files_of_layers([root, wheels]), *files_below(content)]
        (content / MATERIALS).write_text(bill_of_materials("gpuledger", VERSION, files))
        _write_layer(content, ours)
        write_image(output, name, [root, wheels, ours], COMMAND, ENVIRONMENT, ARGUMENTS, USER)
        return (content / MATERIALS).read_text()


def missing_requirements() -> list[str]:
    """Return what this machine lacks to build the image, in words."""
    return [] if shutil.which("mmdebstrap") else ["mmdebstrap (on Debian: apt install mmdebstrap)"]


def _cached(directory: Path, name: str, command: Sequence[str], make: Callable[[list[str], Path, Path], None]) -> Path:
    """Return a layer that depends on a command and the locked packages, and make it unless it is there."""
    what = [word for word in command if word != sys.executable]  # each checkout has a Python of its own
    inputs = [platform.machine(), Path(__file__).read_text(), Path(trim_packages.__file__).read_text(), *what]
    key = hashlib.sha256("\0".join(inputs).encode() + LOCK.read_bytes()).hexdigest()[:12]
    layer = directory / f"{name}-{key}.tar"
    if not layer.exists():
        with tempfile.TemporaryDirectory(prefix=".making-", dir=directory) as temporary:
            content, unfinished = Path(temporary) / "content", Path(temporary) / "layer.tar"
            content.mkdir()
            make(list(command), content, Path(temporary))
            _write_layer(content, unfinished)
            unfinished.replace(layer)
    return layer


# Debian.


WRITE_RECORDS = """mkdir -p "$1/var/lib/dpkg/status.d"
for deb in "$1"/var/cache/apt/archives/*.deb; do
  name="$(dpkg-deb --field "$deb" Package)"
  dpkg-deb --field "$deb" Package Source Version Architecture Maintainer > "$1/var/lib/dpkg/status.d/$name"
done"""
"""Nothing is installed, so dpkg's own status stays empty; scanners, and the bill of materials, read these."""


def _mmdebstrap() -> list[str]:
    exclude = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in LEFT_OUT]
    return [
        *("mmdebstrap", "--variant=extract", f"--include={','.join(DEBIAN_PACKAGES)}", "--skip=output/dev"),
        *("--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr", f"--extract-hook={WRITE_RECORDS}"),
        *(*exclude, "--dpkgopt=path-include=/usr/share/doc/*/copyright"),
        _suite(),
    ]


def _make_root(command: list[str], content: Path, temporary: Path) -> None:
    if missing := missing_requirements():
        raise BuildError(f"The image can't be built, for want of {missing[0]}.")
    tar = temporary / "root.tar"
    BUILDER.run(
        [*command, str(tar), "-"],
        label="gathering Debian's Python",
        hint="once, about 15 s and 25 MB of downloads",
        directory=temporary,
        environment=os.environ,
        stdin=_mirrors(),
    )
    subprocess.run(["tar", "--extract", "--no-same-owner", "--directory", content, "--file", tar], check=True)
    tar.unlink()
    for name in MACHINES_OWN:
        path = content / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for name in ("passwd", "group"):  # what base-passwd does when it is installed
        shutil.copyfile(content / f"usr/share/base-passwd/{name}.master", content / f"etc/{name}")
    version = next((content / "usr/bin").glob("python3.*")).name.removeprefix("python")
    _compile(version, content)


def debian_root(name: str, suite: str, packages: Sequence[str]) -> Path:
    """Return a root with packages of a suite, and what they need, as a tar, making it unless it is there.

    It is taken from this machine's own mirrors. Raises BuildError.
    """
    if missing := missing_requirements():
        raise BuildError(f"A root of Debian can't be made, for want of {missing[0]}.")
    directory = cache_directory().parent / "image"
    command = ["mmdebstrap", "--variant=minbase", f"--include={','.join(packages)}", "--skip=output/dev", suite]
    key = hashlib.sha256("\0".join([platform.machine(), *command]).encode()).hexdigest()[:12]
    root = directory / f"{name}-{key}.tar"
    with BUILDER.alone(directory):
        if not root.exists():
            with tempfile.TemporaryDirectory(prefix=".making-", dir=directory) as temporary:
                unfinished = Path(temporary) / "root.tar"
                BUILDER.run(
                    [*command, str(unfinished), "-"],
                    label=f"gathering Debian's packages for {name}",
                    hint="once, about 1.5 minutes and 80 MB of downloads",
                    directory=Path(temporary),
                    environment=os.environ,
                    stdin=_mirrors(suite),
                )
                unfinished.replace(root)
    return root


def _suite() -> str:
    lines = Path("/etc/os-release").read_text().splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    try:
        return found["VERSION_CODENAME"].strip('"')
    except KeyError:
        raise BuildError("The image can only be built on Debian and its kin: /etc/os-release names no suite.") from None


def _mirrors(wanted: str = "") -> str:
    """Return this machine's own sources of its suite, with updates; or where the same mirrors have another suite."""
    suite = _suite()
    asked = ["apt-get", "indextargets", "--format", "deb $(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    lines = sorted(set(subprocess.run(asked, capture_output=True, text=True, check=False).stdout.splitlines()))
    own = [line for line in lines if re.fullmatch(f"{suite}(-(updates|security))?", line.split()[2])]
    if not own:
        raise BuildError(f"apt has no lists of packages for {suite}. Run apt-get update, then try again.")
    lines = [re.sub(rf" {suite}\b", f" {wanted}", line) for line in own] if wanted else own
    return "\n".join(lines) + "\n"


# Python.


def _python_version(root: Path) -> str:
    """Return the version of the Python in a layer, as in 3.11."""
    with tarfile.open(root) as tar:
        for member in tar:
            if found := re.fullmatch(r"usr/bin/python(3\.\d+)", member.name):
                return found[1]
    raise BuildError(f"{root} holds no Python. Remove it, then try again.")


def _site_packages(version: str) -> str:
    """Return where Debian's Python looks for what was installed beside Debian's packages. `version` is as in 3.11."""
    return f"usr/local/lib/python{version}/dist-packages"


def _pip(version: str) -> list[str]:
    return [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"),
        *("--require-hashes", "--only-binary", ":all:", "--python-version", version, "--implementation", "cp"),
        *("--no-compile", "--root-user-action", "ignore", "--requirement", str(LOCK)),
    ]


def _make_wheels(command: list[str], content: Path, temporary: Path) -> None:
    version = command[command.index("--python-version") + 1]
    site = content / _site_packages(version)
    BUILDER.run(
        [*command, "--target", str(site)],
        label="installing the locked wheels",
        hint="once, about 15 s",
        directory=temporary,
        environment=os.environ,
    )
    shutil.rmtree(site / "bin", ignore_errors=True)  # commands that would be run by this machine's Python
    trim_packages.trim(site)
    _compile(version, content)


def _compile(version: str, content: Path) -> None:
    """Write the bytecode of all that is below a directory, whose files keep their names in the image."""
    python = (
        sys.executable if sys.version_info[:2] == tuple(map(int, version.split("."))) else f"/usr/bin/python{version}"
    )
    if not os.access(python, os.X_OK):
        raise BuildError(f"There is no {python} to compile the image's Python. On Debian: apt install python3")
    arguments = ["-q", "-s", str(content), "-p", "/", "-x", "lib2to3/tests", "--invalidation-mode", "unchecked-hash"]
    done = subprocess.run(
        [python, "-I", "-S", "-m", "compileall", *arguments, str(content / "usr")],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BuildError(f"The image's Python can't be compiled:\n{done.stdout}{done.stderr}")


def _write_layer(content: Path, output: Path) -> None:
    """Write a directory as a layer that belongs to root; the same content makes the same bytes."""

    def usual(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
            return None
        return member.replace(uid=0, gid=0, uname="", gname="", mtime=OLD_S, deep=False)

    with tarfile.open(output, "w") as tar:
        for path in sorted(content.iterdir()):
            tar.add(path, path.name, filter=usual)


def main() -> int:
    """Build the image with its bill of materials, say where they are, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", nargs="?", type=Path, default=Path(f"{NAME.replace(':', '-')}.tar"))
    parser.add_argument("--hami-core", type=Path, help="libvgpu.so of HAMi-core, which agents install on their nodes")
    options = parser.parse_args()
    output = options.output
    begin = time.monotonic()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        materials = output.with_suffix(".cdx.json")
        materials.write_text(build_image(output, hami_core=options.hami_core))
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; layers that are complete are kept", file=sys.stderr)
        return 130
    BUILDER.say(f"{NAME}, {output.stat().st_size / 2**20:.0f} MiB, in {minutes(time.monotonic() - begin)}")
    print(output, materials, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
