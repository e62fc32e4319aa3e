"""Which machine is which client. Flower's node ids are known here and nowhere else: a machine that restarts may come back with another."""

from __future__ import annotations

import time
from collections.abc import Collection

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from sordino.engines.flower.messages import Malformed, read_introduction
from sordino.protocol import UserError

POLL = 0.2  # seconds between two looks for replies


class Roster:
    """Asks every node that is new who it is. It holds what they said."""

    def __init__(self, grid: Grid, clients: int) -> None:
        self._grid, self._clients = grid, clients
        self._asked: dict[str, int] = {}  # message to node
        self._known: dict[
            int, tuple[int, int]
        ] = {}  # node to client and number of records, in the order in which they said it
        self._online: set[int] = set()

    def refresh(self) -> None:
        """Ask nodes that were not there before, and read what nodes have said since."""
        self._online = set(self._grid.get_node_ids())
        pending = set(self._asked.values())
        new = [
            node for node in sorted(self._online) if node not in self._known and node not in pending
        ]
        if new:
            questions = [Message(RecordDict(), node, MessageType.QUERY) for node in new]
            self._asked.update(zip(self._grid.push_messages(questions), new, strict=True))
        if not self._asked:
            return
        for reply in self._grid.pull_messages(list(self._asked)):
            node = self._asked.pop(reply.metadata.reply_to_message_id)
            try:
                if reply.has_content():
                    self._known[node] = read_introduction(reply)
            except Malformed:
                continue

    @property
    def nodes(self) -> dict[int, int]:
        """The node of every client that is there. Of two that say they are the same client the later one counts: it came back."""
        return {
            client: node
            for node, (client, _) in self._known.items()
            if node in self._online and client < self._clients
        }

    @property
    def sizes(self) -> dict[int, int]:
        """How many records every client that was ever there has."""
        return dict(self._known.values())

    def wait(self, wanted: Collection[int], seconds: float) -> None:
        """Wait until these clients are there, or until the time is over."""
        end = time.monotonic() + seconds
        self.refresh()
        while not set(wanted) <= set(self.nodes) and time.monotonic() < end:
            time.sleep(POLL)
            self.refresh()

    def all_sizes(self, patience: float) -> list[int]:
        """How many records every client has, once all are there.

        Raises:
            UserError: some are not there in time.
        """
        self.wait(range(self._clients), patience)
        missing = sorted(set(range(self._clients)) - set(self.sizes))
        if missing:
            raise UserError(
                f"{len(missing)} of {self._clients} clients are not connected after {patience:g} s: {', '.join(map(str, missing[:10]))}. "
                "Start their nodes, or wait longer with --patience."
            )
        return [self.sizes[client] for client in range(self._clients)]
