"""How the proxy tells requests apart. What the operator writes is made by the operator's own code."""

from dataclasses import replace

import orjson
import pytest

from builders import a_card, a_holder, a_ledger, a_share, stored
from faults.requests import Match, Request, binding, changing, entering, leaving, ledger_write, listing, watching
from gpuledger.ledger.entry import CardEntry
from gpuledger.model.share import HolderState
from gpuledger.workflows.journal.entries import Add, Change, Entry, Remove, patch_of

CARD = a_card(0)
ALLOCATIONS = "/apis/gpuledger.dev/v1alpha1/gpuallocations"
PODS = "/api/v1/namespaces/default/pods"


@pytest.mark.parametrize(
    ("method", "path", "kind", "name"),
    [
        ("GET", "/api/v1/pods?fieldSelector=spec.nodeName%21%3D&limit=500", "list pods", ""),
        ("GET", "/api/v1/pods?watch=true&resourceVersion=7", "watch pods", ""),
        ("GET", f"{ALLOCATIONS}?limit=5&watch=1", "watch gpuallocations", ""),
        ("GET", f"{PODS}/a", "read pods", "a"),
        ("PATCH", f"{PODS}/a", "patch pods", "a"),
        ("POST", f"{PODS}/a/binding", "binding", "a"),
        ("POST", ALLOCATIONS, "create gpuallocations", ""),
        ("PATCH", f"{ALLOCATIONS}/gpu-1/status", "ledger write", "gpu-1"),
        ("PATCH", f"{ALLOCATIONS}/gpu-1", "patch gpuallocations", "gpu-1"),
        ("GET", "/api/v1/namespaces/default", "read namespaces", "default"),
        ("GET", "/apis/coordination.k8s.io/v1/namespaces/x/leases?watch=1", "watch leases", ""),
        ("GET", "/apis", "other", ""),
    ],
)
def test_a_request_is_known_by_its_kind_and_by_the_name_of_its_object(
    method: str, path: str, kind: str, name: str
) -> None:
    request = Request(method, path)
    assert (request.kind, request.name, request.is_watch) == (kind, name, kind.startswith("watch"))


@pytest.mark.parametrize(
    ("verb", "body", "name"),
    [
        ("filter", {"Pod": {"metadata": {"name": "a"}}, "NodeNames": []}, "a"),
        ("bind", {"PodName": "a", "PodUID": "u", "Node": "n"}, "a"),
        ("bind", [], ""),
    ],
)
def test_a_question_to_the_extender_has_the_name_of_its_pod(verb: str, body: object, name: str) -> None:
    request = Request("POST", f"/{verb}", orjson.dumps(body))
    assert (request.kind, request.name) == (verb, name)


def write(*entries: Entry) -> Request:
    """Return what the journal sends for a card that "old" and "leaver" are on."""
    share = a_share(CARD)
    ledger = a_ledger()
    ledger.load(stored(CARD, a_holder("old", share), a_holder("leaver", share)))
    card = ledger.entry(CARD.uuid)
    assert isinstance(card, CardEntry)
    return Request("PATCH", f"{ALLOCATIONS}/{CARD.object_name}/status", orjson.dumps(patch_of(card, entries)))


async def test_what_a_group_of_ledger_entries_does_to_each_pod_is_told_apart() -> None:
    share = a_share(CARD)
    request = write(
        Add(holder=a_holder("new", share)),
        Change(holder=replace(a_holder("old", share), state=HolderState.RELEASING)),
        Remove(pod_uid="leaver", only=a_holder("leaver", share)),
    )
    found = {
        (kind.__name__, pod)
        for kind in (entering, changing, leaving)
        for pod in ("new", "old", "leaver")
        if kind(pod).holds_for(request)
    }
    assert found == {("entering", "new"), ("changing", "old"), ("leaving", "leaver")}
    assert ledger_write(CARD.uuid).holds_for(request)
    assert entering("new", CARD.uuid).holds_for(request)
    assert not entering("new", "GPU-other").holds_for(request)


@pytest.mark.parametrize(
    ("match", "path", "holds"),
    [
        (binding("a"), f"{PODS}/a/binding", True),
        (binding("a"), f"{PODS}/ab/binding", False),
        (binding(), f"{PODS}/ab/binding", True),
    ],
)
def test_a_binding_is_matched_by_the_whole_name_of_its_pod(match: Match, path: str, holds: bool) -> None:
    assert match.holds_for(Request("POST", path)) == holds


def test_lists_and_watches_are_matched_by_their_selector_too() -> None:
    bound = Request("GET", "/api/v1/pods?fieldSelector=spec.schedulerName%3Dx%2Cspec.nodeName%21%3D&watch=true")
    pending = Request("GET", "/api/v1/pods?fieldSelector=spec.schedulerName%3Dx%2Cspec.nodeName%3D&watch=true")
    assert watching("pods", "spec.nodeName!=").holds_for(bound)
    assert not watching("pods", "spec.nodeName!=").holds_for(pending)
    assert watching("pods").holds_for(pending)
    assert not listing("pods").holds_for(bound)
