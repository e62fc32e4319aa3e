"""What a client is asked in a round. It is the whole question: nothing else that a server says changes what a client does."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sordino.federation.storage import arrays_digest
from sordino.protocol import SordinoError

MODEL = "model"  # the global model; or a table, with what is for this client in the second row
MODEL_TYPE = np.dtype(np.float32)  # of every model that is sent to a client
HELPER = "helper"  # a model that the server made for this client, where it makes one


class RequestRefused(SordinoError):
    """The client does not answer; the reason is in its ledger, and is sent to who asked. It says nothing about the client's records."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """One client is asked for its upload of one round.

    Attributes:
        training: names the training, through all its interruptions.
        protocol: the resolved protocol, as TOML.
        client: who is asked.
        round: for which round.
        attempt: how often it was asked for that round before, in one run on Flower.
        arrays: the global model, and what goes with it.
    """

    training: str
    protocol: str
    client: int
    round: int
    attempt: int
    arrays: Mapping[str, np.ndarray]

    @property
    def digest(self) -> str:
        """SHA-256 of what is asked. How often it is asked does not count."""
        head = f"{self.training} {self.client} {self.round} {self.protocol} "
        return hashlib.sha256(head.encode() + arrays_digest(dict(self.arrays)).encode()).hexdigest()
