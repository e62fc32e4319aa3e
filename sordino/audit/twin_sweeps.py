"""Measures the distance of twins, round by round, over seeds and over values of a protocol's key.

The paper convergent-dp calls this distance sensitivity (Figure 2, Tables 5, 7, 9 and 12). It is an
observation about one pair of data sets, whereas a guarantee covers the worst pair; so the largest
distance that any twins can have is given next to it.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from sordino.audit.twin_distances import bound_distances
from sordino.audit.twins import Replaced, make_twins, train_twins
from sordino.data import load_data
from sordino.federation.complete_protocol import DataSource, ModelSource
from sordino.federation.setup import prepare
from sordino.protocol import (
    FedProx,
    InvalidValue,
    LocalRule,
    Protocol,
    UserError,
    dumps,
    override_keys,
)
from sordino.protocol.file import read_override, toml_value
from sordino.protocol.spelling import one_of, suggest_spelling

# The keys with default values: alpha of Figure 2 and Table 5, schedules of Table 9, m and S of
# Table 12. For K and V of Figure 2 convergent-dp states no values but its general K = 5, V = 10;
# the ones here lie around these.
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
    """Holds the distance of twins over several seeds.

    Attributes:
        value: The value of the swept key; None if nothing was swept.
        distances: The distances, one seed per row, one round per column.
        bound: The largest possible distance after every round.
        accuracies: The accuracy of the final model for every seed; NaN if it was not scored.
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
        """Sample standard deviation over the seeds, round by round; NaN for one seed."""
        if len(self.distances) < 2:
            return np.full(self.distances.shape[1], math.nan)
        return np.asarray(self.distances.std(axis=0, ddof=1))

    @property
    def largest(self) -> np.ndarray:
        """The largest over the seeds, round by round."""
        return np.asarray(self.distances.max(axis=0))

    def as_document(self) -> dict[str, Any]:
        """Returns the distances for JSON."""
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


def measure_sensitivity(  # noqa: PLR0913  (every option has a name and a default)
    protocol: Protocol,
    *,
    seeds: int = 3,
    value: Any = None,
    replaced: Replaced | None = None,
    data: DataSource | None = None,
    model: ModelSource | None = None,
    engine: str = "auto",
    workers: int | None = None,
    score: bool = False,
    on_round: Callable[[], None] = lambda: None,
) -> Sensitivity:
    """Returns the distance of twins over several seeds: the protocol's and those that follow it.

    Args:
        protocol: The protocol that is trained.
        seeds: The number of seeds; each takes two trainings.
        value: The value of the swept key, which is kept with the result.
        replaced: Which record differs between the twins, and by what it is replaced.
        data: Data in place of the protocol's.
        model: A model in place of the protocol's.
        engine: "auto", "native" or "torch".
        workers: Processes or threads; by default one per core.
        score: Whether to score the final models on the test records, which takes long for large
            models.
        on_round: Called after every round.

    Raises:
        UserError: Fewer than one seed, or a protocol that cannot be trained.

    Example:
        >>> from sordino import Constant, FedAvg, Gaussian, Protocol
        >>> local = FedAvg(steps=2, batch=8, clip=1.0, schedule=Constant(rate=0.1))
        >>> noise = Gaussian(sigma=0.01)
        >>> protocol = Protocol(seed=1, clients=5, rounds=4, local=local, noise=noise)
        >>> found = measure_sensitivity(
        ...     protocol, seeds=2, data="digits", model="logistic", workers=1
        ... )
        >>> found.distances.shape, bool((found.largest <= found.bound).all())
        ((2, 4), True)
    """
    refuse_bad_seeds(seeds)
    runs = []
    bounds = []
    for seed in range(seeds):
        pair = make_twins(prepare(advance_seed(protocol, seed), data=data, model=model), replaced)
        # Participation depends on the seed, and the bound depends on participation.
        bounds.append(bound_distances(pair))
        runs.append(
            train_twins(pair, engine=engine, workers=workers, score=score, on_round=on_round)
        )
    return Sensitivity(
        value=value,
        distances=np.stack([run.distances for run in runs]),
        bound=np.max(bounds, axis=0),
        accuracies=np.array([math.nan if run.accuracy is None else run.accuracy for run in runs]),
    )


def explain_zeros(rows: Iterable[Sensitivity]) -> str | None:
    """Returns why twins ended with equal models; None if no pair did.

    Args:
        rows: What was measured.
    """
    if all(row.largest[-1] > 0 for row in rows):
        return None
    return (
        "A distance of 0 means that the record was not drawn into any minibatch, or its client "
        "into any round. More rounds, steps or seeds, or larger batches, show it."
    )


def refuse_bad_seeds(seeds: int) -> None:
    """Refuses anything that is not a number of seeds.

    Args:
        seeds: The number that was given.

    Raises:
        InvalidValue: It is not a whole number of at least 1.
    """
    if type(seeds) is not int or seeds < 1:
        raise InvalidValue("seeds", seeds, "a whole number of at least 1")


