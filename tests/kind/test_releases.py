"""How an installation changes: settings, versions, certificates."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from kind.cluster import COUNT, MEMORY, NAMESPACE, WORKERS, KindCluster, address_of, pod, restarts, shares


def test_settings_and_versions_change_under_shares_and_no_container_restarts(cluster: KindCluster) -> None:
    cluster.apply(*shares(20, "kept"))
    before = cluster.wait_running("app=kept", 20)
    held = cluster.holders()

    def unchanged() -> None:
        now = cluster.wait_running("app=kept", 20)
        assert restarts(now) == 0
        assert {each["metadata"]["uid"] for each in now} == {each["metadata"]["uid"] for each in before}
        assert {name: cards for name, cards in cluster.holders().items() if name.startswith("kept")} == {
            name: cards for name, cards in held.items() if name.startswith("kept")
        }

    cluster.upgrade("settings.node_policy=spread")
    unchanged()
    cluster.docker.run("docker", "tag", image(cluster), "gpuledger:next")
    cluster.docker.run("kind", "load", "docker-image", "gpuledger:next", "--name", "gpuledger")
    cluster.upgrade("image.tag=next")
    unchanged()
    cluster.apply(*shares(3, "later"))
    cluster.wait_running("app=later", 3)
    cluster.helm("rollback", "gpuledger", "1")
    cluster.wait_rolled_out()
    unchanged()


def image(cluster: KindCluster) -> str:
    [deployment] = cluster.objects("deployment/gpuledger", f"--namespace={NAMESPACE}")
    return str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])


def test_a_new_certificate_of_the_webhook_is_served_without_a_restart(cluster: KindCluster, tmp_path: Path) -> None:
    """The API server trusts both while one takes over, and in the end the new one alone."""
    first, second, both = (tmp_path / name for name in ("first", "second", "both"))
    for name in (first, second):
        subject = "gpuledger-webhook.gpuledger-system.svc"
        argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={subject}"]
        files = ["-addext", f"subjectAltName=DNS:{subject}", "-keyout", f"{name}.key", "-out", f"{name}.crt"]
        subprocess.run([*argv, *files], capture_output=True, check=True)
    both.write_text(first.with_suffix(".crt").read_text() + second.with_suffix(".crt").read_text())
    webhook = ("admission.mode=webhook", "admission.webhook.certificate=secret")
    set_certificate(cluster, first)
    cluster.upgrade(*webhook, admission_webhook_caBundle=both)
    cluster.wait(lambda: filled_in(cluster, "by-first"), "the webhook answers with the first certificate", 60)
    [before] = cluster.pods("app.kubernetes.io/name=gpuledger", NAMESPACE)
    set_certificate(cluster, second)
    deadline_s = time.monotonic() + 150  # the kubelet shows a new Secret within a minute or so
    number = 0
    while served(cluster) != second.with_suffix(".crt").read_text().strip():
        assert time.monotonic() < deadline_s
        number += 1
        assert filled_in(cluster, f"between-{number}")
        time.sleep(5)
    assert filled_in(cluster, "by-second")
    [after] = cluster.pods("app.kubernetes.io/name=gpuledger", NAMESPACE)
    assert (after["metadata"]["uid"], restarts([after])) == (before["metadata"]["uid"], restarts([before]))
    cluster.upgrade("admission.mode=auto")
    cluster.kubectl("delete", "secret", "gpuledger-webhook", f"--namespace={NAMESPACE}", "--ignore-not-found")


def set_certificate(cluster: KindCluster, name: Path) -> None:
    argv = ("create", "secret", "tls", "gpuledger-webhook", f"--cert={name}.crt", f"--key={name}.key")
    secret = cluster.kubectl(*argv, f"--namespace={NAMESPACE}", "--dry-run=client", "--output=yaml")
    cluster.kubectl("apply", "--filename=-", stdin=secret)


def served(cluster: KindCluster) -> str:
    """Return the certificate that the webhook serves, PEM, asked from a node."""
    script = (
        f"openssl s_client -connect {address_of(cluster, 'gpuledger')}:9443 < /dev/null 2> /dev/null | openssl x509"
    )
    return cluster.docker.run("docker", "exec", WORKERS[0], "sh", "-c", script).strip()


def filled_in(cluster: KindCluster, name: str) -> bool:
    """Return whether a pod that names no scheduler comes to ours: no policy does that in this mode."""
    body = pod(name, {COUNT: 1, MEMORY: 1000})
    del body["spec"]["schedulerName"]
    cluster.apply(body)
    [found] = cluster.objects("pod", name)
    return bool(found["spec"]["schedulerName"] == "gpuledger")


def test_helm_test_asks_the_operator_and_audits_and_leaves_nothing(cluster: KindCluster) -> None:
    cluster.helm("test", "gpuledger", "--timeout", "2m")
    assert cluster.pods("app.kubernetes.io/name=gpuledger-test", NAMESPACE) == []
