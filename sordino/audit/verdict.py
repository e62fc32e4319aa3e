"""Claims, verdicts on them, and the finding of an audit."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

from sordino.audit.anytime_limits import AnytimeLimit
from sordino.audit.engine_check import EngineCheck
from sordino.audit.lower_bounds import CONFIDENCE, ErrorLimits, RateLimit, limit_once
from sordino.audit.noise.residual_tests import ResidualReport
from sordino.privacy.guarantee import Guarantee
from sordino.protocol import InvalidValue

Judgement = Literal["holds", "refuted", "not tested"]
# Why an audit with a time limit ended: its verdict was clear, or the time was over.
Ending = Literal["clear", "time"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Describes a claim, mu-GDP or epsilon at a delta, that an audit is compared with.

    Attributes:
        name: The name of the claim in findings.
        mu: The claimed Gaussian parameter; None for a claim about epsilon.
        epsilon: The claimed epsilon; None for a claim about mu.
        delta: The delta that goes with epsilon.
        view: The adversary that the claim is about.
        unit: "record" or "client".
        ours: Whether a contradiction changes the exit code: true for claims that the user asks
            about, false for published ones.

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
    ours: bool = False

    def __post_init__(self) -> None:
        if (self.mu is None) == (self.epsilon is None):
            raise InvalidValue("claim", self.name, "either mu, or epsilon with delta")
        if (self.epsilon is None) != (self.delta is None):
            raise InvalidValue("claim", self.name, "epsilon together with delta")

    def as_document(self) -> dict[str, Any]:
        """Returns the claim as a JSON document."""
        return {
            "claim": self.name,
            "mu": self.mu,
            "epsilon": self.epsilon,
            "delta": self.delta,
        }


@dataclass(frozen=True, kw_only=True)
class JudgedClaim:
    """Holds a claim and the verdict on it.

    Attributes:
        claim: The claim.
        verdict: The verdict on it.
    """

    claim: Claim
    verdict: Judgement

    def as_document(self) -> dict[str, Any]:
        """Returns the claim and its verdict as a JSON document."""
        return {**self.claim.as_document(), "verdict": self.verdict}


@dataclass(frozen=True, kw_only=True)
class TimedTest:
    """Describes the course of an audit with a time limit.

    Attributes:
        minutes: The time limit.
        choosing: Trainings per side that chose the test.
        planned: Trainings per side for which the time seemed to suffice.
        looks: How often the verdict was looked at.
        ended: Why it ended: the verdict was "clear", or the "time" was over.
    """

    minutes: float
    choosing: int
    planned: int
    looks: int
    ended: Ending

    @property
    def limit(self) -> AnytimeLimit:
        """The function that limits error rates, whenever the audit ends."""
        return AnytimeLimit(batch=self.choosing)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Holds the result of an audit.

    Attributes:
        certified: The certified bound.
        mu_lower: The measured lower bound on mu, through the Gaussian curve; 0 if nothing was
            shown.
        epsilon_lower: The measured lower bound on epsilon at `delta`, for any mechanism.
        delta: The delta at which epsilon is measured.
        confidence: The confidence of each of the two numbers.
        trainings: Trainings per side by which the test was judged.
        most: The largest mu that this number of trainings could have shown.
        verdict: The verdict on the certified bound.
        claims: The verdicts on published or stated claims.
        tests: Upper limits of the error rates of the tests that gave mu and epsilon; empty if no
            error rates were counted.
        residuals: The outcome of the noise tests; None if there were none.
        description: The two data sets, in words.
        given: What the adversary was given beyond its view, since the bound is proved for that;
            empty if it was given the view itself. The measured bounds are about an adversary that
            is given that much.
        engine: The comparison of the game with the engine that trains; None if there was none.
        timed: The course of an audit with a time limit; None without one.

    Example:
        >>> from sordino import FedAvg, Constant, Gaussian, Protocol, audit
        >>> rule = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.1))
        >>> plan = Protocol(seed=1, clients=2, rounds=3, local=rule, noise=Gaussian(sigma=0.1))
        >>> found = audit(plan, "server", trainings=500)
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
    tests: tuple[ErrorLimits, ...] = ()
    residuals: ResidualReport | None = field(default=None, repr=False)
    given: str = ""
    engine: EngineCheck | None = None
    timed: TimedTest | None = None

    @property
    def limit(self) -> RateLimit:
        """The function that limits error rates."""
        return limit_once if self.timed is None else self.timed.limit

    @property
    def tightness(self) -> float | None:
        """The measured mu over the certified one, or epsilon if the curve is not Gaussian.

        None if the certified number is infinite or 0.
        """
        # The mu of a Gaussian is its whole curve; epsilon at one delta says less.
        if self.certified.mu is not None:
            return divide_by_promise(self.mu_lower, self.certified.mu)
        return divide_by_promise(self.epsilon_lower, self.certified.epsilon(self.delta))

    @cached_property
    def attained(self) -> float | None:
        """The measured mu over the mu that the certified curve allows at the test's error rates.

        Of the two error rates, the one with the larger quotient counts. For a Gaussian curve this
        is the tightness. For another, epsilon at a small delta is about events too rare for any
        number of trainings, and this number says how near the curve the test came.
        """
        if not self.tests:
            return None
        # A curve need not be symmetric, so it is asked at both error rates of the test.
        rates = (self.tests[0].false_positive, self.tests[0].false_negative)
        allowed = min(
            ErrorLimits(false_positive=rate, false_negative=self.certified.beta(rate)).mu
            for rate in rates
        )
        return divide_by_promise(self.mu_lower, allowed)

    @property
    def contradicted(self) -> bool:
        """Whether something that the user relies on is false.

        That is the certified bound, a claim the user asked about, the noise or the engine.
        """
        # A published claim that is false contradicts its paper, not what the user was promised.
        asked = any(judged.claim.ours and judged.verdict == "refuted" for judged in self.claims)
        noise = self.residuals is not None and len(self.residuals.failed) > 0
        engine = self.engine is not None and self.engine.verdict == "differs"
        return self.verdict == "refuted" or asked or noise or engine

    def as_document(self) -> dict[str, Any]:
        """Returns the finding as a JSON document."""
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
            "claims": [judged.as_document() for judged in self.claims],
            "tightness": self.tightness,
            "attained": self.attained,
            "most": self.most,
            "pair": self.description,
            "tests": [asdict(limits) for limits in self.tests],
            "given": self.given,
            "residuals": None if self.residuals is None else residuals_document(self.residuals),
            "engine": None if self.engine is None else self.engine.as_document(),
            "timed": None if self.timed is None else asdict(self.timed),
        }


def divide_by_promise(measured: float, promised: float) -> float | None:
    """Returns a measured number over the promised one; None if that is 0 or infinite.

    Args:
        measured: A lower bound.
        promised: The upper bound it is compared with.
    """
    # An infinite bound is neither tight nor loose, and a bound of 0 leaves nothing to measure.
    if not math.isfinite(promised) or promised <= 0:
        return None
    return measured / promised


def residuals_document(report: ResidualReport) -> dict[str, Any]:
    """Returns the outcome of the noise tests as a JSON document.

    Args:
        report: All tests of the noise.
    """
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
