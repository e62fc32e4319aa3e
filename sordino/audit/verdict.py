"""What an audit found: a measured lower bound beside what was promised, and a verdict on each promise."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

from sordino.audit.bounds import (
    CONFIDENCE,
    FIRM,
    Limits,
    Scores,
    expected_bound,
    expected_epsilon,
    gaussian_like,
    measured,
    most_shown,
    upper_limit,
)
from sordino.audit.engine_check import EngineCheck
from sordino.audit.residuals import ResidualReport
from sordino.privacy.curves import GaussianCurve
from sordino.privacy.guarantee import Guarantee
from sordino.protocol import InvalidValue

Judgement = Literal["holds", "refuted", "not tested"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Somebody's promise that the audit is held against: mu-GDP, or epsilon at a delta, for who sees a view.

    Example:
        >>> Claim(name="theirs", epsilon=2.0, delta=1e-5).mu is None
        True
    """

    name: str
    mu: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    view: str = "final"
    unit: str = "record"
    ours: bool = False  # whether a contradiction is reported by the exit code: so for what the user asks about

    def __post_init__(self) -> None:
        if (self.mu is None) == (self.epsilon is None):
            raise InvalidValue("claim", self.name, "either mu, or epsilon with delta")
        if (self.epsilon is None) != (self.delta is None):
            raise InvalidValue("claim", self.name, "epsilon together with delta")

    def as_document(self) -> dict[str, Any]:
        """The claim as JSON says it."""
        return {
            "claim": self.name,
            "mu": self.mu,
            "epsilon": self.epsilon,
            "delta": self.delta,
        }


