"""The trainings that udp-fl's figures and tables are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from experiments.cells import spell_value
from sordino import Constant, FedAvg, Gaussian, Laplace, Protocol, Staircase, calibrate
from sordino.attacks.twin import remove_protocol_noise
from sordino.privacy.upload_sensitivity import largest_move
from sordino.protocol import Direct, FixedSize, Scaffold

EPSILONS = (2.0, 4.0, 6.0, 8.0)
ENDS = (2.0, 8.0)
EXAMPLES = Path(__file__).parents[1] / "sordino" / "examples"
MECHANISMS = ("gaussian", "laplace", "staircase")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training.

    Attributes:
        data: A name of `FEDERATIONS`.
        method: A name of `METHODS`.
        epsilon: Against the server; infinite without noise.
        clients: In the federation; beyond ten, ten take part in a round.
        rate: The share of its records that a client draws in a step.
        rounds: How many are trained.
        seed: Of the training.
    """

    data: str
    method: str
    epsilon: float
    clients: int = 10
    rate: float = 0.05
    rounds: int = 150
    seed: int = 1


KEY = tuple(field.name for field in fields(Cell))


@dataclass(frozen=True, kw_only=True)
class Federation:
    """The federation of one data set.

    Attributes:
        example: The file that it is made from.
        model: The name of the network.
        parameters: Of that network.
        records: Of all clients together.
        clients: Where the data say how many there are.
        source: The name of the data, where it is not the federation's.
        update_clip: The largest norm of an update, for methods that clip whole updates. Their noise
            adds up over rounds, and a larger clip lets it carry the model away.
    """

    example: str
    model: str
    parameters: int
    records: int
    clients: int | None = None
    source: str | None = None
    update_clip: float = 0.01


FEDERATIONS = {
    "mnist": Federation(
        example="udp-fl-mnist", model="udp-mnist", parameters=21_840, records=60_000
    ),
    "mnist-cnn": Federation(
        example="udp-fl-mnist",
        model="udp-cnn",
        parameters=421_642,
        records=60_000,
        source="mnist",
    ),
    "cifar10": Federation(
        example="udp-fl-cifar", model="prifedsync-cifar", parameters=122_570, records=50_000
    ),
    # 4,708 images in place of Medical MNIST, which is not among the known data sets.
    "pneumoniamnist": Federation(
        example="udp-fl-mnist", model="udp-mnist", parameters=21_432, records=4_700
    ),
    "gefcom-wind": Federation(
        example="udp-fl-wind",
        model="udp-wind",
        parameters=75_504,
        records=7 * 1_095,
        clients=7,
        update_clip=0.003,
    ),
    # Shuffling hides one client among many: ten are too few for any bound that is known.
    "digits": Federation(
        example="shuffler", model="logistic", parameters=650, records=1_400, clients=700
    ),
    # The data that are attacked: faces, and half of CIFAR-10, so that as many are not members.
    "half-cifar10": Federation(
        example="udp-fl-cifar", model="lenet5", parameters=62_006, records=25_000, source="cifar10"
    ),
    "faces": Federation(
        example="udp-fl-cifar",
        model="lenet5",
        parameters=61_581,
        records=1_000,
        source="utkface-race",
    ),
}


def make_protocol(cell: Cell) -> Protocol:
    """Returns the protocol of a cell, with the noise that it needs.

    Args:
        cell: The cell.
    """
    federation = FEDERATIONS[cell.data]
    plan = Protocol.load(EXAMPLES / f"{federation.example}.toml")
    clients = federation.clients or cell.clients
    records = federation.records // clients
    if plan.data is None or plan.model is None:
        raise TypeError("an example without data or model")
    plan = replace(
        plan,
        seed=cell.seed,
        clients=clients,
        rounds=cell.rounds,
        local=replace(plan.local, batch=max(1, round(cell.rate * records))),
        privacy=replace(plan.privacy, budget=None),
        data=replace(plan.data, name=federation.source or cell.data, records=records),
        model=replace(plan.model, name=federation.model, parameters=federation.parameters),
    )
    if federation.clients is None and clients > 10:
        plan = replace(plan, participation=FixedSize(size=10))
    return METHODS[cell.method](plan, cell.epsilon)


def add_noise(plan: Protocol, epsilon: float) -> Protocol:
    """Returns a federation with the least noise for an epsilon against the server.

    Args:
        plan: The federation, with noise of any size.
        epsilon: The target.
    """
    return replace(plan, noise=calibrate(plan, "server", epsilon=epsilon).protocol.noise)


def plan_without_noise(plan: Protocol, epsilon: float) -> Protocol:
    """Returns the same training without noise.

    Args:
        plan: The federation.
        epsilon: Not used.
    """
    return remove_protocol_noise(replace(plan, channel=Direct()))


def plan_gaussian(plan: Protocol, epsilon: float) -> Protocol:
    """Returns a federation with Gaussian noise in its steps.

    Args:
        plan: The federation.
        epsilon: Against the server.
    """
    return add_noise(replace(plan, noise=Gaussian(multiplier=1.0)), epsilon)


def plan_laplace(plan: Protocol, epsilon: float) -> Protocol:
    """Returns a federation with Laplace noise in its steps.

    Args:
        plan: The federation.
        epsilon: Against the server.
    """
    return add_noise(replace(plan, noise=Laplace(scale=1.0)), epsilon)


