"""A user of one namespace who creates what nobody would, all kinds that hostile/catalogue.py has, and deletes it again.

Nobody has to bind his pods, so whether they are bound is not checked (see rest.py). Those that are bound have shares,
which are checked like anybody's. Only pods that he has put on a node himself have none (see checker.py).

Chaos has JSON in etcd, where a `<` takes six bytes, too: what is so long only as JSON is refused here.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from chaos.admin import Admin
from hostile.catalogue import CATALOGUE, EVENTS, NAMESPACE, PATHS, path_of

Json = dict[str, Any]

MOST_OF_A_KIND = 5
"""Some kinds have hundreds of pods, behind which kube-scheduler lets all others wait, or dozens of which the API server
takes a second to delete each. test_hostile.py measures that; here, a seed should take no longer than without them."""

IN_THE_BACKGROUND: Json = {"propagationPolicy": "Background"}
"""A Job takes its pods with it; without this, the API server leaves them."""


def bodies_of(kind: str, node: str) -> list[Json]:
    """Return what is created. Pods that name a node, which this cluster does not have, get one of its own."""
    bodies = CATALOGUE[kind]()[:MOST_OF_A_KIND]
    return [{**body, "spec": _fitted(body.get("spec", {}), node)} for body in bodies]


def _fitted(spec: Json, node: str) -> Json:
    changes: Json = {"nodeName": node} if "nodeName" in spec else {}
    for number in {"parallelism", "completions"} & spec.keys():
        changes[number] = min(spec[number], MOST_OF_A_KIND)
    return {**spec, **changes}


def is_hostile(namespaced: Json) -> bool:
    """Return whether an object is in the hostile user's namespace."""
    return bool(namespaced["metadata"]["namespace"] == NAMESPACE)


class HostileUser:
    """Creates and deletes, one kind after the other."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self.counts: Counter[str] = Counter()
        """How many objects the API server has taken, and how many it has refused."""

    def create(self, kind: str, node: str) -> None:
        """Create all objects of a kind. The API server may refuse them, and earlier ones may be there still."""
        for body in bodies_of(kind, node):
            refusal = self._admin.try_to("POST", path_of(body), body)
            self.counts[f"hostile objects {'refused' if refusal else 'taken'}"] += 1

    def delete(self, kind: str, by_force: bool) -> None:
        """Delete all objects of a kind; finalizers, which nobody serves, are there for a moment longer."""
        options = IN_THE_BACKGROUND | ({"gracePeriodSeconds": 0} if by_force else {})
        for body in bodies_of(kind, node=""):
            path = f"{path_of(body)}/{body['metadata']['name']}"
            self._admin.try_to("DELETE", path, options)
            if body["metadata"].get("finalizers"):
                self._admin.patch(path, {"metadata": {"finalizers": None}})


def clear(admin: Admin) -> None:
    """Delete everything in the hostile user's namespace at once."""
    for path in PATHS.values():
        for found in admin.all(path):
            if found["metadata"].get("finalizers"):
                admin.patch(f"{path}/{found['metadata']['name']}", {"metadata": {"finalizers": None}})
        admin.try_to("DELETE", path, {"gracePeriodSeconds": 0, **IN_THE_BACKGROUND})
    admin.try_to("DELETE", EVENTS)
