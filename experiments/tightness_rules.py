"""Rows of the table of tightness for every local rule, for secure sums and for unequal clients.

`experiments.tightness` has the others, and writes the table.
"""

from __future__ import annotations

import math

import numpy as np

from experiments.tightness import (
    DELTA,
    DIRECTIONS,
    PAIR,
    Row,
    make_protocol,
    make_steps,
    mix_over_curve,
    normal_epsilon,
    one_sided,
)
from sordino import (
    Bezier,
    Constant,
    Data,
    FedProx,
    Gaussian,
    Mean,
    Model,
    NoisySgd,
    Protocol,
    SecureAggregation,
)
from sordino.privacy.participation_caps import find_capped_rounds
from sordino.protocol import ClientBudget, ClippedGlm, Scaffold
from sordino.protocol.dp_sgd_rule import AdaptiveClip, DpSgd
from sordino.protocol.values import Assumptions, Privacy
from tests.oracles.exact_laws import epsilon_at_least, normal_mixture
from tests.oracles.last_model import linear_energy, worst_case_dynamics

LINEAR = "linear losses, one record flipped"
GRID = "linear losses; discrete noise counts as the normal noise that hides as much"
ROUNDS = 50
RATE = 8 / 64
GLM_RATE = 0.1
GLM_NOISE = 0.005
GLM_CLIP = 0.1
DECAY = 0.01
DATA = Data(name="digits", records=64)
LOGISTIC = Model(name="logistic", parameters=650)
SECURE = SecureAggregation(threshold=15)


def make_lots(rule: dict[str, object] | None = None, **changes: object) -> Protocol:
    """Returns dp-sgd with a noise of two clips on the sum of all clients."""
    local = DpSgd(**{"batch": 8, "clip": 1.0, "schedule": Constant(rate=0.1), **(rule or {})})
    settings = {"local": local, "data": DATA, "noise": Gaussian(multiplier=2.0), **changes}
    return make_protocol(**settings)


def two_sided(rate: float, reach: float, times: int) -> float:
    """Returns epsilon of a record that moves a sum one way, or the other way, when drawn."""
    masses = [1 - rate, rate]
    first = normal_mixture([0.0, reach], masses)
    second = normal_mixture([0.0, -reach], masses)
    return epsilon_at_least(first, second, DELTA, times=times)


def lot_rows() -> list[Row]:
    """Returns lots of all records under one noise."""
    lots = "subsampled joined steps"
    replaced = make_lots(privacy=Privacy(adjacency="replace-one"))
    # All twenty shares make two clips, so one alone is this much smaller than eight.
    alone = make_lots(noise=Gaussian(multiplier=8.0))
    adaptive = make_lots(rule={"adaptive": AdaptiveClip()})
    counted = adaptive.local.adaptive.price_factor
    return [
        Row(
            bound=lots, setting="dp-sgd, a record added or removed", protocol=make_lots(),
            view="rounds", exact=lambda: one_sided(RATE, 0.5, ROUNDS), why=PAIR,
        ),
        Row(
            bound=lots, setting="dp-sgd, a record replaced", protocol=replaced, view="rounds",
            exact=lambda: two_sided(RATE, 0.5, ROUNDS), why=PAIR,
        ),
        Row(
            bound=lots, setting="dp-sgd, fixed batches", view="rounds", why=DIRECTIONS,
            protocol=make_lots(rule={"sampling": "fixed"}),
            exact=lambda: one_sided(RATE, 1.0, ROUNDS),
        ),
        Row(
            bound=lots, setting="dp-sgd, multiplier 8, uploads seen", protocol=alone,
            view="server", exact=lambda: one_sided(RATE, math.sqrt(20) / 8, ROUNDS), why=PAIR,
        ),
        Row(
            bound=lots, setting="dp-sgd", protocol=make_lots(), view="coalition:3",
            exact=lambda: one_sided(RATE, math.sqrt(20 / 17) / 2, ROUNDS), why=PAIR,
        ),
        Row(
            bound=lots, setting="dp-sgd, secure sums of 15 and more", view="server", why=GRID,
            protocol=make_lots(channel=SECURE, model=LOGISTIC),
            exact=lambda: one_sided(RATE, 0.5, ROUNDS),
        ),
        Row(
            bound=lots, setting="dp-sgd, noise at the server", view="rounds", why=PAIR,
            protocol=make_lots(noise=Gaussian(multiplier=2.0, where="server")),
            exact=lambda: one_sided(RATE, 0.5, ROUNDS),
        ),
        Row(
            bound=lots, setting="dp-sgd, adaptive clip", protocol=adaptive, view="rounds",
            exact=lambda: one_sided(RATE, counted / 2, ROUNDS),
            why="the two laws are what the bound is made of, the count of clipped examples in them",
        ),
    ]  # fmt: skip