def plan_staircase(plan: Protocol, epsilon: float) -> Protocol:
    """Returns a federation with staircase noise in its steps, as wide as a sum can move.

    Args:
        plan: The federation.
        epsilon: Against the server.
    """
    return add_noise(replace(plan, noise=Staircase(step=1.0, width=largest_move(plan))), epsilon)


def plan_nbafl(plan: Protocol, epsilon: float) -> Protocol:
    """Returns NbAFL: the whole update is clipped, with noise on it and a little at the server.

    Args:
        plan: The federation.
        epsilon: Against the server.
    """
    local = FedAvg(
        steps=plan.local.steps,
        batch=plan.local.batch or 1,
        clip=find_update_clip(plan),
        clip_target="update",
        schedule=Constant(rate=0.1),
    )
    noise = Gaussian(sigma=1.0, server_sigma=1e-3, where="both")
    return add_noise(replace(plan, local=local, noise=noise), epsilon)


def find_update_clip(plan: Protocol) -> float:
    """Returns the largest norm of an update in a federation.

    Args:
        plan: The federation.
    """
    if plan.model is None:
        raise TypeError("a federation without a model")
    found = [one for one in FEDERATIONS.values() if one.model == plan.model.name]
    return found[0].update_clip


def plan_scaffold(plan: Protocol, epsilon: float) -> Protocol:
    """Returns SCAFFOLD: every step is clipped, and control variates cost nothing.

    Args:
        plan: The federation.
        epsilon: Against the server.
    """
    rate = 0.15
    local = Scaffold(
        steps=plan.local.steps,
        batch=plan.local.batch or 1,
        # Steps are clipped, and the longest lead as far as an update may.
        clip=find_update_clip(plan) / (rate * plan.local.steps),
        schedule=Constant(rate=rate),
    )
    return add_noise(replace(plan, local=local, noise=Gaussian(sigma=1.0)), epsilon)


def plan_direct(plan: Protocol, epsilon: float) -> Protocol:
    """Returns a federation whose server receives uploads with their names.

    Args:
        plan: The federation.
        epsilon: Against the server.
    """
    return add_noise(replace(plan, channel=Direct()), epsilon)


METHODS: dict[str, Callable[[Protocol, float], Protocol]] = {
    "none": plan_without_noise,
    "gaussian": plan_gaussian,
    "laplace": plan_laplace,
    "staircase": plan_staircase,
    "nbafl": plan_nbafl,
    "scaffold": plan_scaffold,
    "direct": plan_direct,
    "shuffled": add_noise,
}


def list_grid(
    data: str, methods: Sequence[str], epsilons: Sequence[float], **options: int | float
) -> Iterator[Cell]:
    """Yields a cell for every method and epsilon, and one without noise.

    Args:
        data: A name of `FEDERATIONS`.
        methods: Names of `METHODS`.
        epsilons: Against the server.
        **options: Further entries of the cells.
    """
    free = Cell(data=data, method="none", epsilon=np.inf)
    yield replace(free, **options)  # type: ignore[arg-type]
    for method in methods:
        for epsilon in epsilons:
            yield replace(free, method=method, epsilon=epsilon, **options)  # type: ignore[arg-type]


def list_federations() -> Iterator[Cell]:
    """Yields the cells of Figure 3: more clients of whom ten take part, and other sampling rates."""
    for clients in (50, 100, 200):
        yield from list_grid("mnist", MECHANISMS, (8.0,), clients=clients)
    for rate in (0.01, 0.1, 0.5):
        yield from list_grid("mnist", MECHANISMS, (8.0,), rate=rate)


# The cells of figures and tables; those that they share are trained once. Figure 2 is drawn of
# Table 4's, and Table 5 is the seconds and bytes of all of them.
EXPERIMENTS: dict[str, Callable[[], Iterator[Cell]]] = {
    "figure-1": lambda: list_grid("mnist", ("gaussian", "laplace", "nbafl", "staircase"), ENDS),
    "figure-4": lambda: list_grid("mnist", MECHANISMS, EPSILONS),
    "figure-6": lambda: list_grid(
        "digits", ("direct", "shuffled"), EPSILONS, clients=700, rate=1.0, rounds=60
    ),
    "figure-1-medical": lambda: list_grid("pneumoniamnist", MECHANISMS, ENDS),
    "figure-5": lambda: list_grid(
        "gefcom-wind", (*MECHANISMS, "nbafl", "scaffold"), ENDS, clients=7
    ),
    "table-4": lambda: list_grid("cifar10", MECHANISMS, EPSILONS),
    "figure-3": list_federations,
    "authors-network": lambda: list_grid("mnist-cnn", MECHANISMS, ENDS),
}


def list_cells(names: Sequence[str], seeds: int, quick: bool) -> Iterator[Cell]:
    """Yields the cells of experiments, all of one seed before any of the next.

    Args:
        names: Of `EXPERIMENTS`.
        seeds: How many.
        quick: Whether fifteen rounds at the ends of the range are enough.
    """
    for seed in range(1, 1 + (1 if quick else seeds)):
        for name in names:
            for cell in EXPERIMENTS[name]():
                if quick and cell.epsilon not in (*ENDS, np.inf):
                    continue
                yield replace(cell, seed=seed, rounds=15 if quick else cell.rounds)


def read_key(cell: Cell) -> Iterator[str]:
    """Yields the values that identify a cell, as they are written in the file.

    Args:
        cell: The cell.
    """
    for name in KEY:
        yield spell_value(getattr(cell, name))
