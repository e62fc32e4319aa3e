"""A published claim as a value, and its check: the printed formula beside the exact value, at parameters of one's choice."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from sordino.papers.parameters import Number, resolved
from sordino.protocol.errors import UserError

Formula = Callable[..., float]
Relation = Literal["at most", "equal to", "at least"]
Judgement = Literal["sound", "conditional", "unsound", "asymptotic"]

# Below this a difference of two numbers is rounding, not a contradiction.
_RELATIVE, _ABSOLUTE = 1e-9, 1e-12


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a paper states about one number, and what is known of it.

    Attributes:
        name: Paper and theorem, such as "convergent/theorem-3a".
        where: The place in the paper, with equation numbers.
        statement: The claim in one sentence.
        quantity: What the number is: "mu", "epsilon", "rdp", "delta", ...
        relation: How the paper relates the true value to the printed one.
        verdict: "sound"; "conditional", true under a condition that the paper does not state; "unsound"; "asymptotic", true in a limit.
        condition: What must hold for it.
        published: The printed formula; takes some of the parameters by keyword.
        exact: The exact value of the example, or a value certified by a theorem that holds; likewise.
        evidence: What the exact value is the value of.
        defaults: The parameters of the check.
        outside: Changes to the defaults that break the condition and refute the claim; for conditional claims.
        reason: Why the verdict, with the letter of THEORY where it is treated there.
        sound_replacement: What to use instead.
    """

    name: str
    where: str
    statement: str
    quantity: str
    relation: Relation
    verdict: Judgement
    published: Formula
    exact: Formula
    evidence: str
    reason: str
    condition: str = "none"
    sound_replacement: str = "none needed"
    defaults: Mapping[str, Number] = field(default_factory=dict)
    outside: Mapping[str, Number] | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One check: what the paper says and what is so, at these parameters.

    Example:
        >>> from sordino.papers.catalogue import find
        >>> verdict = check(find("convergent/theorem-3a"), rounds=2)
        >>> round(verdict.published, 6), round(verdict.exact, 6), verdict.holds
        (0.194745, 0.2, False)
    """

    claim: Claim
    parameters: Mapping[str, Number]
    published: float
    exact: float

    @property
    def quantity(self) -> str:
        """What the two numbers are."""
        return self.claim.quantity

    @property
    def verdict(self) -> Judgement:
        """The verdict on the claim, which does not depend on the parameters of this check."""
        return self.claim.verdict

    @property
    def holds(self) -> bool:
        """Whether the claim is true of these numbers; a claim that fails somewhere may hold here."""
        below = self.exact <= self.published * (1 + _RELATIVE) + _ABSOLUTE
        above = self.exact >= self.published * (1 - _RELATIVE) - _ABSOLUTE
        return {"at most": below, "at least": above, "equal to": below and above}[
            self.claim.relation
        ]

    @property
    def explanation(self) -> str:
        """What the numbers say about the claim, in two sentences or three."""
        claim = self.claim
        found = "which agrees" if self.holds else "which contradicts it"
        numbers = f"Claimed: {claim.quantity} {claim.relation} {self.published:.6g}. {claim.evidence}: {self.exact:.6g}, {found}."
        if claim.outside is None or not self.holds:
            return numbers
        beyond = check(claim, **claim.outside)
        changed = ", ".join(f"{name} = {value:g}" for name, value in claim.outside.items())
        return f"{numbers} Outside its condition, with {changed}, it fails: claimed {beyond.published:.6g}, true {beyond.exact:.6g}."

    def as_document(self) -> dict[str, object]:
        """The check as a JSON object; infinity is still a float here.

        Example:
            >>> from sordino.papers.catalogue import find
            >>> list(check(find("convergent/theorem-3a")).as_document())
            ['claim', 'quantity', 'parameters', 'published', 'exact', 'verdict']
        """
        return {
            "claim": self.claim.name,
            "quantity": self.quantity,
            "parameters": dict(self.parameters),
            "published": self.published,
            "exact": self.exact,
            "verdict": self.verdict,
        }

    def facts(self) -> list[tuple[str, str]]:
        """The check as lines of a word and a text, ready to be printed.

        Example:
            >>> from sordino.papers.catalogue import find
            >>> dict(check(find("convergent/theorem-3a"), rounds=2).facts())["verdict"]
            'unsound'
        """
        claim = self.claim
        return [
            ("claim", f"{claim.name} ({claim.where})"),
            ("says", claim.statement),
            (
                "parameters",
                ", ".join(f"{name} = {value:g}" for name, value in self.parameters.items()),
            ),
            ("published", f"{claim.quantity} {claim.relation} {self.published:.8g}"),
            ("exact", f"{self.exact:.8g}"),
            ("that is", self.explanation),
            ("verdict", claim.verdict),
            ("condition", claim.condition),
            ("why", claim.reason),
            ("instead", claim.sound_replacement),
        ]


def check(claim: Claim, **overrides: Number) -> Verdict:
    """Evaluate the printed formula and the exact value, at the defaults of the claim or with some of them changed.

    Raises:
        UserError: an unknown parameter, one out of its range, or parameters that the theorem itself excludes.

    Example:
        >>> from sordino.papers.catalogue import find
        >>> check(find("convergent/theorem-3c"), rounds=10).holds
        True
        >>> check(find("convergent/theorem-3c"), rounds=0)
        Traceback (most recent call last):
        ...
        sordino.protocol.errors.UserError: rounds = 0: expected a whole number of at least 1 and at most 1e+06.
    """
    parameters = resolved(claim.name, claim.defaults, overrides)
    try:
        published, exact = _value(claim.published, parameters), _value(claim.exact, parameters)
    except (OverflowError, ZeroDivisionError) as error:
        raise UserError(
            f"{claim.name}: its formula is not a number at {parameters}; choose less extreme parameters."
        ) from error
    if math.isnan(published) or math.isnan(exact):
        raise UserError(
            f"{claim.name}: its formula is not a number at {parameters}; choose less extreme parameters."
        )
    return Verdict(claim=claim, parameters=parameters, published=published, exact=exact)


def _value(formula: Formula, parameters: Mapping[str, Number]) -> float:
    """The formula at those parameters that it takes."""
    taken = inspect.signature(formula).parameters
    return float(formula(**{name: value for name, value in parameters.items() if name in taken}))
