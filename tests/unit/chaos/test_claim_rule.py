"""A claim that is not what the ledger has is found: at the Binding, while it lasts, and at rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from chaos.checker import Checker
from chaos.claim_rule import unsettled_claims
from chaos.examples import NODE, a_card, a_holder, changed
from cluster.cluster import container

Json = dict[str, Any]
RULE = "a claim is not what the ledger has"
FIRST, SECOND = "uid-1", "uid-2"
CLAIM, UID = "shared-0-tiny", "uid-of-claim"


def a_claim(devices: Sequence[str] = ("gpu-1",), pods: Sequence[str] = (FIRST,), **metadata: object) -> Json:
    results = [{"request": "gpu", "driver": "gpu.gpuledger.dev", "pool": NODE, "device": each} for each in devices]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": uid, "uid": uid} for uid in pods],
    }
    return {
        "metadata": {"name": CLAIM, "namespace": "default", "uid": UID, **metadata},
        "status": status if devices else {},
    }


def a_user(uid: str, node: str | None = NODE, phase: str = "Pending") -> Json:
    claims = [{"name": "c0", "resourceClaimName": CLAIM}]
    return {
        "metadata": {"uid": uid, "namespace": "default", "name": f"pod-{uid}", "annotations": {}},
        "spec": {"containers": [container({})], "resourceClaims": claims, **({"nodeName": node} if node else {})},
        "status": {"phase": phase},
    }


def a_part(uid: str = FIRST, claim_uid: str = UID, state: str = "allocated") -> Json:
    part = {"name": "c0/gpu", "memoryMiB": 3000, "cores": 0, "claim": {"name": CLAIM, "uid": claim_uid, "shared": True}}
    return a_holder(uid, 3000, containers=[part], state=state)


def bind(checker: Checker, uid: str = FIRST) -> None:
    checker.take(changed("pod", None, a_user(uid, node=None)))
    checker.take(changed("pod", a_user(uid, node=None), a_user(uid)))


@pytest.fixture
def checker() -> Checker:
    return Checker(6.0, 60.0)


def found(checker: Checker) -> list[str]:
    return [finding.text for finding in checker.findings if finding.rule == RULE]


def test_a_pod_that_is_bound_with_its_claim_is_in_order(checker: Checker) -> None:
    checker.take(changed("card", None, a_card(a_part())))
    checker.take(changed("claim", None, a_claim()))
    bind(checker)
    assert not checker.findings
    assert checker.claims.checks == 1


def test_a_pod_that_is_bound_while_another_operator_takes_its_share_back_is_in_order(checker: Checker) -> None:
    checker.take(changed("card", None, a_card(a_part(state="releasing"))))
    checker.take(changed("claim", None, a_claim()))
    bind(checker)
    assert not found(checker)


def test_a_pod_that_joins_another_one_is_in_order(checker: Checker) -> None:
    checker.take(changed("card", None, a_card(a_part())))
    checker.take(changed("claim", None, a_claim(pods=(FIRST, SECOND))))
    bind(checker)
    bind(checker, SECOND)
    assert not checker.findings


def test_a_pod_that_joins_one_that_leaves_in_this_moment_inherits_its_share(checker: Checker) -> None:
    checker.take(changed("card", None, a_card(a_part())))
    checker.take(changed("claim", None, a_claim(pods=(FIRST, SECOND))))
    bind(checker)
    checker.take(changed("card", a_card(a_part()), a_card(a_part(state="releasing"))))
    bind(checker, SECOND)
    assert not found(checker)


@pytest.mark.parametrize(
    ("claim", "part", "words"),
    [
        (None, a_part(), "is not there"),
        (a_claim(devices=()), a_part(), "is not reserved for it"),
        (a_claim(pods=(SECOND,)), a_part(), "is not reserved for it"),
        (a_claim(devices=("gpu-2",)), a_part(), "has ['gpu-2'], and the ledger has ['gpu-1']"),
        (a_claim(devices=("gpu-1", "gpu-2")), a_part(), "the ledger has ['gpu-1']"),
        (a_claim(), a_part(claim_uid="uid-of-another"), "the ledger has []"),
        (a_claim(), a_part(uid="uid-never-bound"), "the ledger has []"),
    ],
    ids=["no claim", "no cards", "another pod's", "another card", "a card more", "another claim", "never bound"],
)
def test_a_binding_with_a_claim_that_is_not_so_is_found(
    checker: Checker, claim: Json | None, part: Json, words: str
) -> None:
    checker.take(changed("card", None, a_card(part)))
    if claim is not None:
        checker.take(changed("claim", None, claim))
    bind(checker)
    assert any(words in text for text in found(checker))


def test_a_card_that_two_pods_have_by_one_claim_is_found(checker: Checker) -> None:
    checker.take(changed("card", None, a_card(a_part())))
    checker.take(changed("claim", None, a_claim(pods=(FIRST, SECOND))))
    bind(checker)
    bind(checker, SECOND)
    checker.take(changed("card", a_card(a_part()), a_card(a_part(), a_part(SECOND))))
    assert any("is given to" in text for text in found(checker))


def test_a_share_that_is_being_given_back_is_no_second_one(checker: Checker) -> None:
    checker.take(changed("card", None, a_card(a_part())))
    checker.take(changed("claim", None, a_claim(pods=(FIRST, SECOND))))
    bind(checker)
    bind(checker, SECOND)
    checker.take(changed("card", a_card(a_part()), a_card(a_part(state="releasing"), a_part(SECOND))))
    assert not found(checker)


@pytest.mark.parametrize(
    ("claim", "holder", "pod", "rules"),
    [
        (a_claim(), a_part(), a_user(FIRST), []),
        (a_claim(devices=()), None, a_user(FIRST, node=None), []),
        (a_claim(devices=("gpu-2",)), a_part(), a_user(FIRST), ["a claim is not as the ledger has it"]),
        (a_claim(), None, a_user(FIRST), ["a claim is not as the ledger has it"]),
        (
            a_claim(),
            None,
            a_user(FIRST, phase="Succeeded"),
            [
                "a claim is not as the ledger has it",
                "a claim keeps cards that nobody uses",
                "a claim is reserved for others than use it",
            ],
        ),
        (a_claim(pods=(FIRST, SECOND)), a_part(), a_user(FIRST), ["a claim is reserved for others than use it"]),
        (a_claim(pods=()), a_part(), a_user(FIRST), ["a claim is reserved for others than use it"]),
        (
            a_claim(devices=(), deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["x"]),
            None,
            None,
            ["a claim that nobody uses can not be deleted"],
        ),
    ],
    ids=["in use", "waited for", "another card", "no card", "ended", "one too many", "nobody", "to be deleted"],
)
def test_what_is_left_of_claims_at_rest_is_found(
    claim: Json, holder: Json | None, pod: Json | None, rules: list[str]
) -> None:
    cards = {"GPU-1": a_card(holder) if holder else a_card()}
    pods = {pod["metadata"]["uid"]: pod} if pod else {}
    assert [rule for rule, _, _ in unsettled_claims({f"default/{CLAIM}": claim}, cards, pods)] == rules
