"""What is published, where, and what is refused before anything runs: without Docker, Helm and a registry."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from publish import ABSENT, CHART, PublishError, Release, digest_of, main, program_version, write_chart

DIGEST = f"sha256:{'0123456789abcdef' * 4}"


@pytest.mark.parametrize(
    ("registry", "host", "plain_http"),
    [
        ("registry.example.com/team", "registry.example.com", False),
        ("ghcr.io/a-team/some.project", "ghcr.io", False),
        ("registry:5000", "registry:5000", False),
        ("localhost.example.com/x", "localhost.example.com", False),
        ("localhost:5000/x", "localhost:5000", True),
        ("127.0.0.1:5000", "127.0.0.1:5000", True),
    ],
)
def test_only_a_registry_on_this_machine_is_asked_without_tls(registry: str, host: str, plain_http: bool) -> None:
    release = Release(registry, "1.0")
    assert release.host == host
    assert ("--plain-http" in release.installation) == plain_http
    assert ("--plain-http" in release.push_chart(Path("x.tgz"))) == plain_http
    assert [("--insecure" in q or "--plain-http" in q) for q in release.questions().values()] == [plain_http] * 2


@pytest.mark.parametrize(
    "registry",
    [
        "team",
        "team/gpuledger",
        "https://registry.example.com",
        "oci://a.b/c",
        "A.b/c",
        "a.b/C",
        "a.b//c",
        "a.b/c;d",
        "",
    ],
)
def test_what_is_no_registry_is_refused(registry: str) -> None:
    with pytest.raises(PublishError, match="is no registry"):
        Release(registry, "1.0")


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(PublishError, match="HOME_URL"):
        Release("a.b/c", "1.0", "example.com/gpuledger")


def test_the_digest_is_the_one_that_the_registry_gave() -> None:
    said = f"The push refers to repository [a.b/c]\n5f70: Pushed\n1.0: digest: {DIGEST} size: 1994\n"
    assert digest_of(said) == DIGEST
    with pytest.raises(PublishError, match="no digest"):
        digest_of("5f70: Pushed\n")


@pytest.mark.parametrize(
    ("said", "absent"),
    [
        ("no such manifest: 127.0.0.1:5000/gpuledger:0.1.0", True),
        ('unknown: {"errors":[{"code":"NAME_UNKNOWN","message":"Unknown name"}]}', True),
        ("manifest unknown", True),
        ('Error: failed to perform "FetchReference" on source: a.b/charts/gpuledger:0.1.0: not found', True),
        ('exec: "docker-credential-x": executable file not found in $PATH', False),
        ("unauthorized: authentication required", False),
        ("dial tcp: lookup a.b: no such host", False),
    ],
)
def test_only_a_registry_that_says_so_does_not_have_a_version(said: str, absent: bool) -> None:
    assert bool(ABSENT.search(said)) == absent


def test_the_charts_copy_differs_in_the_image_and_in_where_it_comes_from(tmp_path: Path) -> None:
    version = program_version()
    home = "https://code.example.com/team/gpuledger"
    write_chart(Release("a.b/c", version, home), DIGEST, tmp_path / "gpuledger")
    changed = {
        str(path.relative_to(CHART))
        for path in CHART.rglob("*")
        if path.is_file() and path.read_bytes() != (tmp_path / "gpuledger" / path.relative_to(CHART)).read_bytes()
    }
    assert changed == {"Chart.yaml", "README.md", "values.yaml"}
    before, after = (yaml.safe_load((each / "values.yaml").read_text()) for each in (CHART, tmp_path / "gpuledger"))
    assert after.pop("image") == {**before.pop("image"), "repository": "a.b/c/gpuledger", "tag": f"{version}@{DIGEST}"}
    assert after == before
    head = yaml.safe_load((tmp_path / "gpuledger" / "Chart.yaml").read_text())
    assert head == {
        **yaml.safe_load((CHART / "Chart.yaml").read_text()),
        "home": home,
        "sources": [home],
        "icon": f"{home}/raw/v{version}/manifests/chart/icon.svg",
    }


def test_without_an_address_the_chart_names_none(tmp_path: Path) -> None:
    write_chart(Release("a.b/c", program_version()), DIGEST, tmp_path / "gpuledger")
    assert (tmp_path / "gpuledger" / "Chart.yaml").read_bytes() == (CHART / "Chart.yaml").read_bytes()


def test_without_a_registry_it_says_how_to_name_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    assert "make publish REGISTRY=registry.example.com/team" in capsys.readouterr().err
