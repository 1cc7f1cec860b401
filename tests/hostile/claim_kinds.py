"""What the same user can write as ResourceClaims and templates, and the pods that name them.

A selector costs what it computes, a claim what it stores, and both what they are read for: see docs/claims.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cluster.claims import claim_spec, opaque, request, share
from cluster.cluster import container
from hostile.catalogue import NAMESPACE, a_pod

Json = dict[str, Any]

API_VERSION = "resource.k8s.io/v1"
DRIVER = "gpu.gpuledger.dev"
MOST_REQUESTS, MOST_SELECTORS, MOST_ALTERNATIVES, MOST_CLAIMS = 32, 32, 8, 32
"""The API server's limits: for a claim, for one of its requests, for that too, and for a pod."""


def a_claim(name: str, *requests: Json, **devices: Any) -> Json:
    """Return a claim of the hostile namespace."""
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": claim_spec(*requests, **devices),
    }


def a_template(name: str, *requests: Json, **devices: Any) -> Json:
    """Return a template of the hostile namespace."""
    found = a_claim(name, *requests, **devices)
    return {**found, "kind": "ResourceClaimTemplate", "spec": {"spec": found["spec"]}}


def a_claiming_pod(name: str, claims: Sequence[str] = (), templates: Sequence[str] = (), **spec: Any) -> Json:
    """Return a pod whose only container uses these claims."""
    sources = [{"resourceClaimName": each} for each in claims]
    sources += [{"resourceClaimTemplateName": each} for each in templates]
    listed = [{"name": f"c{number}", **each} for number, each in enumerate(sources)]
    user = {**container({}), "resources": {"claims": [{"name": each["name"]} for each in listed]}}
    return a_pod(name, user, resourceClaims=listed, **spec)


def selecting(*expressions: str, name: str = "gpu") -> Json:
    """Return a request for a card that all of these admit."""
    return request(name, selectors=[{"cel": {"expression": each}} for each in expressions])


def used(claim: Json) -> list[Json]:
    """Return a claim, and a pod that uses it."""
    name = claim["metadata"]["name"]
    return [claim, a_claiming_pod(f"uses-{name}", [name])]


def nested(depth: int, comparison: str = "==") -> str:
    """Return a selector in which a value of few lists, shared at each level, looks like 2**depth numbers."""
    text = f"v{depth} {comparison} v{depth}"
    for level in range(depth, 0, -1):
        text = f"[[v{level - 1}, v{level - 1}]].exists(v{level}, {text})"
    return f"[[1, 1]].exists(v0, {text})"


def dear(number: int) -> str:
    """Return a selector of some 4,000 steps that admits no card, unlike that of any other number."""
    numbers = list(range(30))
    return f"{numbers}.all(a, {numbers}.all(b, a * b < {1_000 + number})) && false"


def long_selector(number: int) -> str:
    """Return a selector of 2 kB, which takes long to compile."""
    return " || ".join(f'device.driver == "d{number}.{part}.example"' for part in range(55))


def many_selectors(claims: int, requests: int, selectors: int) -> Iterator[Json]:
    """Yield claims of which no two selectors are the same, and one pod that uses them all."""
    names = [f"selectors-{number}" for number in range(claims)]
    for place, name in enumerate(names):
        first = place * requests * selectors
        yield a_claim(
            name,
            *(
                selecting(*(long_selector(first + n * selectors + s) for s in range(selectors)), name=f"r{n}")
                for n in range(requests)
            ),
        )
    yield a_claiming_pod("uses-selectors", names)


def large_requests() -> list[Json]:
    """Return requests of 1.28 MB, nearly as much as etcd takes."""
    text = f'device.driver == "{"x" * 9_900}"'
    return [selecting(*[text] * 4, name=f"r{number}") for number in range(MOST_REQUESTS)]


def alternatives(number: int) -> Json:
    """Return a request for one of several, none of which there is."""
    parts = [{**share(f"{39_000 + n}Gi", name=f"a{n}")["exactly"], "name": f"a{n}"} for n in range(MOST_ALTERNATIVES)]
    return {"name": f"r{number}", "firstAvailable": parts}


DEPTH = 1_600
"""As deep as 10 KiB, the most that parameters may have, can be nested."""

NESTED = "nested deep"
"""Stands for a value that is nested so deep that Python's own encoder does not write it."""


def text_of(body: Json) -> bytes:
    """Return an object as it is posted."""
    return json.dumps(body).replace(f'"{NESTED}"', '{"a":' * DEPTH + "1" + "}" * DEPTH).encode()


LARGE = large_requests()

