"""Worst cases as data: the two neighbouring data sets on which a protocol reveals as much as its bound allows.

Records of a worst case are losses (`given_losses`), trained by the same steps, clip, noise and mean as any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from scipy.stats import norm
from torch import nn

from sordino.audit.given_losses import GivenLosses
from sordino.audit.observation import Given, given_to, withheld_batches
from sordino.federation.aggregation import upload_weights
from sordino.federation.many_clients import ManyClients
from sordino.federation.models.bounded import BoundedLogistic
from sordino.federation.randomness import Key
from sordino.federation.setup import Setup, Tensors
from sordino.privacy.certify import asked, harmonized
from sordino.privacy.harmonizer import own_guarantees, own_protocol
from sordino.privacy.mechanisms import deviation
from sordino.protocol import (
    ClippedGlm,
    Constant,
    Cyclic,
    Gaussian,
    Mean,
    ModeConnectivity,
    Noise,
    NoisySgd,
    Protocol,
    Staircase,
    View,
)

MOST_PARAMETERS = 32  # of a worst case under noise whose price depends on their number
STEEP = 10.0  # a flipped record's gradient over the clip, so that the clip is exercised
FAR = 1e4  # features of the canary of clipped-glm before they are scaled into the ball: its bias coordinate becomes negligible


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two federations that differ in the unit of one client, and what is known of them.

    Attributes:
        zero: the data set.
        one: its neighbour.
        attacked: the client whose unit differs.
        description: both, in words.
        caps: how often clients may take part.
        turned: where the adversary does not know the batches, the federation in which every batch of the client does what one does that
            holds the record of the neighbour.
    """

    zero: Setup
    one: Setup
    attacked: int
    description: str
    caps: Mapping[int, int] = field(default_factory=dict)
    turned: Setup | None = None

    def side(self, number: int) -> Setup:
        """The data set (0) or its neighbour (1)."""
        return self.one if number == 1 else self.zero


def worst_pair(
    protocol: Protocol,
    view: View,
    unit: str,
    *,
    key: Key,
    rounds: int,
    sizes: Sequence[int] | None = None,
    caps: Mapping[int, int] | None = None,
) -> Pair:
    """The pair that comes closest to the bound of a view.

    The attacked client is the one that has most to lose. For who sees the last model only, what the other clients do
    with the models matters too, so their losses are chosen by `best_curvature`.

    Example:
        >>> from sordino.protocol import FedAvg, Gaussian
        >>> rule = FedAvg(steps=2, batch=4, clip=1.0, schedule=Constant(rate=0.1))
        >>> protocol = Protocol(clients=3, rounds=2, local=rule, noise=Gaussian(sigma=1.0))
        >>> pair = worst_pair(protocol, View.SERVER, "record", key=Key.from_seed(1), rounds=2)
        >>> round(pair.zero.train.x[pair.zero.parts[pair.attacked][0]].norm().item(), 3)
        40.0
    """
    held, caps = held_sizes(protocol, sizes), caps or {}
    attacked = most_exposed(protocol, held, caps, unit)
    if isinstance(protocol.local, ClippedGlm):
        return replace(clipped_glm_pair(protocol, unit, held, key, attacked), caps=caps)
    words = ""
    if isinstance(protocol.aggregation, ModeConnectivity):
        protocol, words = (
            replace(protocol, aggregation=Mean()),
            "; a mean in the place of mode connectivity, which starts from the uploads",
        )
    curvature = 0.0
    if (
        given_to(protocol, view) == Given.LAST
        and isinstance(protocol.aggregation, Mean)
        and not protocol.keeps_models
    ):
        curvature = best_curvature(protocol, unit, held, key, rounds, attacked)
    crowd = protocol.channel == "shuffler" and given_to(protocol, view) == Given.UPLOADS
    secret = withheld_batches(protocol, view, unit, sizes) and curvature == 0
    pair = linear_pair(protocol, unit, held, key, curvature, attacked, crowd=crowd, secret=secret)
    return replace(pair, caps=caps, description=pair.description + words)


