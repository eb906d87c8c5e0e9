"""Serves metrics over HTTP with the server of prometheus-client, in a thread for each request. If
the address is in use, gpq reports it and tries again."""

from __future__ import annotations

import io
import logging
import re
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from gpq.outward import Address

MOST_OPEN = 32  # connections, so that a crowd takes no files and threads that rounds need
AGAIN = 10.0  # seconds until the next try to listen
# A web page can give its own name the address 127.0.0.1, and would read the metrics through the
# browser of a user. A scraper on this machine uses the address, or "localhost".
NO_NAME = re.compile(r"(?:localhost|[\d.]+|\[[\da-f:.]+\])(?::\d+)?", re.IGNORECASE)

log = logging.getLogger(__name__)


class Exporter:
    """Call `start`, then `close`. Any thread may call `state`."""

    def __init__(self, address: Address, registry: CollectorRegistry) -> None:
        self._address = address
        self._registry = registry
        self._closing = threading.Event()
        self._server: _Server | None = None
        self._problem = ""

    def state(self) -> tuple[str, str]:
        """(the URL, why it is not served)."""
        return self._address.url, self._problem

    def start(self) -> None:
        """Tries to listen at once, so that `state` is right for the next request."""
        self._open()
        threading.Thread(target=self._run, name="metrics", daemon=True).start()

    def close(self) -> None:
        self._closing.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _run(self) -> None:
        while self._server is None:
            if self._closing.wait(AGAIN):
                return
            self._open()
        self._server.serve_forever()

    def _open(self) -> None:
        try:
            self._server = _Server(self._address, self._registry)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            problem = f"cannot listen on {self._address.host}:{self._address.port}: {reason}"
            if problem != self._problem:
                log.warning("cannot serve metrics: %s. Trying again every %.0f s", problem, AGAIN)
            self._problem = problem
        else:
            self._problem = ""
            log.info("serving metrics at %s", self._address.url)


class _Server(ThreadingWSGIServer):
    def __init__(self, address: Address, registry: CollectorRegistry) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        super().__init__((address.host, address.port), _Scrape)
        self._places = threading.Semaphore(MOST_OPEN)
        metrics: Callable[..., Iterable[bytes]] = make_wsgi_app(registry)
        lock = threading.Lock()

        def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            if address.private and not NO_NAME.fullmatch(environ.get("HTTP_HOST", "localhost")):
                start_response("403 Forbidden", [("Content-Type", "text/plain")])
                return [b"use the address, not a name\n"]
            with lock:  # a crowd takes one thread's time from the rounds, not that of each
                try:
                    return metrics(environ, start_response)
                except Exception:
                    log.exception("cannot create the metrics")
                    raise  # the library answers 500

        self.set_app(answer)

    def server_bind(self) -> None:
        """As in the library, but without looking up the host name, which may take minutes."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return self._places.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a scraper went away", exc_info=True)


class _Scrape(WSGIRequestHandler):
    timeout = 5.0  # seconds without a byte

    def get_stderr(self) -> io.StringIO:
        """Does not report scrapers that stall."""
        return io.StringIO()

    def log_message(self, format: str, *arguments: object) -> None:
        """Does not log scrapes."""
