"""Repeats a client's work without the noise on its upload, for adversaries and replays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol as Interface

import numpy as np
import torch
from torch import Tensor

from sordino.audit.worst_cases.neighbours import remove_noise
from sordino.engines.compiled import Kernel, NativeEngine
from sordino.engines.row_clients import RowClients
from sordino.federation.client import ClientWork
from sordino.federation.rules.local_training import ClientState, Substitute
from sordino.federation.setup import Setup
from sordino.federation.upload import find_own_state, find_sent_model, read_sent_model

NO_STATE: ClientState = {}


@dataclass(frozen=True, kw_only=True, eq=False)
class RepeatedWork:
    """The outcome of a client's work.

    Attributes:
        models: The models that it would send without noise on the upload, one training a row.
        kept: The state that it keeps for its next round.
    """

    models: Tensor
    kept: Mapping[str, np.ndarray] = field(default_factory=dict)


class WorkRepeater(Interface):
    """Repeats a client's work, in one training or in many at once.

    Attributes:
        like: For each client, the number of the first client whose work is the same.
    """

    like: np.ndarray

    def work(
        self,
        *,
        client: int,
        round_index: int,
        weights: np.ndarray,
        first: int,
        kept: ClientState = NO_STATE,
        sums: Substitute | None = None,
    ) -> RepeatedWork:
        """Runs the client's steps.

        Args:
            client: The number of the client.
            round_index: The number of the round, from 0.
            weights: The tables that the server sent, one training a row.
            first: The number of the training in the first row.
            kept: The state that the client has kept, arrays with one training a row.
            sums: With noisy-sgd, values that replace the client's sums and their noise.
        """


class TableWork:
    """Repeats clients' work in all rows of a table.

    It holds models that every call overwrites.
    """

    def __init__(self, setup: Setup) -> None:
        """Makes the models of the rows.

        Args:
            setup: The federation, with either data set.
        """
        self._setup = setup
        self._clients = RowClients(setup)
        self.like = self._clients.like

    def work(
        self,
        *,
        client: int,
        round_index: int,
        weights: np.ndarray,
        first: int,
        kept: ClientState = NO_STATE,
        sums: Substitute | None = None,
    ) -> RepeatedWork:
        """Runs the client's steps in all rows.

        Args:
            client: The number of the client.
            round_index: The number of the round, from 0.
            weights: The tables that the server sent, one training a row.
            first: The number of the training in the first row.
            kept: The state that the client has kept, arrays with one training a row.
            sums: With noisy-sgd, values that replace the client's sums and their noise.
        """
        task, result = self._clients.train(
            client=client,
            round_index=round_index,
            weights=weights,
            first=first,
            kept=kept,
            sums=sums,
        )
        models = find_sent_model(self._setup, task, result, training=first)
        return RepeatedWork(models=models, kept=find_own_state(self._setup, result) or {})


class SingleWork:
    """Repeats clients' work in one training at a time, of a real model.

    It holds a model that every call overwrites.
    """

    def __init__(self, setup: Setup, kernel: Kernel | None = None) -> None:
        """Takes the federation; models are made when they are first needed.

        Args:
            setup: The federation, with either data set.
            kernel: The compiled kernel that does the work; None for torch.
        """
        # Without noise, so that the noise is the difference to what was sent.
        self._setup = remove_noise(setup)
        self._kernel = kernel
        self._works: dict[int, ClientWork | NativeEngine] = {}
        # Clients with real records all work differently.
        self.like = np.arange(setup.protocol.clients)

    def work(
        self,
        *,
        client: int,
        round_index: int,
        weights: np.ndarray,
        first: int,
        kept: ClientState = NO_STATE,
        sums: Substitute | None = None,
    ) -> RepeatedWork:
        """Does what `TableWork.work` does, for a table of one row.

        Args:
            client: The number of the client.
            round_index: The number of the round, from 0.
            weights: The tables that the server sent, one training a row.
            first: The number of the training in the first row.
            kept: The state that the client has kept, arrays with one training a row.
            sums: With noisy-sgd, values that replace the client's sums and their noise.
        """
        work = self._work(first)
        own = {name: array[0] for name, array in kept.items()}
        sent = weights[..., 0, :]
        if isinstance(work, NativeEngine):
            # The kernel never has noisy steps, so no sums are to be replaced.
            made = work.upload(
                client=client,
                round_index=round_index,
                weights=sent,
                kept=own,
            )
        else:
            made = work.upload(
                client=client,
                round_index=round_index,
                weights=sent,
                kept=own,
                sums=sums,
            )
        start = sent if sent.ndim == 1 else sent[0]
        # Behind secure sums an upload is a share of integers, which stands for a model.
        model = read_sent_model(self._setup, client, start, made.vector)
        return RepeatedWork(
            models=torch.from_numpy(model[None]),
            kept={name: array[None] for name, array in (made.kept or {}).items()},
        )

    def _work(self, training: int) -> ClientWork | NativeEngine:
        if training not in self._works:
            setup = replace(self._setup, training=training)
            work: ClientWork | NativeEngine
            if self._kernel is None:
                work = ClientWork(setup)
            else:
                work = NativeEngine(setup, workers=1, kernel=self._kernel)
            # One at a time, since each holds a model and trainings come one after the other.
            self._works = {training: work}
        return self._works[training]
