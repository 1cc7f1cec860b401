"""A server whose process has no descriptor left when a client comes, and then some again."""

import asyncio
import os
import resource
import socket
import sys

from aiohttp import web

from gpuledger.serving import application_served

_, MOST = resource.getrlimit(resource.RLIMIT_NOFILE)
FEW = 64


async def main() -> None:
    """Serve one client, and print the first line of its answer."""
    application = web.Application()
    application.router.add_get("/", answer)
    async with application_served(application, "127.0.0.1", 0) as at:
        client = socket.socket()
        client.setblocking(False)
        resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, MOST))
        held = []
        try:
            while True:
                held.append(os.dup(0))
        except OSError:
            pass
        await asyncio.get_running_loop().sock_connect(client, at.address)
        await asyncio.sleep(0.2)
        for each in held:
            os.close(each)
        reader, writer = await asyncio.open_connection(sock=client)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        sys.stdout.write((await reader.readline()).decode().replace("\r", ""))
        writer.close()


async def answer(_: web.Request) -> web.Response:
    """Return an answer."""
    return web.Response(text="ok")


asyncio.run(main())
