"""Flower's SuperNode in a process that says whether it lives, and that ends when its work ends."""

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
from typing import Any

from sordino.protocol import UserError

FIRST_PAUSE = 0.2  # seconds between two looks for messages, right after one came
LAST_PAUSE = 2.0  # seconds between two looks when none has come for long; Flower's own: 3
GROWTH = 1.2  # of the pause, from look to look
WAIT = 0.05  # seconds between two looks for the answer of the local work; Flower's own: 0.5
SEAMS = ("_pull_and_store_message", "_push_messages", "_init_connection", "time")


class Beats:
    """Holds what a SuperNode shows its keeper, in memory that both share.

    Attributes are times of the system's monotonic clock: `loop` of its last look for messages,
    `link` of its last heartbeat that the SuperLink took, `node` the number that it has there.
    """

    FORM = "ddQ"

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, struct.calcsize(self.FORM))
        self.reset()

    def reset(self) -> None:
        """Begins anew, for a SuperNode that is started now."""
        self._write(time.monotonic(), 0.0, self.node)

    @property
    def loop(self) -> float:
        """When the SuperNode last looked for messages."""
        return float(self._read()[0])

    @property
    def link(self) -> float:
        """When the SuperLink last took a heartbeat; 0 if it never did."""
        return float(self._read()[1])

    @property
    def node(self) -> int:
        """The number of the node at the SuperLink; 0 if it was never let in."""
        return int(self._read()[2])

    def beat(self) -> None:
        """Notes that the SuperNode looks for messages."""
        self._write(time.monotonic(), self.link, self.node)

    def heard(self) -> None:
        """Notes that the SuperLink took a heartbeat."""
        self._write(self.loop, time.monotonic(), self.node)

    def let_in(self, node: int) -> None:
        """Notes that the SuperLink let the node in."""
        now = time.monotonic()
        self._write(now, now, node)

    def _read(self) -> tuple[Any, ...]:
        return struct.unpack(self.FORM, self._memory[:])

    def _write(self, loop: float, link: float, node: int) -> None:
        self._memory[:] = struct.pack(self.FORM, loop, link, node)


class Pauses:
    """Stands for the module `time` in Flower's loop: shorter pauses, each of which is a beat."""

    def __init__(self, beats: Beats) -> None:
        self._beats = beats
        self._pause = FIRST_PAUSE

    def sleep(self, seconds: float) -> None:
        """Pauses; what Flower waits 3 s for, longer and longer, and the rest shortly."""
        self._beats.beat()
        if seconds < 1.0:
            time.sleep(WAIT)
            return
        time.sleep(self._pause)
        self._pause = min(self._pause * GROWTH, LAST_PAUSE)

    def hurry(self) -> None:
        """Looks again soon: where one message came, another may follow."""
        self._pause = FIRST_PAUSE


def check_seams() -> None:
    """Raises an error where Flower's loop is not the one that this module knows.

    Raises:
        UserError: The installed version of Flower does not fit.
    """
    from flwr.supernode import start_client_internal as loop

    missing = [name for name in SEAMS if not hasattr(loop, name)]
    if missing:
        raise UserError(
            f"this version of Flower has no {', '.join(missing)} in its SuperNode. "
            "Install the one that Sordino asks for: pip install 'sordino[flower]'"
        )


def run_supernode(arguments: Sequence[str], beats: Beats, bell: int) -> int:
    """Runs Flower's SuperNode in this process until it ends; returns an exit code.

    Args:
        arguments: Of Flower's command.
        beats: Where it shows that it lives.
        bell: A pipe that gets a byte when a message has come.
    """
    from flwr.supernode.cli.flower_supernode import flower_supernode

    watch_loop(beats, bell)
    sys.argv = ["flower-supernode", *arguments]
    try:
        flower_supernode()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 1  # it returns only when its connection is lost for good


def watch_loop(beats: Beats, bell: int) -> None:
    """Puts beats into Flower's loop, which has no hooks for them."""
    from flwr.supernode import start_client_internal as loop
    from flwr.supernode.fleet_http_client import FleetHttpClient

    pauses = Pauses(beats)
    pull = loop._pull_and_store_message
    connect = loop._init_connection
    send_heartbeat = FleetHttpClient.SendNodeHeartbeat
    call = FleetHttpClient._unary_unary

    def call_and_beat(self: Any, **named: Any) -> Any:
        answer = call(self, **named)
        # Heartbeats come from another thread, and say nothing about the one that works.
        if threading.current_thread() is threading.main_thread():
            beats.beat()
        return answer

    def pull_and_ring(*given: Any, **named: Any) -> Any:
        found = pull(*given, **named)
        beats.beat()
        if found is not None:
            pauses.hurry()
            with suppress(BlockingIOError):
                os.write(bell, b"!")
        return found

    @contextmanager
    def connect_and_note(*given: Any, **named: Any) -> Iterator[Any]:
        with connect(*given, **named) as connection:
            beats.let_in(connection[0])
            yield connection

    def send_and_note(self: Any, request: Any) -> Any:
        answer = send_heartbeat(self, request)
        beats.heard()
        return answer

    names = vars(loop)
    names["_pull_and_store_message"] = pull_and_ring
    names["_init_connection"] = connect_and_note
    names["time"] = pauses
    FleetHttpClient.SendNodeHeartbeat = send_and_note  # type: ignore[method-assign, unused-ignore]
    FleetHttpClient._unary_unary = call_and_beat  # type: ignore[method-assign, unused-ignore]


def seconds_since(moment: float) -> float:
    """Returns the seconds since a moment of the monotonic clock; infinite for one that never was."""
    return time.monotonic() - moment if moment > 0 else math.inf
