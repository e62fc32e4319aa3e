"""Questions to clients' machines that are asked again when Flower loses them, or their answers.

A client answers a round once, and sends the same bytes to whoever asks for it again. So asking
again costs nothing but a message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from sordino.engines.flower.roster import POLL, Roster

# What Flower says of messages that were lost on the way, or with the process that worked on them.
LOST = frozenset(
    {
        ErrorCode.MESSAGE_UNAVAILABLE,
        ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
        ErrorCode.NODE_UNAVAILABLE,
        ErrorCode.CLIENT_APP_CRASHED,
    }
)
AGAIN = 2.0  # seconds before a question that was lost is asked again
SILENCE = 4  # a client that says nothing is asked this many times within the deadline


@dataclass(kw_only=True)
class Asked:
    """The questions to one client that are open. It changes as they are asked and answered."""

    open: set[str] = field(default_factory=set)
    next: float = 0.0  # when it is asked again
    last: Message | None = None  # the last error that it replied with


class Inquiry:
    """Asks clients for one round. It holds which messages are under way."""

    def __init__(self, grid: Grid, roster: Roster, deadline: float) -> None:
        self._grid = grid
        self._roster = roster
        self._deadline = deadline
        self._asked: dict[int, Asked] = {}
        self._sent: dict[str, int] = {}  # message to client
        self._answers: dict[int, Message] = {}

    def collect(
        self, clients: Collection[int], question: Callable[[int, int], Message]
    ) -> dict[int, Message]:
        """Asks clients and waits until all have answered, or until the time is over.

        Args:
            clients: who is asked.
            question: makes the message to a client at a node.

        Returns:
            The last reply of every client that replied: its answer, or an error.
        """
        self._asked = {client: Asked() for client in clients}
        end = time.monotonic() + self._deadline
        while len(self._answers) < len(self._asked) and time.monotonic() < end:
            self._ask(question)
            self._read()
            if len(self._answers) < len(self._asked):
                time.sleep(POLL)
        for client, asked in self._asked.items():
            if asked.last is not None:
                self._answers.setdefault(client, asked.last)
        return self._answers

    def _ask(self, question: Callable[[int, int], Message]) -> None:
        """Asks everyone whose turn it is: at first, after a loss, and after a long silence."""
        now = time.monotonic()
        due = [
            client
            for client, asked in self._asked.items()
            if client not in self._answers and now >= asked.next
        ]
        if not due:
            return
        if any(self._asked[client].next > 0 for client in due):
            self._roster.refresh()  # a node that restarted may have come back as another
        nodes = self._roster.nodes
        there = [client for client in due if client in nodes]
        names = self._grid.push_messages([question(client, nodes[client]) for client in there])
        for name, client in zip(names, there, strict=True):
            self._asked[client].next = now + max(AGAIN, self._deadline / SILENCE)
            if name:
                self._asked[client].open.add(name)
                self._sent[name] = client

    def _read(self) -> None:
        waiting = [name for asked in self._asked.values() for name in asked.open]
        if not waiting:
            return
        for reply in self._roster.mailbox.pull(waiting):
            name = reply.metadata.reply_to_message_id
            client = self._sent[name]
            self._asked[client].open.discard(name)
            self._take(client, reply)

    def _take(self, client: int, reply: Message) -> None:
        """Takes a reply: an answer ends the matter, and so does an error that is not a loss.

        While an earlier question is still open, an error may only mean that the client is at work
        on that one.
        """
        asked = self._asked[client]
        if not reply.has_error():
            self._answers[client] = reply
            return
        asked.last = reply
        if reply.error.code in LOST:
            asked.next = time.monotonic() + AGAIN
        elif not asked.open:
            self._answers.setdefault(client, reply)
