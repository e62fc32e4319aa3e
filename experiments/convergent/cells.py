"""The cells of convergent-dp's tables: for each the federation, and what is measured of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from experiments.convergent.published import (
    STEPS,
    TABLE_5,
    TABLE_5_ROUNDS,
    TABLE_7_ROUNDS,
    TABLE_9_ROUNDS,
    TABLE_10_STEPS,
    TABLE_12,
    TABLE_12_RECORDS,
    TABLE_12_ROUNDS,
    name_federation,
)
from sordino import (
    Constant,
    Continuous,
    Cyclic,
    Data,
    Decay,
    Dirichlet,
    FedAvg,
    FedProx,
    Gaussian,
    Model,
    Protocol,
    StageWise,
)
from sordino.protocol.schedules import Schedule

RATE = 0.1
# The paper says stage-wise; "decay" is what the first author's public simulator does.
SCHEDULES: dict[str, Schedule] = {
    "constant": Constant(rate=RATE),
    "cyclic": Cyclic(rate=RATE),
    "stage-wise": StageWise(rate=RATE),
    "continuous": Continuous(rate=RATE),
    "decay": Decay(rate=RATE, factor=0.998, every="round"),
}
# The simulator's, and for the rest none, since the paper names none.
WEIGHT_DECAY = {"decay": 1e-3}

# Tables 4, 8 and 10: K steps of batch 50 and TK = 30,000.
TOTAL_STEPS = 30_000
BATCH = 50
# Least interesting last: at 1 the loss diverges, and 0 is not in the paper.
SIGMAS = (0.01, 0.1, 0.001, 1.0, 0.0)
LOUD = 1.0

# Sensitivity: m = 20, K = 5, V = 10 and Dirichlet(0.1) are the paper's; it does not say batches,
# records or noise. Table 9 and Figure 2 are on MNIST here, Tables 5, 7 and 12 on CIFAR-10.
MNIST = Data(name="mnist", partition=Dirichlet(beta=0.1), records=100)
TWINS = Protocol(
    seed=1,
    clients=20,
    rounds=600,
    local=FedAvg(steps=5, batch=8, clip=10.0, schedule=Constant(rate=RATE)),
    noise=Gaussian(sigma=0.01),
    data=MNIST,
)
CIFAR = Data(name="cifar10", partition=Dirichlet(beta=0.1), records=500)
# Longer, to see whether K matters in the end.
LONG = 1000
# Of a look.
QUICK_CELLS = 2
QUICK_CLIENTS = 10
QUICK_ROUNDS = 10


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a command may choose for all tables; a table keeps to itself what it varies.

    Attributes:
        schedule: A name of `SCHEDULES`; None for the table's own.
        model: A name; None for the table's own.
        tiny_imagenet: The folder of TinyImageNet, for the second half of Table 10.
    """

    schedule: str | None = None
    model: str | None = None
    tiny_imagenet: str = "tiny-imagenet-200"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training of a table, or one pair of twins.

    Attributes:
        table: The table's name, which is its file's.
        name: The cell's in that table.
        model: The name of what is trained.
        data: The name of the records.
        schedule: The name of its learning rates.
        protocol: What is trained; its seed is the cell's.
        marks: The rounds after which twins are compared; none where accuracy is measured.
        scored: Whether a twin is scored too.
        diverges: Whether the paper says that it does, so that the first rounds are tried alone.
    """

    table: str
    name: str
    model: str
    data: str
    schedule: str
    protocol: Protocol
    marks: tuple[int, ...] = ()
    scored: bool = False
    diverges: bool = False

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What tells the cell from the others of its table, as its file has it."""
        return self.name, self.model, self.schedule, str(self.protocol.seed)

    @property
    def client_steps(self) -> int:
        """How many local steps are trained, over all clients and rounds."""
        trainings = 2 if self.marks else 1
        plan = self.protocol
        return trainings * plan.rounds * plan.clients * plan.local.steps


