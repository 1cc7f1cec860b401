"""The client library's generated modules are imported when somebody asks for them, and not before."""

import subprocess
import sys

import pytest

LEAN = "from gpuledger.kube_api import lean_import; lean_import.install(); lean_import.install()"
FEW = 40
"""Of the library's more than 850 modules."""


def run(*lines: str) -> str:
    """Run lines in a Python of their own; return what they print."""
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("program", ["gpuledger.controller.startup", "gpuledger.agent.startup"])
def test_operator_and_agent_import_few_of_the_librarys_modules(program: str) -> None:
    count = "print(sum(name.startswith('kubernetes_asyncio') for name in sys.modules))"
    said = run("import sys", "import gpuledger.command_line", f"import {program}", count)
    assert 0 < int(said) < FEW


def test_help_imports_nothing_of_it() -> None:
    said = run("import sys", "import gpuledger.command_line", "print('kubernetes_asyncio' in sys.modules)")
    assert said == "False"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("from kubernetes_asyncio.client import CoreV1Api as found", "CoreV1Api"),
        ("from kubernetes_asyncio.client.models import V1Node as found", "V1Node"),
        ("from kubernetes_asyncio.client import V1ObjectMeta as found", "V1ObjectMeta"),
        ("import kubernetes_asyncio; found = kubernetes_asyncio.client.models.V1Secret", "V1Secret"),
        ("import kubernetes_asyncio; found = kubernetes_asyncio.watch.Watch", "Watch"),
        ("from kubernetes_asyncio import config; found = config.ConfigException", "ConfigException"),
    ],
)
def test_whoever_asks_for_more_gets_it(asked: str, said: str) -> None:
    assert run(LEAN, asked, "print(found.__name__)") == said


def test_the_whole_of_it_can_still_be_had() -> None:
    everything = ["import kubernetes_asyncio", "from kubernetes_asyncio.client import *"]
    said = run(LEAN, *everything, "print(kubernetes_asyncio.__version__, V1Pod.__name__, ApiClient.__name__)")
    assert said.split()[1:] == ["V1Pod", "ApiClient"]


def test_what_is_not_in_it_is_missed_as_usual() -> None:
    said = run(
        LEAN,
        "try:",
        "  from kubernetes_asyncio.client import V1Nothing",
        "except ImportError as error:",
        "  print(error)",
    )
    assert "V1Nothing" in said


def test_models_that_were_asked_for_can_be_sent_and_read() -> None:
    said = run(
        LEAN,
        "from kubernetes_asyncio import client",
        "meta = client.V1ObjectMeta(name='a')",
        "print(client.ApiClient.sanitize_for_serialization(client.ApiClient.__new__(client.ApiClient), meta))",
    )
    assert said == "{'name': 'a'}"
