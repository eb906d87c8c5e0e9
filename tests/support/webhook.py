"""A webhook on loopback for tests. It keeps what it receives, and accepts, refuses, delays or never answers."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Webhook:
    """`manner`: "takes", "refuses" (500), "hangs" (never a byte) or "drips" (a byte now and then, and never an end)."""

    def __init__(self, manner: str = "takes") -> None:
        self.manner = manner
        self.told: list[dict[str, Any]] = []
        self.asked = 0
        self.over = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked += 1
                if outer.manner == "hangs":
                    outer.over.wait(120)
                    return
                if outer.manner == "drips":
                    self.wfile.write(b"HTTP/1.0 200 OK\r\nX: ")
                    while not outer.over.wait(0.3):
                        self.wfile.write(b"x")
                    return
                if outer.manner == "takes":
                    outer.told.append(body)
                self.send_response(200 if outer.manner == "takes" else 500)
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:
                pass

            def handle(self) -> None:
                try:
                    super().handle()
                except OSError:  # the client has gone away
                    return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port

    def url(self, secret: str) -> str:
        return f"json://ana:{secret}@127.0.0.1:{self.port}/{secret}?+X-Key={secret}"

    def titles(self) -> list[str]:
        return [each["title"] for each in self.told]


@contextmanager
def webhook(manner: str = "takes") -> Iterator[Webhook]:
    made = Webhook(manner)
    thread = threading.Thread(target=made.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.over.set()
        made.server.shutdown()
        made.server.server_close()
        thread.join()
