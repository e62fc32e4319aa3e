"""Draws that layers make for themselves, such as the masks of dropout, are as secret as the noise."""

from dataclasses import replace

import numpy as np
from torch import nn

from sordino.federation.assignment import derive_mask_key
from sordino.federation.client import ClientWork
from sordino.federation.setup import prepare
from sordino.protocol import Constant, Data, FedAvg, Gaussian, Model, Protocol
from sordino.randomness import Key

RULE = FedAvg(steps=2, batch=4, clip=1.0, schedule=Constant(rate=0.1))
PLAN = Protocol(
    seed=7,
    clients=2,
    rounds=1,
    local=RULE,
    noise=Gaussian(sigma=0.0),
    data=Data(name="digits", records=4),
    model=Model(name="mlp"),
)


def dropping() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))


def test_masks_follow_the_secret_key_and_not_the_public_seed() -> None:
    public = prepare(PLAN, model=dropping())
    weights = public.initial_weights()

    def sent(secret: Key) -> np.ndarray:
        # Every batch is the client's four records, so that nothing but the masks depends on the key.
        setup = replace(public, noise_key=secret, draw_key=secret)
        return ClientWork(setup).upload(client=0, round_index=0, weights=weights).vector

    first, again, other = (sent(Key.from_seed(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_every_client_round_and_training_has_masks_for_itself() -> None:
    """Both engines ask the same function, so that comparing them cannot show a shared key."""
    setup = prepare(PLAN, model=dropping())
    places = [(t, c, r) for t in range(3) for c in range(2) for r in range(3)]
    keys = {
        derive_mask_key(replace(setup, training=t), client=c, round_index=r) for t, c, r in places
    }
    assert len(keys) == len(places)
