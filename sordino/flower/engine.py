"""Runs the local work of rounds on the clients' machines, over Flower.

Requests go out as signed messages. Each reply is checked before the training sees it; a client
without a valid upload counts as absent, with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from sordino.engines.torch_engine import TorchEngine
from sordino.federation import personal
from sordino.federation.broadcast_state import select_received
from sordino.federation.channels.shuffler import shuffled_order
from sordino.federation.client import Score
from sordino.federation.personal import keeps_state
from sordino.federation.round import RoundTask
from sordino.federation.rules.local_training import ClientState
from sordino.federation.setup import Setup
from sordino.federation.upload import Upload, unpack_upload, upload_type
from sordino.flower.connected_clients import ConnectedClients
from sordino.flower.exchange import EXTRA_LIFETIME, Exchange, expect_content
from sordino.flower.messages import MalformedMessage, read_upload, request_message
from sordino.flower.reply_collection import ReplyCollector
from sordino.flower.sum_rounds import SecureRounds
from sordino.flower.upload_requests import HELPER, MODEL, Request
from sordino.protocol import dumps
from sordino.randomness import Key, Purpose

# Behind a shuffler an upload has no sender, and a sum never has one.
UNKNOWN_SENDER = -1


class FlowerEngine:
    """Executes the local work of rounds on the clients' machines.

    With seeded noise its uploads equal those of the torch engine, bit for bit. It holds which
    clients are connected: use it as a context manager.
    """

    name = "flower"

    def __init__(
        self, setup: Setup, grid: Grid, connected: ConnectedClients, exchange: Exchange
    ) -> None:
        """Creates the engine.

        Args:
            setup: The protocol with its model, as the server knows it.
            grid: Flower's connection to the nodes.
            connected: Which node is which client.
            exchange: How rounds are requested.
        """
        self._setup = setup
        self._grid = grid
        self._connected = connected
        self._exchange = exchange
        self._protocol = dumps(setup.protocol)
        # How often each client was asked for each round.
        self._attempts: Counter[tuple[int, int]] = Counter()
        self._absent: dict[int, str] = {}
        self._gone: set[int] = set()
        self._scorer = TorchEngine(setup, workers=1)
        self._secure_rounds: SecureRounds | None = None
        secure = setup.protocol.release.secure_sum
        if secure is not None:
            self._secure_rounds = SecureRounds(setup.protocol, secure, grid, connected, exchange)

    def __enter__(self) -> FlowerEngine:
        """Returns the engine."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Frees what scores the models."""
        self._scorer.close()

    @property
    def absent(self) -> Mapping[int, str]:
        """The participants of the last round without a valid upload, and why."""
        return self._absent

    def train(self, task: RoundTask) -> Iterator[Upload]:
        """Requests a round's uploads and returns the valid ones in the order of the participants.

        Args:
            task: The round.

        Returns:
            The uploads. What clients keep between rounds stays on their machines.
        """
        clients = [int(client) for client in task.participants]
        awaited = set(clients)
        if self._setup.protocol.missing != "repeat":
            # A client that was lost before is not waited for, unless a round needs everyone.
            awaited -= self._gone
        self._connected.wait(awaited, self._exchange.patience)
        nodes = self._connected.nodes
        # Only once all could have come is a client counted as gone; it is not waited for in every
        # round.
        self._gone = {client for client in {*clients, *self._gone} if client not in nodes}
        models: dict[int, dict[str, np.ndarray]] = {}
        self._absent = {}
        for client in clients:
            if client in nodes:
                models[client] = self._select_models(client, task.broadcast, task.kept)
            else:
                self._absent[client] = "it is not connected"
        secure = self._setup.protocol.release.secure_sum
        if secure is not None and len(clients) < secure.threshold:
            # Too few were drawn: nobody is asked for an upload that could never be opened.
            self._absent = {}
            return iter(())
        if self._secure_rounds is not None:
            return iter(self._sum_uploads(self._secure_rounds, task.round_index, models))
        collector = ReplyCollector(self._grid, self._connected, self._exchange.deadline)
        replies = collector.collect(
            models,
            lambda client, node: self._make_message(
                self._make_request(client, task.round_index, models[client]), node
            ),
        )
        vectors: list[tuple[int, np.ndarray]] = []
        for client in models:
            try:
                vectors.append((client, self._read_reply(replies.get(client))))
            except MalformedMessage as error:
                self._absent[client] = str(error)
        return iter(self._make_uploads(vectors))

    def score(self, weights: np.ndarray) -> Score:
        """Returns the score of a model on the test records that the server holds.

        Args:
            weights: The model.
        """
        return self._scorer.score(weights)

    def _select_models(
        self, client: int, weights: np.ndarray, kept: Mapping[int, ClientState] | None
    ) -> dict[str, np.ndarray]:
        """Returns the models that a client is sent."""
        models = {MODEL: select_received(client, weights)}
        own = (kept or {}).get(client, {})
        if personal.HELPER in own:
            models[HELPER] = own[personal.HELPER]
        return models

    def _make_request(
        self,
        client: int,
        round_index: int,
        models: Mapping[str, np.ndarray],
        sums: bytes = b"",
    ) -> Request:
        """Returns the request for an upload."""
        return Request(
            training=self._exchange.training,
            protocol=self._protocol,
            client=client,
            round=round_index,
            attempt=self._attempts[client, round_index],
            arrays=models,
            sums=sums,
        )

    def _make_message(self, request: Request, node: int) -> Message:
        """Returns the message of a request; a repeated one carries a higher attempt."""
        self._attempts[request.client, request.round] += 1
        return request_message(
            request,
            node=node,
            # A request that outlives its round would be answered, and charged, for nothing.
            ttl=self._exchange.deadline + EXTRA_LIFETIME,
            signer=self._exchange.signer,
            run=str(self._grid.run.run_id),
        )

    def _sum_uploads(
        self,
        secure_rounds: SecureRounds,
        round_index: int,
        models: Mapping[int, Mapping[str, np.ndarray]],
    ) -> list[Upload]:
        """Has uploads summed under masks, and returns their sum as the one that came."""
        if not models:
            return []

        def make_request(client: int, node: int, sums: bytes) -> Message:
            request = self._make_request(client, round_index, models[client], sums)
            return self._make_message(request, node)

        first = next(iter(models))
        # All participants are sent the same models, so any request has the digest of all.
        common = self._make_request(first, round_index, models[first]).common_digest
        opened = secure_rounds.sum_round(
            models, round_index, common, self._upload_size, make_request
        )
        self._absent.update(opened.absent)
        if opened.total is None:
            return []
        return [unpack_upload(self._setup, UNKNOWN_SENDER, opened.total)]

    @property
    def _upload_size(self) -> int:
        """How many numbers an upload has."""
        return self._setup.initial_weights().size + self._setup.release.counts

    def _read_reply(self, reply: Message | None) -> np.ndarray:
        """Returns the upload in a reply, or raises an error that says why there is none."""
        arrived = expect_content(reply, self._exchange.deadline)
        kind: np.dtype[Any] = np.dtype(upload_type(self._setup.protocol))
        # Checked against the protocol and never against what the reply says of itself.
        return read_upload(arrived, size=self._upload_size, dtype=kind)

    def _make_uploads(self, vectors: list[tuple[int, np.ndarray]]) -> list[Upload]:
        """Returns uploads with their senders, or without them behind a shuffler."""
        protocol = self._setup.protocol
        if protocol.release.shuffled:
            vectors = [(UNKNOWN_SENDER, vector) for vector in self._shuffle(vectors)]
        kept: ClientState | None = None
        if keeps_state(protocol):
            kept = {}
        # Counts of clipped steps are computed from private records, so clients do not send them.
        return [
            replace(unpack_upload(self._setup, client, vector), kept=kept)
            for client, vector in vectors
        ]

    def _shuffle(self, vectors: list[tuple[int, np.ndarray]]) -> list[np.ndarray]:
        """Returns vectors in random order; in the given order where noise is seeded."""
        if not self._setup.protocol.noise.secure:
            # A seeded run repeats bit for bit, so that nothing may be drawn from the system.
            return [vector for _, vector in vectors]
        stream = Key.from_system().stream(Purpose.SHUFFLER)
        return [vectors[index][1] for index in shuffled_order(len(vectors), stream)]
