"""Compares every certified bound with the best known lower bound, by an exact law.

    python -m experiments.tightness [--csv experiments/tightness.csv] [--quick]

Two minutes on one core. The lower bounds are those of two data sets whose outputs have a known law
(tests/oracles/exact_laws.py shares nothing with the curves of the package), at delta = 1e-5.
docs/tightness.md holds the table; a test compares it with the file.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from scipy.stats import binom

from sordino import (
    Bezier,
    Constant,
    Data,
    FedAvg,
    FixedSize,
    Gaussian,
    Interpolate,
    Laplace,
    Mean,
    Model,
    NoisySgd,
    Poisson,
    Protocol,
    StageWise,
    Staircase,
    certify,
)
from sordino.privacy.own_noise import own_protocol
from sordino.protocol import Assumptions, ClientBudget, Privacy
from tests.oracles.exact_laws import (
    epsilon_at_least,
    laplace_mixture,
    mixture_epsilon,
    normal_mixture,
)
from tests.oracles.last_model import linear_energy, worst_case_dynamics

DELTA = 1e-5
KEPT = Path(__file__).parent / "tightness.csv"
COLUMNS = ("bound", "setting", "view", "certified", "at least", "ratio", "why")
PAIR = "the two laws are what the bound is made of"
DIRECTIONS = "no pair of data sets is the worst in both directions of every step: open"
LATER = (
    "losses with jumps, which one draw turns in all later steps; "
    "in the step of that draw itself they reach half of the bound"
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Describes one bound, and how its lower bound is computed.

    Attributes:
        bound: The method that certify names.
        setting: The protocol in words.
        protocol: The protocol.
        view: The adversary.
        exact: Computes a lower bound on the epsilon of the protocol.
        why: The reason for the gap between the two numbers.
        unit: The unit of privacy.
    """

    bound: str
    setting: str
    protocol: Protocol
    view: str
    exact: Callable[[], float]
    why: str
    unit: str = "record"

    def measure(self) -> dict[str, str]:
        """Returns the row of the table."""
        guarantee = certify(self.protocol, self.view, self.unit, delta=DELTA)
        # A tighter method of a later version would leave this bound unmeasured.
        if guarantee.method != self.bound:
            raise ValueError(f"{self.setting}: {guarantee.method} is smaller than {self.bound}")
        certified = guarantee.epsilon(DELTA)
        lower = self.exact()
        values = (
            self.bound,
            self.setting,
            self.view,
            f"{certified:.4g}",
            f"{lower:.4g}",
            f"{certified / lower:.3f}",
            self.why,
        )
        return dict(zip(COLUMNS, values, strict=True))


def make_steps(steps: int = 5, **changes: object) -> FedAvg:
    """Returns local steps that move an upload by at most 1 in all."""
    settings = {"batch": 8, "clip": 0.5 / steps, "schedule": Constant(rate=1.0), **changes}
    return FedAvg(steps=steps, **settings)


def make_protocol(**changes: object) -> Protocol:
    """Returns a federation of twenty clients and fifty rounds."""
    settings = {
        "clients": 20,
        "rounds": 50,
        "local": make_steps(),
        "noise": Gaussian(sigma=4.0),
        **changes,
    }
    return Protocol(**settings)


def normal_epsilon(mu: float) -> float:
    """Returns epsilon of N(0, 1) against N(mu, 1), by the definition of delta."""
    return mixture_epsilon(np.array([mu]), np.ones(1), DELTA)


