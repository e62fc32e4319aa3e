"""A guarantee: a privacy curve with everything that gives it meaning; it prints as a sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sordino.privacy.curves.curve import Curve
from sordino.protocol import (
    ByColumn,
    Dirichlet,
    Iid,
    Partition,
    Protocol,
    Registry,
    Shards,
    View,
)
from sordino.protocol.views import ANY_UNIT_IN_WORDS

# What is said of records whose contents decide which client has which record; "" where none do.
ASSIGNMENT_NOTES: Registry[str] = Registry("note on the assignment", "partition", Partition)
ASSIGNMENT_NOTES.register(Iid)("")
ASSIGNMENT_NOTES.register(Dirichlet, Shards)(
    "Pooled records are assigned to clients by label ({partition.tag}), as only a simulation can. "
    "The guarantee takes this assignment as fixed: another label would move the records of others."
)
ASSIGNMENT_NOTES.register(ByColumn)(
    "Pooled records are assigned to clients by the column {partition.column!r}. The guarantee "
    "takes this assignment as fixed: another value there would move the record to another client."
)

# An epsilon beyond it lets odds grow by more than e^100: people are not shown its digits.
MEANINGFUL = 100.0


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What an adversary learns, at most.

    Attributes:
        view: The adversary.
        unit: The hidden unit, "record" or "client".
        adjacency: How neighbouring data sets differ.
        kind: Always "bound": what is promised is proved.
        method: The name of the method that proves the bound, the smallest of all that are valid.
        assumptions: What the user vouched for and the bound uses; empty for an unconditional one.
        curve: The privacy curve, for noise as it is drawn.
        derivation: The derivation of the bound, line by line, with theorem numbers.
        unconditional: The smallest bound that needs nothing vouched for, where this one does.
        notes: Sentences that limit what the guarantee is about, such as for a simulated assignment
            of records.
        sees: What the adversary sees, in words; by default in those of the view.

    Example:
        >>> from sordino.privacy.curves.gaussian_curve import GaussianCurve
        >>> curve = GaussianCurve(mu=1.0)
        >>> print(Guarantee(view=View.SERVER, unit="record", method="composition", curve=curve))
        An adversary who sees every client's upload in every round learns at most \
epsilon = 4.38 (delta = 1e-5) about any one record of a client \
(replace-one, bound, composition; mu = 1, rho = 0.5).
    """

    view: View
    unit: str
    method: str
    curve: Curve
    adjacency: str = "replace-one"
    kind: str = "bound"
    assumptions: tuple[str, ...] = ()
    derivation: tuple[str, ...] = ()
    unconditional: Guarantee | None = None
    notes: tuple[str, ...] = ()
    sees: str = ""

    def __post_init__(self) -> None:
        if not self.sees:
            object.__setattr__(self, "sees", self.view.sees)

    @property
    def mu(self) -> float | None:
        """The Gaussian parameter, where the law of the noise makes the curve Gaussian.

        It holds up to `total_variation`, as `rho` and `rdp` do.
        """
        return self.curve.law.mu

    @property
    def total_variation(self) -> float:
        """How far drawn noise is from its law; 0 but for integers (docs/theory.md#a12).

        Epsilon, delta and beta count it. No parameter of a law can: `mu`, `rho` and `rdp` are true
        of something that is this close to the release.
        """
        return self.curve.total_variation

    @property
    def closeness(self) -> str:
        """What must be said behind `mu` and `rho`, in words; empty where they hold exactly."""
        if self.total_variation == 0:
            return ""
        return f" up to a total variation of {round_up(self.total_variation)}"

    @property
    def condition(self) -> str:
        """What must be true for the bound to hold, in words; empty for an unconditional one.

        Example:
            >>> from sordino.privacy.curves.gaussian_curve import GaussianCurve
            >>> vouched = ("every minibatch loss is 1-smooth",)
            >>> curve = GaussianCurve(mu=1.0)
            >>> one = Guarantee(
            ...     view=View.FINAL, unit="record", method="", curve=curve, assumptions=vouched
            ... )
            >>> one.condition
            'if, as vouched, every minibatch loss is 1-smooth'
        """
        return f"if, as vouched, {' and '.join(self.assumptions)}" if self.assumptions else ""

    @property
    def rho(self) -> float | None:
        """The parameter of zero-concentrated privacy, mu^2/2, where there is a mu.

        Its Rényi divergence of order a is rho a.
        """
        return None if self.mu is None else self.mu**2 / 2

    def epsilon(self, delta: float) -> float:
        """Returns the smallest epsilon known to hold at `delta`, rounded up.

        Args:
            delta: The delta of the guarantee, above 0 and below 1.
        """
        return self.curve.epsilon(delta)

    def delta(self, epsilon: float) -> float:
        """Returns the smallest delta known to hold at `epsilon`, rounded up.

        Args:
            epsilon: The epsilon, at least 0.
        """
        return self.curve.delta(epsilon)

    def beta(self, alpha: float) -> float:
        """Returns the trade-off function, rounded down.

        That is the least false negative rate of a test with false positive rate `alpha`.

        Args:
            alpha: The false positive rate.
        """
        return self.curve.beta(alpha)

    def rdp(self, order: float) -> float:
        """Returns the Rényi divergence of this order, rounded up; up to `total_variation`.

        Args:
            order: The order of the Rényi divergence, above 1.
        """
        return self.curve.law.rdp(order)

    def sentence(self, delta: float = 1e-5) -> str:
        """Returns the guarantee in words, at one delta, with what must be said with it.

        Args:
            delta: The delta of the guarantee, above 0 and below 1.
        """
        details = ", ".join([self.adjacency, self.kind, self.method])
        if self.mu is not None and self.rho is not None:
            details += f"; mu = {round_up(self.mu)}, rho = {round_up(self.rho)}{self.closeness}"
        sentences = [
            f"An adversary who sees {self.sees} {self._limit_in_words(delta)} "
            f"about {ANY_UNIT_IN_WORDS[self.unit]} ({details})."
        ]
        if self.assumptions:
            sentences.append(
                f"This holds if it is true, as vouched, that {' and '.join(self.assumptions)}."
            )
        return " ".join([*sentences, *self.notes])

    def _limit_in_words(self, delta: float) -> str:
        epsilon = self.epsilon(delta)
        at = f"delta = {format_delta(delta)}"
        if math.isinf(epsilon):
            return f"may learn everything (no finite epsilon holds at {at})"
        if epsilon > MEANINGFUL:
            return f"learns without a meaningful limit (epsilon is above {MEANINGFUL:g} at {at})"
        return f"learns at most epsilon = {epsilon_in_words(epsilon)} ({at})"

    def __str__(self) -> str:
        return self.sentence()

    def explain(self) -> str:
        """Returns the derivation, line by line."""
        return "\n".join(self.derivation)

    def as_document(self, delta: float) -> dict[str, Any]:
        """Returns the guarantee as `certify --json` prints it, at one delta.

        Args:
            delta: The delta of the guarantee, above 0 and below 1.
        """
        return {
            "view": str(self.view),
            "unit": self.unit,
            "adjacency": self.adjacency,
            "kind": self.kind,
            "mu": self.mu,
            "rho": self.rho,
            "total_variation": self.total_variation,
            "epsilon": self.epsilon(delta),
            "delta": delta,
            "method": self.method,
            "assumptions": list(self.assumptions),
            "notes": list(self.notes),
        }


