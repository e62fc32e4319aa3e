"""Runs Flower's SuperNode in a process that shows whether it works, and that ends when it stops."""

from __future__ import annotations

import math
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sordino.flower.node_certificates import show_certificate
from sordino.protocol import UserError

# Seconds between two looks for messages: right after one came, and when none has come for long.
# Flower itself waits 3 s.
FIRST_PAUSE = 0.2
LAST_PAUSE = 2.0
# Growth of the pause from look to look.
GROWTH = 1.2
# Seconds between two looks for the answer of the local work; Flower itself waits 0.5 s.
ANSWER_PAUSE = 0.05
# Flower waits for messages where it sleeps at least this many seconds.
MESSAGE_SLEEP = 1.0
# Names in Flower's loop that are replaced.
REPLACED_NAMES = ("_pull_and_store_message", "_push_messages", "_init_connection", "time")


class Heartbeats:
    """Holds what a SuperNode shows its supervisor, in memory that both processes share.

    Times are those of the system's monotonic clock.
    """

    # Time of the loop, time of the link, id of the node.
    FORM = "ddQ"

    def __init__(self) -> None:
        """Creates the shared memory; processes that are forked later share it."""
        self._memory = mmap.mmap(-1, struct.calcsize(self.FORM))
        self.reset()

    def reset(self) -> None:
        """Begins again, for a SuperNode that is starting now."""
        self._write(time.monotonic(), 0.0, self.node)

    @property
    def loop(self) -> float:
        """When the SuperNode last looked for messages."""
        return float(self._read()[0])

    @property
    def link(self) -> float:
        """When the SuperLink last accepted a heartbeat; 0 if it never did."""
        return float(self._read()[1])

    @property
    def node(self) -> int:
        """The id of the node at the SuperLink; 0 if it was never admitted."""
        return int(self._read()[2])

    def note_loop(self) -> None:
        """Notes that the SuperNode looks for messages."""
        self._write(time.monotonic(), self.link, self.node)

    def note_link(self) -> None:
        """Notes that the SuperLink accepted a heartbeat."""
        self._write(self.loop, time.monotonic(), self.node)

    def note_admission(self, node: int) -> None:
        """Notes that the SuperLink admitted the node.

        Args:
            node: Its id there.
        """
        now = time.monotonic()
        self._write(now, now, node)

    def _read(self) -> tuple[Any, ...]:
        return struct.unpack(self.FORM, self._memory[:])

    def _write(self, loop: float, link: float, node: int) -> None:
        self._memory[:] = struct.pack(self.FORM, loop, link, node)


class PollingPauses:
    """Replaces the module `time` in Flower's loop: its pauses are shorter, and each is noted."""

    def __init__(self, heartbeats: Heartbeats) -> None:
        """Creates the replacement.

        Args:
            heartbeats: Where pauses are noted.
        """
        self._heartbeats = heartbeats
        self._pause = FIRST_PAUSE

    def sleep(self, seconds: float) -> None:
        """Pauses: for messages longer and longer, for the answer of local work shortly.

        Args:
            seconds: How long Flower would pause.
        """
        self._heartbeats.note_loop()
        if seconds < MESSAGE_SLEEP:
            time.sleep(ANSWER_PAUSE)
            return
        time.sleep(self._pause)
        self._pause = min(self._pause * GROWTH, LAST_PAUSE)

    def shorten(self) -> None:
        """Makes the next pause short: where one message came, another may follow."""
        self._pause = FIRST_PAUSE


def check_flower_loop() -> None:
    """Checks that Flower's loop has the names that this module replaces.

    Raises:
        UserError: The installed version of Flower does not fit.
    """
    from flwr.supernode import start_client_internal as loop

    missing = [name for name in REPLACED_NAMES if not hasattr(loop, name)]
    if missing:
        raise UserError(
            f"this version of Flower has no {', '.join(missing)} in its SuperNode. "
            "Install the one that Sordino asks for: pip install 'sordino[flower]'"
        )


def run_supernode(
    arguments: Sequence[str], heartbeats: Heartbeats, wake_pipe: int, key: Path | None = None
) -> int:
    """Runs Flower's SuperNode in this process until it ends.

    Args:
        arguments: Arguments of Flower's command.
        heartbeats: Where it shows that it works.
        wake_pipe: A pipe that gets a byte when a message has come.
        key: File of the private key whose certificate it shows; None without TLS.

    Returns:
        An exit code.
    """
    from flwr.supernode.cli.flower_supernode import flower_supernode

    instrument_loop(heartbeats, wake_pipe)
    if key is not None:
        show_certificate(key)
    sys.argv = ["flower-supernode", *arguments]
    try:
        flower_supernode()
    except SystemExit as ended:
        if isinstance(ended.code, int):
            return ended.code
        return int(ended.code is not None)
    # Flower's command returns only when its connection is lost for good.
    return 1


def instrument_loop(heartbeats: Heartbeats, wake_pipe: int) -> None:
    """Makes Flower's loop show that it works; it has no hooks for that.

    Args:
        heartbeats: Where it is noted.
        wake_pipe: A pipe that gets a byte when a message has come.
    """
    import httpx
    from flwr.supernode import start_client_internal as loop
    from flwr.supernode.fleet_http_client import FleetHttpClient

    pauses = PollingPauses(heartbeats)
    pull = loop._pull_and_store_message
    connect = loop._init_connection
    send_heartbeat = FleetHttpClient.SendNodeHeartbeat
    call = FleetHttpClient._unary_unary

    def call_and_note(self: Any, **named: Any) -> Any:
        # Heartbeats come from another thread, and say nothing about the one that works.
        working = threading.current_thread() is threading.main_thread()
        try:
            answer = call(self, **named)
        except (httpx.RemoteProtocolError, httpx.ReadError):
            if working and heartbeats.link == 0.0:
                # The SuperLink closes the connection of a node that is not registered yet. Flower
                # would try again after longer and longer pauses; the supervisor says why, and
                # tries again soon.
                sys.exit(1)
            raise
        if working:
            heartbeats.note_loop()
        return answer

    def pull_and_wake(*given: Any, **named: Any) -> Any:
        found = pull(*given, **named)
        heartbeats.note_loop()
        if found is not None:
            pauses.shorten()
            with suppress(BlockingIOError):
                os.write(wake_pipe, b"!")
        return found

    @contextmanager
    def connect_and_note(*given: Any, **named: Any) -> Iterator[Any]:
        with connect(*given, **named) as connection:
            heartbeats.note_admission(connection[0])
            yield connection

    def send_and_note(self: Any, request: Any) -> Any:
        answer = send_heartbeat(self, request)
        heartbeats.note_link()
        return answer

    names = vars(loop)
    names["_pull_and_store_message"] = pull_and_wake
    names["_init_connection"] = connect_and_note
    names["time"] = pauses
    FleetHttpClient.SendNodeHeartbeat = send_and_note  # type: ignore[method-assign, unused-ignore]
    FleetHttpClient._unary_unary = call_and_note  # type: ignore[method-assign, unused-ignore]


def seconds_since(moment: float) -> float:
    """Returns the seconds since a moment of the monotonic clock.

    Args:
        moment: The moment; 0 for one that never was.

    Returns:
        The seconds; infinity for a moment that never was.
    """
    if moment <= 0:
        return math.inf
    return time.monotonic() - moment
