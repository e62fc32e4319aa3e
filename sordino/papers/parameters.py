"""Says what each parameter of the papers' formulas means, and checks the numbers given for it."""

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

    Unlike the numbers of a protocol they may be as small as a float can be, since no training
    computes with them.

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
            InvalidValue: The number is not in the interval, or the value is not a number.

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


@dataclass(frozen=True)
class Parameter:
    """A parameter of the papers' formulas, which means the same wherever its name occurs.

    Attributes:
        meaning: What the number is, after the symbol that the paper uses for it.
        rule: The numbers that are accepted.
    """

    meaning: str
    rule: Interval | Integer


_COUNT = Integer(at_least=1, at_most=1_000_000)
_POSITIVE = Interval(0, above=True)
_PROBABILITY = Interval(0, 1)
_POSITIVE_SHARE = Interval(0, 1, above=True)
# Where a printed formula has e^epsilon in it, the limits keep it a number.
_GAUSSIAN_PARAMETER = Interval(0, 30, above=True)

# The one description of what the formulas of this room take; their docstrings do not repeat it.
PARAMETERS: Mapping[str, Parameter] = {
    # A federation and its rounds.
    "rounds": Parameter("T, the number of rounds (R in prifedsync)", _COUNT),
    "steps": Parameter("K, the local steps of a round", Integer(at_least=1, at_most=100_000)),
    "clients": Parameter("m, the number of clients (N where udp-fl shuffles)", _COUNT),
    "participants": Parameter("n, the number of clients that take part in a round", _COUNT),
    "batch": Parameter("B, the number of records that a step draws", _COUNT),
    "records": Parameter("n, the number of records of a client", _COUNT),
    "probability": Parameter("p, the probability that a client takes part", _PROBABILITY),
    "rate": Parameter("mu in convergent-dp, the learning rate", _POSITIVE),
    "clip": Parameter("V, the largest norm of a gradient", _POSITIVE),
    "sigma": Parameter(
        "the standard deviation of the noise; in prifedsync in units of 2 C, "
        "how far one record moves a step",
        _POSITIVE,
    ),
    "smoothness": Parameter("L, the Lipschitz constant of the gradients", _POSITIVE),
    "proximal": Parameter("alpha, the strength of the proximal term", Interval(0)),
    "mixing": Parameter("eta, the weight of the uploads in the new global model", _POSITIVE_SHARE),
    "round_number": Parameter(
        "t, the number of the round, from 0", Integer(at_least=0, at_most=1_000_000)
    ),
    # Constants that the papers leave open.
    "c": Parameter("the constant in H_K <= c ln(K + 1)", _POSITIVE),
    "z": Parameter("the constant of continuously decaying rates", _POSITIVE),
    "interpolation": Parameter("lambda, the share of a distance paid for at once", _PROBABILITY),
    # The geometry of two neighbouring runs.
    "shift": Parameter("the distance between two uploads without noise", _POSITIVE),
    "touched": Parameter("the probability that the uploads differ at all", _POSITIVE_SHARE),
    "distance": Parameter("the distance between two models before a round", _POSITIVE),
    "rho": Parameter("the factor by which a round moves two models apart", _POSITIVE),
    "gamma": Parameter(
        "in convergent-dp the distance that a round adds; in udp-fl a Rényi divergence", _POSITIVE
    ),
    "diameter": Parameter("D, the largest distance between two models", _POSITIVE),
    "wave": Parameter(
        "the height of the wave, as a share of the clip", Interval(0, 0.49, above=True)
    ),
    # Notions of privacy.
    "mu": Parameter("the parameter of Gaussian differential privacy", _GAUSSIAN_PARAMETER),
    "first": Parameter("the Gaussian parameter of the first release", _GAUSSIAN_PARAMETER),
    "second": Parameter(
        "the largest Gaussian parameter of the second release", _GAUSSIAN_PARAMETER
    ),
    "epsilon": Parameter("the epsilon of differential privacy", Interval(0, 700)),
    "delta": Parameter("the delta of differential privacy", Interval(1e-300, 0.999)),
    "order": Parameter(
        "alpha, the order of the Rényi divergence (zeta in convergent-dp)",
        Interval(1, 10_000, above=True),
    ),
    # Noise.
    "sensitivity": Parameter("Delta, how far one record moves a release", _POSITIVE),
    "scale": Parameter("b, the scale of Laplace noise", _POSITIVE),
    "step": Parameter("lambda, the step of the staircase", Interval(0, 100, above=True)),
    "width": Parameter("Delta, the width of a step of the staircase", _POSITIVE),
    "nu": Parameter("the share of a step at its upper height", _PROBABILITY),
    "dimension": Parameter(
        "m in udp-fl, the number of parameters", Integer(at_least=1, at_most=10**12)
    ),
    # Noisy descent and curves between models.
    "start": Parameter("w, the model before a step, or its distance from the minimum", _POSITIVE),
    "tolerance": Parameter("the distance from the minimum to come within", _POSITIVE),
    "curvature": Parameter("L, the second derivative of the loss", _POSITIVE),
    "optimum": Parameter("w*, the minimum of the loss", Interval(-1e6, 1e6)),
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
        UserError: The claim has no such parameter, or a number is out of its range.

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
                f"{claim} has no parameter {name!r}{suggest_names(name, defaults)} "
                f"It has: {', '.join(defaults)}."
            )
    return {name: check_parameter(name, value) for name, value in {**defaults, **overrides}.items()}


def check_parameter(name: str, value: Number) -> Number:
    """Returns a parameter as given; a whole number as an integer where one is needed.

    Args:
        name: The parameter.
        value: The number.

    Raises:
        InvalidValue: The number is out of the parameter's range.

    Example:
        >>> check_parameter("rounds", 20.0), check_parameter("sigma", 1)
        (20, 1)
    """
    rule = PARAMETERS[name].rule
    if type(rule) is Integer and isinstance(value, float) and value.is_integer():
        value = int(value)
    rule.accept_value(name, value)
    return value


def participating_share(clients: int, participants: int) -> float:
    """Returns n/m, the share of the clients that take part in a round.

    Raises:
        UserError: More clients take part than there are.

    Example:
        >>> participating_share(100, 25)
        0.25
    """
    if participants > clients:
        raise UserError(f"participants = {participants!r}: there are only {clients!r} clients.")
    return participants / clients


def drawn_share(batch: int, records: int) -> float:
    """Returns B/n, the share of a client's records that a step draws.

    Raises:
        UserError: The batch is larger than the data.

    Example:
        >>> drawn_share(150, 600)
        0.25
    """
    if batch > records:
        raise UserError(f"batch = {batch!r}: there are only {records!r} records.")
    return batch / records


def suggest_names(name: str, known: Mapping[str, object]) -> str:
    """Returns the end of a sentence about a mistyped name, which offers the nearest known names.

    Args:
        name: The mistyped name.
        known: All names.

    Returns:
        A question with the names that contain it, or else those closest to it; a full stop if
        there are none.

    Example:
        >>> suggest_names("sigm", {"sigma": 1, "rounds": 2})
        '; did you mean sigma?'
        >>> suggest_names("runds", {"sigma": 1, "rounds": 2}), suggest_names("x", {"sigma": 1})
        ('; did you mean rounds?', '.')
    """
    suggested = []
    if len(name) > 1:
        suggested = [one for one in known if name in one][:4]
    if not suggested:
        suggested = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if not suggested:
        return "."
    return f"; did you mean {' or '.join(suggested)}?"
