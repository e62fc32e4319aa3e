"""Describes the request for a sweep: keys and values, epsilons, seeds, and the price of tuning."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from sordino.mechanisms import mechanism_of
from sordino.protocol import InvalidValue, Protocol, UserError, View, dumps, override_keys
from sordino.protocol.file import read_override, toml_value

# Which price of tuning is asked for: none, that of all runs together, or that of the best alone.
PRICES = ("none", "sum", "selection")
# The name of a target among the values of a setting.
EPSILON = "epsilon"


@dataclass(frozen=True, kw_only=True)
class SweepRequest:
    """Describes a sweep; two equal requests are the same sweep.

    Attributes:
        protocol: The federation whose keys are varied.
        over: The keys of the protocol's file that vary, each with its values.
        epsilons: Targets, for each of which the noise is calibrated; empty to keep the noise.
        view: The adversary whose epsilon is calibrated and shown.
        delta: The delta of every epsilon.
        seeds: The number of trainings of every setting.
        price: One of `PRICES`.
        trials: The expected number of trainings, for the price "selection"; None otherwise.
    """

    protocol: Protocol
    over: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    epsilons: tuple[float, ...] = ()
    view: str = "server"
    delta: float = 1e-5
    seeds: int = 1
    price: str = "none"
    trials: float | None = None

    def __post_init__(self) -> None:
        # A misspelt view is refused before hours of training.
        View.parse(self.view)
        if not self.over and not self.epsilons:
            raise UserError(
                "a sweep varies something: expected --over KEY=V1,V2,... or --epsilons E1,E2,..."
            )
        if isinstance(self.seeds, bool) or not isinstance(self.seeds, int) or self.seeds < 1:
            raise InvalidValue("seeds", self.seeds, "a whole number of at least 1")
        if not 0 < self.delta < 1:
            raise InvalidValue("delta", self.delta, "a number above 0 and below 1")
        for epsilon in self.epsilons:
            if not (math.isfinite(epsilon) and epsilon > 0):
                raise InvalidValue("epsilons", epsilon, "finite numbers above 0")
        self._refuse_unscored()
        self._refuse_keys()
        self._refuse_price()

    def _refuse_unscored(self) -> None:
        """Refuses a protocol whose models are not scored."""
        data = self.protocol.data
        if data is not None and data.test == "none":
            raise UserError(
                'data.test = "none": nothing is scored, so a sweep has nothing to compare. Leave '
                "it out, or train without a sweep."
            )

    def _refuse_keys(self) -> None:
        """Refuses keys that a sweep sets by itself, and keys that are given twice."""
        calibrated = f"noise.{mechanism_of(self.protocol.noise).size_entry}"
        seen: set[str] = set()
        for key, _ in self.over:
            if key == "seed":
                raise UserError("--over seed: seeds vary by --seeds N, from the file's seed on.")
            if key == calibrated and self.epsilons:
                raise UserError(
                    f"--over {key} with --epsilons: the noise is calibrated for each epsilon. "
                    "Leave out one of them."
                )
            if key in seen:
                raise UserError(f"--over {key} is given twice: list all values after one =.")
            seen.add(key)

    def _refuse_price(self) -> None:
        """Refuses a price of tuning that nothing proves."""
        if self.price not in PRICES:
            raise InvalidValue("price", self.price, " or ".join(PRICES))
        if (self.trials is None) == (self.price == "selection"):
            raise UserError(
                "private selection draws how many trainings there are: expected --price selection "
                "together with --trials MEAN."
            )
        if self.trials is None:
            return
        if not (math.isfinite(self.trials) and self.trials >= 1):
            raise InvalidValue("trials", self.trials, "a finite number of at least 1")
        if View.parse(self.view) != View.FINAL:
            raise UserError(
                f"--price selection with --view {self.view}: an adversary who sees rounds "
                "sees those of every training, and they add up. Use --view final, or --price sum."
            )
        if self.seeds != 1:
            raise UserError(
                f"--price selection with --seeds {self.seeds}: settings are drawn at random, one "
                "training at a time. Leave out --seeds, and let --trials say how many."
            )

    @property
    def first_seed(self) -> int:
        """The seed of the first training."""
        return self.protocol.seed or 0

    def as_document(self) -> dict[str, Any]:
        """Returns the request as sweep.json has it."""
        return {
            "protocol": dumps(self.protocol),
            "over": {key: list(values) for key, values in self.over},
            "epsilons": list(self.epsilons),
            "view": self.view,
            "delta": self.delta,
            "seeds": self.seeds,
            "price": self.price,
            "trials": self.trials,
        }


def read_over(text: str) -> tuple[str, tuple[Any, ...]]:
    """Reads `KEY=V1,V2,...`.

    Args:
        text: The value of --over. Commas inside brackets or quotes separate nothing.

    Returns:
        The key and its values.

    Raises:
        UserError: The text has no key or no values.

    Example:
        >>> read_over("local.clip=1,2.5")
        ('local.clip', (1, 2.5))
        >>> read_over("federation.participation=everyone,{ poisson = 0.5 }")
        ('federation.participation', ('everyone', {'poisson': 0.5}))
    """
    key, equals, values = text.partition("=")
    words = [word.strip() for word in split_outside_brackets(values)]
    if not equals or not key.strip() or not all(words):
        raise UserError(f"--over {text!r}: expected KEY=V1,V2,..., such as local.clip=0.5,1,2.")
    return key.strip(), tuple(read_override(word) for word in words)


def split_outside_brackets(text: str) -> list[str]:
    """Returns the parts of a text between commas that no bracket and no quote encloses.

    Args:
        text: Values of TOML, separated by commas.

    Example:
        >>> split_outside_brackets('[1, 2],"a,b",c')
        ['[1, 2]', '"a,b"', 'c']
    """
    parts = [""]
    depth = 0
    quote = ""
    for letter in text:
        if letter == "," and depth == 0 and not quote:
            parts.append("")
            continue
        parts[-1] += letter
        if quote:
            if letter == quote:
                quote = ""
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
    return parts


def read_axes(over: Mapping[str, Iterable[Any]]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """Returns keys and values as a request has them.

    Args:
        over: The values by key; a value that is a text is read as on the command line.

    Raises:
        UserError: A key has no values.
    """
    axes = []
    for key, values in over.items():
        # A text would be read as one value for every letter.
        if isinstance(values, str):
            raise InvalidValue(f"over[{key!r}]", values, "a list of values")
        read = tuple(read_override(one) if isinstance(one, str) else one for one in values)
        if not read:
            raise UserError(f"--over {key}: there are no values. Give at least one.")
        axes.append((key, read))
    return tuple(axes)


@dataclass(frozen=True, kw_only=True)
class SweepSetting:
    """Holds one combination of values, before its noise is calibrated.

    Attributes:
        values: The values by key; a target has the key "epsilon".
        protocol: The protocol with these values.
    """

    values: dict[str, Any]
    protocol: Protocol


def make_settings(request: SweepRequest) -> tuple[SweepSetting, ...]:
    """Returns every combination of the values of a request.

    Args:
        request: The sweep.

    Raises:
        UserError: A key is unknown, a value is not allowed, or values do not go together.
    """
    keys = [key for key, _ in request.over]
    settings = []
    for values in product(*(values for _, values in request.over)):
        chosen = dict(zip(keys, values, strict=True))
        # As with --set, every value is checked as in a file.
        changes = [write_override(key, value) for key, value in chosen.items()]
        plan = override_keys(request.protocol, changes)
        if not request.epsilons:
            settings.append(SweepSetting(values=chosen, protocol=plan))
        for epsilon in request.epsilons:
            settings.append(SweepSetting(values={**chosen, EPSILON: epsilon}, protocol=plan))
    return tuple(settings)


def write_override(key: str, value: Any) -> str:
    """Returns a key and its value as an override, as after --set.

    Args:
        key: The key of the protocol's file.
        value: The value.

    Raises:
        InvalidValue: The value is of a type that no protocol has, such as a date.

    Example:
        >>> write_override("data.name", "mnist")
        'data.name="mnist"'
    """
    try:
        return f"{key}={toml_value(value)}"
    except TypeError:
        allowed = "a number, a word, a truth value, a table or a list"
        raise InvalidValue(key, value, allowed) from None
