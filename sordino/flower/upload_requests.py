"""Describes the request for a client's upload.

It is complete: nothing else that a server sends changes what a client does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sordino.federation.store.files import arrays_digest
from sordino.protocol import SordinoError

# The global model; or a table, with this client's values in the second row.
MODEL = "model"
# A model that the server made for this client, where it makes one.
HELPER = "helper"
# The type of every model that is sent to a client.
MODEL_TYPE = np.dtype(np.float32)
# A client whose agreement is in use refuses a second training with these words.
OTHER_TRAINING = "the agreement is for one training, and this is another"


class RequestRefused(SordinoError):
    """Is raised where a client does not answer.

    The reason is in the client's ledger and is sent to the server. It reveals nothing about the
    client's records.
    """


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """Asks one client for its upload of one round.

    Attributes:
        training: Name of the training; it stays the same when a run is resumed.
        protocol: The resolved protocol, as TOML.
        client: The client that is asked.
        round: Number of the round, from 0.
        attempt: How often it was asked for that round before, in one run on Flower.
        arrays: The global model, and what goes with it.
        sums: How the upload is to be masked, as a body of secure sums; empty where it is sent open.
    """

    training: str
    protocol: str
    client: int
    round: int
    attempt: int
    arrays: Mapping[str, np.ndarray]
    sums: bytes = b""

    @property
    def digest(self) -> str:
        """SHA-256 of the request without its number of attempts."""
        head = f"{self.training} {self.client} {self.round} {self.protocol} "
        # What is sent open has the digest that it had before there were secure sums.
        asked = head.encode() + arrays_digest(dict(self.arrays)).encode() + self.sums
        return hashlib.sha256(asked).hexdigest()

    @property
    def common_digest(self) -> bytes:
        """SHA-256 of what all participants of a round are asked: masks are bound to it."""
        head = f"sordino common request {self.training!r} {self.round} "
        parts = [head.encode(), self.protocol.encode(), arrays_digest(dict(self.arrays)).encode()]
        # Each part has a digest, so that none can take over the end of another.
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()
