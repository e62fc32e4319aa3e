"""One round between clients and server: what is sent, what is put aside of what arrives, and the model that the server makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from sordino.federation.aggregation import aggregate, projected, upload_weights
from sordino.federation.assignment import Upload
from sordino.federation.channel import delivered
from sordino.federation.companions import Companion, companion_of
from sordino.federation.folder import State
from sordino.federation.mechanisms import server_noise
from sordino.federation.models.flat import FlatModel
from sordino.federation.models.losses import module_loss
from sordino.federation.personal import Kept, given_to, remembered
from sordino.federation.randomness import Purpose
from sordino.federation.setup import Setup
from sordino.federation.uploads import Witness, unwitnessed
from sordino.protocol import ModeConnectivity, Protocol

# What is broadcast, and what clients have kept where they keep anything, to the uploads of a round.
Work = Callable[[np.ndarray, Mapping[int, Kept] | None], Iterator[Upload]]


@dataclass
class Tally:
    """Counts over the uploads of one round, filled while they stream by."""

    clipped: int = 0
    clips: int = 0
    nonfinite: int = 0
    kept: dict[int, Kept] = field(default_factory=dict)

    def counted(self, uploads: Iterator[Upload], protocol: Protocol) -> Iterator[np.ndarray]:
        """Pass the vectors on, count, and put aside what clients keep."""
        for upload in uploads:
            if upload.kept is not None:
                self.kept[upload.client] = remembered(protocol, upload.kept, upload.vector)
            self.clipped += upload.steps.clipped
            self.clips += upload.steps.clips
            self.nonfinite += upload.steps.nonfinite
            yield upload.vector


def exchanged(setup: Setup, state: State, chosen: np.ndarray, work: Work) -> tuple[State, Tally]:
    """One round between clients and server: what the chosen clients are sent, what they upload, what becomes of it and what each keeps."""
    companion, kept = (
        companion_of(setup.protocol, state),
        given_to(setup.protocol, state.weights, chosen, state.clients),
    )
    return received(setup, state, chosen, companion, work(companion.broadcast(state.weights), kept))


def received(
    setup: Setup,
    state: State,
    chosen: np.ndarray,
    companion: Companion,
    trained: Iterator[Upload],
    witness: Witness = unwitnessed,
) -> tuple[State, Tally]:
    """What the server makes of the uploads of a round, which it reads in the order of the clients, and what is put aside on their way."""
    protocol, t, tally = setup.protocol, state.round, Tally()
    sent = tally.counted(companion.noted(trained), protocol)
    uploads = delivered(
        protocol.channel,
        sent,
        setup.draw_key.stream(Purpose.SHUFFLER, training=setup.training, round=t),
    )
    weights = next_model(
        setup, state.weights, witness(t, state.weights, chosen, uploads), chosen, round=t
    )
    return State(
        weights=weights, round=t + 1, kept=companion.kept, clients={**state.clients, **tally.kept}
    ), tally


def next_model(
    setup: Setup,
    weights: np.ndarray,
    uploads: Iterable[np.ndarray],
    chosen: np.ndarray,
    *,
    round: int,
) -> np.ndarray:
    """The global model that the server makes of the uploads of the chosen clients, with its own noise where it adds some."""
    rule, diameter = setup.protocol.aggregation, setup.protocol.assumptions.diameter
    if isinstance(rule, ModeConnectivity):
        connected = joined_modes(setup, weights, uploads, round)
        return (
            connected
            if diameter is None
            else projected(connected, setup.initial_weights(), diameter)
        )
    noise = server_noise(setup, round=round, trainings=range(setup.training, setup.training + 1))
    expected = setup.protocol.participation.expected(clients=setup.protocol.clients)
    shares = upload_weights(rule, setup.sizes[chosen])
    joined = aggregate(
        rule, weights, uploads, shares, expected=expected, noise=None if noise is None else noise[0]
    )
    return joined if diameter is None else projected(joined, setup.initial_weights(), diameter)


def joined_modes(
    setup: Setup, weights: np.ndarray, uploads: Iterable[np.ndarray], round: int
) -> np.ndarray:
    """The uploads joined by mode connectivity, on one thread so that the result is the same everywhere."""
    import torch

    from sordino.federation.connectivity import Connector

    models, rule = list(uploads), setup.protocol.aggregation
    if setup.public is None or not isinstance(rule, ModeConnectivity):
        raise RuntimeError("mode connectivity without public records")
    if not models:
        return weights
    streams = (
        setup.key.stream(Purpose.CONNECTIVITY, training=setup.training, round=round, step=join)
        for join in range(len(models))
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        connector = Connector(
            FlatModel(setup.module), setup.public, module_loss(setup.module, setup.public.y), rule
        )
        return connector.joined(models, streams).astype(weights.dtype)
    finally:
        torch.set_num_threads(threads)
