"""Make container images without a registry: tar files that `ctr images import` reads.

Format: OCI image layout (github.com/opencontainers/image-spec, image-layout.md) in a tar; the annotation
`io.containerd.image.name` is containerd's, and names what is imported.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

BUSYBOX_IMAGE = "gpuledger.test/busybox:1"
PAUSE_IMAGE = "gpuledger.test/pause:1"
PAUSE = "trap 'exit 0' TERM INT; while :; do sleep 86400 & wait; done"
"""What holds a pod's namespaces. It ends at once when asked to, and takes in orphans."""

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"


def static_busybox() -> Path | None:
    """Return the busybox of this machine if it needs no libraries."""
    found = shutil.which("busybox")
    if found is None:
        return None
    path = Path(found).resolve()
    return None if b"/ld-linux" in path.read_bytes() or b"/ld-musl" in path.read_bytes() else path


def busybox_layer(busybox: Path) -> bytes:
    """Return a layer with busybox under the names of all its commands, as a tar."""
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for directory in ("bin", "etc", "tmp"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if directory == "tmp" else 0o755
            tar.addfile(entry)
        _add_file(tar, "bin/busybox", busybox.read_bytes(), 0o755)
        _add_file(tar, "etc/passwd", b"root:x:0:0:root:/:/bin/sh\n", 0o644)
        _add_file(tar, "etc/group", b"root:x:0:\n", 0o644)
        for name in sorted(set(listed) - {"busybox"}):
            entry = tarfile.TarInfo(f"bin/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    return content.getvalue()


def write_image(
    output: Path,
    name: str,
    layers: Sequence[Path | bytes],
    command: Sequence[str] = ("/bin/sh",),
    env: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    user: str = "",
) -> None:
    """Write an image as a tar, out of layers that are tars themselves, lowest first.

    `name` has a registry and a tag, as in "gpuledger.test/agent:1". `command` is what its containers run, with
    `arguments` unless a pod gives others, as `user` unless a pod names another.
    """
    variables = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **(env or {})}
    digests = [_digest(layer) for layer in layers]
    config = _json(
        {
            "architecture": ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": {
                "Entrypoint": list(command),
                "Cmd": list(arguments),
                "Env": [f"{key}={value}" for key, value in variables.items()],
                "User": user,
            },
            "rootfs": {"type": "layers", "diff_ids": digests},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": _descriptor(CONFIG_TYPE, config),
            "layers": [_descriptor(LAYER_TYPE, layer, known) for layer, known in zip(layers, digests, strict=True)],
        }
    )
    named = {**_descriptor(MANIFEST_TYPE, manifest), "annotations": {"io.containerd.image.name": name}}
    with tarfile.open(output, "w") as tar:
        _add_file(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add_file(tar, "index.json", _json({"schemaVersion": 2, "manifests": [named]}))
        for blob in (config, manifest, *layers):
            place = f"blobs/{_digest(blob).replace(':', '/')}"
            if isinstance(blob, Path):
                tar.add(blob, place, filter=_undated)
            else:
                _add_file(tar, place, blob)


def write_program_image(output: Path, name: str, program: Path, user: str = "65532:65532") -> None:
    """Write an image of one program that needs nothing beside itself, under the path that its name finds."""
    write_image(output, name, [program_layer({program.name: program})], [program.name], user=user)


def program_layer(programs: Mapping[str, Path]) -> bytes:
    """Return a layer with programs where their names find them, as a tar. `programs` is name -> file."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, program in programs.items():
            _add_file(tar, f"usr/local/bin/{name}", program.read_bytes(), 0o755)
    return content.getvalue()


def _descriptor(kind: str, blob: Path | bytes, digest: str | None = None) -> dict[str, object]:
    size = blob.stat().st_size if isinstance(blob, Path) else len(blob)
    return {"mediaType": kind, "digest": digest or _digest(blob), "size": size}


def _digest(blob: Path | bytes) -> str:
    if isinstance(blob, bytes):
        return f"sha256:{hashlib.sha256(blob).hexdigest()}"
    with blob.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _add_file(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def _undated(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return the entry without when and by whom the file was written: the same content makes the same bytes."""
    return entry.replace(mtime=0, mode=0o644, uid=0, gid=0, uname="", gname="", deep=False)


def _json(content: object) -> bytes:
    return json.dumps(content).encode()
