"""Only `kube_api` talks to the API server: what import-linter, which sees imports alone, can't tell.

A request needs a connection, or a program such as kubectl, and a path of the API. Both are looked for in the source of
every other module. An exception below that is not needed any more fails the test, too.
"""

import ast

import pytest

from house_rules.sources import outside

ALLOWED = "kube_api"

CONNECTIONS = {
    *(f"aiohttp.{name}" for name in ("BaseConnector", "ClientSession", "TCPConnector", "UnixConnector", "request")),
    *(f"asyncio.create_subprocess_{kind}" for kind in ("exec", "shell")),
    *("asyncio.open_connection", "asyncio.open_unix_connection", "http.client", "urllib.request"),
    *(f"os.{name}" for name in ("popen", "posix_spawn", "posix_spawnp", "spawnv", "spawnvp", "system")),
    *(f"subprocess.{name}" for name in ("Popen", "call", "check_call", "check_output", "run")),
}
"""What opens connections or starts programs."""

PATHS = ("/api/", "/apis/")

CONNECTED = {  # file -> what it uses
    # Kopf's own watches, with an account that kube_api gives.
    "controller/kopf_session.py": {"aiohttp.ClientSession", "aiohttp.TCPConnector"},
    # Not the API server: kube-scheduler's /livez.
    "controller/extender_server.py": {"aiohttp.request"},
    # Nor is this: the node agents' /usage.
    "controller/web/feed.py": {"aiohttp.ClientSession", "aiohttp.TCPConnector"},
    # Nor this: the other replicas' history.
    "controller/history.py": {"aiohttp.ClientSession"},
    # NVIDIA's MPS daemons.
    "agent/isolation/mps_daemons.py": {"asyncio.create_subprocess_exec"},
    # The commands, with the account of whoever runs them: kubectl, and what it forwards.
    "command_line/cluster_access.py": {"subprocess.Popen", "subprocess.run"},
    "command_line/operator_view.py": {"http.client", "urllib.request"},
}

WITH_PATHS = {  # all of them commands
    "command_line/output.py",
    "command_line/commands/cordon.py",
    "command_line/commands/inspect.py",
    "command_line/commands/drain.py",
    "command_line/commands/top.py",
    "command_line/commands/version.py",
    "command_line/objects.py",
    "command_line/operator_view.py",
    "command_line/own_namespace.py",
    "command_line/owners.py",
    "command_line/top/usage.py",
    "command_line/top/rows.py",
    "command_line/top/teams.py",
    "doctor/reading.py",
}


def connections(module: ast.Module) -> set[str]:
    """Return which of CONNECTIONS a module uses: by the module's name, or imported from it."""
    found = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found & CONNECTIONS


def paths(module: ast.Module) -> set[str]:
    """Return the beginnings of the API's paths that are written out in a module."""
    texts = (node.value for node in ast.walk(module) if isinstance(node, ast.Constant))
    return {text for text in texts if isinstance(text, str) and text.startswith(PATHS)}


def test_only_the_api_client_opens_connections_or_starts_programs() -> None:
    used = {name: connections(module) for name, module in outside(ALLOWED).items()}
    assert {name: found for name, found in used.items() if found} == CONNECTED


def test_only_the_api_client_writes_out_paths_of_the_api() -> None:
    assert {name for name, module in outside(ALLOWED).items() if paths(module)} == WITH_PATHS


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import aiohttp\nasync with aiohttp.ClientSession() as session: pass", {"aiohttp.ClientSession"}),
        ("from aiohttp import ClientSession", {"aiohttp.ClientSession"}),
        ("from subprocess import run", {"subprocess.run"}),
        ("import urllib.request", {"urllib.request"}),
        ("from urllib.request import urlopen", {"urllib.request"}),
        ("import urllib.parse\nfrom aiohttp import web\nimport subprocess", set()),
    ],
)
def test_what_opens_a_connection_is_noticed(source: str, found: set[str]) -> None:
    assert connections(ast.parse(source)) == found


@pytest.mark.parametrize("source", ["'/api/v1/pods'", "f'/apis/apps/v1/namespaces/{name}'"])
def test_a_path_of_the_api_is_noticed(source: str) -> None:
    assert paths(ast.parse(source))
