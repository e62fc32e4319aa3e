"""How far apart twins come, round by round, over several seeds and for several values of a key of the protocol.

That distance is what convergent-dp calls sensitivity (Figure 2, Tables 5, 7, 9 and 12). It is an observation about one pair of data
sets; a promise covers the worst pair. Beside it stands how far apart any twins can come.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from sordino.audit.twins import Replaced, distance_bounds, train_twins, twins
from sordino.federation.data import load_data
from sordino.federation.setup import DataSource, ModelSource, prepare
from sordino.protocol import ClippedGlm, InvalidValue, Protocol, UserError, overridden
from sordino.protocol.entries import nearest, one_of
from sordino.protocol.file import toml_value

# What can be varied, and the values taken unless others are given: alpha of Figure 2 and Table 5, schedules of Table 9, m and S of
# Table 12. The text of convergent-dp names no K and V of Figure 2 but the general K = 5, V = 10; these are around it.
SWEEPS: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "federation.clients": (20, 50, 80),
        "local.steps": (5, 10, 20),
        "local.clip": (5.0, 10.0, 20.0),
        "local.proximal": (0.0, 0.01, 0.1, 1.0),
        "local.schedule": ("constant", "cyclic", "stage-wise", "continuous"),
        "data.records": (100, 200, 300, 400, 500),
        "model.name": ("logistic", "mlp"),
    }
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Sensitivity:
    """The distance of twins over several seeds.

    Attributes:
        value: what the swept key was set to; None where nothing was swept.
        distances: one seed a row, one round a column.
        bound: how far apart they can be after every round, at most.
        accuracies: of the models in the end, one a seed; NaN where they were not scored.
    """

    value: Any
    distances: np.ndarray
    bound: np.ndarray
    accuracies: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """Mean over the seeds, round by round."""
        return np.asarray(self.distances.mean(axis=0))

    @property
    def spread(self) -> np.ndarray:
        """Sample standard deviation over the seeds, round by round; not known (NaN) for one seed."""
        if len(self.distances) < 2:
            return np.full(self.distances.shape[1], math.nan)
        return np.asarray(self.distances.std(axis=0, ddof=1))

    @property
    def largest(self) -> np.ndarray:
        """The largest over the seeds, round by round."""
        return np.asarray(self.distances.max(axis=0))

    def as_document(self) -> dict[str, Any]:
        """As JSON says it."""
        seeds, rounds = self.distances.shape
        curves = {
            "mean": self.mean,
            "spread": self.spread,
            "largest": self.largest,
            "bound": self.bound,
        }
        return {
            "value": self.value,
            "seeds": seeds,
            "rounds": rounds,
            **{name: curve.tolist() for name, curve in curves.items()},
            "accuracy": float(self.accuracies.mean()),
        }


def measured(
    protocol: Protocol,
    *,
    seeds: int = 3,
    value: Any = None,
    replaced: Replaced | None = None,
    data: DataSource | None = None,
    model: ModelSource | None = None,
    workers: int | None = None,
    score: bool = False,
    on_round: Callable[[], None] = lambda: None,
) -> Sensitivity:
    """The distance of twins over several seeds: the protocol's own and those after it. Each costs two trainings.

    With `score`, the models in the end are scored on the test records, public or not, which takes its time for large models.

    Raises:
        UserError: fewer than one seed, or a protocol that cannot be trained.

    Example:
        >>> from sordino import Constant, FedAvg, Gaussian, Protocol
        >>> local = FedAvg(steps=2, batch=8, clip=1.0, schedule=Constant(rate=0.1))
        >>> protocol = Protocol(seed=1, clients=5, rounds=4, local=local, noise=Gaussian(sigma=0.01))
        >>> found = measured(protocol, seeds=2, data="digits", model="logistic", workers=1)
        >>> found.distances.shape, bool((found.largest <= found.bound).all())
        ((2, 4), True)
    """
    checked_seeds(seeds)
    runs, bounds = [], []
    for seed in range(seeds):
        pair = twins(prepare(seeded(protocol, seed), data=data, model=model), replaced)
        bounds.append(distance_bounds(pair))  # who takes part depends on the seed
        runs.append(train_twins(pair, workers=workers, score=score, on_round=on_round))
    return Sensitivity(
        value=value,
        distances=np.stack([run.distances for run in runs]),
        bound=np.max(bounds, axis=0),
        accuracies=np.array([math.nan if run.accuracy is None else run.accuracy for run in runs]),
    )


def checked_seeds(seeds: int) -> None:
    """Refuse what is no number of seeds."""
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise InvalidValue("seeds", seeds, "a whole number of at least 1")


def seeded(protocol: Protocol, seed: int) -> Protocol:
    """The protocol with the seed so many after its own."""
    return replace(protocol, seed=(protocol.seed or 0) + seed)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The protocol with the swept key set to a value."""

    value: Any
    protocol: Protocol