def list_cells(tables: list[str], choice: Choice, seeds: int) -> Iterator[Cell]:
    """Yields the cells of tables, all tables with one seed before any with the next.

    Args:
        tables: Names of `TABLES`, in the order in which they are measured.
        choice: Of schedule and model.
        seeds: How many.
    """
    for seed in range(1, seeds + 1):
        for table in tables:
            for cell in TABLES[table](choice):
                yield replace(cell, protocol=replace(cell.protocol, seed=seed))


def list_quick_cells(tables: list[str], choice: Choice) -> Iterator[Cell]:
    """Yields the first cells of tables, with few clients and rounds.

    Args:
        tables: Names of `TABLES`.
        choice: Of schedule and model.
    """
    for table in tables:
        for cell in islice(TABLES[table](choice), QUICK_CELLS):
            small = replace(cell.protocol, seed=1, clients=QUICK_CLIENTS, rounds=QUICK_ROUNDS)
            marks = (QUICK_ROUNDS // 2, QUICK_ROUNDS) if cell.marks else ()
            yield replace(cell, protocol=small, marks=marks, diverges=False)


def make_local(schedule: str, *, steps: int, batch: int, proximal: float = 0.0) -> Any:
    """Returns the local training of a cell.

    Args:
        schedule: A name of `SCHEDULES`.
        steps: K.
        batch: Records of a minibatch.
        proximal: Alpha; 0 for FedAvg.
    """
    rule: Callable[..., Any] = FedAvg
    own: dict[str, float] = {}
    if proximal > 0:
        rule = FedProx
        own["proximal"] = proximal
    return rule(
        steps=steps,
        batch=batch,
        clip=10.0,
        schedule=SCHEDULES[schedule],
        weight_decay=WEIGHT_DECAY.get(schedule, 0.0),
        **own,
    )


def list_accuracies(
    table: str,
    choice: Choice,
    data: Data,
    clients: tuple[int, ...],
    steps: tuple[int, ...] = STEPS,
    model: str = "lenet5",
) -> Iterator[Cell]:
    """Yields the cells of a table of accuracies: Tables 4, 8 and 10.

    Args:
        table: Its name.
        choice: Of schedule and model.
        data: The training records of each client.
        clients: The numbers m.
        steps: The numbers K.
        model: Where none was chosen.
    """
    schedule = choice.schedule or "decay"
    network = choice.model or model
    for number in clients:
        for step in steps:
            for sigma in SIGMAS:
                yield Cell(
                    table=table,
                    name=name_federation(number, step, sigma),
                    model=network,
                    data=data.name,
                    schedule=schedule,
                    diverges=sigma >= LOUD,
                    protocol=Protocol(
                        clients=number,
                        rounds=TOTAL_STEPS // step,
                        local=make_local(schedule, steps=step, batch=BATCH),
                        noise=Gaussian(sigma=sigma),
                        data=data,
                        model=Model(name=network),
                    ),
                )


def list_table_4(choice: Choice) -> Iterator[Cell]:
    """Yields MNIST's half of Table 4."""
    yield from list_accuracies("table-4", choice, replace(MNIST, records=600), (50, 100))


def list_table_4_cifar(choice: Choice) -> Iterator[Cell]:
    """Yields CIFAR-10's half of Table 4, with LeNet-5 unless another model was chosen."""
    yield from list_accuracies("table-4-cifar", choice, CIFAR, (50, 100))


def list_table_8(choice: Choice) -> Iterator[Cell]:
    """Yields Table 8; 500 clients have 100 records each, since there are 50,000."""
    yield from list_accuracies("table-8", choice, CIFAR, (20,))
    yield from list_accuracies("table-8", choice, replace(CIFAR, records=100), (500,))


def list_table_10(choice: Choice) -> Iterator[Cell]:
    """Yields CIFAR-100's half of Table 10."""
    data = replace(CIFAR, name="cifar100")
    yield from list_accuracies("table-10", choice, data, (50,), TABLE_10_STEPS, "resnet18")


def list_table_10_tiny(choice: Choice) -> Iterator[Cell]:
    """Yields TinyImageNet's half of Table 10, from a folder of images."""
    data = replace(CIFAR, name=choice.tiny_imagenet)
    yield from list_accuracies("table-10-tiny", choice, data, (50,), TABLE_10_STEPS, "resnet18")


def make_twins(choice: Choice, table: str, name: str, **changes: Any) -> Cell:
    """Returns a cell of twins.

    Args:
        choice: Of schedule and model.
        table: Its name.
        name: The cell's.
        changes: What differs from `TWINS`: schedule, steps, clip, proximal, clients, rounds, data,
            model, marks, scored.
    """
    schedule = changes.get("schedule") or choice.schedule or "constant"
    network = changes.get("model") or choice.model or "lenet5"
    data = changes.get("data", MNIST)
    local = make_local(
        schedule,
        steps=changes.get("steps", TWINS.local.steps),
        batch=8,
        proximal=changes.get("proximal", 0.0),
    )
    rounds = changes.get("rounds", TWINS.rounds)
    return Cell(
        table=table,
        name=name,
        model=network,
        data=data.name,
        schedule=schedule,
        protocol=replace(
            TWINS,
            clients=changes.get("clients", TWINS.clients),
            rounds=rounds,
            local=replace(local, clip=changes.get("clip", 10.0)),
            data=data,
            model=Model(name=network),
        ),
        marks=changes.get("marks", tuple(range(100, rounds + 1, 100))),
        scored=changes.get("scored", False),
    )


def list_table_9(choice: Choice) -> Iterator[Cell]:
    """Yields the four schedules of the paper's theory."""
    for name in ("constant", "cyclic", "stage-wise", "continuous"):
        yield make_twins(choice, "table-9", name, schedule=name, marks=TABLE_9_ROUNDS)


def list_table_5(choice: Choice) -> Iterator[Cell]:
    """Yields the pulls of Noisy-FedProx, with accuracy."""
    for alpha in TABLE_5:
        yield make_twins(
            choice,
            "table-5",
            f"alpha={alpha:g}",
            proximal=alpha,
            rounds=TABLE_5_ROUNDS,
            data=CIFAR,
            scored=True,
        )


def list_figure_2(choice: Choice) -> Iterator[Cell]:
    """Yields the panels of Figure 2: clients, steps, clip and pull around m = 20, K = 5, V = 10."""
    yield make_twins(choice, "figure-2", "m=20 K=5 V=10", rounds=LONG)
    yield make_twins(choice, "figure-2", "K=2", steps=2, rounds=LONG)
    yield make_twins(choice, "figure-2", "K=10", steps=10, rounds=LONG)
    for clip in (1.0, 5.0, 20.0):
        yield make_twins(choice, "figure-2", f"V={clip:g}", clip=clip)
    for alpha in (0.01, 0.1, 1.0):
        yield make_twins(choice, "figure-2", f"alpha={alpha:g}", proximal=alpha)
    yield make_twins(choice, "figure-2", "m=50", clients=50)
    yield make_twins(choice, "figure-2", "m=80", clients=80)
    yield make_twins(choice, "figure-2", "K=20", steps=20, rounds=LONG)


def list_table_12(choice: Choice) -> Iterator[Cell]:
    """Yields clients against records per client."""
    for clients in TABLE_12:
        for records in TABLE_12_RECORDS:
            yield make_twins(
                choice,
                "table-12",
                f"m={clients} S={records}",
                clients=clients,
                rounds=TABLE_12_ROUNDS,
                data=replace(CIFAR, records=records),
            )


def list_table_7(choice: Choice) -> Iterator[Cell]:
    """Yields a residual network and a vision transformer, which two cores cannot train."""
    for model in ("resnet18", "vit-small"):
        yield make_twins(
            choice,
            "table-7",
            model,
            model=model,
            clients=50,
            rounds=TABLE_7_ROUNDS[-1],
            data=CIFAR,
            marks=TABLE_7_ROUNDS,
        )


# The cheapest first.
TABLES: dict[str, Callable[[Choice], Iterator[Cell]]] = {
    "table-9": list_table_9,
    "table-5": list_table_5,
    "figure-2": list_figure_2,
    "table-4": list_table_4,
    "table-12": list_table_12,
    "table-4-cifar": list_table_4_cifar,
    "table-8": list_table_8,
    "table-7": list_table_7,
    "table-10": list_table_10,
    "table-10-tiny": list_table_10_tiny,
}