def epsilon_in_words(epsilon: float) -> str:
    """Returns an upper bound on epsilon as people read it, never below the true one.

    JSON has the digits.

    Args:
        epsilon: An upper bound on epsilon; may be infinite.

    Example:
        >>> [epsilon_in_words(value) for value in (7.9312, 100.0, 100.1, float("inf"))]
        ['7.94', '100', 'no meaningful limit', 'no limit']
    """
    if math.isinf(epsilon):
        return "no limit"
    if epsilon > MEANINGFUL:
        return "no meaningful limit"
    return round_up(epsilon)


def notes_on(protocol: Protocol) -> tuple[str, ...]:
    """Returns what must be said with every guarantee about a protocol.

    What a record holds may have decided which client has which record.

    Args:
        protocol: The federation that is priced.

    Example:
        >>> from sordino.protocol import read_protocol
        >>> notes_on(read_protocol("sordino/examples/digits-local.toml"))[0][:45]  # doctest: +SKIP
        'Pooled records are assigned to clients by lab'
    """
    if protocol.data is None:
        return ()
    # A neighbour with another value would change which records other clients have.
    note = ASSIGNMENT_NOTES.of(protocol.data.partition)
    return (note.format(partition=protocol.data.partition),) if note else ()


def round_up(value: float, digits: int = 3) -> str:
    """Returns a number for people, never below the true one.

    Args:
        value: The number to show.
        digits: The number of significant digits.

    Example:
        >>> [round_up(value) for value in (4.3711, 0.00012341, 123.4, float("inf"), 0.0)]
        ['4.38', '0.000124', '124', 'inf', '0']
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    step = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    # The quotient of a number with few digits may lie a rounding error above a whole one, and would
    # go up by a whole step.
    up = math.ceil(value / step * (1 - 1e-12)) * step
    return f"{up:.{digits}g}" if up < 10**digits else f"{up:.0f}"


def format_delta(delta: float) -> str:
    """Returns a delta as people write it.

    Args:
        delta: The delta to write.

    Example:
        >>> [format_delta(delta) for delta in (1e-5, 0.001, 2.5e-12)]
        ['1e-5', '0.001', '2.5e-12']
    """
    # Python pads an exponent to two digits.
    return f"{delta:g}".replace("e-0", "e-")


def round_down(value: float, digits: int = 3) -> str:
    """Returns a lower bound for people, never above the true one.

    Args:
        value: The lower bound to show.
        digits: The number of significant digits.

    Example:
        >>> round_down(4.3799), round_down(0.0), round_down(123.9)
        ('4.37', '0', '123')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    step = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    # As in `round_up`: a rounding error below a whole number must not cost a whole step.
    down = math.floor(value / step * (1 + 1e-12)) * step
    return f"{down:.{digits}g}" if down < 10**digits else f"{down:.0f}"
