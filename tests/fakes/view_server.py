"""A stand-in for the operator's view server."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Json = dict[str, Any]


class ViewServer:
    """Answers by path, and what it was asked, with which token."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Json]] = {}
        self.asked: list[tuple[str, dict[str, str], str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                address = urlsplit(self.path)
                query = dict(parse_qsl(address.query))
                outer.asked.append((address.path, query, self.headers.get("Authorization")))
                status, answer = outer.answers.get(address.path, (404, {"error": "nothing is known of such a pod"}))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