def composition_rows() -> list[Row]:
    """Returns rounds composed with everyone in them, which linear losses attain."""
    mu = math.sqrt(50) / 4
    linear = "linear losses, one record flipped"
    own = make_protocol(local=make_steps(1), personalization=Interpolate(alpha=0.5), rounds=4)
    carried = math.sqrt(1 + 1.5**2 + 1.75**2 + 1.875**2) / 4
    smooth = make_protocol(
        local=make_steps(schedule=StageWise(rate=1.0)), assumptions=Assumptions(smoothness=0.1)
    )
    rounds = np.arange(1, 51)
    shifts = 1 / rounds / 20
    stretch = (1 + 0.1 / rounds) ** 5
    energy = linear_energy(worst_case_dynamics(stretch, shifts), shifts)
    ball = make_protocol(
        assumptions=Assumptions(diameter=1.0), rounds=2000, local=make_steps(1), clients=2
    )
    return [
        Row(
            bound="composition", setting="FedAvg", protocol=make_protocol(), view="server",
            exact=lambda: normal_epsilon(mu), why=linear,
        ),
        Row(
            bound="composition", setting="FedAvg", protocol=make_protocol(), view="rounds",
            exact=lambda: normal_epsilon(mu / math.sqrt(20)), why=linear,
        ),
        Row(
            bound="composition", setting="FedAvg", protocol=make_protocol(), view="coalition:3",
            exact=lambda: normal_epsilon(mu / math.sqrt(17)), why=linear,
        ),
        Row(
            bound="composition", setting="FedAvg, personal models, 4 rounds of 1 step", protocol=own,
            view="server", exact=lambda: normal_epsilon(carried), why=linear,
        ),
        Row(
            bound="last iterate", setting="FedAvg, stage-wise, smoothness 0.1", protocol=smooth,
            view="final", exact=lambda: normal_epsilon(math.sqrt(energy * 20) / 4),
            why="linear dynamics that stretch no more than is vouched for",
        ),
        Row(
            bound="last iterate", setting="FedAvg in a ball of diameter 1, 2,000 rounds",
            protocol=ball, view="final",
            exact=lambda: normal_epsilon(math.sqrt(4 * 1.0 * 1.0) / (4 / math.sqrt(2))),
            why="4 D s, the least energy of maps that move by s and stretch by 1; "
            "whether losses exist is open",
        ),
    ]  # fmt: skip


def participation_rows() -> list[Row]:
    """Returns random participation, seen and hidden."""
    counts = np.arange(1, 51)
    quarter = binom.pmf(counts, 50, 0.25)
    server = {"noise": Gaussian(sigma=0.25, where="server")}
    hidden = make_protocol(
        clients=8,
        rounds=20,
        local=make_steps(1, clip_target="update"),
        participation=Poisson(rate=0.5),
        aggregation=Mean(denominator="fixed"),
        **server,
    )
    added = Protocol(
        **{**vars(hidden), "privacy": Privacy(adjacency="add-or-remove")},
    )
    # Of eight clients four are expected: an update of norm 1/2 is divided by four, under noise of
    # 1/4.
    reach = 0.5 / 4 / 0.25
    half = [0.5, 0.5]
    return [
        Row(
            bound="participation mixture", setting="5 of 20 clients, drawn and seen",
            protocol=make_protocol(participation=FixedSize(size=5)), view="server",
            exact=lambda: mixture_epsilon(np.sqrt(counts) / 4, quarter, DELTA),
            why="linear losses, one record flipped",
        ),
        Row(
            bound="participation mixture", setting="5 of 20 clients, drawn and seen",
            protocol=make_protocol(participation=FixedSize(size=5)), view="rounds",
            exact=lambda: mixture_epsilon(np.sqrt(counts / 5) / 4, quarter, DELTA),
            why="linear losses, one record flipped",
        ),
        Row(
            bound="hidden Poisson sampling", setting="a client added or removed", protocol=added,
            view="rounds", unit="client", why=PAIR,
            exact=lambda: epsilon_at_least(
                normal_mixture([0.0, reach], half), normal_mixture([0.0], [1.0]), DELTA, times=20
            ),
        ),
        Row(
            bound="hidden Poisson sampling", setting="a client replaced", protocol=hidden,
            view="rounds", unit="client", why=PAIR,
            exact=lambda: epsilon_at_least(
                normal_mixture([0.0, reach], half), normal_mixture([0.0, -reach], half), DELTA,
                times=20,
            ),
        ),
    ]  # fmt: skip


def one_sided(rate: float, mu: float, times: int, law=normal_mixture) -> float:
    """Returns epsilon of a record that moves an upload when drawn, against one that never does."""
    return epsilon_at_least(law([0.0, mu], [1 - rate, rate]), law([0.0], [1.0]), DELTA, times=times)


