"""What the same user can write as GPUReservations: cards for pods of its namespace that do not exist yet.

The API server looks at how much there is of them (crds/), and not at what their templates say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from cluster.cluster import COUNT, MEMORY, container
from gpuledger.model.clock import rfc3339
from hostile.catalogue import EMOJI_TEXT, NAMESPACE, SHARE, a_pod

Json = dict[str, Any]

API_VERSION = "gpuledger.dev/v1alpha1"
MOST_MEMBERS, MOST_OWNERS, MOST_LABELS = 256, 16, 16
"""The CRD's limits."""

TOO_MUCH = {COUNT: 8, MEMORY: 39_000_000}
OWNER = {"selector": {"matchLabels": {"app": "nobody"}}}


def a_reservation(name: str, limits: Mapping[str, object] = SHARE, *, template: object = None, **spec: object) -> Json:
    """Return a reservation of the hostile namespace, for pods that never come."""
    given = template or {"spec": {"containers": [container(limits)]}}
    return {
        "apiVersion": API_VERSION,
        "kind": "GPUReservation",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"count": 1, "owners": [OWNER], "template": given, **spec},
    }


def soon(seconds: float) -> str:
    """Return a time that comes soon."""
    return rfc3339(datetime.now(UTC) + timedelta(seconds=seconds))


def nested(depth: int) -> Json:
    """Return a term of affinity in others, which the CRD does not look at."""
    return {"nodeAffinity": nested(depth - 1)} if depth else {}


def with_pods(number: int) -> list[Json]:
    """Return a reservation with as many owners as it may have, and pods that have all of their labels but one."""
    labels = {f"label-{n}": "x" * 60 for n in range(MOST_LABELS)}
    owners = [{"selector": {"matchLabels": labels | {"label-0": f"owner-{n}"}}} for n in range(MOST_OWNERS)]
    pods = [a_pod(f"is-no-owner-{n}") for n in range(number)]
    for pod in pods:
        pod["metadata"]["labels"] = labels
    return [a_reservation("has-owners", owners=owners), *pods]


RESERVATION_KINDS: dict[str, Callable[[], list[Json]]] = {
    "300 reservations for which there is no room, each for another amount": lambda: [
        a_reservation(f"no-room-{n}", {**TOO_MUCH, MEMORY: 39_000_000 + n}) for n in range(300)
    ],
    "a reservation of 256 for which there is no room": lambda: [
        a_reservation("many", {COUNT: 8, MEMORY: 30_000}, count=MOST_MEMBERS)
    ],
    "20 reservations of 256, each for another amount": lambda: [
        a_reservation(f"many-{n}", {COUNT: 8, MEMORY: 30_000 + n}, count=MOST_MEMBERS) for n in range(20)
    ],
    "100 reservations that end at once": lambda: [
        a_reservation(f"brief-{n}", {COUNT: 1, MEMORY: 1}, expires=soon(2)) for n in range(100)
    ],
    "100 reservations that begin at once, and find no room": lambda: [
        a_reservation(f"later-{n}", {**TOO_MUCH, MEMORY: 39_000_000 + n}, notBefore=soon(2)) for n in range(100)
    ],
    "reservations with templates of a megabyte": lambda: [
        a_reservation(f"long-{n}", template={"spec": {"containers": [container(SHARE, args=[EMOJI_TEXT])]}})
        for n in range(30)
    ],
    "a reservation with a nested template": lambda: [
        a_reservation("nested", template={"spec": {"containers": [container(SHARE)], "affinity": nested(60)}})
    ],
    "reservations whose templates are none": lambda: [
        a_reservation(f"none-{n}", template=template)
        for n, template in enumerate(
            (
                {"spec": {"containers": 7}},
                {"spec": {"containers": [7]}},
                {"spec": {"containers": [{"name": "c", "resources": {"limits": [1]}}]}},
                {"spec": [], "metadata": {"labels": 7}},
                {"metadata": {"annotations": {"nvidia.com/use-gputype": ["x"]}}, "spec": {"containers": []}},
            )
        )
    ],
    "a reservation of 500 containers": lambda: [
        a_reservation(
            "containers",
            template={"spec": {"containers": [container({COUNT: 1, MEMORY: 25_000 + n}, f"c{n}") for n in range(500)]}},
        )
    ],
    "a reservation with a thousand node labels": lambda: [
        a_reservation(
            "labels",
            template={
                "spec": {"containers": [container(SHARE)], "nodeSelector": {f"l{n}": "x" * 20 for n in range(1_000)}}
            },
        )
    ],
    "a reservation whose owners nearly are its pods": lambda: with_pods(40),
    "reservations that name one another's pods": lambda: [
        a_reservation(f"same-{n}", {COUNT: 1, MEMORY: 1}, owners=[{"selector": {"matchLabels": {"app": "shared"}}}])
        for n in range(50)
    ],
}
