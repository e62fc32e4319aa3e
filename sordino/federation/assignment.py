"""What a client is asked to do in a round, whichever engine does it: where its steps begin, what pulls them, on which records."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from sordino.federation.connectivity import sent_model
from sordino.federation.local import LocalSteps, Pull, noisy_upload
from sordino.federation.personal import Kept, beginning, keeps_state
from sordino.federation.randomness import Key, Purpose, Stream
from sordino.federation.setup import Setup
from sordino.privacy.harmonizer import pull_of
from sordino.protocol import FedAvg, NoisySgd, Scaffold, UserError


@dataclass(frozen=True, kw_only=True, eq=False)
class Assignment:
    """A client's work in a round."""

    client: int
    round: int
    start: np.ndarray
    pull: Pull | None = None
    correction: np.ndarray | None = None
    kept: Kept = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Upload:
    """What a client sends to the server in a round, and what the simulation notes about how it came about."""

    client: int
    vector: np.ndarray
    steps: LocalSteps
    kept: Kept | None = None  # what the client keeps for its next round; it is not sent
    rows: np.ndarray | bool = (
        True  # where the vector is a table of trainings: in which of them the client took part, as a column
    )


def assigned(
    setup: Setup,
    initial: np.ndarray,
    *,
    client: int,
    round: int,
    weights: np.ndarray,
    kept: Kept | None,
) -> Assignment:
    """The work of a client that receives the global model and finds what it has kept.

    What travels with the global model stands in further rows of `weights` (see `companions`): the model that clients are pulled to,
    or every client's correction, or this client's alone. Models may be vectors, or tables with one training a row.

    Args:
        setup: the federation.
        initial: its model before the first round.
        client: which one.
        round: the round.
        weights: what the server sends.
        kept: what the client has kept, None where nobody keeps anything.
    """
    if kept is None and keeps_state(setup.protocol):
        raise UserError(
            "clients of this protocol keep something from round to round, and here nobody keeps it: only `train` does."
        )
    world, beside = (weights, None) if weights.ndim == initial.ndim else (weights[0], weights[1:])
    begin = beginning(setup.protocol, world, initial, kept or {})
    pull = (
        None
        if begin.helper is None
        else Pull(model=torch.from_numpy(begin.helper), strength=begin.strength)
    )
    if setup.protocol.penalty:
        pull = leader_pull(setup, client, beside)
    return Assignment(
        client=client,
        round=round,
        start=begin.start,
        pull=pull,
        correction=correction_of(setup, client, beside),
        kept=kept or {},
    )


def leader_pull(setup: Setup, client: int, beside: np.ndarray | None) -> Pull | None:
    """The Harmonizer's penalty: a pull to the leader's model, for clients with a budget below the leader's."""
    strength = sum(
        pull_of(setup.protocol, budget) for budget in setup.protocol.client if budget.id == client
    )
    return (
        Pull(model=torch.from_numpy(beside[0]), strength=strength)
        if beside is not None and strength > 0
        else None
    )


def correction_of(setup: Setup, client: int, beside: np.ndarray | None) -> np.ndarray | None:
    """SCAFFOLD's correction of a client's steps, which has a row for every client beside the global model."""
    if not isinstance(setup.protocol.local, Scaffold):
        return None
    if beside is None:
        raise UserError('local.rule = "scaffold": control variates are kept by `train` alone.')
    return own_row(client, beside)


def own_row(client: int, beside: np.ndarray) -> np.ndarray:
    """What is for one client of what travels beside the global model; a single row is for whoever has received it."""
    return beside[client] if len(beside) > 1 else beside[0]


def received_by(client: int, broadcast: np.ndarray) -> np.ndarray:
    """What one client needs of a broadcast: the global model, and in a second row what is for it, where anything is.

    Example:
        >>> received_by(1, np.array([[0.0], [1.0], [2.0]])).ravel().tolist()
        [0.0, 2.0]
    """
    return (
        broadcast
        if broadcast.ndim == 1
        else np.stack([broadcast[0], own_row(client, broadcast[1:])])
    )


def stream_of(
    setup: Setup, key: Key, purpose: Purpose, *, client: int, round: int, step: int = 0
) -> Stream:
    """The keystream of one of a client's draws."""
    return key.stream(purpose, training=setup.training, client=client, round=round, step=step)


def minibatches(
    setup: Setup, rule: FedAvg | NoisySgd, *, client: int, round: int
) -> list[np.ndarray]:
    """The rows of the records that every step of a client draws; a Poisson batch may be empty."""
    part = setup.parts[client]
    stream = stream_of(setup, setup.draw_key, Purpose.MINIBATCH, client=client, round=round)
    if isinstance(rule, NoisySgd) and rule.sampling == "poisson":
        return [
            part[heads] for heads in stream.coins(rule.steps, len(part), rule.batch / len(part))
        ]
    return [part[draw] for draw in stream.subsets(rule.steps, rule.batch, len(part))]


def finished(setup: Setup, task: Assignment, steps: LocalSteps, trained: torch.Tensor) -> Upload:
    """The upload of a client that has made its steps, its noise added, and the model that it keeps, where it keeps one."""
    stream = stream_of(
        setup, setup.noise_key, Purpose.UPLOAD_NOISE, client=task.client, round=task.round
    )
    # Rounded to float32 it would move by more than is priced: no noise is between it and the next upload.
    own = (
        {"model": trained.cpu().numpy().astype(np.float64)} if setup.protocol.keeps_models else None
    )
    start = torch.from_numpy(task.start).to(trained.device)
    sent = sent_model(setup, start, trained, training=setup.training, round=task.round)
    vector = noisy_upload(sent, setup.noises[task.client], stream)
    return Upload(client=task.client, vector=vector, steps=steps, kept=own)