def jumping_moves(steps: int, rate: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns how far an upload moves for every pattern of draws, each turning all later steps.

    The record pulls along a first coordinate. All others have the loss M w_2 h(w_1), where h is a
    square wave that changes its sign whenever the record has moved the model by one step: from then
    on their clipped gradients point the other way, wherever the model is. In units of the largest
    move, which is 2 `steps` lengths of a step.

    Args:
        steps: The local steps of a round.
        rate: The probability that a step draws the record.

    Returns:
        The moves along the second and the first coordinate, and the probabilities of the patterns.
    """
    along = []
    across = []
    masses = []
    for pattern in product((False, True), repeat=steps):
        drawn = np.array(pattern)
        turned = np.cumsum(drawn) % 2 == 1
        moves = np.where(drawn, 1, np.where(turned, 2, 0))
        along.append(moves.sum() / (2 * steps))
        across.append(drawn.sum() / (2 * steps))
        masses.append(rate ** drawn.sum() * (1 - rate) ** (~drawn).sum())
    return np.array(along), np.array(across), np.array(masses)


def several_steps(rate: float, mu: float, steps: int, times: int) -> float:
    """Returns epsilon of rounds of several steps with secret batches, by losses with jumps."""
    along, _, masses = jumping_moves(steps, rate)
    moved = normal_mixture(mu * along, masses)
    return epsilon_at_least(moved, normal_mixture([0.0], [1.0]), DELTA, times=times)


def several_public_steps(rate: float, mu: float, steps: int, times: int) -> float:
    """Returns the same where batches are public: the pattern of draws is part of the view."""
    along, across, masses = jumping_moves(steps, rate)
    moves = mu * np.hypot(along, across)
    first = [mass * normal_mixture([move], [1.0]) for move, mass in zip(moves, masses, strict=True)]
    still = normal_mixture([0.0], [1.0])
    second = [mass * still for mass in masses]
    return epsilon_at_least(np.concatenate(first), np.concatenate(second), DELTA, times=times)


def batch_rows() -> list[Row]:
    """Returns minibatches, secret and public."""
    data = Data(name="digits", records=64)
    rate = 8 / 64
    single = make_protocol(local=make_steps(1), data=data, noise=Gaussian(sigma=1.0))
    several = make_protocol(data=data, noise=Gaussian(sigma=1.0))
    public = make_protocol(
        data=data, noise=Gaussian(sigma=1.0), local=make_steps(minibatches="public")
    )
    rule = {"batch": 8, "clip": 1.0, "schedule": Constant(rate=0.1)}
    fixed = make_protocol(
        local=NoisySgd(steps=10, **rule), noise=Gaussian(multiplier=2.0), data=data, rounds=10
    )
    drawn = make_protocol(
        local=NoisySgd(steps=10, sampling="poisson", **rule),
        noise=Gaussian(multiplier=2.0), data=data, rounds=10,
    )  # fmt: skip
    replaced = Protocol(**{**vars(drawn), "privacy": Privacy(adjacency="replace-one")})
    laplace = make_protocol(
        local=NoisySgd(steps=10, sampling="poisson", clip_norm="l1", **rule),
        noise=Laplace(scale=2.0), data=data, rounds=10,
    )  # fmt: skip
    joined = make_protocol(
        local=NoisySgd(steps=1, **rule), noise=Gaussian(multiplier=1.0), data=data
    )
    return [
        Row(
            bound="secret batches", setting="1 step, 1 round", view="server", why=PAIR,
            protocol=make_protocol(
                local=make_steps(1), data=data, noise=Gaussian(sigma=1.0), rounds=1
            ),
            exact=lambda: one_sided(rate, 1.0, 1),
        ),
        Row(
            bound="secret batches", setting="1 step, 50 rounds", protocol=single, view="server",
            exact=lambda: one_sided(rate, 1.0, 50), why=DIRECTIONS,
        ),
        Row(
            bound="secret batches", setting="5 steps, 50 rounds", protocol=several, view="server",
            exact=lambda: several_steps(rate, 1.0, 5, 50), why=LATER,
        ),
        Row(
            bound="first-hit mixture", setting="5 steps, 50 rounds, batches public",
            protocol=public, view="server", why=LATER,
            exact=lambda: several_public_steps(rate, 1.0, 5, 50),
        ),
        Row(
            bound="subsampled steps", setting="noisy-sgd, fixed batches, 100 steps",
            protocol=fixed, view="server", exact=lambda: one_sided(rate, 0.5, 100),
            why=DIRECTIONS,
        ),
        Row(
            bound="subsampled steps", setting="noisy-sgd, Poisson batches, 100 steps",
            protocol=drawn, view="server", exact=lambda: one_sided(rate, 0.5, 100), why=PAIR,
        ),
        Row(
            bound="subsampled steps", setting="the same, a record replaced", protocol=replaced,
            view="server", why=PAIR,
            exact=lambda: epsilon_at_least(
                normal_mixture([0.0, 0.5], [1 - rate, rate]),
                normal_mixture([0.0, -0.5], [1 - rate, rate]), DELTA, times=100,
            ),
        ),
        Row(
            bound="loss composition", setting="noisy-sgd, Laplace, l1 clip, Poisson batches",
            protocol=laplace, view="server", why=DIRECTIONS,
            exact=lambda: one_sided(rate, 0.5, 100, laplace_mixture),
        ),
        Row(
            bound="subsampled joined steps", setting="noisy-sgd, 1 step, fixed batches",
            protocol=joined, view="rounds", why=DIRECTIONS,
            exact=lambda: one_sided(rate, 1 / math.sqrt(20), 50),
        ),
    ]  # fmt: skip


def even_laplace(coordinates: int, shift: float, times: int) -> float:
    """Returns epsilon of Laplace noise on coordinates that all move alike, by composition."""
    moved = laplace_mixture([shift], [1.0])
    return epsilon_at_least(moved, laplace_mixture([0.0], [1.0]), DELTA, times=times * coordinates)


def mix_over_curve() -> float:
    """Returns epsilon of a release that moves by (1 - r)(1 + 1.2 r) at a public r."""
    points = (np.arange(20_000) + 0.5) / 20_000
    curve = (1 - points) * (1 + 1.2 * points)
    return mixture_epsilon(curve, np.full(points.size, 1 / points.size), DELTA)


def mechanism_rows() -> list[Row]:
    """Returns other noise, Bezier steps and a shuffler."""
    data = Data(name="digits", records=64)
    laplace = make_steps(1, clip_norm="l1")
    ten = Model(name="logistic", parameters=10)
    one = Model(name="logistic", parameters=1)
    stairs = Staircase(step=0.5, width=1.0)
    from sordino.mechanisms import mechanism_of

    density = mechanism_of(stairs).density
    bezier = make_protocol(
        local=Bezier(steps=1, batch=1, clip=0.5, schedule=Constant(rate=1.0)),
        assumptions=Assumptions(smoothness=1.0), rounds=1, noise=Gaussian(sigma=1.0),
    )  # fmt: skip
    crowd = make_protocol(
        clients=700, rounds=60, channel="shuffler", local=make_steps(1), noise=Gaussian(sigma=1.8)
    )
    return [
        Row(
            bound="loss composition", setting="Laplace, l1 clip, 50 rounds, scale 4",
            protocol=make_protocol(local=laplace, noise=Laplace(scale=4.0)), view="server",
            exact=lambda: even_laplace(1, 0.25, 50), why=PAIR,
        ),
        Row(
            bound="secret batches", setting="Laplace, l1 clip, 1 step, 50 rounds, scale 1",
            protocol=make_protocol(local=laplace, noise=Laplace(scale=1.0), data=data),
            view="server",
            exact=lambda: one_sided(1 / 8, 1.0, 50, laplace_mixture), why=DIRECTIONS,
        ),
        Row(
            bound="Rényi composition",
            setting="Laplace, l2 clip, 10 parameters, 50 rounds, scale 4",
            protocol=make_protocol(local=make_steps(1), noise=Laplace(scale=4.0), model=ten),
            view="server",
            exact=lambda: even_laplace(10, 0.25 / math.sqrt(10), 50),
            why="Rényi divergences turned into epsilon; the worst shift for delta is not known",
        ),
        Row(
            bound="loss composition", setting="staircase, 1 parameter, 50 rounds",
            protocol=make_protocol(local=make_steps(1), noise=stairs, model=one), view="server",
            exact=lambda: density.epsilon_at_least(DELTA, clip=1.0, dimension=1, rounds=50),
            why=PAIR,
        ),
        Row(
            bound="Rényi composition", setting="staircase, 10 parameters, 50 rounds",
            protocol=make_protocol(local=make_steps(1), noise=stairs, model=ten), view="server",
            exact=lambda: density.epsilon_at_least(DELTA, clip=1.0, dimension=10, rounds=50),
            why="Rényi divergences turned into epsilon; the worst shift for delta is not known",
        ),
        Row(
            bound="Bezier mixture", setting="1 round", protocol=bezier, view="server",
            exact=mix_over_curve,
            why="24 pieces of the curve, each counted as its largest value",
        ),
        Row(
            bound="shuffled clones", setting="700 clients, 60 rounds", protocol=crowd,
            view="server", unit="client",
            exact=lambda: normal_epsilon(math.sqrt(60 / 700) / 1.8),
            why="the sum of uploads alone: what a crowd hides from a Gaussian multiset is an "
            "open problem",
        ),
    ]  # fmt: skip


def placed_noise_rows() -> list[Row]:
    """Returns noise at the server, at both places, and joined in the sum of one noisy step."""
    data = Data(name="digits", records=64)
    rule = {"batch": 8, "clip": 1.0, "schedule": Constant(rate=0.1)}
    at_server = make_protocol(noise=Gaussian(sigma=0.25, where="server"))
    both = make_protocol(noise=Gaussian(sigma=4.0, where="both", server_sigma=0.25))
    whole = make_protocol(
        local=NoisySgd(steps=1, **{**rule, "batch": 64}), noise=Gaussian(multiplier=1.0), data=data
    )
    known = make_protocol(
        local=NoisySgd(steps=10, minibatches="public", **rule),
        noise=Gaussian(multiplier=2.0), data=data, rounds=10,
    )  # fmt: skip
    linear = "linear losses, one record flipped"
    uses = np.arange(1, 101)
    seen = binom.pmf(uses, 100, 8 / 64)
    return [
        Row(
            bound="composition", setting="FedAvg, noise at the server", protocol=at_server,
            view="rounds", why=linear, exact=lambda: normal_epsilon(math.sqrt(50) / 20 / 0.25),
        ),
        Row(
            bound="composition", setting="FedAvg, noise at both", protocol=both, view="coalition:3",
            exact=lambda: normal_epsilon(math.sqrt(50) / math.hypot(4 * math.sqrt(17), 0.25 * 20)),
            why=linear,
        ),
        Row(
            bound="joined noise", setting="noisy-sgd, 1 step on all records", protocol=whole,
            view="rounds", exact=lambda: normal_epsilon(math.sqrt(50 / 20)), why=linear,
        ),
        Row(
            bound="known batches", setting="noisy-sgd, fixed batches, public, 100 steps",
            protocol=known, view="server", why=linear,
            exact=lambda: mixture_epsilon(np.sqrt(uses) / 2, seen, DELTA),
        ),
    ]  # fmt: skip


def budget_rows() -> list[Row]:
    """Returns clients with budgets, whose noise is shared or found for each."""
    linear = "linear losses, one record flipped"
    data = Data(name="digits", records=8)
    capped = make_protocol(
        data=data,
        client=tuple(ClientBudget(id=client, epsilon=4.0, delta=DELTA) for client in range(20)),
    )
    affordable = max(n for n in range(1, 51) if normal_epsilon(math.sqrt(n) / 4) <= 4.0)
    own = make_protocol(
        clients=2,
        data=data,
        client=tuple(
            ClientBudget(id=client, epsilon=4.0, delta=DELTA, mechanism="gaussian")
            for client in range(2)
        ),
    )
    own_sigma = own_protocol(own, own.client[0]).noise.sigma
    return [
        Row(
            bound="client budgets", setting="FedAvg, every client has epsilon 4", protocol=capped,
            view="server", exact=lambda: normal_epsilon(math.sqrt(affordable) / 4), why=linear,
        ),
        Row(
            bound="harmonizer", setting="FedAvg, noise found for epsilon 4", protocol=own,
            view="server", why="noise is found to within 1e-4 of the budget",
            exact=lambda: normal_epsilon(math.sqrt(50) / own_sigma),
        ),
    ]  # fmt: skip


def all_rows() -> list[Row]:
    """Returns every row of the table."""
    # That module imports this one.
    from experiments.tightness_rules import all_rule_rows

    return [
        *composition_rows(),
        *participation_rows(),
        *batch_rows(),
        *mechanism_rows(),
        *placed_noise_rows(),
        *budget_rows(),
        *all_rule_rows(),
    ]


def as_table(rows: list[dict[str, str]]) -> str:
    """Returns the rows as a table for docs/tightness.md."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(row[column] for column in COLUMNS) + " |" for row in rows]
    return "\n".join(lines)


def read_kept(path: Path = KEPT) -> list[dict[str, str]]:
    """Returns the rows that were kept."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", type=Path, default=KEPT)
    parser.add_argument("--quick", action="store_true", help="a look: print the first rows")
    options = parser.parse_args()
    if options.quick:
        print(as_table([row.measure() for row in composition_rows()]))
        return
    rows = [row.measure() for row in all_rows()]
    with options.csv.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(as_table(rows))


if __name__ == "__main__":
    main()
