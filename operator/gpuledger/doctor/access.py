"""The way to the API server, with the caller's own account.

A `kubectl proxy` on a socket that only this user can open, which ends with the command: so whatever logs kubectl in
logs us in, too. Without kubectl, a client in Python with a kubeconfig, or with the service account of the pod.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
from kubernetes_asyncio.client import Configuration

from gpuledger.kube_api.client import KubeClient
from gpuledger.model.errors import BadInput
from gpuledger.plugin.kubectl import Kubectl, error_of, find_kubectl

START_TIMEOUT_S = 20.0
"""How long kubectl may take until it serves."""

END_TIMEOUT_S = 2.0
NO_KUBECTL = "kubectl is not on the PATH, and --context needs it"


@contextlib.asynccontextmanager
async def client_of(kubeconfig: str | None, context: str | None) -> AsyncIterator[KubeClient]:
    """Yield a client until the `with` ends. Raises BadInput where there are no credentials."""
    kubectl = find_kubectl(kubeconfig, context)
    if kubectl is not None:
        async with _proxy(kubectl) as client:
            yield client
        return
    if context:
        raise BadInput(NO_KUBECTL)
    file = kubeconfig or os.environ.get("KUBECONFIG")
    client = await KubeClient.connect(Path(file) if file else None)
    try:
        yield client
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def _proxy(kubectl: Kubectl) -> AsyncIterator[KubeClient]:
    with tempfile.TemporaryDirectory(prefix="gpuledger-") as directory:  # nobody else may enter it
        socket = f"{directory}/proxy"
        argv = kubectl.argv("proxy", f"--unix-socket={socket}")
        pipe = asyncio.subprocess.PIPE
        null = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(*argv, stdin=null, stdout=pipe, stderr=pipe)
        try:
            await _until_it_serves(process)
            configuration = Configuration()
            configuration.host = "http://localhost"  # kubectl refuses other names
            client = KubeClient(configuration, aiohttp.UnixConnector(socket))
            try:
                yield client
            finally:
                await client.close()
        finally:
            await _end(process)


async def _until_it_serves(process: asyncio.subprocess.Process) -> None:
    assert process.stdout  # noqa: S101 - it was asked for
    assert process.stderr  # noqa: S101
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            if b"Starting to serve" in await process.stdout.readline():
                return
            complaint = (await process.stderr.read()).decode(errors="replace")
    except TimeoutError:
        raise BadInput(f"kubectl proxy has said nothing for {START_TIMEOUT_S:g} s") from None
    raise error_of(complaint)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(END_TIMEOUT_S):
            await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
