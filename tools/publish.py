"""Publish image and chart under the program's version: `make publish REGISTRY=registry.example.com/team`.

    python tools/publish.py REGISTRY [--home-url URL] [--build-arg NAME=VALUE]... [--dry-run]

Docker builds the image and pushes it to REGISTRY/gpuledger. Then Helm pushes a chart to REGISTRY/charts that names this
image by the digest which the registry gave. A version that is there already is never overwritten. Accounts are those of
`docker login` and `helm registry login`.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from build_control_plane import ensure_helm
from build_steps import BuildError
from chart_values import table

REPOSITORY = Path(__file__).resolve().parent.parent
CHART = REPOSITORY / "manifests" / "chart"
PACKAGE = REPOSITORY / "operator" / "gpuledger"
DOCKERFILE = "manifests/Dockerfile"
ICON = "manifests/chart/icon.svg"
NAMESPACE = "gpuledger-system"

HOST = r"(?:[a-z0-9-]+(?:\.[a-z0-9-]+)+|localhost|[a-z0-9-]+(?=:))(?::\d+)?"
PLACE = re.compile(rf"({HOST})((?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*)")
"""A registry, and perhaps a path in it. Docker takes a name without dot and port for one of Docker Hub's accounts."""

MACHINES_OWN = ("localhost", "127.0.0.1")
"""Hosts with which Docker speaks HTTP without TLS, and so do we. With no other."""

PUSHED = re.compile(r"digest: (sha256:[0-9a-f]{64})")
"""The last line that `docker push` prints."""

ABSENT = re.compile(
    r"no such manifest|: not found$|(manifest|name)[ _]unknown|\bNOT_FOUND\b", re.IGNORECASE | re.MULTILINE
)
"""How registries, through Docker and Helm, say that they do not have something."""

MOST_LINES = 20


class PublishError(BuildError):
    """A version can't be published; the text says why and what to do."""


@dataclass(frozen=True)
class Release:
    """What is published, and where."""

    registry: str
    version: str
    home: str = ""
    """The address of the repository; empty if there is none."""

    def __post_init__(self) -> None:
        if not PLACE.fullmatch(self.registry):
            raise PublishError(
                f"{self.registry!r} is no registry. Give its host, and the path if it has one, in lower case and "
                "without a scheme: REGISTRY=registry.example.com/team."
            )
        if self.home and not re.fullmatch(r"https?://\S+", self.home):
            raise PublishError(
                f"HOME_URL={self.home} is no address. Give one such as https://example.com/team/gpuledger."
            )

    @property
    def host(self) -> str:
        """The registry's host, with its port."""
        return self.registry.partition("/")[0]

    @property
    def plain_http(self) -> bool:
        """Whether the registry is on this machine, so that TLS is not asked for."""
        return self.host.partition(":")[0] in MACHINES_OWN

    @property
    def image(self) -> str:
        """The image's name without a tag."""
        return f"{self.registry}/gpuledger"

    @property
    def tagged(self) -> str:
        """The image's name with the version."""
        return f"{self.image}:{self.version}"

    @property
    def charts(self) -> str:
        """Where charts are."""
        return f"oci://{self.registry}/charts"

    @property
    def installation(self) -> list[str]:
        """The command that installs it."""
        place = ("--namespace", NAMESPACE, "--create-namespace")
        return ["helm", "install", "gpuledger", f"{self.charts}/gpuledger", *self._version(), *place, *self._http()]

    def build_image(self, revision: str, build_arguments: Sequence[str]) -> list[str]:
        """Return the command that builds the image from a commit."""
        labels = {"version": self.version, "revision": revision, **({"source": self.home} if self.home else {})}
        words = [
            word for key, value in labels.items() for word in ("--label", f"org.opencontainers.image.{key}={value}")
        ]
        words += [word for each in build_arguments for word in ("--build-arg", each)]
        return ["docker", "build", "--file", DOCKERFILE, "--tag", self.tagged, *words, "."]

    def push_image(self) -> list[str]:
        """Return the command that pushes the image."""
        return ["docker", "push", self.tagged]

    def push_chart(self, package: Path) -> list[str]:
        """Return the command that pushes the chart's package."""
        return ["helm", "push", str(package), self.charts, *self._http()]

    def questions(self) -> dict[str, list[str]]:
        """Return what may not be there yet -> the command that fails if it is not."""
        insecure = ("--insecure",) if self.plain_http else ()
        chart = f"{self.charts}/gpuledger"
        return {
            f"the image {self.tagged}": ["docker", "manifest", "inspect", *insecure, self.tagged],
            f"the chart {chart} {self.version}": ["helm", "show", "chart", chart, *self._version(), *self._http()],
        }

    def _version(self) -> tuple[str, ...]:
        return ("--version", self.version)

    def _http(self) -> tuple[str, ...]:
        return ("--plain-http",) if self.plain_http else ()


