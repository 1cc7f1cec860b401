"""The client library's generated modules are imported when somebody asks for them, and not before."""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

pytestmark = pytest.mark.thorough  # processes and timeouts: seconds in which one waits

LEAN = "from gpuledger.kube_api import lean_import; lean_import.install(); lean_import.install()"
FEW = 40
"""Of the library's more than 850 modules."""


def run(*lines: str) -> str:
    """Run lines in a Python of their own; return what they print."""
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_help_imports_nothing_of_it_and_operator_and_agent_few_of_its_modules() -> None:
    count = "print(sum(name.startswith('kubernetes_asyncio') for name in sys.modules))"
    both = "import gpuledger.agent.agent, gpuledger.controller.startup"
    by_help, by_both = run("import sys", "import gpuledger.command_line.program", count, both, count).split()
    assert int(by_help) == 0
    assert 0 < int(by_both) < FEW


ASKED = {
    "from kubernetes_asyncio.client import CoreV1Api as found": "CoreV1Api",
    "from kubernetes_asyncio.client.models import V1Node as found": "V1Node",
    "from kubernetes_asyncio.client import V1ObjectMeta as found": "V1ObjectMeta",
    "import kubernetes_asyncio; found = kubernetes_asyncio.client.models.V1Secret": "V1Secret",
    "import kubernetes_asyncio; found = kubernetes_asyncio.watch.Watch": "Watch",
    "from kubernetes_asyncio import config; found = config.ConfigException": "ConfigException",
}
"""What somebody writes who knows nothing of the lean import -> the name of what he gets."""

FORGET = "for name in [name for name in sys.modules if name.startswith('kubernetes_asyncio')]: del sys.modules[name]"
"""After it, the library is as lean as in a new process."""


@pytest.fixture(scope="module")
def said() -> Mapping[str, Any]:
    """Ask one process for one thing after the other, each of a library that is lean yet; return what came of each."""
    lines = ["import json, sys", LEAN, "said = {}"]
    for asked in ASKED:
        lines += [FORGET, asked, f"said[{asked!r}] = found.__name__"]
    lines += [
        FORGET,
        "try:",
        "  from kubernetes_asyncio.client import V1Nothing",
        "except ImportError as error:",
        "  said['missed'] = str(error)",
        FORGET,
        "from kubernetes_asyncio import client",
        "meta = client.V1ObjectMeta(name='a')",
        "without_session = client.ApiClient.__new__(client.ApiClient)",
        "said['sent'] = client.ApiClient.sanitize_for_serialization(without_session, meta)",
        FORGET,
        "import kubernetes_asyncio",
        "from kubernetes_asyncio.client import *",
        "said['whole'] = [kubernetes_asyncio.__version__, V1Pod.__name__, ApiClient.__name__]",
        "print(json.dumps(said))",
    ]
    found: Mapping[str, Any] = json.loads(run(*lines))
    return found


@pytest.mark.parametrize("asked", ASKED)
def test_whoever_asks_for_more_gets_it(said: Mapping[str, Any], asked: str) -> None:
    assert said[asked] == ASKED[asked]


def test_the_whole_of_it_can_still_be_had(said: Mapping[str, Any]) -> None:
    assert said["whole"][1:] == ["V1Pod", "ApiClient"]


def test_what_is_not_in_it_is_missed_as_usual(said: Mapping[str, Any]) -> None:
    assert "V1Nothing" in said["missed"]


def test_models_that_were_asked_for_can_be_sent_and_read(said: Mapping[str, Any]) -> None:
    assert said["sent"] == {"name": "a"}
