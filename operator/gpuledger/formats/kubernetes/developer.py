"""How somebody who may work in one namespace, and nothing else, proves that to the operator.

By a token of one of the namespace's service accounts, for an audience of our own: who may create it has `edit` there,
or runs there, and nobody else takes such a token for anything. It comes in a header of its own, because the API server
takes `Authorization` out of what it passes on to a Service.
"""

from __future__ import annotations

from gpuledger.model.json_object import Json

AUDIENCE = "gpuledger.dev/explain"
TOKEN_HEADER = "X-Gpuledger-Token"  # noqa: S105 - a name

SERVICE = "gpuledger-explain"
PORT_NAME = "explain"

TOKEN_LIFETIME_S = 600
"""The shortest that the API server gives."""

_ACCOUNT = "system:serviceaccount:"


def token_request() -> Json:
    """Return the body of a TokenRequest for such a token."""
    spec = {"audiences": [AUDIENCE], "expirationSeconds": TOKEN_LIFETIME_S}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}


def namespace_of_account(username: str) -> str:
    """Return the namespace of the service account with this user name; empty if it is none's."""
    namespace, _, name = username.removeprefix(_ACCOUNT).partition(":")
    return namespace if username.startswith(_ACCOUNT) and name else ""
