"""A published claim as a value, and its check: the printed formula next to the exact value."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from sordino.papers.parameters import Number, resolve_parameters
from sordino.protocol.errors import UserError

Formula = Callable[..., float]
Relation = Literal["at most", "equal to", "at least"]
Judgement = Literal["sound", "conditional", "unsound", "asymptotic"]

# Below this a difference of two numbers is rounding, and no contradiction.
_RELATIVE_ROUNDING = 1e-9
_ABSOLUTE_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True)
class PublishedClaim:
    """A paper's statement about one number, and the verdict on it.

    Attributes:
        name: Paper and theorem, such as "convergent/theorem-3a".
        where: The place in the paper, with equation numbers.
        statement: The claim in one sentence.
        quantity: What the number is: "mu", "epsilon", "rdp", "delta", ...
        verdict: "sound"; "conditional", true under a condition that the paper does not state;
            "unsound"; "asymptotic", true in a limit.
        relation: How the paper relates the true value to the printed one; most claims are upper
            bounds.
        condition: What must hold beyond the paper's assumptions for the claim to be true.
        assumes: A restriction that the paper states elsewhere, or implies.
        published: The printed formula; takes some of the parameters by keyword.
        exact: The exact value of an example, or a value certified by a theorem that holds, from
            some of the parameters as well.
        evidence: The example or the theorem of the exact value, as the subject of a sentence.
        defaults: The parameters of the check.
        outside: Changes to the defaults that break the condition and refute the claim; for
            conditional claims.
        reason: Why the verdict, with the statement of docs/theory.md that treats it, if any.
        sound_replacement: What to use instead.
    """

    name: str
    where: str
    statement: str
    quantity: str
    verdict: Judgement
    published: Formula
    exact: Formula
    evidence: str
    reason: str
    relation: Relation = "at most"
    condition: str = "none"
    assumes: str = "none"
    sound_replacement: str = "none needed"
    defaults: Mapping[str, Number] = field(default_factory=dict)
    # `outside` is where a conditional claim fails: a condition that nothing breaks would be no
    # condition.
    outside: Mapping[str, Number] | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One check: the paper's number and the true one, at some parameters.

    Attributes:
        claim: The published claim, with its verdict.
        parameters: The parameters of the check.
        published: The value of the printed formula.
        exact: The true value.

    Example:
        >>> from sordino.papers.catalogue import find
        >>> verdict = check(find("convergent/theorem-3a"), rounds=2)
        >>> round(verdict.published, 6), round(verdict.exact, 6), verdict.holds
        (0.194745, 0.2, False)
    """

    claim: PublishedClaim
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
        """Whether the claim is true of these numbers; one that fails elsewhere may hold here."""
        # Both margins are needed: the relative one vanishes where a claim is zero.
        highest = self.published * (1 + _RELATIVE_ROUNDING) + _ABSOLUTE_ROUNDING
        lowest = self.published * (1 - _RELATIVE_ROUNDING) - _ABSOLUTE_ROUNDING
        holds_by_relation = {
            "at most": self.exact <= highest,
            "at least": self.exact >= lowest,
            "equal to": lowest <= self.exact <= highest,
        }
        return holds_by_relation[self.claim.relation]

    @property
    def explanation(self) -> str:
        """The meaning of the numbers for the claim, in two or three sentences."""
        claim = self.claim
        outcome = "which contradicts it"
        if self.holds:
            outcome = "which agrees"
        numbers = (
            f"Claimed: {claim.quantity} {claim.relation} {self.published:.6g}. "
            f"{claim.evidence}: {self.exact:.6g}, {outcome}."
        )
        # A claim that fails at the asked parameters needs no second counterexample.
        if claim.outside is None or not self.holds:
            return numbers
        beyond = check(claim, **claim.outside)
        return (
            f"{numbers} Outside its condition, with {_list_parameters(claim.outside)}, it fails: "
            f"claimed {beyond.published:.6g}, true {beyond.exact:.6g}."
        )

    def as_document(self) -> dict[str, object]:
        """Returns the check as a JSON object; infinity is still a float here.

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
        """Returns the check as pairs of a heading and a text, ready to be printed.

        Example:
            >>> from sordino.papers.catalogue import find
            >>> dict(check(find("convergent/theorem-3a"), rounds=2).facts())["verdict"]
            'unsound'
        """
        claim = self.claim
        return [
            ("claim", f"{claim.name} ({claim.where})"),
            ("says", claim.statement),
            ("parameters", _list_parameters(self.parameters)),
            ("published", f"{claim.quantity} {claim.relation} {self.published:.8g}"),
            ("exact", f"{self.exact:.8g}"),
            ("that is", self.explanation),
            ("verdict", claim.verdict),
            ("assumes", claim.assumes),
            ("condition", claim.condition),
            ("why", claim.reason),
            ("instead", claim.sound_replacement),
        ]


def check(claim: PublishedClaim, **overrides: Number) -> Verdict:
    """Evaluates the printed formula and the exact value.

    Args:
        claim: The published claim, with its verdict.
        **overrides: Parameters that replace the defaults of the claim.

    Returns:
        The two numbers, and whether the claim is true of them.

    Raises:
        UserError: A parameter is unknown or out of its range, or the theorem excludes them.

    Example:
        >>> from sordino.papers.catalogue import find
        >>> check(find("convergent/theorem-3c"), rounds=10).holds
        True
        >>> check(find("convergent/theorem-3c"), rounds=0)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        sordino.protocol.errors.InvalidValue: rounds = 0: expected a whole number from 1 to ...
    """
    parameters = resolve_parameters(claim.name, claim.defaults, overrides)
    try:
        published = _evaluate(claim.published, parameters)
        exact = _evaluate(claim.exact, parameters)
    except UserError:
        raise
    # Extreme parameters overflow, divide by 0 or leave the domain of a logarithm.
    except (ArithmeticError, ValueError):
        published = math.nan
        exact = math.nan
    if math.isnan(published) or math.isnan(exact):
        raise UserError(
            f"{claim.name}: its formula is not a number at {parameters}; "
            "choose less extreme parameters."
        )
    return Verdict(claim=claim, parameters=parameters, published=published, exact=exact)


def _evaluate(formula: Formula, parameters: Mapping[str, Number]) -> float:
    """Returns the value of a formula at those of the parameters that it takes."""
    accepted = inspect.signature(formula).parameters
    return float(formula(**{name: value for name, value in parameters.items() if name in accepted}))


def _list_parameters(parameters: Mapping[str, Number]) -> str:
    """Returns parameters as words."""
    return ", ".join(f"{name} = {value:g}" for name, value in parameters.items())
