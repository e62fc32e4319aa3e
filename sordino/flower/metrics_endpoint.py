"""Publishes the state of a party: as files, and for Prometheus at an address of this machine."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sordino.federation.store.files import write_whole
from sordino.protocol import UserError

HEALTH_FILE = "health.json"
METRICS_FILE = "metrics.prom"
# Seconds after which a state that was not renewed counts as unhealthy.
FRESH = 30.0
# Connections that are answered at a time, and seconds that each has.
CONNECTIONS = 16
CALL_SECONDS = 10.0
# Names that a caller may use. A page in a browser here could have its own name lead here.
OWN_NAMES = ("127.0.0.1", "localhost")
# The format that Prometheus reads.
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class PublishedState:
    """Holds the last state of a party and writes it to files. One thread writes, others read."""

    def __init__(self, folder: Path) -> None:
        """Creates a state that is not healthy yet.

        Args:
            folder: Folder of health.json and metrics.prom.
        """
        self._folder = folder
        self._metrics = ""
        self._health: dict[str, object] = {"healthy": False, "said": "starting", "at": 0}
        self._published = 0.0

    def publish(self, healthy: bool, numbers: Mapping[str, float], words: str) -> None:
        """Replaces the state.

        Args:
            healthy: Whether everything that the party runs works.
            numbers: Values by the name of the metric.
            words: The state in words.
        """
        # All digits: six would round what was spent down.
        lines = [f"# TYPE {name} gauge\n{name} {value:.17g}\n" for name, value in numbers.items()]
        self._metrics = "".join(lines)
        self._health = {"healthy": healthy, "said": words, "at": int(time.time())}
        # By a clock that nobody sets: a state must not stay fresh while the other is put back.
        self._published = time.monotonic()
        try:
            write_whole(self._folder / HEALTH_FILE, json.dumps(self._health).encode())
            write_whole(self._folder / METRICS_FILE, self._metrics.encode())
        except OSError as error:
            # A full disk must not end what the party runs; the files grow old, and show it so.
            said = f"{words}; its state cannot be written: {error.strerror}"
            self._health = {**self._health, "healthy": False, "said": said}

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Returns the answer to a request for a path.

        Args:
            path: "/health" or "/metrics".

        Returns:
            Status, type and body. The status of "/health" is 503 unless the party is healthy and
            has said so lately; that of any other path is 404.
        """
        if path == "/metrics":
            return 200, METRICS_TYPE, self._metrics.encode()
        if path != "/health":
            return 404, "text/plain", b"there are /health and /metrics\n"
        health = self._health
        status = 503
        if health["healthy"] and time.monotonic() - self._published < FRESH:
            status = 200
        return status, "application/json", json.dumps(health).encode()


class LimitedServer(ThreadingHTTPServer):
    """Answers a limited number of connections at a time, counts them, and closes others.

    It runs in the process that looks after a party, whose threads and files must not be used up by
    anyone who reaches the port.
    """

    daemon_threads = True
    # Connections that wait to be answered or closed; with the usual five, others would wait long.
    request_queue_size = 128

    def __init__(self, *given: Any) -> None:
        """Creates the server; the arguments are those of http.server."""
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answers a connection in its own thread, or closes it.

        Args:
            request: The connection.
            client_address: Where it comes from.
        """
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers a connection.

        Args:
            request: The connection.
            client_address: Where it comes from.
        """
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing about a connection that broke.

        Args:
            request: The connection.
            client_address: Where it comes from.
        """


def serve_state(state: PublishedState, port: int) -> ThreadingHTTPServer:
    """Serves a state at 127.0.0.1, in a thread, until the returned server is shut down.

    Args:
        state: The state.
        port: Port of 127.0.0.1; 0 for any that is free.

    Returns:
        The server.

    Raises:
        UserError: The port is taken.
    """

    # One class for each server: http.server creates an object for every connection.
    class Handler(BaseHTTPRequestHandler):
        def setup(self) -> None:
            super().setup()
            # Who sends a byte now and then is never silent, so all of a call's time is limited.
            self.limit = threading.Timer(CALL_SECONDS, self.cut)
            self.limit.daemon = True
            self.limit.start()

        def cut(self) -> None:
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

        def finish(self) -> None:
            self.limit.cancel()
            with suppress(OSError):
                super().finish()

        def do_GET(self) -> None:
            status, kind, body = state.answer(self.path)
            if self.headers.get("Host", "").partition(":")[0] not in OWN_NAMES:
                status, kind, body = 421, "text/plain", b"ask under the name 127.0.0.1\n"
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Logs nothing: Prometheus asks every few seconds."""

    try:
        server = LimitedServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise UserError(
            f"metrics = {port}: the port cannot be used ({error.strerror}). Name another one in "
            "consortium.toml."
        ) from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
