"""Every server of ours is started by `serving`, whose ports have limits: what starts one is looked for in the source.

An exception below that is not needed any more fails the test, too.
"""

import ast

import pytest

from house_rules.sources import outside

ALLOWED = "serving.py"

SERVERS = {
    "create_server",
    "create_unix_server",
    "connect_accepted_socket",
    "start_server",
    "start_unix_server",
    "start_serving",
    "start_http_server",
    "make_server",
    "listen",
    "run_app",
    "AppRunner",
    "ServerRunner",
    "TCPSite",
    "UnixSite",
    "SockSite",
    "HTTPServer",
    "ThreadingHTTPServer",
    "TCPServer",
    "WebhookAutoServer",
    "WebhookServer",
    "add_insecure_port",
    "add_secure_port",
}
"""What listens: names of asyncio, socket, aiohttp, http.server, prometheus_client, Kopf and gRPC."""

LISTENING = {  # file -> what it uses
    # Kopf's, with our own port in place of its.
    "controller/webhook.py": {"WebhookServer"},
    # Unix sockets in the kubelet's directories, which belong to root.
    "agent/kubelet/device_plugin.py": {"add_insecure_port"},
}


def servers(module: ast.Module) -> set[str]:
    """Return which of SERVERS a module uses."""
    found = {node.attr for node in ast.walk(module) if isinstance(node, ast.Attribute)}
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom | ast.Import):
            found |= {each.name.rpartition(".")[2] for each in node.names}
    return found & SERVERS


def test_no_server_is_started_but_at_a_port_with_limits() -> None:
    used = {name: servers(module) for name, module in outside(ALLOWED).items()}
    assert {name: found for name, found in used.items() if found} == LISTENING


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("await loop.create_server(make, host, port)", {"create_server"}),
        ("from aiohttp.web import TCPSite as Site", {"TCPSite"}),
        ("from aiohttp import web\nweb.run_app(application)", {"run_app"}),
        ("server.add_insecure_port(f'unix:{path}')", {"add_insecure_port"}),
        ("from gpuledger.serving import application_served", set()),
    ],
)
def test_what_starts_a_server_is_noticed(source: str, found: set[str]) -> None:
    assert servers(ast.parse(source)) == found
