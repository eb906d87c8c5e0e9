"""Serves metrics over HTTP in separate threads. Slow scrapers, or many, cost the daemon little.

There are at most `MOST_OPEN` connections, each for at most `LONGEST` seconds, and a new one at most
every `REST` seconds. One more ends the oldest, so slow connections keep no scraper out. The text is
renewed at most once a second, and takes at most a twentieth of the time. If the address is in use,
gpq reports it and tries again.
"""

from __future__ import annotations

import contextlib
import http.server
import logging
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from gpq.daemon.clock.deadlines import deadline, left
from gpq.outward import Address

MOST_OPEN = 16
LONGEST = 10.0  # seconds from the first byte to the last
REST = 0.05  # seconds between two connections
PATIENCE = 5.0  # seconds without a byte
FRESH = 1.0  # seconds for which a text is served again, at least
SHARE = 20.0  # and at least this many times as long as it took to make
AGAIN = 10.0  # seconds until the next try to listen
# A web page can give its own name the address 127.0.0.1, and would read the metrics through the
# browser of a user. A scraper on this machine uses the address, or "localhost".
NO_NAME = re.compile(r"(?:localhost|[\d.]+|\[[\da-f:.]+\])(?::\d+)?", re.IGNORECASE)
HOME = b"gpq: metrics for Prometheus are at /metrics\n"

log = logging.getLogger(__name__)


class Page:
    """The text of a registry, in the format that a scraper accepts. One thread makes it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        # content type -> (served until, text)
        self._made: dict[str, tuple[float, bytes]] = {}

    def text(self, accept_header: str) -> tuple[str, bytes]:
        """(content type, text)."""
        encode, kind = choose_encoder(accept_header[:1000])
        with self._lock:
            until, text = self._made.get(kind, (0.0, b""))
            if left(until) <= 0:
                began = time.monotonic()
                text = encode(self._registry)
                self._made = {
                    kind: (deadline(max(FRESH, SHARE * (time.monotonic() - began))), text)
                }
        return kind, text


class Exporter:
    """Call `start`, then `close`. Any thread may call `state`."""

    def __init__(self, address: Address, registry: CollectorRegistry) -> None:
        self._address = address
        self._page = Page(registry)
        self._closing = threading.Event()
        self._server: _Server | None = None
        self._problem = ""
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def state(self) -> tuple[str, str]:
        """(the URL, why it is not served)."""
        return self._address.url, self._problem

    def start(self) -> None:
        """Tries to listen at once, so that `state` is right for the next request."""
        self._open()
        self._thread.start()

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
        self._server.serve_forever(poll_interval=0.5)

    def _open(self) -> None:
        try:
            self._server = _Server(self._address, self._page.text)
        except OSError as error:
            problem = (
                f"cannot listen on {self._address.host}:{self._address.port}:"
                f" {(error.strerror or str(error)).lower()}"
            )
            if problem != self._problem:
                log.warning("cannot serve metrics: %s. Trying again every %.0f s", problem, AGAIN)
            self._problem = problem
            return
        self._problem = ""
        log.info("serving metrics at %s", self._address.url)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = MOST_OPEN

    def __init__(self, address: Address, text: Callable[[str], tuple[str, bytes]]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self.text = text
        self.private = address.private
        self._next = 0.0
        self._lock = threading.Lock()
        self._open: dict[Any, float] = {}  # connection -> when it ends
        super().__init__((address.host, address.port), _Scrape)

    def server_bind(self) -> None:
        """As in the library, but without looking up the host name, which may take minutes."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Makes early connections wait. Otherwise a crowd would take the interpreter away from the
        rounds."""
        time.sleep(max(self._next - time.monotonic(), 0.0))
        self._next = time.monotonic() + REST
        with self._lock:
            if len(self._open) >= MOST_OPEN:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open[request] = deadline(LONGEST)
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread available
            self.shutdown_request(request)

    def close_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().close_request(request)

    def service_actions(self) -> None:
        """Ends connections that took too long. The server calls this regularly."""
        with self._lock:
            late_requests = [request for request, until in self._open.items() if left(until) <= 0]
        for request in late_requests:
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a scraper went away", exc_info=True)


class _Scrape(http.server.BaseHTTPRequestHandler):
    server_version = "gpq"
    sys_version = ""
    timeout = PATIENCE
    server: _Server

    def do_GET(self) -> None:
        if self.server.private and not NO_NAME.fullmatch(self.headers.get("Host", "localhost")):
            self.send_error(HTTPStatus.FORBIDDEN, "use the address, not a name")
            return
        match self.path.partition("?")[0]:
            case "/metrics":
                try:
                    kind, text = self.server.text(self.headers.get("Accept", ""))
                except Exception:
                    log.exception("cannot create the metrics")
                    self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "see `gpq daemon logs`")
                    return
            case "/":
                kind, text = "text/plain; charset=utf-8", HOME
            case _:
                self.send_error(HTTPStatus.NOT_FOUND, "metrics are at /metrics")
                return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *arguments: object) -> None:
        """Does not log scrapes."""