def variants(
    protocol: Protocol, key: str | None, values: Iterable[Any] | None = None
) -> tuple[Variant, ...]:
    """The protocol for every value of a key of its file; without a key the protocol alone.

    Args:
        protocol: what is varied.
        key: one of `SWEEPS`.
        values: numbers or words, as in the file; by default those of `SWEEPS`.

    Raises:
        UserError: a key that cannot be varied, no values, or one that the key does not allow.

    Example:
        >>> from sordino import Constant, FedAvg, Gaussian, Protocol
        >>> local = FedAvg(steps=2, batch=8, clip=1.0, schedule=Constant(rate=0.1))
        >>> protocol = Protocol(clients=5, rounds=4, local=local, noise=Gaussian(sigma=0.01))
        >>> [(one.value, one.protocol.local.proximal) for one in variants(protocol, "local.proximal", ["0", 0.5])]
        [(0.0, 0.0), (0.5, 0.5)]
    """
    given = None if values is None else list(values)
    if key is None:
        if given is not None:
            raise UserError(
                "values are given, but no key to set to them: name it, such as --sweep local.clip."
            )
        return (Variant(value=None, protocol=protocol),)
    if key not in SWEEPS:
        raise InvalidValue("sweep", key, one_of(SWEEPS), nearest(key, SWEEPS))
    if given is not None and len(given) == 0:
        raise UserError(
            f"there are no values for {key}: give at least one, or leave them out for {', '.join(map(str, SWEEPS[key]))}."
        )
    return tuple(
        _variant(protocol, key, value) for value in (SWEEPS[key] if given is None else given)
    )


def _variant(protocol: Protocol, key: str, value: Any) -> Variant:
    if key == "local.proximal" and isinstance(protocol.local, ClippedGlm):
        raise UserError(
            "local.proximal cannot vary: the rule clipped-glm has no pull to the global model. Use fedavg or fedprox."
        )
    text = value if isinstance(value, str) else toml_value(value)
    path = f"{key}.kind" if key == "local.schedule" else key
    # alpha = 0 is FedAvg, so a sweep over alpha turns FedAvg into FedProx.
    pulled = ["local.rule=fedprox"] if key == "local.proximal" else []
    plan = overridden(protocol, [*pulled, f"{path}={text}"])
    return Variant(value=_held(plan, key), protocol=plan)


def _held(protocol: Protocol, key: str) -> Any:
    """What the protocol holds under a key: the value in its normal form."""
    table, name = key.split(".")
    found = getattr(protocol if table == "federation" else getattr(protocol, table), name)
    return found.tag if name == "schedule" else found


def sweep(
    protocol: Protocol,
    key: str | None,
    values: Iterable[Any] | None = None,
    *,
    seeds: int = 3,
    replaced: Replaced | None = None,
    data: DataSource | None = None,
    model: ModelSource | None = None,
    workers: int | None = None,
    score: bool = False,
    on_round: Callable[[Protocol], None] = lambda plan: None,
) -> Iterator[Sensitivity]:
    """The distance of twins for every value of a key; the federation is prepared anew for each. All are checked before one is trained.

    Example:
        >>> for row in sweep(protocol, "local.clip", [1, 10], seeds=3):  # doctest: +SKIP
        ...     print(row.value, row.mean[-1], row.spread[-1], row.bound[-1])
    """
    checked_seeds(seeds)
    plans = variants(protocol, key, values)
    if key == "model.name" and model is not None:
        raise UserError("model.name cannot vary while a model is handed over: leave out model=.")
    source = data if data is not None else named_data(protocol)
    for variant in plans:
        twins(prepare(seeded(variant.protocol, 0), data=source, model=model), replaced)
    for variant in plans:
        yield measured(
            variant.protocol,
            seeds=seeds,
            value=variant.value,
            replaced=replaced,
            data=source,
            model=model,
            workers=workers,
            score=score,
            on_round=partial(on_round, variant.protocol),
        )


def named_data(protocol: Protocol) -> DataSource:
    """The data set that a protocol names, read once for all trainings.

    Raises:
        UserError: it names none.
    """
    if protocol.data is None:
        raise UserError(
            "data.name is missing: say what is trained on, such as --set data.name=digits."
        )
    return load_data(protocol.data)
