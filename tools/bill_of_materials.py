"""The image's bill of materials: all packages that are in it, in CycloneDX 1.6 JSON.

    python tools/bill_of_materials.py NAME VERSION DIRECTORY     print it for an image with the files of a directory

manifests/Dockerfile runs it on `/`, container_image.py on layers. It reads what is there: dpkg's records, the metadata
that wheels bring, Python's own version where that is no package, and HAMi-core's files. The same content makes the same
document, so it has no time. A part of the image's build, so only the standard library is needed. Formats:
deb-control(5), Python's core metadata specifications, cyclonedx.org/docs/1.6, the types of purl-spec.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tarfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

Files = Iterable[tuple[str, bytes]]
"""Path in the image, as in usr/lib/os-release, and content."""

SYSTEM = "usr/lib/os-release"
STATUS = "var/lib/dpkg/status"
RECORDS = f"{STATUS}.d/*"
"""A file for each package that was unpacked and never installed, as in other small images."""

PYTHON = "usr/local/include/python3.*/patchlevel.h"
"""Python's images have compiled it themselves."""

WHEELS = tuple(f"{place}/lib/python3.*/*-packages/*.dist-info/METADATA" for place in ("opt/gpuledger", "usr/local"))
COPIED = "hami-core/*"
PATTERNS = (SYSTEM, STATUS, RECORDS, PYTHON, *WHEELS, COPIED)

Component = dict[str, Any]


def files_below(directory: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files with records in a directory that is an image's root."""
    for pattern in PATTERNS:
        for path in directory.glob(pattern):
            if path.is_file():
                yield str(path.relative_to(directory)), path.read_bytes()


def files_of_layers(layers: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    """Yield the files with records in layers, which are tars."""
    for layer in layers:
        with tarfile.open(layer) as tar:
            for member in tar:
                if member.isfile() and any(_matches(member.name, pattern) for pattern in PATTERNS):
                    file = tar.extractfile(member)
                    assert file is not None  # of a file, there is one
                    yield member.name, file.read()


def bill_of_materials(name: str, version: str, files: Files) -> str:
    """Return the document for an image with these files, of which those without records are ignored."""
    found = dict(files)
    system = _fields(found.get(SYSTEM, b"ID=debian").decode())
    components = {each["bom-ref"]: each for path in found for each in _components(path, found[path], system)}
    listed = [components[key] for key in sorted(components)]
    image = {"type": "container", "bom-ref": f"{name}:{version}", "name": name, "version": version}
    serial = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps([image, *listed]))
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": image},
        "components": listed,
        "dependencies": [{"ref": image["bom-ref"], "dependsOn": [each["bom-ref"] for each in listed]}],
    }
    return json.dumps(document, indent=2) + "\n"


def _matches(path: str, pattern: str) -> bool:
    return PurePosixPath("/", path).match(f"/{pattern}")


def _components(path: str, content: bytes, system: Mapping[str, str]) -> Iterator[Component]:
    """Yield what the records in a file are about."""
    if path == SYSTEM:
        name = system["ID"]
        yield {"type": "operating-system", "bom-ref": f"os:{name}", "name": name, "version": system["VERSION_ID"]}
    elif path == STATUS:
        for record in re.split(r"\n\n+", content.decode().strip()):
            fields = HeaderParser().parsestr(record)
            if fields["Status"] == "install ok installed":
                yield _debian(fields, system)
    elif _matches(path, RECORDS):
        yield _debian(HeaderParser().parsestr(content.decode()), system)
    elif _matches(path, PYTHON):
        version = re.findall(r'^#define PY_VERSION\s+"(.+)"', content.decode(), re.MULTILINE)[0]
        yield _library("python", version, _url("generic", "python", version))
    elif any(_matches(path, pattern) for pattern in WHEELS):
        fields = HeaderParser().parsestr(content.decode())
        name, version = fields["Name"], fields["Version"]
        yield _library(name, version, _url("pypi", re.sub(r"[-_.]+", "-", name).lower(), version))
    elif _matches(path, COPIED):
        digest = {"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}
        yield {"type": "file", "bom-ref": f"file:/{path}", "name": f"/{path}", "hashes": [digest]}


def _fields(text: str) -> dict[str, str]:
    """Return what a file of os-release(5) says."""
    lines = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {"VERSION_ID": "unstable", **{key: value.strip("\"'") for key, _, value in lines}}


def _debian(fields: Message, system: Mapping[str, str]) -> Component:
    """Return a package of Debian's. Databases of vulnerabilities look for its source, and for the release."""
    name, version = fields["Package"], fields["Version"]
    qualifiers = {"arch": fields["Architecture"], "distro": f"{system['ID']}-{system['VERSION_ID']}"}
    if source := re.match(r"(\S+)(?: \((\S+)\))?", fields.get("Source", "")):
        qualifiers["upstream"] = "@".join(part for part in source.groups() if part)
    return _library(name, version, _url(f"deb/{_quoted(system['ID'])}", name, version, qualifiers))


def _library(name: str, version: str, url: str) -> Component:
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}


def _url(kind: str, name: str, version: str, qualifiers: Mapping[str, str] | None = None) -> str:
    """Return a package's URL."""
    pairs = "&".join(f"{key}={_quoted(value)}" for key, value in sorted((qualifiers or {}).items()))
    return f"pkg:{kind}/{_quoted(name)}@{_quoted(version)}{'?' if pairs else ''}{pairs}"


def _quoted(text: str) -> str:
    return quote(text, safe=":")


def main() -> int:
    """Print the document, and return the exit status."""
    if len(sys.argv) != 4 or not Path(sys.argv[3]).is_dir():
        print("error: give the image's name, its version, and the directory that is its root", file=sys.stderr)
        return 2
    name, version, directory = sys.argv[1:]
    print(bill_of_materials(name, version, files_below(Path(directory))), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
