"""Clients of secure sums within one process: their guards, folders and keys are real, their local work is a vector of the test's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from sordino import Gaussian, Model, Protocol
from sordino.flower.agreement import Agreement
from sordino.flower.client_keys import compute_fingerprint
from sordino.flower.client_store import ClientStore
from sordino.flower.connected_clients import ConnectedClients
from sordino.flower.exchange import Exchange
from sordino.flower.guard import guard
from sordino.flower.messages import KEPT, SUMS, request_message, upload_reply
from sordino.flower.sum_rounds import OpenedSum, SecureRounds
from sordino.flower.upload_requests import MODEL, Request
from sordino.protocol import SecureAggregation, dumps
from tests.flower.local import LocalGrid, plan

SIZE = 12
TRAINING = "one"
# A wave's name, or "mask" for the request of an upload.
Silence = Callable[[int, str], bool]


@cache
def identity(client: int) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def write_identity(path: Path, client: int) -> None:
    path.write_bytes(
        identity(client).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
    )


def fingerprints(clients: int) -> tuple[str, ...]:
    return tuple(compute_fingerprint(identity(client).public_key()) for client in range(clients))


def summed_plan(
    clients: int = 5, threshold: int = 4, rounds: int = 200, **changes: Any
) -> Protocol:
    channel = SecureAggregation(threshold=threshold, bits=changes.pop("bits", 64))
    model = Model(name="logistic", parameters=SIZE)
    noise = changes.pop("noise", Gaussian(sigma=0.05, secure=True))
    return plan(
        clients=clients, rounds=rounds, channel=channel, model=model, noise=noise, **changes
    )


def wave_of(message: Message) -> str:
    """The name of the wave that a message belongs to; empty for an introduction."""
    if SUMS in message.content:
        return str(message.content[SUMS]["wave"])
    return ""


class SummingGrid(LocalGrid):
    """Hands messages to clients whose local work is in `vectors`; some requests or replies are lost."""

    def __init__(self, folder: Path, vectors: Mapping[int, np.ndarray]) -> None:
        app = ClientApp(mods=[guard])
        self.work: list[int] = []

        @app.train()
        def work(message: Message, context: Context) -> Message:
            message.content.pop(KEPT)
            client = int(context.node_config["partition-id"])
            self.work.append(client)
            return upload_reply(message, vectors[client], {})

        @app.query()
        def never(message: Message, context: Context) -> Message:
            raise NotImplementedError

        self.lost: Silence = lambda client, wave: False
        self.unheard: Silence = lambda client, wave: False
        self.waves: list[tuple[int, str]] = []
        super().__init__(folder, app=app)

    def push_messages(self, messages: Any) -> list[str]:
        names = []
        for message in messages:
            names.append(f"message-{next(self._numbers)}")
            message.metadata.__dict__["_message_id"] = names[-1]
            client = message.metadata.dst_node_id - 1000
            wave = wave_of(message)
            self.waves.append((client, wave))
            self.asked.append((client, message))
            # Lost on the way there, or on the way back.
            if self.lost(client, wave):
                continue
            reply = self.answer(client, message)
            if not self.unheard(client, wave):
                self._replies[names[-1]] = reply
        return names


class Summing:
    """A consortium that sums, and the coordinator's side of it."""

    def __init__(self, folder: Path, protocol: Protocol, **terms: Any) -> None:
        self.folder = folder
        self.protocol = protocol
        rng = np.random.default_rng(5)
        self.vectors = {
            client: rng.integers(-(2**20), 2**20, SIZE) for client in range(protocol.clients)
        }
        for client in range(protocol.clients):
            self.agree(client, **terms)
        self.grid = SummingGrid(folder, self.vectors)
        self.model = np.zeros(SIZE, np.float32)
        self.start()

    def agree(self, client: int, **terms: Any) -> None:
        key = self.folder / f"{client}.key"
        write_identity(key, client)
        agreement = Agreement(
            client=client,
            records=40,
            parameters=SIZE,
            key=str(key),
            **{
                "clients": fingerprints(self.protocol.clients),
                "seeded": not self.protocol.noise.secure,
                **terms,
            },
        )
        ClientStore.create(self.folder / f"client-{client}", agreement, self.protocol)

    def start(self, deadline: float = 0.03) -> None:
        """The coordinator's process begins, or begins again."""
        connected = ConnectedClients(self.grid, self.protocol.clients)
        connected.refresh()
        secure = self.protocol.release.secure_sum
        assert secure is not None
        exchange = Exchange(training=TRAINING, patience=0.0, deadline=deadline)
        self.rounds = SecureRounds(self.protocol, secure, self.grid, connected, exchange)

    def store(self, client: int) -> ClientStore:
        return ClientStore(self.folder / f"client-{client}")

    def request(self, client: int, round_index: int, sums: bytes = b"", **changes: Any) -> Request:
        fields = {
            "training": TRAINING,
            "protocol": dumps(self.protocol),
            "client": client,
            "round": round_index,
            "attempt": 0,
            "arrays": {MODEL: self.model},
        }
        return Request(**{**fields, **changes}, sums=sums)

    def sum(self, round_index: int, clients: list[int] | None = None) -> OpenedSum:
        def make_request(client: int, node: int, sums: bytes) -> Message:
            return request_message(self.request(client, round_index, sums), node=node, ttl=60)

        if clients is None:
            clients = list(range(self.protocol.clients))
        digest = self.request(0, round_index).common_digest
        return self.rounds.sum_round(clients, round_index, digest, SIZE, make_request)

    def true_sum(self, clients: Any) -> np.ndarray:
        """The sum of some clients' vectors, modulo 2^64."""
        total = sum((self.vectors[client] for client in clients), np.zeros(SIZE, np.int64))
        return total.astype(np.uint64)