def advance_seed(protocol: Protocol, steps: int) -> Protocol:
    """Returns the protocol with a later seed.

    Args:
        protocol: The federation that is audited.
        steps: How far its seed is advanced.
    """
    return replace(protocol, seed=(protocol.seed or 0) + steps)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Holds the protocol with the swept key set to a value.

    Attributes:
        value: The value, in its normal form; None if nothing is swept.
        protocol: The protocol with that value.
    """

    value: Any
    protocol: Protocol


def make_variants(
    protocol: Protocol, key: str | None, values: Iterable[Any] | None = None
) -> tuple[Variant, ...]:
    """Returns the protocol for every value of a key of its file.

    Args:
        protocol: The protocol that is varied.
        key: Any key of the file; None for the unchanged protocol.
        values: Numbers, words or tables, as in the file; keys of `SWEEPS` have some by default. A
            word for `local.schedule` is its kind, and keeps the rate.

    Raises:
        UserError: A key that cannot be varied, no values, or one that the key does not allow.

    Example:
        >>> from sordino import Constant, FedAvg, Gaussian, Protocol
        >>> local = FedAvg(steps=2, batch=8, clip=1.0, schedule=Constant(rate=0.1))
        >>> protocol = Protocol(clients=5, rounds=4, local=local, noise=Gaussian(sigma=0.01))
        >>> found = make_variants(protocol, "local.proximal", ["0", 0.5])
        >>> [(one.value, one.protocol.local.proximal) for one in found]
        [(0.0, 0.0), (0.5, 0.5)]
    """
    given = None if values is None else list(values)
    if key is None:
        if given is not None:
            raise UserError(
                "values are given, but no key to set to them: name it, such as --sweep local.clip."
            )
        return (Variant(value=None, protocol=protocol),)
    if given is None and key not in SWEEPS:
        allowed = f"{one_of(SWEEPS)}; or any key of the file with --values"
        raise InvalidValue("sweep", key, allowed, suggest_spelling(key, SWEEPS))
    if given is None:
        given = list(SWEEPS[key])
    if len(given) == 0:
        raise UserError(f"there are no values for {key}: give at least one.")
    return tuple(_make_variant(protocol, key, value) for value in given)


def _make_variant(protocol: Protocol, key: str, value: Any) -> Variant:
    if key == "local.proximal":
        _refuse_unpulled(protocol.local)
    text = value if isinstance(value, str) else toml_value(value)
    # A word is the kind of a schedule, which keeps its rate; a table is a complete schedule.
    is_kind = key == "local.schedule" and type(read_override(text)) is str
    path = f"{key}.kind" if is_kind else key
    # alpha = 0 is FedAvg, so a sweep over alpha turns FedAvg into FedProx.
    changes = [f"{path}={text}"]
    if key == "local.proximal":
        changes.insert(0, "local.rule=fedprox")
    plan = override_keys(protocol, changes)
    return Variant(value=_read_value(plan, path), protocol=plan)


def _refuse_unpulled(rule: LocalRule) -> None:
    """Refuses to vary the pull of a rule that fedprox cannot replace."""
    keys = {one.name for one in fields(rule)}
    if not keys <= {one.name for one in fields(FedProx)}:
        raise UserError(
            f"local.proximal cannot vary: the rule {rule.tag} has no pull to the global model. "
            "Use fedavg or fedprox."
        )


def _read_value(protocol: Protocol, path: str) -> Any:
    """Returns the value under a path of keys of the protocol's file, in its normal form."""
    found: Any = tomllib.loads(dumps(protocol))
    for name in path.split("."):
        # An optional table that was left out has no entries.
        found = found.get(name) if isinstance(found, dict) else None
    return found


def sweep_key(  # noqa: PLR0913  (every option has a name and a default)
    protocol: Protocol,
    key: str | None,
    values: Iterable[Any] | None = None,
    *,
    seeds: int = 3,
    replaced: Replaced | None = None,
    data: DataSource | None = None,
    model: ModelSource | None = None,
    engine: str = "auto",
    workers: int | None = None,
    score: bool = False,
    on_round: Callable[[Protocol], None] = lambda plan: None,
) -> Iterator[Sensitivity]:
    """Yields the distance of twins for every value of a key.

    All values are checked before the first is trained.

    Args:
        protocol: The protocol that is varied.
        key: Any key of the file; None for the unchanged protocol.
        values: Numbers or words, as in the file; keys of `SWEEPS` have some by default.
        seeds: The number of seeds per value.
        replaced: Which record differs between the twins, and by what it is replaced.
        data: Data in place of the protocol's.
        model: A model in place of the protocol's.
        engine: "auto", "native" or "torch".
        workers: Processes or threads; by default one per core.
        score: Whether to score the final models.
        on_round: Called with the protocol after every round.

    Yields:
        The distances of one value.

    Raises:
        UserError: A key or value that cannot be varied, or a protocol that cannot be trained.

    Example:
        >>> for row in sweep_key(protocol, "local.clip", [1, 10], seeds=3):  # doctest: +SKIP
        ...     print(row.value, row.mean[-1], row.spread[-1], row.bound[-1])
    """
    refuse_bad_seeds(seeds)
    plans = make_variants(protocol, key, values)
    if key == "model.name" and model is not None:
        raise UserError("model.name cannot vary if a model is passed: leave out model=.")
    source = data if data is not None else load_named_data(protocol)
    for variant in plans:
        make_twins(prepare(advance_seed(variant.protocol, 0), data=source, model=model), replaced)
    for variant in plans:
        yield measure_sensitivity(
            variant.protocol,
            seeds=seeds,
            value=variant.value,
            replaced=replaced,
            data=source,
            model=model,
            engine=engine,
            workers=workers,
            score=score,
            on_round=partial(on_round, variant.protocol),
        )


def load_named_data(protocol: Protocol) -> DataSource:
    """Returns the data set that a protocol names, read once for all trainings.

    Args:
        protocol: The federation that is audited.

    Raises:
        UserError: It names none.
    """
    if protocol.data is None:
        raise UserError(
            "data.name is missing: say what is trained on, such as --set data.name=digits."
        )
    return load_data(protocol.data)