@dataclass(frozen=True, kw_only=True)
class JudgedClaim:
    """A claim and what became of it."""

    claim: Claim
    verdict: Judgement


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of an audit.

    Attributes:
        certified: the bound that is promised.
        mu_lower: measured lower bound on mu, through the Gaussian curve; 0 where nothing was shown.
        epsilon_lower: measured lower bound on epsilon at `delta`, free of assumptions.
        delta: where epsilon is measured.
        confidence: of each of the two numbers.
        trainings: on each side, by which the test was judged.
        most: the largest mu that so many trainings could have shown.
        verdict: on the certified bound.
        claims: verdicts on published or given claims.
        tests: the upper limits of the two error rates of the tests that gave mu and epsilon, where error rates were counted.
        residuals: what the noise was found to be, where it was looked at.
        description: the two data sets, in words.
        given: what the adversary was given beyond the view, as the bound is proved for that; empty where it is the view itself. What is
            measured is then a lower bound for who is given so much, and for nobody else.
        engine: whether the engine that trains does what the game plays, where that was compared.

    Example:
        >>> from sordino import FedAvg, Constant, Gaussian, Protocol, audit
        >>> rule = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.1))
        >>> found = audit(Protocol(seed=1, clients=2, rounds=3, local=rule, noise=Gaussian(sigma=0.1)), "server", trainings=500)
        >>> found.verdict, found.mu_lower < found.certified.mu
        ('holds', True)
    """

    certified: Guarantee
    mu_lower: float
    epsilon_lower: float
    delta: float
    trainings: int
    most: float
    verdict: Judgement
    description: str
    confidence: float = CONFIDENCE
    claims: tuple[JudgedClaim, ...] = ()
    tests: tuple[Limits, ...] = ()
    residuals: ResidualReport | None = field(default=None, repr=False)
    given: str = ""
    engine: EngineCheck | None = None

    @property
    def tightness(self) -> float | None:
        """Measured over certified: of mu where the certificate is Gaussian, else of epsilon; None without a finite certificate."""
        measured, promised = self.mu_lower, self.certified.mu
        if promised is None:
            measured, promised = self.epsilon_lower, self.certified.epsilon(self.delta)
        return measured / promised if math.isfinite(promised) and promised > 0 else None

    @cached_property
    def attained(self) -> float | None:
        """Measured mu over what the certified curve allows where one of the test's two error rates is the same, whichever is nearer.

        That is the tightness where the certificate is Gaussian. Where it is not, epsilon at a small delta is a matter of rare events
        that no number of trainings shows, and this says how near the curve the test came.
        """
        if not self.tests:
            return None
        rates = (self.tests[0].false_positive, self.tests[0].false_negative)
        allowed = min(
            Limits(false_positive=rate, false_negative=self.certified.beta(rate)).mu
            for rate in rates
        )
        return self.mu_lower / allowed if math.isfinite(allowed) and allowed > 0 else None

    @property
    def contradicted(self) -> bool:
        """Whether something that was promised to the user is not so: the certified bound, a claim in question, the noise, the engine."""
        asked = any(judged.claim.ours and judged.verdict == "refuted" for judged in self.claims)
        noise = self.residuals is not None and len(self.residuals.failed) > 0
        engine = self.engine is not None and self.engine.verdict == "differs"
        return self.verdict == "refuted" or asked or noise or engine

    def as_document(self) -> dict[str, Any]:
        """The audit as JSON says it."""
        return {
            "view": str(self.certified.view),
            "unit": self.certified.unit,
            "mu_lower": self.mu_lower,
            "epsilon_lower": self.epsilon_lower,
            "delta": self.delta,
            "confidence": self.confidence,
            "trainings": self.trainings,
            "certified": self.certified.as_document(self.delta),
            "verdict": self.verdict,
            "claims": [{**j.claim.as_document(), "verdict": j.verdict} for j in self.claims],
            "tightness": self.tightness,
            "attained": self.attained,
            "most": self.most,
            "pair": self.description,
            "tests": [asdict(limits) for limits in self.tests],
            "given": self.given,
            "residuals": None if self.residuals is None else residuals_document(self.residuals),
            "engine": None if self.engine is None else self.engine.as_document(),
        }


def residuals_document(report: ResidualReport) -> dict[str, Any]:
    """The residual test as JSON says it."""
    failed = [
        {"test": test.name, "place": test.place, "found": test.found, "p": test.p}
        for test in report.failed
    ]
    return {
        "law": report.law,
        "values": report.values,
        "tests": len(report.tests),
        "failed": failed,
    }


def judged(
    scores: Scores,
    certified: Guarantee,
    claims: tuple[Claim, ...],
    delta: float,
    description: str,
    residuals: ResidualReport | None = None,
    given: str = "",
) -> Finding:
    """Turn scores into bounds and verdicts; "refuted" is said at 99.99 % only, by the test best for mu or the one best for epsilon.

    Claims are about the view: an adversary that was given more says nothing about them.
    """
    firm = [measured(scores, goal, FIRM, delta) for goal in ("mu", "epsilon")]
    for_mu, for_epsilon = measured(scores, "mu"), measured(scores, "epsilon", delta=delta)
    return Finding(
        certified=certified,
        mu_lower=for_mu.mu,
        epsilon_lower=for_epsilon.epsilon(delta),
        delta=delta,
        trainings=scores.trainings,
        most=most_shown(scores.trainings),
        verdict=verdict_on_bound(firm, certified, scores.trainings),
        claims=tuple(
            JudgedClaim(
                claim=claim,
                verdict="not tested"
                if given
                else verdict_on(claim, firm, certified, scores.trainings),
            )
            for claim in claims
        ),
        tests=(for_mu, for_epsilon),
        residuals=residuals,
        description=description,
        given=given,
    )


def verdict_on_bound(firm: list[Limits], certified: Guarantee, trainings: int) -> Judgement:
    """On what is certified; not tested if not even a test that never errs would have contradicted it with so few trainings."""
    if any(limits.contradicts(certified.curve) for limits in firm):
        return "refuted"
    faultless = float(upper_limit(0, trainings, (1 - FIRM) / 2))
    best = Limits(false_positive=faultless, false_negative=faultless)
    return "holds" if best.contradicts(certified.curve) else "not tested"


def verdict_on(claim: Claim, firm: list[Limits], certified: Guarantee, trainings: int) -> Judgement:
    """A claim that the certified bound implies holds, proved. Else it was tested if, the certified bound being attained, so many
    trainings can be expected to contradict it; a claim about another view or unit was not.
    """
    if (claim.view, claim.unit) != (str(certified.view), certified.unit):
        return "not tested"
    if claim.epsilon is not None and claim.delta is not None:
        return verdict_on_epsilon(claim.epsilon, claim.delta, firm, certified, trainings)
    mu = math.inf if claim.mu is None else claim.mu
    if any(limits.contradicts(GaussianCurve(mu=mu)) for limits in firm):
        return "refuted"
    attained = gaussian_like(certified.curve)
    implied = certified.mu is not None and mu >= certified.mu
    return "holds" if implied or expected_bound(attained, trainings, FIRM) > mu else "not tested"


def verdict_on_epsilon(
    epsilon: float, delta: float, firm: list[Limits], certified: Guarantee, trainings: int
) -> Judgement:
    """Returns the verdict on a claim about epsilon at a delta, which any test may contradict, free of assumptions."""
    if any(limits.epsilon(delta) > epsilon for limits in firm):
        return "refuted"
    implied = certified.epsilon(delta) <= epsilon
    shown = expected_epsilon(gaussian_like(certified.curve), delta, trainings, FIRM)
    return "holds" if implied or shown > epsilon else "not tested"
