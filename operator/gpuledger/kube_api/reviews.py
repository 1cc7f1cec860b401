"""Which account a token has and what it may do: the API server's answers, for servers of ours that others reach."""

from __future__ import annotations

from gpuledger.kube_api.client import Json, KubeClient

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class KubeReviews:
    """Questions that change nothing, though they are sent by POST. The role system:auth-delegator allows them."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def user_of(self, token: str, audience: str = "") -> Json | None:
        """Return whose token it is: username, uid, groups, extra. Raises ApiError.

        None: unknown, expired, or for another audience; without one, the API server's own is meant.
        """
        spec = {"token": token, **({"audiences": [audience]} if audience else {})}
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        status = (await self._client.request("POST", TOKEN_REVIEWS, review)).get("status") or {}
        is_meant = not audience or audience in (status.get("audiences") or ())
        user: Json | None = status.get("user") if status.get("authenticated") is True and is_meant else None
        return user

    async def may_list(self, user: Json, group: str, resource: str) -> bool:
        """Tell whether a user may list the objects of a resource in all namespaces. Raises ApiError."""
        who = {key: user[name] for key, name in _SUBJECT.items() if user.get(name)}
        what = {"verb": "list", "group": group, "resource": resource}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {**who, "resourceAttributes": what},
        }
        status = (await self._client.request("POST", ACCESS_REVIEWS, review)).get("status") or {}
        return status.get("allowed") is True


_SUBJECT = {"user": "username", "uid": "uid", "groups": "groups", "extra": "extra"}
"""Key of a SubjectAccessReview -> that of a TokenReview's user."""
