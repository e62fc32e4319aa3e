"""Checks the parameters of a claim: one rule for each word, the same in every claim."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass

from sordino.protocol.errors import InvalidValue, UserError
from sordino.protocol.value_checks import Integer

Number = int | float


@dataclass(frozen=True)
class Interval:
    """The finite numbers of an interval.

    Unlike numbers of a protocol they may be as small as floats get: no training has to compute
    with them.

    Attributes:
        low: The lower end.
        high: The upper end, which is included.
        above: Whether the lower end is left out.
    """

    low: float
    high: float = math.inf
    above: bool = False

    def accept_value(self, key: str, value: Number) -> Number:
        """Returns the number.

        Args:
            key: The parameter, for the message.
            value: The number.

        Raises:
            InvalidValue: It is not in the interval, or no number at all.

        Example:
            >>> Interval(0).accept_value("proximal", 0.5)
            0.5
        """
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            raise InvalidValue(key, value, str(self))
        if value < self.low or value > self.high or (self.above and value == self.low):
            raise InvalidValue(key, value, str(self))
        return value

    def __str__(self) -> str:
        words = f"a number of at least {self.low:g}"
        if self.above:
            words = f"a number above {self.low:g}"
        if math.isfinite(self.high):
            words += f" and at most {self.high:g}"
        return words


_COUNT = Integer(at_least=1, at_most=1_000_000)
_POSITIVE = Interval(0, above=True)
_PROBABILITY = Interval(0, 1)
_POSITIVE_SHARE = Interval(0, 1, above=True)
# Where a printed formula has e^epsilon in it, the limits keep it a number.
_GAUSSIAN_PARAMETER = Interval(0, 30, above=True)

RULES: Mapping[str, Interval | Integer] = {
    # A federation and its rounds.
    "rounds": _COUNT,
    "steps": Integer(at_least=1, at_most=100_000),
    "clients": _COUNT,
    "participants": _COUNT,
    "batch": _COUNT,
    "records": _COUNT,
    "probability": _PROBABILITY,
    "rate": _POSITIVE,
    "clip": _POSITIVE,
    "sigma": _POSITIVE,
    "smoothness": _POSITIVE,
    "proximal": Interval(0),
    "mixing": _POSITIVE_SHARE,
    "round_number": Integer(at_least=0, at_most=1_000_000),
    # Constants that the papers leave open.
    "c": _POSITIVE,
    "z": _POSITIVE,
    "interpolation": _PROBABILITY,
    # The geometry of two neighbouring runs.
    "shift": _POSITIVE,
    "touched": _POSITIVE_SHARE,
    "distance": _POSITIVE,
    "rho": _POSITIVE,
    "gamma": _POSITIVE,
    "diameter": _POSITIVE,
    "wave": Interval(0, 0.49, above=True),
    # Notions of privacy.
    "mu": _GAUSSIAN_PARAMETER,
    "first": _GAUSSIAN_PARAMETER,
    "second": _GAUSSIAN_PARAMETER,
    "epsilon": Interval(0, 700),
    "delta": Interval(1e-300, 0.999),
    "order": Interval(1, 10_000, above=True),
    # Noise.
    "sensitivity": _POSITIVE,
    "scale": _POSITIVE,
    "step": Interval(0, 100, above=True),
    "width": _POSITIVE,
    "nu": _PROBABILITY,
    "dimension": Integer(at_least=1, at_most=10**12),
    # Noisy descent and curves between models.
    "start": _POSITIVE,
    "tolerance": _POSITIVE,
    "curvature": _POSITIVE,
    "optimum": Interval(-1e6, 1e6),
}


def resolve_parameters(
    claim: str, defaults: Mapping[str, Number], overrides: Mapping[str, Number]
) -> dict[str, Number]:
    """Returns the defaults of a claim with the overrides in their place, each checked.

    Args:
        claim: The name of the claim.
        defaults: The parameters of its check.
        overrides: Parameters that replace some of them.

    Raises:
        UserError: A parameter that the claim does not have, or a number that the parameter may not
            have.

    Example:
        >>> defaults = {"rounds": 10, "sigma": 1.0}
        >>> resolve_parameters("convergent/theorem-3c", defaults, {"rounds": 20})
        {'rounds': 20, 'sigma': 1.0}
        >>> resolve_parameters("convergent/theorem-3c", {"rounds": 10}, {"round": 20})
        Traceback (most recent call last):
        ...
        sordino.protocol.errors.UserError: convergent/theorem-3c has no parameter 'round'; \
did you mean rounds? It has: rounds.
    """
    for name in overrides:
        if name not in defaults:
            raise UserError(
                f"{claim} has no parameter {name!r};{suggest_names(name, defaults)} "
                f"It has: {', '.join(defaults)}."
            )
    return {name: check_parameter(name, value) for name, value in {**defaults, **overrides}.items()}


def check_parameter(name: str, value: Number) -> Number:
    """Returns a parameter as given; a whole number as an integer where one is needed.

    Args:
        name: The parameter.
        value: The number.

    Raises:
        InvalidValue: A number that the parameter may not have.

    Example:
        >>> check_parameter("rounds", 20.0), check_parameter("sigma", 1)
        (20, 1)
    """
    rule = RULES[name]
    if type(rule) is Integer and isinstance(value, float) and value.is_integer():
        value = int(value)
    rule.accept_value(name, value)
    return value


def suggest_names(name: str, known: Mapping[str, object]) -> str:
    """Returns a question that offers the known names nearest to a mistyped one.

    Args:
        name: The mistyped name.
        known: All names.

    Returns:
        The names that contain it, or else those closest to it; empty if there are none.

    Example:
        >>> suggest_names("sigm", {"sigma": 1, "rounds": 2})
        ' did you mean sigma?'
        >>> suggest_names("runds", {"sigma": 1, "rounds": 2}), suggest_names("x", {"sigma": 1})
        (' did you mean rounds?', '')
    """
    suggested = []
    if len(name) > 1:
        suggested = [one for one in known if name in one][:4]
    if not suggested:
        suggested = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if not suggested:
        return ""
    return f" did you mean {' or '.join(suggested)}?"