def last_model_epsilon(stretch: float, shift: float, noise: float) -> float:
    """Returns epsilon of the last model of linear dynamics."""
    shifts = np.full(ROUNDS, shift)
    energy = linear_energy(worst_case_dynamics(np.full(ROUNDS, stretch), shifts), shifts)
    return normal_epsilon(math.sqrt(energy) / noise)


def make_glm(loss: str, **clip: float) -> Protocol:
    """Returns linear models whose local training contracts, and whose margins stay small."""
    rule = ClippedGlm(
        steps=1, schedule=Constant(rate=GLM_RATE), weight_decay=DECAY, loss=loss, **clip
    )
    return make_protocol(local=rule, data=DATA, noise=Gaussian(sigma=GLM_NOISE))


def glm_rows() -> list[Row]:
    """Returns linear models, with one record whose features point the other way."""
    # One of 64 records moves a full gradient by two clips.
    clipped = 2 * GLM_CLIP * GLM_RATE / 64
    # Where all ten classes are as probable, a gradient is p - y = sqrt(1 - 1/10) features long.
    even = 2 * math.sqrt(1 - 1 / 10) * GLM_RATE / 64
    stretch = 1 - GLM_RATE * DECAY
    noise = GLM_NOISE / math.sqrt(20)
    why = "one record's features turned round, while margins are small and its gradient is clipped"
    certain = (
        "the same without a clip, ten classes as probable: the bound's move is that of a model "
        "certain and wrong of both records"
    )
    return [
        Row(
            bound="composition", setting="clipped-glm, logistic, 1 step", view="server",
            protocol=make_glm("logistic", clip=GLM_CLIP), why=why,
            exact=lambda: normal_epsilon(clipped * math.sqrt(ROUNDS) / GLM_NOISE),
        ),
        Row(
            bound="last iterate", setting="clipped-glm, logistic, 1 step", view="final",
            protocol=make_glm("logistic", clip=GLM_CLIP), why=why,
            exact=lambda: last_model_epsilon(stretch, clipped / 20, noise),
        ),
        Row(
            bound="last iterate", setting="clipped-glm, one against rest, 1 step", view="final",
            protocol=make_glm("one-against-rest", clip=GLM_CLIP), why=why,
            exact=lambda: last_model_epsilon(stretch, clipped / 20, noise),
        ),
        Row(
            bound="composition", setting="clipped-glm, softmax, 1 step", view="server",
            protocol=make_glm("softmax"), why=certain,
            exact=lambda: normal_epsilon(even * math.sqrt(ROUNDS) / GLM_NOISE),
        ),
    ]  # fmt: skip


def rule_rows() -> list[Row]:
    """Returns the other rules, where they differ from FedAvg."""
    mu = math.sqrt(ROUNDS) / 4
    steps = {"steps": 5, "batch": 8, "clip": 0.1, "schedule": Constant(rate=1.0)}
    pulled = sum(0.7**step for step in range(5)) / 5
    decaying = make_protocol(
        local=make_steps(1, weight_decay=0.3), assumptions=Assumptions(smoothness=0.1)
    )
    return [
        Row(
            bound="composition", setting="FedProx, alpha 0.3", view="server", why=LINEAR,
            protocol=make_protocol(local=FedProx(proximal=0.3, **steps)),
            exact=lambda: normal_epsilon(mu * pulled),
        ),
        Row(
            bound="composition", setting="SCAFFOLD", view="server", why=LINEAR,
            protocol=make_protocol(local=Scaffold(**steps)), exact=lambda: normal_epsilon(mu),
        ),
        Row(
            bound="last iterate", setting="FedAvg, 1 step, weight decay 0.3, smoothness 0.1",
            protocol=decaying, view="final",
            exact=lambda: last_model_epsilon(0.8, 1 / 20, 4 / math.sqrt(20)),
            why="quadratic losses of curvature -0.1, pulled to 0 by the weight decay",
        ),
    ]  # fmt: skip


