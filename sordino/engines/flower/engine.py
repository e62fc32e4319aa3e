"""The Flower engine: the loop's requests go out to the clients' machines, and what comes back is checked before the loop sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from sordino.engines.flower.inquiry import Inquiry
from sordino.engines.flower.messages import Malformed, in_one_line, read_upload, request_message
from sordino.engines.flower.requests import HELPER, MODEL, Request
from sordino.engines.flower.roster import Roster
from sordino.engines.flower.signing import Signer
from sordino.engines.torch_engine import TorchEngine
from sordino.federation import personal
from sordino.federation.assignment import Upload, received_by
from sordino.federation.channel import shuffled_order
from sordino.federation.client import Score
from sordino.federation.local import LocalSteps, upload_type
from sordino.federation.personal import Kept, keeps_state
from sordino.federation.randomness import Key, Purpose
from sordino.federation.setup import Setup
from sordino.protocol import dumps

NOTHING = LocalSteps(
    clipped=0, clips=0, nonfinite=0
)  # what happened in a client's steps comes from private data, and is not sent
NOBODY = -1  # behind a shuffler an upload has no sender


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """How rounds are asked for.

    Attributes:
        training: the name of the training, through all its interruptions.
        patience: seconds that a round waits for participants that are not connected and were, in the round before.
        deadline: seconds that participants are given to answer.
        signer: the coordinator's key; None where nothing is secured, in a test.
    """

    training: str
    patience: float
    deadline: float
    signer: Signer | None = None


class FlowerEngine:
    """Executes the local work of rounds on the clients' machines. It holds the list of them: use it as a context.

    The draws are those of the torch engine where the noise is seeded, and so are the uploads, bit for bit.
    """

    name = "flower"

    def __init__(self, setup: Setup, grid: Grid, roster: Roster, exchange: Exchange) -> None:
        self._setup, self._grid, self._roster, self._exchange = setup, grid, roster, exchange
        self._protocol = dumps(setup.protocol)
        self._attempts: Counter[tuple[int, int]] = Counter()  # by client and round
        self._absent: dict[int, str] = {}
        self._gone: set[int] = set()
        self._scorer = TorchEngine(setup, workers=1)

    def __enter__(self) -> FlowerEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._scorer.close()

    @property
    def absent(self) -> Mapping[int, str]:
        """See `loop.Engine`: who is not connected, did not answer in time, refused, failed, or sent what is no upload."""
        return self._absent

    def uploads(
        self,
        *,
        round: int,
        weights: np.ndarray,
        participants: np.ndarray,
        kept: Mapping[int, Kept] | None = None,
    ) -> Iterator[Upload]:
        """The uploads that came, in the order of the participants; what clients keep stays with them."""
        clients = [int(client) for client in participants]
        forgiven = (
            set() if self._setup.protocol.missing == "repeat" else self._gone
        )  # a round that needs everyone waits for everyone
        self._roster.wait(set(clients) - forgiven, self._exchange.patience)
        nodes = self._roster.nodes
        self._gone = {client for client in {*clients, *self._gone} if client not in nodes}
        models = {
            client: self._models(client, weights, kept) for client in clients if client in nodes
        }
        answers = Inquiry(self._grid, self._roster, self._exchange.deadline).collect(
            models, lambda client, node: self._question(client, node, round, models[client])
        )
        self._absent = {client: "it is not connected" for client in clients if client not in nodes}
        found: dict[int, np.ndarray] = {}
        for client in models:
            try:
                found[client] = self._read(answers.get(client))
            except Malformed as error:
                self._absent[client] = str(error)
        return iter(self._named([(client, found[client]) for client in clients if client in found]))

    def score(self, weights: np.ndarray) -> Score:
        """Scores a model on the test records that the server holds (`Setup.tested_on`)."""
        return self._scorer.score(weights)

    def _models(
        self, client: int, weights: np.ndarray, kept: Mapping[int, Kept] | None
    ) -> dict[str, np.ndarray]:
        """Returns the models that a client is sent."""
        models = {MODEL: received_by(client, weights)}
        own = (kept or {}).get(client, {})
        if personal.HELPER in own:
            models[HELPER] = own[personal.HELPER]
        return models

    def _question(
        self, client: int, node: int, round: int, models: Mapping[str, np.ndarray]
    ) -> Message:
        """Returns the message that asks a client for its upload; each says that it asks again."""
        attempt = self._attempts[client, round]
        self._attempts[client, round] += 1
        request = Request(
            training=self._exchange.training,
            protocol=self._protocol,
            client=client,
            round=round,
            attempt=attempt,
            arrays=models,
        )
        return request_message(
            request,
            node=node,
            ttl=self._exchange.deadline + 60.0,
            signer=self._exchange.signer,
            run=str(self._grid.run.run_id),
        )

    def _read(self, reply: Message | None) -> np.ndarray:
        if reply is None:
            raise Malformed(f"it did not answer within {self._exchange.deadline:g} s")
        if reply.has_error():
            raise Malformed(
                in_one_line(reply.error.reason) or f"Flower reports error {reply.error.code}"
            )
        kind: np.dtype[Any] = np.dtype(upload_type(self._setup.protocol.noise))
        return read_upload(reply, size=self._setup.initial_weights().size, dtype=kind)

    def _named(self, found: list[tuple[int, np.ndarray]]) -> list[Upload]:
        """Uploads with their senders; behind a shuffler without, and where noise is fresh in an order that nobody can repeat."""
        kept: Kept | None = {} if keeps_state(self._setup.protocol) else None
        if self._setup.protocol.channel == "shuffler":
            stream = Key.from_system().stream(Purpose.SHUFFLER)
            order = (
                shuffled_order(len(found), stream)
                if self._setup.protocol.noise.secure
                else range(len(found))
            )
            found = [(NOBODY, found[place][1]) for place in order]
        return [
            Upload(client=client, vector=vector, steps=NOTHING, kept=kept)
            for client, vector in found
        ]