def most_exposed(
    protocol: Protocol, sizes: Sequence[int], caps: Mapping[int, int], unit: str
) -> int:
    """The client that may take part most often and has the largest share in the mean; among equals the largest.

    Where minibatches hide a record it is the smallest instead, which has the fewest records to hide one among. Where clients have noise of
    their own, it is the one that is promised the least.

    Example:
        >>> from sordino.protocol import FedAvg, Gaussian
        >>> rule = FedAvg(steps=2, batch=4, clip=1.0, schedule=Constant(rate=0.1))
        >>> protocol = Protocol(clients=3, rounds=2, local=rule, noise=Gaussian(sigma=1.0))
        >>> [most_exposed(protocol, (9, 5, 7), caps, unit) for caps in ({}, {0: 1, 1: 1}) for unit in ("client", "record")]
        [0, 1, 2, 2]
    """
    if harmonized(protocol):
        return least_promised(protocol, sizes, unit)
    steps = isinstance(
        protocol.local, NoisySgd
    )  # one bound for all views: what becomes of an upload does not matter
    shares = (
        np.ones(len(sizes)) if steps else upload_weights(protocol.aggregation, np.asarray(sizes))
    )
    hidden = (
        unit == "record" and protocol.local.batch is not None and protocol.local.batch < max(sizes)
    )
    order = [
        (
            min(caps.get(c, protocol.rounds), protocol.rounds),
            shares[c],
            -sizes[c] if hidden else sizes[c],
            -c,
        )
        for c in range(len(sizes))
    ]
    return max(range(len(sizes)), key=lambda client: order[client])


def least_promised(protocol: Protocol, sizes: Sequence[int], unit: str) -> int:
    """The client of a Harmonizer whose promise is the weakest; among nearly equals one with Gaussian noise, which few parameters show."""
    promised = own_guarantees(asked(protocol, View.SERVER, unit, None, sizes))
    epsilons = {client: guarantee.epsilon(1e-5) for client, guarantee in promised.items()}
    weakest = [
        client for client, epsilon in epsilons.items() if epsilon >= 0.95 * max(epsilons.values())
    ]
    return max(
        weakest,
        key=lambda client: (
            isinstance(noise_of(protocol, client, sizes[client]), Gaussian),
            epsilons[client],
        ),
    )


def parameters_of(protocol: Protocol, noise: Noise) -> int:
    """How many parameters the worst case has: two, or as many as the model where the price of the attacked client's noise depends on them.

    Under an l1 clip an upload reveals the most when all of the shift is in one.
    """
    known = (
        protocol.model.parameters
        if protocol.model is not None and protocol.model.parameters is not None
        else 2
    )
    if getattr(protocol.local, "clip_norm", "l2") == "l1":
        return min(known, MOST_PARAMETERS) if isinstance(noise, Staircase) else 1
    return min(known, 2 if isinstance(noise, Gaussian) else MOST_PARAMETERS)


def removes(protocol: Protocol, unit: str) -> bool:
    """Whether the unit is present in one data set and absent in the other: a record then pulls nowhere, a client moves nothing.

    Where the server adds the noise, adding or removing is priced for whole clients, and a record is replaced.
    """
    return protocol.adjacency == "add-or-remove" and (
        unit == "client" or isinstance(protocol.local, NoisySgd)
    )


def noise_of(protocol: Protocol, client: int, records: int) -> Noise:
    """The noise of one client."""
    own = [budget for budget in protocol.client if budget.id == client]
    return own_protocol(protocol, own[0], records).noise if own else protocol.noise


def held_sizes(protocol: Protocol, sizes: Sequence[int] | None) -> tuple[int, ...]:
    """Records of every client; where nobody says how many, one batch, so that the record is in every step."""
    if sizes is not None:
        return tuple(sizes)
    records = protocol.data.records if protocol.data is not None else None
    return (records if records is not None else protocol.local.batch or 1,) * protocol.clients