def view_rows() -> list[Row]:
    """Returns secure sums of uploads, other adversaries, and clients of unequal sizes."""
    mu = math.sqrt(ROUNDS) / 4
    sizes = (16,) * 10 + (64,) * 8 + (256,) * 2
    unequal = make_protocol(
        local=make_steps(1, batch=16), data=Data(name="digits", sizes=sizes),
        aggregation=Mean(weights="records"),
    )  # fmt: skip
    length = math.sqrt(sum(size**2 for size in sizes))
    return [
        Row(
            bound="composition", setting="FedAvg, secure sums of 15 and more, integers",
            protocol=make_protocol(channel=SECURE, model=LOGISTIC), view="server", why=GRID,
            exact=lambda: normal_epsilon(mu / math.sqrt(15)),
        ),
        Row(
            bound="composition", setting="FedAvg", protocol=make_protocol(), view="weak",
            exact=lambda: normal_epsilon(mu / math.sqrt(19)), why=LINEAR,
        ),
        Row(
            bound="composition", setting="FedAvg", protocol=make_protocol(), view="strong",
            exact=lambda: normal_epsilon(mu), why=LINEAR,
        ),
        Row(
            bound="secret batches", setting="FedAvg, 1 step, clients of 16, 64 and 256 records",
            protocol=unequal, view="rounds", why=DIRECTIONS,
            exact=lambda: max(
                one_sided(16 / size, size / length / 4, ROUNDS) for size in set(sizes)
            ),
        ),
    ]  # fmt: skip


def unequal_rows() -> list[Row]:
    """Returns clients of unequal sizes, each priced for itself."""
    sizes = (16,) * 10 + (64,) * 8 + (256,) * 2
    both = make_protocol(
        local=make_steps(1, batch=16), data=Data(name="digits", sizes=sizes),
        noise=Gaussian(sigma=4.0, where="both", server_sigma=0.25),
        aggregation=Mean(weights="records"),
    )  # fmt: skip
    # A client of 256 is attacked; the other one and two of 64 collude.
    honest = 256**2 + 6 * 64**2 + 10 * 16**2
    noise = math.hypot(4 * math.sqrt(honest), 0.25 * sum(sizes))
    capped = make_protocol(
        local=make_steps(1, batch=16), data=Data(name="digits", sizes=sizes),
        noise=Gaussian(sigma=2.0),
        client=tuple(ClientBudget(id=client, epsilon=4.0, delta=DELTA) for client in range(20)),
    )  # fmt: skip
    # Every record of the smallest clients is in all their batches.
    affordable = max(n for n in range(1, ROUNDS + 1) if normal_epsilon(math.sqrt(n) / 2) <= 4.0)
    caps = {size: find_capped_rounds(capped, capped.client[0], size) for size in (64, 256)}
    joined = make_protocol(
        local=NoisySgd(steps=1, batch=16, clip=1.0, schedule=Constant(rate=0.1)),
        data=Data(name="digits", sizes=sizes), noise=Gaussian(multiplier=1.0),
        aggregation=Mean(weights="records"),
    )  # fmt: skip
    length = math.sqrt(sum(size**2 for size in sizes))
    return [
        Row(
            bound="composition", setting="FedAvg, noise at both, the same sizes, a client",
            protocol=both, view="coalition:3", unit="client", why=LINEAR,
            exact=lambda: normal_epsilon(math.sqrt(ROUNDS) * 256 / noise),
        ),
        Row(
            bound="client budgets", setting="FedAvg, the same sizes, every client has epsilon 4",
            protocol=capped, view="server", why=DIRECTIONS,
            exact=lambda: max(
                normal_epsilon(math.sqrt(affordable) / 2),
                *(one_sided(16 / size, 0.5, cap) for size, cap in caps.items()),
            ),
        ),
        Row(
            bound="subsampled joined steps", setting="noisy-sgd, 1 step, the same sizes",
            protocol=joined, view="rounds", why=DIRECTIONS,
            exact=lambda: max(one_sided(16 / size, size / length, ROUNDS) for size in set(sizes)),
        ),
        Row(
            bound="Bezier mixture", setting="1 round, noise at the server", view="rounds",
            protocol=make_protocol(
                local=Bezier(steps=1, batch=1, clip=0.5, schedule=Constant(rate=1.0)),
                assumptions=Assumptions(smoothness=1.0), rounds=1,
                noise=Gaussian(sigma=0.05, where="server"),
            ),
            # The mean of twenty moves by a twentieth.
            exact=mix_over_curve, why="24 pieces of the curve, each counted as its largest value",
        ),
    ]  # fmt: skip


def all_rule_rows() -> list[Row]:
    """Returns every row of this module."""
    return [*lot_rows(), *rule_rows(), *glm_rows(), *view_rows(), *unequal_rows()]
