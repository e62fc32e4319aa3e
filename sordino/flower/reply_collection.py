"""Collects the replies of a round, and asks again when Flower loses a request or its reply.

A client answers a round once, and sends the same bytes when it is asked again. So asking again
costs nothing but a message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from sordino.flower.connected_clients import POLL, ConnectedClients, find_question

# Flower's errors for messages that were lost on the way, or with the process that worked on them.
LOST = frozenset(
    {
        ErrorCode.MESSAGE_UNAVAILABLE,
        ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
        ErrorCode.NODE_UNAVAILABLE,
        ErrorCode.CLIENT_APP_CRASHED,
    }
)
# Seconds before a request that was lost is sent again.
RETRY_PAUSE = 2.0
# Seconds that others are waited for once enough clients have replied.
GRACE = 5.0
# A silent client is asked this many times within the deadline.
ATTEMPTS = 4


@dataclass(kw_only=True)
class PendingClient:
    """Holds the open requests to one client. It changes as they are sent and answered.

    Attributes:
        open: Ids of the requests that have no reply yet.
        next: When the client is asked again, on the monotonic clock.
        last: The last error that it replied with.
    """

    open: set[str] = field(default_factory=set)
    next: float = 0.0
    last: Message | None = None


def need_all(answered: Collection[int]) -> bool:
    """Returns False: all clients are waited for.

    Args:
        answered: The clients that have answered.
    """
    return False


class ReplyCollector:
    """Collects the replies of one round. It holds which messages are under way."""

    def __init__(self, grid: Grid, connected: ConnectedClients, deadline: float) -> None:
        """Creates a collector; use it for one round.

        Args:
            grid: Flower's connection to the nodes.
            connected: Which node is which client.
            deadline: Seconds that clients have to answer.
        """
        self._grid = grid
        self._connected = connected
        self._deadline = deadline
        self._pending: dict[int, PendingClient] = {}
        # From the id of a request to its client.
        self._sent: dict[str, int] = {}
        self._replies: dict[int, Message] = {}

    def collect(
        self,
        clients: Collection[int],
        make_request: Callable[[int, int], Message],
        is_enough: Callable[[Collection[int]], bool] = need_all,
    ) -> dict[int, Message]:
        """Asks clients and waits until all have answered, or until the time is over.

        Args:
            clients: The clients to ask.
            make_request: Returns the message to a client at a node.
            is_enough: Whether some clients are enough, so that others are waited for but a moment.

        Returns:
            The last reply of every client that replied: its answer, or an error.
        """
        self._pending = {client: PendingClient() for client in clients}
        end = time.monotonic() + self._deadline
        while len(self._replies) < len(self._pending) and time.monotonic() < end:
            self._send_requests(make_request)
            self._read_replies()
            if is_enough(self._find_answered()):
                end = min(end, time.monotonic() + GRACE)
                is_enough = need_all
            if len(self._replies) < len(self._pending):
                time.sleep(POLL)
        for client, pending in self._pending.items():
            if pending.last is not None:
                self._replies.setdefault(client, pending.last)
        return self._replies

    def _find_answered(self) -> list[int]:
        return [client for client, reply in self._replies.items() if not reply.has_error()]

    def _send_requests(self, make_request: Callable[[int, int], Message]) -> None:
        """Asks every client that is due: at first, after a loss, and after a long silence."""
        now = time.monotonic()
        due = [
            client
            for client, pending in self._pending.items()
            if client not in self._replies and now >= pending.next
        ]
        if not due:
            return
        if any(self._pending[client].next > 0 for client in due):
            # A node that restarted may have come back under another id.
            self._connected.refresh()
        nodes = self._connected.nodes
        reachable = [client for client in due if client in nodes]
        requests = [make_request(client, nodes[client]) for client in reachable]
        names = self._grid.push_messages(requests)
        for name, client in zip(names, reachable, strict=True):
            pending = self._pending[client]
            pending.next = now + max(RETRY_PAUSE, self._deadline / ATTEMPTS)
            # Flower gives no id to a message that it did not take.
            if name:
                pending.open.add(name)
                self._sent[name] = client

    def _read_replies(self) -> None:
        waiting = [name for pending in self._pending.values() for name in pending.open]
        if not waiting:
            return
        for reply in self._connected.mailbox.pull(waiting):
            name = find_question(reply)
            client = self._sent[name]
            self._pending[client].open.discard(name)
            self._take_reply(client, reply)

    def _take_reply(self, client: int, reply: Message) -> None:
        """Takes a reply: an answer is final, and so is an error that is not a loss.

        While an earlier request is still open, an error may only mean that the client is at work
        on that one.
        """
        pending = self._pending[client]
        if not reply.has_error():
            self._replies[client] = reply
            return
        pending.last = reply
        if reply.error.code in LOST:
            pending.next = time.monotonic() + RETRY_PAUSE
        elif not pending.open:
            self._replies.setdefault(client, reply)
