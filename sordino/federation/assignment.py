"""What a client is asked to do in a round, and which records its steps draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from sordino.federation.broadcast_state import read_clip, read_correction, read_leader
from sordino.federation.personal import find_start, keeps_state
from sordino.federation.rules.local_training import Assignment, ClientState, Pull, Substitute
from sordino.federation.setup import Setup
from sordino.privacy.own_noise import pull_of
from sordino.protocol import Bezier, FedAvg, FedProx, LocalRule, Scaffold, UserError
from sordino.protocol.registry import Registry
from sordino.randomness import Purpose, Stream


def make_assignment(
    setup: Setup,
    initial: np.ndarray,
    *,
    client: int,
    round_index: int,
    weights: np.ndarray,
    kept: ClientState | None,
    sums: Substitute | None = None,
) -> Assignment:
    """Returns the work of a client that receives the global model and finds what it has kept.

    Models may be vectors, or tables with one training a row.

    Args:
        setup: The federation.
        initial: Its model before the first round.
        client: Which client works.
        round_index: Number of the round, from 0.
        weights: What the server sends. What travels with the global model is in further rows
            (see `broadcast_state`): the model that clients are pulled to, or every client's
            correction, or this client's alone.
        kept: What the client has kept, None where nobody keeps anything.
        sums: With noisy-sgd, what takes the place of the client's own sums and of their noise.

    Raises:
        UserError: Clients keep something, and here nobody keeps it.
    """
    protocol = setup.protocol
    if kept is None and keeps_state(protocol, setup.release):
        raise UserError(
            "clients of this protocol keep state from round to round, and nothing here keeps it:"
            " only `train` does."
        )
    model = weights
    extras = None
    if weights.ndim > initial.ndim:
        model = weights[0]
        extras = weights[1:]
    begin = find_start(protocol, model, initial, kept or {})
    pull = None
    if begin.helper is not None:
        pull = Pull(model=torch.from_numpy(begin.helper), strength=begin.strength)
    if protocol.penalty:
        pull = leader_pull(setup, client, extras)
    if pull is None:
        pull = PUBLIC_PULLS.of(protocol.local)(protocol.local, initial)
    return Assignment(
        client=client,
        round_index=round_index,
        start=begin.start,
        pull=pull,
        correction=read_correction(protocol, client, extras),
        clip=read_clip(protocol, extras),
        kept=kept or {},
        sums=sums,
    )


def leader_pull(setup: Setup, client: int, extras: np.ndarray | None) -> Pull | None:
    """Returns the Harmonizer's penalty: a pull to the leader's model.

    Args:
        setup: The federation.
        client: The client that is pulled, if its budget is below the leader's.
        extras: What travels with the global model.
    """
    budgets = [budget for budget in setup.protocol.client if budget.id == client]
    strength = sum(pull_of(setup.protocol, budget) for budget in budgets)
    leader = read_leader(extras)
    if leader is None or strength <= 0:
        return None
    return Pull(model=torch.from_numpy(leader), strength=strength)


# The pull of a rule to models that all know before the first round.
PUBLIC_PULLS: Registry[Callable[[Any, np.ndarray], Pull | None]] = Registry(
    "pull to a public model", "local rule", LocalRule
)


@PUBLIC_PULLS.register(FedAvg, FedProx, Scaffold, Bezier)
def pull_to_anchor(rule: FedAvg, initial: np.ndarray) -> Pull | None:
    """Returns the pull to the model before the first round, joined with weight decay.

    A pull to the anchor and one to zero are a pull of their joint strength to a point between them.

    Args:
        rule: How strong both are.
        initial: The model before the first round.
    """
    strength = rule.anchor_pull + rule.weight_decay
    if strength == 0:
        return None
    centre = initial * (rule.anchor_pull / strength)
    return Pull(model=torch.from_numpy(centre), strength=strength)


# Weight decay of these is part of their own steps, and a new rule has not declared any.
@PUBLIC_PULLS.register_others
def pull_to_nothing(rule: LocalRule, initial: np.ndarray) -> None:
    """Returns no pull in addition to what the steps of the rule do themselves.

    Args:
        rule: The rule.
        initial: The model before the first round.
    """
    return


def minibatches(setup: Setup, *, client: int, round_index: int) -> list[np.ndarray]:
    """Returns the rows of the records that every step of a client draws.

    Args:
        setup: The federation.
        client: The client that draws.
        round_index: Number of the round, from 0.

    Returns:
        One array a step; a Poisson batch may be empty.
    """
    rule = setup.protocol.local
    part = setup.parts[client]
    batch = rule.batch or len(part)
    rate = setup.find_draw_rate(client)
    stream = setup.draw_key.stream(
        Purpose.MINIBATCH, training=setup.training, client=client, round_index=round_index
    )
    if setup.release.varying_batches:
        coins = stream.coins(rule.steps, len(part), rate)
        return [part[heads] for heads in coins]
    return [part[draw] for draw in stream.subsets(rule.steps, batch, len(part))]


def derive_mask_key(setup: Setup, *, client: int, round_index: int) -> bytes:
    """Returns the key of what the dropouts of a client drop in a round.

    The dropped values show which weights a step left unchanged, so under `secure` the key is
    secret.

    Args:
        setup: The federation.
        client: Number of the client, from 0.
        round_index: Number of the round, from 0.
    """
    stream = setup.draw_key.stream(
        Purpose.DROPOUT, training=setup.training, client=client, round_index=round_index
    )
    return stream.read_bytes(32)


def draw_mask_words(key: bytes, step: int, *, examples: int, length: int) -> np.ndarray:
    """Returns the words by which the dropouts of a network drop values in a step.

    Args:
        key: The key of the client and the round.
        step: Number of the step, from 0.
        examples: How many records the batch has.
        length: Words of a record, in whole blocks.

    Returns:
        A table of uint32, a record a row.
    """
    words = np.empty((examples, length), dtype="<u4")
    # Every record has a keystream to itself: it does not matter how many there are.
    for example in range(examples):
        nonce = np.array([step, example, 0], dtype="<u4").tobytes()
        words[example] = Stream(subkey=key, nonce=nonce).words(length // 2).view("<u4")
    return words