def linear_pair(
    protocol: Protocol,
    unit: str,
    sizes: tuple[int, ...],
    key: Key,
    curvature: float,
    attacked: int,
    *,
    crowd: bool = False,
    secret: bool = False,
) -> Pair:
    """Linear losses, flipped in the attacked client (THEORY A2, A3); the others' losses are flat, or curved.

    With curvature below zero the other clients drive models apart, which keeps early rounds visible in the last model (A7, tight).
    The record acts on all parameters alike: a clip that looks at one at a time must not pass for a clip of the norm, and noise that is
    drawn for each reveals the most along the diagonal. In a `crowd` all others do what the attacked client does on the first data set: who
    does something else among them stands out the most. Where batches are `secret`, the client's other records pull the way that the record
    pulls in the first data set, and give way to it: the upload is certain there, and in the neighbour a batch with the record turns it.
    """
    noise = noise_of(protocol, attacked, sizes[attacked])
    batch, width = protocol.local.batch or 1, parameters_of(protocol, noise)
    removed = removes(protocol, unit)
    records = np.zeros((sum(sizes), width + 1), dtype=np.float32)
    records[:, width] = curvature
    parts = consecutive(sizes)
    records[parts[attacked], width] = 0.0
    flipped = parts[attacked] if unit == "client" else parts[attacked][:1]
    slope = width**-0.5 * STEEP * protocol.local.clip
    if crowd:
        records[
            [row for client, part in enumerate(parts) if client != attacked for row in part], :width
        ] = slope
    # One record among the batch has all of the gradient; a whole client of such records shares it.
    records[flipped, :width] = slope * (1 if unit == "client" else batch)
    if secret:
        records[parts[attacked], :width] = slope
        records[flipped, :width] = 2 * slope * batch * protocol.local.steps
    neighbour = records.copy()
    neighbour[flipped, :width] *= 0 if removed else -1
    targets = np.zeros(len(records), dtype=np.float32)
    every = records.copy()
    every[parts[attacked], :width] *= -1
    setups = [
        setup_of(protocol, x, targets, parts, GivenLosses(width), key)
        for x in (records, neighbour, every)
    ]
    how = "absent or present" if removed else "flipped"
    words = f"linear losses with {'a record' if unit == 'record' else 'a client'} {how} at {STEEP:g} times the clip"
    drawn = unit == "record" and batch < sizes[attacked]
    words += f", drawn into a step with probability {batch}/{sizes[attacked]}" if drawn else ""
    words += ", unseen" if secret else ""
    words += f", in {width} parameters" if not isinstance(noise, Gaussian) else ""
    words += "; the other clients do what it does on the first data set" if crowd else ""
    words += f"; the other clients' losses have curvature {curvature:.3g}" if curvature != 0 else ""
    return Pair(
        zero=setups[0],
        one=setups[1],
        attacked=attacked,
        description=words,
        turned=setups[2] if secret else None,
    )


def clipped_glm_pair(
    protocol: Protocol, unit: str, sizes: tuple[int, ...], key: Key, attacked: int
) -> Pair:
    """A canary of clipped logistic regression whose features no other record shares; neighbours differ in its label.

    Its gradient has norm V as long as its prediction stays unsure and V is at most half the feature norm, so the two data sets pull with V
    and -V; with a larger clip the labels differ by less than is priced.
    """
    parts = consecutive(sizes)
    records = np.zeros((sum(sizes), 1), dtype=np.float32)
    labels = np.arange(sum(sizes)) % 2
    flipped = parts[attacked] if unit == "client" else parts[attacked][:1]
    records[flipped, 0] = (
        FAR * protocol.local.feature_norm if isinstance(protocol.local, ClippedGlm) else FAR
    )
    setups = []
    for label in (0, 1):
        targets = labels.copy()
        targets[flipped] = label
        norm = protocol.local.feature_norm if isinstance(protocol.local, ClippedGlm) else 1.0
        setups.append(setup_of(protocol, records, targets, parts, BoundedLogistic(1, norm), key))
    whose = "a record" if unit == "record" else "all records of a client"
    return Pair(
        zero=setups[0],
        one=setups[1],
        attacked=attacked,
        description=f"{whose} on a feature of its own, with its label turned",
    )


def without_noise(setup: Setup) -> Setup:
    """The same federation, silent on its uploads; noisy steps keep their noise, which whoever repeats them takes the place of."""
    if isinstance(setup.protocol.local, NoisySgd):
        return setup
    quiet = Gaussian(
        sigma=0.0, where="server" if setup.protocol.noise.where == "server" else "client"
    )
    return replace(setup, protocol=replace(setup.protocol, noise=quiet))


def consecutive(sizes: Sequence[int]) -> tuple[np.ndarray, ...]:
    """Records shared out in order."""
    return tuple(np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]))


