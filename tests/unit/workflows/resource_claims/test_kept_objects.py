"""What stays in memory of claims and templates: what pods name, within bounds, and little else."""

from __future__ import annotations

import gc
import itertools

import pytest

from fakes.claims import a_claim_spec, a_resource_claim
from gpuledger.formats.resource_claims.claims import Claim, ClaimSpec, read_claim, read_spec
from gpuledger.model.errors import BadInput
from gpuledger.workflows.resource_claims.claims import NAMESPACE_BYTES, SPARE_BYTES, KeptObjects, Kind

NUMBERS = itertools.count()


def a_spec(size: int = 20_000, text: str = "x") -> ClaimSpec:
    """Return a spec that asks for something else than all others."""
    expression = f'"{next(NUMBERS)}{text * (size // len(text.encode()))}" == ""'
    return read_spec(a_claim_spec(selectors=[{"cel": {"expression": expression}}]))


def put(kept: KeptObjects, name: str, spec: ClaimSpec, namespace: str = "default") -> None:
    kept.put(Kind.TEMPLATES, (namespace, name), f"uid-{name}", spec)


def names(kept: KeptObjects, pod: str, *templates: str, namespace: str = "default") -> list[str]:
    """Have a pod name templates; return which of them should be read."""
    kept.to_read.clear()
    kept.names(pod, frozenset((Kind.TEMPLATES, (namespace, name)) for name in templates))
    return sorted(name for _, (_, name) in kept.to_read)


def in_memory(kept: KeptObjects, *templates: str) -> list[str]:
    return [name for name in templates if kept.find(Kind.TEMPLATES, ("default", name)) is not None]


def test_of_what_no_pod_names_the_latest_stay_and_of_the_others_only_that_they_are_there() -> None:
    kept = KeptObjects()
    for number in range(400):
        put(kept, f"t{number}", a_spec())
    assert in_memory(kept, "t0", "t100") == []
    assert in_memory(kept, "t399") == ["t399"]
    sizes = [found.size_bytes for found in kept._objects.values()]
    assert 0.9 * SPARE_BYTES < sum(sizes) <= SPARE_BYTES
    assert len(kept.uids(Kind.TEMPLATES)) == 400
    assert names(kept, "pod", "t0", "t399", "nowhere") == ["t0"]


def test_what_a_pod_names_stays_until_no_pod_names_it() -> None:
    kept = KeptObjects()
    names(kept, "a", "mine")
    names(kept, "b", "mine")
    put(kept, "mine", a_spec())
    names(kept, "a")
    for number in range(400):
        put(kept, f"t{number}", a_spec())
    assert in_memory(kept, "mine") == ["mine"]
    assert kept.naming(Kind.TEMPLATES, ("default", "mine")) == {"b"}
    names(kept, "b")
    for number in range(400, 800):
        put(kept, f"t{number}", a_spec())
    assert in_memory(kept, "mine") == []
    assert kept.pods() == set()
    assert kept._naming == {}


def test_a_namespace_has_room_for_so_many_different_specs_and_others_are_not_concerned() -> None:
    kept = KeptObjects()
    most = NAMESPACE_BYTES // 20_000
    wanted = [f"t{number}" for number in range(most + 20)]
    for number, name in enumerate(wanted):
        names(kept, f"pod-{number}", name)
        put(kept, name, a_spec())
    assert kept.asked(Kind.TEMPLATES, ("default", "t0"))
    with pytest.raises(BadInput, match=rf"ResourceClaimTemplate t{most + 10}: .* more than 2,097,152 bytes"):
        kept.asked(Kind.TEMPLATES, ("default", f"t{most + 10}"))
    names(kept, "other", "theirs", namespace="other")
    put(kept, "theirs", a_spec(), namespace="other")
    assert kept.asked(Kind.TEMPLATES, ("other", "theirs"))


def test_equal_specs_have_room_once_however_many_pods_bring_them() -> None:
    kept = KeptObjects()
    for number in range(2_000):
        names(kept, f"pod-{number}", f"t{number}")
        put(kept, f"t{number}", read_spec(a_claim_spec("3000Mi")))
    assert kept.asked(Kind.TEMPLATES, ("default", "t1999"))


def test_room_comes_free_when_nothing_holds_a_spec_and_not_before() -> None:
    """A request that waits holds what its claim asked for, though the claim may be gone."""
    kept, requests = KeptObjects(), []
    for number in itertools.count():
        names(kept, f"pod-{number}", f"t{number}")
        put(kept, f"t{number}", a_spec())
        try:
            requests.append(kept.asked(Kind.TEMPLATES, ("default", f"t{number}")))
        except BadInput:
            break
        kept.forget(Kind.TEMPLATES, ("default", f"t{number}"), f"uid-t{number}")
    assert names(kept, f"pod-{number}", f"t{number}") == [f"t{number}"], "it is to be read again"
    requests.clear()
    gc.collect()
    put(kept, f"t{number}", a_spec())
    assert kept.asked(Kind.TEMPLATES, ("default", f"t{number}"))


def test_what_no_pod_names_gives_way_to_what_pods_of_its_namespace_name() -> None:
    kept = KeptObjects()
    for number in range(NAMESPACE_BYTES // 20_000):
        names(kept, "first", f"t{number}")
        put(kept, f"t{number}", a_spec())
        kept.asked(Kind.TEMPLATES, ("default", f"t{number}"))
    names(kept, "first")
    names(kept, "second", "mine")
    put(kept, "mine", a_spec(40_000))
    assert kept.asked(Kind.TEMPLATES, ("default", "mine"))


def test_a_spec_that_is_too_long_is_refused_in_words_and_not_kept() -> None:
    kept = KeptObjects()
    spec = a_spec(70_000)
    assert spec.requests == ()
    put(kept, "long", spec)
    assert in_memory(kept, "long") == []
    assert names(kept, "pod", "long") == ["long"]
    put(kept, "long", spec)
    with pytest.raises(BadInput, match=r"ResourceClaimTemplate long: .* 70,\d\d\d bytes as JSON, and 65,536 are"):
        kept.asked(Kind.TEMPLATES, ("default", "long"))


def test_what_a_claim_tells_other_drivers_does_not_count() -> None:
    config = [{"opaque": {"driver": "other.example.com", "parameters": {"text": "x" * 9_000}}} for _ in range(20)]
    spec = a_claim_spec()
    spec["devices"]["config"] = config
    assert read_spec(spec) == read_spec(a_claim_spec())


def test_of_a_claim_nothing_is_kept_without_a_bound() -> None:
    body = a_resource_claim(pods=["p" * 100_000])
    body["metadata"]["finalizers"] = [f"example.com/f{number}" for number in range(10_000)]
    body["metadata"]["ownerReferences"] = [{"kind": "Pod", "uid": "u" * 100_000, "controller": True}]
    body["metadata"]["annotations"] = {"note": "x" * 200_000}
    found = read_claim(body)
    assert isinstance(found, Claim)
    assert len(repr(found)) < 2_000
    assert found.finalizers is None, "they are read where they matter"