# What is published.


def program_version() -> str:
    """Return the version of program and chart. Raises PublishError if they differ."""
    version = str(re.findall('__version__ = "(.+)"', (PACKAGE / "__init__.py").read_text())[0])
    head = yaml.safe_load((CHART / "Chart.yaml").read_text())
    others = {key: str(head[key]) for key in ("version", "appVersion") if str(head[key]) != version}
    if others:
        said = " and ".join(f"{key} {value}" for key, value in others.items())
        raise PublishError(
            f"operator/gpuledger/__init__.py has version {version}, and manifests/chart/Chart.yaml {said}. "
            "Run `make generate`, and commit what it writes."
        )
    return version


def commit() -> str:
    """Return the commit that is checked out. Raises PublishError where there are changes beside it."""
    changed = _git("status", "--porcelain").splitlines()
    if changed:
        listed = "\n".join(f"    {line}" for line in changed[:MOST_LINES])
        raise PublishError(
            f"The checkout has changes that are in no commit:\n{listed}\nCommit them, or move them away: what is "
            "published has to be the content of a commit."
        )
    return _git("rev-parse", "HEAD").strip()


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise PublishError("git is not on the PATH. Install it: the version's commit is asked for.") from None
    if done.returncode:
        raise PublishError(
            f"`git {shlex.join(arguments)}` failed in {REPOSITORY}: {done.stderr.strip()}. Publish from a clone of the "
            "repository."
        )
    return done.stdout


def write_chart(release: Release, digest: str, target: Path) -> None:
    """Write a copy of the chart that names the image by its digest, and where it comes from."""
    shutil.copytree(CHART, target)
    values = target / "values.yaml"
    tag = f"{release.version}@{digest}"
    values.write_text(_replaced(values.read_text(), {"repository": release.image, "tag": tag}))
    readme = target / "README.md"
    written, _, _ = readme.read_text().partition("\n| value | default | meaning |\n")
    readme.write_text(f"{written}\n{table(values.read_text())}")
    if release.home:
        head = target / "Chart.yaml"
        icon = f"{release.home}/raw/v{release.version}/{ICON}"
        more = {"home": release.home, "sources": [release.home], "icon": icon}
        head.write_text(head.read_text() + yaml.safe_dump(more, sort_keys=False))


def _replaced(text: str, image: Mapping[str, str]) -> str:
    """Return values.yaml with other values of `image`, and all comments."""
    before, begin, after = text.partition("\nimage:\n")
    for key, value in image.items():
        after = re.sub(rf"^  {key}: .*$", f"  {key}: {value}", after, count=1, flags=re.MULTILINE)
    changed = before + begin + after
    wanted = yaml.safe_load(text)
    wanted["image"].update(image)
    if yaml.safe_load(changed) != wanted:
        raise PublishError("manifests/chart/values.yaml has its `image` in a new form. Adapt tools/publish.py to it.")
    return changed


def digest_of(output: str) -> str:
    """Return the digest in what `docker push` has printed. Raises PublishError if there is none."""
    found = PUSHED.findall(output)
    if not found:
        raise PublishError(
            "`docker push` printed no digest, so no chart can name the image. Update Docker, and try again."
        )
    return str(found[-1])


# The commands.


