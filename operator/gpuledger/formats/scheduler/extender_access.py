"""How the extender knows kube-scheduler, which sends its extenders no token: by a password in the extender's URL.

Go's HTTP client sends it as Basic authentication, and writes *** in its place into the errors that kube-scheduler shows
in pods' conditions: "Post http://kube-scheduler:***@127.0.0.1:8888/filter: ... connection refused". A secret in the
URL's path would be in there as it is. So is the whole URL, password included, in what kube-scheduler says of a status
other than 200 (pkg/scheduler/extender.go, `send`): whoever knows the password never gets one.
"""

from __future__ import annotations

from base64 import b64encode
from urllib.parse import urlsplit, urlunsplit

USER = "kube-scheduler"


def url_with(url: str, secret: str) -> str:
    """Return an extender's URL with the secret; without one, as it is."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{USER}:{secret}@{parts.netloc}")) if secret else url


def url_without(url: str) -> str:
    """Return the URL of an extender without a secret."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def authorization(secret: str) -> str:
    """Return the header with which a client proves that it knows the secret."""
    return f"Basic {b64encode(f'{USER}:{secret}'.encode()).decode()}" if secret else ""
