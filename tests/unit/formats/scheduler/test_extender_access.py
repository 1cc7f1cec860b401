"""The extender's URL with a secret in it, and without."""

import pytest

from gpuledger.formats.scheduler import authorization, url_with, url_without

URL = "http://127.0.0.1:8888"


def test_the_secret_is_the_password_of_the_url_that_gos_client_hides_in_errors() -> None:
    assert url_with(URL, "s3-_x") == "http://kube-scheduler:s3-_x@127.0.0.1:8888"
    assert authorization("s3-_x") == "Basic a3ViZS1zY2hlZHVsZXI6czMtX3g="


def test_without_a_secret_the_url_is_as_it_was_and_nothing_is_asked_for() -> None:
    assert (url_with(URL, ""), authorization("")) == (URL, "")


@pytest.mark.parametrize("url", [URL, "http://[::1]:1/a", "http://kube.example"])
def test_the_secret_can_be_taken_out_again(url: str) -> None:
    assert url_without(url_with(url, "s3")) == url_without(url) == url