class Commands:
    """Runs commands, or only shows them."""

    def __init__(self, dry_run: bool) -> None:
        self.dry_run = dry_run

    def require(self) -> None:
        """Raise PublishError unless Docker can be asked."""
        if not self.dry_run and shutil.which("docker") is None:
            raise PublishError("docker is not on the PATH. Install Docker; `make image` builds the image without it.")

    def run(self, argv: Sequence[str], advice: str) -> str:
        """Show a command and run it; return what it prints, which is shown, too. Raises PublishError."""
        print(f"\n$ {shlex.join(argv)}", flush=True)
        if self.dry_run:
            return ""
        lines = list[str]()
        with subprocess.Popen(
            _with_program(argv), cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line)
        if process.returncode:
            raise PublishError(f"`{shlex.join(argv[:2])}` failed (exit status {process.returncode}). {advice}")
        return "".join(lines)

    def has(self, argv: Sequence[str], advice: str) -> bool:
        """Return whether the registry has what a command asks for. Raises PublishError if it does not say."""
        print(f"\n$ {shlex.join(argv)}", flush=True)
        if self.dry_run:
            return False
        done = subprocess.run(_with_program(argv), capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return True
        said = (done.stderr or done.stdout).strip()
        print(said, flush=True)
        if not ABSENT.search(said):
            raise PublishError(f"The registry does not say whether it has this version: {said}\n{advice}")
        return False


def _with_program(argv: Sequence[str]) -> list[str]:
    """Return a command with Helm from the PATH, or where there is none, the one that the tests use."""
    if argv[0] == "helm" and shutil.which("helm") is None:
        return [str(ensure_helm()), *argv[1:]]
    return list(argv)


def publish(release: Release, build_arguments: Sequence[str], dry_run: bool) -> None:
    """Publish both, or show how. Raises BuildError."""
    commands = Commands(dry_run)
    commands.require()
    revision = commit()
    access = f"For access: `docker login {release.host}` and `helm registry login {release.host}`."
    _refuse_what_is_there(release, commands, access)
    commands.run(release.build_image(revision, build_arguments), "Its last lines say why; nothing is published.")
    pushed = commands.run(release.push_image(), f"Nothing is published. {access}")
    digest = "sha256:DIGEST" if dry_run else digest_of(pushed)
    _publish_chart(release, digest, commands, access)
    print(f"\n{release.tagged}@{digest}\n{release.charts}/gpuledger {release.version}")
    print(f"{'would be' if dry_run else 'are'} published. To install:\n\n{shlex.join(release.installation)}")


def _refuse_what_is_there(release: Release, commands: Commands, access: str) -> None:
    present = [what for what, question in release.questions().items() if commands.has(question, access)]
    if present:
        raise PublishError(
            f"The registry already has {' and '.join(present)}, and a version is not overwritten. Set another "
            "__version__, run `make generate`, and commit. If this is what a failed publication has left, and nobody "
            "uses it, delete it in the registry."
        )


def _publish_chart(release: Release, digest: str, commands: Commands, access: str) -> None:
    advice = f"The image is in the registry, the chart is not: delete {release.tagged} there, and try again. {access}"
    with tempfile.TemporaryDirectory(prefix="gpuledger-publish-") as temporary:
        chart, package = Path(temporary) / "gpuledger", Path(temporary) / f"gpuledger-{release.version}.tgz"
        write_chart(release, digest, chart)
        print(f"\n# {chart} is a copy of manifests/chart, with the image {release.tagged}@{digest}")
        commands.run(["helm", "package", str(chart), "--destination", temporary], advice)
        commands.run(release.push_chart(package), advice)


def main(arguments: Sequence[str] | None = None) -> int:
    """Publish, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("registry", nargs="?", default="", help="host and path, such as registry.example.com/team")
    parser.add_argument("--home-url", default="", metavar="URL", help="the repository's address, for the chart")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE", help="for the Dockerfile")
    parser.add_argument("--dry-run", action="store_true", help="show the commands and run none")
    options = parser.parse_args(arguments)
    try:
        if not options.registry:
            raise PublishError("Name a registry: make publish REGISTRY=registry.example.com/team.")
        release = Release(options.registry.rstrip("/"), program_version(), options.home_url.rstrip("/"))
        publish(release, options.build_arg, options.dry_run)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
