"""The facts of a cluster, and those that could not be read. Pure data, so that a check can be tried with any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from gpuledger.doctor.permissions import Permission
from gpuledger.formats.dialects.vocabulary import Dialects

Json = dict[str, Any]

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Unread:
    """Something that could not be read."""

    what: str
    """Such as "the Nodes"."""
    why: str
    needs: str
    """The permission or option that would make it readable."""


class NotCheckedError(Exception):
    """A check asked for what could not be read."""

    def __init__(self, unread: Unread) -> None:
        super().__init__(unread.what)
        self.unread = unread


def known(value: Value | Unread) -> Value:
    """Return what was read. Raises NotCheckedError if it was not."""
    if isinstance(value, Unread):
        raise NotCheckedError(value)
    return value


@dataclass(frozen=True, slots=True)
class Release:
    """The objects that this release would install in a cluster with these settings."""

    dialects: Dialects
    scheduler_names: tuple[str, ...]
    version: str
    """Of the doctor itself."""
    policies: Sequence[Json]
    """Policies and their bindings, of all kinds."""
    webhooks: Sequence[Json]
    """The webhook's configurations, with no address."""
    scheduler_config: Json
    preemption: str = "auto"
    topology: bool = False
    """Whether nodes or cards are chosen by how cards are connected."""
    with_cdi: bool = True
    native_gangs: bool = False
    resource_claims: bool = False
    webhook_port: int = 0


@dataclass(frozen=True, slots=True)
class AccountAccess:
    """The permissions that were checked for an account, and those that it lacks."""

    account: str
    denied: tuple[Permission, ...]


_NOT_ASKED = Unread("", "it was not requested", "")


@dataclass(frozen=True, slots=True)
class Facts:
    """A cluster, as far as it was read. `None` is what is certainly not there."""

    local_time: datetime
    """When the API server's clock was read, by ours."""
    server_time: datetime | Unread = _NOT_ASKED
    release: Release | Unread = _NOT_ASKED
    version: tuple[int, int] | Unread = _NOT_ASKED
    """Of the API server: major, minor."""
    crd: Json | Unread | None = _NOT_ASKED
    policies: Mapping[tuple[str, str], Json] | Unread = _NOT_ASKED
    """(Kind, name) -> policy or binding whose name begins like ours."""
    webhooks: Sequence[Json] | Unread = _NOT_ASKED
    """Webhook configurations named gpuledger."""
    settings: Mapping[str, Mapping[str, object]] | Unread = _NOT_ASKED
    """Whose settings these are -> option -> value, with the defaults."""
    operator_access: AccountAccess | Unread = _NOT_ASKED
    agent_access: AccountAccess | Unread = _NOT_ASKED
    lease: Json | Unread | None = _NOT_ASKED
    """The schedulers' Lease."""
    deployment: Json | Unread | None = _NOT_ASKED
    """Of operator and kube-scheduler."""
    operator_elsewhere: str = ""
    """Address of an operator that answers there and is no pod of the Deployment; empty if none is known."""
    daemon_set: Json | Unread | None = _NOT_ASKED
    """Of the node agents."""
    scheduler_configs: Mapping[str, Json] | Unread = field(default_factory=dict)
    """Where it was found -> a kube-scheduler's configuration that was not rendered where it is used."""
    our_pods: Sequence[Json] | Unread = _NOT_ASKED
    """Pods of our namespace."""
    last_words: Mapping[str, str] = field(default_factory=dict)
    """Name of a pod of ours that is not Ready -> the end of its log, or why it can't be read."""
    nodes: Sequence[Json] | Unread = _NOT_ASKED
    cards: Mapping[str, str] | Unread = _NOT_ASKED
    """Name of a GPUAllocation, the card's UUID in lower case -> its phase."""
    claims: Sequence[Json] | Unread | None = _NOT_ASKED
    """ResourceClaims of all namespaces; None where the API server has no resource.k8s.io/v1."""
    claims_held: frozenset[str] | Unread = _NOT_ASKED
    """UIDs of the claims that the ledger has cards for."""
    device_class: Json | Unread | None = _NOT_ASKED
    """Ours, for claims."""
    pods: Sequence[Json] | Unread = _NOT_ASKED
    """Pods of all namespaces that have not ended."""
    node_leases: Sequence[Json] | Unread = _NOT_ASKED
    """Leases by which kubelets say that they live."""
