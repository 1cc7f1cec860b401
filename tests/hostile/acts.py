"""What the same user does, again and again, rather than writes: connections, tokens, objects that come and go.

An act is a function of the cluster whose context lasts as long as the user goes on. Ports are open to all clients, so
a connection comes from anywhere.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from cluster.claims import share
from cluster.cluster import COUNT, MEMORY, Cluster, Connection, RequestFailed, container
from gpuledger.formats.kubernetes.other import AUDIENCE, TOKEN_HEADER
from hostile.catalogue import NAMESPACE, PATHS, a_pod
from hostile.claim_kinds import a_claim, a_claiming_pod
from hostile.others import create
from hostile.reservation_kinds import a_reservation

Json = dict[str, Any]
Act = Callable[[Cluster], AbstractContextManager[None]]

AT_ONCE = 8
"""Requests that somebody has under way."""

AGAIN_S, DRIP_S = 0.2, 1.0
"""Before a connection that was ended is opened again, and between two bytes of a slow one."""

HEAD = b"GET /v1/explain?pod=hostile/asks HTTP/1.1\r\nHost: gpuledger\r\n"
BODY = b"POST /v1/explain HTTP/1.1\r\nHost: gpuledger\r\nContent-Length: 1000000000\r\n\r\n"


@contextmanager
def going_on(*works: Callable[[], None]) -> Iterator[None]:
    """Have each of these done again and again, in a thread of its own, while the `with` runs."""
    ended = threading.Event()

    def run(work: Callable[[], None]) -> None:
        while not ended.is_set():
            with suppress(RequestFailed, OSError, http.client.HTTPException):
                work()

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


# Connections.


def port_of(cluster: Cluster) -> int:
    """Return the port that is open to all clients."""
    return int(urlsplit(cluster.installation.explain_url).port or 0)


@contextmanager
def connected(count: int, begin: bytes, more: bytes, cluster: Cluster) -> Iterator[None]:
    """Hold so many connections open, each of which begins so and sends a byte more now and then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    loop, opened, began = asyncio.new_event_loop(), 0, threading.Event()

    async def hold() -> None:
        nonlocal opened
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port_of(cluster))
                opened += 1
                if opened == count:
                    began.set()
                try:
                    writer.write(begin)
                    while not reader.at_eof():
                        with suppress(TimeoutError):
                            async with asyncio.timeout(DRIP_S):
                                await reader.read(4_096)
                        writer.write(more)
                finally:
                    writer.transport.abort()
                    with suppress(OSError):  # it would replace the cancellation that ends this task
                        await writer.wait_closed()
            await asyncio.sleep(AGAIN_S)

    async def hold_all() -> None:
        async with asyncio.TaskGroup() as group:  # it ends when all of them have closed theirs
            for _ in range(count):
                group.create_task(hold())

    def run() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(all_of_them)

    all_of_them = loop.create_task(hold_all())
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        began.wait(20)  # a server that lets in few never has as many
        yield
    finally:
        loop.call_soon_threadsafe(all_of_them.cancel)
        thread.join()
        loop.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# Questions.


def ask(cluster: Cluster, token: str) -> None:
    """Ask why a pod waits."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(cluster), timeout=20)
    try:
        connection.request("GET", f"/v1/explain?pod={NAMESPACE}/asks", headers={TOKEN_HEADER: token})
        connection.getresponse().read()
    finally:
        connection.close()


def a_token(cluster: Cluster) -> str:
    """Return one of the user's own: any pod can have it."""
    words = ("create", "token", "default", "-n", NAMESPACE, f"--audience={AUDIENCE}")
    return cluster.plane.kubectl(*words).strip()


def waits_for_cpu(name: str) -> Json:
    """Return a pod for which cards are there, and no CPU: to say why reads what is on the nodes."""
    limits = {COUNT: 1, MEMORY: 1_000, "cpu": "1000"}
    return a_pod(name, container(limits))


@contextmanager
def asking_with_a_token(cluster: Cluster) -> Iterator[None]:
    """Ask with a token of the user's own."""
    create(cluster, waits_for_cpu("asks"))
    token = a_token(cluster)
    with going_on(*[partial(ask, cluster, token)] * AT_ONCE):
        yield


@contextmanager
def asking_with_none(cluster: Cluster) -> Iterator[None]:
    """Ask with tokens that are none, each with another one: the API server is asked whose it is."""
    numbers = itertools.count()
    with going_on(*[lambda: ask(cluster, f"token-{next(numbers)}")] * AT_ONCE):
        yield


@contextmanager
def asking_beside_long_pods(cluster: Cluster) -> Iterator[None]:
    """Ask why a pod waits for its CPU, where the node is full of long pods."""
    text = "\U0001f600" + "x" * 1_380_000  # one such letter makes Python keep each in four bytes
    for number in range(90):
        long = a_pod(f"long-neighbour-{number}", container({}, args=[text]), nodeName="node-1-1", schedulerName="none")
        create(cluster, long)
    with asking_with_a_token(cluster):
        yield


# Objects that come and go.


def come_and_go(cluster: Cluster, *bodies: Json) -> Callable[[], None]:
    """Return what creates these objects and deletes them again, some ten of them in a second."""
    connection = Connection(cluster.plane)

    def work() -> None:
        time.sleep(AGAIN_S)
        for body in bodies:
            create(connection, body)
        for body in bodies:
            path = f"{PATHS[body['kind']]}/{body['metadata']['name']}"
            connection.request("DELETE", path, {"gracePeriodSeconds": 0})

    return work


@contextmanager
def remaking_claims(cluster: Cluster) -> Iterator[None]:
    """Delete claims that pods wait for, and make them anew."""
    claims = [a_claim(f"remade-{number}", share("39000Gi")) for number in range(20)]
    for number in range(60):
        create(cluster, a_claiming_pod(f"waits-for-remade-{number}", [f"remade-{number % 20}"]))
    with going_on(come_and_go(cluster, *claims)):
        yield


@contextmanager
def remaking_pods(cluster: Cluster) -> Iterator[None]:
    """Let pods come and go that change the ledger: all who wait are looked at again."""
    for number in range(50):
        create(cluster, a_pod(f"large-{number}", container({COUNT: 8, MEMORY: 40_000 + number})))
    with going_on(come_and_go(cluster, *(a_pod(f"brief-{n}", container({COUNT: 1, MEMORY: 1})) for n in range(4)))):
        yield


@contextmanager
def remaking_reservations(cluster: Cluster) -> Iterator[None]:
    """Delete reservations and make them anew, some with room and some without."""
    bodies = [a_reservation(f"remade-{n}", {COUNT: 1, MEMORY: 1}, count=8) for n in range(4)]
    bodies += [a_reservation(f"never-{n}", {COUNT: 8, MEMORY: 39_000 + n}, count=256) for n in range(4)]
    with going_on(come_and_go(cluster, *bodies)):
        yield


ACTS: dict[str, Act] = {
    "1,500 connections that say nothing": partial(connected, 1_500, b"", b""),
    "4,000 connections that say nothing": partial(connected, 4_000, b"", b""),
    "1,500 connections whose heads do not end": partial(connected, 1_500, HEAD, b"X"),
    "300 connections whose bodies do not end": partial(connected, 300, BODY, b"X"),
    "questions with a token": asking_with_a_token,
    "questions with tokens that are none": asking_with_none,
    "questions beside 90 long pods": asking_beside_long_pods,
    "claims that are made anew": remaking_claims,
    "pods that come and go": remaking_pods,
    "reservations that come and go": remaking_reservations,
}