CLAIM_KINDS: dict[str, Callable[[], list[Json]]] = {
    # Selectors.
    **{
        f"a selector of shared lists, {depth} deep": lambda depth=depth: used(  # type: ignore[misc]
            a_claim(f"nested-{depth}", selecting(nested(depth)))
        )
        for depth in (20, 24, 28)
    },
    "a template whose selector has shared lists": lambda: [
        a_template("nested", selecting(nested(26, "!="))),
        *(a_claiming_pod(f"of-nested-{n}", templates=["nested"]) for n in range(20)),
    ],
    "text made of text": lambda: used(
        a_claim(
            "doubled",
            selecting(
                f'["{"x" * 100}"].exists(a, [a + a + a + a].exists(b, [b + b + b + b].exists(c, '
                "[c + c + c + c].exists(d, d + d == d))))"
            ),
        )
    ),
    "regular expressions": lambda: used(
        a_claim("expressions", selecting(f'"{"a" * 2_000}".matches("({"a?" * 200})+{"a" * 200}$")'))
    ),
    "ranges of ranges": lambda: used(a_claim("ranges", selecting(*(dear(n) for n in range(MOST_SELECTORS))))),
    "768 selectors in four claims of one pod": lambda: list(many_selectors(4, MOST_REQUESTS, 6)),
    "200 pods, each with a dear selector of its own": lambda: [
        each for n in range(200) for each in used(a_claim(f"dear-{n}", selecting(dear(n))))
    ],
    # Sizes.
    "200 claims of 1.28 MB that nobody uses": lambda: [
        *used(a_claim("small", share("39000Gi"))),
        *(a_claim(f"large-{n}", *LARGE) for n in range(200)),
    ],
    "long claims with pods": lambda: [each for n in range(10) for each in used(a_claim(f"long-{n}", *LARGE))],
    "a claim of annotations": lambda: used(
        {
            **(body := a_claim("annotated", share("39000Gi"))),
            "metadata": {**body["metadata"], "annotations": {"example.com/note": "<" * 250_000}},
        }
    ),
    # Requests.
    "all that a claim can ask for": lambda: used(
        a_claim("all", *(request(f"r{n}", allocationMode="All") for n in range(MOST_REQUESTS)))
    ),
    "more cards than there are, by a claim": lambda: used(
        a_claim("many", *(request(f"r{n}", count=1) for n in range(MOST_REQUESTS)))
    ),
    "alternatives of alternatives": lambda: [
        each
        for n in range(10)
        for each in used(a_claim(f"first-{n}", *(alternatives(place) for place in range(MOST_REQUESTS))))
    ],
    "constraints that contradict": lambda: used(
        a_claim(
            "constraints",
            *(share("1Gi", name=f"r{n}") for n in range(8)),
            constraints=[{"matchAttribute": f"{DRIVER}/{word}"} for word in ("uuid", "model", "index", "numaNode")]
            + [{"distinctAttribute": f"{DRIVER}/uuid"}],
        )
    ),
    "amounts without end": lambda: [
        each
        for n, word in enumerate(("9" * 18, "1e18", "0", "1m", "9223372036854775807"))
        for each in used(a_claim(f"amount-{n}", share(word)))
    ],
    "tolerations by the dozen": lambda: used(
        a_claim("tolerant", share("39000Gi", tolerations=[{"key": f"k{n}", "operator": "Exists"} for n in range(16)]))
    ),
    # Parameters.
    "parameters nested deep": lambda: [
        each
        for n in range(20)
        for each in used(
            a_claim(
                f"deep-{n}",
                request(),
                config=[{"opaque": {"driver": DRIVER, "parameters": {"a": NESTED}}} for _ in range(MOST_REQUESTS)],
            )
        )
    ],
    "parameters that are none": lambda: used(
        a_claim("odd", request(), config=[opaque(memoryMiB=-1, cores="many", memoryPercent=1e300, exclusive=[])])
    ),
    # Pods.
    "more pods of one claim than it may have": lambda: [
        a_claim("ours", share("100Mi")),
        *(a_claiming_pod(f"ours-{n}", ["ours"]) for n in range(270)),
    ],
    "a pod of 32 claims": lambda: [
        *(a_claim(f"one-{n}", share("39000Mi")) for n in range(MOST_CLAIMS)),
        a_claiming_pod("of-all", [f"one-{n}" for n in range(MOST_CLAIMS)]),
    ],
    "200 pods whose claims never come": lambda: [a_claiming_pod(f"never-{n}", [f"none-{n}"]) for n in range(200)],
    "a claim that says what it has": lambda: used(
        {
            **a_claim("says", share("39000Gi")),
            "status": {"reservedFor": [{"resource": "pods", "name": f"p{n}", "uid": f"u{n}"} for n in range(256)]},
        }
    ),
}