def setup_of(
    protocol: Protocol,
    x: np.ndarray,
    y: np.ndarray,
    parts: tuple[np.ndarray, ...],
    module: nn.Module,
    key: Key,
) -> Setup:
    """A federation on given records."""
    records = Tensors(
        x=torch.from_numpy(x), y=torch.from_numpy(y), scale=torch.ones(()), shift=torch.zeros(())
    )
    return Setup(
        protocol=protocol,
        train=records,
        test=replace(records, x=records.x[:1], y=records.y[:1]),
        parts=parts,
        classification=isinstance(module, BoundedLogistic),
        outputs=2 if isinstance(module, BoundedLogistic) else 1,
        input_shape=x.shape[1:],
        module=module,
        key=key,
        noise_key=key,
        draw_key=key,
        data_digest="",
    )


REHEARSALS = 2000
STRENGTHS = (
    0.0,
    0.25,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    3.0,
)  # expansion of the first round: its rates' sum times the curvature


def best_curvature(
    protocol: Protocol, unit: str, sizes: tuple[int, ...], key: Key, rounds: int, attacked: int
) -> float:
    """How much the other clients should drive models apart, so that the last model shows the most.

    With rates that repeat, linear losses are the worst case already (THEORY A7). Falling rates shift early rounds more, and only
    models that expand still show that in the end; the clip limits how far, so candidates are rehearsed. Never beyond a vouched smoothness.
    """
    if isinstance(protocol.local.schedule, (Constant, Cyclic)) or rounds == 1:
        return 0.0
    total = sum(protocol.local.schedule.rates(round=0, steps=protocol.local.steps))
    limit = (
        protocol.assumptions.smoothness if protocol.assumptions.smoothness is not None else np.inf
    )
    candidates = sorted({-min(strength / total, limit) for strength in STRENGTHS})
    shown = [
        rehearsed(linear_pair(protocol, unit, sizes, key, curvature, attacked), rounds)
        for curvature in candidates
    ]
    return float(candidates[int(np.argmax(shown))])


def rehearsed(pair: Pair, rounds: int) -> float:
    """How well the two last models can be told apart, with the noise of the mean drawn in one piece.

    This chooses the pair and measures nothing: what is reported comes from trainings in which every client draws its own noise.
    """
    protocol = pair.zero.protocol
    shares = upload_weights(protocol.aggregation, pair.zero.sizes)
    shares = shares / shares.sum()
    mixing = protocol.aggregation.mixing if isinstance(protocol.aggregation, Mean) else 1.0
    ends = []
    for setup in (pair.zero, pair.one):
        # Both sides draw the same noise, so that even a small difference shows.
        clients, generator = ManyClients(setup), np.random.default_rng(1)
        weights = np.zeros((REHEARSALS, pair.zero.initial_weights().size), dtype=np.float32)
        for t in range(rounds):
            mean = np.zeros(weights.shape)
            for like in np.unique(clients.like):
                models = clients.trained(client=int(like), round=t, weights=weights, first=0)
                mean += shares[clients.like == like].sum() * models.numpy()
            mean += (
                deviation(protocol.noise)
                * np.sqrt(np.square(shares).sum())
                * generator.standard_normal(weights.shape)
            )
            weights = ((1 - mixing) * weights + mixing * mean).astype(np.float32)
        ends.append(weights.sum(axis=1, dtype=np.float64))
    apart = float(abs((ends[1] - ends[0]).mean()) / max(ends[0].std(), 1e-300))
    return (
        apart if apart < 1 else balanced_mu(ends[0], ends[1])
    )  # models that were driven far apart are not normal any more


def balanced_mu(zero: np.ndarray, one: np.ndarray) -> float:
    """The Gaussian parameter of the threshold test that errs equally often on both sides, as far as these samples show it.

    Example:
        >>> round(balanced_mu(np.arange(100.0), np.arange(100.0) + 50.0), 2)
        1.35
    """
    up = 1.0 if one.mean() >= zero.mean() else -1.0
    thresholds = np.quantile(np.concatenate([zero, one]), np.linspace(0.02, 0.98, 97))
    missed = np.searchsorted(np.sort(up * one), np.sort(up * thresholds)) / len(one)
    alarms = 1 - np.searchsorted(np.sort(up * zero), np.sort(up * thresholds)) / len(zero)
    return float(-2 * norm.ppf(max(np.maximum(missed, alarms).min(), 1 / len(zero))))
