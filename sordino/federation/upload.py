"""What leaves a client in a round, with its noise, and what the client keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from sordino.federation.integer_uploads import (
    Draw,
    noisy_integers,
    place_on_grid,
    residues_of,
    signed_steps,
)
from sordino.federation.rules.bezier_steps import draw_sent_point
from sordino.federation.rules.local_training import (
    UNCOUNTED,
    Assignment,
    ClientState,
    LocalResult,
    LocalSteps,
)
from sordino.federation.setup import Setup
from sordino.mechanisms import mechanism_of
from sordino.protocol import Noise, Protocol
from sordino.protocol.release import adds_at_client, adds_at_server
from sordino.randomness import Purpose, Stream


@dataclass(frozen=True, kw_only=True)
class Upload:
    """What a client sends to the server in a round, and what the simulation notes about it.

    Attributes:
        client: The sender.
        vector: The noisy model; under secure aggregation the residues of the noisy update; or a
            table of either, with one training a row.
        steps: What happened in the client's steps; it is not sent.
        kept: What the client keeps for its next round; it is not sent.
        rows: Where the vector is a table, in which rows the client took part, as a column.
        means: With noisy-sgd the noisy mean of every step, where they are recorded.
        count: Where the clip follows, the noisy count of what was within it, as one number; in a
            table, one a row as a column. It is one more coordinate of the vector, in its unit
            (docs/theory.md#a22); under secure aggregation its residue.
    """

    client: int
    vector: np.ndarray
    steps: LocalSteps
    kept: ClientState | None = None
    rows: np.ndarray | bool = True
    means: np.ndarray | None = None
    count: np.ndarray | None = None


def finish_upload(
    setup: Setup,
    task: Assignment,
    result: LocalResult,
    *,
    training: int,
    client: int,
    draw: Draw | None = None,
) -> Upload:
    """Makes the upload of a client whose steps have been run.

    Args:
        setup: The federation.
        task: What the client was asked to do.
        result: What its steps led to.
        training: The number of the training, or of the first row of a table.
        client: The sender: in a table clients that compute the same are trained once.
        draw: Draws noise of integers; by default numpy does.

    Returns:
        The model with the client's noise, and what the client keeps.
    """
    if setup.release.in_steps:
        # The noise is in the steps, so the model is sent as it is.
        vector = result.model.numpy()
    else:
        sent = find_sent_model(setup, task, result, training=training)
        stream = setup.noise_key.stream(
            Purpose.UPLOAD_NOISE, training=training, client=client, round_index=task.round_index
        )
        if setup.protocol.grid is None:
            vector = noisy_upload(sent, setup.noises[client], stream)
        else:
            draws = partial(noisy_integers, grid=setup.grid, stream=stream, draw=draw)
            vector = integer_upload(setup, client, sent, task.start, draws)
    return Upload(
        client=client,
        vector=vector,
        steps=result.steps,
        kept=find_own_state(setup, result),
        means=result.means,
        count=noisy_count(setup, task, result.within, training=training, client=client),
    )


def noisy_count(
    setup: Setup,
    task: Assignment,
    within: np.ndarray | None,
    *,
    training: int,
    client: int,
) -> np.ndarray | None:
    """Returns the count of what was within the clip as it is sent: a coordinate, with its noise.

    Args:
        setup: The federation.
        task: What the client was asked to do.
        within: Half of what was within the clip less half of the others; None where it stays.
        training: The number of the training, or of the first row of a table.
        client: The sender.
    """
    release = setup.release
    if within is None or release.in_steps:
        return None
    stream = setup.noise_key.stream(
        Purpose.COUNT_NOISE, training=training, client=client, round_index=task.round_index
    )
    length = within.reshape(-1, 1) * release.count_length
    if setup.protocol.grid is None:
        draws = mechanism_of(setup.noises[client]).draw(stream, len(length), 1)
        sent: np.ndarray = (length + draws).astype(np.float32)
    else:
        steps = noisy_integers(length, setup.grid, stream)
        sent = send_integers(setup, np.zeros(1), steps)
    return sent.reshape(within.shape)


def pack_upload(upload: Upload) -> np.ndarray:
    """Returns what crosses a network as one vector: the upload, and its count as a last coordinate.

    Args:
        upload: What a client sends.
    """
    if upload.count is None:
        return upload.vector
    return np.concatenate([upload.vector, upload.count.astype(upload.vector.dtype)])


def unpack_upload(setup: Setup, client: int, packed: np.ndarray) -> Upload:
    """Returns the upload in a vector that has crossed a network, or the sum of several.

    Args:
        setup: The federation, as the server knows it.
        client: The sender.
        packed: The vector.
    """
    counts = setup.release.counts
    return Upload(
        client=client,
        vector=packed[: packed.size - counts],
        steps=UNCOUNTED,
        count=packed[-counts:] if counts else None,
    )


def find_sent_model(
    setup: Setup, task: Assignment, result: LocalResult, *, training: int
) -> torch.Tensor:
    """Returns what a client sends, before any noise on the upload.

    Args:
        setup: The federation.
        task: What the client was asked to do.
        result: What its steps led to.
        training: The number of the training, or of the first row of a table.
    """
    if not setup.release.on_curve:
        return result.model
    start = torch.from_numpy(np.ascontiguousarray(task.start)).to(result.model.device)
    return draw_sent_point(
        setup, start, result.model, training=training, round_index=task.round_index
    )


def find_own_state(setup: Setup, result: LocalResult) -> ClientState | None:
    """Returns what a client keeps for its next round, None where it keeps nothing.

    Args:
        setup: The federation.
        result: What the client's steps led to.
    """
    if setup.release.in_steps:
        own = {"model": result.model.numpy()} if setup.protocol.keeps_models else {}
        return {**own, **result.kept}
    if not setup.protocol.keeps_models:
        return None
    # Rounded to float32 it would move by more than is priced: no noise is between it and the next
    # upload.
    return {"model": result.model.cpu().numpy().astype(np.float64)}


def noisy_upload(weights: torch.Tensor, noise: Noise, stream: Stream) -> np.ndarray:
    """Returns the vector that leaves a client: its model with noise on every coordinate.

    Args:
        weights: The model in float64; or a table, whose rows get the noise of as many trainings,
            from the stream's own on.
        noise: The client's mechanism.
        stream: The keystream of the noise.

    Returns:
        The noisy model, rounded once.
    """
    local = weights.detach().cpu().numpy()
    precision = np.float64 if adds_at_server(noise) else np.float32
    mechanism = mechanism_of(noise)
    if mechanism.silent or not adds_at_client(noise):
        return local.astype(precision)
    trainings, count = np.atleast_2d(local).shape
    draws = mechanism.draw(stream, trainings, count).reshape(local.shape)
    noisy: np.ndarray = (local + draws).astype(precision)
    return noisy


def integer_upload(
    setup: Setup,
    client: int,
    sent: torch.Tensor,
    start: np.ndarray,
    make_noisy: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Returns the vector that leaves a client where noise is of integers.

    Args:
        setup: The federation, which has a grid.
        client: The sender.
        sent: The client's model in float64; or a table, with one training a row.
        start: The global model that its steps began with.
        make_noisy: Rounds an update and adds the noise.

    Returns:
        Under secure aggregation the residues of the noisy update; else a model in float64 that
        lies on the grid around the global one.
    """
    update = sent.detach().cpu().numpy() - start
    if setup.release.secure_sum is not None:
        # Weighed here, since the server cannot weigh what it never sees.
        update *= setup.sum_weights[client]
    return send_integers(setup, start, make_noisy(update))


def send_integers(setup: Setup, start: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Returns the vector that leaves a client whose noisy update is on the grid.

    Args:
        setup: The federation, which has a grid.
        start: The global model that its steps began with.
        steps: The noisy update, in grid steps.

    Returns:
        What `integer_upload` does.
    """
    if setup.release.secure_sum is None:
        return place_on_grid(start, steps, setup.grid)
    return residues_of(steps, setup.grid)


def read_sent_model(setup: Setup, client: int, start: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Returns what a client sent as the model that it represents.

    Args:
        setup: The federation.
        client: The sender.
        start: The global model before the round; or a table, with one training a row.
        vector: What was sent.

    Returns:
        The vector itself, or where it is a share of a secure sum, the noisy model behind it.
    """
    if setup.release.secure_sum is None:
        return vector
    steps = signed_steps(vector, setup.grid) / setup.sum_weights[client]
    return place_on_grid(start, steps, setup.grid)


def upload_type(protocol: Protocol) -> type[np.generic]:
    """Returns the kind of numbers that an upload has.

    Where the server adds noise, uploads keep float64: rounding before the noise would move them by
    more than the clip allows. On a grid they keep it so that the integers can be read from them.

    Args:
        protocol: The federation whose rounds are played.
    """
    release = protocol.release
    if release.secure_sum is not None:
        return np.uint32 if release.secure_sum.bits == 32 else np.uint64
    if release.integers or release.at_server:
        return np.float64
    return np.float32
