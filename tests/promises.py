"""What the documents promise. Each promise has tests with the real programs in `make test`.

A test names the promise that it checks: `@pytest.mark.promise("gangs")`. Tests with real programs that name none run in
`make test-all`. docs/reference/promises.md has a table of both.
"""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent

PROMISES = {
    "README.md": {
        "shares": "A pod requests a share in its limits. Its Binding names its cards, and each has an entry for it.",
        "never twice": "No card is given twice: the API server rejects an entry that does not fit, whoever writes it.",
        "readable": "The ledger is read with kubectl.",
        "reasons": "A pending pod shows the reason, per node and card.",
        "installing": "`kubectl apply` installs it, and applying it again changes nothing.",
    },
    "docs/kubectl-gpuledger.md": {"plugin": "`kubectl gpuledger` shows the cluster as it is."},
    "docs/page.md": {"page": "The page shows cards and pods as they change."},
    "docs/node-agent.md": {
        "containers": "Each container gets the cards that its pod has in the ledger, and no other.",
        "agent crashes": "The node's programs can restart: pods run on, and keep their cards to their end.",
    },
    "docs/isolation.md": {"isolation": "Containers are limited to their shares before their first process starts."},
    "docs/operations.md": {
        "operator crashes": "The operator can die at any step: pods are bound once, completely, and nothing is left.",
        "API server outages": "An API server that dies in a burst loses no share and no Binding.",
        "replicas": "A passive replica writes nothing, and takes over.",
        "lost ledger": "A ledger that was lost comes back closed, and no card is given to a second pod.",
        "restored etcd": "An operator whose etcd was restored ends, and has written nothing.",
        "node changes": "The ledger follows nodes and cards that come, fail, shrink and go.",
    },
    "docs/claims.md": {"claims": "ResourceClaims and limits share the same cards, and each claim counts once."},
    "docs/gangs.md": {"gangs": "A gang starts as a whole, or keeps nothing."},
    "docs/preemption.md": {"preemption": "Pods of higher priority get cards of others, and no pod is evicted in vain."},
    "docs/queues.md": {
        "queues": "A job is admitted when all of its pods have cards, and queues reclaim what they lent."
    },
    "docs/failed-cards.md": {
        "failed cards": "Pods leave a card that has failed, each once and by their budgets; none in a storm of faults."
    },
    "docs/moves.md": {
        "moves": "Pods that move have their new place before they leave the old one, within their budgets."
    },
    "docs/reports.md": {"accounts": "What pods held is in their namespace's record exactly once."},
    "docs/reservations.md": {"reservations": "What is reserved goes to pods of its owner, and outlives the operator."},
    "docs/quota.md": {"quotas": "No namespace has more than its quota."},
    "docs/audit.md": {"audit": "The audit compares the ledger with the cluster, and repairs what differs."},
    "docs/doctor.md": {"doctor": "`kubectl gpuledger doctor` finds what an installation lacks, and writes nothing."},
    "docs/metrics.md": {"metrics": "Metrics agree with kubectl."},
    "docs/admission.md": {"admission": "What no node can serve is refused at creation, with what to write instead."},
    "docs/autoscaling.md": {
        "autoscalers": "Pods with cards ask for what no node lists, and used nodes can be kept.",
        "new nodes": "As many nodes are asked for as the pods that wait need, wherever the operator dies.",
    },
    "docs/helm.md": {"chart": "The API server takes each object of the chart."},
    "docs/security.md": {
        "forgery": "No annotation takes a card from anyone, and each account can do only what it needs.",
        "hostile objects": "Nothing that a user writes stops the operator or delays other namespaces.",
        "ports": "Idle clients take no port from others, and only kube-scheduler binds pods.",
        "limits of claims": "On a node, limits count what the ledger counts.",
    },
    "docs/performance.md": {"quiet": "Nothing is written while nothing happens, and a pod costs few writes."},
    "docs/comparison.md": {"double allocation": "Pods that ask for two, two and four cards get eight different ones."},
    "docs/moving-over.md": {
        "vGPU guide": "The pods of Volcano's vGPU guide run as they are.",
        "moving over": "Pods of HAMi and of NVIDIA's plugin keep their cards beside those of the ledger.",
    },
}
"""Document -> promise, as tests name it -> what users can rely on."""


class Test(NamedTuple):
    """A test that checks a promise, or all tests of a file that has no `name`."""

    file: str
    name: str


@functools.cache
def find_tests() -> Mapping[str, list[Test]]:
    """Return the tests of each promise, as the files under tests/ name them."""
    found: dict[str, list[Test]] = defaultdict(list)
    for file in sorted(TESTS.rglob("test_*.py")):
        for promise, name in _promises_in(ast.parse(file.read_text())):
            found[promise].append(Test(str(file.relative_to(TESTS)), name))
    return dict(found)


def _promises_in(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each promise that a file names, and the function that checks it; no function for the file as a whole."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from ((promise, node.name) for each in node.decorator_list for promise in _named(each))
        elif isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets
        ):
            yield from ((promise, "") for promise in _named(node.value))


def _named(expression: ast.expr) -> Iterator[str]:
    for node in ast.walk(expression):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.promise":
            yield from (str(each.value) for each in node.args if isinstance(each, ast.Constant))
