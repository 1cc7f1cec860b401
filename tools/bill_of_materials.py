"""The image's bill of materials: which of Debian's and which of Python's packages are in it, in CycloneDX 1.6 JSON.

Read from the layers themselves, so that nothing is in the one and not in the other: what dpkg would know of each
package, and the metadata that wheels bring. The same layers make the same document. Formats: deb-control(5), Python's
core metadata specifications, cyclonedx.org/docs/1.6.
"""

from __future__ import annotations

import re
import tarfile
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

DEBIAN_RECORDS = "var/lib/dpkg/status.d/"
"""A file for each package that was unpacked and never installed, as in other small images: scanners look there."""

METADATA = re.compile(r".*/[^/]+\.dist-info/METADATA")


def bill_of_materials(name: str, version: str, layers: list[Path], made_s: int) -> str:
    """Return the document for an image of these layers; `made_s` is the time that it gives, in seconds of Unix time."""
    found = [component for layer in layers for component in _components(layer)]
    image = Component(name=name, version=version, type=ComponentType.CONTAINER, bom_ref=f"{name}:{version}")
    bom = Bom(components=found)
    bom.metadata.component = image
    bom.register_dependency(image, found)
    bom.metadata.timestamp = datetime.fromtimestamp(made_s, UTC)
    content = "\n".join(str(component.purl) for component in found)
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_OID, f"{name}:{version}\n{content}")
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _components(layer: Path) -> Iterator[Component]:
    with tarfile.open(layer) as tar:
        for member in tar:
            if member.isfile() and member.name.startswith(DEBIAN_RECORDS):
                yield _debian(HeaderParser().parsestr(_text(tar, member)))
            elif METADATA.fullmatch(member.name):
                yield _python(HeaderParser().parsestr(_text(tar, member)))


def _text(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = tar.extractfile(member)
    assert file is not None  # only files have these names
    return file.read().decode()


def _debian(fields: Message) -> Component:
    name, version, architecture = fields["Package"], fields["Version"], fields["Architecture"]
    url = PackageURL("deb", "debian", name, version, {"arch": architecture})
    return Component(name=name, version=version, type=ComponentType.LIBRARY, purl=url, bom_ref=str(url))


def _python(metadata: Message) -> Component:
    name, version = metadata["Name"], metadata["Version"]
    url = PackageURL("pypi", None, re.sub(r"[-_.]+", "-", name).lower(), version)
    return Component(name=name, version=version, type=ComponentType.LIBRARY, purl=url, bom_ref=str(url))
