"""`reserve`: makes a GPUReservation for the pods that a Deployment, a Job, or another object is about to make."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta

import click

from gpuledger.command_line.cluster_access import ClusterAccess
from gpuledger.command_line.options import (
    KIND_OF,
    OWNER_OF,
    OWNERS,
    Common,
    common_options,
    completed_names,
    duration_of,
    no_such,
)
from gpuledger.command_line.output import utc_now
from gpuledger.formats.custom_resource.reservation import KIND, MOST_MEMBERS
from gpuledger.formats.custom_resource.stored_card import API_VERSION
from gpuledger.model.clock import rfc3339
from gpuledger.model.errors import BadInput, Conflict, NotFound, did_you_mean
from gpuledger.model.json_object import Json, picked, placed_by

NUMBERS = {"deployment": "replicas", "statefulset": "replicas", "replicaset": "replicas", "job": "parallelism"}
"""Kind -> the field of its spec that says how many pods it makes at a time."""

KINDS = ("pod", *NUMBERS)


@click.command(short_help="Reserve GPUs for pods that are to come.")
@click.argument(
    "like",
    metavar="deploy/NAME | sts/NAME | job/NAME | rs/NAME | pod/NAME",
    shell_complete=completed_names("pod", *OWNERS),
)
@click.option("--name", help="Name of the reservation, if it is not that of the object.")
@click.option(
    "--count", type=click.IntRange(1, MOST_MEMBERS), help="For how many pods; by default, as many as the object makes."
)
@click.option("--for", "lasts", help="How long, such as 8h or 1d12h; by default, as long as allowed.")
@click.option("--in", "begins_in", help="After how long it begins, such as 2h; by default at once.")
@click.option("--again", is_flag=True, help="Reserve each part again when the pod that has taken it has ended.")
@click.option("--dry-run", is_flag=True, help="Print the object, and create nothing.")
@common_options("name", namespaced=True)
def reserve(
    like: str,
    name: str | None,
    count: int | None,
    lasts: str | None,
    begins_in: str | None,
    again: bool,
    dry_run: bool,
    common: Common,
) -> None:
    """Reserve GPUs for pods of an object before they exist: as much for each as its template asks for.

    Only pods that this object makes can take what is reserved; of a pod, those with the same labels. `kubectl get
    gpureservations` shows how far it has come. Your account needs `create` on gpureservations, such as by the
    ClusterRole gpuledger-reserver. Exit status: 0, or 2 after an error.
    """
    from gpuledger.command_line.owners import path_of

    with common.cluster() as cluster:
        namespace = common.namespace_named(cluster)
        if not namespace:
            raise BadInput("a reservation is in one namespace: name that with -n, and leave out -A")
        now = utc_now()
        begin, duration = _duration(begins_in, "--in"), _duration(lasts, "--for")
        body = _reservation(cluster, like, namespace, name, count)
        if begin:
            body["spec"]["notBefore"] = rfc3339(now + begin)
        if duration:
            body["spec"]["expires"] = rfc3339(now + begin + duration)
        if again:
            body["spec"]["allocateOnce"] = False
        if not dry_run:
            try:
                body = cluster.create(path_of("gpureservation", namespace), body)
            except Conflict:
                taken = body["metadata"]["name"]
                raise BadInput(f"there is a reservation {taken!r} already: --name gives another name") from None
            except NotFound:
                raise BadInput("the cluster has no GPUReservations: its administrator installs the CRD") from None
        common.show(body, lambda _: _lines(body, dry_run), [f"reservation/{body['metadata']['name']}"])
    sys.exit(0)


def _lines(body: Json, dry_run: bool) -> Iterator[str]:
    name, count = body["metadata"]["name"], body["spec"]["count"]
    limits = [each.get("resources", {}).get("limits") or {} for each in body["spec"]["template"]["spec"]["containers"]]
    asked = "; ".join(", ".join(f"{key}: {value}" for key, value in each.items()) for each in limits if each)
    said = "would be created" if dry_run else "created"
    yield f"reservation/{name} {said}, for {count} pod{'s' * (count != 1)}: {asked or 'no limits'}"
    if not dry_run:
        yield f"How far it has come: kubectl get gpureservations {name} -n {body['metadata']['namespace']} -o wide"


def _reservation(cluster: ClusterAccess, like: str, namespace: str, name: str | None, count: int | None) -> Json:
    """Return the object for pods like these. Raises BadInput and ApiError."""
    from gpuledger.command_line.owners import path_of

    word, _, named = like.partition("/")
    kind = KIND_OF.get(word.lower()) or OWNER_OF.get(word.lower()) or ""
    if kind not in KINDS or not named:
        hint = did_you_mean(word.lower(), (*KIND_OF, *OWNER_OF))
        raise BadInput(
            f"{like!r} names nothing to reserve for: write deploy/NAME, sts/NAME, job/NAME or pod/NAME{hint}"
        )
    try:
        found = cluster.read(path_of(kind, namespace, named))
    except NotFound:
        raise BadInput(no_such(kind, named, namespace)) from None
    template = found if kind == "pod" else found["spec"]["template"]
    if count is None:
        count = int(found["spec"].get(NUMBERS.get(kind, ""), 1) or 0)
    if not 1 <= count <= MOST_MEMBERS:
        raise BadInput(f"{kind}/{named} makes {count} pods: --count says for how many to reserve, 1 to {MOST_MEMBERS}")
    metadata = picked(template.get("metadata") or {}, ("labels", "annotations"))
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name or named, "namespace": namespace},
        "spec": {
            "count": count,
            "owners": [_owner(found, metadata)],
            "template": {"metadata": metadata, "spec": placed_by(template["spec"])},
        },
    }


def _owner(found: Json, metadata: Json) -> Json:
    name = found["metadata"]["name"]
    if found["kind"] != "Pod":
        return {"controller": {"kind": found["kind"], "name": name}}
    if not metadata.get("labels"):
        raise BadInput(f"pod/{name} has no labels, by which pods like it could be told: reserve for what makes them")
    return {"selector": {"matchLabels": metadata["labels"]}}


def _duration(text: str | None, option: str) -> timedelta:
    """Return the duration that an option gives, none if it is not given. Raises BadInput."""
    found = timedelta() if text is None else duration_of(text)
    if found is None:
        raise BadInput(f"{option} must be a duration, such as 8h or 1d12h, not {text!r}")
    return found
