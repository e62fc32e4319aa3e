"""A guarantee: a privacy curve with everything that gives it meaning. It prints as a sentence that a review board can read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sordino.privacy.curves import Curve
from sordino.protocol import Dirichlet, Protocol, Shards, View

BY_LABEL: Mapping[type, str] = {Dirichlet: "dirichlet", Shards: "shards"}

MEANINGFUL = (
    100.0  # an epsilon beyond it lets odds grow by more than e^100: people are not shown its digits
)
UNIT_IN_WORDS = {"record": "one record of one client", "client": "all records of one client"}


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What an adversary learns, at most.

    Attributes:
        view: who the adversary is.
        unit: what is hidden, "record" or "client".
        adjacency: how neighbouring data sets differ.
        kind: "bound" for something proved; nothing else comes out of `certify`.
        method: which of the valid bounds this is, the smallest.
        assumptions: what the user vouched for and the bound uses; empty for an unconditional one.
        curve: the bound itself.
        derivation: how it comes about, line by line, with theorem numbers.
        unconditional: the smallest bound that needs nothing vouched for, where this one does.
        notes: what the promise is about, where a simulation makes it less than it seems.

    Example:
        >>> from sordino.privacy.curves import GaussianCurve
        >>> print(Guarantee(view=View.SERVER, unit="record", method="composition", curve=GaussianCurve(mu=1.0)))
        Who sees every client's upload, every round, learns at most epsilon = 4.38 at delta = 1e-05 about one record of one client \
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

    @property
    def mu(self) -> float | None:
        """The Gaussian parameter, where the curve is Gaussian."""
        return self.curve.mu

    @property
    def condition(self) -> str:
        """Returns what must be true for the bound to hold, in words; empty for an unconditional one.

        Example:
            >>> from sordino.privacy.curves import GaussianCurve
            >>> vouched = ("every minibatch loss is 1-smooth",)
            >>> one = Guarantee(view=View.FINAL, unit="record", method="", curve=GaussianCurve(mu=1.0), assumptions=vouched)
            >>> one.condition
            'if, as vouched, every minibatch loss is 1-smooth'
        """
        return f"if, as vouched, {' and '.join(self.assumptions)}" if self.assumptions else ""

    @property
    def rho(self) -> float | None:
        """The parameter of zero-concentrated privacy, mu^2/2, where the curve is Gaussian: its Rényi divergence of order a is rho a."""
        return None if self.curve.mu is None else self.curve.mu**2 / 2

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon known to hold at `delta`, rounded up."""
        return self.curve.epsilon(delta)

    def delta(self, epsilon: float) -> float:
        """The smallest delta known to hold at `epsilon`, rounded up."""
        return self.curve.delta(epsilon)

    def beta(self, alpha: float) -> float:
        """The trade-off function: least false negative rate of a test with false positive rate `alpha`, rounded down."""
        return self.curve.beta(alpha)

    def rdp(self, order: float) -> float:
        """The Rényi divergence of this order, rounded up."""
        return self.curve.rdp(order)

    def sentence(self, delta: float = 1e-5) -> str:
        """Returns the guarantee in words, at one delta, with what must be said with it."""
        epsilon = self.epsilon(delta)
        if math.isinf(epsilon):
            claim = "may learn everything: no finite epsilon holds"
        elif epsilon > MEANINGFUL:
            claim = f"learns without a meaningful limit, epsilon being beyond {MEANINGFUL:g}"
        else:
            claim = f"learns at most epsilon = {epsilon_in_words(epsilon)}"
        details = [self.adjacency, self.kind, self.method]
        mu = ""
        if self.mu is not None and self.rho is not None:
            mu = f"; mu = {rounded_up(self.mu)}, rho = {rounded_up(self.rho)}"
        vouched = (
            f" This holds if it is true, as vouched, that {' and '.join(self.assumptions)}."
            if self.assumptions
            else ""
        )
        about = UNIT_IN_WORDS[self.unit]
        noted = "".join(f" {note}" for note in self.notes)
        return (
            f"Who sees {self.view.sees}, {claim} at delta = {delta:g} about {about} "
            f"({', '.join(details)}{mu}).{vouched}{noted}"
        )

    def __str__(self) -> str:
        return self.sentence()

    def explain(self) -> str:
        """The derivation, line by line."""
        return "\n".join(self.derivation)

    def as_document(self, delta: float) -> dict[str, Any]:
        """The guarantee as JSON says it."""
        return {
            "view": str(self.view),
            "unit": self.unit,
            "adjacency": self.adjacency,
            "kind": self.kind,
            "mu": self.mu,
            "rho": self.rho,
            "epsilon": self.epsilon(delta),
            "delta": delta,
            "method": self.method,
            "assumptions": list(self.assumptions),
            "notes": list(self.notes),
        }


def epsilon_in_words(epsilon: float) -> str:
    """Returns an upper bound on epsilon as people read it, never below the true one; JSON has the digits.

    Example:
        >>> epsilon_in_words(7.9312), epsilon_in_words(100.0), epsilon_in_words(100.1), epsilon_in_words(float("inf"))
        ('7.94', '100', 'no meaningful limit', 'no limit')
    """
    if math.isinf(epsilon):
        return "no limit"
    if epsilon > MEANINGFUL:
        return "no meaningful limit"
    return rounded_up(epsilon)


def notes_on(protocol: Protocol) -> tuple[str, ...]:
    """Returns what must be said with every promise about a protocol: whether labels decided which client has which record.

    Example:
        >>> from sordino.protocol import read
        >>> notes_on(read("sordino/examples/digits.toml"))[0][:42]  # doctest: +SKIP
        'Pooled records were dealt to clients by la'
    """
    dealt = None if protocol.data is None else BY_LABEL.get(type(protocol.data.partition))
    if dealt is None:
        return ()
    return (
        f"Pooled records are dealt to clients by label ({dealt}), as only a simulation can: the promise is about records with this "
        "dealing kept as it is, since another label would move the records of others.",
    )


def rounded_up(value: float, digits: int = 3) -> str:
    """A number for people, never below the true one.

    Example:
        >>> rounded_up(4.3711), rounded_up(0.00012341), rounded_up(123.4), rounded_up(float("inf")), rounded_up(0.0)
        ('4.38', '0.000124', '124', 'inf', '0')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    step = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    up = math.ceil(value / step * (1 - 1e-12)) * step
    return f"{up:.{digits}g}" if up < 10**digits else f"{up:.0f}"


def rounded_down(value: float, digits: int = 3) -> str:
    """A lower bound for people, never above the true one.

    Example:
        >>> rounded_down(4.3799), rounded_down(0.0), rounded_down(123.9)
        ('4.37', '0', '123')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    step = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    down = math.floor(value / step * (1 + 1e-12)) * step
    return f"{down:.{digits}g}" if down < 10**digits else f"{down:.0f}"
