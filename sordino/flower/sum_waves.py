"""Sends the waves of secure sums to clients, and reads what they reply."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from sordino.flower.connected_clients import ConnectedClients
from sordino.flower.exchange import EXTRA_LIFETIME, Exchange, expect_content
from sordino.flower.messages import MalformedMessage
from sordino.flower.reply_collection import ReplyCollector
from sordino.flower.sum_messages import (
    ConfirmCall,
    ConfirmReply,
    KeyCall,
    KeyReply,
    PrepareCall,
    PrepareReply,
    SumCall,
    UnmaskCall,
    UnmaskReply,
    read_sum_reply,
    sum_message,
)

# The reply to every call.
REPLIES: Mapping[type[Any], type[Any]] = {
    KeyCall: KeyReply,
    PrepareCall: PrepareReply,
    ConfirmCall: ConfirmReply,
    UnmaskCall: UnmaskReply,
}


class Waves:
    """Sends the calls of a wave, one to each client. It holds only how clients are reached."""

    def __init__(
        self, grid: Grid, connected: ConnectedClients, exchange: Exchange, threshold: int
    ) -> None:
        """Creates the sender.

        Args:
            grid: Flower's connection to the nodes.
            connected: Which node is which client.
            exchange: How rounds are requested.
            threshold: How many replies open a sum.
        """
        self._grid = grid
        self._connected = connected
        self._exchange = exchange
        self._threshold = threshold

    def ask(
        self, calls: Mapping[int, SumCall], enough_of: frozenset[int] = frozenset()
    ) -> tuple[dict[int, Any], dict[int, str]]:
        """Sends a wave; returns the replies, and the reasons of clients without one.

        Args:
            calls: The call to each client.
            enough_of: Once as many of these clients as the threshold have replied, others are
                waited for but a moment; empty to wait for all.
        """
        run = str(self._grid.run.run_id)
        exchange = self._exchange

        def make_request(client: int, node: int) -> Message:
            return sum_message(
                calls[client],
                node=node,
                ttl=exchange.deadline + EXTRA_LIFETIME,
                signer=exchange.signer,
                run=run,
            )

        def is_enough(replied: Collection[int]) -> bool:
            # As many answers open the sum: a round must not wait for its slowest client.
            return bool(enough_of) and len(enough_of & set(replied)) >= self._threshold

        collector = ReplyCollector(self._grid, self._connected, exchange.deadline)
        arrived = collector.collect(calls, make_request, is_enough)
        replies: dict[int, Any] = {}
        absent: dict[int, str] = {}
        for client, call in calls.items():
            try:
                reply = expect_content(arrived.get(client), exchange.deadline)
                replies[client] = read_sum_reply(reply, REPLIES[type(call)])
            except MalformedMessage as error:
                absent[client] = str(error)
        return replies, absent
