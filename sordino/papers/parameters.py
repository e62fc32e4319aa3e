"""What the parameters of a check may be: one rule per word, the same in every claim."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass

from sordino.protocol.errors import UserError

Number = int | float


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The numbers that a parameter may have: from `low` (left out itself if `above`) to `high`, whole or not.

    Example:
        >>> print(Rule(low=0, above=True, high=1))
        a number above 0 and at most 1
        >>> print(Rule(low=1, whole=True))
        a whole number of at least 1
    """

    low: float
    high: float = math.inf
    above: bool = False
    whole: bool = False

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        bottom = f"above {self.low:g}" if self.above else f"of at least {self.low:g}"
        return f"{kind} {bottom}" + (
            f" and at most {self.high:g}" if math.isfinite(self.high) else ""
        )

    def allows(self, value: object) -> bool:
        """Whether the value is such a number; a truth value, NaN and infinity are not.

        Example:
            >>> Rule(low=0).allows(0.5), Rule(low=0).allows(True), Rule(low=0).allows("0.5"), Rule(low=1, whole=True).allows(1.5)
            (True, False, False, False)
        """
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not math.isfinite(value)
        ):
            return False
        if self.whole and value != int(value):
            return False
        return (value > self.low if self.above else value >= self.low) and value <= self.high


_COUNT = Rule(low=1, high=1_000_000, whole=True)
_POSITIVE = Rule(low=0, above=True)
_PROBABILITY = Rule(low=0, high=1)

RULES: Mapping[str, Rule] = {
    # A federation and its rounds.
    "rounds": _COUNT,
    "steps": Rule(low=1, high=100_000, whole=True),
    "clients": _COUNT,
    "participants": _COUNT,
    "batch": _COUNT,
    "records": _COUNT,
    "probability": _PROBABILITY,
    "rate": _POSITIVE,
    "clip": _POSITIVE,
    "sigma": _POSITIVE,
    "smoothness": _POSITIVE,
    "proximal": Rule(low=0),
    "mixing": Rule(low=0, high=1, above=True),
    # Constants that the papers leave open.
    "c": _POSITIVE,
    "z": _POSITIVE,
    "interpolation": _PROBABILITY,
    # The geometry of two neighbouring runs.
    "shift": _POSITIVE,
    "touched": Rule(low=0, high=1, above=True),
    "distance": _POSITIVE,
    "rho": _POSITIVE,
    "gamma": _POSITIVE,
    "diameter": _POSITIVE,
    # Notions of privacy. Where a printed formula has e^epsilon in it, the limits keep it a number.
    "mu": Rule(low=0, high=30, above=True),
    "first": Rule(low=0, high=30, above=True),
    "second": Rule(low=0, high=30, above=True),
    "epsilon": Rule(low=0, high=700),
    "delta": Rule(low=1e-300, high=0.999),
    "order": Rule(low=1, high=10_000, above=True),
    # Noise.
    "sensitivity": _POSITIVE,
    "scale": _POSITIVE,
    "step": Rule(low=0, high=100, above=True),
    "width": _POSITIVE,
    "nu": _PROBABILITY,
    "dimension": Rule(low=1, high=1e12, whole=True),
    # Noisy descent and curves between models.
    "start": _POSITIVE,
    "tolerance": _POSITIVE,
    "curvature": _POSITIVE,
    "optimum": Rule(low=-1e6, high=1e6),
}


def resolved(
    claim: str, defaults: Mapping[str, Number], overrides: Mapping[str, Number]
) -> dict[str, Number]:
    """The defaults with the overrides in their place, each checked.

    Raises:
        UserError: a parameter that the claim does not have, or a number that the parameter may not have.

    Example:
        >>> resolved("convergent/theorem-3c", {"rounds": 10, "sigma": 1.0}, {"rounds": 20})
        {'rounds': 20, 'sigma': 1.0}
        >>> resolved("convergent/theorem-3c", {"rounds": 10}, {"round": 20})
        Traceback (most recent call last):
        ...
        sordino.protocol.errors.UserError: convergent/theorem-3c has no parameter 'round'; did you mean rounds? It has: rounds.
    """
    for name, value in overrides.items():
        if name not in defaults:
            raise UserError(
                f"{claim} has no parameter {name!r};{nearest(name, defaults)} It has: {', '.join(defaults)}."
            )
        if not RULES[name].allows(value):
            raise UserError(f"{name} = {value!r}: expected {RULES[name]}.")
    chosen = {**defaults, **overrides}
    return {name: int(value) if RULES[name].whole else value for name, value in chosen.items()}


def nearest(name: str, known: Mapping[str, object]) -> str:
    """A question that offers the known names that contain a mistyped one, or else those closest to it; empty if there are none.

    Example:
        >>> nearest("sigm", {"sigma": 1, "rounds": 2}), nearest("runds", {"sigma": 1, "rounds": 2}), nearest("x", {"sigma": 1})
        (' did you mean sigma?', ' did you mean rounds?', '')
    """
    containing = [one for one in known if len(name) > 1 and name in one]
    close = containing[:4] or difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f" did you mean {' or '.join(close)}?" if close else ""
